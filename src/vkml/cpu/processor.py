"""Which processor the calling thread runs on, and how many it may use."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path

from vkml.cpu.functions import function


def current_processor() -> int | None:
    """The index of the processor this thread runs on; None where the system does not say (0.2 µs)."""
    call = _getcpu()
    if call is None:
        return None
    found = call()
    return found if found >= 0 else None


def usable_cores(root: Path = Path("/")) -> int:
    """How many cores' worth of time this process may take, at least one.

    Containers are given a share of all of a machine's cores rather than some of them.

    Args:
        root: where the file system begins.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    groups = root / "sys/fs/cgroup"
    for quota, period in (
        (groups / "cpu.max", None),
        (groups / "cpu/cpu.cfs_quota_us", groups / "cpu/cpu.cfs_period_us"),
    ):
        with contextlib.suppress(OSError, ValueError):  # "max": no limit
            words = quota.read_text(encoding="ascii").split()
            if period is not None:
                words += period.read_text(encoding="ascii").split()
            allowed, of = map(int, words)
            if allowed > 0 and of > 0:
                cores = min(cores, -(-allowed // of))
    return max(cores, 1)


@functools.cache
def _getcpu() -> Callable[[], int] | None:
    if not sys.platform.startswith("linux"):
        return None
    try:
        return function(ctypes.CDLL(None), "sched_getcpu", "int(*)(void)")  # type: ignore[no-any-return]
    except (AttributeError, OSError):
        return None
