"""Memory mapped from the system for this process alone."""

from __future__ import annotations

import mmap
import sys


def map_memory(size: int) -> mmap.mmap:
    """Zeroed pages that can be read and written; a forked child gets a copy of its own.

    `mmap.mmap` by itself shares anonymous memory with forked children: parent and child would write into
    each other's results.

    Args:
        size: bytes, at least one.
    """
    if sys.platform == "win32":
        return mmap.mmap(-1, size)
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
