"""Positions of extremes: ArgMax, ArgMin."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from vkml.errors import ShapeError
from vkml.ir.dtypes import INT64, NUMBERS
from vkml.ir.graph import Node
from vkml.ir.lowering import Lowering, V, given
from vkml.ir.operator import Array, Operator, operator
from vkml.ir.types import Known, TensorType
from vkml.ops.broadcasting import require_types
from vkml.ops.checks import normalise_axis, present, required
from vkml.ops.limits import check_size
from vkml.ops.pointwise import widened
from vkml.ops.reduce import reduced_shape


@operator("ArgMax", "ArgMin")
class ArgReduction(Operator):
    """The index along an axis of the greatest or least element, the first one or the last one of equals."""

    attributes = {"axis": 0, "keepdims": 1, "select_last_index": 0}

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        data = required(node, inputs, 0)
        require_types(node, [data], NUMBERS)
        axis = normalise_axis(node, node.attributes["axis"], max(data.rank, 1))
        shape = reduced_shape(data.dims, (axis,), bool(node.attributes["keepdims"]))
        if data.rank and data.dims[axis] == 0 and math.prod(shape):
            raise ShapeError(
                f"{node.label}: axis {axis} of the input's shape {list(data.dims)} has no elements"
            )
        return [check_size(node, INT64, shape)]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        data = widened(present(inputs, 0))
        axis = normalise_axis(node, node.attributes["axis"], max(data.ndim, 1))
        shape = reduced_shape(data.shape, (axis,), bool(node.attributes["keepdims"]))
        if not math.prod(shape):
            return [np.zeros(shape, np.int64)]
        line = data if data.ndim else data.reshape(1)
        find = np.argmax if self.name == "ArgMax" else np.argmin
        if node.attributes["select_last_index"]:
            found = line.shape[axis] - 1 - find(np.flip(line, axis), axis)
        else:
            found = find(line, axis)
        return [np.asarray(found, np.int64).reshape(shape)]

    def lower(self, build: Lowering[V], node: Node, inputs: Sequence[V | None]) -> Sequence[V | None] | None:
        x = given(inputs, 0)
        x = x if x.shape else build.reshape(x, (1,))
        return build.arg_reduce(
            x,
            normalise_axis(node, node.attributes["axis"], len(x.shape)),
            is_max=self.name == "ArgMax",
            takes_last=bool(node.attributes["select_last_index"]),
        )
