"""Loops on a device whose number of trips is known: all trips at once."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from vkml.dataclasses import dataclass
from vkml.engine.device_array import DeviceArray
from vkml.errors import DeviceError
from vkml.ir.dtypes import DType
from vkml.lowering.memory import ALIGNMENT

if TYPE_CHECKING:
    from vkml.engine.programs import VulkanBound
    from vkml.vulkan import CommandBuffer, CommandRecorder, Memory, Submission

Array = np.ndarray[Any, Any]
MOST_DISPATCHES = 1 << 14
"""Dispatches of a recording; to record one takes 3 µs, and some hundred bytes."""
CHUNK = 512
"""Dispatches of one submission: systems that show pictures end those that take seconds."""
_Type = tuple[DType, tuple[int, ...]]


@dataclass(frozen=True)
class Source:
    """Where a value of a trip comes from."""

    kind: str
    """"number": of the trip, "condition": always true, "carried", "captured", "made": by the program,
    "constant"."""
    at: int = 0
    """Which of its kind."""


@dataclass(frozen=True, eq=False)
class Wiring:
    """What a body's program reads and makes, seen from the loop.

    Attributes:
        inputs: of the program, in its order.
        condition: of whether there is another trip; None: there always is.
        carried: what becomes of each carried value.
        stacked: what is collected over all trips.
        carried_types: element type and shape of each carried value, the same in all trips.
        made_types: of the program's outputs, in its order.
        captured_types: of what the body captures.
        constants: arrays.
        dispatches: of one trip.
    """

    inputs: tuple[Source, ...]
    condition: Source | None
    carried: tuple[Source, ...]
    stacked: tuple[Source, ...]
    carried_types: tuple[_Type, ...]
    made_types: tuple[_Type, ...]
    captured_types: Mapping[int, _Type]
    constants: tuple[Array, ...]
    dispatches: int


def size_of(type_: _Type) -> int:
    return int(np.prod(type_[1], dtype=np.int64)) * type_[0].storage.itemsize


def _padded(size: int) -> int:
    return -(-max(1, size) // ALIGNMENT) * ALIGNMENT


class Room:
    """Ranges of one memory, given out one after the other, and then fetched together."""

    def __init__(self) -> None:
        self.size = 0

    def take(self, size: int) -> int:
        at = self.size
        self.size += _padded(size)
        return at


class LoopMemory:
    """Memory and commands of a loop whose body is one program. To be used under the lock of its flight.

    Values that are carried change places among ranges of this memory, never one that the same trip reads.

    Args:
        bound: the program.
        values: of its open sizes.
        wiring: how values go from trip to trip.
    """

    def __init__(self, bound: VulkanBound, values: tuple[int, ...], wiring: Wiring) -> None:
        self._bound, self._wiring, self._values = bound, wiring, values
        self._memories: list[Memory] = []
        self._submissions: list[Submission] = []
        self._commands: list[CommandBuffer] = []
        self._room = room = Room()
        self._first = tuple([room.take(size_of(type_)) for type_ in wiring.carried_types])
        self._captured = {at: room.take(size_of(type_)) for at, type_ in wiring.captured_types.items()}
        self._constants = [room.take(array.nbytes) for array in wiring.constants]
        self._condition = room.take(8)
        self._free: dict[int, list[int]] = {}
        """Ranges for values that are carried, by their size."""

    def _stride(self, source: Source) -> int:
        """Bytes from trip to trip of what is collected: kernels may write sixteen at a time."""
        return -(-size_of(self._type(source)) // 16) * 16

    def _rows(self, source: Source, at: int, count: int) -> Array:
        """What has been collected in the host's memory, of so many trips."""
        host = self._outside.host
        assert host is not None
        dtype, shape = self._type(source)
        part = host[at : at + count * self._stride(source)].reshape(count, -1)
        rows = part[:, : size_of((dtype, shape))].copy()
        return rows.view(dtype.storage).reshape(count, *shape)

    def _type(self, source: Source) -> _Type:
        wiring = self._wiring
        if source.kind == "made":
            return wiring.made_types[source.at]
        if source.kind == "carried":
            return wiring.carried_types[source.at]
        return wiring.captured_types[source.at]

    def _place(self, source: Source, number: int, state: Sequence[int], made: Mapping[int, int]) -> int:
        """Where a value is in a trip whose number is at `number`."""
        if source.kind == "made":
            return made[source.at]
        if source.kind == "number":
            return number
        if source.kind == "condition":
            return self._condition
        if source.kind == "carried":
            return state[source.at]
        return self._constants[source.at] if source.kind == "constant" else self._captured[source.at]

    def _find_room(self, places: dict[int, int], state: Sequence[int]) -> None:
        """Completes `places`, of what the program makes, by ranges that nothing of this trip lies in."""
        taken = {*state, *places.values()}
        for number, type_ in enumerate(self._wiring.made_types):
            if number not in places:
                size = _padded(size_of(type_))
                known = self._free.setdefault(size, [])
                at = next((each for each in known if each not in taken), None)
                if at is None:
                    at = self._room.take(size)
                    known.append(at)
                places[number] = at
                taken.add(at)

    def _allocate(self, outside: int) -> None:
        """Takes memory on the device for all that was planned, and `outside` bytes that the host reads."""
        from vkml.vulkan import MemoryKind

        bound = self._bound
        for size, kind, label in (
            (self._room.size, MemoryKind.DEVICE, "values of a loop"),
            (max(outside, ALIGNMENT), MemoryKind.READBACK, "results of a loop"),
        ):
            self._memories.append(bound.on.allocate(size, kind, label, bound.memory_limit))
        self._inside, self._outside = self._memories
        for at, array in zip(self._constants, self._wiring.constants, strict=True):
            bound.on.upload(self._inside, at, array)
        bound.on.upload(self._inside, self._condition, np.ones(8, np.bool_))

    def _record_trip(
        self,
        recorder: CommandRecorder,
        reads: Sequence[int],
        writes: Sequence[int],
        counts: tuple[Memory, int] | None = None,
    ) -> None:
        """Records a trip; see `RecordedProgram.record_levels`."""
        bound, inside = self._bound, self._inside.address
        places = dict(zip(bound.inputs, [inside + at for at in reads], strict=True))
        places |= zip(bound.outputs, [inside + at for at in writes], strict=True)
        bound.record_levels(recorder, self._values, places, counts)

    def _submission(self, recorder: CommandRecorder) -> Submission:
        commands = recorder.finish()
        self._commands.append(commands)
        made = self._bound.on.submission(commands, time_limit=self._bound.time_limit)
        self._submissions.append(made)
        return made

    def _begin(self, carried: Sequence[Any], captured: Mapping[int, Any]) -> None:
        for at, value in zip(self._first, carried, strict=True):
            self._put(at, value)
        for number, value in captured.items():
            self._put(self._captured[number], value)
        self._bound.write_sizes(self._values)

    def _put(self, at: int, value: Any) -> None:
        device = self._bound.on
        if isinstance(value, DeviceArray) and value.device is device:
            value.copy_into(self._inside, at)
        else:
            array = value.numpy() if isinstance(value, DeviceArray) else value
            device.upload(self._inside, at, np.ascontiguousarray(array))

    def _settle(self) -> None:
        """After an interrupt: waits for what has been submitted."""
        with contextlib.suppress(DeviceError):
            for submission in self._submissions:
                submission.settle()

    def _carried_results(self, outside: Sequence[int]) -> list[Array]:
        host = self._outside.host
        assert host is not None
        types = self._wiring.carried_types
        return [
            host[at : at + size_of(type_)].view(type_[0].storage).reshape(type_[1]).copy()
            for at, type_ in zip(outside, types, strict=True)
        ]

    def free(self) -> None:
        """Frees commands and memory; nothing of it may be running."""
        for submission in self._submissions:
            submission.free()
        for commands in self._commands:
            commands.free()
        for memory in self._memories:
            memory.free()
        self._submissions, self._commands, self._memories = [], [], []

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.free()  # where an interrupt came before it was where others free it


class Trips(LoopMemory):
    """So many trips of a loop, recorded one behind the other; what they collect is written where it stays.

    Args:
        bound: the program.
        values: of its open sizes.
        wiring: how values go from trip to trip.
        count: trips, at least one.

    Raises:
        OutOfMemory: there is too little.
    """

    def __init__(self, bound: VulkanBound, values: tuple[int, ...], wiring: Wiring, count: int) -> None:
        super().__init__(bound, values, wiring)
        self._count = count
        self._numbers = self._room.take(count * ALIGNMENT)
        self._stacks = [self._room.take(count * self._stride(source)) for source in wiring.stacked]
        self._plan()
        results = Room()
        sizes = [size_of(type_) for type_ in wiring.carried_types]
        sizes += [count * self._stride(source) for source in wiring.stacked]
        starts = (*self._last, *self._stacks)
        self._out = [(at, results.take(size), size) for at, size in zip(starts, sizes, strict=True)]
        try:
            self._allocate(results.size)
            numbers = np.zeros((count, ALIGNMENT // 8), np.int64)
            numbers[:, 0] = np.arange(count)
            bound.on.upload(self._inside, self._numbers, numbers)
            self._record()
        except BaseException:
            self.free()
            raise

    def _plan(self) -> None:
        """Says where each trip reads, writes and copies, and where carried values are at the end."""
        wiring = self._wiring
        state = list(self._first)
        self._reads: list[list[int]] = []
        self._writes: list[list[int]] = []
        self._copies: list[list[tuple[int, int, int]]] = []
        for trip in range(self._count):
            number = self._numbers + trip * ALIGNMENT
            made: dict[int, int] = {}
            self._reads.append([self._place(source, number, state, made) for source in wiring.inputs])
            copies = []
            for source, start in zip(wiring.stacked, self._stacks, strict=True):
                at = start + trip * self._stride(source)
                if source.kind == "made" and source.at not in made:
                    made[source.at] = at
                else:
                    copies.append((source, at))
            self._find_room(made, state)
            self._writes.append([made[output] for output in range(len(wiring.made_types))])
            self._copies.append(
                [
                    (self._place(source, number, state, made), at, size_of(self._type(source)))
                    for source, at in copies
                ]
            )
            state = [self._place(source, number, state, made) for source in wiring.carried]
        self._last = state

    def _record(self) -> None:
        bound = self._bound
        trips = max(1, CHUNK // max(1, self._wiring.dispatches))
        for first in range(0, self._count, trips):
            last = min(self._count, first + trips)
            recorder = bound.on.recorder("trips", queue=bound.queue)
            if not first:
                bound.record_inputs(recorder)
            for trip in range(first, last):
                recorder.barrier()
                self._record_trip(recorder, self._reads[trip], self._writes[trip])
                if self._copies[trip]:
                    recorder.barrier()
                for source, target, size in self._copies[trip]:
                    if size:
                        recorder.copy(self._inside, source, self._inside, target, size)
            if last == self._count:
                recorder.barrier()
                for at, to, size in self._out:
                    if size:
                        recorder.copy(self._inside, at, self._outside, to, size)
                recorder.barrier_to_host()
            self._submission(recorder)

    def run(self, carried: Sequence[Any], captured: Mapping[int, Any]) -> list[Array]:
        """Runs all trips.

        Args:
            carried: values before the first trip.
            captured: by their number.

        Returns:
            Fresh arrays: the carried values behind the last trip, then what was collected, trip by trip.
        """
        self._begin(carried, captured)
        try:
            for submission in self._submissions:
                submission.submit()
            self._submissions[-1].finish()
        except BaseException:
            self._settle()
            raise
        self._bound.check()
        places = [at for _, at, _ in self._out]
        found = self._carried_results(places[: len(self._first)])
        stacks = zip(self._wiring.stacked, places[len(self._first) :], strict=True)
        return found + [self._rows(source, at, self._count) for source, at in stacks]
