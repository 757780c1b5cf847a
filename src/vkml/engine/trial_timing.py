"""Candidates on a device: memory as it is in the middle of a run, and the time that launches take."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from vkml.engine.launches import Launches
from vkml.errors import DeviceError
from vkml.kernels.spec import Dispatch
from vkml.kernels.views import Buffer, BufferKind, View
from vkml.lowering.memory import ALIGNMENT
from vkml.lowering.numbers import Numbers
from vkml.lowering.schedule import schedule
from vkml.lowering.trials import Trial

if TYPE_CHECKING:
    from vkml.engine.weights import Lease, WeightStore
    from vkml.vulkan import CommandRecorder, Device, Memory, Pipeline
    from vkml.vulkan.commands import DispatchTable

CACHE_BYTES = 64 << 20
"""What no last-level cache of a GPU holds much more than (H200: 50 MiB); Vulkan does not say."""
_PATTERN_BYTES = 4 << 20
_TIMESTAMPS = 5
"""Before and behind what empties the caches, behind the operands, the shared passes and the launches."""


class TrialProgram:
    """A candidate's launches, recorded, to be timed again and again.

    Attributes:
        label: the candidate's.
    """

    def __init__(
        self, bench: Bench, trial: Trial, pipelines: Mapping[int, Pipeline], share: float = 1.0
    ) -> None:
        self.label = trial.label
        self._bench, self._share = bench, share
        device = bench.device
        self._pool = device.timestamps(_TIMESTAMPS)
        addresses = bench.addresses(trial)
        self._tables: list[DispatchTable] = []
        recorder = device.recorder("candidate")
        recorder.reset_timestamps(self._pool)
        recorder.timestamp(self._pool, 0)
        bench.record_emptying(recorder)
        recorder.timestamp(self._pool, 1)
        bench.record_operands(recorder)
        recorder.timestamp(self._pool, 2)
        for part in (trial.passes, trial.own):
            launches = Launches(schedule(part), pipelines, Numbers())
            push, grids = launches.numbers(launches.placed(addresses), ())
            table = device.dispatch_table(launches.levels)
            self._tables.append(table)
            if part:
                recorder.dispatch_table(table, push, grids)
                recorder.barrier()
            recorder.timestamp(self._pool, 2 + len(self._tables))
        recorder.barrier_to_host()
        self._commands = recorder.finish()
        self._submission = device.submission(self._commands, time_limit=bench.time_limit)

    def seconds(self) -> float:
        """Runs the launches; the seconds that they took by the device's clock, or else by the host's.

        Of passes that other products share, this one's share counts.
        """
        started = time.perf_counter()
        try:
            self._submission.run()
        except BaseException:
            with contextlib.suppress(DeviceError):
                self._bench.device.wait_idle()  # after an interrupt it may be at work still
            raise
        passed = time.perf_counter() - started
        emptying, _, passes, own = self._pool.read_intervals()
        self._bench.note_bandwidth(emptying)
        return passed if passes is None or own is None else (self._share * passes + own) / 1e9

    def free(self) -> None:
        """Frees the commands, which must not be running."""
        self._submission.free()
        self._commands.free()
        self._pool.free()


class Bench:
    """Memory for the candidates of one question at a time.

    Operands hold random numbers. Before each run they are written once more, as the launches before them
    would just have done; before that, caches are emptied by copying twice what they hold, if the model does
    not fit into them.
    """

    def __init__(
        self,
        device: Device,
        weights: WeightStore,
        *,
        is_cold: bool,
        memory_limit: float | None = None,
        time_limit: float | None = None,
    ) -> None:
        self.device = device
        self.time_limit = time_limit
        self.bandwidth = 0.0
        """The most bytes a second at which caches were emptied; 0 where that was not measured."""
        self._weights = weights
        self._memory_limit = memory_limit
        self._lease: Lease = ()
        self._memory: Memory | None = None
        self._operands: dict[Buffer, View] = {}
        self._places: dict[Buffer, int] = {}
        self._base = 0
        self._kept: list[Memory] = []
        self._flushed: tuple[Memory, Memory] | None = None
        self.is_cold = is_cold
        """Whether caches are emptied, by which the bandwidth becomes known."""
        try:
            if is_cold:
                self._flushed = self._allocate(CACHE_BYTES), self._allocate(CACHE_BYTES)
                self._kept += self._flushed
            self._patterns = self._allocate(2 * _PATTERN_BYTES)
            self._kept.append(self._patterns)
            self._upload_patterns()
        except BaseException:
            self.close()
            raise

    def _allocate(self, size: int) -> Memory:
        from vkml.vulkan import MemoryKind

        return self.device.allocate(size, MemoryKind.DEVICE, "tuning", self._memory_limit)

    def _upload_patterns(self) -> None:
        """Normal random numbers as float32 and as float16: zeros would cost a GPU less power."""
        random = np.random.default_rng(0)
        numbers = random.standard_normal(_PATTERN_BYTES // 4, np.float32)
        halves = np.concatenate([numbers, numbers]).astype(np.float16)
        self.device.upload(self._patterns, 0, numbers)
        self.device.upload(self._patterns, _PATTERN_BYTES, halves)

    def prepare(self, trials: Sequence[Trial]) -> None:
        """Makes room for the candidates of a question, in place of those of the one before.

        Raises:
            OutOfMemory: there is not enough.
        """
        self.release()
        launches = [launch for trial in trials for launch in trial.launches]
        constants = {
            id(view.buffer.constant): view.buffer.constant
            for launch in launches
            for view in launch.reads
            if view.buffer.constant is not None
        }
        self._lease = self._weights.add(list(constants.values()))
        self._operands = {}
        for trial in trials:
            self._operands.update(operands_of(trial.launches))
        self._places, self._base = {}, 0
        for buffer in (*self._operands, *_counters(launches)):
            self._places[buffer] = self._base
            self._base += _aligned(buffer.bytes)
        most = max(self._base + sum(map(_aligned_bytes, self._others(trial))) for trial in trials)
        self._memory = self._allocate(max(most, ALIGNMENT))
        recorder = self.device.recorder("operands")
        recorder.fill(self._memory, 0, self._memory.size // 4 * 4)
        recorder.barrier()
        self._record_patterns(recorder, self._operands)
        recorder.barrier_to_host()
        commands = recorder.finish()
        submission = self.device.submission(commands, time_limit=self.time_limit)
        try:
            submission.run()
        except BaseException:
            with contextlib.suppress(DeviceError):
                self.device.wait_idle()
            raise
        finally:
            submission.free()
            commands.free()

    def addresses(self, trial: Trial) -> dict[Buffer, int]:
        """Where the buffers of a candidate lie."""
        memory = self._memory
        assert memory is not None
        found = {buffer: memory.address + at for buffer, at in self._places.items()}
        at = self._base
        for buffer in self._others(trial):
            found[buffer] = memory.address + at
            at += _aligned(buffer.bytes)
        for launch in trial.launches:
            for view in launch.reads:
                constant = view.buffer.constant
                if constant is not None:
                    found[view.buffer] = self._weights.address(constant)
        return found

    def _others(self, trial: Trial) -> list[Buffer]:
        """What a candidate writes, or has an address of, besides operands."""
        found: dict[Buffer, None] = {}
        for launch in trial.launches:
            given = (each.buffer if isinstance(each, View) else each for each in launch.arguments)
            for buffer in given:
                if isinstance(buffer, Buffer) and buffer.constant is None and buffer not in self._places:
                    found[buffer] = None
        return list(found)

    def record_emptying(self, recorder: CommandRecorder) -> None:
        """Records what leaves nothing of the operands in caches, if that is wanted."""
        if self._flushed is not None:
            source, target = self._flushed
            recorder.copy(source, 0, target, 0, CACHE_BYTES)
            recorder.barrier()

    def record_operands(self, recorder: CommandRecorder) -> None:
        """Records what writes the operands, as far as caches hold these."""
        if self._base <= CACHE_BYTES // 2:
            self._record_patterns(recorder, self._operands)
        recorder.barrier()

    def _record_patterns(self, recorder: CommandRecorder, operands: Mapping[Buffer, View]) -> None:
        assert self._memory is not None
        for buffer, view in operands.items():
            if view.dtype.storage.kind != "f" or view.dtype.itemsize not in (2, 4):
                continue  # zeros: integers may be indices
            start = _PATTERN_BYTES if view.dtype.itemsize == 2 else 0
            for at in range(0, buffer.bytes, _PATTERN_BYTES):
                size = min(_PATTERN_BYTES, buffer.bytes - at)
                recorder.copy(self._patterns, start, self._memory, self._places[buffer] + at, size)

    def note_bandwidth(self, nanoseconds: float | None) -> None:
        """Notes how long it took to empty the caches."""
        if self._flushed is not None and nanoseconds:
            self.bandwidth = max(self.bandwidth, 2 * CACHE_BYTES / nanoseconds * 1e9)

    def least_seconds(self, trials: Sequence[Trial]) -> float:
        """What reading the operands and writing the results takes at the least; 0 where it is not known."""
        if not self.bandwidth:
            return 0.0
        return min(_moved_bytes(trial.launches) for trial in trials) / self.bandwidth

    def release(self) -> None:
        """Frees what belongs to the question at hand; nothing of it may be running."""
        if self._memory is not None:
            self._memory.free()
            self._memory = None
        lease, self._lease = self._lease, ()
        self._weights.release(lease)

    def close(self) -> None:
        """Frees everything."""
        self.release()
        while self._kept:
            self._kept.pop().free()


def operands_of(launches: Sequence[Dispatch]) -> dict[Buffer, View]:
    """What is read that no launch before has written, constants aside; a view of each."""
    written: set[Buffer] = set()
    found: dict[Buffer, View] = {}
    for launch in launches:
        for view in launch.reads:
            if view.buffer not in written and view.buffer.constant is None:
                found.setdefault(view.buffer, view)
        written.update(view.buffer for view in launch.writes)
    return {buffer: view for buffer, view in found.items() if buffer.kind is not BufferKind.STATUS}


def _counters(launches: Sequence[Dispatch]) -> dict[Buffer, None]:
    """What has to be 0 before the first run: no other candidate writes there."""
    written = (view.buffer for launch in launches for view in launch.writes)
    return dict.fromkeys(buffer for buffer in written if buffer.kind is BufferKind.COUNTERS)


def _moved_bytes(launches: Sequence[Dispatch]) -> int:
    """Bytes that come from outside of the launches, and those that the last one writes."""
    reads = {view.buffer for launch in launches for view in launch.reads}
    outside = set(operands_of(launches)) | {buffer for buffer in reads if buffer.constant is not None}
    found = {
        (view.buffer, view.byte_range)
        for launch in launches
        for view in launch.reads
        if view.buffer in outside
    }
    found |= {(view.buffer, view.byte_range) for view in launches[-1].writes}
    return sum(high - low for _, (low, high) in found)


def _aligned(size: int) -> int:
    return max(ALIGNMENT, -(-size // ALIGNMENT) * ALIGNMENT)


def _aligned_bytes(buffer: Buffer) -> int:
    return _aligned(buffer.bytes)
