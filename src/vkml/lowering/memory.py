"""The offline memory plan: lifetimes → offsets in one arena."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vkml.kernels.spec import Dispatch
from vkml.kernels.views import Buffer, BufferKind

ALIGNMENT = 256
"""Of every buffer: enough for 16-byte accesses everywhere and for cache lines of all known GPUs."""


@dataclass(frozen=True)
class _Lifetime:
    buffer: Buffer
    first: int
    last: int


def plan_memory(levels: Sequence[Sequence[Dispatch]], guard_bytes: int = 0) -> tuple[dict[Buffer, int], int]:
    """Offsets of all activation buffers such that those alive at the same time do not overlap.

    Lifetimes are counted in levels, so dispatches of one level never wait for one another because of memory.
    Buffers are placed from the largest down, each into the smallest gap it fits (greedy by size).

    Args:
        levels: dispatches in order of execution.
        guard_bytes: bytes left free round each buffer, for tests that look for writes out of bounds.

    Returns:
        Offset of each buffer and the arena's size in bytes.
    """
    placed: list[tuple[_Lifetime, int]] = []
    offsets: dict[Buffer, int] = {}
    size = 0
    for life in sorted(_lifetimes(levels), key=lambda life: (-life.buffer.bytes, life.first)):
        need = _align(life.buffer.bytes + 2 * guard_bytes)
        if guard_bytes:
            offset = size  # guarded buffers are never shared
        else:
            taken = sorted(
                (at, at + _align(other.buffer.bytes))
                for other, at in placed
                if other.first <= life.last and life.first <= other.last
            )
            offset = _best_gap(taken, need)
        placed.append((life, offset))
        offsets[life.buffer] = offset + guard_bytes
        size = max(size, offset + need)
    return offsets, size


def _lifetimes(levels: Sequence[Sequence[Dispatch]]) -> list[_Lifetime]:
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
