"""Products of dequantised numbers as products of bytes: which are found, and that numbers stay the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vkml
from vkml.cpu.native.executable import instruction_set
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
    perm: tuple[int, ...] | None = None,
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
    if perm is not None:
        operands[1] = sketch.node("Transpose", operands[1], perm=perm)
    if bias is not None:
        operands.append(sketch.constant(bias))
    made = sketch.node(op, *operands, **attributes)
    return sketch.finish(made, *([steps] if keeps_steps else []))


def has_bytes(graph: Graph, *, has_depthwise: bool = True) -> bool:
    made = prepare(graph, multiplies_bytes=True, multiplies_depthwise_bytes=has_depthwise)
    ops = [node.op for node in made.nodes]
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
    "transposed weights": (
        "MatMul",
        bytes_of(np.int8, 5, 8),
        {"perm": (1, 0), "weight_scale": FIVE, "axis": 0},
    ),
    "transposed weights of a gemm": (
        "Gemm",
        bytes_of(np.int8, 8, 5),
        {**TRANSPOSED, "perm": (1, 0), "weight_scale": FIVE, "axis": 1, "bias": FIVE},
    ),
    "padded conv": ("Conv", bytes_of(np.int8, 6, 4, 3, 3), {**CONV, "bias": np.ones(6, np.float32)}),
    "grouped conv": ("Conv", bytes_of(np.int8, 6, 4, 3, 3), {**CONV, "shape": (1, 8, 6, 5), "group": 2}),
    "depthwise": ("Conv", bytes_of(np.int8, 4, 1, 3, 3), {**CONV, "group": 4}),
    "three axes": ("Conv", bytes_of(np.int8, 6, 4, 2, 3, 3), {"shape": (1, 4, 5, 6, 5), "pads": (1,) * 6}),
    "depthwise, a scale for each filter": (
        "Conv",
        bytes_of(np.int8, 5, 1, 3, 3),
        {**CONV, "shape": (2, 5, 9, 7), "group": 5, "weight_scale": FIVE, "axis": 0},
    ),
    "depthwise of signed steps, dilated": (
        "Conv",
        bytes_of(np.uint8, 40, 1, 2, 3),
        {
            "shape": (1, 40, 9, 30),
            "group": 40,
            "dilations": [2, 3],
            "zero": np.int8(5),
            "weight_zero": np.uint8(128),
            "bias": np.linspace(-1, 1, 40, dtype=np.float32),
        },
    ),
    "depthwise over one axis": (
        "Conv",
        bytes_of(np.int8, 19, 1, 5),
        {"shape": (2, 19, 11), "group": 19, "pads": [3, 1], "strides": [2]},
    ),
    "three channels": ("Conv", bytes_of(np.int8, 6, 3, 3, 3), {**CONV, "shape": (1, 3, 6, 5)}),
}  # fmt: skip
LEFT: dict[str, tuple[str, Array, dict[str, Any]]] = {
    "weights that are no bytes less their zero point": (
        "MatMul", np.array([[0, 255]] * 8, np.uint8), {"weight_zero": np.uint8(100)},
    ),
    "scales along the sum": (
        "MatMul", bytes_of(np.int8, 8, 5), {"weight_scale": np.ones(8, np.float32), "axis": 0},
    ),
    "transposed scales along the sum": (
        "MatMul",
        bytes_of(np.int8, 5, 8),
        {"perm": (1, 0), "weight_scale": np.ones(8, np.float32), "axis": 1},
    ),
    "weights of several matrices, transposed": (
        "MatMul", bytes_of(np.int8, 2, 8, 5), {"perm": (0, 2, 1), "shape": (3, 5)},
    ),
    "a scaled gemm": ("Gemm", bytes_of(np.int8, 8, 5), {"alpha": 0.5}),
    "signed steps that are wanted": (
        "MatMul", bytes_of(np.int8, 8, 5), {"zero": np.int8(3), "keeps_steps": True},
    ),
    "steps of 16 bits": ("MatMul", bytes_of(np.int8, 8, 5), {"zero": np.uint16(3)}),
    "groups of three channels": (
        "Conv", bytes_of(np.int8, 4, 3, 3, 3), {**CONV, "shape": (1, 6, 6, 5), "group": 2},
    ),
    "several filters a channel": ("Conv", bytes_of(np.int8, 8, 1, 3, 3), {**CONV, "group": 4}),
    "a large depthwise window": (
        "Conv", bytes_of(np.int8, 2, 1, 20, 26), {"shape": (1, 2, 21, 30), "group": 2},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", [*FOUND, *LEFT])
def test_numbers_stay(name: str) -> None:
    op, weight, settings = {**FOUND, **LEFT}[name]
    graph = product(op, weight, **settings)
    assert has_bytes(graph) == (name in FOUND)
    for plain, fast in zip(run(graph, 0), run(graph, 99), strict=True):
        np.testing.assert_allclose(fast, plain, rtol=1e-5, atol=1e-5 * np.abs(plain).max())


def test_convolutions_stay_floats_where_bytes_have_no_kernel() -> None:
    for name in ("depthwise", "three axes"):
        op, weight, settings = FOUND[name]
        assert not has_bytes(product(op, weight, **settings), has_depthwise=False)
    op, weight, settings = FOUND["padded conv"]
    assert has_bytes(product(op, weight, **settings), has_depthwise=False)


def test_depthwise_convolutions_pass_bytes_on() -> None:
    """Two in a row, with Relu between: machine code reads and writes bytes, and no floats lie in memory."""
    if instruction_set() is None:
        pytest.skip("no machine code")
    sketch = Sketch("chain")
    x = sketch.input("x", (1, 24, 10, 12))
    scale = sketch.constant(np.float32(1 / 64))  # so that neither way rounds before it quantises
    numbers = [scale, sketch.constant(ZERO)]
    for pads in ([1, 1, 1, 1], [0, 2, 1, 0]):
        x = sketch.node("DequantizeLinear", sketch.node("QuantizeLinear", x, *numbers), *numbers)
        weight = sketch.constant(bytes_of(np.int8, 24, 1, 3, 3))
        weight = sketch.node("DequantizeLinear", weight, scale, axis=0)
        x = sketch.node("Relu", sketch.node("Conv", x, weight, group=24, pads=pads))
    graph = sketch.finish(x)
    session = vkml.InferenceSession(save_graph(graph), devices="cpu")
    given = RANDOM.standard_normal((1, 24, 10, 12)).astype(np.float32)
    session.run(None, {"x": given})
    steps = session.report().steps
    assert [step.operators[0] for step in steps] == ["Expression", "ConvInteger", "ConvInteger"]
    [plain], [fast] = run(graph, 0), run(graph, 99)
    np.testing.assert_array_equal(fast, plain)


@pytest.mark.parametrize("op", ["MatMul", "Conv", "depthwise Conv"])
def test_sizes_may_be_open(op: str, either_device_name: str) -> None:
    shape = (None, 8) if op == "MatMul" else (None, 4, 5, 6)
    filters = (4, 1, 3, 3) if op == "depthwise Conv" else (6, 4, 3, 3)
    weight = bytes_of(np.int8, 8, 5) if op == "MatMul" else bytes_of(np.int8, *filters)
    settings = {} if op == "MatMul" else {"pads": [1, 1, 1, 1], "group": 4 if filters[1] == 1 else 1}
    data = save_graph(product(op.split()[-1], weight, shape=shape, **settings))
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
