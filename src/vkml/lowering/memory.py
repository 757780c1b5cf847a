"""The offline memory plan: lifetimes → offsets in one arena."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vkml.kernels.views import Buffer, BufferKind
from vkml.lowering.schedule import Access

ALIGNMENT = 256
"""Of every buffer: enough for 16-byte accesses everywhere and for cache lines of all known GPUs."""


@dataclass(frozen=True)
class _Lifetime:
    buffer: Buffer
    first: int
    last: int


def plan_memory(
    levels: Sequence[Sequence[Access]], guard_bytes: int = 0, apart: Mapping[Buffer, object] | None = None
) -> tuple[dict[Buffer, int], int]:
    """Offsets of all activation buffers such that those alive at the same time do not overlap.

    Lifetimes are counted in levels, so dispatches of one level never wait for one another because of memory.
    Buffers are placed from the largest down, each into the smallest gap it fits (greedy by size).

    Args:
        levels: dispatches in order of execution.
        guard_bytes: bytes left free round each buffer, for tests that look for writes out of bounds.
        apart: buffers that share memory only with others of an equal key; they come first in the arena.

    Returns:
        Offset of each buffer and the arena's size in bytes.
    """
    placed: list[tuple[_Lifetime, int]] = []
    lifetimes = _lifetimes(levels)
    offsets, base = _place_apart([life for life in lifetimes if apart and life.buffer in apart], apart or {})
    size = base
    for life in sorted(
        (life for life in lifetimes if life.buffer not in offsets),
        key=lambda life: (-life.buffer.bytes, life.first),
    ):
        need = _align(life.buffer.bytes + 2 * guard_bytes)
        if guard_bytes:
            offset = size  # guarded buffers are never shared
        else:
            taken = sorted(
                (at, at + _align(other.buffer.bytes))
                for other, at in placed
                if other.first <= life.last and life.first <= other.last
            )
            offset = max(base, _best_gap([(0, base), *taken], need))
        placed.append((life, offset))
        offsets[life.buffer] = offset + guard_bytes
        size = max(size, offset + need)
    return offsets, size


def _place_apart(
    lifetimes: Sequence[_Lifetime], keys: Mapping[Buffer, object]
) -> tuple[dict[Buffer, int], int]:
    """Offsets of buffers that keep something in memory between runs, which only their like leave alone."""
    offsets: dict[Buffer, int] = {}
    rooms: dict[object, list[tuple[int, int]]] = defaultdict(list)
    """Offset and last use of each room of a key."""
    size = 0
    for life in sorted(lifetimes, key=lambda life: life.first):
        mine = rooms[keys[life.buffer]]
        for number, (offset, last) in enumerate(mine):
            if last < life.first:
                mine[number] = (offset, life.last)
                break
        else:
            offset = size
            mine.append((offset, life.last))
            size += _align(life.buffer.bytes)
        offsets[life.buffer] = offset
    return offsets, size


def _lifetimes(levels: Sequence[Sequence[Access]]) -> list[_Lifetime]:
    first: dict[Buffer, int] = {}
    last: dict[Buffer, int] = {}
    for level, dispatches in enumerate(levels):
        for dispatch in dispatches:
            for view in (*dispatch.reads, *dispatch.writes):
                if view.buffer.kind is BufferKind.ACTIVATION:
                    first.setdefault(view.buffer, level)
                    last[view.buffer] = level
    return [_Lifetime(buffer, first[buffer], last[buffer]) for buffer in first]


def _best_gap(taken: Sequence[tuple[int, int]], need: int) -> int:
    best, best_size, cursor = -1, 0, 0
    for start, end in taken:
        gap = start - cursor
        if gap >= need and (best < 0 or gap < best_size):
            best, best_size = cursor, gap
        cursor = max(cursor, end)
    return cursor if best < 0 else best


def _align(size: int) -> int:
    return max(ALIGNMENT, -(-size // ALIGNMENT) * ALIGNMENT)
