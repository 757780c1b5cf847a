"""A lowered run of nodes: dispatches in levels over planned buffers, ready to be recorded."""

from __future__ import annotations

from collections.abc import Sequence

from vkml.dataclasses import dataclass
from vkml.ir.size import Sizes
from vkml.ir.size_terms import Symbol
from vkml.kernels.horizontal import LaunchTable
from vkml.kernels.spec import Dispatch
from vkml.kernels.views import Buffer, View


@dataclass(eq=False)
class VulkanProgram:
    """A lowered run of nodes: levels of independent dispatches with a barrier between levels."""

    levels: list[list[Dispatch]]
    buffers: list[Buffer]
    inputs: dict[str, View]
    outputs: dict[str, View]
    offsets: dict[Buffer, int]
    """Of activation buffers, in the activation arena; none where sizes are open."""
    arena_bytes: int
    status: Buffer
    uses_status: bool = False
    error_labels: Sequence[str] = ()
    """Labels of the nodes that may write the status word; a node writes its position here plus one."""
    symbols: tuple[Symbol, ...] = ()
    """The sizes that are open: what a launch is given of them is bound before it runs."""
    sizes: Sizes | None = None
    """These, and what has been decided about them: the program is for values for which that holds."""

    @property
    def tables(self) -> list[LaunchTable]:
        """Of launches over several tensors."""
        return [dispatch.table for dispatch in self.dispatches if dispatch.table is not None]

    @property
    def single_levels(self) -> list[list[Dispatch]]:
        """The levels with a launch for each tensor."""
        return [[each for launch in level for each in launch.members or (launch,)] for level in self.levels]

    @property
    def separate_levels(self) -> list[list[Dispatch]]:
        """The levels as they would be with a launch for each tensor, and without phases."""
        levels = [
            phase for level in self.levels for launch in level[:1] for phase in launch.phases or (level,)
        ]
        return [[each for launch in level for each in launch.members or (launch,)] for level in levels]

    @property
    def dispatches(self) -> list[Dispatch]:
        return [dispatch for level in self.levels for dispatch in level]
