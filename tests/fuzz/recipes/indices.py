"""Gathers and scatters."""

from __future__ import annotations

import numpy as np

from tests.fuzz.graphs import GraphBuilder, Skip, Value
from tests.fuzz.recipes.registry import axis_of, data_input, recipe
from tests.fuzz.tensors import INT32, INT64, NATIVE, indices


def places(build: GraphBuilder, shape: tuple[int, ...], size: int) -> Value:
    """Indices into an axis of a size, from either end where the opset has that."""
    if not size:
        raise Skip("nothing to index")
    low = -size if build.opset >= 11 and build.chance(0.6) else 0
    return build.new(build.pick(INT64, INT64, INT32), shape, indices(low, size), constant=0.5)


@recipe("Gather")
def gather(build: GraphBuilder, op: str) -> None:
    data = data_input(build, op, 1)
    axis = axis_of(build, data.rank)
    shape = build.pick((), (1,), (3,), (2, 2), (5,), (1, 1), (0,) if build.chance(0.1) else (4,))
    build.node(
        op,
        [data, places(build, shape, data.dims[axis])],
        {"axis": axis if axis or build.chance(0.3) else None},
    )


@recipe("GatherElements")
def gather_elements(build: GraphBuilder, op: str) -> None:
    data = data_input(build, op, 1)
    axis = axis_of(build, data.rank)
    sizes = [build.integer(1, max(size, 1)) for size in data.dims]
    sizes[axis] = build.integer(1, 6)
    build.node(op, [data, places(build, tuple(sizes), data.dims[axis])], {"axis": axis})


def tuples(build: GraphBuilder, dims: tuple[int, ...], count: tuple[int, ...], depth: int) -> np.ndarray:
    """Index tuples [*count, depth] into the first `depth` axes."""
    if 0 in dims[:depth]:
        raise Skip("nothing to index")
    low = [-size if build.opset >= 12 else 0 for size in dims[:depth]]
    columns = [build.rng.integers(least, size, count) for least, size in zip(low, dims[:depth], strict=True)]
    return np.stack(columns, -1).astype(np.int64) if columns else np.zeros((*count, 0), np.int64)


@recipe("GatherND")
def gather_nd(build: GraphBuilder, op: str) -> None:
    data = data_input(build, op, 1)
    batch = build.integer(0, min(1, data.rank - 1)) if build.opset >= 12 and build.chance(0.4) else 0
    depth = build.integer(1, data.rank - batch)
    count = (*data.dims[:batch], *build.pick((2,), (1, 3), (), (4,)))
    if batch and len(count) == batch:
        count = (*count, 2)
    found = tuples(build, data.dims[batch:], count, depth)
    build.node(op, [data, build.decided(found)], {"batch_dims": batch or None})


@recipe("Scatter", "ScatterElements")
def scatter_elements(build: GraphBuilder, op: str) -> None:
    data = data_input(build, op, 1)
    axis = axis_of(build, data.rank)
    size = data.dims[axis]
    sizes = [build.integer(1, max(length, 1)) for length in data.dims]
    sizes[axis] = build.integer(1, max(size, 1))
    if not data.elements:
        raise Skip("nothing to write to")
    reduction = build.pick(None, None, "none", "add", "mul", "max", "min") if build.opset >= 16 else None
    if reduction in (None, "none"):  # places that meet twice have no order
        own = np.stack(
            [build.rng.permutation(size)[: sizes[axis]] for _ in range(int(np.prod(sizes)) // sizes[axis])]
        )
        moved = own.reshape([*sizes[: axis % data.rank], *sizes[axis % data.rank + 1 :], sizes[axis]])
        where: Value = build.decided(np.moveaxis(moved, -1, axis % data.rank).astype(np.int64))
    else:
        where = places(build, tuple(sizes), size)
    updates = build.take([data.code], shape=sizes)
    build.node(op, [data, where, updates], {"axis": axis, "reduction": reduction})


@recipe("ScatterND")
def scatter_nd(build: GraphBuilder, op: str) -> None:
    data = data_input(build, op, 1)
    depth = build.integer(1, data.rank)
    if not data.elements:
        raise Skip("nothing to write to")
    reduction = build.pick(None, None, "none", "add", "mul", "max", "min") if build.opset >= 16 else None
    targets = int(np.prod(data.dims[:depth]))
    count = min(build.integer(1, 6), targets)
    if reduction in (None, "none"):
        chosen = build.rng.permutation(targets)[:count]
        found = np.stack(np.unravel_index(chosen, data.dims[:depth]), -1).astype(np.int64)
    else:
        found = tuples(build, data.dims, (count,), depth)
    updates = build.take([data.code], shape=(count, *data.dims[depth:]))
    build.node(op, [data, build.decided(found), updates], {"reduction": reduction})


@recipe("TensorScatter")
def tensor_scatter(build: GraphBuilder, op: str) -> None:
    batch, length, width = build.integer(1, 3), build.integer(2, 8), build.integer(1, 4)
    code = build.code(NATIVE)
    cache = build.take([code], shape=(batch, length, width))
    part = build.integer(1, length)
    update = build.take([code], shape=(batch, part, width))
    mode = build.pick(None, "linear", "circular")
    last = 3 * length if mode == "circular" else length - part + 1
    at = build.new(INT64, (batch,), indices(0, last)) if build.chance(0.7) else None
    build.node(op, [cache, update, at], {"mode": mode, "axis": build.pick(None, -2, 1)})
