"""A function of the program that takes what vkml logs."""

from __future__ import annotations

import ctypes
import logging
import threading
from collections.abc import Callable
from typing import Any

from vkml.engine.array_likes import as_integer
from vkml.engine.process_defaults import set_default_logger_severity
from vkml.errors import InvalidSetting

_LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)
_root = logging.getLogger("vkml")


class _Handler(logging.Handler):
    """Hands records on, one at a time of each thread: what the function logs goes where all else goes."""

    def __init__(self, callback: Callable[[int, str, str, str, str], Any], severity: int) -> None:
        super().__init__()
        self._callback, self._least = callback, _LEVELS[severity]
        self._thread = threading.local()

    def emit(self, record: logging.LogRecord) -> None:
        # Sessions have compared with their own severity, or with the process's, before they log.
        if record.name != _root.name and record.levelno < self._least:
            return
        if getattr(self._thread, "busy", False):
            _to_terminal(record)
            return
        severity = max(number for number, level in enumerate(_LEVELS) if level <= max(record.levelno, 10))
        place = f"{record.filename}:{record.lineno} {record.funcName}"
        self._thread.busy = True
        try:
            self._callback(severity, "vkml", record.name, place, record.getMessage())
        except Exception as error:
            _report(error)
            _to_terminal(record)
        finally:
            self._thread.busy = False


def _report(error: Exception) -> None:
    """Tells `sys.unraisablehook`, as Python does of functions that are called from C."""

    def fail() -> None:
        raise error

    ctypes.CFUNCTYPE(None)(fail)()


def _to_terminal(record: logging.LogRecord) -> None:
    if logging.lastResort is not None and record.levelno >= logging.lastResort.level:
        logging.lastResort.handle(record)


class _Installed:
    """The handler there is, and the level that vkml's logger had before the first one."""

    handler: _Handler | None = None
    level = logging.NOTSET
    lock = threading.RLock()


def set_default_logger_callback(
    callback: Callable[[int, str, str, str, str], Any] | None, severity: int = 2
) -> None:
    """Makes a function take what vkml logs, also of sessions there are already.

    vkml logs by Python's `logging`, to the logger ``"vkml"`` and those below it: handlers of the program's
    own do the same and more. While a function takes messages they are not written to the terminal, but for
    what the function itself logs and messages that it raises an exception for; `sys.unraisablehook` is told
    of that one.

    Args:
        callback: called with the severity, a category, the logger's name, the place in the source and the
            message, on the thread that logs; None to give up the one there is.
        severity: from which on (`set_default_logger_severity`), where `callback` is not None.

    Raises:
        InvalidSetting: the severity is not from 0 to 4, or the callback cannot be called.

    Example:
        >>> import vkml
        >>> vkml.set_default_logger_callback(lambda severity, category, name, place, message: print(message))
        >>> vkml.set_default_logger_callback(None)
    """
    level = as_integer(severity, "a severity")
    if not 0 <= level <= 4:
        raise InvalidSetting(f"a severity is a whole number from 0 (verbose) to 4 (fatal), not {level}")
    if callback is not None and not callable(callback):
        raise InvalidSetting(f"a callback is a function or None, not {type(callback).__name__}")
    with _Installed.lock:
        if _Installed.handler is not None:
            _root.removeHandler(_Installed.handler)
            _root.setLevel(_Installed.level)
            _Installed.handler = None
        if callback is None:
            return
        set_default_logger_severity(level)
        _Installed.handler, _Installed.level = _Handler(callback, level), _root.level
        if _LEVELS[level] < _root.getEffectiveLevel():
            _root.setLevel(_LEVELS[level])
        _root.addHandler(_Installed.handler)
