"""Operators that make sequences, change them, and take tensors out of them: Python lists of values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vkml.errors import IndexOutOfRange, InvalidGraph, ModelError, RuntimeException
from vkml.ir.dtypes import FLOAT32, INT64, DType, from_code
from vkml.ir.graph import Node
from vkml.ir.operator import INT, MANY, OPTIONAL, REQUIRED, Array, Operator, operator
from vkml.ir.types import UNKNOWN, Known, SequenceType, TensorType, ValueType, static
from vkml.ops.bodies import common_type
from vkml.ops.checks import integers, normalise_axis, required


class _OnSequences(Operator):
    """Base of operators that take or make sequences."""

    stands_alone = True


def element_type(node: Node, inputs: Sequence[Known | None]) -> ValueType:
    """What the sequence holds that is a node's first input."""
    found = required(node, inputs, 0).stated
    if found.is_unknown:
        return UNKNOWN
    if not isinstance(found, SequenceType):
        raise InvalidGraph(f"{node.label}: its first input must be a sequence, it is {found}")
    return found.element


def _values(node: Node, inputs: Sequence[Any]) -> list[Any]:
    """The sequence that is a node's first input."""
    found = inputs[0]
    if not isinstance(found, list):
        raise RuntimeException(f"{node.label}: its first input must be a sequence")
    return found


def _position(node: Node, inputs: Sequence[Any], at: int, otherwise: int, end: int) -> int:
    """The position that input `at` states, counted from the front; it lies below `end`."""
    value = inputs[at] if at < len(inputs) else None
    if value is None:
        position = otherwise
    else:
        if np.size(value) != 1:
            raise RuntimeException(
                f"{node.label}: the position must be a scalar, not {list(np.shape(value))}"
            )
        [position] = integers(value)
    length = len(inputs[0])
    if not -length <= position < end:
        raise IndexOutOfRange(
            f"{node.label}: the position {position} lies outside a sequence of {length} values"
        )
    return position + length if position < 0 else position


@operator()
class SequenceEmpty(_OnSequences):
    """A sequence of nothing."""

    inputs = (0, 0)
    attributes = {"dtype": OPTIONAL}
    attribute_types = {"dtype": INT}

    def check(self, node: Node) -> None:
        self._dtype(node)

    def _dtype(self, node: Node) -> DType:
        code = node.attributes["dtype"]
        try:
            return FLOAT32 if code is None else from_code(code)
        except ModelError as error:
            raise type(error)(f"{node.label}: {error}") from None

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[ValueType]:
        return [SequenceType(TensorType(self._dtype(node), None))]

    def evaluate(self, node: Node, inputs: Sequence[Any]) -> list[Any]:
        return [[]]


@operator()
class SequenceConstruct(_OnSequences):
    """A sequence of its inputs."""

    inputs = (1, MANY)

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[ValueType]:
        element: ValueType = UNKNOWN
        for at in range(len(inputs)):
            element = common_type(element, required(node, inputs, at).stated)
        return [SequenceType(element)]

    def evaluate(self, node: Node, inputs: Sequence[Any]) -> list[Any]:
        made: list[Any] = []
        for value in inputs:
            _check_like(node, made, value)
            made.append(value)
        return [made]


@operator()
class SequenceAt(_OnSequences):
    """The value at a position of a sequence."""

    inputs = (2, 2)

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[ValueType]:
        return [element_type(node, inputs)]

    def evaluate(self, node: Node, inputs: Sequence[Any]) -> list[Any]:
        values = _values(node, inputs)
        return [values[_position(node, inputs, 1, 0, len(values))]]


@operator()
class SequenceInsert(_OnSequences):
    """A sequence with one value more, at its end where no position is given."""

    inputs = (2, 3)

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[ValueType]:
        return [SequenceType(common_type(element_type(node, inputs), required(node, inputs, 1).stated))]

    def evaluate(self, node: Node, inputs: Sequence[Any]) -> list[Any]:
        values = _values(node, inputs)
        at = _position(node, inputs, 2, len(values), len(values) + 1)
        _check_like(node, values, inputs[1])
        return [[*values[:at], inputs[1], *values[at:]]]


def _check_like(node: Node, values: Sequence[Any], value: Any) -> None:
    """Refuses a value that is not of the type of those that a sequence holds."""
    if not values:
        return
    first = values[0]
    if type(value) is not type(first) or (isinstance(first, np.ndarray) and first.dtype != value.dtype):
        kinds = [each.dtype if isinstance(each, np.ndarray) else "a sequence" for each in (first, value)]
        raise RuntimeException(f"{node.label}: a sequence of {kinds[0]} cannot take {kinds[1]}")


@operator()
class SequenceErase(_OnSequences):
    """A sequence without one of its values, the last where no position is given."""

    inputs = (1, 2)

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[ValueType]:
        return [SequenceType(element_type(node, inputs))]

    def evaluate(self, node: Node, inputs: Sequence[Any]) -> list[Any]:
        values = _values(node, inputs)
        at = _position(node, inputs, 1, -1, len(values))
        return [[*values[:at], *values[at + 1 :]]]


@operator()
class SequenceLength(_OnSequences):
    """How many values a sequence holds, as an int64 scalar."""

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[ValueType]:
        element_type(node, inputs)
        return [static(INT64, ())]

    def evaluate(self, node: Node, inputs: Sequence[Any]) -> list[Any]:
        return [np.array(len(_values(node, inputs)), np.int64)]


@operator()
class SplitToSequence(_OnSequences):
    """Cuts a tensor along an axis into a sequence of parts."""

    inputs = (1, 2)
    attributes = {"axis": 0, "keepdims": 1}

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[ValueType]:
        x = required(node, inputs, 0).type
        if x.shape is None:
            return [SequenceType(x)]
        axis = normalise_axis(node, node.attributes["axis"], len(x.shape))
        has_split = len(inputs) > 1 and inputs[1] is not None
        part = (1,) if node.attributes["keepdims"] else ()
        middle = (None,) if has_split else part
        return [SequenceType(TensorType(x.dtype, (*x.shape[:axis], *middle, *x.shape[axis + 1 :])))]

    def evaluate(self, node: Node, inputs: Sequence[Any]) -> list[Any]:
        x: Array = inputs[0]
        axis = normalise_axis(node, node.attributes["axis"], x.ndim)
        size = x.shape[axis]
        if len(inputs) < 2 or inputs[1] is None:
            parts = [x[(slice(None),) * axis + (at,)] for at in range(size)]
            return [[np.expand_dims(part, axis) if node.attributes["keepdims"] else part for part in parts]]
        lengths = integers(inputs[1])
        if not inputs[1].ndim:
            [length] = lengths
            if length < 1:
                raise RuntimeException(f"{node.label}: parts of {length} cannot be cut")
            lengths = tuple(min(length, size - at) for at in range(0, size, length))
        if min(lengths, default=0) < 0 or sum(lengths) != size:
            raise RuntimeException(
                f"{node.label}: the lengths of the parts are {list(lengths)}, the axis has {size} elements"
            )
        return [np.split(x, np.cumsum(lengths)[:-1], axis) if lengths else []]


@operator()
class ConcatFromSequence(_OnSequences):
    """The tensors of a sequence end to end, along an axis of theirs or a new one."""

    attributes = {"axis": REQUIRED, "new_axis": 0}
    attribute_types = {"axis": INT}

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[ValueType]:
        element = element_type(node, inputs)
        if not isinstance(element, TensorType) or element.shape is None:
            return [UNKNOWN if not isinstance(element, TensorType) else element]
        rank, is_new = len(element.shape), bool(node.attributes["new_axis"])
        axis = normalise_axis(node, node.attributes["axis"], rank + is_new)
        return [
            TensorType(element.dtype, (*element.shape[:axis], None, *element.shape[axis + (not is_new) :]))
        ]

    def evaluate(self, node: Node, inputs: Sequence[Any]) -> list[Any]:
        values = _values(node, inputs)
        if not values:
            raise RuntimeException(f"{node.label}: the sequence is empty; there is nothing to concatenate")
        is_new = bool(node.attributes["new_axis"])
        axis = normalise_axis(node, node.attributes["axis"], values[0].ndim + is_new)
        shapes = [
            value.shape if is_new else (*value.shape[:axis], *value.shape[axis + 1 :]) for value in values
        ]
        if any(shape != shapes[0] for shape in shapes):
            raise RuntimeException(
                f"{node.label}: tensors of the shapes {[list(value.shape) for value in values[:8]]} cannot "
                f"be joined along axis {axis}"
            )
        return [np.stack(values, axis) if is_new else np.concatenate(values, axis)]
