"""Threads that load data: one pool for all loaders of a process.

Not those that compute (`cpu/pool.py`): an item may wait for a disk or decode for milliseconds, and a loop of
a step that is shared among the processors ends with its last part. Threads, not processes: what is slow about
items (reading files, decoding pictures, copying) runs without the interpreter's lock, and what they make is
where the batch is.
"""

from __future__ import annotations

import atexit
import logging
import queue
import threading
import time
from collections.abc import Callable

import numpy as np

from vkml.cpu.pool import available_processors
from vkml.forks import renew_in_child

_log = logging.getLogger("vkml")
_END_SECONDS = 2.0
"""How long the end of the interpreter waits for what is being loaded: longer than any upload."""


class LoadingPool:
    """Threads that take work in the order in which it comes, whoever it is from.

    There are as many as the loader that asked for the most wants, and no fewer than processors; they start
    with the first work that finds no idle one.
    """

    def __init__(self) -> None:
        self._most = 0
        self._renew()
        renew_in_child(self._renew)

    def _renew(self) -> None:
        """Also in a forked child, which has none of the threads."""
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lock = threading.RLock()
        self._local = threading.local()
        self._idle = 0
        self._is_closed = False

    @property
    def is_inside(self) -> bool:
        """Whether the calling thread is one of these."""
        return getattr(self._local, "is_inside", False)

    def submit(self, work: Callable[[], None], most: int) -> None:
        """Has a thread call something when one is free.

        Args:
            work: must not raise.
            most: how many threads there may be for it.

        Raises:
            RuntimeError: the interpreter ends, or the system gives no thread.
        """
        with self._lock:
            if self._is_closed:
                raise RuntimeError("no data can be loaded any more: the interpreter ends")
            self._most = max(self._most, most, available_processors())
            if self._idle > self._work.qsize() or len(self._threads) >= self._most:
                self._work.put(work)
                return
            thread = threading.Thread(
                target=self._serve, name=f"vkml-data-{len(self._threads) + 1}", daemon=True
            )
            try:
                thread.start()
            except RuntimeError:
                if not self._threads:
                    raise
            else:
                self._threads.append(thread)
            self._work.put(work)

    def has_waiting(self) -> bool:
        """Whether any work waits for a thread."""
        return not self._work.empty()

    def _serve(self) -> None:
        self._local.is_inside = True
        np.seterr(all="ignore")
        work_queue = self._work
        while True:
            with self._lock:
                self._idle += 1
            work = work_queue.get()
            with self._lock:
                self._idle -= 1
            if work is None:
                return
            try:
                work()
            except BaseException:
                _log.exception("loading raised outside of an item; the thread goes on")
            del work

    def close(self) -> None:
        """Ends the threads, and waits a while for what they are loading."""
        with self._lock:
            self._is_closed = True
            threads = list(self._threads)
        for _ in threads:
            self._work.put(None)
        end = time.monotonic() + _END_SECONDS
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))


pool = LoadingPool()
"""That of the process."""
atexit.register(pool.close)
