"""Products of dequantised numbers as products of bytes: which are found, and that numbers stay the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vkml
from vkml.engine.prepare import prepare
from vkml.engine.sketch import Sketch
from vkml.ir import Graph
from vkml.onnx import save_graph

Array = np.ndarray[Any, Any]
RANDOM = np.random.default_rng(92)
SCALE, ZERO = np.float32(0.02), np.uint8(100)


def bytes_of(dtype: Any, *shape: int) -> Array:
    bounds = np.iinfo(dtype)
    return RANDOM.integers(bounds.min, bounds.max + 1, shape).astype(dtype)


def product(
    op: str,
    weight: Array,
    *,
    shape: tuple[int | None, ...] = (3, 8),
    zero: Any = ZERO,
    scale: Any = SCALE,
    weight_scale: Any = SCALE,
    weight_zero: Any = None,
    axis: int = 1,
    bias: Array | None = None,
    keeps_steps: bool = False,
    **attributes: Any,
) -> Graph:
    """x quantised and dequantised, then its product with a dequantised weight, and a bias."""
    sketch = Sketch("product")
    x = sketch.input("x", shape)
    numbers = [sketch.constant(scale), sketch.constant(zero)]
    steps = sketch.node("QuantizeLinear", x, *numbers)
    operands = [sketch.node("DequantizeLinear", steps, *numbers)]
    others = [weight, weight_scale, *([] if weight_zero is None else [weight_zero])]
    operands.append(sketch.node("DequantizeLinear", *map(sketch.constant, others), axis=axis))
    if bias is not None:
        operands.append(sketch.constant(bias))
    made = sketch.node(op, *operands, **attributes)
    return sketch.finish(made, *([steps] if keeps_steps else []))


def has_bytes(graph: Graph) -> bool:
    ops = [node.op for node in prepare(graph, multiplies_bytes=True).nodes]
    assert "DequantizeLinear" not in [node.op for node in prepare(graph).nodes][2:], (
        "a constant is not folded"
    )
    return "MatMulInteger" in ops or "ConvInteger" in ops


def run(graph: Graph, level: int) -> list[Array]:
    options = vkml.SessionOptions()
    options.graph_optimization_level = level
    session = vkml.InferenceSession(save_graph(graph), options, devices="cpu")
    x = np.random.default_rng(0).standard_normal(session.get_inputs()[0].shape).astype(np.float32) * 2
    return list(session.run(None, {"x": x}))


FIVE = np.linspace(0.1, 1, 5, dtype=np.float32)
TRANSPOSED = {"transB": 1}
CONV = {"shape": (2, 4, 6, 5), "pads": [1, 2, 0, 1], "strides": [2, 1]}
FOUND: dict[str, tuple[str, Array, dict[str, Any]]] = {
    "matmul": ("MatMul", bytes_of(np.int8, 8, 5), {}),
    "columns' scales": ("MatMul", bytes_of(np.int8, 8, 5), {"weight_scale": FIVE}),
    "unsigned weights": ("MatMul", bytes_of(np.uint8, 8, 5), {"weight_zero": np.uint8(128)}),
    "signed activations": ("MatMul", bytes_of(np.int8, 8, 5), {"zero": np.int8(-7)}),
    "odd sizes": ("MatMul", bytes_of(np.int8, 7, 5), {"shape": (2, 3, 7)}),
    "gemm": ("Gemm", bytes_of(np.int8, 5, 8), {**TRANSPOSED, "bias": np.ones(5, np.float32)}),
    "rows' scales of a gemm": (
        "Gemm",
        bytes_of(np.int8, 5, 8),
        {**TRANSPOSED, "weight_scale": FIVE, "axis": 0},
    ),
    "padded conv": ("Conv", bytes_of(np.int8, 6, 4, 3, 3), {**CONV, "bias": np.ones(6, np.float32)}),
    "grouped conv": ("Conv", bytes_of(np.int8, 6, 4, 3, 3), {**CONV, "shape": (1, 8, 6, 5), "group": 2}),
    "three channels": ("Conv", bytes_of(np.int8, 6, 3, 3, 3), {**CONV, "shape": (1, 3, 6, 5)}),
}  # fmt: skip
LEFT: dict[str, tuple[str, Array, dict[str, Any]]] = {
    "weights that are no bytes less their zero point": (
        "MatMul", np.array([[0, 255]] * 8, np.uint8), {"weight_zero": np.uint8(100)},
    ),
    "scales along the sum": (
        "MatMul", bytes_of(np.int8, 8, 5), {"weight_scale": np.ones(8, np.float32), "axis": 0},
    ),
    "a scaled gemm": ("Gemm", bytes_of(np.int8, 8, 5), {"alpha": 0.5}),
    "signed steps that are wanted": (
        "MatMul", bytes_of(np.int8, 8, 5), {"zero": np.int8(3), "keeps_steps": True},
    ),
    "steps of 16 bits": ("MatMul", bytes_of(np.int8, 8, 5), {"zero": np.uint16(3)}),
    "depthwise": ("Conv", bytes_of(np.int8, 4, 1, 3, 3), {**CONV, "group": 4}),
}  # fmt: skip


@pytest.mark.parametrize("name", [*FOUND, *LEFT])
def test_numbers_stay(name: str) -> None:
    op, weight, settings = {**FOUND, **LEFT}[name]
    graph = product(op, weight, **settings)
    assert has_bytes(graph) == (name in FOUND)
    for plain, fast in zip(run(graph, 0), run(graph, 99), strict=True):
        np.testing.assert_allclose(fast, plain, rtol=1e-5, atol=1e-5 * np.abs(plain).max())


@pytest.mark.parametrize("op", ["MatMul", "Conv"])
def test_sizes_may_be_open(op: str, either_device_name: str) -> None:
    shape = (None, 8) if op == "MatMul" else (None, 4, 5, 6)
    weight = bytes_of(np.int8, 8, 5) if op == "MatMul" else bytes_of(np.int8, 6, 4, 3, 3)
    data = save_graph(product(op, weight, shape=shape, **({} if op == "MatMul" else {"pads": [1, 1, 1, 1]})))
    options = vkml.SessionOptions()
    options.graph_optimization_level = 0
    plain, fast = (
        vkml.InferenceSession(data, options, devices="cpu"),
        vkml.InferenceSession(data, devices=either_device_name),
    )
    for rows in (3, 1, 4, 7, 3):
        x = RANDOM.standard_normal((rows, *shape[1:])).astype(np.float32)
        expected, found = (session.run(None, {"x": x})[0] for session in (plain, fast))
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())
