"""Large inputs of a program that its device reads from arrays of the host: the host copies nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from vkml.engine.compilation import compile_kernels
from vkml.engine.host_imports import imports
from vkml.engine.host_memory import HostImport
from vkml.errors import DeviceError, OutOfMemory
from vkml.kernels.host_read import MOST_BYTES, SOURCE_BYTES, read_kernel, read_launch, read_source
from vkml.kernels.views import Buffer

if TYPE_CHECKING:
    from vkml.engine.binding import Binding, Memories
    from vkml.engine.recorded import RecordedProgram
    from vkml.vulkan import CommandBuffer, CommandRecorder, Device, Memory, Pipeline, Submission

Array = np.ndarray[Any, Any]
LEAST_BYTES = 512 << 10
"""Of what a device reads itself. With another level, and what it costs the host to say where an array is, an
H200's step takes 3 µs longer for 200 KB than if a thread wrote them to its memory, for 1.6 MB 95 µs less."""


def is_worthwhile(device: Device) -> bool:
    """Whether a device reads arrays of the host faster than the host writes them to its memory.

    Where both have the same memory, the host copies as fast, and beside what the device does.
    """
    return device.imports_host and not device.info.is_unified


class HostReads:
    """Runs of a binding that begin with its device reading the large inputs from arrays of the host.

    Commands are recorded once: where the arrays are is written to memory that they look at. The device reads
    all large inputs of a run, or the host copies all of them.

    Args:
        device: that imports memory of the host.
        binding: of a program of that.
        inputs: that come from the host: the buffer of each, and where the host writes it.
    """

    def __init__(self, device: Device, binding: Binding, inputs: Sequence[tuple[Buffer, Array]]) -> None:
        self._device, self._binding = device, binding
        self._read: list[tuple[int, Buffer, Array]] = []
        """Of what the device reads, which of a run's arrays it is."""
        self.others: list[int] = []
        """Which of a run's arrays the host copies in any case."""
        for at, (buffer, view) in enumerate(inputs):
            if LEAST_BYTES <= view.nbytes <= MOST_BYTES:
                self._read.append((at, buffer, view))
            else:
                self.others.append(at)
        self.submission: Submission | None = None
        """In the place of the binding's, where the device reads; made when there is something to read."""
        self._commands: CommandBuffer | None = None
        self._sources: Memory | None = None
        self._pipelines: list[Pipeline] = []
        self._is_refused = not self._read

    def prepare(self, program: RecordedProgram, arrays: Sequence[Array]) -> list[HostImport] | None:
        """Has the next run of `submission` read arrays.

        Args:
            program: whose binding it is.
            arrays: of a run, all that come from the host, of their inputs' shapes.

        Returns:
            what is to be held until the run has ended; None where the host is to copy.
        """
        if self._is_refused:
            return None
        held, sources = [], []
        for at, _, view in self._read:
            array = arrays[at]
            if array.dtype != view.dtype or not array.flags.c_contiguous:
                return None
            found = imports.find(array, self._device)
            if found is not None:
                held.append(found[0])
                sources.append(read_source(found[1]))
        if len(held) < len(self._read):
            return None
        if self.submission is None:
            try:
                self._record(program)
            except (DeviceError, OutOfMemory):
                self.free()
                self._is_refused = True
                return None
            except BaseException:
                self.free()
                raise
        self._place[:] = b"".join(sources)
        return held

    def _record(self, program: RecordedProgram) -> None:
        from vkml.vulkan import MemoryKind

        device, size = self._device, len(self._read) * SOURCE_BYTES
        label = "sources of inputs"
        memory = self._sources = device.allocate(size, MemoryKind.DEVICE, label, program.memory_limit)
        if memory.host is None:
            memory.free()
            memory = self._sources = device.allocate(size, MemoryKind.UPLOAD, label, program.memory_limit)
        assert memory.host is not None
        self._place = memoryview(memory.host[:size].data)
        kernel = read_kernel()
        self._pipeline = compile_kernels(device, [kernel], self._pipelines)[id(kernel)]
        self._commands = program.record_bringing(self._binding, self._bring)
        self.submission = device.submission(self._commands, time_limit=program.time_limit)

    def _bring(self, recorder: CommandRecorder, memories: Memories) -> None:
        """Records what brings inputs to where kernels read them."""
        memory, sources = memories.input_memory, self._sources
        assert memory is not None and sources is not None
        if memories.staging is not None:
            read = {buffer for _, buffer, _ in self._read}
            for buffer, offset in memories.inputs.items():
                size = memories.bytes[buffer]
                if size and buffer not in read:
                    recorder.copy(memories.staging, offset, memory, offset, size)
        most = min(self._device.info.limits.max_workgroup_count[:2])
        for place, (_, buffer, view) in enumerate(self._read):
            target = memory.address + memories.inputs[buffer]
            push, grid = read_launch(sources.address + place * SOURCE_BYTES, target, view.nbytes, most)
            recorder.dispatch(self._pipeline, push, *grid)
        recorder.barrier()

    def free(self) -> None:
        """Frees its commands, which must not be running."""
        for each in (self.submission, self._commands, self._sources):
            if each is not None:
                each.free()
        self.submission = self._commands = self._sources = None
        self._device.release_all(self._pipelines)
