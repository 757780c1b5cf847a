"""Memory of intermediate results, reused from run to run.

A fresh array of 5 MB costs 0.6 ms in page faults before the first element is written.
"""

from __future__ import annotations

import math
import mmap
from typing import Any

import numpy as np

from vkml.cpu.mapping import map_memory

Array = np.ndarray[Any, Any]

LEAST_BYTES = 65536
"""Smaller arrays come from NumPy, whose allocator keeps small blocks itself."""


class _Lease(np.ndarray[Any, Any]):
    """Holds one block while any array lies in it, then gives it back.

    NumPy keeps the base of an array alive as long as the array or a view of it; a lease is that base. It is a
    class of its own because NumPy replaces a base of type ndarray with that array's own base.
    """

    home: BufferPool
    block: mmap.mmap

    def __del__(self) -> None:
        # Views share the class but not these attributes; they hold nothing.
        home = self.__dict__.get("home")
        if home is not None:
            home.give_back(self.__dict__["block"])


class BufferPool:
    """Blocks of memory by size, page-aligned, handed out last-in first-out so that they are warm.

    Example:
        >>> pool = BufferPool()
        >>> first = pool.empty((256, 256), np.float32)
        >>> address = first.ctypes.data
        >>> del first
        >>> pool.empty((65536,), np.float32).ctypes.data == address
        True
    """

    def __init__(self) -> None:
        self._free: dict[int, list[mmap.mmap]] = {}

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """An array with undefined contents; its memory comes back when it and all its views are gone."""
        dtype = np.dtype(dtype)
        nbytes = math.prod(shape) * dtype.itemsize
        if nbytes < LEAST_BYTES:
            return np.empty(shape, dtype)
        size = _rounded(nbytes)
        try:
            block = self._free[size].pop()
        except (KeyError, IndexError):
            block = map_memory(size)
        lease = _Lease((size,), np.uint8, block)
        lease.home, lease.block = self, block
        return np.ndarray(shape, dtype, lease)

    def give_back(self, block: mmap.mmap) -> None:
        """Takes a block for later use."""
        self._free.setdefault(len(block), []).append(block)

    def clear(self) -> None:
        """Frees the blocks that nobody uses."""
        self._free.clear()


def _rounded(nbytes: int) -> int:
    """Up to the next of four sizes an octave, so that blocks of nearly the same size serve each other."""
    step = max(4096, 1 << (nbytes.bit_length() - 3))
    return -(-nbytes // step) * step
