"""Bitwise operators on integers: And, Or, Xor, shifts."""

from __future__ import annotations

import operator as operators
from collections.abc import Sequence
from typing import Any

import numpy as np

from vkml.errors import InvalidGraph
from vkml.ir import scalar
from vkml.ir.dtypes import INTEGERS
from vkml.ir.graph import Node
from vkml.ir.operator import REQUIRED, STRING, Array, register
from vkml.ir.scalar import Scalar
from vkml.ir.types import Known, TensorType
from vkml.ops.pointwise import Binary


def shift(x: Array, amount: Array, direction: str) -> Any:
    """Shifted bits; amounts below 0 or from the type's width on leave copies of the sign bit (opset 28)."""
    width = x.dtype.itemsize * 8
    is_inside = (amount >= 0) & (amount < width)
    safe = np.where(is_inside, amount, 0).astype(x.dtype)
    if direction == "LEFT":
        return np.where(is_inside, np.left_shift(x, safe), 0)
    filled = x < 0 if x.dtype.kind == "i" else np.False_
    return np.where(is_inside, np.right_shift(x, safe), np.where(filled, -1, 0).astype(x.dtype))


def _shift_form(x: Scalar, amount: Scalar, direction: str) -> Scalar:
    return scalar.binary("left_shift" if direction == "LEFT" else "right_shift", x, amount)


class _BitShift(Binary):
    """Shifts the bits of the first input by as many places as the second says."""

    attribute_types = {**Binary.attribute_types, "direction": STRING}

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        direction = node.attributes["direction"]
        if direction not in ("LEFT", "RIGHT"):
            raise InvalidGraph(f"{node.label}: direction must be LEFT or RIGHT, not {direction!r}")
        return super().infer(node, inputs)


register(_BitShift("BitShift", shift, _shift_form, INTEGERS, attributes={"direction": REQUIRED}))
register(Binary("BitwiseAnd", np.bitwise_and, operators.and_, INTEGERS))
register(Binary("BitwiseOr", np.bitwise_or, operators.or_, INTEGERS))
register(Binary("BitwiseXor", np.bitwise_xor, operators.xor, INTEGERS))
