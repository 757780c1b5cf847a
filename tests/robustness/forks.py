"""Forked children that work side by side, for the processes that `processes.run_python` starts."""

from __future__ import annotations

import faulthandler
import os
import signal
import traceback
from collections.abc import Callable

from tests.patience import patience

PATIENCE = 100
"""Seconds after which a child counts as hanging: it then shows where, and ends. One that compiles takes
twenty beside busy processes."""


def in_children(count: int, body: Callable[[int], None]) -> None:
    """Forks `count` children that call `body(0)` … `body(count - 1)` at once; each has to end well."""
    gate, opener = os.pipe()
    children = [_fork(gate, opener, number, body) for number in range(count)]
    os.close(opener)  # all of them read the end of the pipe now
    os.close(gate)
    endings = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert endings == [0] * count, endings


def _fork(gate: int, opener: int, number: int, body: Callable[[int], None]) -> int:
    child = os.fork()
    if child:
        return child
    ending = 1
    try:
        # Not dump_traceback_later: its thread would be missing in a grandchild, which hangs.
        faulthandler.register(signal.SIGALRM, chain=True)
        signal.alarm(int(patience(PATIENCE)))
        os.close(opener)
        os.read(gate, 1)
        body(number)
        ending = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(ending)
