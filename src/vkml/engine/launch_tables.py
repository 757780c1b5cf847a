"""Memory for the tables of launches over several tensors: one block a binding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from vkml.kernels.horizontal import LaunchTable
from vkml.kernels.views import Buffer
from vkml.lowering.memory import ALIGNMENT

if TYPE_CHECKING:
    from vkml.vulkan import Device, Memory


class LaunchTables:
    """The tables of a program.

    Args:
        tables: none or more.
        device: that reads them.
        memory_limit: see `Device.allocate`.
    """

    def __init__(self, tables: Sequence[LaunchTable], device: Device, memory_limit: float | None) -> None:
        self._tables = tuple(tables)
        self._device = device
        self._memory_limit = memory_limit
        self._offsets: dict[Buffer, int] = {}
        self._size = 0
        for table in self._tables:
            self._offsets[table.buffer] = self._size
            self._size += -(-table.buffer.bytes // ALIGNMENT) * ALIGNMENT

    def __bool__(self) -> bool:
        return bool(self._tables)

    def allocate(self) -> Memory:
        """Memory for all of them, of one binding; whoever asks frees it."""
        from vkml.vulkan import MemoryKind

        return self._device.allocate(self._size, MemoryKind.DEVICE, "tables of tensors", self._memory_limit)

    def fill(self, memory: Memory, addresses: Mapping[Buffer, int]) -> None:
        """Writes them, for buffers at these addresses; nothing may be reading them."""
        for table in self._tables:
            self._device.upload(memory, self._offsets[table.buffer], table.filled(addresses))

    def addresses(self, memory: Memory) -> dict[Buffer, int]:
        """Where the tables are."""
        return {buffer: memory.address + offset for buffer, offset in self._offsets.items()}
