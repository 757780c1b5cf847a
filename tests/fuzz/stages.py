"""Who is running: told to the parent process, so that a crash or a hang is laid at the right door."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

report: list[Callable[[str], None]] = []
"""Called with the stage that begins; what the worker puts here."""
skipped: set[str] = set()
"""Stages that raise at once: of runtimes that crashed on this case before."""
_current = ["generation"]


@contextlib.contextmanager
def stage(name: str) -> Iterator[None]:
    """Inside, `name` is running."""
    before = _current[0]
    _enter(name)
    try:
        yield
    finally:
        _enter(before)


def _enter(name: str) -> None:
    _current[0] = name
    for listener in report:
        listener(name)
