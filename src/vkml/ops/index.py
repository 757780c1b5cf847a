"""Operators whose indices are data: Gather and Scatter in all their forms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from vkml.dataclasses import dataclass
from vkml.errors import IndexOutOfRange, InvalidGraph, ShapeError
from vkml.ir.dtypes import BFLOAT16, INT32, INT64
from vkml.ir.gradients import Emitter, T, zeros
from vkml.ir.graph import Node
from vkml.ir.lowering import Lowering, V, all_given, given
from vkml.ir.operator import Array, Operator, operator
from vkml.ir.types import Known, TensorType, static
from vkml.ops.checks import (
    contiguous,
    normalise_axis,
    optional,
    present,
    require_dtype,
    require_rank,
    require_same_dtype,
    required,
)
from vkml.ops.index_gradients import (
    cache_rows,
    element_places,
    gather_gradient,
    gather_tuples_gradient,
    not_negative,
    one_of_each,
    scatter_gradient,
    tuple_places,
)
from vkml.ops.limits import check_size
from vkml.ops.pointwise import widened
from vkml.ops.upgrading import renew


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
            f"{node.label}: index {int(found[place])} at {list(map(int, place))} is outside axis {axis} "
            f"of size {size}; allowed are {-size} … {size - 1}"
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
    is_shape_arithmetic = True

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x, indices = required(node, inputs, 0), required(node, inputs, 1)
        require_rank(node, x, 1)
        _require_indices(node, indices)
        return [check_size(node, x.dtype, gather_geometry(node, x.dims, indices.dims)[1])]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x, indices = present(inputs, 0), present(inputs, 1)
        axis, shape = gather_geometry(node, x.shape, indices.shape)
        if not math.prod(shape):
            return [np.empty(shape, x.dtype)]  # nothing is read, as in kernels: no index is looked at
        # A single text comes as a Python string, of which NumPy would make a type of its own.
        return [np.asarray(x.take(checked_indices(node, indices, x.shape[axis], axis), axis=axis), x.dtype)]

    def lower(self, build: Lowering[V], node: Node, inputs: Sequence[V | None]) -> Sequence[V | None] | None:
        axis, _ = gather_geometry(node, given(inputs, 0).shape, given(inputs, 1).shape)
        return build.gather(given(inputs, 0), given(inputs, 1), axis)

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        x, indices = build.type_of(present(inputs, 0)), present(inputs, 1)
        axis = normalise_axis(node, node.attributes["axis"], len(x.dims))
        return [gather_gradient(build, x, indices, axis, present(cotangents, 0))]


def _along_axis(node: Node, x: Sequence[int], indices: Sequence[int]) -> int:
    """Checks that indices fit inside a tensor on all axes but the indexed one; returns that axis."""
    axis = normalise_axis(node, node.attributes["axis"], len(x))
    if len(indices) != len(x) or any(
        i > size for place, (i, size) in enumerate(zip(indices, x, strict=True)) if place != axis
    ):
        raise ShapeError(
            f"{node.label}: indices of shape {list(indices)} do not fit into data of shape {list(x)} "
            f"along axis {axis}"
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
        require_rank(node, x, 1)
        _require_indices(node, indices)
        _along_axis(node, x.dims, indices.dims)
        return [check_size(node, x.dtype, indices.dims)]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x, indices = present(inputs, 0), present(inputs, 1)
        axis = _along_axis(node, x.shape, indices.shape)
        found = checked_indices(node, indices, x.shape[axis], axis)
        return [x[_coordinates(indices.shape, axis, found)]]

    def lower(self, build: Lowering[V], node: Node, inputs: Sequence[V | None]) -> Sequence[V | None] | None:
        axis = normalise_axis(node, node.attributes["axis"], len(given(inputs, 0).shape))
        return build.gather_elements(given(inputs, 0), given(inputs, 1), axis)

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        x, indices, cotangent = build.type_of(present(inputs, 0)), present(inputs, 1), present(cotangents, 0)
        axis = normalise_axis(node, node.attributes["axis"], len(x.dims))
        sizes = build.type_of(indices).dims
        if sizes[axis] == 1 and all(sizes[at] == size for at, size in enumerate(x.dims) if at != axis):
            return [one_of_each(build, indices, cotangent, axis, x.dims[axis])]
        places = element_places(build, indices, axis)
        return [places.scatter(zeros(build, x), cotangent, "add")]


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
            f"{node.label}: index tuples of length {length} from indices {list(indices_shape)} do not "
            f"address data {list(x_shape)} with {batch_dims} batch axes"
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
        _require_indices(node, indices)
        geometry = gather_nd_geometry(node, x.dims, indices.dims, node.attributes["batch_dims"])
        return [check_size(node, x.dtype, geometry.output)]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x, indices = present(inputs, 0), present(inputs, 1)
        batch_dims = node.attributes["batch_dims"]
        geometry = gather_nd_geometry(node, x.shape, indices.shape, batch_dims)
        if not math.prod(geometry.output):
            return [np.empty(geometry.output, x.dtype)]
        places = _tuple_coordinates(node, indices, geometry.indexed, batch_dims)
        grid = np.ogrid[tuple(slice(0, size) for size in geometry.batch)] if batch_dims else []
        spread = [axis.reshape(*axis.shape, *(1,) * len(geometry.tuples)) for axis in grid]
        if not spread and not places:
            return [np.broadcast_to(x, geometry.output).copy()]
        return [np.broadcast_to(x[(*spread, *places)], geometry.output).astype(x.dtype)]

    def lower(self, build: Lowering[V], node: Node, inputs: Sequence[V | None]) -> Sequence[V | None] | None:
        return build.gather_tuples(given(inputs, 0), given(inputs, 1), node.attributes["batch_dims"])

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        x, indices = build.type_of(present(inputs, 0)), present(inputs, 1)
        return [
            gather_tuples_gradient(build, x, indices, node.attributes["batch_dims"], present(cotangents, 0))
        ]


REDUCTIONS: dict[str, Any] = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def _check_reduction(node: Node, x: Known) -> None:
    reduction = node.attributes["reduction"]
    if reduction == "none":
        return
    if reduction not in REDUCTIONS:
        raise InvalidGraph(
            f"{node.label}: reduction {reduction!r} is not one of none, {', '.join(REDUCTIONS)}"
        )
    if x.dtype.kind == "s" and reduction == "add":
        return  # texts are joined, as in onnxruntime and onnx's evaluator
    if x.dtype.kind == "s" or not (x.dtype.is_native or x.dtype == BFLOAT16):
        raise InvalidGraph(f"{node.label}: elements of type {x.dtype.name} have no {reduction!r}")


def _scatter(x: Array, places: tuple[Array, ...], updates: Array, reduction: str) -> Array:
    """`x` with `updates` written or accumulated at `places`; without a reduction the last write wins."""
    if reduction == "none":
        result = x.copy()
        result[places] = updates
        return result
    # Sums of 16-bit floats round once, at the end.
    result = np.array(widened(x))
    REDUCTIONS[reduction].at(result, places, widened(updates))
    return result.astype(x.dtype, copy=False)


@operator()
class ScatterElements(Operator):
    """A copy of a tensor with single elements replaced or accumulated along one axis."""

    inputs = (3, 3)
    attributes = {"axis": 0, "reduction": "none"}

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x, indices, updates = (required(node, inputs, index) for index in range(3))
        require_rank(node, x, 1)
        _require_indices(node, indices)
        require_same_dtype(node, x, updates, "updates")
        _check_reduction(node, x)
        _along_axis(node, x.dims, indices.dims)
        if updates.dims != indices.dims:
            raise ShapeError(
                f"{node.label}: updates of shape {list(updates.dims)} and indices of shape "
                f"{list(indices.dims)} differ"
            )
        return [static(x.dtype, x.dims)]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x, indices, updates = (present(inputs, index) for index in range(3))
        axis = _along_axis(node, x.shape, indices.shape)
        if not x.size:
            return [x.copy()]  # nothing is written, as in kernels
        found = checked_indices(node, indices, x.shape[axis], axis)
        return [_scatter(x, _coordinates(indices.shape, axis, found), updates, node.attributes["reduction"])]

    def lower(self, build: Lowering[V], node: Node, inputs: Sequence[V | None]) -> Sequence[V | None] | None:
        axis = normalise_axis(node, node.attributes["axis"], len(given(inputs, 0).shape))
        x, indices, updates = all_given(inputs)
        return build.scatter_elements(x, indices, updates, axis, node.attributes["reduction"])

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        x, indices, updates = (present(inputs, at) for at in range(3))
        places, reduction = (
            element_places(build, indices, node.attributes["axis"]),
            node.attributes["reduction"],
        )
        wanted = needed[0], needed[2]
        by_x, by_updates = scatter_gradient(
            build, places, reduction, x, updates, outputs[0], present(cotangents, 0), wanted
        )
        return [by_x, None, by_updates]


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
        _require_indices(node, indices)
        require_same_dtype(node, x, updates, "updates")
        _check_reduction(node, x)
        wanted = gather_nd_geometry(node, x.dims, indices.dims, 0).output
        if updates.dims != wanted:
            raise ShapeError(
                f"{node.label}: updates have shape {list(updates.dims)}, indices ask for {list(wanted)}"
            )
        return [static(x.dtype, x.dims)]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x, indices, updates = (present(inputs, index) for index in range(3))
        geometry = gather_nd_geometry(node, x.shape, indices.shape, 0)
        if not updates.size or not x.size:
            return [x.copy()]
        # One flat index a slice, so that a tuple of length 0 (the whole tensor) needs no case of its own.
        flat = np.zeros(geometry.tuples, dtype=np.int64)
        for size, place in zip(
            geometry.indexed, _tuple_coordinates(node, indices, geometry.indexed, 0), strict=True
        ):
            flat = flat * size + place
        rows = contiguous(x).reshape(math.prod(geometry.indexed), *geometry.slice_shape)
        return [_scatter(rows, (flat,), updates, node.attributes["reduction"]).reshape(x.shape)]

    def lower(self, build: Lowering[V], node: Node, inputs: Sequence[V | None]) -> Sequence[V | None] | None:
        x, indices, updates = all_given(inputs)
        return build.scatter_tuples(x, indices, updates, node.attributes["reduction"])

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        x, indices, updates = (present(inputs, at) for at in range(3))
        places, reduction = tuple_places(build, indices), node.attributes["reduction"]
        wanted = needed[0], needed[2]
        by_x, by_updates = scatter_gradient(
            build, places, reduction, x, updates, outputs[0], present(cotangents, 0), wanted
        )
        return [by_x, None, by_updates]


@operator()
class TensorScatter(Operator):
    """A cache with an update written along one axis from each sample's own position on."""

    inputs = (2, 3)
    attributes = {"axis": -2, "mode": "linear"}

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        cache, update = required(node, inputs, 0), required(node, inputs, 1)
        positions: Known | None = optional(inputs, 2)
        require_same_dtype(node, cache, update, "update")
        require_rank(node, cache, 2)
        axis = _along_axis(node, cache.dims, update.dims)
        pairs = enumerate(zip(update.dims, cache.dims, strict=True))
        if axis == 0 or any(u != c for place, (u, c) in pairs if place != axis):
            raise ShapeError(
                f"{node.label}: an update {list(update.dims)} does not fit a cache {list(cache.dims)}"
            )
        if update.dims[axis] > cache.dims[axis]:
            raise ShapeError(f"{node.label}: {update.dims[axis]} steps do not fit {cache.dims[axis]}")
        if node.attributes["mode"] not in ("linear", "circular"):
            raise InvalidGraph(
                f"{node.label}: mode {node.attributes['mode']!r} is neither linear nor circular"
            )
        if positions is not None:
            _require_indices(node, positions)
            if positions.dims != cache.dims[:1]:
                raise ShapeError(f"{node.label}: write_indices must have shape [{cache.dims[0]}]")
        return [static(cache.dtype, cache.dims)]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        cache, update, positions = present(inputs, 0), present(inputs, 1), optional(inputs, 2)
        axis = normalise_axis(node, node.attributes["axis"], cache.ndim)
        size, steps = cache.shape[axis], update.shape[axis]
        start = np.zeros(cache.shape[0], np.int64) if positions is None else positions.astype(np.int64)
        is_circular = node.attributes["mode"] == "circular"
        is_beyond = False if is_circular else start > size - steps
        wrong = np.flatnonzero((start < 0) | is_beyond)
        if wrong.size and update.size:
            raise IndexOutOfRange(
                f"{node.label}: write index {int(start[wrong[0]])} of sample {int(wrong[0])} "
                f"with {steps} steps does not fit axis {axis} of size {size}"
            )
        if is_circular:
            start = start % max(size, 1)  # already here: what is added to the greatest integer overflows
        target = (start[:, None] + np.arange(steps)) % max(size, 1)
        result = cache.copy()
        # Both advanced indices in front: the axis moves behind the batch, where the update's has to follow.
        np.moveaxis(result, axis, 1)[np.arange(cache.shape[0])[:, None], target] = np.moveaxis(
            update, axis, 1
        )
        return [result]

    def steps(self, build: Emitter[T], node: Node, inputs: Sequence[T | None]) -> Sequence[T] | None:
        cache, update = present(inputs, 0), present(inputs, 1)
        types = build.type_of(cache), build.type_of(update)
        if any(type_.is_open for type_ in types):
            return None
        if not types[1].elements:
            return [build.apply("Identity", cache)]
        axis = normalise_axis(node, node.attributes["axis"], types[0].rank)
        is_circular = node.attributes["mode"] == "circular"
        rows = cache_rows(build, *types, optional(inputs, 2), axis, is_circular)
        if not is_circular:
            rows = not_negative(build, rows, types[0].dims[axis])
        return [build.apply("ScatterElements", cache, rows, update, axis=axis)]

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        cache, update = present(inputs, 0), present(inputs, 1)
        axis = normalise_axis(node, node.attributes["axis"], build.type_of(cache).rank)
        is_circular = node.attributes["mode"] == "circular"
        rows = cache_rows(
            build, build.type_of(cache), build.type_of(update), optional(inputs, 2), axis, is_circular
        )
        places, cotangent = element_places(build, rows, axis), present(cotangents, 0)
        made = scatter_gradient(build, places, "none", cache, update, outputs[0], cotangent, needed[:2])
        return [*made, None]
