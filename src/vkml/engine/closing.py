"""Sessions that go with their last reference, and before their devices when the interpreter ends."""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vkml.errors import EngineError

if TYPE_CHECKING:
    from vkml.engine.session import InferenceSession


class PlanClosed(EngineError):
    """A plan was closed, with its session, between being found in the cache and being run."""


def weakly(method: Callable[..., None]) -> Callable[..., None]:
    """A method that keeps nothing alive: a session goes, with what it holds, when its last reference does."""
    found = weakref.WeakMethod(method)

    def call(*arguments: Any) -> None:
        bound = found()
        if bound is not None:
            bound(*arguments)

    return call


_on_devices: weakref.WeakSet[InferenceSession] = weakref.WeakSet()
_has_exit_handler = False


def close_at_exit(session: InferenceSession) -> None:
    """Has the session closed before its device when the interpreter ends: daemon threads may be running."""
    global _has_exit_handler
    if not _has_exit_handler:
        # Handlers run in reverse order. Finalizers, of devices too, have theirs since the instance was made.
        atexit.register(_close_all)
        _has_exit_handler = True
    _on_devices.add(session)


def _close_all() -> None:
    for session in list(_on_devices):
        if hasattr(session, "_runner"):  # else not even made
            session.close()
