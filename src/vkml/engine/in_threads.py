"""A function of many items, worked out by a few threads that live as long as that takes."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_threads(
    work: Callable[[Item], Result], items: Sequence[Item], count: int, name: str
) -> Generator[Result, None, None]:
    """`work` of each item, in their order, by `count` threads; close the iterator to stop early.

    Python's executors would do, but they take no work once the main thread has ended. The threads of a server
    outlive it, and load models.

    Raises:
        BaseException: what `work` raises for an item, when its turn comes.
    """
    if count <= 1:
        yield from map(work, items)
        return
    results: list[Future[Result]] = [Future() for _ in items]
    claims = itertools.count()
    is_stopped = threading.Event()

    def work_through() -> None:
        while (at := next(claims)) < len(items) and not is_stopped.is_set():
            try:
                results[at].set_result(work(items[at]))
            except BaseException as error:
                results[at].set_exception(error)

    threads: list[threading.Thread] = []
    try:
        for number in range(count):
            thread = threading.Thread(target=work_through, name=f"{name}_{number}")
            thread.start()
            threads.append(thread)
        for result in results:
            yield result.result()
    finally:
        is_stopped.set()
        for thread in threads:
            thread.join()
