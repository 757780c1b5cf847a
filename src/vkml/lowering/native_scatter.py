"""ScatterElements and ScatterND in machine code: a copy, then rows or single elements put into it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from vkml.cpu.native.scatter import scatter
from vkml.ir import dtypes
from vkml.ir.lowering import CannotLower
from vkml.ir.size import typical
from vkml.kernels.views import View

if TYPE_CHECKING:
    from vkml.lowering.native_builder import NativeBuilder

MOST_PLACES = 4096
"""Places beside the axis, each of which is a chunk."""


def scatter_elements(
    build: NativeBuilder, x: View, indices: View, updates: View, axis: int, reduction: str
) -> list[View]:
    """``result = x; result[i, indices[i, j, k], k] = updates[i, j, k]`` for `axis` 1.

    What exporters write for rows has indices that are expanded along them: these are rows again.
    """
    _require(x, indices, updates, reduction)
    rank = len(x.shape)
    target = build.output(build.result())
    repeated = [at for at in range(axis + 1, rank) if indices.strides[at] == 0 and indices.shape[at] != 1]
    if repeated and updates.strides[repeated[-1]] != 1:
        updates = build.contiguous(updates)
    outer, columns = [at for at in range(rank) if at != axis and indices.shape[at] != 1], 1
    while (
        outer and outer[-1] in repeated and updates.strides[outer[-1]] == target.strides[outer[-1]] == columns
    ):
        columns = columns * indices.shape[outer.pop()]
    if typical(math.prod(indices.shape[at] for at in outer)) > MOST_PLACES:
        raise CannotLower("scattering along few of many elements has no machine code")
    build.copy(x, target)
    launch = build.launch(
        scatter,
        outer=tuple(indices.shape[at] for at in outer),
        count=indices.shape[axis],
        columns=columns,
        sizes=(x.shape[axis],),
        steps=(target.strides[axis],),
        indices=(*(indices.strides[at] for at in outer), indices.strides[axis]),
        updates=(*(updates.strides[at] for at in outer), updates.strides[axis]),
        result=tuple(target.strides[at] for at in outer),
        words=x.itemsize // 4,
        is_wide=indices.dtype == dtypes.INT64,
        reduction=reduction,
        error_code=build.error_code(),
        threads=build.threads,
    )
    build.enter(launch, [indices, updates, target], [target, build.status])
    return [target]


def scatter_tuples(build: NativeBuilder, x: View, indices: View, updates: View, reduction: str) -> list[View]:
    """``result = x; result[*indices[t], n] = updates[t, n]``: each tuple picks a slice."""
    _require(x, indices, updates, reduction)
    length = indices.shape[-1]
    if not length:
        raise CannotLower("index tuples of length 0 have no machine code")
    result = build.result()
    target = build.output(result)
    made = target if target.is_contiguous else build.scratch(result)
    build.copy(x, made)
    indices, updates = build.contiguous(indices), build.contiguous(updates)
    columns = math.prod(x.shape[length:])
    launch = build.launch(
        scatter,
        outer=(),
        count=math.prod(indices.shape[:-1]),
        columns=columns,
        sizes=x.shape[:length],
        steps=made.strides[:length],
        indices=(length,),
        updates=(columns,),
        result=(),
        words=x.itemsize // 4,
        is_wide=indices.dtype == dtypes.INT64,
        reduction=reduction,
        error_code=build.error_code(),
        threads=build.threads,
    )
    build.enter(launch, [indices, updates, made], [made, build.status])
    if made is not target:
        build.copy(made, target)
    return [target]


def _require(x: View, indices: View, updates: View, reduction: str) -> None:
    if not (x.elements and indices.elements and updates.elements):
        raise CannotLower("there is nothing to scatter")
    if indices.dtype not in (dtypes.INT32, dtypes.INT64):
        raise CannotLower(f"indices of {indices.dtype.name} have no machine code")
    if reduction != "none" and x.dtype != dtypes.FLOAT32:
        raise CannotLower(f"machine code combines float32 where it scatters, not {x.dtype.name}")
    if x.dtype.is_packed or x.itemsize not in (4, 8) or x.dtype == dtypes.STRING:
        raise CannotLower(f"scattering of {x.dtype.name} has no machine code")
