"""Gradients of the Gather and Scatter families, written in each other's operators."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Generic

import numpy as np

from vkml.dataclasses import dataclass
from vkml.ir.dtypes import INT64
from vkml.ir.gradients import Emitter, T, converted, expanded, padded, reshaped, transposed, zeros
from vkml.ir.types import TensorType


@dataclass(frozen=True)
class Places(Generic[T]):
    """Where a scatter writes: what reads there, and what writes there."""

    gather: Callable[[T], T]
    scatter: Callable[[T, T, str], T]
    """Of a tensor, updates and the reduction."""


def element_places(build: Emitter[T], indices: T, axis: int) -> Places[T]:
    """Those of ScatterElements."""
    return Places(
        lambda x: build.apply("GatherElements", x, indices, axis=axis),
        lambda x, updates, reduction: build.apply(
            "ScatterElements", x, indices, updates, axis=axis, reduction=reduction
        ),
    )


def one_of_each(build: Emitter[T], indices: T, updates: T, axis: int, size: int) -> T:
    """Each update at its index along an axis, zeros elsewhere: places are compared, nothing is scattered.

    Args:
        build: the emitter.
        indices: one along the axis; negative ones count from the end.
        updates: of its shape.
        axis: counted from the front.
        size: of the result along it.
    """
    type_ = build.type_of(indices)
    zero, whole, one = (build.constant(number, type_.dtype) for number in (0, size, 1))
    around = [size if at == axis else 1 for at in range(len(type_.dims))]
    places = reshaped(build, build.apply("Range", zero, whole, one), around)
    is_behind = build.apply("Less", indices, zero)
    from_start = build.apply("Where", is_behind, build.apply("Add", indices, whole), indices)
    nothing = build.constant(0, build.type_of(updates).dtype)
    found = build.apply("Where", build.apply("Equal", places, from_start), updates, nothing)
    build.note_sum(found, axis, updates)
    return found


def not_negative(build: Emitter[T], indices: T, size: int) -> T:
    """Indices that do not count from the end: negative ones become `size`, which is outside, and reported."""
    dtype = build.type_of(indices).dtype
    is_negative = build.apply("Less", indices, build.constant(0, dtype))
    return build.apply("Where", is_negative, build.constant(size, dtype), indices)


def tuple_places(build: Emitter[T], indices: T) -> Places[T]:
    """Those of ScatterND."""
    return Places(
        lambda x: build.apply("GatherND", x, indices),
        lambda x, updates, reduction: build.apply("ScatterND", x, indices, updates, reduction=reduction),
    )


def scatter_gradient(
    build: Emitter[T],
    places: Places[T],
    reduction: str,
    x: T,
    updates: T,
    output: T,
    cotangent: T,
    needed: Sequence[bool],
) -> list[T | None]:
    """Cotangents of what is scattered into, and of the updates.

    Without a reduction each update gets what lies at its place, as in PyTorch: of several for one place the
    last alone counts, but which one that is is not known. Extremes share theirs among all that equal them.
    """
    wants_x, wants_updates = needed
    if reduction == "add":
        return [cotangent if wants_x else None, places.gather(cotangent) if wants_updates else None]
    if reduction == "none":
        nothing = zeros(build, build.type_of(updates))
        return [
            places.scatter(cotangent, nothing, "none") if wants_x else None,
            places.gather(cotangent) if wants_updates else None,
        ]
    if reduction == "mul":
        return [
            _product_by_x(build, places, x, updates, cotangent) if wants_x else None,
            _product_by_updates(build, places, x, updates, output, cotangent) if wants_updates else None,
        ]
    return _extreme_gradient(build, places, x, updates, output, cotangent, needed)


def _product_by_x(build: Emitter[T], places: Places[T], x: T, updates: T, cotangent: T) -> T:
    """What an element is multiplied with."""
    return places.scatter(cotangent, updates, "mul")


def _product_by_updates(build: Emitter[T], places: Places[T], x: T, updates: T, output: T, cotangent: T) -> T:
    """The product without the update itself: where that is 0, without it only if no other one is."""
    dtype = build.type_of(updates).dtype
    zero, one = build.constant(0, dtype), build.constant(1, dtype)
    is_zero = build.apply("Equal", updates, zero)
    zeros_there = places.scatter(zeros(build, build.type_of(x)), converted(build, is_zero, dtype), "add")
    is_single = build.apply("And", is_zero, build.apply("Equal", places.gather(zeros_there), one))
    others = build.apply("Where", is_single, one, updates)
    alone = places.gather(build.apply("Mul", cotangent, places.scatter(x, others, "mul")))
    # Of several zeros each has another one beside it: the whole product is 0, and is divided by 1.
    whole = places.gather(build.apply("Mul", cotangent, output))
    divided = build.apply("Div", whole, build.apply("Where", is_zero, one, updates))
    return build.apply("Where", is_single, alone, divided)


def _extreme_gradient(
    build: Emitter[T],
    places: Places[T],
    x: T,
    updates: T,
    output: T,
    cotangent: T,
    needed: Sequence[bool],
) -> list[T | None]:
    dtype = build.type_of(x).dtype
    wins_x = converted(build, build.apply("Equal", x, output), dtype)
    wins_updates = converted(build, build.apply("Equal", updates, places.gather(output)), dtype)
    share = build.apply("Div", cotangent, places.scatter(wins_x, wins_updates, "add"))
    return [
        build.apply("Mul", wins_x, share) if needed[0] else None,
        build.apply("Mul", wins_updates, places.gather(share)) if needed[1] else None,
    ]


def gather_gradient(build: Emitter[T], x: TensorType, indices: T, axis: int, cotangent: T) -> T:
    """The cotangent of Gather's data: a sum at each index."""
    known, found = build.elements_of(indices), build.type_of(indices).dims
    rest = (*x.dims[:axis], *x.dims[axis + 1 :])
    if 0 in (*x.dims, *found):
        return zeros(build, x)
    if known is not None and known.size == 1:
        place = int(known.reshape(-1)[0]) % x.dims[axis]
        begins = [place if at == axis else 0 for at in range(len(x.dims))]
        ends = [x.dims[axis] - 1 - place if at == axis else 0 for at in range(len(x.dims))]
        slab = reshaped(build, cotangent, (*x.dims[:axis], 1, *x.dims[axis + 1 :]))
        return padded(build, slab, begins, ends)
    # The indexed axis in front, where tuples of one index pick slices.
    order = [*range(axis, axis + len(found)), *range(axis), *range(axis + len(found), len(rest) + len(found))]
    count = math.prod(found)
    updates = reshaped(build, transposed(build, cotangent, order), (count, *rest))
    tuples = reshaped(build, indices, (count, 1))
    nothing = zeros(build, TensorType(x.dtype, (x.dims[axis], *rest)))
    total = build.apply("ScatterND", nothing, tuples, updates, reduction="add")
    return transposed(build, total, [*range(1, axis + 1), 0, *range(axis + 1, len(x.dims))])


def gather_tuples_gradient(build: Emitter[T], x: TensorType, indices: T, batch_axes: int, cotangent: T) -> T:
    """The cotangent of GatherND's data: a sum at each tuple, which gets its place in the batch in front."""
    type_ = build.type_of(indices)
    if 0 in (*x.dims, *build.type_of(cotangent).dims):
        return zeros(build, x)
    if batch_axes:
        grid = np.stack(np.meshgrid(*map(np.arange, x.dims[:batch_axes]), indexing="ij"), -1)
        spread = grid.reshape(*grid.shape[:-1], *(1,) * (len(type_.dims) - 1 - batch_axes), batch_axes)
        whole = np.broadcast_to(spread, (*type_.dims[:-1], batch_axes))
        parts = [build.constant(whole, INT64), converted(build, indices, INT64)]
        indices = build.apply("Concat", *parts, axis=-1)
    return build.apply("ScatterND", zeros(build, x), indices, cotangent, reduction="add")


def cache_rows(
    build: Emitter[T],
    cache: TensorType,
    update: TensorType,
    positions: T | None,
    axis: int,
    is_circular: bool,
) -> T:
    """Where TensorScatter puts each element of an update along the axis, in the update's shape."""
    lanes = [1] * update.rank
    lanes[axis] = update.dims[axis]
    rows = build.constant(np.arange(update.dims[axis]).reshape(lanes), INT64)
    if positions is not None:
        first = reshaped(
            build, converted(build, positions, INT64), [cache.dims[0], *(1,) * (update.rank - 1)]
        )
        rows = build.apply("Add", first, rows)
    if is_circular:
        rows = build.apply("Mod", rows, build.constant(cache.dims[axis], INT64))
    return expanded(build, rows, update.dims)
