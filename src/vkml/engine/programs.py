"""Programs bound to devices: memory allocated, kernels compiled, commands recorded, ready to replay."""

from __future__ import annotations

import contextlib
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from vkml.engine.compilation import compile_kernels
from vkml.engine.device_array import DeviceArray, Value
from vkml.engine.launches import Launches
from vkml.engine.trips import SteppedTrips, Trips, Wiring
from vkml.engine.turns import Turn
from vkml.engine.weights import Lease, WeightStore
from vkml.errors import DeviceError, EngineError, IndexOutOfRange
from vkml.kernels.spec import Dispatch
from vkml.kernels.views import Buffer, BufferKind, View
from vkml.lowering.memory import ALIGNMENT, plan_memory
from vkml.lowering.numbers import Numbers
from vkml.lowering.plan import VulkanProgram

if TYPE_CHECKING:
    from vkml.engine.options import Progress
    from vkml.vulkan import (
        CommandBuffer,
        CommandRecorder,
        Device,
        Memory,
        Pipeline,
        Submission,
        TimestampPool,
    )

_log = logging.getLogger("vkml")
Array = np.ndarray[Any, Any]
GUARD_WORD = 0xDEADBEEF
DIRECT_OUTPUT_BYTES = 4096
"""Outputs up to here are written to host memory by the kernels themselves, which saves a barrier and a copy.
Larger ones are copied: a product's scattered stores over the bus took 215 µs for 786 KB on an H200, a copy
takes 13 µs."""


class Bound(Protocol):
    """A program that can run."""

    device: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    most_at_once: int
    """How many of it may be worth having for runs at the same time."""

    def bind(self, values: tuple[int, ...]) -> object: ...

    def another(self) -> Bound: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class _Memories:
    """Memory of a program's buffers, for sizes up to a capacity."""

    bytes: dict[Buffer, int]
    rooms: list[tuple[int, int]]
    """Of each buffer of open size, the position of its size among the computed numbers, and its room."""
    addresses: dict[Buffer, int]
    words: list[int]
    """Of all push constants, but for what hangs on open sizes."""
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

    @property
    def all(self) -> list[Memory]:
        found = (self.input_memory, self.staging, self.output_memory, self.copied_memory, self.arena)
        return [memory for memory in found if memory is not None]


Addresses = tuple[tuple[Buffer, int], ...]
"""Inputs and outputs of a program that lie outside of its own memory, and where."""
_Key = tuple[tuple[int, ...], Addresses]
"""Values of open sizes, and where values from outside lie."""


@dataclass(eq=False)
class _Binding:
    """A program for certain sizes and addresses: commands recorded, and where the host writes and reads."""

    key: _Key
    numbers: tuple[int, ...]
    commands: CommandBuffer
    submission: Submission
    input_views: list[Array]
    output_views: list[Array]
    sizes: list[tuple[Array, Array]]
    """Where numbers that kernels read are to be written, and these."""
    is_recorded: bool = True
    """Whether the commands are still those of this binding."""

    def free(self) -> None:
        """Frees the commands, which must not be running."""
        self.is_recorded = False
        self.submission.free()
        self.commands.free()
        self.input_views, self.output_views, self.sizes = [], [], []


@dataclass(frozen=True, eq=False)
class Running:
    """A run between `VulkanBound.start` and `finish`."""

    binding: _Binding
    targets: Sequence[DeviceArray | None] | None


MOST_AT_ONCE = 4
"""Runs of one program that may be on a device at a time, each with memory of its own."""
TRIPS_KEPT = 2
"""Recordings of loops that a program keeps."""
BINDINGS_KEPT = 8
"""Sets of sizes whose commands a program keeps."""
_LEAST_CAPACITY = 16


class VulkanBound:
    """A Vulkan program on a device: one command buffer, replayed with one submission.

    A program with open sizes has commands for the sizes that it ran last with; others are recorded when they
    come, with the same kernels, in memory that is made larger in steps of two.
    """

    def __init__(
        self,
        program: VulkanProgram,
        device: Device,
        weights: WeightStore,
        *,
        guard_bytes: int = 0,
        progress: Progress | None = None,
        memory_limit: float | None = None,
        time_limit: float | None = None,
    ) -> None:
        self.device = device.info.name
        self.most_at_once = MOST_AT_ONCE
        self.program = program
        self.inputs = tuple(program.inputs)
        self.outputs = tuple(program.outputs)
        self.on = device
        self.queue = device.context.next_queue()
        self._context = device.context
        self._is_closed = False
        self._guard_bytes = guard_bytes
        self.memory_limit = memory_limit
        self.time_limit = time_limit
        self._weights = weights
        self._lease: Lease = ()
        self._allocated: list[Memory] = []
        self._pipelines: list[Pipeline] = []
        self._bindings: OrderedDict[_Key, _Binding] = OrderedDict()
        self._trips: OrderedDict[tuple[tuple[int, ...], Wiring, int | None], Trips | SteppedTrips]
        self._trips = OrderedDict()
        self._memories: _Memories | None = None
        self._latest: _Binding | None = None
        """Whose numbers kernels find in memory."""
        try:
            self._build(weights, progress)
        except BaseException:
            self.close()
            raise

    def _build(self, weights: WeightStore, progress: Progress | None) -> None:
        program = self.program
        kernels = list({id(d.kernel): d.kernel for d in program.dispatches}.values())
        pipelines = compile_kernels(self.on, kernels, self._pipelines, progress)
        used = {view.buffer for d in program.dispatches for view in (*d.reads, *d.writes)}
        constants = [
            b.constant
            for b in program.buffers
            if b.kind is BufferKind.CONSTANT and b.constant is not None and b in used
        ]
        self._lease = weights.add(constants)
        self._used = used
        self._given = [b for b in program.buffers if b.kind is BufferKind.SIZES and b in used]
        """What the host computes from open sizes."""
        numbers = Numbers()
        self._launches = Launches(program.levels, pipelines, numbers)
        self._table = self.on.dispatch_table(self._launches.levels)
        self._bytes = {b: numbers.add(b.bytes) for b in (*program.buffers, program.status)}
        self._shapes = {
            id(view): tuple(numbers.add(size) for size in view.shape)
            for view in (*program.inputs.values(), *program.outputs.values())
        }
        self._contents = [
            [numbers.add(element) for element in buffer.constant.array.reshape(-1)]
            for buffer in self._given
            if buffer.constant is not None
        ]
        self._compute = numbers.compiled(program.symbols)
        if not program.symbols:
            self.bind(())

    def bind(self, values: tuple[int, ...], outside: Addresses = ()) -> _Binding:
        """The program for these values of its symbols.

        Args:
            values: in the symbols' order.
            outside: where inputs and outputs lie that are not in the program's own memory.
        """
        key = values, outside
        found = self._bindings.get(key)
        if found is not None:
            self._bindings.move_to_end(key)
            return found
        numbers = self._compute(*values)
        memories = self._memories
        if memories is None or any(numbers[position] > room for position, room in memories.rooms):
            memories = self._make_room(values, numbers)
        oldest = None
        while len(self._bindings) >= BINDINGS_KEPT:
            oldest = self._bindings.popitem(last=False)[1]
        made = self._make_binding(key, numbers, memories, oldest)
        self._bindings[key] = made
        return made

    def _make_room(self, values: tuple[int, ...], numbers: tuple[int, ...]) -> _Memories:
        """Memory for these sizes and some beyond, in place of what there is."""
        capacity = {
            symbol: max(_LEAST_CAPACITY, 1 << (value - 1).bit_length())
            for symbol, value in zip(self.program.symbols, values, strict=True)
        }
        self._free_memories()
        rooms = self._compute(*capacity.values())
        needs = {b: max(number.of(rooms), number.of(numbers)) for b, number in self._bytes.items()}
        self._memories = self._allocate_all(needs)
        return self._memories

    def _allocate_all(self, needs: dict[Buffer, int]) -> _Memories:
        from vkml.vulkan import MemoryKind

        program, weights = self.program, self._weights
        inputs = _arena([*(view.buffer for view in program.inputs.values()), *self._given], needs)
        output_buffers = [view.buffer for view in program.outputs.values()]
        outputs = _arena([*output_buffers, program.status], needs)
        device_only = [b for b in output_buffers if not b.host_only or needs[b] > DIRECT_OUTPUT_BYTES]
        copied = _arena(device_only, needs)
        offsets, arena_bytes = program.offsets, program.arena_bytes
        if program.symbols:
            offsets, arena_bytes = plan_memory(program.levels, self._guard_bytes, needs=needs)
        self.input_bytes, self.output_bytes = inputs[1], outputs[1]
        self.arena_bytes = arena_bytes + copied[1]
        input_memory = self._allocate(inputs[1], MemoryKind.DEVICE, "inputs")
        staging = None
        if input_memory is not None and input_memory.host is None:
            staging = self._allocate(inputs[1], MemoryKind.UPLOAD, "input staging")
        output_memory = self._allocate(outputs[1], MemoryKind.READBACK, "outputs")
        arena = self._allocate(arena_bytes, MemoryKind.DEVICE, "activations")
        copied_memory = self._allocate(copied[1], MemoryKind.DEVICE, "outputs read by kernels")
        assert output_memory is not None and output_memory.host is not None

        def address(buffer: Buffer) -> int:
            if buffer.kind is BufferKind.CONSTANT:
                assert buffer.constant is not None
                return weights.address(buffer.constant)
            if buffer.kind in (BufferKind.INPUT, BufferKind.SIZES):
                assert input_memory is not None
                return input_memory.address + inputs[0][buffer]
            if buffer in copied[0]:
                assert copied_memory is not None
                return copied_memory.address + copied[0][buffer]
            if buffer.kind in (BufferKind.OUTPUT, BufferKind.STATUS):
                return output_memory.address + outputs[0][buffer]
            assert arena is not None
            return arena.address + offsets[buffer]

        addresses = {buffer: address(buffer) for buffer in (*self._used, program.status)}
        at = outputs[0][program.status]
        self._status = output_memory.host[at : at + 16].view(np.uint32)
        self._status[:] = 0
        return _Memories(
            needs,
            [(number.position, needs[b]) for b, number in self._bytes.items() if number.position >= 0],
            addresses,
            self._launches.placed(addresses),
            inputs[0],
            outputs[0],
            copied[0],
            input_memory,
            staging,
            output_memory,
            copied_memory,
            arena,
            offsets,
        )

    def _make_binding(
        self, key: _Key, numbers: tuple[int, ...], memories: _Memories, oldest: _Binding | None
    ) -> _Binding:
        """A binding, recorded into the commands of `oldest` where there is one."""
        program = self.program
        commands = submission = None
        if oldest is not None:
            oldest.is_recorded = False
            commands, submission = oldest.commands, oldest.submission
        try:
            commands = self._record(numbers, memories, dict(key[1]), commands)
            submission = submission or self.on.submission(commands, time_limit=self.time_limit)
        except BaseException:
            for each in (submission, commands):
                if each is not None:
                    each.free()
            raise
        host = memories.staging or memories.input_memory
        inputs = None if host is None else host.host
        sizes = []
        for buffer, contents in zip(self._given, self._contents, strict=True):
            assert inputs is not None and buffer.constant is not None
            storage = buffer.constant.dtype.storage
            at = memories.inputs[buffer]
            place = inputs[at : at + len(contents) * storage.itemsize].view(storage)
            sizes.append((place, np.array([number.of(numbers) for number in contents], storage)))
        return _Binding(
            key,
            numbers,
            commands,
            submission,
            [self._host_view(inputs, memories.inputs, view, numbers) for view in program.inputs.values()],
            [
                self._host_view(memories.output_memory.host, memories.outputs, view, numbers)
                for view in program.outputs.values()
            ],
            sizes,
        )

    def _host_view(
        self, host: Array | None, offsets: Mapping[Buffer, int], view: View, numbers: tuple[int, ...]
    ) -> Array:
        assert host is not None
        at = offsets[view.buffer]
        shape = tuple(number.of(numbers) for number in self._shapes[id(view)])
        size = self._bytes[view.buffer].of(numbers)
        return host[at : at + size].view(view.dtype.storage).reshape(shape)

    def _record(
        self,
        numbers: tuple[int, ...],
        memories: _Memories,
        outside: Mapping[Buffer, int],
        again: CommandBuffer | None = None,
        pool: TimestampPool | None = None,
    ) -> CommandBuffer:
        recorder = self.on.recorder("plan", again=again, queue=self.queue)
        if pool is not None:
            recorder.reset_timestamps(pool)
        arena = memories.arena
        if self._guard_bytes and arena is not None:
            recorder.fill(arena, 0, arena.size, GUARD_WORD)
            recorder.barrier()
        self.record_inputs(recorder, memories)
        if pool is not None:
            recorder.timestamp(pool, 0)
        self._record_levels(recorder, numbers, memories, outside, pool)
        copied = [(buffer, at) for buffer, at in memories.copied.items() if buffer not in outside]
        if copied and memories.copied_memory is not None:
            recorder.barrier()
            for buffer, at in copied:
                size = self._bytes[buffer].of(numbers)
                if size:
                    to = memories.outputs[buffer]
                    recorder.copy(memories.copied_memory, at, memories.output_memory, to, size)
        recorder.barrier_to_host()
        return recorder.finish()

    def record_inputs(self, recorder: CommandRecorder, memories: _Memories | None = None) -> None:
        """Records what brings that which the host has written to where kernels read it."""
        memories = memories or self._memories
        if memories is not None and memories.staging is not None and memories.input_memory is not None:
            recorder.copy(memories.staging, 0, memories.input_memory, 0, self.input_bytes)
            recorder.barrier()

    def record_levels(
        self, recorder: CommandRecorder, values: tuple[int, ...], places: Mapping[str, int]
    ) -> None:
        """Records a run of all launches, for sizes that it is bound to.

        Args:
            recorder: for this device.
            values: of the program's symbols.
            places: addresses of all inputs and outputs.
        """
        memories = self._memories
        assert memories is not None, "it is not bound"
        views = {**self.program.inputs, **self.program.outputs}
        outside = {view.buffer: places[name] for name, view in views.items()}
        self._record_levels(recorder, self._compute(*values), memories, outside)

    def run_trips(
        self,
        values: tuple[int, ...],
        wiring: Wiring,
        count: int | None,
        carried: Sequence[Value],
        captured: Mapping[int, Value],
    ) -> list[Array]:
        """Runs trips of a loop of which this is the body; recordings of the last ones are kept.

        Args:
            values: of the program's symbols.
            wiring: how values go from trip to trip; the same object for the same.
            count: trips, or the most where they say themselves whether there is another; None: any number.
            carried: values before the first trip.
            captured: what the body captures, by number.

        Returns:
            See `Trips.run`.

        Raises:
            CannotLower: see `SteppedTrips`.
            OutOfMemory: there is too little.
        """
        self.bind(values)
        is_counted = wiring.condition is None
        key = values, wiring, count if is_counted else None
        found = self._trips.pop(key, None)
        if found is None:
            while len(self._trips) >= TRIPS_KEPT:
                self._trips.popitem(last=False)[1].free()
            if is_counted:
                assert count is not None
                found = Trips(self, values, wiring, count)
            else:
                found = SteppedTrips(self, values, wiring)
        self._trips[key] = found
        if isinstance(found, Trips):
            return found.run(carried, captured)
        return found.run(count, carried, captured)

    def write_sizes(self, values: tuple[int, ...]) -> None:
        """Writes the numbers that kernels read from memory, where sizes are open."""
        self._write_sizes(self.bind(values))

    def _record_levels(
        self,
        recorder: CommandRecorder,
        numbers: tuple[int, ...],
        memories: _Memories,
        outside: Mapping[Buffer, int],
        pool: TimestampPool | None = None,
    ) -> None:
        words = memories.words
        if outside:
            words = self._launches.placed({**memories.addresses, **outside})
        push, grids = self._launches.numbers(words, numbers)
        recorder.dispatch_table(self._table, push, grids, pool)

    def record(self, pool: TimestampPool | None = None) -> CommandBuffer:
        """The commands of the sizes that it ran last with, recorded once more.

        Args:
            pool: for a timestamp before the first level and behind each.
        """
        binding, memories = next(reversed(self._bindings.values())), self._memories
        assert memories is not None
        return self._record(binding.numbers, memories, dict(binding.key[1]), pool=pool)

    def _allocate(self, size: int, kind: Any, label: str) -> Memory | None:
        if not size:
            return None
        memory = self.on.allocate(size, kind, label, self.memory_limit)
        self._allocated.append(memory)
        return memory

    def _free_memories(self) -> None:
        """Frees commands and the memory that they use; nothing of the program may be running."""
        while self._trips:
            self._trips.popitem()[1].free()
        while self._bindings:
            self._bindings.popitem()[1].free()
        self._memories = self._latest = None
        while self._allocated:
            self._allocated.pop().free()

    def run(
        self,
        feeds: Sequence[Value],
        values: tuple[int, ...] = (),
        targets: Sequence[DeviceArray | None] | None = None,
    ) -> list[Value]:
        """Runs it.

        Args:
            feeds: in the order of `inputs`; arrays, or values on this device.
            values: of the program's symbols, in their order.
            targets: in the order of `outputs`, values to write, which overlap no other value of the run; None
                and values of other devices stand for fresh arrays.
        """
        running = self._written(feeds, values, targets)
        self._submit(running.binding)
        return self._copies(running)

    def start(
        self,
        feeds: Sequence[Value],
        values: tuple[int, ...] = (),
        targets: Sequence[DeviceArray | None] | None = None,
    ) -> Running:
        """As `run`, but returns at once; to be followed by `finish`, or `settle`, before anything else."""
        running = self._written(feeds, values, targets)
        self._write_sizes(running.binding)
        running.binding.submission.submit()
        return running

    def finish(self, running: Running) -> list[Value]:
        """Waits for what `start` has begun; returns the results, of which arrays hold until the next run."""
        binding = running.binding
        try:
            binding.submission.finish()
        except BaseException:
            self.settle(running)
            raise
        self.check()
        if running.targets is None:
            return list(binding.output_views)
        return [
            view if target is None else target
            for view, target in zip(binding.output_views, running.targets, strict=True)
        ]

    def settle(self, running: Running) -> None:
        """Waits for what `start` has begun and nobody wants any more."""
        self._settle(running.binding)

    def another(self) -> VulkanBound:
        """The same program with memory and commands of its own."""
        return VulkanBound(
            self.program,
            self.on,
            self._weights,
            guard_bytes=self._guard_bytes,
            memory_limit=self.memory_limit,
            time_limit=self.time_limit,
        )

    def _written(
        self, feeds: Sequence[Value], values: tuple[int, ...], targets: Sequence[DeviceArray | None] | None
    ) -> Running:
        """The binding for a run, with the inputs that come from the host written."""
        if self._context.is_closed:  # with the device went the mappings that the views show
            self._context.require_open()
        device = self.on
        feeds = [a.numpy() if type(a) is DeviceArray and a.device is not device else a for a in feeds]
        if targets is not None:
            targets = [None if t is None or t.device is not device else t for t in targets]
        binding = self.bind(values, self._outside(feeds, targets))
        for view, array in zip(binding.input_views, feeds, strict=True):
            if type(array) is not DeviceArray:
                view[...] = array
        return Running(binding, targets)

    @staticmethod
    def _copies(running: Running) -> list[Value]:
        views = running.binding.output_views
        if running.targets is None:
            return [view.copy() for view in views]
        return [
            view.copy() if target is None else target
            for view, target in zip(views, running.targets, strict=True)
        ]

    def _outside(self, feeds: Sequence[Value], targets: Sequence[DeviceArray | None] | None) -> Addresses:
        program = self.program
        given = zip(program.inputs.values(), feeds, strict=True)
        found = [(view.buffer, array.address) for view, array in given if type(array) is DeviceArray]
        if targets is not None:
            wanted = zip(program.outputs.values(), targets, strict=True)
            found += [(view.buffer, target.address) for view, target in wanted if target is not None]
        return tuple(found)

    def _submit(self, binding: _Binding) -> None:
        """Runs a binding whose inputs have been written, and checks what it reports."""
        self._write_sizes(binding)
        try:
            binding.submission.run()
        except BaseException:
            self._settle(binding)
            raise
        self.check()

    def _write_sizes(self, binding: _Binding) -> None:
        if self._latest is not binding:
            for place, numbers in binding.sizes:
                place[...] = numbers
            self._latest = binding

    @property
    def has_complaint(self) -> bool:
        """Whether the kernels of the last run have something to say."""
        return bool(self._status[0])

    def forget_complaint(self) -> None:
        """Has them have said nothing: of a run that nobody wanted."""
        self._status[:] = 0

    def check(self) -> None:
        """Raises what the kernels of the last run have to say."""
        if self._status[0]:
            self._report_status()
        if self._guard_bytes:
            self._check_guards()

    def _settle(self, binding: _Binding) -> None:
        """After an interrupt: the device may be at work on buffers that a run or `close` would touch."""
        with contextlib.suppress(DeviceError):
            binding.submission.wait(timeout_seconds=self.time_limit)
        if not self._context.is_closed:  # else there is no such memory any more
            self._status[:] = 0  # what the run that nobody sees the end of had to say

    def direct(self, turn: Turn) -> Callable[[Mapping[str, Any]], list[Array] | None] | None:
        """One closure from a feed to results, for the run that repeats; None where more is to be done.

        The closure returns None, having run nothing, when the feed is not exactly what the program takes, or
        when the program is closed: the caller then goes the long way, which says what is wrong. It saves
        about 1 µs of the 15 that a run of one dispatch takes.

        Args:
            turn: taken while it runs; whoever closes the program holds its lock, too.
        """
        if self._guard_bytes or self.program.symbols:
            return None
        binding = self.bind(())
        entries = tuple(
            (name, view, view.shape, view.dtype)
            for name, view in zip(self.inputs, binding.input_views, strict=True)
        )
        outputs, run, count = binding.output_views, binding.submission.run, len(entries)
        status, context = memoryview(self._status.data), self._context

        def call(feed: Mapping[str, Any]) -> list[Array] | None:
            # A mapping's or an array-like's own code would run under the lock.
            if type(feed) is not dict or len(feed) != count or turn.is_taken:
                return None
            with turn.lock:
                if turn.is_taken or self._is_closed or context.is_closed:
                    return None
                turn.is_taken = True
                try:
                    for name, view, shape, dtype in entries:
                        array = feed.get(name)
                        if type(array) is not np.ndarray or array.shape != shape or array.dtype != dtype:
                            return None
                        view[...] = array
                    try:
                        run()
                    except BaseException:
                        self._settle(binding)
                        raise
                    if status[0]:
                        self._report_status()
                    return [view.copy() for view in outputs]
                finally:
                    turn.is_taken = False

        return call

    def repeated(
        self,
        turn: Turn,
        feeds: Sequence[Value],
        values: tuple[int, ...],
        targets: Sequence[DeviceArray],
    ) -> Callable[[], bool]:
        """One closure that runs it with the very same values again.

        The closure returns False, having run nothing, when the program has been closed or recorded anew.

        Args:
            turn: taken while it runs.
            feeds: as for `run`; arrays are read anew each time.
            values: of the program's symbols.
            targets: values of this device for all outputs.
        """
        binding = self.bind(values, self._outside(feeds, targets))
        given = zip(binding.input_views, feeds, strict=True)
        copies = tuple((view, array) for view, array in given if type(array) is not DeviceArray)
        context, run, has_guards = self._context, binding.submission.run, bool(self._guard_bytes)
        status, keep = memoryview(self._status.data), (tuple(feeds), tuple(targets))

        def call() -> bool:
            with turn.lock:
                if turn.is_taken or self._is_closed or context.is_closed or not binding.is_recorded:
                    return False
                if any(array.shape != view.shape for view, array in copies):
                    return False  # `resize` changes an array in place
                turn.is_taken = True
                try:
                    for view, array in copies:
                        view[...] = array
                    if has_guards or self._latest is not binding:
                        self._submit(binding)
                        return True
                    try:
                        run()
                    except BaseException:
                        self._settle(binding)
                        raise
                    if status[0]:
                        self._report_status()
                    return True
                finally:
                    turn.is_taken = False

        call.__kept__ = keep  # type: ignore[attr-defined]
        return call

    def profile(self) -> list[tuple[list[Dispatch], float]]:
        """Runs once more with timestamps: the dispatches of each level, and the nanoseconds it took."""
        pool = self.on.timestamps(len(self.program.levels) + 1)
        commands = self.record(pool)
        submission = self.on.submission(commands)
        try:
            submission.submit()
            submission.wait()
            times = pool.read_intervals()
        finally:
            submission.free()
            commands.free()
            pool.free()
        return [(level, time or 0.0) for level, time in zip(self.program.levels, times, strict=True)]

    def _report_status(self) -> None:
        code = int(self._status[0])
        self._status[:] = 0
        label = self.program.error_labels[code - 1] if code <= len(self.program.error_labels) else "a kernel"
        raise IndexOutOfRange(
            f"{label}: an index from the data lies outside the tensor it indexes (device {self.device}); "
            "check the inputs that the indices come from"
        )

    def _check_guards(self) -> None:
        memories = self._memories
        if memories is None or memories.arena is None:
            return
        words = self.on.download(memories.arena, 0, memories.arena.size).view(np.uint32)
        is_inside = np.zeros(words.size, bool)
        for buffer, offset in memories.offsets.items():
            is_inside[offset // 4 : -(-(offset + memories.bytes[buffer]) // 4)] = True
        broken = np.flatnonzero(~is_inside & (words != GUARD_WORD))
        if broken.size:
            at = int(broken[0]) * 4
            near = min(memories.offsets.items(), key=lambda item: abs(item[1] - at))[0]
            raise EngineError(f"a kernel wrote outside its buffers, at byte {at} of the arena, near {near}")

    def close(self) -> None:
        self._is_closed = True
        self._free_memories()
        while self._pipelines:
            self.on.release(self._pipelines.pop())
        lease, self._lease = self._lease, ()
        self._weights.release(lease)

    def __del__(self) -> None:
        try:
            self.close()  # where an interrupt came between making it and handing it over, or during `close`
        except Exception:
            _log.debug("closing a program at its end failed", exc_info=True)


def _arena(buffers: Sequence[Buffer], needs: Mapping[Buffer, int]) -> tuple[dict[Buffer, int], int]:
    offsets, size = {}, 0
    for buffer in buffers:
        offsets[buffer] = size
        size += -(-max(1, needs[buffer]) // ALIGNMENT) * ALIGNMENT
    return offsets, size
