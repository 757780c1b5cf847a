"""Comparisons, logic on bools, and Where."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vkml.errors import InvalidGraph
from vkml.ir.dtypes import BOOL, COMPLEX64, COMPLEX128, NUMBERS, STRING, DType
from vkml.ir.graph import Node
from vkml.ir.operator import Array, Operator, operator, register
from vkml.ir.types import Known, TensorType
from vkml.ops.broadcasting import broadcast_shapes, require_types
from vkml.ops.checks import present, require_dtype, required
from vkml.ops.limits import check_size
from vkml.ops.pointwise import Binary, Unary

COMPARABLE: tuple[DType, ...] = (*NUMBERS, BOOL, STRING)
SELECTABLE: tuple[DType, ...] = (*NUMBERS, BOOL, STRING, COMPLEX64, COMPLEX128)

register(Binary("Equal", np.equal, "({x} == {y})", COMPARABLE, result=BOOL))
register(Binary("Greater", np.greater, "({x} > {y})", NUMBERS, result=BOOL))
register(Binary("GreaterOrEqual", np.greater_equal, "({x} >= {y})", NUMBERS, result=BOOL))
register(Binary("Less", np.less, "({x} < {y})", NUMBERS, result=BOOL))
register(Binary("LessOrEqual", np.less_equal, "({x} <= {y})", NUMBERS, result=BOOL))

# Without short circuit: both operands are plain values, and a branch would only split the subgroup.
register(Binary("And", np.logical_and, "and({x}, {y})", (BOOL,)))
register(Binary("Or", np.logical_or, "or({x}, {y})", (BOOL,)))
register(Binary("Xor", np.logical_xor, "({x} != {y})", (BOOL,)))
register(Unary("Not", np.logical_not, "(!{x})", (BOOL,)))


@operator()
class Where(Operator):
    """Elements of the second input where the first is true, of the third elsewhere."""

    inputs = (3, 3)
    is_pointwise = True

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        condition, x, y = (required(node, inputs, index) for index in range(3))
        require_dtype(node, condition, (BOOL,), "the condition")
        dtype = x.dtype
        if dtype.is_native or x.dtype != y.dtype:
            require_types(node, [x, y], SELECTABLE)
        elif dtype.bits < 8:
            raise InvalidGraph(f"{node.label}: element type {dtype.name} is not allowed")
        return [check_size(node, dtype, broadcast_shapes(node, condition.dims, x.dims, y.dims))]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        condition, x, y = (present(inputs, index) for index in range(3))
        return [np.asarray(np.where(condition, x, y)).astype(x.dtype, copy=False)]

    def expression(
        self, node: Node, arguments: Sequence[str], types: Sequence[DType], result: DType
    ) -> str | None:
        return f"select({arguments[0]}, {arguments[1]}, {arguments[2]})"
