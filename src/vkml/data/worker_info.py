"""Which of a loader's workers a thread is."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from vkml.dataclasses import dataclass


@dataclass(frozen=True)
class WorkerInfo:
    """A worker of a loader.

    Attributes:
        id: its number, from 0.
        num_workers: how many there are. An iterable dataset, which is gone through once for all, sees one.
        seed: 63 bits of the epoch, plus the number.
        dataset: what is loaded.
    """

    id: int
    num_workers: int
    seed: int
    dataset: Any


class _Current(threading.local):
    info: WorkerInfo | None = None


_current = _Current()


def get_worker_info() -> WorkerInfo | None:
    """The worker that this thread is; None where it loads nothing for a `DataLoader` with workers."""
    return _current.info


@contextlib.contextmanager
def working_as(info: WorkerInfo | None) -> Iterator[None]:
    """Has this thread be a worker."""
    before = _current.info
    _current.info = info
    try:
        yield
    finally:
        _current.info = before
