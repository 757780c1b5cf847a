"""Files mapped read-only, which notice when somebody else writes into them."""

from __future__ import annotations

import mmap
import os
import sys
import threading
import weakref
from typing import Any

import numpy as np

from vkml.errors import Fail, ModelChanged
from vkml.forks import renew_in_child

Array = np.ndarray[Any, Any]


class FileMapping(mmap.mmap):
    """The mapping of a `MappedFile`; ends with the last view of it."""

    file: MappedFile


class MappedFile:
    """An open file, mapped while anyone looks at its bytes.

    The bytes are the file's own: a program that writes into the file changes them, and one that shortens it
    makes the operating system end this process on the next access. `check` says so beforehand. A file that
    is replaced by renaming another one over it stays what it was for those who have it open.
    """

    def __init__(self, descriptor: int, path: str) -> None:
        """Takes the descriptor over.

        Args:
            descriptor: of a regular file that is not empty, open for reading.
            path: its absolute path.
        """
        self.path = path
        self._descriptor = descriptor
        self._close = weakref.finalize(self, os.close, descriptor)
        self._opened = os.fstat(descriptor)
        self._mapping: weakref.ref[FileMapping] | None = None
        # Re-entrant: a signal handler may plan while this thread holds it.
        self._lock = threading.RLock()
        renew_in_child(self._renew)

    def view(self) -> memoryview:
        """All bytes, as they are now.

        Raises:
            ModelChanged: they have to be mapped anew and are not what they were at opening.
            Fail: the operating system refuses it.
        """
        with self._lock:
            mapping = self._mapping() if self._mapping is not None else None
            if mapping is None:
                self.check()
                mapping = self._map()
                self._mapping = weakref.ref(mapping)
            return memoryview(mapping)

    def _map(self) -> FileMapping:
        # One descriptor a file is enough; older Pythons insist on a second one for each mapping.
        spare: dict[str, Any] = (
            {"trackfd": False} if sys.version_info >= (3, 13) and os.name == "posix" else {}
        )
        try:
            mapping = FileMapping(self._descriptor, self._opened.st_size, access=mmap.ACCESS_READ, **spare)
        except (OSError, ValueError) as error:
            raise Fail(f"{self.path!r} cannot be mapped: {error}") from error
        mapping.file = self
        return mapping

    def check(self) -> None:
        """`ModelChanged` where the file is not what it was at opening, by its size and its times.

        A change within the file system's tick (some milliseconds) of the opening can pass unseen.
        """
        was = self._opened
        try:
            now = os.fstat(self._descriptor)
        except OSError as error:
            raise ModelChanged(f"{self.path!r} can no longer be read: {error.strerror}") from error
        if now.st_size != was.st_size:
            what = f"it had {was.st_size} bytes and has {now.st_size}"
        elif now.st_mtime_ns != was.st_mtime_ns or self._was_written_unseen(now):
            what = "it was written to"
        else:
            return
        raise ModelChanged(
            f"{self.path!r} has changed since the model was opened: {what}. Make a new session; replace "
            "model files by renaming, or have sessions keep a copy (SessionOptions.copy_model)"
        )

    def _was_written_unseen(self, now: os.stat_result) -> bool:
        """Whether the inode's time has changed, and only content with its own time set back explains it."""
        was = self._opened
        if now.st_ctime_ns == was.st_ctime_ns or os.name == "nt":
            return False
        for key in ("st_mode", "st_uid", "st_gid", "st_nlink"):
            if getattr(now, key) != getattr(was, key):
                return False
        try:
            named = os.stat(self.path)
        except OSError:
            return False  # renamed
        return (named.st_dev, named.st_ino) == (was.st_dev, was.st_ino)

    def _renew(self) -> None:
        self._lock = threading.RLock()


def release_pages(array: Array) -> None:
    """Tells the system that a mapped file's pages behind an array are not needed soon.

    Reading all of a model of 1 GB would otherwise leave it in this process's resident set.
    """
    mapping = mapping_of(array)
    if mapping is None or not hasattr(mapping, "madvise") or array.nbytes < 1 << 20:
        return
    whole = np.frombuffer(mapping, np.uint8)
    start = array.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
    page = mmap.PAGESIZE
    first = -(-start // page) * page
    end = (start + array.nbytes) // page * page
    if end > first:
        mapping.madvise(mmap.MADV_DONTNEED, first, end - first)


def mapping_of(array: Array) -> FileMapping | None:
    """The mapped file in which an array's elements lie; None where they lie in memory."""
    base: Any = array
    if base.base is None:
        return None
    while isinstance(base, np.ndarray) and base.base is not None:
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    return base if isinstance(base, FileMapping) else None
