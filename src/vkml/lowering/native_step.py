"""A step of machine code: recorded launches with the memory that they work on, bound to sizes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from vkml.cpu.functions import ffi
from vkml.cpu.memory import MemoryBudget, amount
from vkml.cpu.native.kernel import Launch
from vkml.cpu.native.open_launch import OpenLaunch
from vkml.cpu.native.replay import Recording
from vkml.cpu.pool import WorkerPool
from vkml.dataclasses import dataclass
from vkml.errors import IndexOutOfRange, OutOfMemory
from vkml.ir.lazy import lazy
from vkml.ir.size import Size
from vkml.ir.size_terms import Symbol
from vkml.kernels.views import Buffer, BufferKind, View
from vkml.lowering.deferred import DeferredLaunch
from vkml.lowering.memory import plan_memory
from vkml.lowering.native_builder import NativeBuilder, NativeDispatch
from vkml.lowering.numbers import Number, Numbers

Array = np.ndarray[Any, Any]

COPIED_BYTES = 16384
"""Inputs and outputs up to here have a place of their own and are copied; larger ones, and those of open
sizes, are used in place."""
_KEPT = 8
"""Sets of sizes that a step keeps the numbers of, and powers of two that it keeps a layout for."""
_LEAST_CAPACITY = 16


@dataclass(frozen=True)
class NativeReport:
    """What a step consists of, for people."""

    launches: int
    levels: int
    arena_bytes: int


@dataclass(eq=False)
class _Way:
    """How an input comes in or an output goes out."""

    slot: int
    dtype: np.dtype[Any]
    shape: tuple[Number, ...]
    inside: Array | None
    """Its place, where it has one and is copied; else operands take its address."""
    positions: Array
    """Of these operands."""
    shifts: tuple[Number, ...]
    """How many bytes further on each points."""


@dataclass(eq=False)
class _Layout:
    """Where everything lies for sizes up to a capacity, and how launches are cut into chunks."""

    capacity: tuple[int, ...]
    places: dict[Buffer, int]
    """Of activations in the arena."""
    launches: dict[int, Launch]
    """Open launches as they are cut, by their position."""
    bases: Array
    """Addresses of the buffers that open words point into, 0 for other words."""
    chunks: Array
    """Of each open launch."""
    numbers: tuple[int, ...]
    """What it was made for: those that count bytes may be as large."""
    recording: Recording | None = None
    """For all sizes, where no launch is written for the sizes at hand."""


@dataclass(frozen=True, eq=False)
class _Binding:
    """What depends on sizes."""

    layout: _Layout
    recording: Recording
    words: Array
    spans: Array
    inputs: list[tuple[Array | None, Array, Array]]
    outputs: list[tuple[Array | None, Array, Array, tuple[int, ...], np.dtype[Any]]]
    contents: list[Array]
    """Of constants that hold open sizes."""
    halos: list[tuple[Buffer, int]]
    """Buffers of images with something round them, and their bytes."""


class NativeStep:
    """Launches with the memory they work on; called with slots as every step of a program is.

    Where sizes are open, it is bound to values before it runs. What launches are told of them, and where
    values lie, is computed then; code is made only for launches that need it written for the sizes at hand.

    Not for two threads at once: whoever holds it sees to that, as a plan does.

    Args:
        levels: launches over views.
        build: where these come from.
        inputs: slots and views.
        outputs: slots and views.
        pool: whose threads run it.
        budget: for memory that is kept between runs.
        symbols: the sizes that are open.
    """

    def __init__(
        self,
        levels: Sequence[Sequence[NativeDispatch]],
        build: NativeBuilder,
        inputs: Sequence[tuple[int, View]],
        outputs: Sequence[tuple[int, View]],
        pool: WorkerPool,
        budget: MemoryBudget,
        symbols: Sequence[Symbol] = (),
    ) -> None:
        self._levels = [level for level in levels if level]
        self._flat = [dispatch for level in self._levels for dispatch in level]
        self._pool, self._budget, self._symbols = pool, budget, tuple(symbols)
        self._made_of = build, tuple(inputs), tuple(outputs)
        self._halos = {
            buffer: (held.inside.dtype, held.inside.shape, held.inside.strides, held.border)
            for buffer, held in build.bordered.items()
        }
        self._fills = {
            buffer: np.asarray(held.border.fill, held.inside.dtype.storage)
            for buffer, held in build.bordered.items()
        }
        self._labels = build.error_labels
        self.written_anew = frozenset(
            label for d in self._flat if isinstance(d.launch, DeferredLaunch) for label in d.nodes
        )
        """Nodes some of whose code is written for each set of sizes."""
        self._is_written_anew = any(isinstance(d.launch, DeferredLaunch) for d in self._flat)
        self._arena = self._positions = np.zeros(0, np.uint8)
        self._layouts: OrderedDict[tuple[int, ...], _Layout] = OrderedDict()
        self._bindings: OrderedDict[tuple[int, ...], _Binding] = OrderedDict()
        self._bound: tuple[int, ...] | None = None
        numbers = Numbers()
        self._place_fixed(build.status, [view for _, view in (*inputs, *outputs)])
        self._collect(numbers)
        self._inputs_stated = [self._way(slot, view, numbers) for slot, view in inputs]
        self._outputs_stated = [self._way(slot, view, numbers) for slot, view in outputs]
        self._input_slots = [slot for slot, _ in inputs]
        self._output_slots = [slot for slot, _ in outputs]
        self._compute = numbers.compiled(self._symbols) if symbols else _nothing
        self.report = NativeReport(len(self._flat), len(self._levels), self._fixed.nbytes)
        if not symbols:
            self.bind(())

    def another(self) -> NativeStep:
        """The same launches with memory of their own."""
        build, inputs, outputs = self._made_of
        return NativeStep(
            self._levels, build, inputs, outputs, self._pool, self._budget.renewed(), self._symbols
        )

    @lazy
    def _names(self) -> list[tuple[str, ...]]:
        """The nodes of each launch, for profiles; the kernel where there are none."""
        return [
            d.nodes or (("",) if isinstance(d.launch, DeferredLaunch) else (d.launch.kernel.label,))
            for d in self._flat
        ]

    @property
    def threads(self) -> int:
        """Threads that take part in a run, as far as they are known."""
        return self._recording.threads if self._bound is not None else self._pool.size

    # -- what does not depend on sizes ----------------------------------------------------------------------

    def _place_fixed(self, status: Buffer, outside: Sequence[View]) -> None:
        """Memory for the status word, small inputs and outputs, and for constants that hold open sizes."""
        self._kept: list[Array] = []
        self._addresses: dict[Buffer, int] = {}
        """Of buffers that stay where they are."""
        buffers = dict.fromkeys(view.buffer for view in outside)
        small = [b for b in buffers if not isinstance(b.bytes, Size) and b.bytes <= COPIED_BYTES]
        given = [
            buffer
            for dispatch in self._flat
            for buffer in map(_buffer_of, dispatch.arguments)
            if buffer.kind is BufferKind.SIZES
        ]
        self._given = list(dict.fromkeys(given))
        offsets = [0, *accumulate(_padded(b.bytes) for b in (*small, *self._given, status))]
        self._fixed = _aligned(offsets[-1])
        start = self._fixed.ctypes.data
        self._inside: dict[Buffer, Array] = {}
        for buffer, at in zip((*small, *self._given, status), offsets, strict=False):
            self._inside[buffer] = self._fixed[at : at + buffer.bytes]
            self._addresses[buffer] = start + at
        self._status = self._inside[status].view(np.uint32)

    def _collect(self, numbers: Numbers) -> None:
        """The words that launches are given, and which of them hang on open sizes."""
        at = 0
        self._starts: list[int] = []
        """Where each launch's words begin."""
        self._open: list[tuple[int, Buffer | None, Number]] = []
        self._spans: list[tuple[int, int, Number]] = []
        """Position of the span of each open launch, the launch's, and its rows."""
        self._moving: dict[Buffer, list[tuple[int, Number]]] = {}
        self._estimates: list[tuple[Number, Number]] = []
        self._words: list[list[tuple[Buffer | None, Number]]] = []
        for index, dispatch in enumerate(self._flat):
            self._starts.append(at)
            words: list[tuple[Buffer | None, Number]] = []
            for argument in dispatch.arguments:
                offset = argument.byte_offset if isinstance(argument, View) else 0
                words.append((_buffer_of(argument), numbers.add(offset)))
            launch = dispatch.launch
            if isinstance(launch, OpenLaunch):
                rows = numbers.add(launch.rows)
                self._spans.append((at + len(words), index, rows))
                words += [(None, Number()), (None, rows)]
                words += [(None, numbers.add(size)) for size in launch.parameters]
                self._estimates.append((numbers.add(launch.work), numbers.add(launch.scratch_bytes)))
            for position, (buffer, number) in enumerate(words, at):
                if buffer is not None and self._is_moving(buffer):
                    self._moving.setdefault(buffer, []).append((position, number))
                elif number.position >= 0:
                    self._open.append((position, buffer, number))
            self._words.append(words)
            at += len(words)
        self._open_positions = np.array([position for position, _, _ in self._open], np.intp)
        self._open_numbers = np.array([number.position for _, _, number in self._open], np.intp)
        self._span_positions = np.array([position for position, _, _ in self._spans], np.intp)
        used = dict.fromkeys([buffer for words in self._words for buffer, _ in words])
        self._bytes = {
            buffer: numbers.add(buffer.bytes)
            for buffer in used
            if buffer is not None and buffer.kind in (BufferKind.ACTIVATION, BufferKind.POSITIONS)
        }
        counts = [*self._bytes.values(), *(scratch for _, scratch in self._estimates)]
        self._limited = sorted({number.position for number in counts if number.position >= 0})
        """Numbers that count bytes, for which a layout has so much room."""
        self._halo_bytes = [(b, number) for b, number in self._bytes.items() if b in self._fills]
        self._contents = [
            [numbers.add(element) for element in buffer.constant.array.reshape(-1)]
            for buffer in self._given
            if buffer.constant is not None
        ]

    def _is_moving(self, buffer: Buffer) -> bool:
        """Whether a buffer is an array that each run brings or makes anew."""
        return buffer.kind in (BufferKind.INPUT, BufferKind.OUTPUT) and buffer not in self._addresses

    def _way(self, slot: int, view: View, numbers: Numbers) -> _Way:
        inside = self._inside.get(view.buffer)
        if inside is not None:
            inside = inside.view(view.dtype.storage).reshape(view.shape)
        uses = self._moving.get(view.buffer, ())
        return _Way(
            slot,
            view.dtype.storage,
            tuple(map(numbers.add, view.shape)),
            inside,
            np.array([at for at, _ in uses], np.intp),
            tuple(by for _, by in uses),
        )

    # -- sizes ----------------------------------------------------------------------------------------------

    def bind(self, values: tuple[int, ...]) -> None:
        """Makes the next runs those for values of the open sizes, in the order of their symbols."""
        if values == self._bound:
            return
        binding = self._bindings.get(values)
        if binding is None:
            numbers = self._compute(*values)
            binding = self._make_binding(values, numbers, self._layout(values, numbers))
            while len(self._bindings) >= _KEPT:
                self._bindings.popitem(last=False)
            self._bindings[values] = binding
        else:
            self._bindings.move_to_end(values)
        self._bound = None
        recording = binding.recording
        self._operands, self._replay, self._recording = recording.operands, recording.run, recording
        if binding.layout.recording is recording:
            self._operands[self._open_positions] = binding.words
            self._operands[self._span_positions] = binding.spans
        for buffer, contents in zip(self._given, binding.contents, strict=True):
            self._inside[buffer][:] = contents.view(np.uint8)
        self._fill_halos(binding)
        self._inputs, self._outputs = binding.inputs, binding.outputs
        self._bound = values

    def _layout(self, values: tuple[int, ...], numbers: tuple[int, ...]) -> _Layout:
        capacity = tuple(max(_LEAST_CAPACITY, 1 << (value - 1).bit_length()) for value in values)
        too_small = []
        for key in (capacity, values):
            found = self._layouts.get(key)
            if found is None:
                continue
            if all(numbers[position] <= found.numbers[position] for position in self._limited):
                self._layouts.move_to_end(key)
                return found
            too_small.append(found.numbers)
        largest = numbers
        if values:
            # Where a size falls as another one grows, less than the capacity may need more than the capacity.
            largest = tuple(map(max, self._compute(*capacity), numbers, *too_small))
        made = self._make_layout(capacity, largest)
        if made is None:
            made = self._make_layout(values, numbers)
        if made is None:
            raise OutOfMemory(
                f"cpu: what machine code keeps between runs takes {amount(self._need)}, {self._budget}; use "
                "a smaller batch, or another device"
            )
        while len(self._layouts) >= _KEPT:
            self._layouts.popitem(last=False)
        self._layouts[made.capacity] = made
        return made

    def _make_layout(self, capacity: tuple[int, ...], numbers: tuple[int, ...]) -> _Layout | None:
        """The layout for sizes up to a capacity; None where there is too little memory for it."""
        needs = {buffer: number.of(numbers) for buffer, number in self._bytes.items()}
        places, size = plan_memory(self._levels, apart=self._halos, needs=needs)
        counted = max((n for b, n in needs.items() if b.kind is BufferKind.POSITIONS), default=0)
        self._need = size + counted + self._fixed.nbytes
        if self._symbols:
            self._budget = self._budget.renewed()
        if not self._budget.admits(self._need):
            return None
        if size > self._arena.nbytes or counted > self._positions.nbytes:
            self._layouts.clear()  # they point into what goes
            self._bindings.clear()
            self._arena = _aligned(max(size, self._arena.nbytes))
            if counted > self._positions.nbytes:
                self._positions = np.arange(counted // 4, dtype=np.int32)
        self.report = NativeReport(len(self._flat), len(self._levels), self._need)
        launches: dict[int, Launch] = {}
        for (_, index, rows), (work, scratch) in zip(self._spans, self._estimates, strict=True):
            launch = self._flat[index].launch
            assert isinstance(launch, OpenLaunch)
            launches[index] = launch.cut(
                rows.of(numbers), work.of(numbers), scratch.of(numbers), self._pool.size
            )
        return _Layout(
            capacity,
            places,
            launches,
            np.array([0 if b is None else self._base(b, places) for _, b, _ in self._open], np.int64),
            np.array([len(launches[index].table) for _, index, _ in self._spans], np.int64),
            numbers,
        )

    def _base(self, buffer: Buffer, places: dict[Buffer, int]) -> int:
        """Where a buffer lies that no run brings or makes anew."""
        known = self._addresses.get(buffer)
        if known is None:
            if buffer.kind is BufferKind.ACTIVATION:
                return _address(self._arena) + places[buffer]
            if buffer.kind is BufferKind.POSITIONS:
                return _address(self._positions)
            assert buffer.constant is not None
            array = np.ascontiguousarray(buffer.constant.array)
            self._kept.append(array)
            known = self._addresses[buffer] = array.ctypes.data
        return known

    def _make_binding(self, values: tuple[int, ...], numbers: tuple[int, ...], layout: _Layout) -> _Binding:
        computed = np.array(numbers, np.int64)
        rows = np.array([number.of(numbers) for _, _, number in self._spans], np.int64)
        recording = layout.recording
        if recording is None:
            recording = self._record(values, numbers, layout)
            if not self._is_written_anew:
                layout.recording = recording

        def shifts(way: _Way) -> Array:
            return np.array([number.of(numbers) for number in way.shifts], np.int64)

        return _Binding(
            layout,
            recording,
            layout.bases + computed[self._open_numbers] if self._symbols else computed,
            -(-rows // layout.chunks),
            [(way.inside, way.positions, shifts(way)) for way in self._inputs_stated],
            [
                (
                    way.inside,
                    way.positions,
                    shifts(way),
                    tuple(number.of(numbers) for number in way.shape),
                    way.dtype,
                )
                for way in self._outputs_stated
            ],
            [
                np.array([number.of(numbers) for number in contents], buffer.constant.dtype.storage)
                for buffer, contents in zip(self._given, self._contents, strict=True)
                if buffer.constant is not None
            ],
            [(buffer, number.of(numbers)) for buffer, number in self._halo_bytes],
        )

    def _record(self, values: tuple[int, ...], numbers: tuple[int, ...], layout: _Layout) -> Recording:
        """A recording of all launches; those that nothing else can do for are written for these sizes."""
        known = dict(zip(self._symbols, values, strict=True))
        entries: list[tuple[Launch, list[int]]] = []
        bases: dict[Buffer | None, int] = {None: 0}
        for index, (dispatch, words) in enumerate(zip(self._flat, self._words, strict=True)):
            launch = layout.launches.get(index, dispatch.launch)
            if isinstance(launch, DeferredLaunch):
                launch = launch.launch(known)
            assert isinstance(launch, Launch)
            addresses = []
            for buffer, number in words:
                base = bases.get(buffer)
                if base is None:
                    assert buffer is not None
                    base = 0 if self._is_moving(buffer) else self._base(buffer, layout.places)
                    bases[buffer] = base
                addresses.append(base + (number.known if number.position < 0 else numbers[number.position]))
            entries.append((launch, addresses))
        for position, index, rows in self._spans:
            entries[index][1][position - self._starts[index]] = -(
                -rows.of(numbers) // len(layout.launches[index].table)
            )
        ends = list(accumulate(len(level) for level in self._levels))
        return Recording(
            [entries[start:end] for start, end in zip([0, *ends], ends, strict=False)], self._pool
        )

    def _fill_halos(self, binding: _Binding) -> None:
        """Writes what stands round images, wherever they lie for these sizes."""
        for buffer, size in binding.halos:
            fill = self._fills[buffer]
            if self._symbols or fill:
                at = binding.layout.places[buffer]
                self._arena[at : at + size].view(fill.dtype)[:] = fill

    # -- running --------------------------------------------------------------------------------------------

    def __call__(self, slots: list[Any]) -> None:
        self.replay_timed(slots, None)

    def replay_timed(self, slots: list[Any], profile: list[tuple[tuple[str, ...], float]] | None) -> None:
        """As a call; `profile` receives the time of every launch."""
        made = self.run([slots[slot] for slot in self._input_slots], profile)
        for slot, array in zip(self._output_slots, made, strict=True):
            slots[slot] = array

    def run(
        self,
        arrays: Sequence[Array],
        profile: list[tuple[tuple[str, ...], float]] | None = None,
        into: Sequence[Array | None] | None = None,
    ) -> list[Array]:
        """Runs once; takes the inputs and returns the outputs, each in the order given at the start.

        Args:
            arrays: one an input.
            profile: receives (nodes, seconds) of every launch; the launches then run one by one.
            into: one an output, contiguous, of its type and shape, and sharing memory with no input; None for
                a fresh array.
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
        for number, (inside, positions, shifts, shape, dtype) in enumerate(self._outputs):
            if inside is None:
                given = None if into is None else into[number]
                array = np.empty(shape, dtype) if given is None else given
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
        if into is None:
            return [array if array.base is None else array.copy() for array in made]
        return [_written(array, given) for array, given in zip(made, into, strict=True)]

    def _report_status(self) -> None:
        code = int(self._status[0])
        raise IndexOutOfRange(
            f"{self._labels[code - 1]}: an index from the data lies outside the tensor it indexes "
            "(device cpu); check the inputs that the indices come from"
        )


def _written(made: Array, into: Array | None) -> Array:
    """An output in the array that is to have it, or in one of its own."""
    if into is None:
        return made if made.base is None else made.copy()
    if made is not into:
        np.copyto(into, made)
    return into


def _nothing() -> tuple[int, ...]:
    return ()


def _buffer_of(argument: View | Buffer) -> Buffer:
    return argument.buffer if isinstance(argument, View) else argument


def _padded(size: int) -> int:
    return -(-max(1, size) // 64) * 64


def _aligned(size: int) -> Array:
    """Zeros at the beginning of a cache line."""
    whole = np.zeros(size + 64, np.uint8)
    skip = -whole.ctypes.data % 64
    return whole[skip : skip + size]


def _address(array: Array) -> int:
    return int(ffi.cast("uintptr_t", ffi.from_buffer(array)))
