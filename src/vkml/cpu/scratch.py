"""Working memory of a thread, kept between calls so that hot loops neither allocate nor fault pages in."""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

MAX_VIEWS = 4096
"""Shapes remembered a thread; beyond that the table starts anew."""


class _Store(threading.local):
    def __init__(self) -> None:
        self.buffers: dict[str, Array] = {}
        self.views: dict[tuple[str, tuple[int, ...], Any], Array] = {}


_store = _Store()


def scratch(key: str, shape: tuple[int, ...], dtype: Any = np.float32) -> Array:
    """This thread's array of the given key, shape and type, its contents undefined.

    Two calls with one key give overlapping memory: a kernel names each array that it needs at the same time.
    """
    found: Array | None = _store.views.get((key, shape, dtype))
    if found is not None:
        return found
    nbytes = math.prod(shape) * np.dtype(dtype).itemsize
    buffer = _store.buffers.get(key)
    if buffer is None or buffer.nbytes < nbytes:
        buffer = _store.buffers[key] = np.empty(nbytes, np.uint8)
        _store.views = {place: view for place, view in _store.views.items() if place[0] != key}
    if len(_store.views) >= MAX_VIEWS:
        _store.views.clear()
    view: Array = buffer[:nbytes].view(dtype).reshape(shape)
    _store.views[key, shape, dtype] = view
    return view


def release_scratch() -> None:
    """Frees the calling thread's working memory."""
    _store.buffers.clear()
    _store.views.clear()
