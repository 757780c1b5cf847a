"""Comparisons, logic on bools, and Where."""

from __future__ import annotations

import operator as operators
from collections.abc import Mapping, Sequence

import numpy as np

from vkml.ir import scalar
from vkml.ir.dtypes import BOOL, NUMBERS, STRING, DType
from vkml.ir.graph import Constant, Node
from vkml.ir.operator import Array, Operator, operator, register
from vkml.ir.scalar import Scalar
from vkml.ir.types import Known, TensorType
from vkml.ops.broadcasting import broadcast_shapes
from vkml.ops.checks import present, require_dtype, require_same_dtype, required
from vkml.ops.limits import check_size
from vkml.ops.pointwise import Binary, Form, Unary

COMPARABLE: tuple[DType, ...] = (*NUMBERS, BOOL, STRING)


def _test(operation: str) -> Form:
    """The form of a comparison."""
    return lambda x, y: scalar.compare(operation, x, y)


register(Binary("Equal", np.equal, _test("equal"), COMPARABLE, result=BOOL, takes_complex=True))
register(Binary("Greater", np.greater, _test("greater"), NUMBERS, result=BOOL))
register(Binary("GreaterOrEqual", np.greater_equal, _test("greater_equal"), NUMBERS, result=BOOL))
register(Binary("Less", np.less, _test("less"), NUMBERS, result=BOOL))
register(Binary("LessOrEqual", np.less_equal, _test("less_equal"), NUMBERS, result=BOOL))

register(Binary("And", np.logical_and, operators.and_, (BOOL,)))
register(Binary("Or", np.logical_or, operators.or_, (BOOL,)))
register(Binary("Xor", np.logical_xor, operators.xor, (BOOL,)))
register(Unary("Not", np.logical_not, operators.invert, (BOOL,)))


@operator()
class Where(Operator):
    """Elements of the second input where the first is true, of the third elsewhere."""

    inputs = (3, 3)
    is_pointwise = True

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        condition, x, y = (required(node, inputs, index) for index in range(3))
        require_dtype(node, condition, (BOOL,), "the condition")
        require_same_dtype(node, x, y, "the other choice")
        return [check_size(node, x.dtype, broadcast_shapes(node, condition.dims, x.dims, y.dims))]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        condition, x, y = (present(inputs, index) for index in range(3))
        return [np.asarray(np.where(condition, x, y)).astype(x.dtype, copy=False)]

    def chosen_input(self, node: Node, constants: Mapping[str, Constant]) -> int | None:
        condition = constants.get(node.inputs[0])
        if condition is None or condition.is_open or not condition.array.size:
            return None
        if condition.array.all():
            return 1
        return None if condition.array.any() else 2

    def scalar(
        self, node: Node, arguments: Sequence[Scalar | None], types: Sequence[DType | None], result: DType
    ) -> Scalar | None:
        condition, x, y = (present(arguments, index) for index in range(3))
        return scalar.where(condition, x, y)
