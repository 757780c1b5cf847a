"""ScatterElements and ScatterND in machine code: rows that exporters expand indices for, layouts, types."""

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

CASES: dict[str, tuple[str, tuple[int, ...], tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "rows": ("ScatterElements", (50, 64), (400, 1), (400, 64), {"axis": 0, "reduction": "add"}),
    "rows of some columns": (
        "ScatterElements",
        (9, 5, 8),
        (9, 7, 1),
        (9, 7, 3),
        {"axis": 1, "reduction": "max"},
    ),
    "elements": ("ScatterElements", (5, 7, 9), (4, 3, 8), (4, 3, 8), {"axis": 1, "reduction": "mul"}),
    "last axis": ("ScatterElements", (5, 7), (5, 20), (5, 20), {"axis": 1, "reduction": "min"}),
    "slices": ("ScatterND", (5, 7, 70), (11, 2), (11, 70), {"reduction": "add"}),
    "tuples of one": ("ScatterND", (8, 3, 5), (2, 3, 1), (2, 3, 3, 5), {"reduction": "max"}),
}


def check(
    name: str, dtype: dtypes.DType, monkeypatch: pytest.MonkeyPatch, *, by_numpy: bool = False, **changed: Any
) -> None:
    """Machine code gives what NumPy gives, also inside of a Concat."""
    op, shape, places, updates, attributes = CASES[name]
    sketch = Sketch("scattered", 18)
    x, u = sketch.input("x", shape, dtype), sketch.input("u", updates, dtype)
    i = sketch.input("i", places, dtypes.INT64)
    if op == "ScatterElements" and places != updates:
        i = sketch.node("Expand", i, sketch.constant(np.array(updates)))
    made = sketch.node(op, sketch.node("Concat", x, axis=0), i, u, **{**attributes, **changed})
    model = save_graph(sketch.finish(made, sketch.node("Concat", x, made, axis=len(shape) - 1)))
    random = np.random.default_rng(0)
    limit = min(shape[:2]) if op == "ScatterND" else shape[attributes["axis"]]
    feed = {
        "x": random.integers(-5, 5, shape).astype(dtype.storage),
        "u": random.integers(-5, 5, updates).astype(dtype.storage),
        "i": random.integers(-limit, limit, places),
    }
    with vkml.InferenceSession(model, devices="cpu") as session:
        found = session.run(None, feed)
        assert any(step.variant == "numpy" for step in session.report().steps) == by_numpy
        feed_of_bad = {**feed, "i": np.full(places, limit + 9)}
        with pytest.raises(vkml.IndexOutOfRange, match=op):
            session.run(None, feed_of_bad)
    monkeypatch.setattr(vkml.lowering.cpu, "instruction_set", lambda: None)
    with vkml.InferenceSession(model, devices="cpu") as session:
        for mine, theirs in zip(found, session.run(None, feed), strict=True):
            np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("name", CASES)
def test_reductions(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check(name, dtypes.FLOAT32, monkeypatch)


@pytest.mark.parametrize("dtype", [dtypes.FLOAT32, dtypes.INT64, dtypes.INT32, dtypes.FLOAT64], ids=str)
def test_the_last_of_equal_indices_stays(dtype: dtypes.DType, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("rows", "slices", "elements"):
        with monkeypatch.context() as patch:
            check(name, dtype, patch, reduction="none")


def test_other_types_are_numpys(monkeypatch: pytest.MonkeyPatch) -> None:
    check("rows", dtypes.INT64, monkeypatch, by_numpy=True)
