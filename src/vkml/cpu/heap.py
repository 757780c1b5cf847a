"""How much freed memory the C library keeps for later: less for a while where it is glibc's."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from vkml.cpu.functions import function
from vkml.process_settings import ProcessSetting

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Parameters of mallopt, as malloc.h has them."""
_AT_FIRST = 128 << 10
"""Of both, in a process that has freed nothing yet."""
_GROWN = 32 << 20
"""What glibc raises the second one to by itself, at most, as arrays are freed; the first is twice that."""


def freed_memory_returned() -> AbstractContextManager[None]:
    """A context in which freed memory goes back to the system from 128 KiB on.

    glibc raises that to 64 MiB once large pieces have been freed, for each of the heaps that threads have:
    behind 16 threads of NVIDIA's compiler 236 of 274 MiB in heaps were free, and stayed. Once raised it is
    raised for good, and so it is behind the context, as programs that free large arrays have it anyway.
    """
    return nullcontext() if _mallopt() is None else _thresholds.changed(_AT_FIRST)


def _write(mmap_threshold: int) -> None:
    mallopt = _mallopt()
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, mmap_threshold)
        mallopt(_TRIM_THRESHOLD, mmap_threshold if mmap_threshold == _AT_FIRST else 2 * mmap_threshold)


_thresholds = ProcessSetting(lambda: _GROWN, _write)


@functools.cache
def _mallopt() -> Callable[[int, int], int] | None:
    """glibc's, unless somebody has stated thresholds."""
    stated = any(name.startswith("MALLOC_") for name in os.environ) or "glibc.malloc" in os.environ.get(
        "GLIBC_TUNABLES", ""
    )
    if stated or os.name != "posix":
        return None
    try:
        library = ctypes.CDLL(None)
        function(library, "gnu_get_libc_version", "char *(*)(void)")
        found: Callable[[int, int], int] = function(library, "mallopt", "int(*)(int, int)")
        return found
    except (AttributeError, OSError):
        return None
