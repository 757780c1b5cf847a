"""Programs of a device with their memory: kernels compiled, commands recorded for the sizes at hand."""

from __future__ import annotations

import contextlib
import functools
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from vkml.engine.binding import Addresses, Binding, Key, Memories
from vkml.engine.compilation import compile_kernels
from vkml.engine.fetching import Fetching
from vkml.engine.host_memory import LARGE_BYTES
from vkml.engine.launch_tables import LaunchTables
from vkml.engine.launches import Launches
from vkml.engine.weights import Lease, WeightStore
from vkml.errors import DeviceError, OutOfMemory
from vkml.kernels.views import Buffer, BufferKind, View
from vkml.lowering.memory import ALIGNMENT, plan_memory
from vkml.lowering.numbers import Number, Numbers
from vkml.lowering.plan import VulkanProgram

if TYPE_CHECKING:
    from vkml.engine.ahead import Ahead
    from vkml.engine.options import Progress
    from vkml.ir import Constant
    from vkml.kernels.spec import KernelSpec
    from vkml.vulkan import (
        CommandBuffer,
        CommandRecorder,
        Device,
        Memory,
        Pipeline,
        Queue,
        TimestampPool,
    )
    from vkml.vulkan.commands import DispatchTable

Array = np.ndarray[Any, Any]
GUARD_WORD = 0xDEADBEEF
DIRECT_OUTPUT_BYTES = 4096
"""Outputs up to here are written to host memory by the kernels themselves, which saves a barrier and a copy.
Larger ones are copied: a product's scattered stores over the bus took 215 µs for 786 KB on an H200, a copy
takes 13 µs."""
BINDINGS_KEPT = 8
"""Sets of sizes whose commands a program keeps."""
_LEAST_CAPACITY = 16
_LONGEST_PERIOD = 4
"""Runs after which values are looked for where they were."""
_ELSEWHERE: Array = np.empty(0)
_Form = tuple[Buffer, np.dtype[Any], tuple[Number, ...]]
"""Of an input or output where it lies, its storage type and its shape."""


class RecordedProgram:
    """A program with memory for its buffers, and commands for the sizes and addresses that came last.

    With open sizes, memory is made larger in steps of two, and commands are recorded as sizes come, with the
    same kernels.
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
        queue: Queue | None = None,
        ahead: Ahead | None = None,
    ) -> None:
        self.device = device.info.name
        self.program = program
        self.inputs = tuple(program.inputs)
        self.outputs = tuple(program.outputs)
        self.on = device
        self.queue = queue or device.context.next_queue()
        self.is_chained = queue is not None
        """Whether what runs before it on its queue may make what it reads."""
        self._context = device.context
        self._is_closed = False
        self._guard_bytes = guard_bytes
        self.memory_limit = memory_limit
        self.time_limit = time_limit
        self._weights = weights
        self._lease: Lease = ()
        self._allocated: list[Memory] = []
        self._pipelines: list[Pipeline] = []
        self._bindings: OrderedDict[Key, Binding] = OrderedDict()
        self._memories: Memories | None = None
        self._keys: deque[Key] = deque(maxlen=_LONGEST_PERIOD + 2)
        """Of the last runs."""
        self._fetching: Fetching | None = None
        self._latest: Binding | None = None
        """Whose numbers kernels find in memory."""
        try:
            self._build(weights, progress, ahead)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Frees everything; nothing of it may be running."""
        self._is_closed = True
        self.free_memories()
        self.on.release_all(self._pipelines)
        lease, self._lease = self._lease, ()
        self._weights.release(lease)

    def _build(self, weights: WeightStore, progress: Progress | None, ahead: Ahead | None) -> None:
        program = self.program
        used = {view.buffer for d in program.dispatches for view in (*d.reads, *d.writes)}
        constants = [
            b.constant
            for b in program.buffers
            if b.kind is BufferKind.CONSTANT and b.constant is not None and b in used
        ]
        kernels = self._kernels(weights, constants)
        if ahead is not None:
            ahead.want_all(kernels)
        # Weights go there while kernels are compiled.
        self._lease = weights.add(constants)
        if ahead is not None:
            ahead.wait_for(kernels, progress)
            progress = None
        pipelines = compile_kernels(self.on, kernels, self._pipelines, progress)
        self._used = used
        self._given = [b for b in program.buffers if b.kind is BufferKind.SIZES and b in used]
        """What the host computes from open sizes."""
        self._counters = [b for b in program.buffers if b.kind is BufferKind.COUNTERS and b in used]
        numbers = Numbers()
        self._launches = Launches(program.levels, pipelines, numbers)
        self._table = self.on.dispatch_table(self._launches.levels)
        self._tables = LaunchTables(program.tables, self.on, self.memory_limit)
        self._bytes = {
            b: numbers.add(b.bytes)
            for b in (*program.buffers, program.status)
            if b.kind is not BufferKind.CONSTANT
        }
        self._input_forms = [_form(view, numbers) for view in program.inputs.values()]
        self._output_forms = [_form(view, numbers) for view in program.outputs.values()]
        self._contents = [
            [numbers.add(element) for element in buffer.constant.array.reshape(-1)]
            for buffer in self._given
            if buffer.constant is not None
        ]
        self._compute = numbers.compiled(program.symbols)
        if not program.symbols:
            self.bind(())

    def _kernels(self, weights: WeightStore, constants: Sequence[Constant]) -> list[KernelSpec]:
        """Those that pack weights, too: by itself each would take as long as all of them take together."""
        kernels = list({id(launch.kernel): launch.kernel for launch in self.program.dispatches}.values())
        return [*weights.packing_kernels(constants), *kernels]

    def bind(self, values: tuple[int, ...], outside: Addresses = ()) -> Binding:
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
            # But for the one with all values in the program's own memory: `direct` runs that for good.
            oldest = self._bindings.pop(next(each for each in self._bindings if any(each)))
        made = self._make_binding(key, numbers, memories, oldest)
        self._bindings[key] = made
        return made

    def prepare_next(self, running: Binding) -> None:
        """Binds what probably runs next, while a binding runs.

        Where sizes have grown by the same number twice, as those of a text do that is written token by token,
        they are expected to do so again; values from outside, which take turns in memory, where theirs was.
        """
        keys = self._keys
        keys.append(running.key)
        if not self.program.symbols or len(keys) < 3 or self._memories is None:
            return
        values, before = keys[-1][0], keys[-2][0]
        step = [now - then for now, then in zip(values, before, strict=True)]
        if not any(step) or step != [now - then for now, then in zip(before, keys[-3][0], strict=True)]:
            return
        for period in range(1, _LONGEST_PERIOD + 1):
            if len(keys) >= period + 2 and all(keys[-at][1] == keys[-at - period][1] for at in (1, 2)):
                break
        else:
            return
        following = tuple([now + by for now, by in zip(values, step, strict=True)])
        if not self._holds(*following):
            return
        numbers = self._compute(*following)
        if all(numbers[position] <= room for position, room in self._memories.rooms):
            with contextlib.suppress(DeviceError, OutOfMemory):  # the run that wants it says so, if it comes
                self.bind(following, keys[-period][1])

    @functools.cached_property
    def _holds(self) -> Callable[..., bool]:
        """Whether the program is for these values of its symbols."""
        assert self.program.sizes is not None
        return self.program.sizes.compiled()

    def _make_room(self, values: tuple[int, ...], numbers: tuple[int, ...]) -> Memories:
        """Memory for these sizes and some beyond, in place of what there is."""
        capacity = {
            symbol: max(_LEAST_CAPACITY, 1 << (value - 1).bit_length())
            for symbol, value in zip(self.program.symbols, values, strict=True)
        }
        self.free_memories()
        rooms = self._compute(*capacity.values())
        needs = {
            b: number.known if number.position < 0 else max(number.of(rooms), number.of(numbers))
            for b, number in self._bytes.items()
        }
        self._memories = self._allocate_all(needs)
        return self._memories

    def _allocate_all(self, needs: dict[Buffer, int]) -> Memories:
        from vkml.vulkan import MemoryKind

        program, weights = self.program, self._weights
        inputs = _arena(
            [*(view.buffer for view in program.inputs.values()), *self._given, *self._counters], needs
        )
        output_buffers = [view.buffer for view in program.outputs.values()]
        large = [b for b in output_buffers if needs[b] >= LARGE_BYTES]
        fetched = frozenset(large if self.on.imports_host else ())
        guard = self._guard_bytes
        outputs = _arena([*(b for b in output_buffers if b not in fetched), program.status], needs, guard)
        device_only = [b for b in output_buffers if not b.host_only or needs[b] > DIRECT_OUTPUT_BYTES]
        copied = _arena(device_only, needs, guard)
        offsets, arena_bytes = program.offsets, program.arena_bytes
        if program.symbols:
            offsets, arena_bytes = plan_memory(program.levels, guard, needs=needs)
        self.input_bytes, self.output_bytes = inputs[1], outputs[1]
        self.arena_bytes = arena_bytes + copied[1]
        input_memory = self._allocate(inputs[1], MemoryKind.DEVICE, "inputs")
        staging = None
        if input_memory is not None and input_memory.host is None:
            staging = self._allocate(inputs[1], MemoryKind.UPLOAD, "input staging")
        for buffer in self._counters:
            zeros = np.zeros(needs[buffer], np.uint8)
            for memory in (input_memory, staging):  # runs may copy all of the latter
                if memory is not None:
                    self.on.upload(memory, inputs[0][buffer], zeros)
        output_memory = self._allocate(outputs[1], MemoryKind.READBACK, "outputs")
        arena = self._allocate(arena_bytes, MemoryKind.DEVICE, "activations")
        copied_memory = self._allocate(copied[1], MemoryKind.DEVICE, "outputs read by kernels")
        assert output_memory is not None and output_memory.host is not None

        def address(buffer: Buffer) -> int:
            if buffer.kind is BufferKind.CONSTANT:
                assert buffer.constant is not None
                return weights.address(buffer.constant)
            if buffer.kind in (BufferKind.INPUT, BufferKind.SIZES, BufferKind.COUNTERS):
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
        if guard:
            output_memory.host[:].view(np.uint32)[:] = GUARD_WORD
        at = outputs[0][program.status]
        self._status = output_memory.host[at : at + 16].view(np.uint32)
        self._status[:] = 0
        return Memories(
            needs,
            [(number.position, needs[b]) for b, number in self._bytes.items() if number.position >= 0],
            addresses,
            [] if self._tables else self._launches.placed(addresses),
            inputs[0],
            outputs[0],
            copied[0],
            input_memory,
            staging,
            output_memory,
            copied_memory,
            arena,
            offsets,
            fetched,
        )

    def _make_binding(
        self, key: Key, numbers: tuple[int, ...], memories: Memories, oldest: Binding | None
    ) -> Binding:
        """A binding, recorded into the commands of `oldest` where there is one."""
        outside = dict(key[1])
        commands = submission = tables = None
        if oldest is not None:
            oldest.is_recorded = False
            if oldest.reads is not None:
                oldest.reads.free()
            commands, submission, tables = oldest.commands, oldest.submission, oldest.tables
        try:
            if self._tables:
                tables = tables or self._tables.allocate()
                self._tables.fill(tables, {**memories.addresses, **outside})
            commands = self._record(numbers, memories, outside, commands, tables=tables)
            submission = submission or self.on.submission(commands, time_limit=self.time_limit)
        except BaseException:
            if oldest is not None:
                oldest.free()  # nothing it had is recorded any more
            elif tables is not None:
                tables.free()
            raise
        elsewhere = memories.fetched.union(outside)
        host = memories.staging or memories.input_memory
        inputs = None if host is None else host.host
        sizes = []
        for buffer, contents in zip(self._given, self._contents, strict=True):
            assert inputs is not None and buffer.constant is not None
            storage = buffer.constant.dtype.storage
            at = memories.inputs[buffer]
            place = inputs[at : at + len(contents) * storage.itemsize].view(storage)
            sizes.append((place, np.array([number.of(numbers) for number in contents], storage)))
        return Binding(
            key,
            numbers,
            commands,
            submission,
            _host_views(inputs, memories.inputs, self._input_forms, numbers, outside),
            _host_views(
                memories.output_memory.host, memories.outputs, self._output_forms, numbers, elsewhere
            ),
            [
                (number, storage, tuple([dim.of(numbers) for dim in dims]), memories.copied[buffer])
                for number, (buffer, storage, dims) in enumerate(self._output_forms)
                if buffer in memories.fetched and buffer not in outside
            ],
            sizes,
            tables,
        )

    def _record(
        self,
        numbers: tuple[int, ...],
        memories: Memories,
        outside: Mapping[Buffer, int],
        again: CommandBuffer | None = None,
        pool: TimestampPool | None = None,
        tables: Memory | None = None,
        bring: Callable[[CommandRecorder, Memories], None] | None = None,
    ) -> CommandBuffer:
        recorder = self.on.recorder("plan", again=again, queue=self.queue, has_event=pool is None)
        if pool is not None:
            recorder.reset_timestamps(pool)
        # A run that an event has ended is over. The validation layer does not know, and sees guards filled.
        if self.is_chained or self._guard_bytes:
            recorder.barrier()
        if self._guard_bytes:
            for memory in (memories.arena, memories.copied_memory):
                if memory is not None:
                    recorder.fill(memory, 0, memory.size, GUARD_WORD)
            recorder.barrier()
        (bring or self.record_inputs)(recorder, memories)
        if pool is not None:
            recorder.timestamp(pool, 0)
        given = outside if tables is None else {**outside, **self._tables.addresses(tables)}
        self._record_levels(recorder, numbers, memories, given, pool)
        elsewhere = memories.fetched.union(outside)
        copied = [(buffer, at) for buffer, at in memories.copied.items() if buffer not in elsewhere]
        if copied and memories.copied_memory is not None:
            recorder.barrier()
            for buffer, at in copied:
                size = self._bytes[buffer].of(numbers)
                if size:
                    to = memories.outputs[buffer]
                    recorder.copy(memories.copied_memory, at, memories.output_memory, to, size)
        recorder.barrier_to_host()
        return recorder.finish()

    def record_inputs(self, recorder: CommandRecorder, memories: Memories | None = None) -> None:
        """Records what brings that which the host has written to where kernels read it."""
        memories = memories or self._memories
        if memories is not None and memories.staging is not None and memories.input_memory is not None:
            recorder.copy(memories.staging, 0, memories.input_memory, 0, self.input_bytes)
            recorder.barrier()

    def record_levels(
        self,
        recorder: CommandRecorder,
        values: tuple[int, ...],
        places: Mapping[str, int],
        counts: tuple[Memory, int] | None = None,
    ) -> None:
        """Records a run of all launches, for sizes that it is bound to.

        Args:
            recorder: for this device.
            values: of the program's symbols.
            places: addresses of all inputs and outputs.
            counts: memory that has what `grids` returns when it runs, and where in it.
        """
        memories = self._memories
        assert memories is not None, "it is not bound"
        views = {**self.program.inputs, **self.program.outputs}
        outside = {view.buffer: places[name] for name, view in views.items()}
        numbers = self._compute(*values)
        self._record_levels(recorder, numbers, memories, outside, counts=counts, single=self._single)

    def grids(self, values: tuple[int, ...]) -> Array:
        """The numbers of workgroups of all launches, three each, for sizes that it is bound to."""
        memories = self._memories
        assert memories is not None, "it is not bound"
        launches = self._single[0]
        grids = launches.numbers(launches.placed(memories.addresses), self._compute(*values))[1]
        return np.array(grids, np.uint32)

    @functools.cached_property
    def _single(self) -> tuple[Launches, DispatchTable]:
        """The launches with one for each tensor: trips of a loop find their tensors in ever other places."""
        if not self._tables:
            return self._launches, self._table
        levels = self.program.single_levels
        kernels = list({id(launch.kernel): launch.kernel for level in levels for launch in level}.values())
        found = Launches(levels, compile_kernels(self.on, kernels, self._pipelines), Numbers())
        return found, self.on.dispatch_table(found.levels)

    def _record_levels(
        self,
        recorder: CommandRecorder,
        numbers: tuple[int, ...],
        memories: Memories,
        outside: Mapping[Buffer, int],
        pool: TimestampPool | None = None,
        counts: tuple[Memory, int] | None = None,
        single: tuple[Launches, DispatchTable] | None = None,
    ) -> None:
        launches, table = single or (self._launches, self._table if pool is None else self._table_of_each)
        is_elsewhere = bool(outside or single)
        words = launches.placed({**memories.addresses, **outside}) if is_elsewhere else memories.words
        push, grids = launches.numbers(words, numbers)
        recorder.dispatch_table(table, push, grids, pool, counts)

    @functools.cached_property
    def _table_of_each(self) -> DispatchTable:
        """The launches, each a level of its own."""
        return self.on.dispatch_table([[each] for level in self._launches.levels for each in level])

    def record(self, pool: TimestampPool | None = None) -> CommandBuffer:
        """The commands of the sizes that it ran last with, recorded once more.

        Args:
            pool: for a timestamp before the first launch and behind each, which then run one by one.
        """
        binding, memories = next(reversed(self._bindings.values())), self._memories
        assert memories is not None
        outside = dict(binding.key[1])
        return self._record(binding.numbers, memories, outside, pool=pool, tables=binding.tables)

    def record_bringing(
        self, binding: Binding, bring: Callable[[CommandRecorder, Memories], None]
    ) -> CommandBuffer:
        """The commands of a binding once more, with other ones in the place of `record_inputs`."""
        assert self._memories is not None and binding.is_recorded
        outside = dict(binding.key[1])
        return self._record(binding.numbers, self._memories, outside, tables=binding.tables, bring=bring)

    def fetch(self, binding: Binding) -> dict[int, Array]:
        """Has large outputs of a run that has been submitted copied to fresh arrays, by number."""
        memories = self._memories
        assert memories is not None and memories.copied_memory is not None
        if self._fetching is None:
            self._fetching = Fetching(self.on, self.queue, self.time_limit)
        return self._fetching.start(memories.copied_memory, binding.fetches)

    def finish_fetch(self) -> None:
        """Waits for the copies of `fetch`."""
        assert self._fetching is not None
        self._fetching.finish()

    def has_fetched(self) -> bool:
        """Whether the copies of `fetch` have been made."""
        assert self._fetching is not None
        return self._fetching.has_finished()

    def settle_fetch(self) -> None:
        """Waits for copies that may be under way, and that nobody wants any more."""
        if self._fetching is not None:
            self._fetching.settle()

    def _allocate(self, size: int, kind: Any, label: str) -> Memory | None:
        if not size:
            return None
        memory = self.on.allocate(size, kind, label, self.memory_limit)
        self._allocated.append(memory)
        return memory

    def free_memories(self) -> None:
        """Frees commands and the memory that they use; nothing of the program may be running."""
        if self._fetching is not None:
            self._fetching.free()
            self._fetching = None
        while self._bindings:
            self._bindings.popitem()[1].free()
        self._memories = self._latest = None
        while self._allocated:
            self._allocated.pop().free()


def _form(view: View, numbers: Numbers) -> _Form:
    return view.buffer, view.dtype.storage, tuple([numbers.add(size) for size in view.shape])


def _host_views(
    host: Array | None,
    offsets: Mapping[Buffer, int],
    forms: Sequence[_Form],
    numbers: tuple[int, ...],
    elsewhere: Collection[Buffer],
) -> list[Array]:
    """Values in memory of the host; something else for those that lie outside of it.

    Args:
        host: the memory.
        offsets: of buffers.
        forms: of the values.
        numbers: computed from open sizes.
        elsewhere: buffers that lie outside of it.
    """
    views = []
    for buffer, storage, dims in forms:
        if buffer in elsewhere:
            views.append(_ELSEWHERE)
        else:
            assert host is not None
            shape = tuple([number.of(numbers) for number in dims])
            views.append(np.ndarray(shape, storage, host, offsets[buffer]))
    return views


def _arena(
    buffers: Sequence[Buffer], needs: Mapping[Buffer, int], guard_bytes: int = 0
) -> tuple[dict[Buffer, int], int]:
    guard = -(-guard_bytes // ALIGNMENT) * ALIGNMENT
    offsets, size = {}, 0
    for buffer in buffers:
        offsets[buffer] = size + guard
        size += -(-max(1, needs[buffer]) // ALIGNMENT) * ALIGNMENT + 2 * guard
    return offsets, size
