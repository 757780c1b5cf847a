"""Memory of the host: of large results, which is used again, and as devices know it."""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from vkml.cpu.copying import copy
from vkml.cpu.mapping import map_memory
from vkml.errors import DeviceError, OutOfMemory
from vkml.forks import renew_in_child

if TYPE_CHECKING:
    from vkml.vulkan import Device, Memory

Array = np.ndarray[Any, Any]
LARGE_BYTES = 1 << 20
"""Arrays from here on are worth the trouble: a page that is used for the first time costs 0.2 µs, and more in
a virtual machine, as much as to fill it."""
_STEP = 4 << 20
"""Memory is made in steps of this size."""
_KEPT_BYTES = 256 << 20
"""Unused memory that stays for results to come."""
_IDLE = 64
"""Results made since an array has left memory, from which on it goes where memory of another size is made."""


class HostImport:
    """Memory of the host as a buffer of a device, which gives it back when nobody has this any more.

    Args:
        memory: the buffer.
        found: its bytes.
    """

    def __init__(self, memory: Memory, found: Array) -> None:
        self.memory = memory
        self._bytes = found  # what they lie in is unmapped behind the buffer

    def __del__(self) -> None:
        self.memory.free()


class HostPages:
    """Pages of this process that devices may know as theirs.

    Args:
        found: their bytes.
        label: of the buffers.
    """

    def __init__(self, found: Array, label: str) -> None:
        self.bytes = found
        self._label = label
        self._imports: weakref.WeakKeyDictionary[Device, tuple[int, HostImport | None]]
        self._imports = weakref.WeakKeyDictionary()

    def on(self, device: Device) -> HostImport | None:
        """The pages as a device's buffer, to be held while that uses it; None where it does not take them."""
        forks, found = self._imports.get(device, (-1, None))
        if forks == _forks:
            return found
        forks = _forks
        try:
            found = HostImport(device.import_host(self.bytes, self._label), self.bytes)
        except (DeviceError, OutOfMemory):
            found = None
        self._imports[device] = forks, found
        return found


class Block(HostPages):
    """Memory for one array at a time, which devices may know as theirs and copy into.

    Args:
        size: in bytes, of whole pages.
    """

    def __init__(self, size: int) -> None:
        self._memory = map_memory(size)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # a system without
                self._memory.madvise(mmap.MADV_HUGEPAGE)
        super().__init__(np.frombuffer(self._memory, np.uint8), "results")
        self.left = 0
        """How many results had been made when an array left it last."""


_unused: deque[Block] = deque()
"""Memory that no array lies in, what was given back last behind."""
_made = 0
"""Results, so far."""
_forks = 0
"""Of this process. Pages that it shares with a child since then may move when they are written: what a device
knows of them is asked for anew."""
renew_in_child(_unused.clear)


def forks() -> int:
    """See `_forks`."""
    return _forks


def _note_fork() -> None:
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_note_fork, after_in_parent=_note_fork)


class _Lease:
    """Memory that an array and its views lie in; the last of them gives it back."""

    def __init__(self, block: Block, size: int) -> None:
        self._block = block
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": (size,),
            "data": (block.bytes.ctypes.data, False),
        }

    def __del__(self, unused: deque[Block] = _unused) -> None:
        self._block.left = _made
        unused.append(self._block)
        # Arrays go in any thread, and in the midst of anything: nothing here waits for a lock.
        while sum(block.bytes.size for block in _listed(unused)) > _KEPT_BYTES:
            try:
                unused.popleft()
            except IndexError:
                break


def _listed(blocks: deque[Block]) -> list[Block]:
    """What is in there, which may change meanwhile."""
    while True:
        try:
            return list(blocks)
        except RuntimeError:
            continue


def empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """A fresh array that nobody else has, of any content."""
    size = math.prod(shape) * dtype.itemsize
    return np.empty(shape, dtype) if size < LARGE_BYTES else leased(shape, dtype)[0]


def leased(shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[Array, Block]:
    """A fresh array of any content, at the beginning of memory of its own."""
    size = math.prod(shape) * dtype.itemsize
    block = _take(-(-size // _STEP) * _STEP)
    whole: Array = np.asarray(_Lease(block, size))
    return whole.view(dtype).reshape(shape), block


def _take(room: int) -> Block:
    global _made
    _made += 1
    unused = _listed(_unused)
    for block in reversed(unused):
        if block.bytes.size == room and _removed(block):
            return block
    for block in unused:  # sizes that came once, as when a text grows
        if _made - block.left > _IDLE:
            _removed(block)
    return Block(room)


def _removed(block: Block) -> bool:
    try:
        _unused.remove(block)
    except (ValueError, IndexError):
        return False  # another thread was faster
    return True


def copied(source: Array) -> Array:
    """A fresh array with the elements of another."""
    if source.nbytes < LARGE_BYTES:
        return source.copy()
    made = empty(source.shape, source.dtype)
    copy(made, source)
    return made
