"""The offline memory plan: lifetimes → offsets in one arena."""

from __future__ import annotations

import bisect
import heapq
from collections import defaultdict
from collections.abc import Mapping, Sequence

from vkml.dataclasses import dataclass
from vkml.kernels.views import Buffer, BufferKind
from vkml.lowering.schedule import Access

ALIGNMENT = 256
"""Of every buffer: enough for 16-byte accesses everywhere and for cache lines of all known GPUs."""
MOST_PAIRS = 2_000_000
"""Pairs of buffers alive at the same time that a plan looks at: half a second."""


@dataclass(frozen=True)
class _Lifetime:
    buffer: Buffer
    first: int
    last: int
    bytes: int


@dataclass(frozen=True)
class _Size:
    """The key of buffers that are kept apart by no more than their size."""

    bytes: int


def plan_memory(
    levels: Sequence[Sequence[Access]],
    guard_bytes: int = 0,
    apart: Mapping[Buffer, object] | None = None,
    needs: Mapping[Buffer, int] | None = None,
) -> tuple[dict[Buffer, int], int]:
    """Offsets of all activation buffers such that those alive at the same time do not overlap.

    Lifetimes are counted in levels, so dispatches of one level never wait for one another because of memory.
    Buffers are placed from the largest down, each into the smallest gap it fits (greedy by size).

    Args:
        levels: dispatches in order of execution.
        guard_bytes: bytes left free round each buffer, for tests that look for writes out of bounds.
        apart: buffers that share memory only with others of an equal key; they come first in the arena.
        needs: bytes of buffers, where their own sizes are open.

    Returns:
        Offset of each buffer and the arena's size in bytes.
    """
    lifetimes = _lifetimes(levels, needs)
    if guard_bytes:
        return _place_guarded(lifetimes, guard_bytes)
    keys: dict[Buffer, object] = dict(apart or {})
    for life in _crowded([life for life in lifetimes if life.buffer not in keys]):
        keys[life.buffer] = _Size(_align(life.bytes))
    offsets, base = _place_apart([life for life in lifetimes if life.buffer in keys], keys)
    others = [life for life in lifetimes if life.buffer not in keys]
    size = base
    neighbours = _neighbours(others)
    for life in sorted(others, key=lambda life: (-life.bytes, life.first)):
        need = _align(life.bytes)
        taken = sorted(
            (offsets[other.buffer], offsets[other.buffer] + _align(other.bytes))
            for other in neighbours[life.buffer]
            if other.buffer in offsets
        )
        offset = _best_gap([(0, base), *taken], need)
        offsets[life.buffer] = offset
        size = max(size, offset + need)
    return offsets, size


def _place_guarded(lifetimes: Sequence[_Lifetime], guard_bytes: int) -> tuple[dict[Buffer, int], int]:
    """Offsets of buffers none of which shares memory with another."""
    offsets, size = {}, 0
    for life in lifetimes:
        offsets[life.buffer] = size + guard_bytes
        size += _align(life.bytes + 2 * guard_bytes)
    return offsets, size


def _place_apart(
    lifetimes: Sequence[_Lifetime], keys: Mapping[Buffer, object]
) -> tuple[dict[Buffer, int], int]:
    """Offsets of buffers that share memory only with buffers of an equal key, and so of the same size."""
    offsets: dict[Buffer, int] = {}
    slots: dict[object, list[tuple[int, int]]] = defaultdict(list)
    """A heap for each key: last use and offset of each slot."""
    size = 0
    for life in sorted(lifetimes, key=lambda life: life.first):
        mine = slots[keys[life.buffer]]
        if mine and mine[0][0] < life.first:
            offset = heapq.heapreplace(mine, (life.last, mine[0][1]))[1]
        else:
            offset = size
            heapq.heappush(mine, (life.last, offset))
            size += _align(life.bytes)
        offsets[life.buffer] = offset
    return offsets, size


def _crowded(lifetimes: Sequence[_Lifetime]) -> list[_Lifetime]:
    """Those alive beside so many others that to look through these for each would take too long.

    None of a usual model: up to 1400 buffers may all be alive at once, of 100,000 each beside 20 others.
    """
    most = MOST_PAIRS // max(1, len(lifetimes))
    if len(lifetimes) <= most:
        return []
    starts, ends = sorted(life.first for life in lifetimes), sorted(life.last for life in lifetimes)
    return [
        life
        for life in lifetimes
        if bisect.bisect_right(starts, life.last) - bisect.bisect_left(ends, life.first) > most
    ]


def _neighbours(lifetimes: Sequence[_Lifetime]) -> dict[Buffer, list[_Lifetime]]:
    """Buffer → those alive in one of the levels in which it is."""
    found: dict[Buffer, list[_Lifetime]] = {life.buffer: [] for life in lifetimes}
    alive: list[_Lifetime] = []
    for life in sorted(lifetimes, key=lambda life: life.first):
        alive = [other for other in alive if other.last >= life.first]
        for other in alive:
            found[other.buffer].append(life)
            found[life.buffer].append(other)
        alive.append(life)
    return found


def _lifetimes(levels: Sequence[Sequence[Access]], needs: Mapping[Buffer, int] | None) -> list[_Lifetime]:
    first: dict[Buffer, int] = {}
    last: dict[Buffer, int] = {}
    for level, dispatches in enumerate(levels):
        for dispatch in dispatches:
            for view in (*dispatch.reads, *dispatch.writes):
                if view.buffer.kind is BufferKind.ACTIVATION:
                    first.setdefault(view.buffer, level)
                    last[view.buffer] = level
    return [
        _Lifetime(buffer, first[buffer], last[buffer], buffer.bytes if needs is None else needs[buffer])
        for buffer in first
    ]


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
