"""Operators whose indices are data: Gather and Scatter in their forms, OneHot, NonZero, TopK, Compress, Unique."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vkml.errors import IndexOutOfRange, InvalidGraph, ShapeError
from vkml.ir.dtypes import BOOL, INT32, INT64, NUMBERS
from vkml.ir.graph import Node
from vkml.ir.operator import Array, Operator, operator
from vkml.ir.types import Known, TensorType, static
from vkml.ops.checks import (
    contiguous,
    integers,
    list_value,
    normalise_axis,
    optional,
    present,
    refuse_packed,
    require_dtype,
    require_rank,
    require_same_dtype,
    required,
)
from vkml.ops.limits import check_size
from vkml.ops.pointwise import widened
from vkml.ops.upgrading import attributes_to_inputs, renew


def checked_indices(node: Node, indices: Array, size: int, axis: int) -> Array:
    """Indices counted from the front, as int64.

    Raises:
        IndexOutOfRange: One lies outside ``-size … size - 1``.
    """
    found = indices.astype(np.int64, copy=False)
    wrong = (found < -size) | (found >= size)
    if wrong.any():
        place = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
        raise IndexOutOfRange(
            f"{node.label}: index {int(found[place])} at {list(map(int, place))} is outside axis {axis} of size {size}; "
            f"allowed are {-size} … {size - 1}"
        )
    return np.where(found < 0, found + size, found)


def _require_indices(node: Node, indices: Known) -> None:
    require_dtype(node, indices, (INT32, INT64), "indices")


def gather_geometry(
    node: Node, x_shape: Sequence[int], indices_shape: Sequence[int]
) -> tuple[int, tuple[int, ...]]:
    """The axis that Gather indexes, counted from the front, and the output's shape."""
    axis = normalise_axis(node, node.attributes["axis"], len(x_shape))
    return axis, (*x_shape[:axis], *indices_shape, *x_shape[axis + 1 :])


@operator()
class Gather(Operator):
    """Slices of a tensor along one axis, chosen by index."""

    inputs = (2, 2)
    attributes = {"axis": 0}

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x, indices = required(node, inputs, 0), required(node, inputs, 1)
        refuse_packed(node, x)
        require_rank(node, x, 1)
        _require_indices(node, indices)
        return [check_size(node, x.dtype, gather_geometry(node, x.dims, indices.dims)[1])]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x, indices = present(inputs, 0), present(inputs, 1)
        axis, _ = gather_geometry(node, x.shape, indices.shape)
        return [np.asarray(x.take(checked_indices(node, indices, x.shape[axis], axis), axis=axis))]

    def lower(self, build: Any, node: Node, inputs: Sequence[Any]) -> Sequence[Any] | None:
        axis, _ = gather_geometry(node, inputs[0].shape, inputs[1].shape)
        return build.gather(inputs[0], inputs[1], axis)  # type: ignore[no-any-return]


def _along_axis(node: Node, x: Sequence[int], indices: Sequence[int]) -> int:
    """Checks that indices fit inside a tensor on all axes but the indexed one; returns that axis."""
    axis = normalise_axis(node, node.attributes["axis"], len(x))
    if len(indices) != len(x) or any(
        i > size for place, (i, size) in enumerate(zip(indices, x, strict=True)) if place != axis
    ):
        raise ShapeError(
            f"{node.label}: indices of shape {list(indices)} do not fit into data of shape {list(x)} along axis {axis}"
        )
    return axis


def _coordinates(shape: Sequence[int], axis: int, indices: Array) -> tuple[Array, ...]:
    """For each element of `indices`, its own place on all axes but `axis`, where it is the index itself."""
    grid: list[Array] = list(np.ogrid[tuple(slice(0, size) for size in shape)])
    grid[axis] = indices
    return tuple(grid)


@operator()
class GatherElements(Operator):
    """Elements of a tensor, each chosen by an index along one axis and its own place on the others."""

    inputs = (2, 2)
    attributes = {"axis": 0}

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x, indices = required(node, inputs, 0), required(node, inputs, 1)
        refuse_packed(node, x)
        require_rank(node, x, 1)
        _require_indices(node, indices)
        _along_axis(node, x.dims, indices.dims)
        return [check_size(node, x.dtype, indices.dims)]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x, indices = present(inputs, 0), present(inputs, 1)
        axis = _along_axis(node, x.shape, indices.shape)
        found = checked_indices(node, indices, x.shape[axis], axis)
        return [x[_coordinates(indices.shape, axis, found)]]


@dataclass(frozen=True)
class GatherNDGeometry:
    """GatherND as ``batch`` gathers of ``tuples`` slices each; index tuples address ``indexed`` axes."""

    batch: tuple[int, ...]
    tuples: tuple[int, ...]
    indexed: tuple[int, ...]
    slice_shape: tuple[int, ...]

    @property
    def output(self) -> tuple[int, ...]:
        return (*self.batch, *self.tuples, *self.slice_shape)


def gather_nd_geometry(
    node: Node, x_shape: Sequence[int], indices_shape: Sequence[int], batch_dims: int
) -> GatherNDGeometry:
    """Resolves which axes of the data index tuples address.

    Raises:
        ShapeError: Ranks do not allow it, or batch sizes differ.
    """
    if not x_shape or not indices_shape:
        raise ShapeError(
            f"{node.label}: data {list(x_shape)} and indices {list(indices_shape)} must not be scalars"
        )
    length = indices_shape[-1]
    fits = 0 <= batch_dims < min(len(x_shape), len(indices_shape)) and length <= len(x_shape) - batch_dims
    if not fits or tuple(x_shape[:batch_dims]) != tuple(indices_shape[:batch_dims]):
        raise ShapeError(
            f"{node.label}: index tuples of length {length} from indices {list(indices_shape)} do not address data "
            f"{list(x_shape)} with {batch_dims} batch axes"
        )
    end = batch_dims + length
    return GatherNDGeometry(
        tuple(x_shape[:batch_dims]),
        tuple(indices_shape[batch_dims:-1]),
        tuple(x_shape[batch_dims:end]),
        tuple(x_shape[end:]),
    )


def _tuple_coordinates(
    node: Node, indices: Array, sizes: Sequence[int], first_axis: int
) -> tuple[Array, ...]:
    return tuple(
        checked_indices(node, indices[..., place], size, first_axis + place)
        for place, size in enumerate(sizes)
    )


@operator()
class GatherND(Operator):
    """Slices of a tensor, each chosen by a tuple of indices."""

    inputs = (2, 2)
    attributes = {"batch_dims": 0}

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x, indices = required(node, inputs, 0), required(node, inputs, 1)
        refuse_packed(node, x)
        _require_indices(node, indices)
        geometry = gather_nd_geometry(node, x.dims, indices.dims, node.attributes["batch_dims"])
        return [check_size(node, x.dtype, geometry.output)]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x, indices = present(inputs, 0), present(inputs, 1)
        batch_dims = node.attributes["batch_dims"]
        geometry = gather_nd_geometry(node, x.shape, indices.shape, batch_dims)
        places = _tuple_coordinates(node, indices, geometry.indexed, batch_dims)
        grid = np.ogrid[tuple(slice(0, size) for size in geometry.batch)] if batch_dims else []
        spread = [axis.reshape(*axis.shape, *(1,) * len(geometry.tuples)) for axis in grid]
        if not spread and not places:
            return [np.broadcast_to(x, geometry.output).copy()]
        return [np.broadcast_to(x[(*spread, *places)], geometry.output).astype(x.dtype)]


REDUCTIONS: dict[str, Any] = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def _check_reduction(node: Node) -> None:
    if node.attributes["reduction"] not in ("none", *REDUCTIONS):
        raise InvalidGraph(
            f"{node.label}: reduction {node.attributes['reduction']!r} is not one of none, {', '.join(REDUCTIONS)}"
        )


def _scatter(x: Array, places: tuple[Array, ...], updates: Array, reduction: str) -> Array:
    """`x` with `updates` written or accumulated at `places`; without a reduction the last write wins."""
    if reduction == "none":
        result = x.copy()
        result[places] = updates
        return result
    # float16 sums round once, at the end.
    result = widened(x).copy() if x.dtype == np.float16 else x.copy()
    REDUCTIONS[reduction].at(result, places, widened(updates))
    return result.astype(x.dtype, copy=False)


@operator()
class ScatterElements(Operator):
    """A copy of a tensor with single elements replaced or accumulated along one axis."""

    inputs = (3, 3)
    attributes = {"axis": 0, "reduction": "none"}

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x, indices, updates = (required(node, inputs, index) for index in range(3))
        refuse_packed(node, x)
        require_rank(node, x, 1)
        _require_indices(node, indices)
        require_same_dtype(node, x, updates, "updates")
        _check_reduction(node)
        _along_axis(node, x.dims, indices.dims)
        if updates.dims != indices.dims:
            raise ShapeError(
                f"{node.label}: updates of shape {list(updates.dims)} and indices of shape {list(indices.dims)} differ"
            )
        return [static(x.dtype, x.dims)]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x, indices, updates = (present(inputs, index) for index in range(3))
        axis = _along_axis(node, x.shape, indices.shape)
        found = checked_indices(node, indices, x.shape[axis], axis)
        return [_scatter(x, _coordinates(indices.shape, axis, found), updates, node.attributes["reduction"])]


@operator()
class Scatter(ScatterElements):
    """The name ScatterElements had before opset 11."""

    attributes = {"axis": 0}

    def upgrade(self, node: Node) -> Node:
        return renew(node, op="ScatterElements")


@operator()
class ScatterND(Operator):
    """A copy of a tensor with slices, each chosen by a tuple of indices, replaced or accumulated."""

    inputs = (3, 3)
    attributes = {"reduction": "none"}

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x, indices, updates = (required(node, inputs, index) for index in range(3))
        refuse_packed(node, x)
        _require_indices(node, indices)
        require_same_dtype(node, x, updates, "updates")
        _check_reduction(node)
        wanted = gather_nd_geometry(node, x.dims, indices.dims, 0).output
        if updates.dims != wanted:
            raise ShapeError(
                f"{node.label}: updates have shape {list(updates.dims)}, indices ask for {list(wanted)}"
            )
        return [static(x.dtype, x.dims)]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x, indices, updates = (present(inputs, index) for index in range(3))
        geometry = gather_nd_geometry(node, x.shape, indices.shape, 0)
        # One flat index a slice, so that a tuple of length 0 (the whole tensor) needs no case of its own.
        flat = np.zeros(geometry.tuples, dtype=np.int64)
        for size, place in zip(
            geometry.indexed, _tuple_coordinates(node, indices, geometry.indexed, 0), strict=True
        ):
            flat = flat * size + place
        rows = contiguous(x).reshape(math.prod(geometry.indexed), *geometry.slice_shape)
        return [_scatter(rows, (flat,), updates, node.attributes["reduction"]).reshape(x.shape)]


@operator()
class OneHot(Operator):
    """Indices as vectors that are on at the index and off elsewhere; an index out of range is off everywhere."""

    inputs = (3, 3)
    attributes = {"axis": -1}
    value_inputs = (1,)

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        indices, depth, values = (required(node, inputs, index) for index in range(3))
        refuse_packed(node, values)
        require_dtype(node, indices, NUMBERS, "indices")
        require_dtype(node, depth, NUMBERS, "depth")
        if depth.type.elements != 1 or values.dims != (2,):
            raise ShapeError(
                f"{node.label}: depth must be one number and values two, their shapes are {list(depth.dims)} "
                f"and {list(values.dims)}"
            )
        axis = normalise_axis(node, node.attributes["axis"], indices.rank + 1)
        before, after = indices.dims[:axis], indices.dims[axis:]
        if depth.value is None:
            return [TensorType(values.dtype, (*before, None, *after))]
        size = int(depth.value.reshape(()))
        if size < 1:
            raise ShapeError(f"{node.label}: depth is {size}; it must be positive")
        return [check_size(node, values.dtype, (*before, size, *after))]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        indices, depth, values = (present(inputs, index) for index in range(3))
        size = int(depth.reshape(()))
        axis = normalise_axis(node, node.attributes["axis"], indices.ndim + 1)
        found = np.expand_dims(indices.astype(np.int64), axis)
        classes = np.arange(size).reshape(-1, *(1,) * (indices.ndim - axis))
        hot = np.where(found < 0, found + size, found) == classes
        return [np.where(hot, values[1], values[0]).astype(values.dtype, copy=False)]


@operator()
class NonZero(Operator):
    """Coordinates of the elements that are not zero, one column each, in row-major order."""

    value_inputs = (0,)

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x = required(node, inputs, 0)
        refuse_packed(node, x)
        count = None if x.value is None else int(np.count_nonzero(x.value))
        return [TensorType(INT64, (x.rank, count))]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x = present(inputs, 0)
        if x.ndim == 0:
            return [np.zeros((0, int(np.count_nonzero(x))), dtype=np.int64)]
        return [np.array(np.nonzero(x), dtype=np.int64)]


@operator()
class TopK(Operator):
    """The k greatest or least elements along an axis and where they were; of equals, the first wins."""

    inputs = (2, 2)
    outputs = (1, 2)
    attributes = {"axis": -1, "largest": 1, "sorted": 1}
    value_inputs = (1,)

    def upgrade(self, node: Node) -> Node | Sequence[Node]:
        if node.version >= 10:
            return node
        k = node.attributes.get("k")
        return attributes_to_inputs(
            renew(node, attributes={} if k is None else {"k": (k,)}), [("k", 1, INT64)]
        )

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x, k = required(node, inputs, 0), required(node, inputs, 1)
        require_dtype(node, x, NUMBERS, "the input")
        require_rank(node, x, 1)
        axis = normalise_axis(node, node.attributes["axis"], x.rank)
        if k.type.elements != 1:
            raise ShapeError(f"{node.label}: k must be one integer, its shape is {list(k.dims)}")
        value = list_value(node, k, "k")
        if value is not None and not 0 <= value[0] <= x.dims[axis]:
            raise ShapeError(f"{node.label}: k is {value[0]}, axis {axis} has {x.dims[axis]} elements")
        shape = (*x.dims[:axis], None if value is None else value[0], *x.dims[axis + 1 :])
        return [TensorType(x.dtype, shape), TensorType(INT64, shape)][: len(node.outputs)]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x, k = present(inputs, 0), integers(present(inputs, 1))[0]
        axis = normalise_axis(node, node.attributes["axis"], x.ndim)
        size = x.shape[axis]
        if not 0 <= k <= size:
            raise ShapeError(f"{node.label}: k is {k}, axis {axis} has {size} elements")
        if node.attributes["largest"]:
            # A stable ascending sort of the reversed axis, read backwards, keeps the first of equals in front.
            order = size - 1 - np.flip(np.argsort(np.flip(x, axis), axis=axis, kind="stable"), axis)
        else:
            order = np.argsort(x, axis=axis, kind="stable")
        places = contiguous(order.take(np.arange(k), axis=axis).astype(np.int64, copy=False))
        return [np.take_along_axis(x, places, axis=axis), places][: len(node.outputs)]


@operator()
class Compress(Operator):
    """Slices along an axis (of the flattened tensor without one) where a condition holds."""

    inputs = (2, 2)
    attributes = {"axis": None}
    value_inputs = (1,)

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x, condition = required(node, inputs, 0), required(node, inputs, 1)
        refuse_packed(node, x)
        require_dtype(node, condition, (BOOL,), "the condition")
        require_rank(node, condition, 1, 1, "the condition")
        stated = node.attributes["axis"]
        axis = None if stated is None else normalise_axis(node, stated, x.rank)
        length = x.type.elements if axis is None else x.dims[axis]
        count = None
        if condition.value is not None:
            # A condition longer than the axis is cut off, as ONNX Runtime does.
            count = int(np.count_nonzero(condition.value[:length]))
        shape = (count,) if axis is None else (*x.dims[:axis], count, *x.dims[axis + 1 :])
        return [TensorType(x.dtype, shape)]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x, condition = present(inputs, 0), present(inputs, 1)
        axis = node.attributes["axis"]
        length = x.size if axis is None else x.shape[axis]
        return [np.compress(condition[:length], x, axis=axis)]


@operator()
class Unique(Operator):
    """The distinct elements (or slices along an axis), with first places, inverse places and counts."""

    outputs = (1, 4)
    attributes = {"axis": None, "sorted": 1}
    value_inputs = (0,)

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x = required(node, inputs, 0)
        refuse_packed(node, x)
        stated = node.attributes["axis"]
        axis = None if stated is None else normalise_axis(node, stated, x.rank)
        length = x.type.elements if axis is None else x.dims[axis]
        if x.value is not None:
            made = self.evaluate(node, [x.value])
            return [static(x.dtype if place == 0 else INT64, array.shape) for place, array in enumerate(made)]
        shape = (None,) if axis is None else (*x.dims[:axis], None, *x.dims[axis + 1 :])
        places = TensorType(INT64, (None,))
        return [TensorType(x.dtype, shape), places, static(INT64, (length,)), places][: len(node.outputs)]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x, axis = present(inputs, 0), node.attributes["axis"]
        values, first, inverse, counts = np.unique(
            x, return_index=True, return_inverse=True, return_counts=True, axis=axis
        )
        inverse = inverse.reshape(-1)
        if not node.attributes["sorted"]:
            # NumPy sorts; the order of first appearance is the order of first places.
            order = np.argsort(first, kind="stable")
            rank = np.empty_like(order)
            rank[order] = np.arange(order.size)
            values, first = values.take(order, axis=axis or 0), first[order]
            inverse, counts = rank[inverse], counts[order]
        made = [values, *(part.astype(np.int64, copy=False) for part in (first, inverse, counts))]
        return made[: len(node.outputs)]
