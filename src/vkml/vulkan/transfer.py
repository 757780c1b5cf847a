"""Copies between NumPy arrays and device memory: directly where the host can, else through staging."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from vkml.cpu.copying import copy as copy_bytes
from vkml.errors import DeviceError, InvalidArgument
from vkml.forks import renew_in_child
from vkml.vulkan.commands import CommandBuffer, CommandRecorder
from vkml.vulkan.context import Context
from vkml.vulkan.memory import Allocator, Bytes, Memory, MemoryKind
from vkml.vulkan.queues import Queue
from vkml.vulkan.submission import Submission

if TYPE_CHECKING:
    import numpy.typing as npt

CHUNK_BYTES = 32 << 20
"""Staged copies go in chunks of this size: large enough to reach the bus's speed."""
PASSED_BYTES = 16 << 20
"""Likewise of what is passed on: while a chunk travels the one before it is written elsewhere. Between two
H200s 256 MiB take 11 ms so, 18 by 4 MiB, of which fewer threads write each."""
_passing = threading.RLock()
"""Held while a device's copies are fed by another's, for either may wait for the other's lock."""


def _renew() -> None:
    global _passing
    _passing = threading.RLock()


renew_in_child(_renew)


class Transfers:
    """Uploads and downloads of a device, through staging memory where it has to be."""

    def __init__(self, context: Context, allocator: Allocator) -> None:
        self._context = context
        self._allocator = allocator
        self._lock = threading.RLock()
        """Held by the thread whose staged copies are under way: others wait, but a signal handler that comes
        in the midst of them may copy, too."""
        self._staging: _Staging | None = _Staging(allocator)
        """What no copy is using."""
        self._ways: dict[int, _Ways] = {}

    def upload(self, memory: Memory, offset: int, array: npt.NDArray[Any] | bytes) -> None:
        """See `Device.upload`."""
        self._context.require_open()
        source = as_bytes(array)
        _check(memory, offset, source.size)
        if not source.size:
            return
        parts = (source[at : at + CHUNK_BYTES] for at in range(0, source.size, CHUNK_BYTES))
        self._write(memory, offset, parts, min(source.size, CHUNK_BYTES))

    def _write(self, memory: Memory, offset: int, parts: Iterable[Bytes], largest: int) -> None:
        """Writes parts one behind the other; while one travels the next is asked for."""
        if memory.host is not None:
            for part in parts:
                copy_bytes(memory.host[offset : offset + part.size], part)
                offset += part.size
            memory.flush()
            return
        ways = self._ways_of(self._context.transfer_queue)
        with self._staged() as staging:
            pending: list[_Copy | None] = [None, None]
            try:
                for number, part in enumerate(parts):
                    slot = number % 2
                    _finish(pending, slot)
                    chunk = staging.memory(MemoryKind.UPLOAD, slot, largest)
                    assert chunk.host is not None
                    copy_bytes(chunk.host[: part.size], part)
                    chunk.flush()
                    copy = _Copy(ways, chunk, 0, memory, offset, part.size)
                    pending[slot] = copy
                    copy.start()
                    offset += part.size
            finally:
                _finish(pending, 0)
                _finish(pending, 1)

    def download(self, memory: Memory, offset: int, size: int) -> Bytes:
        """See `Device.download`."""
        _check(memory, offset, size)
        result = np.empty(size, np.uint8)
        self.download_into(memory, offset, result, CHUNK_BYTES)
        return result

    def download_into(self, memory: Memory, offset: int, target: Bytes, chunk: int | None = None) -> None:
        """See `Device.download_into`."""
        at = 0
        with contextlib.closing(self._read(memory, offset, target.size, chunk or PASSED_BYTES)) as parts:
            for part in parts:
                copy_bytes(target[at : at + part.size], part)
                at += part.size

    def pass_on(
        self, source: Memory, source_at: int, other: Transfers, target: Memory, target_at: int, size: int
    ) -> None:
        """See `Device.pass_on`."""
        other._context.require_open()
        _check(target, target_at, size)
        with _passing, contextlib.closing(self._read(source, source_at, size, PASSED_BYTES)) as parts:
            other._write(target, target_at, parts, min(size, PASSED_BYTES))

    def _read(self, memory: Memory, offset: int, size: int, chunk: int) -> Generator[Bytes, None, None]:
        """Parts of a memory in their order, each until the next is asked for, which travels by then."""
        self._context.require_open()
        _check(memory, offset, size)
        # Reading uncached memory (a BAR) takes 30 ns a byte on the H200: copy it on the device first.
        if memory.host is not None and memory.is_cached:
            memory.invalidate()
            for start in range(offset, offset + size, chunk):
                yield memory.host[start : min(start + chunk, offset + size)]
            return
        ways = self._ways_of(self._context.compute_queue)
        with self._staged() as staging:
            pending: list[_Copy | None] = [None, None]
            sizes = [min(chunk, size - start) for start in range(0, size, chunk)]
            try:
                for number, part in enumerate(sizes):
                    slot = number % 2
                    target = staging.memory(MemoryKind.READBACK, slot, min(size, chunk))
                    copy = _Copy(ways, memory, offset + number * chunk, target, 0, part)
                    pending[slot] = copy
                    copy.start()
                    if number:
                        yield _collected(pending, 1 - slot, sizes[number - 1])
                if sizes:
                    yield _collected(pending, (len(sizes) - 1) % 2, sizes[-1])
            finally:
                _finish(pending, 0)
                _finish(pending, 1)

    def copy(
        self, source: Memory, source_at: int, target: Memory, target_at: int, size: int, is_sent: bool = False
    ) -> None:
        """See `Device.copy`, and `Device.send`."""
        self._context.require_open()
        _check(source, source_at, size)
        _check(target, target_at, size)
        if size:
            context = self._context
            ways = self._ways_of(context.transfer_queue if is_sent else context.compute_queue)
            copy = _Copy(ways, source, source_at, target, target_at, size)
            copy.start()
            copy.finish()

    def _ways_of(self, queue: Queue) -> _Ways:
        known = self._ways.get(id(queue))
        return known or self._ways.setdefault(id(queue), _Ways(self._context, queue))

    @contextlib.contextmanager
    def _staged(self) -> Iterator[_Staging]:
        """Staging memory that nobody else uses; what fails may leave copies in it, which keep it."""
        with self._lock:
            staging, self._staging = self._staging or _Staging(self._allocator), None
            yield staging
            if self._staging is None:
                self._staging = staging
            else:
                staging.free()  # a signal handler's, or that of what it interrupted


class _Staging:
    """Memory of the host that copies go through, made at need: two chunks each way."""

    def __init__(self, allocator: Allocator) -> None:
        self._allocator = allocator
        self._chunks: dict[tuple[MemoryKind, int], Memory] = {}

    def memory(self, kind: MemoryKind, slot: int, size: int) -> Memory:
        """One of the chunks, at least as large."""
        chunk = self._chunks.get((kind, slot))
        if chunk is None or chunk.size < size:
            if chunk is not None:
                del self._chunks[kind, slot]
                chunk.free()
            chunk = self._allocator.allocate(size, kind, f"staging for {kind.value}")
            self._chunks[kind, slot] = chunk
        return chunk

    def free(self) -> None:
        """Frees the chunks, which no copy may be using."""
        for chunk in self._chunks.values():
            chunk.free()
        self._chunks = {}


class _Way:
    """Commands and submissions of one copy at a time, recorded anew: making them takes a millisecond."""

    def __init__(self, context: Context, queue: Queue) -> None:
        self._context = context
        self._queue = queue
        self._buffer: CommandBuffer | None = None
        self._submission: Submission | None = None
        self._handover: Submission | None = None

    def record(self, source: Memory, source_at: int, target: Memory, target_at: int, size: int) -> None:
        """Prepares a copy; the one before must have ended."""
        recorder = CommandRecorder(self._context, "transfer", self._queue, again=self._buffer)
        recorder.barrier()
        recorder.copy(source, source_at, target, target_at, size)
        if target.kind is MemoryKind.READBACK:
            recorder.barrier_to_host()
        else:
            recorder.barrier()
        self._buffer = recorder.finish()
        if self._submission is None:
            self._submission = Submission(self._context, self._buffer)
            if self._queue is not self._context.compute_queue:
                # The standard makes the copy visible to another queue through a semaphore only: one wait on
                # the compute queue covers all that is submitted to it later.
                self._handover = Submission(self._context, (), waits=(self._submission.timeline,))

    def start(self) -> None:
        """Submits what was recorded."""
        assert self._submission is not None
        value = self._submission.submit()
        if self._handover is not None:
            self._handover.submit((value,))

    def finish(self) -> None:
        """Waits for it, where it was submitted."""
        assert self._submission is not None
        self._submission.wait()
        if self._handover is not None:
            self._handover.wait()

    def free(self) -> None:
        """Destroys its objects."""
        for each in (self._handover, self._submission, self._buffer):
            if each is not None:
                each.free()


class _Ways:
    """Those of a queue that no copy is using: as many as there were copies at a time, some of which stay."""

    KEPT = 8

    def __init__(self, context: Context, queue: Queue) -> None:
        self._context = context
        self._queue = queue
        self._idle: list[_Way] = []

    def take(self) -> _Way:
        """One that nobody else has."""
        try:
            return self._idle.pop()
        except IndexError:
            return _Way(self._context, self._queue)

    def give_back(self, way: _Way) -> None:
        """Its copy is done."""
        if len(self._idle) < self.KEPT:
            self._idle.append(way)
        else:
            way.free()


class _Copy:
    """One copy, prepared and then under way; it keeps what it reads and writes."""

    _is_started = False

    def __init__(
        self, ways: _Ways, source: Memory, source_at: int, target: Memory, target_at: int, size: int
    ) -> None:
        self._ways = ways
        self.source, self.target = source, target
        self._way = ways.take()
        self._way.record(source, source_at, target, target_at, size)

    def start(self) -> None:
        """Submits it."""
        self._is_started = True
        self._way.start()

    def finish(self) -> None:
        """Waits for it, where it was submitted; another copy may go its way then."""
        self._way.finish()
        self._is_started = False
        self._ways.give_back(self._way)

    def __del__(self) -> None:
        if self._is_started:
            with contextlib.suppress(DeviceError):
                # After an interrupt: it may be under way. No other copy goes this way, for what it is made of
                # may be gone before it where both are found in a cycle.
                self._way.finish()


def _finish(pending: list[_Copy | None], slot: int) -> None:
    copy = pending[slot]
    if copy is not None:
        copy.finish()
        pending[slot] = None


def _collected(pending: list[_Copy | None], slot: int, size: int) -> Bytes:
    """What a copy to the host has brought."""
    copy = pending[slot]
    assert copy is not None
    _finish(pending, slot)
    copy.target.invalidate()
    assert copy.target.host is not None
    return copy.target.host[:size]


def as_bytes(array: npt.NDArray[Any] | bytes) -> Bytes:
    """The bytes of an array in C order, without a copy where they already are."""
    if isinstance(array, np.ndarray):
        return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return np.frombuffer(array, np.uint8)


def _check(memory: Memory, offset: int, size: int) -> None:
    if offset < 0 or size < 0 or offset + size > memory.size:
        raise InvalidArgument(f"{memory!r} has no range of {size} bytes at offset {offset}")
