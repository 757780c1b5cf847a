"""The worker pool: every index once, errors raised, nesting, concurrent callers, clean ends."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from tests.patience import patience
from tests.robustness.processes import run_python
from vkml.cpu.pool import WorkerPool, shared_pool


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize(("count", "grain"), [(0, 1), (1, 1), (7, 1), (100, 3), (64, 64)])
def test_every_index_is_done_once(size: int, count: int, grain: int) -> None:
    done: list[int] = []
    with WorkerPool(size) as pool:
        pool.parallel_for(count, lambda start, stop: done.extend(range(start, stop)), grain)
    assert sorted(done) == list(range(count))


def test_work_is_spread_over_threads() -> None:
    gate = threading.Barrier(2, timeout=patience(20))
    with WorkerPool(2) as pool:
        # Passes only when two threads are inside at once.
        pool.parallel_for(2, lambda start, stop: gate.wait() and None)


@pytest.mark.parametrize("size", [1, 3])
def test_an_exception_reaches_the_caller_and_the_pool_lives_on(size: int) -> None:
    def body(start: int, stop: int) -> None:
        if start == 5:
            raise ValueError("index 5")

    with WorkerPool(size) as pool:
        for _ in range(3):
            with pytest.raises(ValueError, match="index 5"):
                pool.parallel_for(10, body)
        done: list[int] = []
        pool.parallel_for(4, lambda start, stop: done.append(start))
        assert sorted(done) == [0, 1, 2, 3]


def test_a_nested_loop_runs_inline() -> None:
    threads: list[set[int]] = []
    with WorkerPool(3) as pool:

        def outer(start: int, stop: int) -> None:
            seen: set[int] = set()
            pool.parallel_for(8, lambda a, b: seen.add(threading.get_ident()))
            threads.append(seen)

        pool.parallel_for(6, outer)
    assert len(threads) == 6
    assert all(len(seen) == 1 for seen in threads)


def test_several_threads_may_use_one_pool() -> None:
    results: list[int] = []
    with WorkerPool(3) as pool:

        def caller(base: int) -> None:
            for _ in range(50):
                total: list[int] = []
                pool.parallel_for(9, lambda start, stop, total=total: total.append(base + start))
                results.append(sum(total) - 9 * base)

        callers = [threading.Thread(target=caller, args=(100 * i,)) for i in range(4)]
        for thread in callers:
            thread.start()
        for thread in callers:
            thread.join(patience(30))
    assert results == [36] * 200


def test_a_closed_pool_still_does_the_work() -> None:
    pool = WorkerPool(4)
    pool.close()
    done: list[int] = []
    pool.parallel_for(5, lambda start, stop: done.append(start))
    assert done == [0, 1, 2, 3, 4]


def test_the_shared_pool_is_one_per_size() -> None:
    assert shared_pool(2) is shared_pool(2)
    assert shared_pool(2) is not shared_pool(3)


def test_a_process_with_busy_pools_ends_cleanly() -> None:
    program = (
        "from vkml.cpu.pool import WorkerPool, shared_pool\n"
        "shared_pool(3).parallel_for(6, lambda a, b: None)\n"
        "pool = WorkerPool(3)\n"
        "pool.parallel_for(6, lambda a, b: None)\n"
        "print('done')\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=patience(60)
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "done\n", "")


@pytest.mark.parametrize("allowed", [0, 1])
def test_threads_that_cannot_start(monkeypatch: pytest.MonkeyPatch, allowed: int) -> None:
    """A system's limit of threads makes work slower, not fail; the pool closes as ever."""
    start = threading.Thread.start
    left = [allowed]

    def limited(thread: threading.Thread) -> None:
        if thread.name.startswith("vkml-cpu"):
            if not left[0]:
                raise RuntimeError("can't start new thread")
            left[0] -= 1
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    done: list[int] = []

    def body(first: int, last: int) -> None:
        assert last - first <= 2
        done.extend(range(first, last))

    with WorkerPool(3) as pool:
        for _ in range(2):
            pool.parallel_for(8, body, 2)
        assert pool.invite(lambda worker: None) is bool(allowed)
        assert not allowed or left == [0]
        left[0] = 2
        assert pool.invite(lambda worker: None)
    assert sorted(done) == sorted([*range(8)] * 2)


INTERRUPTED = """
    import faulthandler, threading
    from tests.patience import patience
    from tests.robustness.interrupts import interrupted_everywhere
    from vkml.cpu.pool import WorkerPool

    def start():
        pool.parallel_for(8, lambda start, stop: None)

    def check():
        global pool
        inside = threading.Barrier(4)
        # Ends only when four are inside at once.
        pool.parallel_for(4, lambda start, stop: inside.wait(patience(60)))
        numbers = []

        def note(worker):
            numbers.append(worker)
            inside.wait(patience(60))

        for _ in range(3):
            pool.invite(note)
        inside.wait(patience(60))
        assert sorted(numbers) == [1, 2, 3], numbers
        pool.close()
        pool = WorkerPool(4)

    faulthandler.dump_traceback_later(patience(200), exit=True)
    pool = WorkerPool(4)
    assert interrupted_everywhere(start, check, ["vkml/cpu/pool.py"]) > 20
    print("done")
"""


def test_interrupts_while_threads_start() -> None:
    """Each thread is there afterwards, and has a number of its own: they stand for memory."""
    done = run_python(INTERRUPTED)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stdout + done.stderr


def test_a_thread_outlives_what_it_is_given() -> None:
    together = threading.Barrier(2, timeout=patience(60))

    def fail(worker: int) -> None:
        raise ValueError("not to be raised")

    with WorkerPool(2) as pool:
        assert pool.invite(fail)
        assert pool.invite(lambda worker: together.wait() and None)
        together.wait()
