"""Which captures a function keeps, and when a call is worth one."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T")
MOST = 16
"""Captures of a function: each has a plan, with memory for all that is in between."""
PATIENCE = 8 * MOST
"""Calls after which a capture that none of them used makes room. Where more forms of arguments take turns
than are kept, each would throw out one that is about to be used: with 40 lengths of sequences, a step of a
small transformer took 110 ms so, and takes 9.6 ms on the mean (two cores)."""
_SEEN = 4096
"""Forms of arguments that are known to have come once."""


class _Kept(Generic[T]):
    """A capture, and the number of the call that used it last."""

    __slots__ = ("capture", "used")

    def __init__(self, capture: T, used: int) -> None:
        self.capture, self.used = capture, used


class CaptureCache(Generic[T]):
    """Captures of one function by the forms of its arguments."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, _Kept[T]] = {}
        self._seen: dict[Hashable, None] = {}
        self._calls = 0

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: Hashable) -> T | None:
        """The capture for a call, which counts as one."""
        self._calls += 1
        found = self._kept.get(key)
        if found is None:
            return None
        found.used = self._calls
        return found.capture

    def is_due(self, key: Hashable) -> bool:
        """Whether a call without a capture is to be captured: the second of its form, if there is room."""
        if key not in self._seen:
            if len(self._seen) >= _SEEN:
                self._seen.pop(next(iter(list(self._seen))), None)
            self._seen[key] = None
            return False
        if len(self._kept) < MOST:
            return True
        return self._calls - min([kept.used for kept in list(self._kept.values())]) > PATIENCE

    def put(self, key: Hashable, capture: T) -> None:
        """Keeps a capture, in the place of the one of its form, or of the one that was used longest ago."""
        if key not in self._kept and len(self._kept) >= MOST:
            self.drop(min(list(self._kept.items()), key=lambda each: each[1].used)[0])
        self._kept[key] = _Kept(capture, self._calls)

    def drop(self, key: Hashable) -> None:
        """Forgets a capture: the next call of its form counts as the second."""
        self._kept.pop(key, None)  # another thread may have been faster
