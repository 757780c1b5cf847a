"""bfloat16 on Vulkan: kernels of every kind compute in float32 and round once, where they store."""

from __future__ import annotations

from typing import Any

import numpy as np

import vkml
from tests.ops.checking import run_operator
from vkml.engine.sketch import Sketch
from vkml.ir import dtypes
from vkml.onnx import save_graph

BFLOAT16 = dtypes.BFLOAT16.storage
IMAGE, FILTER, MATRIX = (2, 4, 6, 5), (4, 4, 3, 3), (3, 8, 12)
CASES: list[tuple[str, list[tuple[int, ...] | Any], dict[str, Any]]] = [
    ("Add", [(3, 5), (5,)], {}),
    ("Tanh", [(64,)], {}),
    ("Greater", [(4, 4), (4, 4)], {}),
    ("Softmax", [MATRIX], {}),
    ("LayerNormalization", [MATRIX, (12,), (12,)], {}),
    ("ReduceSum", [MATRIX, np.array([1])], {}),
    ("ReduceMax", [MATRIX], {}),
    ("ArgMin", [MATRIX], {"axis": 2}),
    ("MatMul", [MATRIX, (12, 16)], {}),
    ("MatMul", [(1, 33), (33, 7)], {}),
    ("Conv", [IMAGE, FILTER, (4,)], {"kernel_shape": (3, 3)}),
    ("Conv", [IMAGE, (4, 1, 3, 3)], {"group": 4, "kernel_shape": (3, 3)}),
    ("ConvTranspose", [IMAGE, FILTER], {"kernel_shape": (3, 3)}),
    ("MaxPool", [IMAGE], {"kernel_shape": (2, 2)}),
    ("CumSum", [(3, 40), np.array(1)], {}),
    ("TopK", [(3, 40), np.array([4])], {}),
    ("Gather", [(5, 3), np.array([4, -2])], {}),
    ("Pad", [(2, 3), np.array([1, 0, 0, 2])], {}),
    ("Resize", [IMAGE, None, np.array([1, 1, 2, 2], np.float32)], {"mode": "linear"}),
]


def test_kernels(device_name: str) -> None:
    sketch, feed, made, wanted = Sketch("bfloat16", opset=25), {}, [], []
    random = np.random.default_rng(8)
    for number, (op, stated, attributes) in enumerate(CASES):
        names, arrays = [], []
        for at, found in enumerate(stated):
            if isinstance(found, tuple):
                array = random.standard_normal(found).astype(BFLOAT16)
                name = sketch.input(f"x{number}_{at}", found, dtypes.BFLOAT16)
                feed[name] = array
            else:
                name, array = "" if found is None else sketch.constant(found), found
            names.append(name)
            arrays.append(array)
        made.append(sketch.node(op, *names, **attributes))
        wanted += run_operator(op, arrays, attributes, opset=25)
    with vkml.InferenceSession(save_graph(sketch.finish(*made)), devices=device_name) as session:
        found = session.run(None, feed)
        reasons = dict(session.report().fallbacks)
    assert all(" needs " in reason for reason in reasons.values()), reasons
    for (op, *_), mine, theirs in zip(CASES, found, wanted, strict=True):
        assert mine.dtype == theirs.dtype, op
        with np.errstate(all="ignore"):
            mine, theirs = mine.astype(np.float64), theirs.astype(np.float64)
        # Sums in another order may come to lie on the other side of where bfloat16 rounds.
        limit = 2.0**-8 * np.abs(theirs) + 1e-6 * np.abs(theirs).max()
        assert (np.abs(mine - theirs) <= limit).all(), op


def test_a_fused_chain_keeps_what_float32_has(device_name: str) -> None:
    sketch = Sketch("chain", opset=25)
    x = sketch.input("x", (256,), dtypes.BFLOAT16)
    y = sketch.node("Mul", sketch.node("Sub", x, sketch.constant(np.array(1, BFLOAT16))), x)
    given = np.arange(0x3F80, 0x4080, dtype=np.uint16).view(BFLOAT16)
    with vkml.InferenceSession(save_graph(sketch.finish(y)), devices=device_name) as session:
        [found] = session.run(None, {"x": given})
    wide = given.astype(np.float32)
    np.testing.assert_array_equal(
        found.astype(np.float32), ((wide - 1) * wide).astype(BFLOAT16).astype(np.float32)
    )
