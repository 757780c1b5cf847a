"""Calling a driver's functions without the interpreter."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from tests.patience import patience
from vkml.cpu.functions import ffi
from vkml.cpu.native.calls import BLOCK_WORDS, ROW_WORDS, Calls, calls

SUBMIT, ASK, RUN, CALL_ALL, CALL_LOCKED, RUN_BY_EVENT, ASK_EVENT = range(7)
WAITING, SET = 4, 3


@pytest.fixture
def made() -> Calls:
    found = calls()
    if found is None:
        pytest.skip("no machine code on this processor, or VKML_NATIVE=0")
    return found


def address(each: Any) -> int:
    return int(ffi.cast("uintptr_t", each))


class Driver:
    """Functions as a driver's, and the block of words that names them."""

    def __init__(
        self, answers: list[int], awaited: int, times: int, result: int = 0, submitted: int = 0
    ) -> None:
        self.events: list[str] = []
        self.lock = ffi.new("uint64_t *")
        self.out = ffi.new("uint64_t *")

        @ffi.callback("int(uintptr_t, uintptr_t, uint64_t *)")  # type: ignore[untyped-decorator]
        def ask(device: int, semaphore: int, out: Any) -> int:
            assert (device, semaphore) == (11, 22)
            self.events.append("ask")
            out[0] = answers[min(self.events.count("ask"), len(answers)) - 1]
            return result

        @ffi.callback("int(uintptr_t, uint32_t, uintptr_t, uintptr_t)")  # type: ignore[untyped-decorator]
        def submit(queue: int, count: int, info: int, fence: int) -> int:
            assert (queue, count, info, fence) == (33, 1, 44, 0)
            self.events.append(f"submit, locked {self.lock[0]}")
            return submitted

        self.kept = ask, submit
        self.block = ffi.new("uint64_t[]", BLOCK_WORDS)
        self.block[0:6] = [address(ask), 11, 22, address(self.out), awaited, times]
        self.block[7:11] = [address(submit), 33, 44, address(self.lock)]

    @property
    def address(self) -> int:
        return address(self.block)


class EventDriver:
    """Functions of a driver that knows events: it answers one status after the other, the last for ever."""

    def __init__(self, statuses: list[int], times: int, submitted: int = 0) -> None:
        self.events: list[str] = []
        self.lock = ffi.new("uint64_t *")

        @ffi.callback("int(uintptr_t, uintptr_t)")  # type: ignore[untyped-decorator]
        def reset(device: int, event: int) -> int:
            assert (device, event) == (11, 22)
            self.events.append("reset")
            return 0

        @ffi.callback("int(uintptr_t, uintptr_t)")  # type: ignore[untyped-decorator]
        def status(device: int, event: int) -> int:
            assert (device, event) == (11, 22)
            self.events.append("ask")
            return statuses[min(self.events.count("ask"), len(statuses)) - 1]

        @ffi.callback("int(uintptr_t, uint32_t, uintptr_t, uintptr_t)")  # type: ignore[untyped-decorator]
        def submit(queue: int, count: int, info: int, fence: int) -> int:
            assert (queue, count, info, fence) == (33, 1, 44, 0)
            self.events.append(f"submit, locked {self.lock[0]}")
            return submitted

        self.kept = reset, status, submit
        self.block = ffi.new("uint64_t[]", BLOCK_WORDS)
        self.block[0:6] = [address(reset), 11, 22, address(status), WAITING, times]
        self.block[7:11] = [address(submit), 33, 44, address(self.lock)]

    @property
    def address(self) -> int:
        return address(self.block)


def test_an_event_is_reset_before_what_sets_it_is_submitted(made: Calls) -> None:
    driver = EventDriver([WAITING, WAITING, SET], times=100)
    made[RUN_BY_EVENT](driver.address)
    assert driver.events == ["reset", "submit, locked 1", "ask", "ask", "ask"]
    assert (driver.block[6], driver.block[11], driver.lock[0]) == (SET, 0, 0)


def test_it_asks_for_an_event_no_more_often_than_it_may(made: Calls) -> None:
    driver = EventDriver([WAITING], times=4)
    made[ASK_EVENT](driver.address)
    assert (driver.block[6], driver.events) == (WAITING, ["ask"] * 4)


def test_a_lost_device_ends_asking_for_an_event(made: Calls) -> None:
    driver = EventDriver([WAITING, -4], times=100)
    made[ASK_EVENT](driver.address)
    assert (driver.block[6], driver.events) == (2**32 - 4, ["ask"] * 2)


def test_no_event_is_asked_for_that_nothing_sets(made: Calls) -> None:
    driver = EventDriver([WAITING], times=100, submitted=-4)
    driver.block[6] = SET  # as a run before has left it
    made[RUN_BY_EVENT](driver.address)
    assert driver.events == ["reset", "submit, locked 1"]
    assert (driver.block[6], driver.block[11], driver.lock[0]) == (WAITING, 2**32 - 4, 0)


def test_it_asks_until_the_value_is_reached(made: Calls) -> None:
    driver = Driver([1, 2, 5, 7], awaited=5, times=100)
    made[ASK](driver.address)
    assert (driver.out[0], driver.block[6], driver.events) == (5, 0, ["ask"] * 3)


def test_a_higher_value_will_do(made: Calls) -> None:
    driver = Driver([9], awaited=5, times=100)
    made[ASK](driver.address)
    assert driver.events == ["ask"]


def test_it_asks_no_more_often_than_it_may(made: Calls) -> None:
    driver = Driver([1], awaited=2, times=4)
    made[ASK](driver.address)
    assert (driver.out[0], driver.events) == (1, ["ask"] * 4)


def test_it_stops_at_a_failure(made: Calls) -> None:
    driver = Driver([1], awaited=2, times=4, result=-4)
    made[ASK](driver.address)
    assert (driver.block[6], driver.events) == (2**32 - 4, ["ask"])


def test_it_submits_under_the_lock_and_asks(made: Calls) -> None:
    driver = Driver([0, 1], awaited=1, times=9)
    made[RUN](driver.address)
    assert driver.events == ["submit, locked 1", "ask", "ask"]
    assert (driver.lock[0], driver.block[6], driver.block[11]) == (0, 0, 0)
    made[SUBMIT](driver.address)
    assert driver.events[3:] == ["submit, locked 1"]
    assert driver.lock[0] == 0


def test_what_was_not_submitted_is_not_asked_for(made: Calls) -> None:
    driver = Driver([1], awaited=1, times=9, submitted=-1)
    made[RUN](driver.address)
    assert driver.events == ["submit, locked 1"]
    assert (driver.lock[0], driver.block[11]) == (0, 2**32 - 1)


def test_a_lock_is_waited_for(made: Calls) -> None:
    driver = Driver([1], awaited=1, times=9)
    driver.lock[0] = 1
    thread = threading.Thread(target=made[RUN], args=(driver.address,))
    thread.start()
    thread.join(timeout=0.1)
    assert thread.is_alive() and not driver.events
    driver.lock[0] = 0
    thread.join(timeout=patience(60))
    assert driver.events == ["submit, locked 1", "ask"]
    assert driver.lock[0] == 0


def test_many_threads_submit_one_at_a_time(made: Calls) -> None:
    """A plain sum, read and written in two steps, under the lock: none is lost."""
    total = np.zeros(2, np.int64)

    @ffi.callback("int(uintptr_t, uint32_t, uintptr_t, uintptr_t)")  # type: ignore[untyped-decorator]
    def submit(queue: int, count: int, info: int, fence: int) -> int:
        before = total[0]
        total[1] += 1
        total[0] = before + 1
        return 0

    lock = ffi.new("uint64_t *")
    threads = []
    for _ in range(4):
        driver = Driver([1], awaited=1, times=1)
        driver.block[7], driver.block[10] = address(submit), address(lock)

        def act(driver: Driver = driver) -> None:
            for _ in range(500):
                made[SUBMIT](driver.address)

        threads.append(threading.Thread(target=act))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert total.tolist() == [2000, 2000]
    assert lock[0] == 0


def test_a_table_of_calls(made: Calls) -> None:
    seen: list[tuple[int, ...]] = []

    @ffi.callback("void(uintptr_t, uint32_t, uint32_t, uint64_t, uintptr_t, uint32_t)")  # type: ignore[untyped-decorator]
    def called(*arguments: int) -> None:
        seen.append(arguments)

    rows = np.zeros((3, ROW_WORDS), np.uint64)
    rows[:, 0] = address(called)
    rows[:, 1:7] = np.arange(18).reshape(3, 6)
    rows[1, 4] = 2**63 + 5
    for count in (0, 3):
        made[CALL_ALL](address(ffi.new("uint64_t[2]", [rows.ctypes.data, count])))
        assert seen == [tuple(int(word) for word in row[1:7]) for row in rows[:count]]


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_call_under_several_locks(made: Calls, count: int) -> None:
    locks = [ffi.new("uint64_t *") for _ in range(count)]
    seen: list[tuple[int, list[int]]] = []

    @ffi.callback("int(uintptr_t)")  # type: ignore[untyped-decorator]
    def called(argument: int) -> int:
        seen.append((argument, [lock[0] for lock in locks]))
        return -3

    block = ffi.new("uint64_t[]", [address(called), 7, 0, count, *map(address, locks)])
    made[CALL_LOCKED](address(block))
    assert seen == [(7, [1] * count)]
    assert [lock[0] for lock in locks] == [0] * count
    assert block[2] == 2**32 - 3
