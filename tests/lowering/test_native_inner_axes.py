"""Softmax, ArgMax and their like along axes that are not the last: rows of copies, results seen in order."""

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

CASES: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "Softmax": ((2, 16, 4, 50), {"axis": 1}),
    "LogSoftmax": ((9, 4, 5), {"axis": 0}),
    "Hardmax": ((9, 4, 5), {"axis": 1}),
    "ArgMax": ((2, 21, 7, 9), {"axis": 1, "keepdims": 0}),
    "ArgMin": ((37,), {"axis": -1}),
}


@pytest.mark.parametrize("dtype", [dtypes.FLOAT32, dtypes.FLOAT16], ids=str)
@pytest.mark.parametrize("op", CASES)
def test_inner_axes(op: str, dtype: dtypes.DType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone, and of what lies with its channels side by side; what comes out is read by another node."""
    shape, attributes = CASES[op]
    sketch = Sketch("inner", 17)
    x = sketch.input("x", shape, dtype)
    found = [sketch.node(op, x, **attributes)]
    if len(shape) == 4:
        weight = np.random.default_rng(1).standard_normal((19, shape[1], 1, 1))
        convolved = sketch.node("Conv", x, sketch.constant(weight.astype(dtype.storage)))
        found.append(sketch.node("Neg", sketch.node(op, convolved, **attributes)))
    model = save_graph(sketch.finish(*found))
    values = np.rint(4 * np.random.default_rng(0).standard_normal(shape)).astype(dtype.storage)
    with vkml.InferenceSession(model, devices="cpu") as session:
        made = session.run(None, {"x": values})
        assert all(step.variant != "numpy" for step in session.report().steps)
    monkeypatch.setattr(vkml.lowering.cpu, "instruction_set", lambda: None)
    with vkml.InferenceSession(model, devices="cpu") as session:
        wanted = session.run(None, {"x": values})
    for mine, theirs in zip(made, wanted, strict=True):
        assert mine.dtype == theirs.dtype
        if mine.dtype.kind == "i":
            np.testing.assert_array_equal(mine, theirs)
        else:
            step = 8 * float(np.finfo(mine.dtype).eps)
            np.testing.assert_allclose(mine, theirs, rtol=step, atol=step)
