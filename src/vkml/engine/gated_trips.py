"""Loops on a device that finds their end: many trips a submission, and those behind the end do nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from vkml.dataclasses import dataclass
from vkml.engine.compilation import compile_kernels
from vkml.engine.ending import require_going
from vkml.engine.trips import CHUNK, LoopMemory, Room, Source, Wiring, size_of
from vkml.ir.lowering import CannotLower
from vkml.kernels.loop_gate import OVER_BY_CONDITION, gate_arguments, gate_kernel

if TYPE_CHECKING:
    from vkml.engine.programs import VulkanBound
    from vkml.vulkan import CommandRecorder, Pipeline, Submission

Array = np.ndarray[Any, Any]
_MOST_STATES = 16
"""Arrangements of carried values."""
_SIZES = (64, 16, 4, 1)
"""Trips of a submission. A trip that does nothing costs time, too: for each of its launches, where these are
indirect."""
_COLLECTED_BYTES = 64 << 20
"""Of what the trips of a submission collect."""
_MOST_LEFT = 1 << 31
_NUMBER, _LEFT, _OVER = 0, 8, 12
"""Where in the gate's memory are the trip's number, trips left, and what each submission begins anew."""
_CONTROL_BYTES = 20


@dataclass(frozen=True)
class _Trip:
    """A trip that begins with carried values in certain places: where it reads, writes, and leaves them."""

    reads: tuple[int, ...]
    writes: tuple[int, ...]
    condition: int
    collected: tuple[int, ...]
    after: tuple[int, ...]


class GatedTrips(LoopMemory):
    """Trips of which each says whether there is another, or of which there are too many to record them all.

    The device reads switches before it runs a trip's launches: one word for all of them where it has
    conditional rendering, else how many workgroups each of them has. Behind each trip a kernel of one thread
    looks at its condition, and makes the switches zero where there is no other. So the host asks once in many
    trips, and what would have been computed behind the end never is. Carried values return to places where
    they have been after a few trips.

    Args:
        bound: the program.
        values: of its open sizes.
        wiring: how values go from trip to trip; a condition is made by the program.

    Raises:
        CannotLower: values go round without coming back to a place, or a trip's number is carried, which
            is counted up where it lies.
        OutOfMemory: there is too little memory.
    """

    def __init__(self, bound: VulkanBound, values: tuple[int, ...], wiring: Wiring) -> None:
        if any(source.kind == "number" for source in wiring.carried):
            raise CannotLower("a loop carries the number of its trip")
        super().__init__(bound, values, wiring)
        self._is_conditional = bound.on.info.capabilities.conditional_rendering
        # On an H200 an indirect dispatch behind a barrier takes 2 µs more than one with numbers of its own.
        self._on = np.ones(1, np.uint32) if self._is_conditional else bound.grids(values)
        """The switches while there is another trip."""
        self._largest = self._most_trips()
        self._control = self._room.take(_CONTROL_BYTES)
        self._initial, self._switches = (self._room.take(self._on.nbytes) for _ in range(2))
        self._slots = [self._room.take(self._largest * self._stride(source)) for source in wiring.stacked]
        self._trips = self._plan()
        results = Room()
        self._report = results.take(8)
        self._carried = [results.take(size_of(type_)) for type_ in wiring.carried_types]
        self._collected = [results.take(self._largest * self._stride(source)) for source in wiring.stacked]
        self._chunks: dict[tuple[tuple[int, ...], int], Submission] = {}
        """By where carried values are at their beginning, and the number of trips."""
        self._ends: dict[tuple[int, ...], Submission] = {}
        self._expected = 0
        """Trips of the last run."""
        self._pipelines: list[Pipeline] = []
        try:
            self._allocate(results.size)
            kernel = gate_kernel()
            self._gate = compile_kernels(bound.on, [kernel], self._pipelines)[id(kernel)]
            bound.on.upload(self._inside, self._initial, self._on)
        except BaseException:
            self.free()
            raise

    def _most_trips(self) -> int:
        collected = sum(self._stride(source) for source in self._wiring.stacked)
        most = min(CHUNK // (self._wiring.dispatches + 1), _COLLECTED_BYTES // max(1, collected))
        return next((size for size in _SIZES if size <= most), 1)

    def _plan(self) -> dict[tuple[int, ...], _Trip]:
        """The trips from all arrangements that come up."""
        wiring, number = self._wiring, self._control + _NUMBER
        trips: dict[tuple[int, ...], _Trip] = {}
        state = self._first
        while state not in trips:
            if len(trips) == _MOST_STATES:
                raise CannotLower("what a loop carries changes places without end")
            made: dict[int, int] = {}
            self._find_room(made, state)

            def places(
                sources: Sequence[Source], state: tuple[int, ...] = state, made: dict[int, int] = made
            ) -> tuple[int, ...]:
                return tuple([self._place(source, number, state, made) for source in sources])

            condition = wiring.condition or Source("condition")
            trips[state] = trip = _Trip(
                places(wiring.inputs),
                tuple([made[output] for output in range(len(wiring.made_types))]),
                places([condition])[0],
                places(wiring.stacked),
                places(wiring.carried),
            )
            state = trip.after
        return trips

    def _chunk(self, state: tuple[int, ...], size: int) -> Submission:
        known = self._chunks.get((state, size))
        if known is None:
            known = self._chunks[state, size] = self._recorded(state, size)
        return known

    def _recorded(self, state: tuple[int, ...], size: int) -> Submission:
        inside, outside, stacked = self._inside, self._outside, self._wiring.stacked
        recorder = self._bound.on.recorder("trips", queue=self._bound.queue)
        self._bound.record_inputs(recorder)
        if self._on.size:
            recorder.copy(inside, self._initial, inside, self._switches, self._on.nbytes)
        recorder.fill(inside, self._control + _OVER, _CONTROL_BYTES - _OVER)
        for number in range(size):
            trip = self._trips[state]
            self._record_launches(recorder, trip)
            for source, at, slot in zip(stacked, trip.collected, self._slots, strict=True):
                if self._stride(source):
                    to = slot + number * self._stride(source)
                    recorder.copy(inside, at, inside, to, size_of(self._type(source)))
            push = gate_arguments(
                inside.address + trip.condition,
                inside.address + self._control,
                inside.address + self._switches,
                outside.address + self._report,
                len(self._on),
            )
            recorder.dispatch(self._gate, push, 1)
            state = trip.after
        # What is carried, and copied in `_end`, is behind the last launches' own barrier.
        if any(self._stride(source) for source in stacked):
            recorder.barrier()
        for source, slot, to in zip(stacked, self._slots, self._collected, strict=True):
            if self._stride(source):
                recorder.copy(inside, slot, outside, to, size * self._stride(source))
        recorder.barrier_to_host()
        return self._submission(recorder)

    def _record_launches(self, recorder: CommandRecorder, trip: _Trip) -> None:
        """Records a trip's launches, which run while the switches are on, and barriers before and behind."""
        if self._is_conditional:
            with recorder.conditional(self._inside, self._switches):
                self._record_trip(recorder, trip.reads, trip.writes)
        else:
            recorder.barrier_of_counts()
            self._record_trip(recorder, trip.reads, trip.writes, (self._inside, self._switches))
            recorder.barrier_of_counts()

    def _end(self, state: tuple[int, ...]) -> Submission:
        """Fetches the carried values."""
        known = self._ends.get(state)
        if known is None:
            recorder = self._bound.on.recorder("results of a loop", queue=self._bound.queue)
            for at, to, type_ in zip(state, self._carried, self._wiring.carried_types, strict=True):
                if size_of(type_):
                    recorder.copy(self._inside, at, self._outside, to, size_of(type_))
            recorder.barrier_to_host()
            known = self._ends[state] = self._submission(recorder)
        return known

    def run(
        self,
        most: int | None,
        carried: Sequence[Any],
        captured: Mapping[int, Any],
        require_open: Callable[[], None],
    ) -> list[Array]:
        """Runs trips until one says that there is no other.

        Args:
            most: trips; None: any number.
            carried: values before the first trip.
            captured: by their number.
            require_open: called between submissions; raises what ends the loop.

        Returns:
            Fresh arrays: the carried values behind the last trip, then what was collected, trip by trip.
        """
        collected: list[list[Array]] = [[] for _ in self._wiring.stacked]
        try:
            self._begin(carried, captured)
            state = self._run(most, collected, require_open)
            self._end(state).run()
        except BaseException:
            self._settle()
            raise
        found = self._carried_results(self._carried)
        return found + [rows[0] if len(rows) == 1 else np.concatenate(rows) for rows in collected]

    def _run(
        self, most: int | None, collected: Sequence[list[Array]], require_open: Callable[[], None]
    ) -> tuple[int, ...]:
        """Runs all trips, and says where the carried values are then."""
        on, host = self._bound.on, self._outside.host
        assert host is not None
        report = host[self._report : self._report + 8].view(np.uint32)
        on.upload(self._inside, self._control + _NUMBER, np.zeros(1, np.int64))
        state, done, size, budget = self._first, 0, 1, 0
        while True:
            require_going()
            require_open()
            if not budget:
                budget = _MOST_LEFT if most is None else min(most - done, _MOST_LEFT)
                on.upload(self._inside, self._control + _LEFT, np.array([budget], np.uint32))
            wanted = self._expected - done if self._expected > done else 4 * size
            wanted = max(1, min(wanted, budget, self._largest))
            size = next(each for each in _SIZES if each <= wanted)
            self._chunk(state, size).run()
            self._bound.check()
            ran, over = (int(each) for each in report)
            for source, at, rows in zip(self._wiring.stacked, self._collected, collected, strict=True):
                rows.append(self._rows(source, at, ran))
            for _ in range(ran):
                state = self._trips[state].after
            done, budget = done + ran, budget - ran
            if over == OVER_BY_CONDITION or done == most:
                self._expected = done
                return state

    def free(self) -> None:
        super().free()
        self._bound.on.release_all(self._pipelines)
