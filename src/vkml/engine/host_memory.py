"""Large arrays of the host: memory that is used again, and copies by several threads."""

from __future__ import annotations

import contextlib
import mmap
import time
from collections import deque
from typing import Any

import numpy as np

from vkml.cpu.mapping import map_memory
from vkml.cpu.pool import available_processors, shared_pool
from vkml.forks import renew_in_child

Array = np.ndarray[Any, Any]
LARGE_BYTES = 1 << 20
"""Arrays from here on are worth the trouble: a page that is used for the first time costs 0.2 µs, and more in
a virtual machine, as much as to fill it."""
_PART = 4 << 20
"""Bytes that a thread copies at a time."""
_MOST_THREADS = 4
_KEPT_BYTES = 256 << 20
"""Unused memory that stays for results to come."""


_unused: deque[mmap.mmap] = deque()
"""Memory that no array lies in, what was given back last behind."""
renew_in_child(_unused.clear)


class _Lease:
    """Memory that an array and its views lie in; the last of them gives it back."""

    def __init__(self, memory: mmap.mmap, size: int) -> None:
        self._memory = memory
        address = np.frombuffer(memory, np.uint8).ctypes.data
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": (size,),
            "data": (address, False),
        }

    def __del__(self, unused: deque[mmap.mmap] = _unused) -> None:
        unused.append(self._memory)
        # Arrays go in any thread, and in the midst of anything: nothing here waits for a lock.
        while sum(map(len, tuple(unused))) > _KEPT_BYTES:
            try:
                unused.popleft()
            except IndexError:
                break


def empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """A fresh array that nobody else has, of any content."""
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if size < LARGE_BYTES:
        return np.empty(shape, dtype)
    room = -(-size // _PART) * _PART
    whole: Array = np.asarray(_Lease(_take(room), size))
    return whole.view(dtype).reshape(shape)


def _take(room: int) -> mmap.mmap:
    for memory in reversed(tuple(_unused)):
        if len(memory) == room:
            try:
                _unused.remove(memory)
            except ValueError:
                continue  # another thread was faster
            return memory
    made = map_memory(room)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a system without
            made.madvise(mmap.MADV_HUGEPAGE)
    return made


def copied(source: Array) -> Array:
    """A fresh array with the elements of another."""
    if source.nbytes < LARGE_BYTES:
        return source.copy()
    made = empty(source.shape, source.dtype)
    copy(made, source)
    return made


def copy(target: Array, source: Array) -> None:
    """Writes the elements of an array into another of its shape."""
    is_plain = target.flags.c_contiguous and source.flags.c_contiguous and target.dtype == source.dtype
    threads = min(_MOST_THREADS, available_processors(), -(-target.nbytes // _PART))
    if not is_plain or threads < 2 or target.shape != source.shape:
        target[...] = source
        return
    to, given = (array.reshape(-1).view(np.uint8) for array in (target, source))
    parts = deque(range(0, target.nbytes, _PART))
    begun: deque[None] = deque()
    ended: deque[None] = deque()

    def work(worker: int = 0) -> None:
        while True:
            begun.append(None)
            try:
                start = parts.popleft()
            except IndexError:
                ended.append(None)
                return
            to[start : start + _PART] = given[start : start + _PART]
            ended.append(None)

    pool = shared_pool(threads)
    try:
        for _ in range(threads - 1):
            pool.invite(work)
        while parts:
            try:
                start = parts.popleft()
            except IndexError:
                break
            to[start : start + _PART] = given[start : start + _PART]
    finally:
        # After an interrupt, too, nobody may write any more when this returns.
        parts.clear()
        while len(begun) > len(ended):
            time.sleep(0)
