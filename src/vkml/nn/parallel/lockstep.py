"""Functions that meet on their way: each runs to where it needs something of all the others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from vkml.tensors import autocast, backward
from vkml.tensors.capture import captures
from vkml.tracing.value import mode

R = TypeVar("R")


class _Stopped(BaseException):
    """Another function has failed, and nobody waits for this one any more."""


class _Current(threading.local):
    meeting: Meeting | None = None
    number: int = 0


_current = _Current()


class Meeting:
    """Where functions, each in a thread, hand each other values; one of them runs at a time, in their order.

    So what they record has the same order each time.

    Args:
        count: how many there are.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._turn = 0
        self._changed = threading.Condition()
        self._brought: list[list[Any]] = [[] for _ in range(count)]
        """By each of them, each time."""
        self._failed: BaseException | None = None
        self._has_ended = [False] * count

    def exchange(self, number: int, value: Any) -> list[Any]:
        """Hands over a value, and returns those of all, in their order, once all have come.

        Raises:
            RuntimeError: another function has ended instead.
        """
        at = len(self._brought[number])
        self._brought[number].append(value)
        self._pass_on(number)
        self._wait(number)
        if any(len(brought) <= at for brought in self._brought):
            raise RuntimeError("replicas of a module differ in how many synchronised layers they run")
        return [brought[at] for brought in self._brought]

    def begin(self, number: int) -> None:
        """Waits for the first turn."""
        self._wait(number)

    def end(self, number: int, failed: BaseException | None) -> None:
        """Leaves."""
        self._has_ended[number] = True
        if failed is not None and self._failed is None:
            self._failed = failed
        self._pass_on(number)

    def _pass_on(self, number: int) -> None:
        with self._changed:
            for step in range(1, self._count + 1):
                following = (number + step) % self._count
                if not self._has_ended[following]:
                    self._turn = following
                    break
            self._changed.notify_all()

    def _wait(self, number: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._turn == number or self._failed is not None)
        if self._failed is not None:
            raise _Stopped


def exchanged(value: Any) -> list[Any]:
    """What each replica brings to this place, in the order of devices; alone outside `together`."""
    meeting = _current.meeting
    return [value] if meeting is None else meeting.exchange(_current.number, value)


def own_number() -> int:
    """Which of the replicas this is."""
    return _current.number


def together(functions: Sequence[Callable[[], R]]) -> list[R]:
    """Runs functions that meet in `exchanged`, each in a thread with what this one has switched on.

    Returns:
        What they return.
    """
    meeting = Meeting(len(functions))
    results: list[Any] = [None] * len(functions)
    failures: list[BaseException] = []
    modes = dict(mode.__dict__)
    narrow, latest = autocast._state.types, captures.latest
    later: list[Any] = []

    def run(number: int) -> None:
        mode.__dict__.update(modes)
        autocast._state.types, captures.latest = narrow, latest
        _current.meeting, _current.number = meeting, number
        failed: BaseException | None = None
        try:
            meeting.begin(number)
            results[number] = functions[number]()
        except _Stopped:
            pass
        except BaseException as error:
            failed = error
            failures.append(error)
        finally:
            later.extend(backward._later.roots)
            meeting.end(number, failed)

    threads = [
        threading.Thread(target=run, args=(number,), name="vkml-replica") for number in range(len(functions))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    backward._later.roots += later  # what a thread computes with whatever comes next there
    return results
