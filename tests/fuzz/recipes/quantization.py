"""Quantised numbers: QuantizeLinear, DequantizeLinear, DynamicQuantizeLinear, QLinearMatMul."""

from __future__ import annotations

from typing import Any

from onnx import TensorProto

from tests.fuzz.graphs import GraphBuilder, Value, codes_of
from tests.fuzz.recipes.products import factor
from tests.fuzz.recipes.registry import axis_of, data_input, recipe
from tests.fuzz.tensors import Fill

FLOAT = int(TensorProto.FLOAT)
_SCALE = Fill("range", 0.01, 2)
_WITH_ZERO = tuple(
    int(TensorProto.DataType.Value(name))
    for name in ("UINT8", "INT8", "UINT16", "INT16", "UINT4", "INT4", "UINT2", "INT2")
)
"""Floats are quantised to with a zero point of 0 only."""


def quantization(
    build: GraphBuilder, code: int, shape: tuple[int, ...] = (), kind: int = FLOAT, scale: Fill = _SCALE
) -> list[Value]:
    """A scale and a zero point of the type `code`."""
    fill = Fill() if code in _WITH_ZERO else Fill("zeros")
    return [build.new(kind, shape, scale, constant=0.8), build.new(code, shape, fill, constant=0.9)]


def layout(build: GraphBuilder, dims: tuple[int, ...]) -> tuple[tuple[int, ...], dict[str, Any]]:
    """The shape of a scale for elements of a shape, and attributes that say how it belongs to them."""
    if not dims or build.opset < 13 or build.chance(0.5):
        return (), {}
    axis = axis_of(build, len(dims))
    if build.opset < 21 or build.chance(0.5):
        return (dims[axis],), {"axis": axis}
    block = build.integer(1, max(dims[axis], 1))
    place = axis % len(dims)
    blocks = tuple(-(-size // block) if at == place else size for at, size in enumerate(dims))
    return blocks, {"axis": axis, "block_size": block}


@recipe("QuantizeLinear", "DequantizeLinear")
def linear(build: GraphBuilder, op: str) -> None:
    data = data_input(build, op)
    shape, attributes = layout(build, data.dims)
    code = data.code if op == "DequantizeLinear" else build.code(codes_of(op, build.opset, 2))
    kind = FLOAT if op == "DequantizeLinear" or data.code == TensorProto.INT32 else data.code
    given = quantization(build, code, shape, kind)
    is_without = data.code == TensorProto.INT32 and op == "DequantizeLinear"
    build.node(op, [data, *given[: 1 if is_without or build.chance(0.2) else 2]], attributes)


@recipe("DynamicQuantizeLinear")
def dynamic(build: GraphBuilder, op: str) -> None:
    build.node(op, [data_input(build, op, accept=lambda value: value.elements > 0)], outputs=3)


@recipe("QLinearMatMul")
def matmul(build: GraphBuilder, op: str) -> None:
    codes = [code for code in codes_of(op, build.opset, 0) if code in _WITH_ZERO]
    left = build.take(codes, 2, 3)
    right = factor(build, op, build.code(codes), left.dims[-1], left.dims[:-2])
    columns = right.dims[-1:] if right.rank > 1 and build.chance(0.4) else ()
    operands = [left, *quantization(build, left.code), right, *quantization(build, right.code, columns)]
    build.node(op, [*operands, *quantization(build, build.code(codes), scale=Fill("range", 20, 200))])
