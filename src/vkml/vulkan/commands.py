"""Recording: dispatches, copies and barriers into a command buffer that is replayed many times."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from vkml.errors import InvalidArgument
from vkml.vulkan.context import Context, Key
from vkml.vulkan.memory import Memory
from vkml.vulkan.pipelines import Pipeline
from vkml.vulkan.queues import Queue
from vkml.vulkan.structures import NULL, constants, ffi, handle_number, structure

if TYPE_CHECKING:
    from vkml.vulkan.profiling import TimestampPool

_COUNT_BYTES = 12
"""Of the numbers of workgroups of a dispatch in memory."""
_COMPUTE_STAGE = constants.VK_SHADER_STAGE_COMPUTE_BIT
_COMPUTE_POINT = constants.VK_PIPELINE_BIND_POINT_COMPUTE
_ALL_COMMANDS = constants.VK_PIPELINE_STAGE_2_ALL_COMMANDS_BIT


class CommandBuffer:
    """Recorded commands, ready to be submitted any number of times, one at a time.

    Attributes:
        event: that its last command sets, for the host; None where there is none.
    """

    def __init__(
        self,
        context: Context,
        handle: Any,
        pool: int,
        key: Key,
        queue: Queue,
        label: str,
        event: tuple[int, Key] | None = None,
    ) -> None:
        self._context = context
        self._key = key
        self._event = event
        self.pool = pool
        self.handle = handle
        self.queue = queue
        self.label = label
        self.event = None if event is None else event[0]

    def free(self) -> None:
        """Destroys it; idempotent. It must not be running."""
        self._context.release(self._key)
        if self._event is not None:
            self._context.release(self._event[1])


class DispatchTable:
    """Dispatches in levels, prepared for being recorded again and again with other numbers.

    Args:
        context: of the device.
        levels: of each dispatch its pipeline, and where in the push constants of all its own begin and end.
    """

    def __init__(self, context: Context, levels: Sequence[Sequence[tuple[Pipeline, int, int]]]) -> None:
        self.levels = levels
        if context.native is not None:
            self._make_rows(context, levels)

    def _make_rows(self, context: Context, levels: Sequence[Sequence[tuple[Pipeline, int, int]]]) -> None:
        functions = context.functions
        names = ("BindPipeline", "PushConstants", "Dispatch", "DispatchIndirect", "PipelineBarrier2")
        bind, push, dispatch, indirect, barrier = (
            handle_number(getattr(functions, f"vkCmd{name}")) for name in names
        )
        self._dispatches = dispatch, indirect
        self._barrier = _barriers(True).between
        between = handle_number(self._barrier)
        size = max((end for level in levels for _, _, end in level), default=0)
        self._push = np.zeros(size, np.uint8)
        start_of_all = self._push.ctypes.data
        rows: list[list[int]] = []
        places: list[int] = []
        bound = None
        for index, level in enumerate(levels):
            if index:
                rows.append([barrier, 0, between, 0, 0, 0, 0, 0])
            for pipeline, start, end in level:
                if pipeline is not bound:
                    rows.append([bind, 0, _COMPUTE_POINT, handle_number(pipeline.handle), 0, 0, 0, 0])
                    bound = pipeline
                if end > start:
                    layout = handle_number(pipeline.layout)
                    rows.append([push, 0, layout, _COMPUTE_STAGE, 0, end - start, start_of_all + start, 0])
                places.append(len(rows))
                rows.append([dispatch, 0, 0, 0, 0, 0, 0, 0])
        self._rows = np.array(rows, np.uint64).reshape(-1, 8)
        self._places = np.array(places, np.intp)
        self._block = ffi.new("uint64_t[2]", [self._rows.ctypes.data, len(rows)])
        self._address = handle_number(self._block)

    def record(
        self,
        call_all: Callable[[int], None],
        buffer: Any,
        push: bytes,
        grids: Sequence[int],
        counts: tuple[Memory, int] | None,
    ) -> None:
        """Records all of it.

        Args:
            call_all: see `NativeCalls`.
            buffer: a VkCommandBuffer that is being recorded.
            push: all push constants.
            grids: three numbers of workgroups for each dispatch, in their order.
            counts: see `CommandRecorder.dispatch_table`.
        """
        self._push[:] = np.frombuffer(push, np.uint8)
        self._rows[:, 1] = handle_number(buffer)
        places, (direct, indirect) = self._places, self._dispatches
        if len(places) and counts is None:
            self._rows[places, 0] = direct
            self._rows[places, 2:5] = np.array(grids, np.uint64).reshape(-1, 3)
        elif counts is not None:
            memory, at = counts
            self._rows[places, 0] = indirect
            self._rows[places, 2] = handle_number(memory.buffer)
            self._rows[places, 3] = at + _COUNT_BYTES * np.arange(len(places))
        call_all(self._address)


class CommandRecorder:
    """Records one command buffer, which is thrown away with the recorder where it is not finished.

    Nothing orders two dispatches but a barrier between them. Addresses are recorded as they are: the caller
    keeps every buffer that the commands use alive until they have run for the last time.
    """

    def __init__(
        self,
        context: Context,
        label: str = "",
        queue: Queue | None = None,
        again: CommandBuffer | None = None,
        has_event: bool = False,
    ) -> None:
        context.require_open()
        functions = context.functions
        self._context = context
        self._queue = queue or context.compute_queue
        self._label = label
        self._again = again
        if again is None:
            self._buffer = self._allocate()
            context.name("COMMAND_BUFFER", self._buffer, label)
            self._event = self._make_event() if has_event else None
        else:
            if again.queue is not self._queue:
                raise InvalidArgument(f"command buffer {again.label!r} was recorded for another queue")
            self._pool, self._key, self._buffer = again.pool, again._key, again.handle
            self._event = again._event
            context.settle()
            functions.call("vkResetCommandPool", context.handle, self._pool, 0)
        buffer = self._buffer
        functions.call("vkBeginCommandBuffer", buffer, _begin_info(self._event is not None))
        self._bound: Pipeline | None = None
        self._bind = functions.vkCmdBindPipeline
        self._push = functions.vkCmdPushConstants
        self._dispatch = functions.vkCmdDispatch
        self._barrier = functions.vkCmdPipelineBarrier2
        self._has_labels = context.has_names
        self._barriers = _barriers(self._queue.is_compute)

    def _allocate(self) -> Any:
        # A pool of its own: pools must not be used by two threads at a time.
        context = self._context
        self._pool, self._key = context.create(
            "CommandPool",
            "vkCreateCommandPool",
            structure("VkCommandPoolCreateInfo", queueFamilyIndex=self._queue.family),
        )
        out = ffi.new("VkCommandBuffer *")
        info = structure(
            "VkCommandBufferAllocateInfo",
            commandPool=self._pool,
            level=constants.VK_COMMAND_BUFFER_LEVEL_PRIMARY,
            commandBufferCount=1,
        )
        context.functions.call("vkAllocateCommandBuffers", context.handle, info, out)
        return out[0]

    def _make_event(self) -> tuple[int, Key] | None:
        context = self._context
        # Where only a subset of Vulkan is there, events may not be in it.
        if context.native is None or context.info.capabilities.portability_subset:
            return None
        return context.create("Event", "vkCreateEvent", structure("VkEventCreateInfo"))

    def dispatch(self, pipeline: Pipeline, push: bytes | Any, x: int, y: int = 1, z: int = 1) -> None:
        """Runs a kernel over x × y × z workgroups.

        Args:
            pipeline: of the same device.
            push: as many bytes of push constants as the pipeline was made for, or a cffi array of chars.
            x: workgroups in each direction, within the device's `max_workgroup_count`.
            y: likewise.
            z: likewise.
        """
        self._prepare(pipeline, push)
        self._dispatch(self._buffer, x, y, z)

    def _dispatch_counted(self, pipeline: Pipeline, push: bytes, counts: tuple[Memory, int]) -> None:
        self._prepare(pipeline, push)
        memory, at = counts
        self._context.functions.vkCmdDispatchIndirect(self._buffer, memory.buffer, at)

    def _prepare(self, pipeline: Pipeline, push: bytes | Any) -> None:
        buffer = self._buffer
        if pipeline is not self._bound:
            self._bind(buffer, _COMPUTE_POINT, pipeline.handle)
            self._bound = pipeline
        size = pipeline.push_constant_bytes
        if size:
            if len(push) != size:
                raise InvalidArgument(
                    f"kernel {pipeline.label!r} takes {size} bytes of push constants, got {len(push)}"
                )
            self._push(buffer, pipeline.layout, _COMPUTE_STAGE, 0, size, push)

    def dispatch_table(
        self,
        table: DispatchTable,
        push: bytes,
        grids: Sequence[int],
        pool: TimestampPool | None = None,
        counts: tuple[Memory, int] | None = None,
    ) -> None:
        """Runs a table's dispatches, with a barrier before each level but the first.

        Args:
            table: of this device.
            push: the push constants of all of them.
            grids: three numbers of workgroups for each dispatch.
            pool: receives a timestamp behind each level, from the second of its places on.
            counts: memory, and where in it, of which the device reads the numbers of workgroups as it runs
                them, 32 bits each, in place of `grids`.
        """
        native = self._context.native
        if native is not None and pool is None:
            table.record(native.call_all, self._buffer, push, grids, counts)
            self._bound = None
            return
        at = 0
        for index, level in enumerate(table.levels):
            if index:
                self.barrier()
            for pipeline, start, end in level:
                if counts is None:
                    self.dispatch(pipeline, push[start:end], *grids[at : at + 3])
                else:
                    place = counts[0], counts[1] + at // 3 * _COUNT_BYTES
                    self._dispatch_counted(pipeline, push[start:end], place)
                at += 3
            if pool is not None:
                self.timestamp(pool, index + 1)

    def barrier(self) -> None:
        """What was recorded before is finished and visible before what is recorded after begins."""
        self._barrier(self._buffer, self._barriers.between)

    def barrier_of_counts(self) -> None:
        """As `barrier`, and for numbers of workgroups in memory: see `dispatch_table`."""
        self._barrier(self._buffer, self._barriers.of_counts)

    @contextlib.contextmanager
    def conditional(self, memory: Memory, offset: int) -> Iterator[None]:
        """Dispatches recorded inside run where a word of memory is not zero.

        Barriers are part of it, before and behind: the word may be written by what was recorded before, and
        anew by what is recorded after. Copies and fills run in any case.

        Args:
            memory: read from.
            offset: of the 32-bit word, in bytes, a multiple of 4.
        """
        context = self._context
        if not context.info.capabilities.conditional_rendering:
            raise InvalidArgument(f"{context.title} has no conditional rendering")
        _check_range(memory, offset, 4)
        if offset % 4:
            raise InvalidArgument(f"condition in {memory!r}: offset {offset} must be a multiple of 4")
        begin = structure("VkConditionalRenderingBeginInfoEXT", buffer=memory.buffer, offset=offset)
        self._barrier(self._buffer, self._barriers.to_condition)
        context.functions.vkCmdBeginConditionalRenderingEXT(self._buffer, begin)
        yield
        context.functions.vkCmdEndConditionalRenderingEXT(self._buffer)
        self._barrier(self._buffer, self._barriers.from_condition)

    def barrier_to_host(self) -> None:
        """Makes writes visible to the host that waits for the submission; to be recorded last."""
        self._barrier(self._buffer, self._barriers.to_host)

    def copy(self, source: Memory, source_offset: int, target: Memory, target_offset: int, size: int) -> None:
        """Copies bytes between buffers.

        Args:
            source: read from.
            source_offset: in bytes.
            target: written to; may be the source where the ranges do not overlap.
            target_offset: in bytes.
            size: in bytes.
        """
        _check_range(source, source_offset, size)
        _check_range(target, target_offset, size)
        region = ffi.new("VkBufferCopy *", (source_offset, target_offset, size))
        self._context.functions.vkCmdCopyBuffer(self._buffer, source.buffer, target.buffer, 1, region)

    def fill(self, memory: Memory, offset: int, size: int, word: int = 0) -> None:
        """Fills a range with a 32-bit word.

        Args:
            memory: written to.
            offset: in bytes, a multiple of 4.
            size: in bytes, a multiple of 4.
            word: the 32 bits.
        """
        _check_range(memory, offset, size)
        if offset % 4 or size % 4:
            raise InvalidArgument(
                f"fill of {memory!r}: offset {offset} and size {size} must be multiples of 4"
            )
        self._context.functions.vkCmdFillBuffer(self._buffer, memory.buffer, offset, size, word & 0xFFFFFFFF)

    def reset_timestamps(self, pool: TimestampPool) -> None:
        """Empties a pool; to be recorded before its timestamps, in each command buffer that writes them."""
        if pool.handle:
            self._context.functions.vkCmdResetQueryPool(self._buffer, pool.handle, 0, pool.count)

    def timestamp(self, pool: TimestampPool, index: int) -> None:
        """Writes the time when everything recorded before has finished; nothing where there is no clock."""
        if not 0 <= index < pool.count:
            raise InvalidArgument(f"timestamp {index} of a pool of {pool.count}")
        if pool.handle and self._queue.is_compute:
            self._context.functions.vkCmdWriteTimestamp2(self._buffer, _ALL_COMMANDS, pool.handle, index)

    @contextlib.contextmanager
    def region(self, label: str) -> Iterator[None]:
        """Groups commands under a label in debuggers and in the validation layer's messages."""
        if not self._has_labels:
            yield
            return
        functions = self._context.functions
        functions.vkCmdBeginDebugUtilsLabelEXT(
            self._buffer, structure("VkDebugUtilsLabelEXT", pLabelName=label)
        )
        yield
        functions.vkCmdEndDebugUtilsLabelEXT(self._buffer)

    def finish(self) -> CommandBuffer:
        """Ends the recording; the recorder cannot be used after it.

        Returns:
            What was recorded: `again`, where that was given.
        """
        functions = self._context.functions
        if self._event is not None:
            functions.vkCmdSetEvent(
                self._buffer, self._event[0], constants.VK_PIPELINE_STAGE_ALL_COMMANDS_BIT
            )
        functions.call("vkEndCommandBuffer", self._buffer)
        buffer, self._buffer = self._buffer, NULL
        return self._again or CommandBuffer(
            self._context, buffer, self._pool, self._key, self._queue, self._label, self._event
        )


def _check_range(memory: Memory, offset: int, size: int) -> None:
    if size <= 0 or offset < 0 or offset + size > memory.size:
        raise InvalidArgument(f"{memory!r} has no range of {size} bytes at offset {offset}")


class _Barriers(NamedTuple):
    """Descriptions of barriers, made once."""

    between: Any
    of_counts: Any
    to_condition: Any
    from_condition: Any
    to_host: Any


@functools.cache
def _begin_info(has_event: bool) -> Any:
    """Who sees an event knows what the commands did, but not that the driver has done with them."""
    flags = constants.VK_COMMAND_BUFFER_USAGE_SIMULTANEOUS_USE_BIT if has_event else 0
    return structure("VkCommandBufferBeginInfo", flags=flags)


@functools.cache
def _barriers(is_compute: bool) -> _Barriers:
    """The barriers of a queue that computes, or only copies."""
    c = constants
    stages = c.VK_PIPELINE_STAGE_2_ALL_TRANSFER_BIT
    writes, reads = c.VK_ACCESS_2_TRANSFER_WRITE_BIT, c.VK_ACCESS_2_TRANSFER_READ_BIT
    if is_compute:
        stages |= c.VK_PIPELINE_STAGE_2_COMPUTE_SHADER_BIT
        writes |= c.VK_ACCESS_2_SHADER_WRITE_BIT
        reads |= c.VK_ACCESS_2_SHADER_READ_BIT
    host, host_reads = c.VK_PIPELINE_STAGE_2_HOST_BIT, c.VK_ACCESS_2_HOST_READ_BIT
    between = _dependency(stages, writes, stages, reads | writes)
    of_counts = to_condition = from_condition = between
    if is_compute:
        both = stages | c.VK_PIPELINE_STAGE_2_DRAW_INDIRECT_BIT
        of_counts = _dependency(both, writes, both, reads | writes | c.VK_ACCESS_2_INDIRECT_COMMAND_READ_BIT)
        both = stages | c.VK_PIPELINE_STAGE_2_CONDITIONAL_RENDERING_BIT_EXT
        condition_reads = c.VK_ACCESS_2_CONDITIONAL_RENDERING_READ_BIT_EXT
        to_condition = _dependency(stages, writes, both, reads | writes | condition_reads)
        # No stage of compute is said to be behind the one that reads conditions: who writes the word anew
        # waits for that one, too.
        from_condition = _dependency(both, writes, stages, reads | writes)
    to_host = _dependency(stages, writes, host, host_reads)
    return _Barriers(between, of_counts, to_condition, from_condition, to_host)


def _dependency(source_stages: int, source_access: int, target_stages: int, target_access: int) -> Any:
    barrier = structure(
        "VkMemoryBarrier2",
        srcStageMask=source_stages,
        srcAccessMask=source_access,
        dstStageMask=target_stages,
        dstAccessMask=target_access,
    )
    return structure("VkDependencyInfo", memoryBarrierCount=1, pMemoryBarriers=barrier)
