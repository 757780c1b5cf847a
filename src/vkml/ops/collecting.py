"""What the trips of a loop make, stacked along a new axis: its type, and its memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from vkml.errors import InvalidGraph, RuntimeException
from vkml.ir.dtypes import UNDEFINED
from vkml.ir.graph import Node, Value
from vkml.ir.operator import Array
from vkml.ir.size import is_number
from vkml.ir.types import UNKNOWN, TensorType, ValueType
from vkml.ops.checks import normalise_axis

Allocate = Callable[[Node, Sequence[int], np.dtype[Any]], Array]
"""Memory for a result of a node, of a shape and a type of elements."""


def stacked(type_: ValueType, count: int | None, axis: int) -> ValueType:
    """The type of `count` tensors of a type along a new axis."""
    if not isinstance(type_, TensorType) or type_.shape is None:
        return TensorType(type_.dtype, None) if isinstance(type_, TensorType) else UNKNOWN
    rank = len(type_.shape) + 1
    at = axis + rank if axis < 0 else axis
    return TensorType(type_.dtype, (*type_.shape[:at], count, *type_.shape[at:]))


_FIRST_ROOM = 16
"""Trips whose results there is room for at first."""
_ALL_AT_ONCE = 64 << 20
"""Bytes up to which there is room at once for as many trips as there may be."""


class Collector:
    """Stacks what the trips of a loop make along a new axis, in memory that doubles as long as it must.

    Args:
        node: the loop.
        allocate: gives the memory.
        output: of the body.
        limit: trips at most, where that is known.
        axis: of the result, along which trips lie.
        is_reversed: whether the last trip comes first.
    """

    def __init__(
        self, node: Node, allocate: Allocate, output: Value, limit: int | None, axis: int, is_reversed: bool
    ) -> None:
        self._node = node
        self._allocate = allocate
        self._output = output
        self._limit = limit
        self._axis = axis
        self._is_reversed = is_reversed
        self._room: Array | None = None
        self._count = 0

    def add(self, value: Any) -> None:
        """Takes what one trip made."""
        if not isinstance(value, np.ndarray):
            raise RuntimeException(
                f"{self._node.label}: its output '{self._output.name}' is collected over all trips, "
                "which only tensors can be"
            )
        room = self._room
        if room is None:
            room = self._grown(value, _FIRST_ROOM)
        elif self._count == len(room):
            self._check(room, value)
            room = self._grown(value, 2 * self._count)
        else:
            self._check(room, value)
        room[self._count] = value
        self._count += 1

    def finish(self, type_: ValueType) -> Array:
        """The result.

        Args:
            type_: of what a trip would have made, where there was none; unknown sizes are 0.
        """
        room = self._room
        if room is None:
            room = self._empty(type_)
        found = room[: self._count]
        if self._is_reversed:
            found = found[::-1]
        axis = normalise_axis(self._node, self._axis, room.ndim)
        return np.ascontiguousarray(np.moveaxis(found, 0, axis))

    def _grown(self, value: Array, wanted: int) -> Array:
        rows = wanted
        if self._limit is not None:
            at_once = self._limit * value.nbytes <= _ALL_AT_ONCE
            rows = self._limit if at_once else min(self._limit, wanted)
        room = self._allocate(self._node, (rows, *value.shape), value.dtype)
        if self._room is not None:
            room[: self._count] = self._room
        self._room = room
        return room

    def _check(self, room: Array, value: Array) -> None:
        if room.shape[1:] != value.shape or room.dtype != value.dtype:
            raise RuntimeException(
                f"{self._node.label}: its output '{self._output.name}' is collected over all trips, but was "
                f"{room.dtype}{list(room.shape[1:])} at first and is {value.dtype}{list(value.shape)} now"
            )

    def _empty(self, type_: ValueType) -> Array:
        found = type_ if isinstance(type_, TensorType) else UNKNOWN
        if found.dtype == UNDEFINED:
            raise InvalidGraph(
                f"{self._node.label}: no trip was made, and the body does not say of what type its output "
                f"'{self._output.name}' is"
            )
        sizes = [size if is_number(size) else 0 for size in found.shape or ()]
        return np.empty((0, *sizes), found.dtype.storage)
