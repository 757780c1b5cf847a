"""Interrupts from the keyboard: many at any time, or one at each place where Python looks for signals."""

from __future__ import annotations

import dis
import functools
import itertools
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable
from types import CodeType, FrameType
from typing import Any

_is_armed = False
_is_running = threading.Event()


def interrupted(action: Callable[[], object], count: int, delay: float) -> None:
    """Calls `action` again and again until an interrupt ends it; `count` times. For processes of their own.

    Args:
        action: called by the main thread.
        count: of interrupts.
        delay: the longest time, in seconds, before each.
    """
    global _is_armed
    signal.signal(signal.SIGINT, _interrupt)
    sender = threading.Thread(target=_send, args=(count, delay), daemon=True)
    sender.start()
    for _ in range(count):
        try:
            _is_armed = True
            _is_running.set()
            while _is_armed:  # not any more, and no exception: it met a finalizer, where Python drops it
                action()
        except KeyboardInterrupt:
            pass
    sender.join()


def _interrupt(*_: object) -> None:
    global _is_armed
    if _is_armed:
        _is_armed = False
        raise KeyboardInterrupt


def _send(count: int, delay: float) -> None:
    for _ in range(count):
        _is_running.wait()
        _is_running.clear()
        time.sleep(random.random() * delay)
        os.kill(os.getpid(), signal.SIGINT)


_LOOKS = ("CALL", "RESUME", "JUMP_BACKWARD")
"""What the names of the instructions begin with after which the interpreter looks for signals."""


class _Interrupter:
    """A trace function that raises KeyboardInterrupt at one place, once."""

    def __init__(self, files: Collection[str], place: int) -> None:
        self._files = tuple(files)
        self._place = place
        self.passed = 0
        self._before: dict[FrameType, int] = {}
        self.where = ""

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.endswith(self._files):
            return None
        frame.f_trace_opcodes = True
        return self._in_frame

    def _in_frame(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "return":
            self._before.pop(frame, None)
        if event != "opcode":
            return self._in_frame
        before, self._before[frame] = self._before.get(frame, 0), frame.f_lasti
        if frame.f_lasti in _places(frame.f_code, before):
            self.passed += 1
            if self.passed == self._place:
                self.where = f"{frame.f_code.co_filename}:{frame.f_lineno} ({frame.f_code.co_qualname})"
                self._before.clear()
                raise KeyboardInterrupt
        return self._in_frame


@functools.cache
def _places(code: CodeType, before: int) -> range:
    """Where code may be after the instruction `before` when the signals that this looked for are handled.

    A signal is handled as part of the instruction, by what handles exceptions there. This raises one
    instruction later, so that has to be in the same `try` or `with`.
    """
    if not dis.opname[code.co_code[before]].startswith(_LOOKS):
        return range(0)
    start, stop = 0, len(code.co_code)
    for entry in dis.Bytecode(code).exception_entries:
        if entry.start <= before < entry.end:
            start, stop = max(start, entry.start), min(stop, entry.end)
        elif entry.end <= before:
            start = max(start, entry.end)
        else:
            stop = min(stop, entry.start)
    return range(start, stop)


def interrupted_everywhere(
    action: Callable[[], object],
    check: Callable[[], object],
    files: Collection[str],
    most: int | None = None,
) -> int:
    """Calls `action`, interrupted at its first place, its second, …, until it gets to its end undisturbed.

    Args:
        action: is begun anew for every place.
        check: called after each; what it raises is told with the place.
        files: how the names of the files end whose code is interrupted.
        most: places to try, the same ones each time, drawn from all; None: all of them.

    Returns:
        how many places were tried.
    """
    places: Iterable[int] = itertools.count(1)
    if most is not None:
        count = _run_until(action, files, sys.maxsize).passed
        places = sorted(random.Random(0).sample(range(1, count + 1), min(most, count)))
    tried = 0
    for place in places:
        interrupter = _run_until(action, files, place)
        if not interrupter.where:
            if most is None:
                break
            continue  # this time there were fewer
        tried += 1
        try:
            check()
        except Exception as error:
            raise AssertionError(f"after an interrupt at {interrupter.where}") from error
    return tried


def _run_until(action: Callable[[], object], files: Collection[str], place: int) -> _Interrupter:
    """Calls `action`, interrupted at its n-th place, and returns what interrupted it."""
    interrupter = _Interrupter(files, place)
    sys._getframe().f_trace_opcodes = True  # or Python 3.12 and later tell of no instructions the first time
    sys.settrace(interrupter)
    try:
        action()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(None)
    return interrupter
