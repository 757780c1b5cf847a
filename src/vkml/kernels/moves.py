"""Kernels that move slices as they are, from places that data picks or to such: gathers and scatters.

What a thread moves at a time is a unit: 16 bytes where slices begin and end at multiples of these and lie in
one piece, else 8 or 4 bytes, else an element. Of many units a thread moves several: all that it reads is
under way before it writes the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from vkml.dataclasses import dataclass
from vkml.ir.size import is_multiple, typical
from vkml.kernels.reduce import index_function
from vkml.kernels.views import View
from vkml.kernels.writer import NEEDS, KernelWriter, storage_type

if TYPE_CHECKING:
    from vkml.lowering.vulkan_builder import VulkanBuilder

WORKGROUP = 128
_WORD = 4
TOGETHER = 4
"""Units that a thread moves, of many."""
MANY = 1 << 20
"""Units from which on they are: on a GPU of 132 multiprocessors, 2048 threads of each have some then."""


@dataclass(frozen=True)
class Unit:
    """What a thread moves at a time."""

    elements: int
    words: int
    """Of 4 bytes; 0: it is an element of the operands' own type."""

    def read(self, writer: KernelWriter, view: View) -> str:
        """A pointer to units that are read."""
        return writer.read(view, **self._pointed(writer, view))

    def write(self, writer: KernelWriter, view: View) -> str:
        """A pointer to units that are written."""
        return writer.write(view, **self._pointed(writer, view))

    def _pointed(self, writer: KernelWriter, view: View) -> dict[str, Any]:
        if not self.words:
            return {}
        # What a device takes does not hang on how slices lie.
        writer.need(*NEEDS.get(view.dtype, ()))
        return {"width": self.words, "reinterpreted_as": "uint"}

    def type_of(self, view: View) -> str:
        """Slang's name for it."""
        if not self.words:
            return storage_type(view.dtype)
        return f"vector<uint, {self.words}>" if self.words > 1 else "uint"

    def steps(self, strides: Iterable[int]) -> tuple[int, ...]:
        """Strides, in units, along axes between which units do not reach."""
        return tuple(stride // self.elements for stride in strides)

    def index_function(
        self, writer: KernelWriter, name: str, sizes: tuple[int, ...], strides: tuple[int, ...]
    ) -> None:
        """As the function `index_function`, over a slice that is counted in units."""
        if self.elements > 1:
            sizes = (*sizes[:-1], sizes[-1] // self.elements)
            strides = (*self.steps(strides[:-1]), 1)
        index_function(writer, name, sizes, [strides])


def unit_of(
    views: Sequence[View], sizes: tuple[int, ...], inner: Sequence[tuple[int, ...]], others: Iterable[int]
) -> Unit:
    """The widest unit of slices.

    Args:
        views: the operands, of one type.
        sizes: a slice's, collapsed for all operands together.
        inner: the operands' strides over it.
        others: strides along all other axes.
    """
    itemsize = views[0].itemsize
    starts = [view.offset for view in views]
    within = [step for strides in inner for step in strides[:-1]]
    is_one_piece = all(strides[-1] == 1 for strides in inner)
    counts = (sizes[-1], *starts, *within, *others)
    for bytes_ in (4 * _WORD, 2 * _WORD, _WORD):
        elements = bytes_ // itemsize
        if elements and is_one_piece and all(is_multiple(count, elements) for count in counts):
            return Unit(elements, bytes_ // _WORD)
    return Unit(1, 0)


def launch_moves(
    build: VulkanBuilder,
    writer: KernelWriter,
    label: str,
    unit: Unit,
    operands: tuple[View, View],
    total: int,
    variant: str,
) -> None:
    """Emits a kernel that moves units.

    Args:
        build: where the launch goes.
        writer: has ``int source_at(int item)`` and ``int target_at(int item)``, a unit's places in both
            operands, counted in units; one whose second place is negative is left out.
        label: for profilers.
        unit: what is moved.
        operands: what is read, and what is written.
        total: how many units.
        variant: for people.
    """
    if not total:
        return
    source, sink = unit.read(writer, operands[0]), unit.write(writer, operands[1])
    together = TOGETHER if typical(total) >= MANY else 1
    writer.constant(total, "TOTAL")
    across, high = writer.grid(-(-total // (WORKGROUP * together)), build.target.max_groups)
    writer.text(
        f"""
[shader("compute")] [numthreads({WORKGROUP}, 1, 1)]
void main(uint3 group : SV_GroupID, uint thread : SV_GroupIndex)
{{
    int first = int((group.x + group.y * ACROSS) * {WORKGROUP * together} + thread);
    if (first >= TOTAL) return;
    int sources[{together}];
    int targets[{together}];
    {unit.type_of(operands[0])} found[{together}];
    [ForceUnroll] for (int i = 0; i < {together}; ++i)
    {{
        int item = min(first + i * {WORKGROUP}, TOTAL - 1);
        sources[i] = source_at(item);
        targets[i] = target_at(item);
    }}
    [ForceUnroll] for (int i = 0; i < {together}; ++i)
        found[i] = {source}[sources[i]];
    [ForceUnroll] for (int i = 0; i < {together}; ++i)
    {{
        if (first + i * {WORKGROUP} < TOTAL && targets[i] >= 0)
            {sink}[targets[i]] = found[i];
    }}
}}
"""
    )
    size = f"{unit.words * _WORD} bytes" if unit.words else "an element"
    many = f"{size} a thread" if together == 1 else f"{together} times {size} a thread"
    build.emit(writer.finish(label, (across, high, 1), variant=f"{variant}, {many}" if variant else many))
