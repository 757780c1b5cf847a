"""Loaders whose items fail, hang, or are abandoned."""

from __future__ import annotations

import gc
import threading
import time
import traceback
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.patience import patience
from tests.robustness.processes import output_of
from vkml.cpu.pool import available_processors
from vkml.data import DataLoader, Dataset, IterableDataset
from vkml.errors import InvalidData

WORKERS = [0, 1, 3]


class Damaged(Dataset[int]):
    """Of which some items cannot be loaded."""

    def __init__(self, size: int, wrong: set[int]) -> None:
        self.size, self.wrong = size, wrong

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        return self.load(index)

    def load(self, index: int) -> int:
        if index in self.wrong:
            raise OSError(f"no item {index}")
        return index

    def item_name(self, index: int) -> str:
        return f"folder/{index}.png"


def numbers(batches: Any) -> list[list[int]]:
    return [batch.tolist() for batch in batches]


@pytest.mark.parametrize("workers", WORKERS)
def test_an_error_is_raised_where_the_batch_is_asked_for(workers: int) -> None:
    batches = iter(DataLoader(Damaged(8, {3, 2, 7}), 2, num_workers=workers))
    assert next(batches).tolist() == [0, 1]
    with pytest.raises(OSError, match="no item 2") as caught:  # not that of 3, whichever came first
        next(batches)
    assert caught.value.__notes__ == ["while item 2 (folder/2.png) of Damaged was loaded"]
    text = "".join(traceback.format_exception(caught.value))
    assert "in load" in text and "folder/2.png" in text  # the worker's traceback
    # The batches behind it come, as PyTorch's do.
    assert next(batches).tolist() == [4, 5]
    with pytest.raises(OSError, match="no item 7"):
        next(batches)
    with pytest.raises(StopIteration):
        next(batches)


@pytest.mark.parametrize("workers", WORKERS)
def test_items_that_cannot_be_loaded_are_left_out_when_asked(workers: int) -> None:
    loader = DataLoader(Damaged(10, {1, 4, 5, 8}), 2, num_workers=workers, errors="skip")
    assert numbers(loader) == [[0], [2, 3], [6, 7], [9]]
    assert [(one.epoch, one.index, one.name) for one in loader.skipped] == [
        (0, at, f"folder/{at}.png") for at in (1, 4, 5, 8)
    ]
    assert loader.skipped[0].error == "OSError: no item 1"
    assert numbers(loader) == [[0], [2, 3], [6, 7], [9]]
    assert [(one.epoch, one.index) for one in loader.skipped[4:]] == [(1, at) for at in (1, 4, 5, 8)]


@pytest.mark.parametrize("workers", WORKERS)
def test_an_epoch_of_which_nothing_is_left_is_an_error(workers: int) -> None:
    loader = DataLoader(Damaged(3, {0, 1, 2}), 2, num_workers=workers, errors="skip")
    with pytest.raises(InvalidData, match=r"none of 3 items .* folder/0.png: OSError: no item 0"):
        list(loader)


@pytest.mark.parametrize("workers", WORKERS)
def test_what_ends_programs_is_not_left_out(workers: int) -> None:
    class Ending(Dataset[int]):
        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> int:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(DataLoader(Ending(), 2, num_workers=workers, errors="skip"))


@pytest.mark.parametrize("workers", WORKERS)
def test_items_that_do_not_fit_together(workers: int) -> None:
    class Growing(Dataset[Any]):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> Any:
            return np.zeros(index)

    with pytest.raises(RuntimeError, match="equal size") as caught:
        list(DataLoader(Growing(), 2, num_workers=workers, errors="skip"))
    assert caught.value.__notes__ == ["while items 0, 1 of Growing were joined"]


@pytest.mark.parametrize("workers", WORKERS)
def test_iterables_that_fail(workers: int) -> None:
    class Failing:
        def __init__(self) -> None:
            self.at = -1

        def __next__(self) -> int:
            self.at += 1
            if self.at == 5:
                raise StopIteration
            if self.at in (1, 2):
                raise OSError("torn")
            return self.at

        def __iter__(self) -> Failing:
            return self

    class Stream(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return Failing()

    batches = iter(DataLoader(Stream(), 2, num_workers=workers))
    with pytest.raises(OSError, match="torn") as caught:
        next(batches)
    assert caught.value.__notes__ == ["while item 1 of Stream was loaded"]
    loader = DataLoader(Stream(), 2, num_workers=workers, errors="skip")
    assert numbers(loader) == [[0, 3], [4]]
    assert [one.index for one in loader.skipped] == [1, 2]

    class Endless(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return self

        def __next__(self) -> int:
            raise OSError("torn for ever")

    with pytest.raises(OSError, match="torn for ever"):
        list(DataLoader(Endless(), 2, num_workers=workers, errors="skip"))


@pytest.mark.parametrize("errors", ["raise", "skip"])
def test_a_worker_that_cannot_begin(errors: str) -> None:
    def begin(worker: int) -> None:
        raise RuntimeError("no such disk")

    with pytest.raises(RuntimeError, match="no such disk"):
        list(DataLoader(Damaged(4, set()), 2, num_workers=2, worker_init_fn=begin, errors=errors))


def test_time_runs_out() -> None:
    gate = threading.Event()

    class Waiting(Dataset[int]):
        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> int:
            gate.wait(60)
            return index

    batches = iter(DataLoader(Waiting(), 1, num_workers=1, timeout=0.05))
    with pytest.raises(RuntimeError, match=r"timed out after 0\.05 seconds"):
        next(batches)
    gate.set()
    deadline = time.monotonic() + patience(30)
    while True:  # the batch is not lost
        try:
            assert next(batches).tolist() == [0]
            break
        except RuntimeError:
            assert time.monotonic() < deadline


@pytest.mark.parametrize("way", ["left", "closed", "raised"])
def test_what_is_abandoned_ends(way: str) -> None:
    class Slow(Damaged):
        def __getitem__(self, index: int) -> int:
            time.sleep(0.001)
            return index

    data = Slow(100_000, set())
    gone = weakref.ref(data)

    def begin(data: Slow) -> None:
        loader = DataLoader(data, 4, num_workers=3)
        batches = iter(loader)
        next(batches)
        if way == "closed":
            batches.close()  # type: ignore[attr-defined]
            with pytest.raises(StopIteration):
                next(batches)
        elif way == "raised":
            with pytest.raises(ZeroDivisionError):
                for _ in batches:
                    1 / 0  # noqa: B018

    begin(data)
    del data
    deadline = time.monotonic() + patience(30)
    while gone() is not None:  # threads drop what they have in work when it is done
        assert time.monotonic() < deadline
        gc.collect()
        time.sleep(0.01)


def test_threads_are_those_of_all_loaders() -> None:
    def loading() -> int:
        return sum(thread.name.startswith("vkml-data") for thread in threading.enumerate())

    for _ in range(3):
        list(DataLoader(Damaged(8, set()), 2, num_workers=2))
    before = loading()
    loaders = [iter(DataLoader(Damaged(50, set()), 2, num_workers=2)) for _ in range(20)]
    for batches in loaders:
        next(batches)
    assert loading() <= max(before, available_processors())


def test_processes_end_in_the_midst_of_loading() -> None:
    """At the end of the program, with batches under way and one item that takes for ever."""
    found = output_of("""
        import time
        from vkml.data import DataLoader

        class Slow:
            def __len__(self):
                return 1000

            def __getitem__(self, index):
                time.sleep(1000 if index == 3 else 0.001)
                return index

        batches = iter(DataLoader(Slow(), 2, num_workers=2))
        print(next(batches).tolist())
    """)
    assert found == "[0, 1]\n"


def test_interrupts_reach_who_waits() -> None:
    found = output_of("""
        import os, signal, threading, time
        from vkml.data import DataLoader

        class Slow:
            def __len__(self):
                return 10

            def __getitem__(self, index):
                if index == 2:
                    shown.wait()
                    os.kill(os.getpid(), signal.SIGINT)
                    while not stopped.is_set():
                        time.sleep(0.01)
                return index

        stopped, shown = threading.Event(), threading.Event()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        batches = iter(DataLoader(Slow(), 2, num_workers=2, prefetch_factor=1))
        try:
            while True:
                print(next(batches).tolist())
                shown.set()
        except KeyboardInterrupt:
            stopped.set()
        print(next(batches).tolist())
    """)
    assert found.startswith("[0, 1]\n") and found.splitlines()[1] in ("[2, 3]", "[4, 5]")


def test_forked_children_load_on_their_own() -> None:
    found = output_of("""
        import os
        from tests.robustness.forks import in_children
        from vkml.data import DataLoader

        loader = DataLoader(range(40), 2, num_workers=2)
        batches = iter(loader)
        next(batches)

        def child(number):
            try:
                next(batches)
            except RuntimeError as error:
                assert "forked" in str(error)
            else:
                raise AssertionError
            assert sum(len(batch) for batch in DataLoader(range(9), 2, num_workers=2)) == 9
            assert sum(len(batch) for batch in loader) == 40

        in_children(3, child)
        print(sum(len(batch) for batch in batches))
    """)
    assert found == "38\n"
