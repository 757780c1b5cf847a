"""Loops on a device: all trips at once, where their number is known, else one behind the other."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from vkml.engine.device_array import DeviceArray
from vkml.engine.ending import require_going
from vkml.errors import DeviceError
from vkml.ir.dtypes import DType
from vkml.ir.lowering import CannotLower
from vkml.lowering.memory import ALIGNMENT

if TYPE_CHECKING:
    from vkml.engine.programs import VulkanBound
    from vkml.vulkan import CommandBuffer, CommandRecorder, Memory, Submission

Array = np.ndarray[Any, Any]
MOST_DISPATCHES = 1 << 14
"""Dispatches of a recording; to record one takes 3 µs, and some hundred bytes."""
_MOST_STATES = 16
"""Arrangements of carried values that are recorded."""
_CHUNK = 512
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


def _size(type_: _Type) -> int:
    return int(np.prod(type_[1], dtype=np.int64)) * type_[0].storage.itemsize


def _padded(size: int) -> int:
    return -(-max(1, size) // ALIGNMENT) * ALIGNMENT


class _Room:
    """Ranges of one memory, given out one after the other, and then fetched together."""

    def __init__(self) -> None:
        self.size = 0

    def take(self, size: int) -> int:
        at = self.size
        self.size += _padded(size)
        return at


class _Loop:
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
        self._room = room = _Room()
        self._first = tuple([room.take(_size(type_)) for type_ in wiring.carried_types])
        self._captured = {at: room.take(_size(type_)) for at, type_ in wiring.captured_types.items()}
        self._constants = [room.take(array.nbytes) for array in wiring.constants]
        self._condition = room.take(8)
        self._free: dict[int, list[int]] = {}
        """Ranges for values that are carried, by their size."""

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
                size = _padded(_size(type_))
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

    def _record_trip(self, recorder: CommandRecorder, reads: Sequence[int], writes: Sequence[int]) -> None:
        """Records a trip behind what was recorded before; negative places are in the host's memory."""
        recorder.barrier()
        bound = self._bound
        inside, outside = self._inside.address, self._outside.address

        def addresses(places: Sequence[int]) -> list[int]:
            return [inside + at if at >= 0 else outside + ~at for at in places]

        places = dict(zip(bound.inputs, addresses(reads), strict=True))
        places |= zip(bound.outputs, addresses(writes), strict=True)
        bound.record_levels(recorder, self._values, places)

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
                submission.wait(timeout_seconds=self._bound.time_limit)

    def _carried_results(self, outside: Sequence[int]) -> list[Array]:
        host = self._outside.host
        assert host is not None
        types = self._wiring.carried_types
        return [
            host[at : at + _size(type_)].view(type_[0].storage).reshape(type_[1]).copy()
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


class Trips(_Loop):
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
        results = _Room()
        sizes = [_size(type_) for type_ in wiring.carried_types]
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

    def _stride(self, source: Source) -> int:
        """Bytes from trip to trip of what is collected: kernels may write sixteen at a time."""
        return -(-_size(self._type(source)) // 16) * 16

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
                    (self._place(source, number, state, made), at, _size(self._type(source)))
                    for source, at in copies
                ]
            )
            state = [self._place(source, number, state, made) for source in wiring.carried]
        self._last = state

    def _record(self) -> None:
        bound = self._bound
        trips = max(1, _CHUNK // max(1, self._wiring.dispatches))
        for first in range(0, self._count, trips):
            last = min(self._count, first + trips)
            recorder = bound.on.recorder("trips", queue=bound.queue)
            if not first:
                bound.record_inputs(recorder)
            for trip in range(first, last):
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
        host = self._outside.host
        assert host is not None
        for source, at in zip(self._wiring.stacked, places[len(self._first) :], strict=True):
            dtype, shape = self._type(source)
            part = host[at : at + self._count * self._stride(source)].reshape(self._count, -1)
            rows = np.ascontiguousarray(part[:, : _size((dtype, shape))])
            found.append(rows.view(dtype.storage).reshape(self._count, *shape))
        return found


@dataclass(frozen=True, eq=False)
class _Step:
    """A recorded trip that begins with carried values in certain places."""

    submission: Submission
    number: int
    """Where it finds its number, if it reads that."""
    condition: int
    """Where it leaves its condition for the host."""


class SteppedTrips(_Loop):
    """Trips of which each says whether there is another: a submission each, and one byte read by the host.

    A trip is submitted before the one in front of it has said so; where there is no other, what it made is
    looked at by nobody. Carried values return to places where they have been after a few trips; a trip from
    each such state is recorded twice, for two of them may be under way.

    Args:
        bound: the program.
        values: of its open sizes.
        wiring: how values go from trip to trip; nothing is collected, and the program makes the condition.

    Raises:
        CannotLower: values go round without coming back to a place.
        OutOfMemory: there is too little memory.
    """

    def __init__(self, bound: VulkanBound, values: tuple[int, ...], wiring: Wiring) -> None:
        super().__init__(bound, values, wiring)
        self._reads_number = any(source.kind == "number" for source in wiring.inputs)
        self._steps: dict[tuple[int, ...], tuple[_Step, _Step]] = {}
        self._next: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._ends: dict[tuple[int, ...], Submission] = {}
        assert wiring.condition is not None
        results = _Room()
        numbers, conditions = (self._room.take(8), self._room.take(8)), (results.take(8), results.take(8))
        self._out = [results.take(_size(type_)) for type_ in wiring.carried_types]
        trips = []
        state = self._first
        while state not in self._next:
            if len(self._next) == _MOST_STATES:
                raise CannotLower("what a loop carries changes places without end")
            made = {wiring.condition.at: -1}
            self._find_room(made, state)
            self._next[state] = tuple([self._place(each, 0, state, made) for each in wiring.carried])
            for number, condition in zip(numbers, conditions, strict=True):
                reads = [self._place(each, number, state, made) for each in wiring.inputs]
                places = {**made, wiring.condition.at: ~condition}
                writes = [places[output] for output in range(len(wiring.made_types))]
                trips.append((state, number, condition, reads, writes))
            state = self._next[state]
        try:
            self._allocate(results.size)
            steps = [
                (state, _Step(self._recorded(reads, writes), number, condition))
                for state, number, condition, reads, writes in trips
            ]
            self._steps = {
                state: (one, other) for (state, one), (_, other) in zip(steps[::2], steps[1::2], strict=True)
            }
            self._ends = {state: self._recorded_end(state) for state in self._steps}
        except BaseException:
            self.free()
            raise

    def _recorded(self, reads: Sequence[int], writes: Sequence[int]) -> Submission:
        recorder = self._bound.on.recorder("trip", queue=self._bound.queue)
        self._bound.record_inputs(recorder)
        self._record_trip(recorder, reads, writes)
        recorder.barrier_to_host()
        return self._submission(recorder)

    def _recorded_end(self, state: Sequence[int]) -> Submission:
        recorder = self._bound.on.recorder("results of a loop", queue=self._bound.queue)
        recorder.barrier()
        for at, to, type_ in zip(state, self._out, self._wiring.carried_types, strict=True):
            if _size(type_):
                recorder.copy(self._inside, at, self._outside, to, _size(type_))
        recorder.barrier_to_host()
        return self._submission(recorder)

    def run(self, most: int | None, carried: Sequence[Any], captured: Mapping[int, Any]) -> list[Array]:
        """Runs trips until one says that there is no other.

        Args:
            most: trips; None: any number.
            carried: values before the first trip.
            captured: by their number.

        Returns:
            Fresh arrays, the carried values behind the last trip.
        """
        try:
            for is_ahead in (True, False):
                self._begin(carried, captured)
                state = self._run(most, is_ahead)
                if state is not None:
                    self._ends[state].run()
                    return self._carried_results(self._out)
        except BaseException:
            self._settle()
            raise
        raise AssertionError("a trip that is not ahead of others says what is wrong")

    def _run(self, most: int | None, is_ahead: bool) -> tuple[int, ...] | None:
        """Where the carried values are at the end; None where a trip complained that need not have run."""
        host = self._outside.host
        assert host is not None
        conditions = memoryview(host.data)
        state, trip = self._first, 0
        step = self._submit(state, trip)
        while True:
            require_going()
            following, ahead = self._next[state], None
            is_last = most is not None and trip + 1 >= most
            if is_ahead and not is_last:
                ahead = self._submit(following, trip + 1)
            step.submission.finish()
            if ahead is not None and self._bound.has_complaint:
                ahead.submission.finish()
                self._bound.forget_complaint()
                return None
            self._bound.check()
            if is_last or not conditions[step.condition]:
                if ahead is not None:
                    ahead.submission.finish()
                    self._bound.forget_complaint()
                return following
            state, trip = following, trip + 1
            step = ahead or self._submit(state, trip)

    def _submit(self, state: tuple[int, ...], trip: int) -> _Step:
        step = self._steps[state][trip % 2]
        if self._reads_number:
            self._bound.on.upload(self._inside, step.number, np.array([trip], np.int64))
        step.submission.submit()
        return step
