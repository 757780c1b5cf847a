"""The worker pool: threads that share the indices of one loop while NumPy and BLAS have let go of the GIL."""

from __future__ import annotations

import atexit
import itertools
import logging
import os
import queue
import threading
from collections.abc import Callable

import numpy as np

from vkml.cpu.processor import current_processor
from vkml.forks import renew_in_child

_log = logging.getLogger("vkml")
Body = Callable[[int, int], None]
"""Does the indices from `start` up to, not including, `stop`."""

DISPATCH_SECONDS = 60e-6
"""What handing a loop to a sleeping thread costs: 65 µs on a virtual machine whose cores halt when they have
nothing to do, 15 on one whose do not. A loop shorter than a few of these runs faster where it is."""


class _Loop:
    """One `parallel_for`: indices are claimed in chunks by whoever is free."""

    def __init__(self, count: int, body: Body, grain: int) -> None:
        self.count, self.body, self.grain = count, body, grain
        self.chunks = -(-count // grain)
        # next() of a C iterator is atomic under the GIL, and the cheapest such counter that Python has.
        self.claims = itertools.count()
        self.completions = itertools.count(1)
        self.finished = threading.Lock()
        self.finished.acquire()
        self.error: BaseException | None = None

    def work(self, worker: int = 0) -> None:
        """Claims and does chunks until none is left."""
        while (chunk := next(self.claims)) < self.chunks:
            if self.error is None:
                start = chunk * self.grain
                try:
                    self.body(start, min(start + self.grain, self.count))
                except BaseException as error:
                    self.error = error
            if next(self.completions) == self.chunks:
                self.finished.release()


class _Invitation:
    """One call of `invite`."""

    def __init__(self, work: Callable[[int], None]) -> None:
        self.work = work


class WorkerPool:
    """Threads that run loops; the calling thread works too, so a pool of size n has n - 1 threads.

    Any thread may call `parallel_for`, also several at once. Close the pool, or use it as a context manager.

    Example:
        >>> with WorkerPool(2) as pool:
        ...     squares = [0] * 4
        ...     pool.parallel_for(4, lambda start, stop: squares.__setitem__(start, start * start))
        >>> squares
        [0, 1, 4, 9]
    """

    def __init__(self, size: int | None = None) -> None:
        """Makes the pool; its threads start with the first loop that needs them.

        Args:
            size: threads that work on a loop, the caller's included. None: one a usable processor.
        """
        self.size = max(1, available_processors() if size is None else size)
        self._closed = False
        self._renew()
        renew_in_child(self._renew)

    def _renew(self) -> None:
        """Also in a forked child, which has none of the threads: they start anew with its first loop."""
        self._loops: queue.SimpleQueue[_Loop | _Invitation | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._is_started = False
        self._numbers = itertools.count(1)
        self._native_ids: list[int] = []
        self._lock = threading.RLock()
        self._busy = threading.local()
        self._avoided: int | None = None

    def parallel_for(self, count: int, body: Body, grain: int = 1) -> None:
        """Calls `body(start, stop)` for consecutive chunks of `grain` indices until all `count` are done.

        A call from inside a body, on a pool of size 1, or with a single chunk runs inline. The first
        exception of a body is raised here, after every running chunk has ended; the others are skipped.
        """
        is_small = count <= grain or self.size == 1 or self._closed or getattr(self._busy, "value", False)
        if is_small or not (self._is_started or self._start()):
            for start in range(0, count, grain):
                body(start, min(start + grain, count))
            return
        loop = _Loop(count, body, grain)
        self._make_room()
        for _ in range(min(self.size - 1, loop.chunks - 1)):
            self._loops.put(loop)
        self._busy.value = True
        try:
            loop.work()
        finally:
            self._busy.value = False
        loop.finished.acquire()
        if loop.error is not None:
            raise loop.error

    def invite(self, work: Callable[[int], None]) -> bool:
        """Has one of the other threads call `work` with its number, from 1 to size - 1, when it is free.

        Does not wait. `work` must not raise.

        Returns:
            Whether there is another thread.
        """
        if self.size == 1 or self._closed or not (self._is_started or self._start()):
            return False
        self._make_room()
        self._loops.put(_Invitation(work))
        return True

    def close(self) -> None:
        """Ends the threads and waits for them; the pool then runs loops inline."""
        with self._lock:
            self._closed = True
            threads, self._threads = self._threads, []
            self._is_started = False
        for _ in range(self.size - 1):
            self._loops.put(None)
        for thread in threads:
            thread.join()

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> bool:
        """Starts as many threads as the system allows; whether there are any."""
        with self._lock:
            while not (self._is_started or self._closed) and len(self._threads) < self.size - 1:
                name = f"vkml-cpu-{len(self._threads) + 1}"
                thread = threading.Thread(target=self._serve, name=name, daemon=True)
                try:
                    thread.start()
                except RuntimeError:
                    # A limit of the system's, or the interpreter ends: the others do it all, or the caller.
                    break
                self._threads.append(thread)
            # Not yet where an interrupt has come in between: the next loop then starts the rest.
            self._is_started = bool(self._threads)
            return self._is_started

    def _serve(self) -> None:
        # Its number is the thread's own choice: a start that was interrupted may have made one too many.
        worker = next(self._numbers)
        if worker >= self.size:
            return
        self._busy.value = True
        self._native_ids.append(threading.get_native_id())
        np.seterr(all="ignore")
        while (loop := self._loops.get()) is not None:
            try:
                loop.work(worker)
            except BaseException:
                _log.exception("work for a thread of the CPU's pool raised; the thread goes on")
            del loop

    def _make_room(self) -> None:
        """Keeps the workers off the caller's processor.

        Left alone, the scheduler wakes a worker on the core of the thread that woke it and moves it only
        milliseconds later: two halves of a 1.4 ms product then ran one after the other (Linux 6.18).
        """
        processor = current_processor()
        if processor is None or processor == self._avoided or len(self._native_ids) < len(self._threads):
            return
        others = os.sched_getaffinity(0) - {processor}
        if len(others) + 1 < self.size:
            return
        try:
            for native_id in self._native_ids:
                os.sched_setaffinity(native_id, others)
        except OSError:
            pass
        self._avoided = processor


def available_processors() -> int:
    """How many processors this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0)) or 1
    return os.cpu_count() or 1


_pools: dict[int, WorkerPool] = {}
_pools_lock = threading.RLock()


def shared_pool(size: int | None = None) -> WorkerPool:
    """The process's pool of that size (None: one worker a processor); made once and closed at exit."""
    size = max(1, available_processors() if size is None else size)
    with _pools_lock:
        return _pools.get(size) or _pools.setdefault(size, WorkerPool(size))


def _close_all() -> None:
    with _pools_lock:
        for pool in _pools.values():
            pool.close()
        _pools.clear()


def _renew_lock() -> None:
    global _pools_lock
    _pools_lock = threading.RLock()


atexit.register(_close_all)
renew_in_child(_renew_lock)
