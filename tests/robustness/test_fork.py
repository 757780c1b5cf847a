"""Processes that fork: children compute beside their parent, whatever its threads were doing just then."""

from __future__ import annotations

import os

import pytest

from tests.robustness.processes import output_of

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")

PREFORKED = """
    import numpy as np, vkml
    from tests.robustness.forks import in_children
    from tests.robustness.models import model, node, value

    SHAPE, DOUBLE = (4, 100, 100), 11
    wide = model(
        [
            node("Mul", ["x", "x"], ["a"]),
            node("Transpose", ["a"], ["b"], perm=[0, 2, 1]),
            node("CumSum", ["b", "axis"], ["c"]),
            node("Add", ["c", "x"], ["y"]),
            node("Cast", ["y"], ["d"], to=DOUBLE),
            node("Mul", ["d", "d"], ["z"]),
        ],
        [value("x", SHAPE)],
        [value("y", SHAPE), value("b", SHAPE), value("z", SHAPE, DOUBLE)],
        {"axis": np.array(1)},
    )

    def check(seed):
        x = np.random.default_rng(seed).integers(-9, 9, SHAPE).astype(np.float32)
        y, b, z = session.run(None, {"x": x})
        assert np.array_equal(b, (x * x).transpose(0, 2, 1)), "b"
        assert np.array_equal(y, np.cumsum(b, 1) + x), "y"
        assert np.array_equal(z, y.astype(np.float64) ** 2), "z"
        return y, b, z

    def serve(number):
        for request in range(60):
            check(1000 * number + request)

    session = vkml.InferenceSession(wide, devices="cpu")
    freed, kept = check(1), check(0)
    del freed  # the children find memory to use again
    copies = [array.copy() for array in kept]
    in_children(4, serve)
    for array, copy in zip(kept, copies):
        assert np.array_equal(array, copy), "a child wrote into a result of its parent's"
    serve(9)
    print("done")
"""


@pytest.mark.parametrize("native", ["", "0"])
def test_children_of_a_server_compute_side_by_side(native: str) -> None:
    """Workers forked from a parent that has run the model, each with requests of its own."""
    assert output_of(PREFORKED, VKML_NATIVE=native) == "done\n"
