"""All trips of a loop at once, where their number is known: recorded one behind the other."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from vkml.engine.device_array import DeviceArray
from vkml.errors import DeviceError
from vkml.ir.dtypes import DType
from vkml.lowering.memory import ALIGNMENT

if TYPE_CHECKING:
    from vkml.engine.programs import VulkanBound
    from vkml.vulkan import Memory, Submission

Array = np.ndarray[Any, Any]
MOST_DISPATCHES = 1 << 14
"""Dispatches of a recording; to record one takes 3 µs, and some hundred bytes."""
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
        carried: what becomes of each carried value.
        stacked: what is collected over all trips.
        carried_types: element type and shape of each carried value, the same in all trips.
        made_types: of the program's outputs, in its order.
        captured_types: of what the body captures.
        constants: arrays.
        dispatches: of one trip.
    """

    inputs: tuple[Source, ...]
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


class Trips:
    """So many trips of a loop whose body is one program, recorded.

    Values that are carried change places among ranges of its own memory, never one that the same trip reads;
    what is collected is written where it stays. To be used under the lock of the program's flight.

    Args:
        bound: the program.
        values: of its open sizes.
        count: trips, at least one.
        wiring: how values go from trip to trip.

    Raises:
        OutOfMemory: there is too little.
    """

    def __init__(self, bound: VulkanBound, values: tuple[int, ...], count: int, wiring: Wiring) -> None:
        self._bound, self._wiring, self._count, self._values = bound, wiring, count, values
        self._memories: list[Memory] = []
        self._submissions: list[Submission] = []
        self._commands: list[Any] = []
        room = _Room()
        self._first = [room.take(_size(type_)) for type_ in wiring.carried_types]
        self._captured = {at: room.take(_size(type_)) for at, type_ in wiring.captured_types.items()}
        self._constants = [room.take(array.nbytes) for array in wiring.constants]
        self._condition = room.take(8)
        self._numbers = room.take(count * ALIGNMENT)
        self._stacks = [room.take(count * self._stride(source)) for source in wiring.stacked]
        self._free: dict[int, list[int]] = {}
        """Ranges for values that are carried, by their size."""
        self._plan(room)
        try:
            self._build(room, values)
        except BaseException:
            self.free()
            raise

    def _type(self, source: Source) -> _Type:
        wiring = self._wiring
        if source.kind == "made":
            return wiring.made_types[source.at]
        if source.kind == "carried":
            return wiring.carried_types[source.at]
        return wiring.captured_types[source.at]

    def _stride(self, source: Source) -> int:
        """Bytes from trip to trip of what is collected: kernels may write sixteen at a time."""
        return -(-_size(self._type(source)) // 16) * 16

    def _plan(self, room: _Room) -> None:
        """Says where each trip reads, writes and copies, and where carried values are at the end."""
        wiring = self._wiring
        state = list(self._first)
        self._reads: list[list[int]] = []
        self._writes: list[list[int]] = []
        self._copies: list[list[tuple[int, int, int]]] = []
        for trip in range(self._count):
            self._reads.append([self._place(source, trip, state) for source in wiring.inputs])
            places: dict[int, int] = {}
            copies = []
            for source, start in zip(wiring.stacked, self._stacks, strict=True):
                at = start + trip * self._stride(source)
                if source.kind == "made" and source.at not in places:
                    places[source.at] = at
                    continue
                copies.append((source, at))
            taken = {*state, *places.values()}
            for number, type_ in enumerate(wiring.made_types):
                if number not in places:
                    places[number] = self._unused(_padded(_size(type_)), taken, room)
                    taken.add(places[number])
            self._writes.append([places[number] for number in range(len(wiring.made_types))])
            self._copies.append(
                [
                    (
                        places[s.at] if s.kind == "made" else self._place(s, trip, state),
                        at,
                        _size(self._type(s)),
                    )
                    for s, at in copies
                ]
            )
            state = [
                places[source.at] if source.kind == "made" else self._place(source, trip, state)
                for source in wiring.carried
            ]
        self._last = state

    def _place(self, source: Source, trip: int, state: Sequence[int]) -> int:
        if source.kind == "number":
            return self._numbers + trip * ALIGNMENT
        if source.kind == "condition":
            return self._condition
        if source.kind == "carried":
            return state[source.at]
        return self._constants[source.at] if source.kind == "constant" else self._captured[source.at]

    def _unused(self, size: int, taken: set[int], room: _Room) -> int:
        known = self._free.setdefault(size, [])
        for at in known:
            if at not in taken:
                return at
        known.append(room.take(size))
        return known[-1]

    def _build(self, room: _Room, values: tuple[int, ...]) -> None:
        from vkml.vulkan import MemoryKind

        bound, wiring = self._bound, self._wiring
        device = bound.on
        self._inside = self._take(room.size, MemoryKind.DEVICE, "values of a loop")
        results = _Room()
        self._out = [
            (at, results.take(size), size)
            for at, size in [
                *((at, _size(type_)) for at, type_ in zip(self._last, wiring.carried_types, strict=True)),
                *(
                    (at, self._count * self._stride(source))
                    for at, source in zip(self._stacks, wiring.stacked, strict=True)
                ),
            ]
        ]
        self._outside = self._take(max(results.size, ALIGNMENT), MemoryKind.READBACK, "results of a loop")
        for at, array in zip(self._constants, wiring.constants, strict=True):
            device.upload(self._inside, at, array)
        numbers = np.zeros((self._count, ALIGNMENT // 8), np.int64)
        numbers[:, 0] = np.arange(self._count)
        device.upload(self._inside, self._numbers, numbers)
        device.upload(self._inside, self._condition, np.ones(8, np.bool_))
        levels = max(1, len(bound.program.dispatches))
        trips = max(1, _CHUNK // levels)
        for first in range(0, self._count, trips):
            last = min(self._count, first + trips)
            recorder = device.recorder("trips", queue=bound.queue)
            if not first:
                bound.record_inputs(recorder)
            for trip in range(first, last):
                recorder.barrier()
                start = self._inside.address
                places = dict(zip(bound.inputs, [start + at for at in self._reads[trip]], strict=True))
                places |= zip(bound.outputs, [start + at for at in self._writes[trip]], strict=True)
                bound.record_levels(recorder, values, places)
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
            commands = recorder.finish()
            self._commands.append(commands)
            self._submissions.append(device.submission(commands, time_limit=bound.time_limit))

    def _take(self, size: int, kind: Any, label: str) -> Memory:
        made = self._bound.on.allocate(size, kind, label, self._bound.memory_limit)
        self._memories.append(made)
        return made

    def run(self, carried: Sequence[Any], captured: Mapping[int, Any]) -> list[Array]:
        """Runs all trips.

        Args:
            carried: values before the first trip.
            captured: by their number.

        Returns:
            Fresh arrays: the carried values behind the last trip, then what was collected, trip by trip.
        """
        for at, value in zip(self._first, carried, strict=True):
            self._put(at, value)
        for number, value in captured.items():
            self._put(self._captured[number], value)
        self._bound.write_sizes(self._values)
        try:
            for submission in self._submissions:
                submission.submit()
            self._submissions[-1].finish()
        except BaseException:
            with contextlib.suppress(DeviceError):
                for submission in self._submissions:
                    submission.wait(timeout_seconds=self._bound.time_limit)
            raise
        self._bound.check()
        return self._results()

    def _put(self, at: int, value: Any) -> None:
        device = self._bound.on
        if isinstance(value, DeviceArray) and value.device is device:
            value.copy_into(self._inside, at)
        else:
            array = value.numpy() if isinstance(value, DeviceArray) else value
            device.upload(self._inside, at, np.ascontiguousarray(array))

    def _results(self) -> list[Array]:
        host = self._outside.host
        assert host is not None
        found: list[Array] = []
        types = [*self._wiring.carried_types, *map(self._type, self._wiring.stacked)]
        for number, ((_, at, size), (dtype, shape)) in enumerate(zip(self._out, types, strict=True)):
            part = host[at : at + size]
            if number < len(self._first):
                found.append(part.view(dtype.storage).reshape(shape).copy())
                continue
            rows = part.reshape(self._count, -1)[:, : _size((dtype, shape))]
            found.append(np.ascontiguousarray(rows).view(dtype.storage).reshape(self._count, *shape))
        return found

    def free(self) -> None:
        """Frees commands and memory; nothing of it may be running."""
        for submission in self._submissions:
            submission.free()
        for commands in self._commands:
            commands.free()
        for memory in self._memories:
            memory.free()
        self._submissions, self._commands, self._memories = [], [], []
