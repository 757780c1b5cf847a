"""Counts of the Vulkan objects that exist, to prove that none is left behind."""

from __future__ import annotations

import threading
from collections import Counter

from vkml.forks import renew_in_child

# Re-entrant: a finalizer that destroys objects may run inside any allocation made while the lock is held.
_lock = threading.RLock()
_live: Counter[str] = Counter()


def _renew() -> None:
    global _lock
    _lock = threading.RLock()
    _live.clear()


renew_in_child(_renew)


def created(kind: str) -> None:
    """Counts one object more, for example a "Buffer"."""
    with _lock:
        _live[kind] += 1


def destroyed(kind: str) -> None:
    """Counts one object less."""
    with _lock:
        _live[kind] -= 1


def live_objects() -> dict[str, int]:
    """The Vulkan objects of this process by kind, without the one instance; empty when none is left."""
    with _lock:
        return {kind: count for kind, count in _live.items() if count}
