"""Which outputs of a program may be written over an input: donation."""

from __future__ import annotations

from collections import defaultdict

from vkml.kernels.spec import Dispatch
from vkml.kernels.views import Buffer, View
from vkml.lowering.plan import VulkanProgram


def donations(program: VulkanProgram) -> frozenset[tuple[str, str]]:
    """Inputs and outputs that may lie at one address, both being of one type and shape.

    They may where all that reads the input has run before anything writes the output, or where an elementwise
    launch reads each element in the place in which it writes it.
    """
    reads: dict[Buffer, list[tuple[int, Dispatch, View]]] = defaultdict(list)
    writes: dict[Buffer, list[tuple[int, Dispatch, View]]] = defaultdict(list)
    for number, level in enumerate(program.levels):
        for dispatch in level:
            for view in dispatch.reads:
                reads[view.buffer].append((number, dispatch, view))
            for view in dispatch.writes:
                writes[view.buffer].append((number, dispatch, view))
    found = set()
    for name, read in program.inputs.items():
        for output, written in program.outputs.items():
            if (read.dtype, read.shape) != (written.dtype, written.shape):
                continue
            first = min((number for number, _, _ in writes[written.buffer]), default=-1)
            late = [(d, view) for number, d, view in reads[read.buffer] if number >= first]
            if first >= 0 and all(_is_in_place(d, view, writes[written.buffer]) for d, view in late):
                found.add((name, output))
    return frozenset(found)


def _is_in_place(dispatch: Dispatch, read: View, writes: list[tuple[int, Dispatch, View]]) -> bool:
    """Whether a launch is the only one to write a buffer, and reads each element where it writes it."""
    if not dispatch.kernel.is_elementwise or len(writes) != 1:
        return False
    [(_, writer, written)] = writes
    return writer is dispatch and (read.dtype, read.shape, read.strides, read.offset) == (
        written.dtype,
        written.shape,
        written.strides,
        written.offset,
    )
