"""Resample: sums of a few neighbours along each axis, by tables; the transpose of resizing and padding."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vkml.errors import InvalidGraph, ShapeError
from vkml.ir.dtypes import BOOL, FLOAT32, FLOATS, INT64
from vkml.ir.gradients import Emitter, T, reshaped, summed
from vkml.ir.graph import Node
from vkml.ir.lowering import Lowering, Table, V, given, known
from vkml.ir.operator import Array, Operator, operator
from vkml.ir.types import Known, TensorType
from vkml.ops.checks import contiguous, has_unknown_value, optional, present, require_dtype, required
from vkml.ops.checks import unknown_shape as of_unknown_shape
from vkml.ops.limits import check_size
from vkml.ops.pointwise import widened

_AXES = 8


@operator("Resample")
class Resample(Operator):
    """Element o along an axis is the sum over taps t of ``x[places[o, t]] * weights[o, t]``.

    Behind the tensor come, for each axis, places (int64) and weights (float32) of shape [size, taps], both
    absent where an axis stays as it is. vkml makes it, no file does.
    """

    domain = "vkml"
    inputs = (1, 1 + 2 * _AXES)
    value_inputs = tuple(range(1, 1 + 2 * _AXES))

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x = required(node, inputs, 0)
        require_dtype(node, x, FLOATS, "the input")
        if has_unknown_value(inputs, self.value_inputs):
            return [of_unknown_shape(x.dtype, x.rank)]
        tables = _tables([None if found is None else found.value for found in inputs], x.rank)
        dims = list(x.dims)
        for axis, table in enumerate(tables):
            if table is None:
                continue
            places, weights = table
            if places.ndim != 2 or places.shape != weights.shape:
                raise ShapeError(
                    f"{node.label}: places {list(places.shape)} and weights {list(weights.shape)} of axis "
                    f"{axis} must be matrices of one shape"
                )
            if places.size and not (places.min() >= 0 and places.max() < dims[axis]):
                raise InvalidGraph(f"{node.label}: a place lies outside axis {axis} of size {dims[axis]}")
            dims[axis] = len(places)
        return [check_size(node, x.dtype, dims)]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x = present(inputs, 0)
        result = widened(x)
        for axis, table in enumerate(_tables(inputs, x.ndim)):
            if table is None:
                continue
            places, weights = table
            lanes = [-1 if a == axis else 1 for a in range(x.ndim)]
            total = np.zeros((*result.shape[:axis], len(places), *result.shape[axis + 1 :]), result.dtype)
            for tap in range(places.shape[1]):
                total += result.take(places[:, tap], axis=axis) * weights[:, tap].reshape(lanes)
            result = total
        return [contiguous(result.astype(x.dtype, copy=False))]

    def lower(self, build: Lowering[V], node: Node, inputs: Sequence[V | None]) -> Sequence[V | None] | None:
        x = given(inputs, 0)
        stated = [None if view is None else known(build, view) for view in inputs[1:]]
        return build.resize(x, _tables([None, *stated], len(x.shape)))

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        stated = [None if value is None else build.elements_of(value) for value in inputs]
        dims = build.type_of(present(inputs, 0)).dims
        tables = [
            None if table is None else transposed_table(*table, size)
            for table, size in zip(_tables(stated, len(dims)), dims, strict=True)
        ]
        return [resampled(build, present(cotangents, 0), tables)]


def _tables(inputs: Sequence[Array | None], rank: int) -> list[Table | None]:
    """Places and weights of each axis, from the node's inputs."""
    tables: list[Table | None] = []
    for axis in range(rank):
        places, weights = optional(inputs, 1 + 2 * axis), optional(inputs, 2 + 2 * axis)
        tables.append(None if places is None or weights is None else (places, weights))
    return tables


def transposed_table(places: Array, weights: Array, size: int) -> Table:
    """Places and weights [size, taps] by which each of `size` sources collects what was taken of it.

    Args:
        places: int64 [results, taps].
        weights: of the same shape.
        size: of the axis that the places lie in.
    """
    results = max(len(places), 1)
    takers = np.broadcast_to(np.arange(len(places))[:, None], places.shape)
    counts = weights != 0
    pairs, which = np.unique(places[counts] * results + takers[counts], return_inverse=True)
    totals = np.bincount(which.reshape(-1), weights[counts], len(pairs))
    sources, found = pairs // results, pairs % results
    each = np.bincount(sources, minlength=size)
    taps = max(int(each.max(initial=1)), 1)
    tap = np.arange(len(pairs)) - np.repeat(np.cumsum(each) - each, each)
    # Taps that are too many read with weight 0 what is read anyway: no infinity gets into other sums.
    last = np.zeros(size, np.int64)
    last[sources] = found
    back, by = np.repeat(last[:, None], taps, 1), np.zeros((size, taps), np.float32)
    back[sources, tap], by[sources, tap] = found, totals
    return back, by


def window_table(size: int, kernel: int, stride: int, dilation: int, begin: int, count: int) -> Table:
    """The elements of each of `count` windows along an axis, with weight 1; 0 where they are padding."""
    places = (np.arange(count) * stride - begin)[:, None] + np.arange(kernel) * dilation
    inside = (places >= 0) & (places < size)
    return places.clip(0, max(size - 1, 0)), inside.astype(np.float32)


def box_mask(build: Emitter[T], insides: Sequence[Array | None]) -> T | None:
    """Where all of what is true along each axis is; None where it is everywhere.

    Args:
        build: the emitter.
        insides: bool [size] of each axis, None where it is true all along.
    """
    mask: T | None = None
    for axis, inside in enumerate(insides):
        if inside is not None and not inside.all():
            along = build.constant(inside.reshape(-1, *(1,) * (len(insides) - axis - 1)), BOOL)
            mask = along if mask is None else build.apply("And", mask, along)
    return mask


def resampled(build: Emitter[T], x: T, tables: Sequence[Table | None]) -> T:
    """`x` by tables, as one `Resample` but for axes along which equal blocks are summed."""
    dims = build.type_of(x).dims
    blocks = [1 if table is None else _block(table, size) for table, size in zip(tables, dims, strict=True)]
    summing = [axis for axis, block in enumerate(blocks) if block is not None and block > 1]
    if summing:
        split = [(size // (block or 1), block or 1) for size, block in zip(dims, blocks, strict=True)]
        apart = reshaped(build, x, [entry for pair in split for entry in pair])
        total = summed(build, apart, [2 * axis + 1 for axis in summing])
        x = reshaped(build, total, [outer for outer, _ in split])
    stated: list[T | None] = []
    for table, block in zip(tables, blocks, strict=True):
        if table is None or block is not None:
            stated += [None, None]
        else:
            stated += [build.constant(table[0], INT64), build.constant(table[1], FLOAT32)]
    return (
        x
        if all(block is not None for block in blocks)
        else build.apply("Resample", x, *stated, domain="vkml")
    )


def _block(table: Table, size: int) -> int | None:
    """How many neighbours each result sums, where these are equal blocks of the whole axis in order."""
    places, weights = table
    is_ordered = size and places.size == size and (places.reshape(-1) == np.arange(size)).all()
    return int(places.shape[1]) if is_ordered and (weights == 1).all() else None
