"""Nodes → recorded machine code: one step of a program for the CPU."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vkml.cpu.functions import ffi
from vkml.cpu.memory import MemoryBudget, amount
from vkml.cpu.native.executable import InstructionSet
from vkml.cpu.native.replay import Recording
from vkml.cpu.pool import WorkerPool
from vkml.errors import IndexOutOfRange, OutOfMemory
from vkml.ir import Constant, Node, TensorType, find
from vkml.ir.lowering import CannotLower
from vkml.kernels.views import Buffer, BufferKind, View
from vkml.lowering.memory import plan_memory
from vkml.lowering.native_builder import NativeBuilder, NativeDispatch
from vkml.lowering.native_layout import Border, Layouts
from vkml.lowering.schedule import schedule
from vkml.lowering.vulkan import lower_one, place_concatenations, view_of
from vkml.passes.fuse import members

Array = np.ndarray[Any, Any]

COPIED_BYTES = 16384
"""Inputs and outputs up to here have a place in the arena and are copied; larger ones are used in place."""


class Refused(Exception):
    """A node has no machine code."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(reason)
        self.position = position


@dataclass(frozen=True)
class NativeReport:
    """What a step consists of, for people."""

    launches: int
    levels: int
    arena_bytes: int


class NativeStep:
    """A recording with the memory it works on; called with slots as every step of a program is.

    Not for two threads at once: whoever holds it sees to that, as a plan does.
    """

    def __init__(
        self,
        levels: Sequence[Sequence[NativeDispatch]],
        build: NativeBuilder,
        inputs: Sequence[tuple[int, View]],
        outputs: Sequence[tuple[int, View]],
        pool: WorkerPool,
        budget: MemoryBudget,
    ) -> None:
        keys = {
            buffer: (held.inside.shape, held.inside.strides, held.border)
            for buffer, held in build.bordered.items()
        }
        offsets, size = plan_memory(levels, apart=keys)
        places = dict(offsets)
        for _, view in (*inputs, *outputs):
            if view.buffer.bytes <= COPIED_BYTES:
                places[view.buffer] = size
                size += -(-max(1, view.buffer.bytes) // 64) * 64
        if not budget.admits(size):
            raise OutOfMemory(
                f"cpu: what machine code keeps between runs takes {amount(size)}, {budget}; use a smaller "
                "batch, or another device"
            )
        whole = np.zeros(size + 128, np.uint8)
        skip = -whole.ctypes.data % 64
        self._arena = whole[skip : skip + size + 64]
        start = self._arena.ctypes.data
        for buffer, held in build.bordered.items():
            if held.border.fill and buffer in places:
                self._arena[places[buffer] : places[buffer] + buffer.bytes].view(np.float32)[:] = (
                    held.border.fill
                )
        self._status = self._arena[size : size + 16].view(np.uint32)
        self._kept: list[Array] = []
        known: dict[Buffer, int] = {build.status: start + size}

        def base(buffer: Buffer) -> int:
            if buffer not in known:
                if buffer in places:
                    known[buffer] = start + places[buffer]
                elif buffer.kind is BufferKind.CONSTANT:
                    assert buffer.constant is not None
                    array = np.ascontiguousarray(buffer.constant.array)
                    self._kept.append(array)
                    known[buffer] = array.ctypes.data
                else:
                    known[buffer] = 0
            return known[buffer]

        def address(argument: View | Buffer) -> int:
            if isinstance(argument, View):
                return base(argument.buffer) + argument.byte_offset
            return base(argument)

        self._recording = Recording(
            [
                [(d.launch, [address(argument) for argument in d.arguments]) for d in level]
                for level in levels
            ],
            pool,
        )
        flat = [d for level in levels for d in level]
        moving: dict[Buffer, list[tuple[int, int]]] = {}
        for dispatch, first in zip(flat, self._recording.first_operand, strict=True):
            for at, argument in enumerate(dispatch.arguments):
                buffer = argument.buffer if isinstance(argument, View) else argument
                if known.get(buffer) == 0:
                    shift = argument.byte_offset if isinstance(argument, View) else 0
                    moving.setdefault(buffer, []).append((first + at, shift))
        self._input_slots = [slot for slot, _ in inputs]
        self._output_slots = [slot for slot, _ in outputs]
        self._inputs = [self._way(view, places, moving) for _, view in inputs]
        self._outputs = [
            (*self._way(view, places, moving), view.shape, view.dtype.storage) for _, view in outputs
        ]
        self._operands, self._replay = self._recording.operands, self._recording.run
        self._labels = build.error_labels
        self._names = [", ".join(dispatch.nodes) or dispatch.launch.kernel.label for dispatch in flat]
        self.report = NativeReport(len(flat), len(levels), size)

    def _way(
        self, view: View, places: Mapping[Buffer, int], moving: Mapping[Buffer, Sequence[tuple[int, int]]]
    ) -> tuple[Array | None, Array, Array]:
        """A view in the arena, or which operands take the array's address with which shifts."""
        inside = None
        if view.buffer in places:
            at = places[view.buffer]
            inside = self._arena[at : at + view.buffer.bytes].view(view.dtype.storage).reshape(view.shape)
        uses = moving.get(view.buffer, ())
        return inside, np.array([at for at, _ in uses], np.intp), np.array([by for _, by in uses], np.int64)

    def __call__(self, slots: list[Any]) -> None:
        self.replay_timed(slots, None)

    def replay_timed(self, slots: list[Any], profile: list[tuple[str, float]] | None) -> None:
        """As a call; `profile` receives the time of every launch."""
        made = self.run([slots[slot] for slot in self._input_slots], profile)
        for slot, array in zip(self._output_slots, made, strict=True):
            slots[slot] = array

    def run(self, arrays: Sequence[Array], profile: list[tuple[str, float]] | None = None) -> list[Array]:
        """Runs once; takes the inputs and returns fresh outputs, each in the order given at the start.

        Args:
            arrays: one an input.
            profile: receives (nodes, seconds) of every launch; the launches then run one by one.
        """
        operands = self._operands
        held = []
        for array, (inside, positions, shifts) in zip(arrays, self._inputs, strict=True):
            if inside is not None:
                inside[...] = array
            else:
                if not array.flags.c_contiguous:
                    array = np.ascontiguousarray(array)
                    held.append(array)
                operands[positions] = shifts + _address(array)
        made = []
        for inside, positions, shifts, shape, dtype in self._outputs:
            if inside is None:
                array = np.empty(shape, dtype)
                operands[positions] = shifts + _address(array)
                made.append(array)
            else:
                made.append(inside)
        if self._labels:
            self._status[0] = 0  # what a run that was interrupted, or that a fork cut off, had to say
        if profile is None:
            self._replay()
        else:
            profile += zip(self._names, self._recording.run_each(), strict=True)
        if self._labels and self._status[0]:
            self._report_status()
        return [array if array.base is None else array.copy() for array in made]

    def _report_status(self) -> None:
        code = int(self._status[0])
        raise IndexOutOfRange(
            f"{self._labels[code - 1]}: an index from the data lies outside the tensor it indexes "
            "(device cpu); check the inputs that the indices come from"
        )


def _address(array: Array) -> int:
    return int(ffi.cast("uintptr_t", ffi.from_buffer(array)))


def compile_native(
    nodes: Sequence[Node],
    inputs: Sequence[str],
    outputs: Sequence[str],
    types: Mapping[str, TensorType],
    constants: Mapping[str, Constant],
    slots: Mapping[str, int],
    instructions: InstructionSet,
    pool: WorkerPool,
    is_strict: bool,
    budget: MemoryBudget,
) -> NativeStep:
    """Nodes as one step.

    Args:
        nodes: in topological order.
        inputs: values that come from outside and are no constants.
        outputs: values that are wanted outside, all made by `nodes`.
        types: static types of all values.
        constants: values that are known.
        slots: where a run keeps each value.
        instructions: the set that code may use.
        pool: whose threads run it.
        is_strict: whether convolutions must add up the products that they state (no Winograd).
        budget: for the memory that is kept between runs.

    Raises:
        OutOfMemory: that is not enough.
        Refused: a node has no machine code.
    """
    layouts = _layouts(nodes, outputs, types)
    build = NativeBuilder(instructions, pool.size, layouts, is_strict)
    views: dict[str, View] = {}
    sources = {name: build.buffer(BufferKind.INPUT, types[name], name) for name in inputs}
    views.update(sources)
    results = {name: build.buffer(BufferKind.OUTPUT, types[name], name) for name in outputs}
    for name, view in results.items():
        build.set_destination(name, view)
    place_concatenations(build, nodes, types, results)
    shared: dict[int, View] = {}
    for position, node in enumerate(nodes):
        given = [view_of(name, views, constants, build, shared) for name in node.inputs]
        try:
            made = lower_one(build, node, given, [types[name] for name in node.outputs if name])
        except (CannotLower, struct.error) as reason:
            # struct.error: a stride or size that no instruction can state.
            raise Refused(position, str(reason)) from reason
        views.update((name, view) for name, view in zip(node.outputs, made, strict=False) if name)
    for name, target in results.items():
        if views[name] is target:
            continue
        try:
            build.copy(views[name], target)
        except (CannotLower, struct.error) as reason:
            maker = next(at for at, node in enumerate(nodes) if name in node.outputs)
            raise Refused(maker, str(reason)) from reason
    levels = schedule(build.launches)
    return NativeStep(
        levels,
        build,
        [(slots[name], view) for name, view in sources.items()],
        [(slots[name], view) for name, view in results.items()],
        pool,
        budget,
    )


def _layouts(nodes: Sequence[Node], outputs: Sequence[str], types: Mapping[str, TensorType]) -> Layouts:
    """Which values lie channels-last, and what borders convolutions want round them."""
    last: set[str] = set()
    borders: dict[str, Border] = {}
    for node in nodes:
        anchor = members(node)[0]
        made = [
            name
            for name in node.outputs
            if name and types[name].is_static and len(types[name].dims) in (3, 4)
        ]
        operator = find(anchor)
        follows = operator.keeps_layout(anchor) and any(name in last for name in node.inputs)
        if operator.is_spatial or follows:
            last.update(made)
        if operator.is_spatial:
            _want_border(borders, anchor, types)
    return Layouts(frozenset(last - set(outputs)), borders)


def _want_border(borders: dict[str, Border], node: Node, types: Mapping[str, TensorType]) -> None:
    x = types.get(node.inputs[0])
    if x is None or not x.is_static or len(x.dims) not in (3, 4):
        return
    operator = find(node)
    windows = operator.windows(node, [types.get(name) for name in node.inputs])
    if windows is None:
        return
    wanted = Border.reached_by(windows, operator.halo_fill)
    name = node.inputs[0]
    borders[name] = borders.get(name, Border()).joined(wanted)
