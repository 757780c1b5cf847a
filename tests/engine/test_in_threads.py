"""Work that several threads share."""

from __future__ import annotations

import threading

import pytest

from tests.patience import patience
from vkml.engine.in_threads import in_threads


@pytest.mark.parametrize("count", [1, 3, 20])
def test_results_come_in_order(count: int) -> None:
    assert list(in_threads(lambda item: item * item, range(50), count, "test")) == [i * i for i in range(50)]
    assert list(in_threads(str, [], count, "test")) == []


def test_several_threads_work_at_once() -> None:
    meeting = threading.Barrier(3)
    assert sorted(in_threads(lambda _: meeting.wait(patience(60)), range(3), 3, "test")) == [0, 1, 2]


@pytest.mark.parametrize("count", [1, 3])
def test_an_error_comes_in_its_turn_and_ends_the_work(count: int) -> None:
    def work(item: int) -> int:
        return 6 // item

    results = in_threads(work, [3, 2, 0, 1], count, "ends")
    assert [next(results), next(results)] == [2, 3]
    with pytest.raises(ZeroDivisionError):
        next(results)
    assert not any(thread.name.startswith("ends") for thread in threading.enumerate())


def test_closing_stops_early() -> None:
    begun: list[int] = []
    is_read = threading.Event()

    def work(item: int) -> int:
        begun.append(item)
        if item:
            is_read.wait(patience(60))
        return item

    results = in_threads(work, range(1000), 2, "stops")
    assert next(results) == 0
    threading.Timer(0.1, is_read.set).start()  # the thread that waits must not take 998 more
    results.close()
    assert is_read.is_set() and len(begun) <= 3
    assert not any(thread.name.startswith("stops") for thread in threading.enumerate())
