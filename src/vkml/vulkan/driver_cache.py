"""A VkPipelineCache: compiled code as the driver keeps it, of bounded size, on disk between processes."""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time
from collections.abc import Iterator

from vkml.dataclasses import dataclass
from vkml.vulkan import cache
from vkml.vulkan.context import Context, Key
from vkml.vulkan.structures import NULL, ffi, structure

SAVING_SHARE = 0.25
"""Of the time that compiling takes, what saving may take of it at most, but for the first time."""
PIPELINES_PER_CACHE = 256
"""After how many an empty one takes its place: drivers never forget. SwiftShader's grows by 65 KiB each."""


@dataclass(eq=False)
class _Generation:
    """One VkPipelineCache."""

    handle: int
    key: Key
    users: int = 0
    """Threads that compile with it."""
    pipelines: int = 0


class DriverCache:
    """The cache that a device's pipelines are compiled with; threads may use it at the same time.

    Attributes:
        name: of the entry on disk.
        stored: what is known to be on disk, empty where that is not known.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._lock = threading.RLock()
        info = context.info
        build = hashlib.sha256(
            f"{info.driver_id} {info.driver_version} {info.driver_info}".encode()
        ).hexdigest()[:16]
        self.name = f"pipelines/{info.uuid}-{build}"
        self.stored = cache.read(self.name) or b""
        self._compiling_seconds = 0.0
        """What pipelines took that are not on disk."""
        self._saving_seconds = 0.0
        """What saving took the last time."""
        self._current = self._create(self.stored)

    @contextlib.contextmanager
    def lend(self) -> Iterator[int]:
        """The handle, to compile one pipeline with."""
        with self._lock:
            if self._current.pipelines >= PIPELINES_PER_CACHE:
                full, self._current = self._current, self._create(b"")
                self.stored = b""  # more than the new one knows: `save` has to merge it
                self._destroy_replaced(full)
            lent = self._current
            lent.pipelines += 1
            lent.users += 1
        try:
            yield lent.handle
        finally:
            with self._lock:
                lent.users -= 1
                self._destroy_replaced(lent)

    def note(self, seconds: float) -> None:
        """A pipeline was compiled that the cache did not have."""
        with self._lock:
            self._compiling_seconds += seconds

    def keep(self) -> bool:
        """Saves it where that costs little beside what it saves the next process; returns whether it did."""
        with self._lock:
            if self._compiling_seconds * SAVING_SHARE <= self._saving_seconds:
                return False
        return self.save()

    def save(self) -> bool:
        """Writes it to disk if it has grown; returns whether it was written."""
        self._context.require_open()
        started = time.perf_counter()
        with self._lock:
            self._compiling_seconds = 0.0
        try:
            return self._save()
        finally:
            with self._lock:
                self._saving_seconds = time.perf_counter() - started

    def _save(self) -> bool:
        data = self._data()
        if not data or data == self.stored:
            return False
        on_disk = cache.read(self.name)
        if on_disk and on_disk != self.stored:  # another process has written since: keep what it found
            other = self._create(on_disk)
            functions, device = self._context.functions, self._context.handle
            with self._lock:
                sources = ffi.new("VkPipelineCache[1]", [other.handle])
                functions.call("vkMergePipelineCaches", device, self._current.handle, 1, sources)
            self._context.release(other.key)
            data = self._data()
        self.stored = data
        return cache.write(self.name, data)

    def _destroy_replaced(self, one: _Generation) -> None:
        if one is not self._current and not one.users:
            self._context.release(one.key)

    def _create(self, data: bytes) -> _Generation:
        # The driver checks its own header too, and starts empty when the data is not for it.
        initial = ffi.new("char[]", data) if data else NULL
        info = structure("VkPipelineCacheCreateInfo", initialDataSize=len(data), pInitialData=initial)
        return _Generation(*self._context.create("PipelineCache", "vkCreatePipelineCache", info))

    def _data(self) -> bytes:
        functions, device = self._context.functions, self._context.handle
        size = ffi.new("size_t *")
        with self._lock:
            while True:
                handle = self._current.handle
                functions.call("vkGetPipelineCacheData", device, handle, size, NULL)
                data = ffi.new("char[]", max(size[0], 1))
                result = functions.call("vkGetPipelineCacheData", device, handle, size, data)
                if result == 0:  # not VK_INCOMPLETE: another thread may have compiled in between
                    return bytes(ffi.buffer(data, size[0]))
