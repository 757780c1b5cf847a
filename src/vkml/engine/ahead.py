"""Kernels compiled while a plan is being lowered and its device opens: those that are launched as such."""

from __future__ import annotations

import contextlib
import itertools
import math
import queue
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from vkml.cpu.heap import freed_memory_returned
from vkml.cpu.processor import usable_cores
from vkml.engine.compilation import MOST_THREADS, make_pipeline
from vkml.kernels.compiling import LEAST_CORES, SOURCES_A_PROCESS, LentProcess, compile_kernel, is_kept
from vkml.kernels.spec import Dispatch, KernelSpec
from vkml.lowering.phases import MOST_WORKGROUPS

if TYPE_CHECKING:
    from vkml.engine.options import Progress
    from vkml.vulkan import Device, Pipeline

_Module = tuple[int, int, KernelSpec | None, bytes]
"""Order, number, kernel and module; no kernel: the end."""
_AT_ONCE = -(1 << 62)
_PATIENCE = 0.5
"""Seconds after which a thread that was given nothing looks whether anybody is left who could."""


class Ahead:
    """Threads that compile kernels before `compile_kernels` is asked for all of them, and then finds these.

    Some make modules, in the order of launches, others take these to the driver once the device is open, the
    largest first. The first module is made here at once, those after it by processes where there are cores
    for these: whoever lowers wants the interpreter. What goes wrong here is not told: it does there again.

    Args:
        open_device: waits for the device, and returns it open.
        opened: the device where it is open by now; a kernel that it has takes no thread.
        most: threads that are with the driver at a time; None: as many as `compile_kernels` has, but none
            where there is one core, which lowering has.
        begins: whether a module that the driver will take so many seconds for is to go there now.
    """

    def __init__(
        self,
        open_device: Callable[[], Device],
        opened: Callable[[], Device | None] = lambda: None,
        most: int | None = None,
        begins: Callable[[float], bool] = lambda seconds: True,
    ) -> None:
        self._open, self._opened, self._begins = open_device, opened, begins
        self._taken: list[Pipeline] = []
        self._done: dict[Hashable, threading.Event] = {}
        """Of each kernel by name: whether nothing is done any more for it."""
        self._seconds_a_byte = 0.0
        """The most that the driver has taken, of modules so far."""
        self._sources: set[str] = set()
        self._missing = 0
        """Sources of which the cache has no module."""
        self._numbers = itertools.count()
        self._wanted: queue.SimpleQueue[KernelSpec | None] = queue.SimpleQueue()
        self._modules: queue.PriorityQueue[_Module] = queue.PriorityQueue()
        self._compilers: list[threading.Thread] = []
        self._drivers: list[threading.Thread] = []
        self._cores = usable_cores()
        self._most = (min(MOST_THREADS, self._cores) if self._cores > 1 else 0) if most is None else most
        self._heap = contextlib.ExitStack()
        self._processes: list[LentProcess] = []
        self._elsewhere = 0
        """Processes that compile, or begin to."""
        self._is_lowered = threading.Event()
        self._is_stopped = False

    def launch(self, dispatch: Dispatch) -> None:
        """Takes note of a launch: its kernel is compiled if the launch is sure to be no part of another."""
        counts = dispatch.groups
        is_known = not any(type(count) is not int for count in counts)
        if is_known and dispatch.kernel.form is None and math.prod(counts) > MOST_WORKGROUPS:
            self.want(dispatch.kernel)

    def want(self, kernel: KernelSpec) -> None:
        """Has a kernel compiled."""
        if self._most < 1 or kernel.name in self._done:
            return
        self._done[kernel.name] = threading.Event()
        device = self._opened()
        if device is not None and device.named_pipeline(kernel.name, self._taken) is not None:
            self._done[kernel.name].set()
            return
        if not self._compilers:
            self._heap.enter_context(freed_memory_returned())
            self._start(self._compilers, self._compile_here)
        if kernel.source not in self._sources:
            self._sources.add(kernel.source)
            self._missing += not is_kept(kernel.source)
            count = len(self._compilers)
            has_cores = self._cores >= max(LEAST_CORES, count + 1)
            if has_cores and self._missing >= SOURCES_A_PROCESS * count:
                self._elsewhere += 1
                self._start(self._compilers, self._compile_elsewhere)
        if len(self._drivers) < self._most:
            self._start(self._drivers, self._drive)
        self._wanted.put(kernel)

    def _start(self, threads: list[threading.Thread], work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, name=f"vkml-ahead_{len(threads)}")
        threads.append(thread)  # before an interrupt can come that it would be lost by
        try:
            thread.start()
        except RuntimeError:  # the interpreter is ending
            threads.remove(thread)

    def _is_over(self) -> bool:
        """Whether nothing comes any more: behind an interrupt the program's end may be what says so."""
        return self._is_stopped or not threading.main_thread().is_alive()

    def _next(self, given: queue.SimpleQueue[Any] | queue.PriorityQueue[Any]) -> Any:
        """What a thread is to do next; None: nothing any more."""
        while not self._is_over():
            with contextlib.suppress(queue.Empty):
                found = given.get(timeout=_PATIENCE)
                return None if self._is_over() else found
        return None

    def _compile_here(self) -> None:
        while self._compile_next():
            while self._elsewhere and not self._is_over() and not self._is_lowered.wait(0.02):
                pass

    def _compile_elsewhere(self) -> None:
        try:
            process = LentProcess()
        except OSError:
            self._elsewhere -= 1
            return
        self._processes.append(process)
        while self._compile_next(process):
            pass
        process.leave_to_all()

    def _compile_next(self, process: LentProcess | None = None) -> bool:
        kernel = self._next(self._wanted)
        if kernel is None:
            return False
        try:
            compiler = None if process is None else process.compiler
            module = compile_kernel(kernel.source, kernel.label, compiler)
            self._modules.put((-len(module), next(self._numbers), kernel, module))
        except Exception:
            self._done[kernel.name].set()
        return True

    def _drive(self) -> None:
        while (found := self._next(self._modules)) is not None:
            _, _, kernel, module = found
            assert kernel is not None, "there is none at the end alone"
            with contextlib.suppress(Exception):
                self._drive_one(self._open(), kernel, module)
            self._done[kernel.name].set()

    def _drive_one(self, device: Device, kernel: KernelSpec, module: bytes) -> None:
        is_there = device.named_pipeline(kernel.name, self._taken) is not None
        if is_there or self._is_stopped or not self._begins(len(module) * self._seconds_a_byte):
            return
        started = time.perf_counter()
        make_pipeline(device, kernel, module, self._taken)
        taken = (time.perf_counter() - started) / len(module)
        self._seconds_a_byte = max(self._seconds_a_byte, taken)

    def wait(self, kernel: KernelSpec, is_over: Callable[[], bool]) -> bool:
        """Waits until nothing is done any more for a kernel that was wanted.

        Returns:
            Whether that came before the time was over, and before threads were told to end.
        """
        while not self._done[kernel.name].wait(0.02):
            if is_over() or self._is_over():
                return False
        return True

    def want_all(self, kernels: Sequence[KernelSpec]) -> None:
        """Has the last kernels compiled: nobody lowers any more, the interpreter is free."""
        for kernel in kernels:
            self.want(kernel)
        self._is_lowered.set()

    def wait_for(self, kernels: Sequence[KernelSpec], progress: Progress | None) -> None:
        """Waits until nothing is done any more for kernels that were wanted.

        Args:
            kernels: all of a program.
            progress: told after each.
        """
        there = {kernel.name: kernel for kernel in kernels if kernel.name in self._done}
        for number, kernel in enumerate(there.values(), 1):
            if not self.wait(kernel, self._is_over):
                return
            if progress:
                progress("compile", number, len(there))

    def stop(self) -> None:
        """Begins with no further kernel."""
        self._is_stopped = True
        self._is_lowered.set()
        for _ in self._compilers:
            self._wanted.put(None)
        for _ in self._drivers:
            self._modules.put((_AT_ONCE, next(self._numbers), None, b""))

    def close(self) -> None:
        """Waits for kernels under way, and gives all back; after an interrupt, what is left of that."""
        self.stop()
        for thread in (*self._compilers, *self._drivers):
            if thread.is_alive():  # an interrupt may have come before it began
                thread.join()
        while self._processes:
            self._processes[-1].close()
            self._processes.pop()
        self._heap.close()
        if self._taken:
            self._open().release_all(self._taken)


@contextlib.contextmanager
def compiled_ahead(
    open_device: Callable[[], Device],
    opened: Callable[[], Device | None] = lambda: None,
    most: int | None = None,
    begins: Callable[[float], bool] = lambda seconds: True,
) -> Iterator[Ahead]:
    """A context at whose end kernels that were wanted in it are kept by those alone who asked for them.

    Args:
        open_device: see `Ahead`.
        opened: likewise.
        most: likewise.
        begins: likewise.
    """
    ahead = Ahead(open_device, opened, most, begins)
    try:
        yield ahead
    finally:
        try:
            ahead.close()
        except BaseException:
            ahead.close()  # what an interrupt has left
            raise
