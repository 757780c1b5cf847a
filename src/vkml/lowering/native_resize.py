"""Resized tensors in machine code: copies where elements are repeated, else one axis after another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from vkml.cpu.native.resample import MOST_TAPS, resample, table_of
from vkml.ir import Constant, TensorType, dtypes
from vkml.ir.lowering import CannotLower, Table
from vkml.ir.size import typical
from vkml.kernels.views import View
from vkml.lowering.native_layout import require_floats

if TYPE_CHECKING:
    from vkml.lowering.native_builder import NativeBuilder

Array = np.ndarray[Any, Any]


def resize(build: NativeBuilder, x: View, tables: Sequence[Table | None]) -> list[View]:
    """``result[i…] = sum over taps of x[places…] * weights…``, separable over the axes."""
    repeated = _repeated(build, x, tables)
    if repeated is not None:
        return repeated
    require_floats(x)
    if not x.elements or len(x.shape) < 2:
        raise CannotLower("machine code resizes images, not vectors or nothing")
    found = {axis: _trimmed(*table) for axis, table in enumerate(tables) if table is not None}
    if any(places.shape[1] > MOST_TAPS for places, _ in found.values()):
        raise CannotLower(f"machine code adds up {MOST_TAPS} neighbours at most")
    x = build.widened(x)
    result = build.result()
    build.makes_channels_last = len(x.shape) in (3, 4, 5) and x.strides[1] == 1 and x.shape[1] > 1
    try:
        target = build.output(result)
    finally:
        build.makes_channels_last = False
    is_float = target.dtype == dtypes.FLOAT32
    # What shrinks most comes first: others then have less to do.
    axes = sorted(found, key=lambda axis: len(found[axis][0]) / typical(x.shape[axis]))
    for axis in axes:
        x = _along(build, x, axis, found[axis], target if is_float and axis == axes[-1] else None)
    if x is not target:
        build.copy(x, target)
    return [target]


def _repeated(build: NativeBuilder, x: View, tables: Sequence[Table | None]) -> list[View] | None:
    """Nearest neighbours that repeat every element a whole number of times: a copy, of any type."""
    result = build.result()
    for axis, table in enumerate(tables):
        size, total = x.shape[axis], result.dims[axis]
        factor = total // max(size, 1)
        if factor * size != total:
            return None
        if table is not None and (
            table[0].shape[1] != 1
            or (table[0][:, 0] != np.arange(total) // factor).any()
            or (table[1] != 1).any()
        ):
            return None
    target = build.output(result)
    shape: list[int] = []
    source_strides: list[int] = []
    target_strides: list[int] = []
    for axis, size in enumerate(x.shape):
        factor = result.dims[axis] // max(size, 1)
        shape += [size, factor]
        source_strides += [x.strides[axis], 0]
        target_strides += [target.strides[axis] * factor, target.strides[axis]]
    build.copy(
        replace(x, shape=tuple(shape), strides=tuple(source_strides)),
        replace(target, shape=tuple(shape), strides=tuple(target_strides)),
    )
    return [target]


def _trimmed(places: Array, weights: Array) -> Table:
    """Without the taps that weigh nothing anywhere."""
    used = (weights != 0).any(0)
    used[0] |= not used.any()
    return places[:, used], weights[:, used].astype(np.float32)


def _along(build: NativeBuilder, x: View, axis: int, table: Table, target: View | None) -> View:
    """The tensor with one axis resampled, in `target` where its columns are x's, else elsewhere."""
    places, weights = table
    others = [at for at in range(len(x.shape)) if at != axis]
    columns = next((at for at in others if x.strides[at] == 1 and x.shape[at] != 1), None)
    if columns is None:
        columns = max(others, key=lambda at: typical(x.shape[at]))
        made = _like(build, x, columns, x.shape)
        build.copy(x, made)
        x = made
    dims = (*x.shape[:axis], len(places), *x.shape[axis + 1 :])
    fits = target is not None and (target.strides[columns] == 1 or dims[columns] == 1)
    made = target if target is not None and fits else _like(build, x, columns, dims)
    count = x.shape[columns]
    outer = sorted((at for at in others if at != columns and x.shape[at] != 1), key=lambda at: -x.strides[at])
    # Axes whose neighbours lie behind the columns are columns, too.
    while outer and x.strides[outer[-1]] == made.strides[outer[-1]] == count:
        count = count * x.shape[outer.pop()]
    entries = table_of(places, weights, 4 * x.strides[axis])
    constant = build.constant(Constant(dtypes.INT64, entries.shape, entries), "neighbours")
    launch = build.launch(
        resample,
        outer=tuple(x.shape[at] for at in outer),
        lines=len(places),
        columns=count,
        taps=places.shape[1],
        x=tuple(x.strides[at] for at in outer),
        result=(*(made.strides[at] for at in outer), made.strides[axis]),
        threads=build.threads,
    )
    build.enter(launch, [x, constant], [made])
    return made


def _like(build: NativeBuilder, x: View, columns: int, dims: tuple[int, ...]) -> View:
    """Fresh memory of other sizes whose axes lie as x's do, but for one, whose elements are neighbours."""
    order = sorted(range(len(dims)), key=lambda at: (at == columns, -x.strides[at]))
    made = build.scratch(TensorType(dtypes.FLOAT32, tuple(dims[at] for at in order)))
    return made.transpose([order.index(at) for at in range(len(order))])
