"""Checks a schedule and a memory plan by brute force: every pair of accesses, byte by byte."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from vkml.kernels.views import Buffer, BufferKind, View
from vkml.lowering.schedule import Access


@dataclass(eq=False)
class Step:
    """The least that can be scheduled: what is read and what is written."""

    reads: tuple[View, ...] = ()
    writes: tuple[View, ...] = ()


def touched(view: View) -> frozenset[int]:
    """Every byte of its buffer that a view touches, found from its strides alone."""
    places = np.full((), view.offset, np.int64)
    for size, stride in zip(view.shape, view.strides, strict=True):
        places = places[..., None] + np.arange(size) * stride
    first = np.unique(places) * view.itemsize
    return frozenset((first[:, None] + np.arange(view.itemsize)).reshape(-1).tolist())


@dataclass
class _Touched:
    """The bytes of each buffer that one dispatch reads and writes."""

    reads: dict[Buffer, set[int]] = field(default_factory=dict)
    writes: dict[Buffer, set[int]] = field(default_factory=dict)


def _touched_by(dispatch: Access) -> _Touched:
    found = _Touched()
    for views, into in ((dispatch.reads, found.reads), (dispatch.writes, found.writes)):
        for view in views:
            into.setdefault(view.buffer, set()).update(touched(view))
    return found


def _meet(a: Mapping[Buffer, set[int]], b: Mapping[Buffer, set[int]]) -> bool:
    return any(buffer in b and not places.isdisjoint(b[buffer]) for buffer, places in a.items())


def broken_dependencies(dispatches: Sequence[Access], levels: Sequence[Sequence[Access]]) -> list[str]:
    """Every pair that the levels do not keep in the order in which `dispatches` state them.

    Args:
        dispatches: in the order of their program.
        levels: what `schedule` made of them.
    """
    level_of = {id(dispatch): number for number, level in enumerate(levels) for dispatch in level}
    assert sorted(map(id, dispatches)) == sorted(id(d) for level in levels for d in level)
    seen = [_touched_by(dispatch) for dispatch in dispatches]
    broken = []
    for late, mine in enumerate(seen):
        for early in range(late):
            other = seen[early]
            kinds = {
                "read after write": _meet(other.writes, mine.reads),
                "write after read": _meet(other.reads, mine.writes),
                "write after write": _meet(other.writes, mine.writes),
            }
            if level_of[id(dispatches[early])] >= level_of[id(dispatches[late])]:
                broken += [f"{kind}: {early} before {late}" for kind, is_there in kinds.items() if is_there]
    return broken


def broken_values(
    dispatches: Sequence[Access], levels: Sequence[Sequence[Access]], offsets: Mapping[Buffer, int]
) -> list[str]:
    """Replays the levels on planned memory: reads that would not see the bytes that the program states.

    Within a level any order is possible, so no byte of memory may be written there and touched by another
    dispatch of the level.

    Args:
        dispatches: in the order of their program.
        levels: what `schedule` made of them.
        offsets: of activations, from `plan_memory`; every other buffer has memory of its own.
    """

    def places(accessed: Mapping[Buffer, set[int]]) -> set[tuple[int, int]]:
        return {
            (0, offsets[buffer] + at) if buffer.kind is BufferKind.ACTIVATION else (1 + buffer.serial, at)
            for buffer, bytes_ in accessed.items()
            for at in bytes_
        }

    number = {id(dispatch): index for index, dispatch in enumerate(dispatches)}
    seen = [_touched_by(dispatch) for dispatch in dispatches]
    stated: list[dict[tuple[Buffer, int], int]] = []
    writers: dict[tuple[Buffer, int], int] = {}
    for index, mine in enumerate(seen):
        reads = {(buffer, at) for buffer, bytes_ in mine.reads.items() for at in bytes_}
        stated.append({place: writers[place] for place in reads if place in writers})
        writers.update({(buffer, at): index for buffer, bytes_ in mine.writes.items() for at in bytes_})
    broken = []
    memory: dict[tuple[int, int], int] = {}
    for level in levels:
        indices = [number[id(dispatch)] for dispatch in level]
        for index in indices:
            for (buffer, at), writer in stated[index].items():
                [place] = places({buffer: {at}})
                if memory.get(place) != writer:
                    broken.append(f"{index} reads byte {at} of {buffer}: {memory.get(place)}, not {writer}")
        written = {index: places(seen[index].writes) for index in indices}
        read = {index: places(seen[index].reads) for index in indices}
        for index in indices:
            for other in indices:
                if index != other and not written[index].isdisjoint(written[other] | read[other]):
                    broken.append(f"{index} writes where {other} of the same level works")
            memory.update(dict.fromkeys(written[index], index))
    return broken


def overlaps(
    levels: Sequence[Sequence[Access]], offsets: Mapping[Buffer, int], size: int, guard_bytes: int = 0
) -> list[str]:
    """Pairs of activations that are alive in one level and share a byte (or a guard), and those outside."""
    alive: dict[Buffer, set[int]] = {}
    for number, level in enumerate(levels):
        for dispatch in level:
            for view in (*dispatch.reads, *dispatch.writes):
                if view.buffer.kind is BufferKind.ACTIVATION:
                    alive.setdefault(view.buffer, set()).add(number)
    lives = {buffer: (min(found), max(found)) for buffer, found in alive.items()}
    assert set(lives) == set(offsets)
    broken = []
    for buffer in lives:
        start, end = offsets[buffer] - guard_bytes, offsets[buffer] + buffer.bytes + guard_bytes
        if start < 0 or end > size:
            broken.append(f"{buffer} at {start} … {end} of {size}")
    buffers = list(lives)
    for at, one in enumerate(buffers):
        for other in buffers[:at]:
            (first, last), (first_2, last_2) = lives[one], lives[other]
            lives_meet = not set(range(first, last + 1)).isdisjoint(range(first_2, last_2 + 1))
            low, high = offsets[one], offsets[one] + one.bytes
            low_2, high_2 = offsets[other], offsets[other] + other.bytes
            if lives_meet and max(low, low_2) < min(high, high_2):
                broken.append(f"{one} at {low} … {high} and {other} at {low_2} … {high_2}")
            elif guard_bytes and low < high_2 + guard_bytes and low_2 < high + guard_bytes:
                broken.append(f"{one} and {other} have no guard between them")
    return broken
