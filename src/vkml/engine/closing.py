"""Sessions and plans go with their last reference, or before their devices when the interpreter ends."""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vkml.errors import DeviceError, EngineError

if TYPE_CHECKING:
    from vkml.engine.plan import Plan
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


_on_devices: weakref.WeakValueDictionary[int, InferenceSession] = weakref.WeakValueDictionary()
_plans: weakref.WeakValueDictionary[int, Plan] = weakref.WeakValueDictionary()
"""Those with programs on devices, by identity, as the sessions."""
_has_exit_handler = False
_is_over = False
"""Whether the interpreter ends: threads that it does not wait for may still be running."""


def close_at_exit(session: InferenceSession) -> None:
    """Has the session closed before its device when the interpreter ends: daemon threads may be running."""
    _register()
    _on_devices[id(session)] = session


def close_plan_at_exit(plan: Plan) -> None:
    """As `close_at_exit`: plans of tensors and captured functions have no session.

    Raises:
        DeviceError: the interpreter ends.
    """
    _register()
    _plans[id(plan)] = plan
    require_running()


def require_running() -> None:
    """Raises `DeviceError` once the interpreter ends: what a daemon thread began would lose its device."""
    if _is_over:
        raise DeviceError("the interpreter is ending: nothing is computed on devices any more")


def _register() -> None:
    global _has_exit_handler
    if not _has_exit_handler:
        # Handlers run in reverse order. Finalizers, of devices too, have theirs since the instance was made.
        atexit.register(_close_all)
        _has_exit_handler = True


def _close_all() -> None:
    global _is_over
    _is_over = True
    for session in [reference() for reference in _on_devices.valuerefs()]:
        if session is not None and hasattr(session, "_runner"):  # else gone, or not even made
            session.close()
    for plan in [reference() for reference in _plans.valuerefs()]:
        if plan is not None:
            plan.close()
