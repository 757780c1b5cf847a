"""Resize in machine code: geometries, layouts, types, batches that are open."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vkml
import vkml.lowering.cpu
from vkml.cpu.native.executable import instruction_set
from vkml.engine.sketch import Sketch
from vkml.ir import dtypes
from vkml.onnx import save_graph

if instruction_set() is None:
    pytest.skip("no machine code here", allow_module_level=True)

CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "both axes": ((2, 21, 9, 8), (2, 21, 33, 16), {"mode": "linear"}),
    "one channel": ((1, 1, 17, 13), (1, 1, 40, 20), {"mode": "linear"}),
    "one axis": (
        (2, 3, 7, 12),
        (2, 3, 7, 30),
        {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
    ),
    "cubic, up and down": ((2, 3, 17, 13), (2, 3, 8, 20), {"mode": "cubic", "cubic_coeff_a": -0.5}),
    "antialiased": ((1, 5, 31, 40), (1, 5, 8, 9), {"mode": "linear", "antialias": 1}),
    "nearest, by odd factors": ((1, 4, 5, 6), (1, 4, 7, 4), {"mode": "nearest"}),
    "a matrix": ((3, 17), (3, 40), {"mode": "linear"}),
    "a volume": ((1, 2, 5, 6, 7), (1, 2, 10, 9, 3), {"mode": "linear"}),
}


def resized(sketch: Sketch, x: str, sizes: tuple[int, ...], attributes: dict[str, Any]) -> str:
    return sketch.node("Resize", x, "", "", sketch.constant(np.array(sizes, np.int64)), **attributes)


def is_numpy(session: vkml.InferenceSession) -> bool:
    return any(step.variant == "numpy" for step in session.report().steps)


def compare(
    sketch: Sketch, outputs: list[str], values: np.ndarray[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> np.ndarray[Any, Any]:
    """Asserts that machine code, and nothing else, gives what NumPy gives; returns that."""
    model = save_graph(sketch.finish(*outputs))
    with vkml.InferenceSession(model, devices="cpu") as session:
        [found] = session.run(None, {"x": values})
        assert not is_numpy(session)
    monkeypatch.setattr(vkml.lowering.cpu, "instruction_set", lambda: None)
    with vkml.InferenceSession(model, devices="cpu") as session:
        [wanted] = session.run(None, {"x": values})
        assert is_numpy(session)
    step = 2 * np.finfo(found.dtype).eps  # float16 is rounded from sums that differ in float32
    np.testing.assert_allclose(found, wanted, rtol=max(step, 1e-5), atol=1e-5)
    return np.asarray(found)


@pytest.mark.parametrize("name", CASES)
def test_resize(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shape, sizes, attributes = CASES[name]
    sketch = Sketch("resized", 18)
    x = sketch.input("x", shape)
    output = resized(sketch, x, sizes, attributes)
    if len(shape) == 4:
        # Between convolutions, which have their channels side by side, and as a part of a Concat.
        weight = sketch.constant(
            np.random.default_rng(1).standard_normal((6, shape[1], 1, 1)).astype(np.float32)
        )
        made = sketch.node("Conv", x, weight)
        after = resized(sketch, made, (*sizes[:1], 6, *sizes[2:]), attributes)
        output = sketch.node("Concat", after, output, axis=1)
    values = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    compare(sketch, [output], values, monkeypatch)


def test_infinities_and_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    sketch = Sketch("halves", 18)
    x = sketch.input("x", (1, 3, 6, 7), dtypes.FLOAT16)
    output = resized(sketch, x, (1, 3, 11, 14), {"mode": "linear"})
    values = np.random.default_rng(0).standard_normal((1, 3, 6, 7)).astype(np.float16)
    values[0, 0, 0, 0], values[0, 1, 3, 3], values[0, 2, 5, 6] = np.inf, np.nan, -np.inf
    found = compare(sketch, [output], values, monkeypatch)
    assert found.dtype == np.float16 and np.isnan(found).any() and np.isinf(found).any()


def test_open_batches() -> None:
    sketch = Sketch("open", 18)
    x = sketch.input("x", ("batch", 8, 5, 6))
    scales = sketch.constant(np.array([1, 1, 2.5, 2], np.float32))
    model = save_graph(sketch.finish(sketch.node("Resize", x, "", scales, mode="linear")))
    rng = np.random.default_rng(0)
    with vkml.InferenceSession(model, devices="cpu") as session:
        for batch in (2, 3, 5, 4, 1):
            values = rng.standard_normal((batch, 8, 5, 6)).astype(np.float32)
            [found] = session.run(None, {"x": values})
            for at in range(batch):
                np.testing.assert_array_equal(found[at], session.run(None, {"x": values[at : at + 1]})[0][0])
        assert not is_numpy(session)
