"""Nodes that look at their input differently or move it: reshapes, transposes, gathers, concatenations."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from vkml.errors import IndexOutOfRange
from vkml.ir import Node
from vkml.lowering.cpu_groups import Scope, StepFunction
from vkml.ops.image import nearest_places, resize_geometry
from vkml.ops.shape import permutation

Array = np.ndarray[Any, Any]


def compile_movement(scope: Scope, node: Node) -> StepFunction | None:
    """The step of a node that moves data without computing; None where it is none, or has no fast form."""
    make = _MOVEMENTS.get(node.op) if not node.domain else None
    if make is None:
        return None
    known = [scope.types[name] for name in (*node.inputs, *node.outputs) if name]
    if any(not t.is_static or not t.dtype.is_native or t.dtype.kind == "s" for t in known):
        return None
    return make(scope, node)


def _reshape(scope: Scope, node: Node) -> StepFunction:
    source, target = scope.slots[node.inputs[0]], scope.slots[node.outputs[0]]
    shape = scope.types[node.outputs[0]].dims

    def step(slots: list[Any]) -> None:
        slots[target] = slots[source].reshape(shape)

    return step


def _identity(scope: Scope, node: Node) -> StepFunction:
    source, target = scope.slots[node.inputs[0]], scope.slots[node.outputs[0]]
    if node.inputs[0] in scope.channels_last:
        scope.channels_last.add(node.outputs[0])

    def step(slots: list[Any]) -> None:
        slots[target] = slots[source]

    return step


def _transpose(scope: Scope, node: Node) -> StepFunction:
    source, target = scope.slots[node.inputs[0]], scope.slots[node.outputs[0]]
    axes = permutation(node, scope.types[node.inputs[0]].rank)

    def step(slots: list[Any]) -> None:
        slots[target] = slots[source].transpose(axes)

    return step


def _gather(scope: Scope, node: Node) -> StepFunction:
    source, places, target = (scope.slots[name] for name in (*node.inputs, node.outputs[0]))
    axis = node.attributes["axis"] % scope.types[node.inputs[0]].rank
    size = scope.types[node.inputs[0]].dims[axis]
    label = node.label
    dims, dtype = scope.types[node.outputs[0]].dims, scope.types[node.outputs[0]].dtype.storage

    def step(slots: list[Any]) -> None:
        try:
            table = slots[source]
            if table.flags.aligned or axis or not table.flags.c_contiguous or not table.size:
                slots[target] = np.take(table, slots[places], axis=axis)
                return
            # A table mapped from a file may begin at any address, and take would copy all of it to align it;
            # rows of bytes are always aligned.
            rows = table.reshape(size, -1).view(np.uint8)
            slots[target] = np.take(rows, slots[places].reshape(-1), axis=0).view(dtype).reshape(dims)
        except IndexError:
            found = slots[places]
            wrong = found[(found < -size) | (found >= size)].reshape(-1)[0]
            raise IndexOutOfRange(
                f"{label}: index {wrong} lies outside axis {axis} of size {size} "
                f"({-size} to {size - 1} are inside)"
            ) from None

    return step


def _concat(scope: Scope, node: Node) -> StepFunction:
    sources = [scope.slots[name] for name in node.inputs]
    target, type_ = scope.slots[node.outputs[0]], scope.types[node.outputs[0]]
    axis, dims = node.attributes["axis"] % type_.rank, type_.dims
    dtype, rank = type_.dtype.storage, type_.rank
    if rank < 3 or not any(name in scope.channels_last for name in node.inputs):

        def step(slots: list[Any]) -> None:
            slots[target] = np.concatenate([slots[source] for source in sources], axis)

        return step
    scope.channels_last.add(node.outputs[0])
    ranges, start = [], 0
    for name in node.inputs:
        size = scope.types[name].dims[axis]
        ranges.append((*(slice(None),) * axis, slice(start, start + size)))
        start += size
    memory = (dims[0], *dims[2:], dims[1])
    heavy = math.prod(dims) > 500_000
    empty, pool, logical = scope.buffers.empty, scope.pool, (0, rank - 1, *range(1, rank - 1))

    def step_last(slots: list[Any]) -> None:
        whole = empty(memory, dtype).transpose(logical)
        rows = dims[2]

        def body(first: int, last: int) -> None:
            for source, place in zip(sources, ranges, strict=True):
                whole[place][:, :, first:last] = slots[source][:, :, first:last]

        if heavy and axis == 1:
            pool.parallel_for(rows, body, -(-rows // pool.size))
        else:
            for source, place in zip(sources, ranges, strict=True):
                whole[place] = slots[source]
        slots[target] = whole

    return step_last


def _resize(scope: Scope, node: Node) -> StepFunction | None:
    """Nearest neighbours that repeat every element a whole number of times, over channels-last memory."""
    constants = [scope.constants.get(name) if name else None for name in (*node.inputs[1:], "", "", "")[:3]]
    given = [None if constant is None else constant.array for constant in constants]
    if any(name and constant is None for name, constant in zip(node.inputs[1:], constants, strict=False)):
        return None
    source, target = scope.types[node.inputs[0]], scope.types[node.outputs[0]]
    geometry = resize_geometry(node, source.dims, *given)
    if geometry.mode != "nearest" or geometry.extrapolation is not None or source.rank < 3:
        return None
    factors = []
    for size, result, axis in zip(source.dims, target.dims, geometry.axes, strict=True):
        factor = result // max(size, 1)
        repeats = factor * size == result and (
            not geometry.resamples(axis)
            or (nearest_places(geometry, axis) == np.arange(result) // factor).all()
        )
        if not repeats:
            return None
        factors.append(factor)
    if factors[:2] != [1, 1]:
        return None
    rank, dims, dtype = source.rank, source.dims, target.dtype.storage
    order, logical = (0, *range(2, rank), 1), (0, rank - 1, *range(1, rank - 1))
    memory = (target.dims[0], *target.dims[2:], target.dims[1])
    split = [
        dims[0],
        *(n for size, factor in zip(dims[2:], factors[2:], strict=True) for n in (size, factor)),
        dims[1],
    ]
    apart = [dims[0], *(n for size in dims[2:] for n in (size, 1)), dims[1]]
    scope.channels_last.add(node.outputs[0])
    before, after, pool = scope.slots[node.inputs[0]], scope.slots[node.outputs[0]], scope.pool
    empty = scope.buffers.empty
    rows = dims[2]
    chunk = -(-rows // pool.size) if math.prod(memory) > 500_000 else rows

    def step(slots: list[Any]) -> None:
        x = np.ascontiguousarray(slots[before].transpose(order)).reshape(apart)
        whole = empty(memory, dtype)
        wide = whole.reshape(split)

        def body(first: int, last: int) -> None:
            wide[:, first:last] = x[:, first:last]

        pool.parallel_for(rows, body, chunk)
        slots[after] = whole.transpose(logical)

    return step


_MOVEMENTS: dict[str, Callable[[Scope, Node], StepFunction | None]] = {
    "Concat": _concat,
    "Flatten": _reshape,
    "Gather": _gather,
    "Identity": _identity,
    "Reshape": _reshape,
    "Resize": _resize,
    "Squeeze": _reshape,
    "Transpose": _transpose,
    "Unsqueeze": _reshape,
}
