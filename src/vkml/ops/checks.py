"""Checks of node inputs that operator families share; their errors name the node and what was found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from vkml.errors import InvalidGraph, ShapeError
from vkml.ir.dtypes import DType
from vkml.ir.graph import Node
from vkml.ir.operator import Array
from vkml.ir.size import plain
from vkml.ir.types import Known, TensorType

_T = TypeVar("_T")


def required(node: Node, inputs: Sequence[Known | None], index: int) -> Known:
    """Input `index`, which the operator cannot do without."""
    found = inputs[index] if index < len(inputs) else None
    if found is None:
        raise InvalidGraph(f"{node.label}: input {index} is required and absent")
    return found


def optional(inputs: Sequence[_T | None], index: int) -> _T | None:
    """Input `index`, or None where the node does not have it."""
    return inputs[index] if index < len(inputs) else None


def present(inputs: Sequence[_T | None], index: int) -> _T:
    """Input `index`, which `infer` has already seen to be there."""
    found = inputs[index]
    assert found is not None
    return found


def require_dtype(node: Node, found: Known, allowed: Sequence[DType], what: str) -> None:
    """Raises `InvalidGraph` where an input's element type is not one of `allowed`."""
    if found.dtype not in allowed:
        names = ", ".join(dtype.name for dtype in allowed)
        raise InvalidGraph(f"{node.label}: {what} has element type {found.dtype.name}; allowed are {names}")


def require_same_dtype(node: Node, first: Known, other: Known, what: str) -> None:
    """Raises `InvalidGraph` where an input's element type differs from the first input's."""
    if other.dtype != first.dtype:
        raise InvalidGraph(
            f"{node.label}: {what} has element type {other.dtype.name}, the first input {first.dtype.name}"
        )


def require_rank(
    node: Node, found: Known, least: int, greatest: int | None = None, what: str = "the input"
) -> None:
    """Raises `ShapeError` where an input's rank is outside `least` … `greatest` (None: any rank above)."""
    if found.rank < least or (greatest is not None and found.rank > greatest):
        wanted = f"{least} or more" if greatest is None else f"{least} to {greatest}"
        wanted = f"{least}" if greatest == least else wanted
        raise ShapeError(f"{node.label}: {what} must have rank {wanted}, its shape is {list(found.dims)}")


def normalise_axis(node: Node, axis: int, rank: int, extra: int = 0) -> int:
    """An axis counted from the front; negative ones count from the end of `rank`.

    `extra` = 1 also allows `rank` itself (the place behind the last axis), as Flatten does.
    """
    axis = int(axis)
    if not -rank <= axis < rank + extra:
        raise ShapeError(f"{node.label}: axis {axis} is outside a tensor of rank {rank}")
    return axis + rank if axis < 0 else axis


def normalise_axes(node: Node, axes: Sequence[int] | Array, rank: int) -> tuple[int, ...]:
    """Several axes counted from the front, in the order given; `ShapeError` where two are the same."""
    found = tuple(normalise_axis(node, int(axis), rank) for axis in axes)
    if len(set(found)) != len(found):
        raise ShapeError(f"{node.label}: axes {[int(a) for a in axes]} name an axis twice (rank {rank})")
    return found


def integers(value: Array) -> tuple[int, ...]:
    """The elements of an integer tensor as Python integers."""
    return tuple(plain(element) for element in np.asarray(value).reshape(-1))


def list_value(node: Node, found: Known, what: str) -> tuple[int, ...] | None:
    """The integers of a constant input; None where the value is not known yet.

    Raises:
        InvalidGraph: The input does not hold integers.
        ShapeError: The input is no list.
    """
    if not found.dtype.is_integer:
        raise InvalidGraph(f"{node.label}: {what} has element type {found.dtype.name}; integers are needed")
    if found.rank > 1:
        raise ShapeError(f"{node.label}: {what} must be a list of integers, its shape is {list(found.dims)}")
    return None if found.value is None else integers(found.value)


def input_values(node: Node, inputs: Sequence[Known | None], index: int, what: str) -> tuple[int, ...] | None:
    """The integers of the constant input `index`; None where the input is absent (or not known)."""
    found: Known | None = optional(inputs, index)
    return None if found is None else list_value(node, found, what)


def array_values(inputs: Sequence[Array | None], *indices: int) -> list[tuple[int, ...] | None]:
    """The integers of several inputs of an evaluation, None where one is absent."""
    found = [optional(inputs, index) for index in indices]
    return [None if array is None else integers(array) for array in found]


def has_unknown_value(inputs: Sequence[Known | None], indices: Sequence[int]) -> bool:
    """Whether one of the inputs `indices` is there without a constant value."""
    return any(found is not None and found.value is None for found in (optional(inputs, i) for i in indices))


def unknown_shape(dtype: DType, rank: int) -> TensorType:
    """The type of an output of known rank whose sizes depend on values that are not known yet."""
    return TensorType(dtype, (None,) * rank)


def contiguous(array: Array) -> Array:
    """The array in C order; unlike `numpy.ascontiguousarray`, a scalar stays one."""
    return np.asarray(array, order="C")
