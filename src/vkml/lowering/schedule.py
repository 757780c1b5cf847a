"""Puts dispatches into levels: within a level nothing depends on anything, one barrier between levels."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Protocol, TypeVar

from vkml.kernels.views import Buffer, View


class Access(Protocol):
    """Anything that reads and writes views."""

    @property
    def reads(self) -> tuple[View, ...]: ...

    @property
    def writes(self) -> tuple[View, ...]: ...


D = TypeVar("D", bound=Access)


def schedule(dispatches: Sequence[D]) -> list[list[D]]:
    """The dispatches, each in the earliest level its true dependencies allow.

    A barrier costs 1.7 µs on an H200, a dispatch without one 0.17 µs, so fewer levels is the aim.
    """
    writers: dict[Buffer, list[tuple[tuple[int, int], int]]] = defaultdict(list)
    readers: dict[Buffer, list[tuple[tuple[int, int], int]]] = defaultdict(list)
    levels: list[list[D]] = []
    for dispatch in dispatches:
        level = 0
        for view in dispatch.reads:
            level = max(level, _after(writers[view.buffer], view))
        for view in dispatch.writes:
            level = max(level, _after(writers[view.buffer], view), _after(readers[view.buffer], view))
        while len(levels) <= level:
            levels.append([])
        levels[level].append(dispatch)
        for view in dispatch.reads:
            readers[view.buffer].append((view.byte_range(), level))
        for view in dispatch.writes:
            writers[view.buffer].append((view.byte_range(), level))
    return levels


def _after(accesses: Sequence[tuple[tuple[int, int], int]], view: View) -> int:
    low, high = view.byte_range()
    return max((level + 1 for (start, end), level in accesses if start < high and low < end), default=0)
