"""Programs bound to devices: memory allocated, kernels compiled, commands recorded, ready to replay."""

from __future__ import annotations

import contextlib
import functools
import logging
import mmap
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from vkml.engine.in_threads import in_threads
from vkml.engine.turns import Turn
from vkml.errors import DeviceError, EngineError, IndexOutOfRange
from vkml.forks import renew_in_child
from vkml.ir import Constant
from vkml.ir.mapped_file import mapping_of
from vkml.kernels.compiler import close_compiler, compile_slang
from vkml.kernels.spec import Dispatch, KernelSpec
from vkml.kernels.views import Buffer, BufferKind, View, constant_array
from vkml.lowering.memory import ALIGNMENT
from vkml.lowering.plan import VulkanProgram

if TYPE_CHECKING:
    from vkml.engine.options import Progress
    from vkml.vulkan import CommandBuffer, Device, Memory, Pipeline, TimestampPool

_log = logging.getLogger("vkml")
Array = np.ndarray[Any, Any]
GUARD_WORD = 0xDEADBEEF
DIRECT_OUTPUT_BYTES = 4096
"""Outputs up to here are written to host memory by the kernels themselves, which saves a barrier and a copy.
Larger ones are copied: a product's scattered stores over the bus took 215 µs for 786 KB on an H200, a copy
takes 13 µs."""

_UPLOAD_STEP = 32 << 20


class Bound(Protocol):
    """A program that can run."""

    device: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def run(self, feeds: Sequence[Array]) -> list[Array]: ...

    def close(self) -> None: ...


@dataclass(eq=False)
class _Arena:
    """Constants uploaded together, and how many programs use some of them."""

    memory: Memory
    keys: list[int]
    users: int = 0


class WeightStore:
    """A session's constants on one device, each uploaded once and shared by all plans.

    Constants that came with one plan (folded shapes, tables) go when the last plan that uses them is closed,
    so that a session with ever new input shapes does not grow.
    """

    def __init__(
        self, device: Device, progress: Progress | None = None, memory_limit: float | None = None
    ) -> None:
        self._device = device
        self._progress = progress
        self._memory_limit = memory_limit
        self._arenas: list[_Arena] = []
        self._places: dict[int, tuple[_Arena, int, Constant]] = {}
        # Re-entrant: a session that the garbage collector closes may release while this thread holds it.
        self._lock = threading.RLock()
        self._adding = Turn()
        self.bytes = 0
        renew_in_child(self._renew)

    def add(self, constants: Sequence[Constant]) -> Lease:
        """Uploads those not there yet, into one arena in the order given.

        Returns:
            what to give back by `release`.
        """
        with self._adding.taken(
            "this session uploads weights in this very thread: a progress callback may use what is planned "
            "already, but not have other shapes planned"
        ):
            used: dict[int, _Arena] = {}
            fresh: dict[int, Constant] = {}
            with self._lock:
                for constant in constants:
                    place = self._places.get(id(constant))
                    if place is None:
                        fresh[id(constant)] = constant
                    else:
                        used[id(place[0])] = place[0]
                for arena in used.values():
                    arena.users += 1
            try:
                made = (self._make_arena(list(fresh.values())),) if fresh else ()
            except BaseException:
                self.release(tuple(used.values()))
                raise
            return (*used.values(), *made)

    def _make_arena(self, fresh: Sequence[Constant]) -> _Arena:
        """Uploads, without the lock: a progress callback is the caller's code. The arena has one user."""
        offsets, size = [], 0
        for constant in fresh:
            offsets.append(size)
            size += -(-max(1, constant.type.bytes) // ALIGNMENT) * ALIGNMENT
        from vkml.vulkan import MemoryKind

        memory = self._device.allocate(size, MemoryKind.DEVICE, "weights", self._memory_limit)
        arena = _Arena(memory, [id(constant) for constant in fresh], 1)
        try:
            for constant, offset in zip(fresh, offsets, strict=True):
                self._upload(memory, offset, constant)
                if self._progress:
                    self._progress("upload", offset + constant.type.bytes, size)
            with self._lock:
                self._arenas.append(arena)
                self.bytes += memory.size
                for constant, offset in zip(fresh, offsets, strict=True):
                    self._places[id(constant)] = (arena, offset, constant)
        except BaseException:
            self._forget(arena)
            raise
        return arena

    def _upload(self, memory: Memory, offset: int, constant: Constant) -> None:
        data = constant_array(constant)
        for start in range(0, data.size, _UPLOAD_STEP):
            self._device.upload(memory, offset + start, data[start : start + _UPLOAD_STEP])
        release_pages(constant.array)

    def address(self, constant: Constant) -> int:
        arena, offset, _ = self._places[id(constant)]
        return arena.memory.address + offset

    def release(self, lease: Lease) -> None:
        """Gives back what `add` returned; the device must not use it any more."""
        with self._lock:
            for arena in lease:
                arena.users -= 1
                if arena.users == 0:
                    self._forget(arena)

    def _forget(self, arena: _Arena) -> None:
        with self._lock:
            if arena in self._arenas:
                self._arenas.remove(arena)
                self.bytes -= arena.memory.size
            for key in arena.keys:
                self._places.pop(key, None)
            arena.memory.free()

    def close(self) -> None:
        with self._lock:
            for arena in self._arenas:
                arena.memory.free()
            self._arenas.clear()
            self._places.clear()
            self.bytes = 0

    def _renew(self) -> None:
        self._lock = threading.RLock()


Lease = tuple[_Arena, ...]
"""What a program holds of a `WeightStore`."""


def release_pages(array: Array) -> None:
    """Tells the system that a mapped file's pages behind `array` are not needed soon.

    Uploading a 1 GB model would otherwise leave all of it in this process's resident set.
    """
    mapping = mapping_of(array)
    if mapping is None or not hasattr(mapping, "madvise") or array.nbytes < 1 << 20:
        return
    whole = np.frombuffer(mapping, np.uint8)
    start = array.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
    page = mmap.PAGESIZE
    first = -(-start // page) * page
    end = (start + array.nbytes) // page * page
    if end > first:
        mapping.madvise(mmap.MADV_DONTNEED, first, end - first)


class VulkanBound:
    """A Vulkan program on a device: one command buffer, replayed with one submission."""

    def __init__(
        self,
        program: VulkanProgram,
        device: Device,
        weights: WeightStore,
        *,
        guard_bytes: int = 0,
        progress: Progress | None = None,
        memory_limit: float | None = None,
    ) -> None:
        self.device = device.info.name
        self.program = program
        self.inputs = tuple(program.inputs)
        self.outputs = tuple(program.outputs)
        self._device = device
        self._context = device.context
        self._is_closed = False
        self._guard_bytes = guard_bytes
        self._memory_limit = memory_limit
        self._weights = weights
        self._lease: Lease = ()
        self._memories: list[Memory] = []
        self._pipelines: list[Pipeline] = []
        try:
            self._build(weights, progress)
        except BaseException:
            self.close()
            raise

    def _build(self, weights: WeightStore, progress: Progress | None) -> None:
        from vkml.vulkan import MemoryKind

        device, program = self._device, self.program
        kernels = list({id(d.kernel): d.kernel for d in program.dispatches}.values())
        pipelines = compile_kernels(device, kernels, self._pipelines, progress)
        used = {view.buffer for d in program.dispatches for view in (*d.reads, *d.writes)}
        constants = [b.constant for b in program.buffers if b.constant is not None and b in used]
        self._lease = weights.add(constants)

        inputs = _arena([view.buffer for view in program.inputs.values()])
        output_buffers = [view.buffer for view in program.outputs.values()]
        outputs = _arena([*output_buffers, program.status])
        device_only = [b for b in output_buffers if not b.host_only or b.bytes > DIRECT_OUTPUT_BYTES]
        copied = _arena(device_only)
        self.input_bytes, self.output_bytes = inputs[1], outputs[1]
        self.arena_bytes = program.arena_bytes + copied[1]
        input_memory = self._allocate(inputs[1], MemoryKind.DEVICE, "inputs")
        staging = None
        if input_memory is not None and input_memory.host is None:
            staging = self._allocate(inputs[1], MemoryKind.UPLOAD, "input staging")
        output_memory = self._allocate(outputs[1], MemoryKind.READBACK, "outputs")
        arena = self._allocate(program.arena_bytes, MemoryKind.DEVICE, "activations")
        copied_memory = self._allocate(copied[1], MemoryKind.DEVICE, "outputs read by kernels")
        self._arena_memory = arena
        assert output_memory is not None and output_memory.host is not None

        def address(buffer: Buffer) -> int:
            if buffer.kind is BufferKind.CONSTANT:
                assert buffer.constant is not None
                return weights.address(buffer.constant)
            if buffer.kind is BufferKind.INPUT:
                assert input_memory is not None
                return input_memory.address + inputs[0][buffer]
            if buffer in copied[0]:
                assert copied_memory is not None
                return copied_memory.address + copied[0][buffer]
            if buffer.kind in (BufferKind.OUTPUT, BufferKind.STATUS):
                return output_memory.address + outputs[0][buffer]
            assert arena is not None
            return arena.address + program.offsets[buffer]

        addresses = {buffer: address(buffer) for buffer in (*used, program.status)}

        def record(pool: TimestampPool | None = None) -> CommandBuffer:
            recorder = device.recorder("plan")
            if pool is not None:
                recorder.reset_timestamps(pool)
            if self._guard_bytes and arena is not None:
                recorder.fill(arena, 0, arena.size, GUARD_WORD)
                recorder.barrier()
            if staging is not None and input_memory is not None:
                recorder.copy(staging, 0, input_memory, 0, inputs[1])
                recorder.barrier()
            if pool is not None:
                recorder.timestamp(pool, 0)
            for index, level in enumerate(program.levels):
                if index:
                    recorder.barrier()
                for dispatch in level:
                    push = push_bytes(dispatch, addresses)
                    recorder.dispatch(pipelines[id(dispatch.kernel)], push, *dispatch.groups)
                if pool is not None:
                    recorder.timestamp(pool, index + 1)
            if device_only and copied_memory is not None:
                recorder.barrier()
                for buffer in device_only:
                    if buffer.bytes:
                        at, to = copied[0][buffer], outputs[0][buffer]
                        recorder.copy(copied_memory, at, output_memory, to, buffer.bytes)
            recorder.barrier_to_host()
            return recorder.finish()

        self._record = record
        self._commands = record()
        self._submission = device.submission(self._commands)
        self._run = self._submission.run
        host = (
            staging.host if staging is not None else (input_memory.host if input_memory is not None else None)
        )
        self._input_views = [_host_view(host, inputs[0], view) for view in program.inputs.values()]
        self._output_views = [
            _host_view(output_memory.host, outputs[0], view) for view in program.outputs.values()
        ]
        self._output_memory = output_memory
        at = outputs[0][program.status]
        self._status = output_memory.host[at : at + 16].view(np.uint32)
        self._status[:] = 0

    def _allocate(self, size: int, kind: Any, label: str) -> Memory | None:
        if not size:
            return None
        memory = self._device.allocate(size, kind, label, self._memory_limit)
        self._memories.append(memory)
        return memory

    def run(self, feeds: Sequence[Array]) -> list[Array]:
        if self._context.is_closed:  # with the device went the mappings that the views show
            self._context.require_open()
        for view, array in zip(self._input_views, feeds, strict=True):
            view[...] = array
        try:
            self._run()
        except BaseException:
            self._settle()
            raise
        if self._status[0]:
            self._report_status()
        if self._guard_bytes:
            self._check_guards()
        return [view.copy() for view in self._output_views]

    def _settle(self) -> None:
        """After an interrupt: the device may be at work on buffers that a run or `close` would touch."""
        with contextlib.suppress(DeviceError):
            self._device.wait_idle()
        if not self._context.is_closed:  # else there is no such memory any more
            self._status[:] = 0  # what the run that nobody sees the end of had to say

    def direct(self, turn: Turn) -> Callable[[Mapping[str, Any]], list[Array] | None] | None:
        """One closure from a feed to results, for the run that repeats; None where guards have to be checked.

        The closure returns None, having run nothing, when the feed is not exactly what the program takes, or
        when the program is closed: the caller then goes the long way, which says what is wrong. It saves
        about 1 µs of the 15 that a run of one dispatch takes.

        Args:
            turn: taken while it runs; whoever closes the program holds its lock, too.
        """
        if self._guard_bytes:
            return None
        entries = tuple(
            (name, view, view.shape, view.dtype)
            for name, view in zip(self.inputs, self._input_views, strict=True)
        )
        outputs, run, count = self._output_views, self._run, len(entries)
        status, context = memoryview(self._status.data), self._context

        def call(feed: Mapping[str, Any]) -> list[Array] | None:
            # A mapping's or an array-like's own code would run under the lock.
            if type(feed) is not dict or len(feed) != count:
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
                        self._settle()
                        raise
                    if status[0]:
                        self._report_status()
                    return [view.copy() for view in outputs]
                finally:
                    turn.is_taken = False

        return call

    def profile(self) -> list[tuple[list[Dispatch], float]]:
        """Runs once with timestamps: the dispatches of each level, and the nanoseconds the level took."""
        pool = self._device.timestamps(len(self.program.levels) + 1)
        commands = self._record(pool)
        submission = self._device.submission(commands)
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
        if self._arena_memory is None:
            return
        words = self._device.download(self._arena_memory, 0, self._arena_memory.size).view(np.uint32)
        is_inside = np.zeros(words.size, bool)
        for buffer, offset in self.program.offsets.items():
            is_inside[offset // 4 : -(-(offset + buffer.bytes) // 4)] = True
        broken = np.flatnonzero(~is_inside & (words != GUARD_WORD))
        if broken.size:
            at = int(broken[0]) * 4
            near = min(self.program.offsets.items(), key=lambda item: abs(item[1] - at))[0]
            raise EngineError(f"a kernel wrote outside its buffers, at byte {at} of the arena, near {near}")

    def close(self) -> None:
        self._is_closed = True
        submission, commands = getattr(self, "_submission", None), getattr(self, "_commands", None)
        if submission is not None:
            submission.free()
            self._submission = None  # type: ignore[assignment]
        if commands is not None:
            commands.free()
        self._input_views, self._output_views = [], []
        for memory in self._memories:
            memory.free()
        self._memories.clear()
        while self._pipelines:
            self._device.release(self._pipelines.pop())
        lease, self._lease = self._lease, ()
        self._weights.release(lease)

    def __del__(self) -> None:
        try:
            self.close()  # where an interrupt came between making it and handing it over, or during `close`
        except Exception:
            _log.debug("closing a program at its end failed", exc_info=True)


def _host_view(host: Array | None, offsets: Mapping[Buffer, int], view: View) -> Array:
    assert host is not None
    at = offsets[view.buffer]
    return host[at : at + view.buffer.bytes].view(view.dtype.storage).reshape(view.shape)


def _arena(buffers: Sequence[Buffer]) -> tuple[dict[Buffer, int], int]:
    offsets, size = {}, 0
    for buffer in buffers:
        offsets[buffer] = size
        size += -(-max(1, buffer.bytes) // ALIGNMENT) * ALIGNMENT
    return offsets, size


def push_bytes(dispatch: Dispatch, addresses: Mapping[Buffer, int]) -> bytes:
    """The push-constant block of a dispatch: addresses, then 32-bit words."""
    values = [
        argument
        if isinstance(argument, int)
        else addresses[argument.buffer] + argument.offset * argument.dtype.storage.itemsize
        if isinstance(argument, View)
        else addresses[argument]
        for argument in dispatch.arguments
    ]
    return _push_format(dispatch.kernel.push_bytes, len(values)).pack(*values)


@functools.cache
def _push_format(size: int, count: int) -> struct.Struct:
    addresses = (size - 4 * count) // 4
    return struct.Struct(f"<{addresses}Q{count - addresses}i")


def compile_kernels(
    device: Device, kernels: Sequence[KernelSpec], taken: list[Pipeline], progress: Progress | None = None
) -> dict[int, Pipeline]:
    """Pipelines of kernels by identity, compiled in parallel.

    Args:
        device: to compile for.
        kernels: all of a program.
        taken: receives the pipelines that the caller has to release, also when compiling fails.
        progress: told after each.
    """

    def make(kernel: KernelSpec) -> Pipeline:
        code = compile_slang(kernel.source, kernel.label, sessions)
        pipeline = device.pipeline(
            code,
            constants=[value & 0xFFFFFFFF for value in kernel.constants],
            push_constant_bytes=kernel.push_bytes,
            label=kernel.label,
        )
        taken.append(pipeline)
        return pipeline

    unique: dict[tuple[str, tuple[int, ...]], KernelSpec] = {(k.source, k.constants): k for k in kernels}
    made: dict[tuple[str, tuple[int, ...]], Pipeline] = {}
    workers = min(8, _cores(), -(-len(unique) // 2))
    # A compiler a thread costs a model of few kernels 150 MiB each; with one alone, resnet50 (40 kernels of
    # a second each, with an H200's tiles) loads in 42 s instead of 10.
    sessions = min(workers, -(-len({kernel.source for kernel in kernels}) // 4)) or 1
    try:
        with closing(in_threads(make, list(unique.values()), workers, "vkml-compile")) as pipelines:
            for done, (key, pipeline) in enumerate(zip(unique, pipelines, strict=True)):
                made[key] = pipeline
                if progress:
                    progress("compile", done + 1, len(unique))
    finally:
        close_compiler()
    return {id(kernel): made[kernel.source, kernel.constants] for kernel in kernels}


def _cores() -> int:
    import os

    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
