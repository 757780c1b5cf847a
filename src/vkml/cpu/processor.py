"""Which processor the calling thread runs on."""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable

from vkml.cpu.functions import function


def current_processor() -> int | None:
    """The index of the processor this thread runs on; None where the system does not say (0.2 µs)."""
    call = _getcpu()
    if call is None:
        return None
    found = call()
    return found if found >= 0 else None


@functools.cache
def _getcpu() -> Callable[[], int] | None:
    if not sys.platform.startswith("linux"):
        return None
    try:
        return function(ctypes.CDLL(None), "sched_getcpu", "int(*)(void)")  # type: ignore[no-any-return]
    except (AttributeError, OSError):
        return None
