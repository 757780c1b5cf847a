"""Turns: work that one thread at a time does, and that a thread cannot begin again in the middle of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import field
from typing import TYPE_CHECKING

from vkml.dataclasses import dataclass
from vkml.errors import Fail
from vkml.forks import renew_in_child

if TYPE_CHECKING:
    from _thread import RLock


def is_owned(lock: RLock) -> bool:
    """Whether this very thread holds a lock."""
    return bool(lock._is_owned())  # type: ignore[attr-defined]  # as threading.Condition asks


@dataclass(eq=False)
class Turn:
    """A lock for the time of the work, and whether somebody is at it.

    The lock is re-entrant and `is_taken` says what a plain lock does not: a thread that gets the lock and
    finds the turn taken has been called from its own work, by a callback or a signal handler, and would wait
    for itself for ever.
    """

    lock: RLock = field(default_factory=threading.RLock, init=False, repr=False)
    is_taken: bool = field(default=False, init=False, repr=False)

    def __post_init__(self) -> None:
        renew_in_child(self._renew)

    @contextmanager
    def taken(self, refusal: str) -> Iterator[None]:
        """The turn, for the time of a `with` block; waits for other threads.

        Raises:
            Fail: with the text given, where this thread has the turn already.
        """
        with self.lock:
            if self.is_taken:
                raise Fail(refusal)
            self.is_taken = True
            try:
                yield
            finally:
                self.is_taken = False

    def _renew(self) -> None:
        if self.lock.acquire(blocking=False):
            self.lock.release()  # free, or taken by the thread that forked, which goes on
        else:
            self.lock, self.is_taken = threading.RLock(), False
