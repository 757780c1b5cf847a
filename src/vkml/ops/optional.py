"""Operators on optionals: values that may be None."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vkml.errors import InvalidGraph, RuntimeException
from vkml.ir.dtypes import BOOL
from vkml.ir.graph import Node
from vkml.ir.operator import OPTIONAL, TYPE, Operator, operator
from vkml.ir.types import Known, OptionalType, ValueType, static
from vkml.ops.checks import required


class _OnOptionals(Operator):
    """Base of operators that take or make optionals."""

    stands_alone = True
    inputs = (0, 1)


@operator()
class Optional(_OnOptionals):
    """An optional that holds its input, or nothing."""

    attributes = {"type": OPTIONAL}
    attribute_types = {"type": TYPE}

    def check(self, node: Node) -> None:
        if not node.inputs and node.attributes["type"] is None:
            raise InvalidGraph(f"{node.label}: it has neither an input nor the attribute 'type'")

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[ValueType]:
        held = inputs[0] if inputs else None
        return [OptionalType(node.attributes["type"] if held is None else held.stated)]

    def evaluate(self, node: Node, inputs: Sequence[Any]) -> list[Any]:
        return [inputs[0] if inputs else None]


@operator()
class OptionalHasElement(_OnOptionals):
    """Whether there is a value."""

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[ValueType]:
        return [static(BOOL, ())]

    def evaluate(self, node: Node, inputs: Sequence[Any]) -> list[Any]:
        return [np.array(bool(inputs) and inputs[0] is not None)]


@operator()
class OptionalGetElement(_OnOptionals):
    """The value of an optional, which must hold one."""

    inputs = (1, 1)

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[ValueType]:
        found = required(node, inputs, 0).stated
        return [found.element if isinstance(found, OptionalType) else found]

    def evaluate(self, node: Node, inputs: Sequence[Any]) -> list[Any]:
        if inputs[0] is None:
            raise RuntimeException(f"{node.label}: the optional holds nothing")
        return [inputs[0]]
