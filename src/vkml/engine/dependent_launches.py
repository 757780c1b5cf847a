"""Which launches of a program wait for those before them by themselves, and for how many workgroups."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from vkml.dataclasses import dataclass
from vkml.engine.launches import Launches
from vkml.kernels.dependent_launch import (
    FIRST_LINE,
    LINE_BYTES,
    MOST_LINES,
    MOST_WORKGROUPS,
    NEEDS,
    Dependency,
    dependent,
    is_offered,
)
from vkml.kernels.spec import KernelSpec
from vkml.lowering.plan import VulkanProgram

if TYPE_CHECKING:
    from vkml.vulkan import Device, Memory

MOST_WAITING = 300
"""Workgroups that may wait behind a level that runs: they are placed already, and poll. More are behind a
barrier."""
LEAST_LEVELS = 2
"""Of a chain."""


def chains(workgroups: Sequence[int], most_waiting: int) -> Iterator[range]:
    """Levels that follow each other without barriers, in chains that each begin behind one.

    Args:
        workgroups: of each level; 0 of those that take no part.
        most_waiting: workgroups of a chain, but for its first level's.
    """
    start = 0
    while start < len(workgroups):
        end, waiting = start + 1, 0
        while workgroups[start] and end < len(workgroups) and workgroups[end]:
            waiting += workgroups[end]
            if waiting > most_waiting:
                break
            end += 1
        if end - start >= LEAST_LEVELS:
            yield range(start, end)
        start = end


@dataclass(frozen=True)
class Order:
    """Who waits for whom in a program's run."""

    joined: frozenset[int]
    """Levels before which there is no barrier."""
    launches: tuple[tuple[int, int, int], ...]
    """Of each launch of a chain where the words of its `Dependency` are, and two of these: how many
    workgroups it awaits, and its lines."""

    def dependencies(self, counters: Memory | None) -> Iterator[tuple[int, Dependency]]:
        """What launches are told, and where; there are no counters where none waits."""
        if counters is not None:
            for at, awaited, lines in self.launches:
                yield at, Dependency(counters.address, awaited, lines)


BARRIERS = Order(frozenset(), ())
"""Nobody waits: there are barriers between all levels."""


class DependentLaunches:
    """The launches of a program that can wait for others by themselves.

    Args:
        program: it.
        device: that runs it.
        memory_limit: see `Device.allocate`.
    """

    def __init__(self, program: VulkanProgram, device: Device, memory_limit: float | None) -> None:
        self._device = device
        self._memory_limit = memory_limit
        self._bytes = (FIRST_LINE + len(program.levels)) * LINE_BYTES
        self._known: tuple[Sequence[int], Order] | None = None
        """Numbers of workgroups, and the order with these."""
        self.kernels: dict[int, KernelSpec] = {}
        """What is compiled in the place of kernels, by the identity of these."""
        if self._is_possible(program):
            self._find_kernels(program)
        self.is_wanted = bool(self.kernels)
        """Whether launches are to wait by themselves."""

    def _is_possible(self, program: VulkanProgram) -> bool:
        info = self._device.info
        found = frozenset(need for need in NEEDS if getattr(info.capabilities, need))
        has_lines = LEAST_LEVELS <= len(program.levels) <= MOST_LINES - FIRST_LINE
        return is_offered(found, info.is_software) and has_lines

    def _find_kernels(self, program: VulkanProgram) -> None:
        room = self._device.info.limits.push_constant_bytes
        for launch in program.dispatches:
            kernel = launch.kernel
            if kernel.push_bytes and id(kernel) not in self.kernels:
                made = dependent(kernel)
                if made.push_bytes <= room:
                    self.kernels[id(kernel)] = made

    def begun(self, counters: Memory | None, complaints: int) -> Memory | None:
        """Counters of one binding, all of them 0; None where no launch waits by itself.

        Args:
            counters: what a binding had that is recorded anew, and nothing uses now; else None.
            complaints: address of two words, which a workgroup writes that has waited in vain.
        """
        if not self.is_wanted:
            return None
        from vkml.vulkan import MemoryKind

        device = self._device
        if counters is None:
            label = "counters of workgroups"
            counters = device.allocate(self._bytes, MemoryKind.DEVICE, label, self._memory_limit)
        device.upload(counters, 0, struct.pack("<Q", complaints).ljust(self._bytes, b"\0"))
        return counters

    def order(self, launches: Launches, grids: Sequence[int]) -> Order:
        """Who waits for whom, with these numbers of workgroups, three for each launch."""
        if self._known is None or self._known[0] != grids:
            self._known = grids, _order(launches, grids)
        return self._known[1]


def _order(launches: Launches, grids: Sequence[int]) -> Order:
    workgroups, first = [], 0
    for places in launches.dependencies:
        grid = grids[3 * first : 3 * (first + len(places))]
        first += len(places)
        count = sum(x * y * z for x, y, z in zip(grid[::3], grid[1::3], grid[2::3], strict=True))
        workgroups.append(0 if None in places or count > MOST_WORKGROUPS else count)
    joined: list[int] = []
    found: list[tuple[int, int, int]] = []
    for levels in chains(workgroups, MOST_WAITING):
        joined += levels[1:]
        for number, level in enumerate(levels):
            awaited = workgroups[level - 1] if number else 0
            lines = FIRST_LINE + level | (workgroups[level] << 16 if level == levels[-1] else 0)
            found += [(at, awaited, lines) for at in launches.dependencies[level] if at is not None]
    return Order(frozenset(joined), tuple(found))
