"""Pointwise launches: an expression of strided operands at every index, copies among them."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from vkml.cpu.native.elementwise import (
    POINTERS,
    Walk,
    cycles,
    elementwise_kernel,
    is_wide,
    lanes,
    tail_mask,
)
from vkml.cpu.native.executable import InstructionSet
from vkml.cpu.native.expression import IDENTITY, Access, Expression
from vkml.cpu.native.kernel import Launch
from vkml.cpu.native.transposition import transposition
from vkml.ir.size import is_same, typical

Array = np.ndarray[Any, Any]
MOST_OPERANDS = len(POINTERS)
"""Leaves and results of a launch."""
_CYCLES_PER_SECOND = 3e9
_CACHE_BYTES = 1 << 22
_BYTES_PER_SECOND_IN_CACHE, _BYTES_PER_SECOND = 40e9, 15e9
"""Of a core; a virtual Zen 4 with memory to itself reads and writes 90 and 33 GB/s."""
_CHUNK_SECONDS = 25e-6
"""What a chunk takes at most, so that threads finish together."""
_LEAST_CHUNK_SECONDS = 4e-6
_CHUNKS_PER_THREAD = 4


@functools.lru_cache(maxsize=256)
def pointwise(
    instructions: InstructionSet,
    *,
    shape: tuple[int, ...],
    leaves: tuple[Access, ...],
    expression: Expression,
    results: tuple[Access, ...],
    threads: int,
) -> Launch:
    """Evaluates an expression at every index of a space.

    Args:
        instructions: what may be used.
        shape: of the index space, at least one index.
        leaves: the expression's operands.
        expression: of an element.
        results: where its outputs go; different indices are different places.
        threads: how many are to share the work.

    Returns:
        The launch; its operands are the leaves, then the results, at most `MOST_OPERANDS`.

    Raises:
        TooFewRegisters: the expression is too large.
    """
    operands = (*leaves, *results)
    if len(operands) > MOST_OPERANDS:
        raise ValueError(f"{len(operands)} operands; a pointwise launch takes {MOST_OPERANDS}")
    axes = merged_axes(shape, [access.strides for access in operands], first_result=len(leaves))
    names = [access.dtype for access in operands]
    if expression == IDENTITY and len(results) == 1 and len(set(names)) == 1:
        axes, itemsize = _in_words(axes, operands[0].itemsize)
        launch = transposition(instructions, axes, itemsize=itemsize, threads=threads)
        if launch is not None:
            return launch
        # Their meaning does not matter to a copy, and what is no 0 or 1 of bool stays what it is.
        names = [f"uint{8 * itemsize}"] * 2
    extents = [extent for extent, _ in axes]
    walks = [
        Walk(tuple(strides[position] for _, strides in axes), name) for position, name in enumerate(names)
    ]
    elements = math.prod(extents)
    width = lanes(instructions, is_wide=is_wide(expression, walks))
    moved = sum(_touched(extents, walk) * walk.itemsize for walk in walks)
    # A short row's last vector costs as much as a whole one.
    vectors = elements // extents[-1] * -(-extents[-1] // width)
    rate = _BYTES_PER_SECOND_IN_CACHE if moved < _CACHE_BYTES else _BYTES_PER_SECOND
    seconds = max(vectors * cycles(expression, walks) / _CYCLES_PER_SECOND, moved / rate)
    target = chunk_elements(elements, seconds, threads)
    first, piece = split(extents, target, 4 * width)
    is_columns = first == len(extents) - 1
    kernel = elementwise_kernel(
        instructions,
        extents=tuple(extents[first + 1 :]),
        leaves=tuple(Walk(walk.strides[first:], walk.dtype) for walk in walks[: len(leaves)]),
        expression=expression,
        results=tuple(Walk(walk.strides[first:], walk.dtype) for walk in walks[len(leaves) :]),
    )
    starts = np.arange(0, extents[first], piece, dtype=np.int64)
    counts = np.minimum(piece, extents[first] - starts)
    columns = [
        offsets(extents[:first], walk.strides[:first], starts * walk.strides[first]) * walk.itemsize
        for walk in walks
    ]
    repeats = math.prod(extents[:first])
    columns.append(np.tile(counts, repeats))
    if is_columns:
        masks = np.array(
            [
                tail_mask(instructions, width, int(count), walks[0].itemsize)
                for count in (counts[0], counts[-1])
            ],
            np.int64,
        )
        columns.append(np.tile(np.where(counts == counts[0], masks[0], masks[1]), repeats))
    return Launch(kernel, np.ascontiguousarray(np.stack(columns, 1)), seconds)


Axis = tuple[int, tuple[int, ...]]
"""An extent, and the stride of every operand in elements."""


def merged_axes(shape: Sequence[int], strides: Sequence[Sequence[int]], *, first_result: int) -> list[Axis]:
    """The axes in the order of the first result's memory, the one of vectors last, neighbours joined."""
    axes = [
        (extent, tuple(stride[axis] for stride in strides)) for axis, extent in enumerate(shape) if extent > 1
    ]
    if not axes:
        return [(1, (1,) * len(strides))]

    def fitness(axis: Axis) -> tuple[int, int, int]:
        """How well vectors lie along an axis: by results, then by leaves, then by length."""
        extent, steps = axis
        return (
            sum(step == 1 for step in steps[first_result:]),
            sum(step in (0, 1) for step in steps[:first_result]),
            typical(extent),
        )

    innermost = axes.pop(max(range(len(axes)), key=lambda at: fitness(axes[at])))
    axes.sort(
        key=lambda axis: tuple(
            -abs(typical(step)) for step in (*axis[1][first_result:], *axis[1][:first_result])
        )
    )
    merged = [innermost]
    for extent, steps in reversed(axes):
        inner_extent, inner_steps = merged[0]
        if all(is_same(step, inner * inner_extent) for step, inner in zip(steps, inner_steps, strict=True)):
            merged[0] = (extent * inner_extent, inner_steps)
        else:
            merged.insert(0, (extent, steps))
    return merged


def _in_words(axes: list[Axis], itemsize: int) -> tuple[list[Axis], int]:
    """The axes of a copy and its elements' bytes, neighbours taken together up to 4 bytes."""
    while itemsize < 4:
        *outer, (extent, steps) = axes
        if extent % 2 or set(steps) != {1} or any(step % 2 for _, other in outer for step in other):
            break
        halved = [(count, tuple(step // 2 for step in other)) for count, other in outer]
        axes, itemsize = [*halved, (extent // 2, steps)], 2 * itemsize
    return axes, itemsize


def chunk_elements(elements: int, seconds: float, threads: int) -> int:
    """How many elements a chunk should have."""
    wanted = min(_CHUNK_SECONDS, max(_LEAST_CHUNK_SECONDS, seconds / (threads * _CHUNKS_PER_THREAD)))
    return max(1, int(elements * min(1.0, wanted / seconds)))


def split(extents: Sequence[int], target: int, unit: int) -> tuple[int, int]:
    """The axis that chunks divide, and how much of it a chunk has: of the last axis a multiple of `unit`."""
    inner = 1
    for axis in range(len(extents) - 1, -1, -1):
        if inner * extents[axis] > target or axis == 0:
            piece = min(max(1, target // inner), extents[axis])
            if axis == len(extents) - 1:
                piece = min(-(-piece // unit) * unit, extents[axis])
            else:
                # Pieces of the same size.
                piece = -(-extents[axis] // -(-extents[axis] // piece))
            return axis, piece
        inner *= extents[axis]
    raise AssertionError("there is an axis")


def offsets(extents: Sequence[int], strides: Sequence[int], last: Array) -> Array:
    """Offsets of all indices of some axes plus those of a last one, in C order."""
    result = np.zeros(1, np.int64)
    for extent, stride in zip(extents, strides, strict=True):
        result = (result[:, None] + np.arange(extent, dtype=np.int64) * stride).reshape(-1)
    return (result[:, None] + last).reshape(-1)


def _touched(extents: Sequence[int], walk: Walk) -> int:
    """Elements of an operand that are read or written at least once."""
    return math.prod(extent for extent, stride in zip(extents, walk.strides, strict=True) if stride)
