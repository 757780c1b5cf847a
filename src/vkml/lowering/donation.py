"""Donation: outputs of a program that are written over an input."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence

from vkml.ir.size import Size, is_same
from vkml.kernels.spec import Dispatch
from vkml.kernels.views import Buffer, View
from vkml.lowering.plan import VulkanProgram


def donations(program: VulkanProgram) -> frozenset[tuple[str, str]]:
    """Inputs and outputs that may lie at one address, both being of one type and shape.

    They may where all that reads the input has run before anything writes the output, or where a launch reads
    each element in the place in which it writes it.
    """
    reads: dict[Buffer, list[tuple[int, Dispatch, int]]] = defaultdict(list)
    writes: dict[Buffer, list[tuple[int, Dispatch, View]]] = defaultdict(list)
    for number, level in enumerate(program.separate_levels):
        for dispatch in level:
            for at, view in enumerate(dispatch.reads):
                reads[view.buffer].append((number, dispatch, at))
            for view in dispatch.writes:
                writes[view.buffer].append((number, dispatch, view))
    found = set()
    for name, read in program.inputs.items():
        for output, written in program.outputs.items():
            if read.dtype != written.dtype or not _are_same(read.shape, written.shape):
                continue
            first = min((number for number, _, _ in writes[written.buffer]), default=-1)
            late = [(d, at) for number, d, at in reads[read.buffer] if number >= first]
            if first >= 0 and all(_is_in_place(d, at, writes[written.buffer]) for d, at in late):
                found.add((name, output))
    return frozenset(found)


def _is_in_place(dispatch: Dispatch, at: int, writes: list[tuple[int, Dispatch, View]]) -> bool:
    """Whether a launch is the only one to write a buffer, and reads each element where it writes it.

    Args:
        dispatch: the launch.
        at: which of its reads.
        writes: all that write the buffer.
    """
    if at not in dispatch.kernel.in_place or len(writes) != 1:
        return False
    read = dispatch.reads[at]
    [(_, writer, written)] = writes
    if writer is not dispatch or read.dtype != written.dtype or not is_same(read.offset, written.offset):
        return False
    return _are_same(read.shape, written.shape) and _are_same(read.strides, written.strides)


def _are_same(first: Sequence[int | Size], second: Sequence[int | Size]) -> bool:
    """Whether shapes or strides are equal for all values of open sizes."""
    return len(first) == len(second) and all(map(is_same, first, second))


def written_last(launches: Sequence[Dispatch], outputs: Collection[Buffer]) -> list[Dispatch]:
    """Launches in an order in which what is written over an input comes as late as can be.

    Args:
        launches: in an order in which they can run.
        outputs: those that are to be written over an input.

    Returns:
        First all that need none of the launches that write these outputs.
    """
    early: list[Dispatch] = []
    late: list[Dispatch] = []
    made: set[Buffer] = set()
    """What the late ones write."""
    touched: set[Buffer] = set()
    """What they read or write."""
    for launch in launches:
        writes = {view.buffer for view in launch.writes}
        reads = {view.buffer for view in launch.reads}
        if not writes.isdisjoint(outputs) or not reads.isdisjoint(made) or not writes.isdisjoint(touched):
            late.append(launch)
            made |= writes
            touched |= writes | reads
        else:
            early.append(launch)
    return early + late
