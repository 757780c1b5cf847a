"""Holds Python's garbage collector while a graph is built."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from collections.abc import Iterator


class _Pause:
    """Counts the threads that hold the collector; the last of them gives it back as the first found it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holders = 0
        self._was_enabled = False

    def begin(self) -> None:
        with self._lock:
            if not self._holders:
                self._was_enabled = gc.isenabled()
                gc.disable()
            self._holders += 1

    def end(self) -> None:
        with self._lock:
            self._holders -= 1
            if not self._holders and self._was_enabled:
                gc.enable()

    def forget(self) -> None:
        """In a forked child the threads that held the collector are gone."""
        self._lock = threading.Lock()
        if self._holders and self._was_enabled:
            gc.enable()
        self._holders = 0


_pause = _Pause()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pause.forget)


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Within, no collection looks for cycles of garbage.

    Loading and planning make objects by the hundred thousand and next to no garbage, and the collector walks
    over all of them again and again: a quarter of the time of a graph of 100,000 nodes.
    """
    _pause.begin()
    try:
        yield
    finally:
        _pause.end()
