"""What `RunOptions` say to the run of this thread: that it is to end, and what it may log."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from vkml.errors import Fail


class _OfThread(threading.local):
    options: Any = None


_of_thread = _OfThread()


@contextmanager
def with_options(options: Any) -> Iterator[None]:
    """Has `require_going` and `shows_warnings` look at these options while this thread is in the block."""
    before = _of_thread.options
    _of_thread.options = options
    try:
        require_going()
        yield
    finally:
        _of_thread.options = before


def require_going() -> None:
    """To be called between the pieces of a run.

    Raises:
        Fail: this thread's run is to end.
    """
    options = _of_thread.options
    if options is not None and options.terminate:
        raise Fail("the run was ended by RunOptions.terminate")


def shows_warnings(otherwise: bool) -> bool:
    """Whether this thread's run logs warnings; `otherwise` where its options leave that to the session."""
    level = getattr(_of_thread.options, "log_severity_level", -1)
    return otherwise if level < 0 else bool(level <= 2)
