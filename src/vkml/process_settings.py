"""Settings of the whole process that threads change for a while, and that are then as they were."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from vkml.forks import renew_in_child

_Value = TypeVar("_Value")


class ProcessSetting(Generic[_Value]):
    """One setting. `changed` contexts of several threads may overlap: the last to close sets back.

    Interrupts and forks lose nothing: a context that an interrupt kept from its end closes when it is
    finalized, and those of the threads that a forked child does not have count as closed there.

    Args:
        read: what the setting is.
        write: sets it; may be called once too often with the same value.
        forks_set_back: whether a child sets back at once what its parent's threads had changed; else
            the next context to close there does.
    """

    def __init__(
        self,
        read: Callable[[], _Value],
        write: Callable[[_Value], None],
        *,
        forks_set_back: bool = True,
    ) -> None:
        self._read, self._write = read, write
        self._forks_set_back = forks_set_back
        self._open: set[int] = set()
        """Ids of the contexts that are open."""
        self._before: tuple[_Value] | None = None
        """What is to be set again."""
        # Re-entrant: a finalizer or a signal handler may come while this thread holds it.
        self._lock = threading.RLock()
        renew_in_child(self._renew)

    def changed(self, value: _Value) -> _Change[_Value]:
        """A context in which the setting is `value`, unless another thread's context sets another."""
        return _Change(self, value)

    def _renew(self) -> None:
        self._lock = threading.RLock()
        if self._open and self._before is not None and self._forks_set_back:
            self._write(self._before[0])
            self._before = None
        self._open.clear()


class _Change(Generic[_Value]):
    """A context, to be entered once."""

    __slots__ = ("_setting", "_value")

    def __init__(self, setting: ProcessSetting[_Value], value: _Value) -> None:
        self._setting, self._value = setting, value

    def __enter__(self) -> None:
        setting = self._setting
        with setting._lock:
            if setting._before is None:
                setting._before = (setting._read(),)
            setting._open.add(id(self))
            setting._write(self._value)

    def __exit__(self, *_: object) -> None:
        setting = self._setting
        with setting._lock:
            is_last = len(setting._open) == (id(self) in setting._open)
            if is_last and setting._before is not None:
                setting._write(setting._before[0])
                setting._before = None
            setting._open.discard(id(self))  # last: until then an interrupt leaves it to the finalizer

    def __del__(self) -> None:
        setting = getattr(self, "_setting", None)  # an interrupt may have kept it from being set
        if setting is not None and id(self) in setting._open:
            self.__exit__()
