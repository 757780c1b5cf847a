"""Batches in their order: made when they are asked for, or ahead of that by the pool's threads."""

from __future__ import annotations

import heapq
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from vkml.data.fetching import Batch, Outcome, StreamBatch
from vkml.data.pool import pool
from vkml.data.worker_info import WorkerInfo, working_as

AnyBatch = Batch | StreamBatch
_LOOK_SECONDS = 1.0
"""After which a wait is begun anew: some systems tell a thread of Ctrl-C only between waits."""


class Inline:
    """Outcomes of batches that are made when they are asked for.

    Args:
        batches: to be made.
    """

    def __init__(self, batches: Iterator[AnyBatch]) -> None:
        self._batches = batches

    def next(self) -> Outcome:
        """The next one.

        Raises:
            StopIteration: there is none.
        """
        batch = next(self._batches)
        batch.do_all()
        if batch.outcome.is_last:
            self._batches = iter(())
        return batch.outcome

    def close(self, wait: bool) -> None:
        """Nothing more is made."""
        self._batches = iter(())


class Workers:
    """A loader's part of the pool: how many items are in work at a time, and who has been told to begin.

    Args:
        infos: of each worker.
        begin: is called with a worker's number before its first item, by the thread that loads that.
        begun: workers that have been told; they are added to it.
    """

    def __init__(
        self, infos: Sequence[WorkerInfo], begin: Callable[[int], None] | None, begun: set[int]
    ) -> None:
        self._infos = list(infos)
        self._begin = begin
        self._begun = begun
        self._free = list(range(len(infos)))
        self._active = 0
        self._pending: deque[tuple[AnyBatch, int]] = deque()
        self._lock = threading.Condition()
        """Notified when nothing is in work any more."""
        self._process = os.getpid()

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._infos)

    def post(self, batch: AnyBatch) -> None:
        """Has the parts of a batch done."""
        self._pending.extend((batch, part) for part in range(batch.parts))
        with self._lock:
            started = min(len(self._infos) - self._active, len(self._pending))
            self._active += started
        for at in range(started):
            try:
                pool.submit(self._work, len(self._infos))
            except BaseException:
                with self._lock:
                    self._active -= started - at
                raise

    def _work(self) -> None:
        with self._lock:
            worker = heapq.heappop(self._free)
        with working_as(self._infos[worker]):
            is_waited_for = self._work_as(worker)
        if is_waited_for:
            try:
                pool.submit(self._work, len(self._infos))
            except RuntimeError:  # the interpreter ends
                with self._lock:
                    self._active -= 1
                    self._lock.notify_all()

    def _work_as(self, worker: int) -> bool:
        """Does parts until there are none, or others wait for the thread; whether there may be more."""
        while True:
            try:
                batch, part = self._pending.popleft()
            except IndexError:
                with self._lock:
                    if self._pending:
                        continue
                    self._active -= 1
                    heapq.heappush(self._free, worker)
                    self._lock.notify_all()
                    return False
            if worker not in self._begun:
                self._begun.add(worker)
                try:
                    if self._begin is not None:
                        self._begin(worker)
                except BaseException as error:
                    self._begun.discard(worker)
                    batch.fail(part, error)
                    continue
            batch.do(part)
            del batch
            if pool.has_waiting():
                with self._lock:
                    heapq.heappush(self._free, worker)
                return True

    def cancel(self) -> None:
        """Nothing more is begun."""
        self._pending.clear()

    def wait(self) -> None:
        """Waits for what is in work, unless it is work of this very thread."""
        if not pool.is_inside:
            with self._lock:
                while self._active:
                    self._lock.wait(_LOOK_SECONDS)

    @property
    def is_of_this_process(self) -> bool:
        """Whether no fork lies between its making and now: a child has none of the threads."""
        return os.getpid() == self._process


class Ahead:
    """Outcomes of batches that the pool's threads make ahead, in their order.

    Which items are in a batch is asked for by the thread that takes batches, when it takes one; so no more
    than `count` are there or in work at any time, and samplers need not care for threads.

    Args:
        batches: to be made.
        workers: who make them.
        count: how many ahead, at least; more where their parts are too few for all workers.
        timeout: seconds to wait for a batch; 0: as long as it takes.
    """

    def __init__(self, batches: Iterator[AnyBatch], workers: Workers, count: int, timeout: float) -> None:
        self._batches: Iterator[AnyBatch] | None = batches
        self._workers = workers
        self._count = count
        self._timeout = timeout
        self._posted: deque[AnyBatch] = deque()
        self._fill()

    def _fill(self) -> None:
        while self._batches is not None and not self._has_enough():
            batch = next(self._batches, None)
            if batch is None:
                self._batches = None
                return
            self._posted.append(batch)
            self._workers.post(batch)

    def _has_enough(self) -> bool:
        if len(self._posted) < self._count:
            return False
        return len(self._posted) * self._posted[-1].parts >= self._workers.count

    def next(self) -> Outcome:
        """The next one.

        Raises:
            StopIteration: there is none.
            RuntimeError: it takes too long, or this is a child of the process that began.
        """
        if not self._workers.is_of_this_process:
            raise RuntimeError(
                "this iterator of a DataLoader was made before the process was forked: its workers are the "
                "parent's; call iter(loader) again"
            )
        self._fill()
        if not self._posted:
            raise StopIteration
        batch = self._posted[0]
        self._wait(batch)
        self._posted.popleft()
        outcome = batch.outcome
        if outcome.is_last:
            self._batches = None
            self._posted.clear()
            self._workers.cancel()
        else:
            self._fill()
        return outcome

    def _wait(self, batch: AnyBatch) -> None:
        end = time.monotonic() + self._timeout if self._timeout else float("inf")
        while not batch.ready.acquire(timeout=min(_LOOK_SECONDS, max(0.0, end - time.monotonic()))):
            if time.monotonic() >= end:
                raise RuntimeError(f"DataLoader timed out after {self._timeout} seconds")
        batch.ready.release()

    def close(self, wait: bool) -> None:
        """Nothing more is begun; what is in work is dropped when it is done."""
        self._batches = None
        self._posted.clear()
        if self._workers.is_of_this_process:
            self._workers.cancel()
            if wait:
                self._workers.wait()
