"""An opened device: the one object the engine works with."""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from vkml.vulkan.commands import CommandBuffer, CommandRecorder, DispatchTable
from vkml.vulkan.context import Context
from vkml.vulkan.info import DeviceInfo
from vkml.vulkan.memory import Allocator, Bytes, Memory, MemoryKind
from vkml.vulkan.pipelines import Pipeline, Pipelines
from vkml.vulkan.profiling import TimestampPool
from vkml.vulkan.queues import NativeCalls, Queue
from vkml.vulkan.submission import Submission, Timeline
from vkml.vulkan.transfer import Transfers

if TYPE_CHECKING:
    import numpy.typing as npt


class Device:
    """A device opened for computing; a context manager; safe to use from several threads.

    Everything made through it is destroyed with it, by `close` or at the latest when the interpreter exits.

    Args:
        info: from `devices()`.
        memory_limit: the share of the device's free memory that may be used.
        force_staging: behave as a device whose memory the host cannot write; to test that path.
        native: calls of the driver without the interpreter, where there are such.

    Raises:
        DeviceError: the driver does not open it.

    Example:
        >>> from vkml.vulkan import Device, MemoryKind, devices
        >>> for info in devices()[:1]:
        ...     with Device(info) as device:
        ...         memory = device.allocate(1024, MemoryKind.DEVICE, "weights")
    """

    def __init__(
        self,
        info: DeviceInfo,
        memory_limit: float = 0.95,
        force_staging: bool = False,
        native: NativeCalls | None = None,
    ) -> None:
        self.info = info
        context = Context(info, native)
        self.context = context
        self._finalizer = weakref.finalize(self, context.close)
        try:
            self._allocator = Allocator(context, memory_limit, force_staging)
            self._pipelines = Pipelines(context)
            self._transfers = Transfers(context, self._allocator)
        except BaseException:
            self._finalizer()
            raise

    @property
    def live_allocations(self) -> int:
        """How many memories exist."""
        return self._allocator.live_allocations

    @property
    def allocated_bytes(self) -> int:
        """How much memory of all kinds is allocated."""
        return self._allocator.allocated_bytes

    @property
    def is_closed(self) -> bool:
        """Whether the device has been closed."""
        return self.context.is_closed

    def free_bytes(self, kind: MemoryKind = MemoryKind.DEVICE) -> int:
        """What may still be allocated of a kind of memory: the budget times the limit, less what is used."""
        self.context.require_open()
        return self._allocator.free_bytes(self._allocator.heap_of(kind))

    def allocate(
        self, size: int, kind: MemoryKind, label: str = "", memory_limit: float | None = None
    ) -> Memory:
        """A buffer with memory of its own.

        Args:
            size: in bytes; the buffer may be a little larger.
            kind: where it lives.
            label: for messages and debuggers.
            memory_limit: a share of the device's memory lower than the device's own limit.

        Raises:
            OutOfMemory: the device's budget or largest buffer does not allow it.
        """
        self.context.require_open()
        return self._allocator.allocate(size, kind, label, memory_limit)

    @property
    def imports_host(self) -> bool:
        """Whether `import_host` works here."""
        return self._allocator.imports_host

    def import_host(self, memory: Bytes, label: str = "") -> Memory:
        """Memory of this process as a buffer of the device, which then copies to and from it.

        Args:
            memory: aligned to `Limits.host_pointer_alignment`, as is its size; it must outlive the buffer.
            label: for messages and debuggers.

        Raises:
            DeviceError: the device cannot.
            OutOfMemory: or refuses.
        """
        self.context.require_open()
        return self._allocator.import_host(memory, label)

    def pipeline(
        self,
        spirv: bytes,
        *,
        entry: str = "main",
        constants: Sequence[int] = (),
        push_constant_bytes: int,
        subgroup_size: int | None = None,
        label: str = "",
        name: Hashable = None,
        taken: list[Pipeline] | None = None,
    ) -> Pipeline:
        """A compiled kernel; the same arguments give the same pipeline, to be released as often as asked for.

        Args:
            spirv: a module.
            entry: its entry point.
            constants: 32-bit values of the specialization constants 0, 1, 2, …
            push_constant_bytes: a multiple of 4.
            subgroup_size: to be required of the driver; None leaves it the default.
            label: for messages and debuggers.
            name: by which `named_pipeline` finds it from now on; None: by none.
            taken: receives the pipeline, so that an interrupt on the way back to the caller does not lose it.

        Raises:
            InvalidArgument: what is asked for is beyond the device's limits, or is no SPIR-V.
            CompileError: the driver does not compile it.
        """
        return self._pipelines.get(
            spirv, entry, constants, push_constant_bytes, subgroup_size, label, name, taken
        )

    def named_pipeline(self, name: Hashable, taken: list[Pipeline]) -> Pipeline | None:
        """A pipeline that was made under this name and is still there, to be released like any other.

        Without its module, which would have to be read and hashed to be told from others.

        Args:
            name: given to `pipeline`.
            taken: receives the pipeline, as for `pipeline`.
        """
        return self._pipelines.named(name, taken)

    def release(self, pipeline: Pipeline) -> None:
        """Gives back what `pipeline` returned, once for each call of it.

        Pipelines that nobody uses stay for the next plan, up to a number, then the longest unused go.

        Args:
            pipeline: no command buffer with it may run any more.
        """
        self._pipelines.release([pipeline])

    def release_all(self, taken: list[Pipeline]) -> None:
        """As `release`, of each in a list, which is empty then; an interrupt loses none of them."""
        self._pipelines.release(taken)

    def save_pipeline_cache(self) -> bool:
        """Keeps the driver's compiled code for the next process; returns whether there was anything new."""
        return self._pipelines.driver_cache.save()

    def keep_pipelines(self) -> None:
        """Saves the driver's compiled code, where there is enough that is new to be worth the time."""
        self._pipelines.driver_cache.keep()

    def recorder(
        self,
        label: str = "",
        transfer: bool = False,
        again: CommandBuffer | None = None,
        queue: Queue | None = None,
        has_event: bool = False,
    ) -> CommandRecorder:
        """Starts recording a command buffer.

        Args:
            label: for debuggers.
            transfer: for the queue that only copies, where there is one.
            queue: one of `Context.compute_queues`; None: the first.
            again: a command buffer of the same queue to record anew, which submissions of it then submit;
                it must not be running.
            has_event: whether the last command is to set an event, where the device has such: what submits
                these commands alone then runs them again and again without a semaphore.
        """
        if transfer:
            queue = self.context.transfer_queue
        return CommandRecorder(self.context, label, queue, again, has_event)

    def dispatch_table(self, levels: Sequence[Sequence[tuple[Pipeline, int, int]]]) -> DispatchTable:
        """Prepares dispatches for `CommandRecorder.dispatch_table`.

        Args:
            levels: of each dispatch its pipeline, and where its push constants begin and end in those of all.
        """
        return DispatchTable(self.context, levels)

    def submission(
        self,
        command_buffers: CommandBuffer | Sequence[CommandBuffer],
        waits: Sequence[Timeline] = (),
        signals: Sequence[Timeline] = (),
        label: str = "",
        time_limit: float | None = None,
    ) -> Submission:
        """Prepares command buffers for being submitted again and again.

        Args:
            command_buffers: all recorded for the same queue.
            waits: timelines to wait for before the first command.
            signals: timelines to signal after the last command.
            label: for debuggers.
            time_limit: seconds after which `Submission.run` and `finish` give the device up.
        """
        return Submission(self.context, command_buffers, waits, signals, label, time_limit)

    def timeline(self, label: str = "") -> Timeline:
        """A timeline semaphore that starts at 0."""
        return Timeline(self.context, label)

    def timestamps(self, count: int) -> TimestampPool:
        """Room for timestamps."""
        return TimestampPool(self.context, count)

    def upload(self, memory: Memory, offset: int, array: npt.NDArray[Any] | bytes) -> None:
        """Writes to a memory, and returns when it is written; it must not be in use.

        Args:
            memory: of any kind.
            offset: in bytes.
            array: of any type, written in C order.
        """
        self._transfers.upload(memory, offset, array)

    def download(self, memory: Memory, offset: int = 0, size: int | None = None) -> Bytes:
        """Reads from a memory that nothing is writing.

        Args:
            memory: of any kind.
            offset: in bytes.
            size: in bytes; None for all the rest.

        Returns:
            a copy.
        """
        return self._transfers.download(memory, offset, memory.size - offset if size is None else size)

    def download_into(self, memory: Memory, offset: int, target: Bytes) -> None:
        """As `download`, into memory that there is, such as another device's that the host can write.

        It goes in chunks: while one travels, the one before it is written.

        Args:
            memory: of any kind.
            offset: in bytes.
            target: as many bytes as are wanted.
        """
        self._transfers.download_into(memory, offset, target)

    def pass_on(
        self, source: Memory, source_at: int, other: Device, target: Memory, target_at: int, size: int
    ) -> None:
        """Copies to another device's memory, in chunks of which two travel at a time, one to and one fro.

        Args:
            source: of this device; nothing may be writing it.
            source_at: in bytes.
            other: the device.
            target: memory of that, which must not be in use.
            target_at: in bytes.
            size: in bytes.
        """
        self._transfers.pass_on(source, source_at, other._transfers, target, target_at, size)

    def copy(self, source: Memory, source_at: int, target: Memory, target_at: int, size: int) -> None:
        """Copies between memories on the device, and returns when it is done; neither may be in use.

        Args:
            source: read from.
            source_at: in bytes.
            target: written to; may be the source where the ranges do not overlap.
            target_at: in bytes.
            size: in bytes.
        """
        self._transfers.copy(source, source_at, target, target_at, size)

    def send(self, source: Memory, source_at: int, target: Memory, target_at: int, size: int) -> None:
        """As `copy`, on the queue that only copies where there is one: beside what is computed.

        Args:
            source: memory that the host has written.
            source_at: in bytes.
            target: written to.
            target_at: in bytes.
            size: in bytes.
        """
        self._transfers.copy(source, source_at, target, target_at, size, is_sent=True)

    def wait_idle(self) -> None:
        """Waits until the device has finished everything."""
        self.context.require_open()
        self.context.wait_idle()

    def close(self) -> None:
        """Waits for the device, destroys everything made through it, then itself; idempotent."""
        self._finalizer()

    def __enter__(self) -> Device:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Device({self.info}{', closed' if self.is_closed else ''})"
