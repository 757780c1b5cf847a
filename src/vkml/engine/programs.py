"""Programs bound to devices: memory allocated, kernels compiled, commands recorded, ready to replay."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

from vkml.cpu.copying import copy
from vkml.dataclasses import dataclass
from vkml.engine.binding import Addresses, Binding
from vkml.engine.device_array import DeviceArray, Value
from vkml.engine.gated_trips import GatedTrips
from vkml.engine.host_memory import LARGE_BYTES, copied
from vkml.engine.recorded import GUARD_WORD, RecordedProgram
from vkml.engine.trips import MOST_DISPATCHES, Trips, Wiring
from vkml.engine.turns import Turn
from vkml.errors import DeviceError, EngineError, IndexOutOfRange
from vkml.kernels.spec import Dispatch

if TYPE_CHECKING:
    from vkml.engine.host_reads import HostReads
    from vkml.vulkan import Queue, Submission

_log = logging.getLogger("vkml")
Array = np.ndarray[Any, Any]
Prepared: TypeAlias = Callable[..., list[Array] | None]
"""Runs a program again: of other arrays, where these are given, to arrays of what is not elsewhere."""
MOST_AT_ONCE = 4
"""Runs of one program that may be on a device at a time, each with memory of its own."""
TRIPS_KEPT = 2
"""Recordings of loops that a program keeps."""


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


def _taken(views: Sequence[Array], into: Sequence[Array | None] | None) -> list[Array]:
    """What a run has made, in arrays of its own or in those that are given."""
    if into is None:
        return [view.copy() for view in views]
    made = []
    for view, given in zip(views, into, strict=True):
        if given is None:
            made.append(view.copy())
            continue
        np.copyto(given, view)
        made.append(given)
    return made


@dataclass(frozen=True, eq=False)
class Running:
    """A run between `VulkanBound.start` and `finish`."""

    binding: Binding
    targets: Sequence[DeviceArray | None] | None
    fetched: dict[int, Array] = field(default_factory=dict)
    """Outputs that are on their way to arrays of their own, by number."""


class VulkanBound(RecordedProgram):
    """A Vulkan program on a device: one command buffer, replayed with one submission."""

    most_at_once = MOST_AT_ONCE

    def __init__(self, *arguments: Any, **more: Any) -> None:
        self._trips: OrderedDict[tuple[tuple[int, ...], Wiring, int | None], Trips | GatedTrips]
        self._trips = OrderedDict()
        self._begun: Binding | None = None
        """What `start` has begun, as long as nobody has waited for it."""
        super().__init__(*arguments, **more)

    def free_memories(self) -> None:
        while self._trips:
            self._trips.popitem()[1].free()
        super().free_memories()

    def run_trips(
        self,
        values: tuple[int, ...],
        wiring: Wiring,
        count: int | None,
        carried: Sequence[Value],
        captured: Mapping[int, Value],
        require_open: Callable[[], None],
    ) -> list[Array]:
        """Runs trips of a loop of which this is the body; recordings of the last ones are kept.

        Args:
            values: of the program's symbols.
            wiring: how values go from trip to trip; the same object for the same.
            count: trips, or the most where they say themselves whether there is another; None: any number.
            carried: values before the first trip.
            captured: what the body captures, by number.
            require_open: see `GatedTrips.run`.

        Returns:
            See `Trips.run`.

        Raises:
            CannotLower: see `GatedTrips`.
            OutOfMemory: there is too little.
        """
        self.bind(values)
        is_counted = (
            wiring.condition is None and count is not None and count * wiring.dispatches <= MOST_DISPATCHES
        )
        key = values, wiring, count if is_counted else None
        found = self._trips.pop(key, None)
        if found is None:
            while len(self._trips) >= TRIPS_KEPT:
                self._trips.popitem(last=False)[1].free()
            if is_counted:
                assert count is not None
                found = Trips(self, values, wiring, count)
            else:
                found = GatedTrips(self, values, wiring)
        self._trips[key] = found
        if isinstance(found, Trips):
            return found.run(carried, captured)
        return found.run(count, carried, captured, require_open)

    def write_sizes(self, values: tuple[int, ...]) -> None:
        """Writes the numbers that kernels read from memory, where sizes are open."""
        self._write_sizes(self.bind(values))

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
            targets: in the order of `outputs`, values to write, which overlap no other of the run but as
                `donations` allows; None and values of other devices stand for fresh arrays.
        """
        running = self._written(feeds, values, targets)
        if running.binding.fetches or self.program.symbols:
            try:
                self._begin(running)
                return self.finish(running, self.outputs)
            except BaseException:
                self.settle()
                raise
        self._submit(running.binding, running.binding.submission)
        return self._results(running, self.outputs)

    def start(
        self,
        feeds: Sequence[Value],
        values: tuple[int, ...] = (),
        targets: Sequence[DeviceArray | None] | None = None,
    ) -> Running:
        """As `run`, but returns at once; to be followed by `finish`, or `settle`, before anything else.

        By `settle` also after an exception, which may have come when the device was at work.
        """
        running = self._written(feeds, values, targets)
        self._begin(running)
        return running

    def _begin(self, running: Running) -> None:
        binding = running.binding
        self._write_sizes(binding)
        self._begun = binding
        binding.submission.submit()
        if binding.fetches:
            running.fetched.update(self.fetch(binding))

    def finish(self, running: Running, kept: Collection[str]) -> list[Value]:
        """Waits for what `start` has begun.

        Args:
            running: that.
            kept: names of outputs that must outlive the next run; arrays of others may not.

        Returns:
            The results.
        """
        self.prepare_next(running.binding)
        running.binding.submission.finish()
        if running.fetched:
            self.finish_fetch()
        self._begun = None
        self.check()
        return self._results(running, kept)

    def settle(self) -> None:
        """Waits for what `start` has begun and nobody wants any more; there may be nothing."""
        if self._begun is not None:
            self._settle(self._begun.submission)
            self._begun = None

    def has_finished(self, running: Running) -> bool:
        """Whether `finish` would not have to wait."""
        if running.fetched:
            return self.has_fetched()
        return running.binding.submission.wait(0.0, 0.0)

    def another(self, queue: Queue | None = None) -> VulkanBound:
        """The same program with memory and commands of its own.

        Args:
            queue: on which it runs behind others; None: on any, alone.
        """
        return VulkanBound(
            self.program,
            self.on,
            self._weights,
            guard_bytes=self._guard_bytes,
            memory_limit=self.memory_limit,
            time_limit=self.time_limit,
            queue=queue,
        )

    def _written(
        self, feeds: Sequence[Value], values: tuple[int, ...], targets: Sequence[DeviceArray | None] | None
    ) -> Running:
        """The binding for a run, with the inputs that come from the host written."""
        if self._context.is_closed:  # with the device went the mappings that the views show
            self._context.require_open()
        device = self.on
        if targets is not None:
            targets = [None if t is None or t.device is not device else t for t in targets]
        binding = self.bind(values, self._outside(feeds, targets))
        for view, array in zip(binding.input_views, feeds, strict=True):
            if isinstance(array, DeviceArray):
                if array.device is not device:
                    array.write_into(view)
            elif array.nbytes < LARGE_BYTES:
                view[...] = array
            else:
                copy(view, array)
        return Running(binding, targets)

    def _results(self, running: Running, kept: Collection[str]) -> list[Value]:
        targets = running.targets or (None,) * len(self.outputs)
        results: list[Value] = []
        for number, (name, target) in enumerate(zip(self.outputs, targets, strict=True)):
            if target is not None:
                results.append(target)
            elif number in running.fetched:
                results.append(running.fetched[number])
            else:
                view = running.binding.output_views[number]
                results.append(copied(view) if name in kept else view)
        return results

    def _outside(self, feeds: Sequence[Value], targets: Sequence[DeviceArray | None] | None) -> Addresses:
        program = self.program
        given = zip(program.inputs.values(), feeds, strict=True)
        found = [
            (view.buffer, array.address)
            for view, array in given
            if type(array) is DeviceArray and array.device is self.on
        ]
        if targets is not None:
            wanted = zip(program.outputs.values(), targets, strict=True)
            found += [(view.buffer, target.address) for view, target in wanted if target is not None]
        return tuple(found)

    def _submit(self, binding: Binding, submission: Submission) -> None:
        """Runs a binding whose inputs have been written, and checks what it reports.

        Args:
            binding: it.
            submission: its own, or another of the same launches.
        """
        self._write_sizes(binding)
        try:
            submission.run()
        except BaseException:
            self._settle(submission)
            raise
        self.check()

    def _write_sizes(self, binding: Binding) -> None:
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

    def _settle(self, submission: Submission) -> None:
        """After an interrupt: the device may be at work on buffers that a run or `close` would touch."""
        with contextlib.suppress(DeviceError):
            submission.settle()
        self.settle_fetch()
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
        views = (*binding.input_views, *binding.output_views)
        if binding.fetches or any(view.nbytes >= LARGE_BYTES for view in views):
            return None  # 1 µs is nothing there
        outputs, run, count = binding.output_views, binding.submission.run, len(entries)
        status, context = memoryview(self._status.data), self._context

        def call(feed: Mapping[str, Any]) -> list[Array] | None:
            # A mapping's or an array-like's own code would run under the lock.
            if type(feed) is not dict or len(feed) != count or turn.is_taken:
                return None
            with turn.lock:
                if turn.is_taken or self._is_closed or context.is_closed or not binding.is_recorded:
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
                        self._settle(binding.submission)
                        raise
                    if status[0]:
                        self._report_status()
                    return [view.copy() for view in outputs]
                finally:
                    turn.is_taken = False

        return call

    def prepared(
        self,
        turn: Turn,
        feeds: Sequence[Value],
        values: tuple[int, ...],
        targets: Sequence[DeviceArray | None],
        is_holding: bool,
    ) -> Prepared | None:
        """One closure that runs it again with the same values of the device; None where it is not so simple.

        Args:
            turn: taken while it runs.
            feeds: as for `run`.
            values: of the program's symbols.
            targets: values of this device for outputs; of others the closure returns copies, in arrays that
                it may be given.
            is_holding: whether it keeps the values of the device alive.
        """
        binding = self.bind(values, self._outside(feeds, targets))
        if binding.fetches:
            return None
        own = tuple(array for array in feeds if is_holding and not isinstance(array, DeviceArray))
        views = tuple(
            view
            for view, array in zip(binding.input_views, feeds, strict=True)
            if not isinstance(array, DeviceArray)
        )
        shapes = [view.shape for view in views]
        every: Sequence[int] = range(len(views))
        reads = self._host_reads(binding, feeds)
        is_large = any(view.nbytes >= LARGE_BYTES for view in views)
        results = tuple(
            view for view, target in zip(binding.output_views, targets, strict=True) if target is None
        )
        context, plain, has_guards = self._context, binding.submission, bool(self._guard_bytes)
        status = memoryview(self._status.data)
        keep = (tuple(feeds), tuple(targets)) if is_holding else ()

        def call(
            arrays: Sequence[Array] = own, into: Sequence[Array | None] | None = None
        ) -> list[Array] | None:
            with turn.lock:
                if turn.is_taken or self._is_closed or context.is_closed or not binding.is_recorded:
                    return None
                if [array.shape for array in arrays] != shapes:
                    return None  # `resize` changes an array in place
                turn.is_taken = True
                try:
                    submission, written = plain, every
                    held = None if reads is None else reads.prepare(self, arrays)
                    if reads is not None and held is not None:
                        assert reads.submission is not None
                        submission, written = reads.submission, reads.others
                    for at in written:
                        if is_large:
                            copy(views[at], arrays[at])
                        else:
                            views[at][...] = arrays[at]
                    if has_guards or self._latest is not binding:
                        self._submit(binding, submission)
                        return _taken(results, into)
                    try:
                        submission.run()
                    except BaseException:
                        self._settle(submission)
                        raise
                    del held
                    if status[0]:
                        self._report_status()
                    return _taken(results, into)
                finally:
                    turn.is_taken = False

        call.__kept__ = keep  # type: ignore[attr-defined]
        return call

    def _host_reads(self, binding: Binding, feeds: Sequence[Value]) -> HostReads | None:
        """Runs in which the device reads large inputs itself; None where it does not."""
        from vkml.engine import host_reads

        if binding.reads is None and host_reads.is_worthwhile(self.on):
            inputs = zip(self.program.inputs.values(), binding.input_views, feeds, strict=True)
            given = [(form.buffer, view) for form, view, feed in inputs if not isinstance(feed, DeviceArray)]
            binding.reads = host_reads.HostReads(self.on, binding, given)
        return binding.reads

    def profile(self) -> list[tuple[Dispatch, float]]:
        """Runs once more, each dispatch behind the one before it; of each, the nanoseconds it took."""
        dispatches = self.program.dispatches
        pool = self.on.timestamps(len(dispatches) + 1)
        commands = self.record(pool)
        submission = self.on.submission(commands)
        try:
            submission.submit()
            submission.wait()
            times = pool.read_intervals()
        except BaseException:
            with contextlib.suppress(DeviceError):
                self.on.wait_idle()  # after an interrupt it may be at work still
            raise
        finally:
            submission.free()
            commands.free()
            pool.free()
        return [(dispatch, time or 0.0) for dispatch, time in zip(dispatches, times, strict=True)]

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
        if memories is None:
            return
        for what, memory, offsets in (
            ("activations", memories.arena, memories.offsets),
            ("results on the device", memories.copied_memory, memories.copied),
            ("results", memories.output_memory, memories.outputs),
        ):
            if memory is None:
                continue
            content = self.on.download(memory, 0, memory.size) if memory.host is None else memory.host
            words = content[: memory.size // 4 * 4].view(np.uint32)
            is_inside = np.zeros(words.size, bool)
            for buffer, offset in offsets.items():
                is_inside[offset // 4 : -(-(offset + memories.bytes[buffer]) // 4)] = True
            broken = np.flatnonzero(~is_inside & (words != GUARD_WORD))
            if broken.size:
                at = int(broken[0]) * 4
                near = min(offsets.items(), key=lambda item: abs(item[1] - at))[0]
                raise EngineError(
                    f"a kernel wrote outside its buffers, at byte {at} of the {what}, near {near}"
                )

    def __del__(self, is_ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if is_ending():
            return  # its device is closed, and modules have lost their names
        try:
            self.close()  # where an interrupt came between making it and handing it over, or during `close`
        except Exception:
            _log.debug("closing a program at its end failed", exc_info=True)
