"""What a program is bound to: memory of its buffers, and commands for certain sizes and addresses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from vkml.dataclasses import dataclass
from vkml.kernels.views import Buffer

if TYPE_CHECKING:
    from vkml.engine.fetching import Fetch
    from vkml.engine.host_reads import HostReads
    from vkml.vulkan import CommandBuffer, Memory, Submission

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Memories:
    """Memory of a program's buffers, for sizes up to a capacity."""

    bytes: dict[Buffer, int]
    rooms: list[tuple[int, int]]
    """Of each buffer of open size, the position of its size among the computed numbers, and its room."""
    addresses: dict[Buffer, int]
    words: list[int]
    """Of all push constants, but for what hangs on open sizes; none where there are tables of tensors, which
    each binding has elsewhere."""
    inputs: dict[Buffer, int]
    outputs: dict[Buffer, int]
    copied: dict[Buffer, int]
    input_memory: Memory | None
    staging: Memory | None
    output_memory: Memory
    copied_memory: Memory | None
    arena: Memory | None
    offsets: dict[Buffer, int]
    """Of activations in the arena."""
    fetched: frozenset[Buffer]
    """Outputs that are copied into memory of the results themselves, run by run."""

    @property
    def all(self) -> list[Memory]:
        found = (self.input_memory, self.staging, self.output_memory, self.copied_memory, self.arena)
        return [memory for memory in found if memory is not None]


Addresses = tuple[tuple[Buffer, int], ...]
"""Inputs and outputs of a program that lie outside of its own memory, and where."""
Key = tuple[tuple[int, ...], Addresses]
"""Values of open sizes, and where values from outside lie."""


@dataclass(eq=False)
class Binding:
    """A program for certain sizes and addresses: commands recorded, and where the host writes and reads."""

    key: Key
    numbers: tuple[int, ...]
    commands: CommandBuffer
    submission: Submission
    input_views: list[Array]
    output_views: list[Array]
    """In the host's memory; of values that lie elsewhere there is none, and something else stands here."""
    fetches: list[Fetch]
    """Outputs to fetch behind each run, from `copied_memory`."""
    sizes: list[tuple[Array, Array]]
    """Where numbers that kernels read are to be written, and these."""
    tables: Memory | None = None
    """What launches over several tensors read of them."""
    reads: HostReads | None = None
    """Runs of it in which the device reads arrays of the host itself."""
    is_recorded: bool = True
    """Whether the commands are still those of this binding."""

    def free(self) -> None:
        """Frees the commands, which must not be running."""
        self.is_recorded = False
        if self.reads is not None:
            self.reads.free()
            self.reads = None
        self.submission.free()
        if self.tables is not None:
            self.tables.free()
            self.tables = None
        self.commands.free()
        self.input_views, self.output_views, self.sizes = [], [], []
