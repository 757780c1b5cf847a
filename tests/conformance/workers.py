"""Processes that judge cases; one that crashes or hangs costs its case and is replaced."""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait

from tests.conformance.verdict import Verdict

SECONDS = 300.0
"""Time for a case; drivers take a minute to compile some kernels on a busy machine."""
Judge = Callable[[str], Verdict]


class _Worker:
    """A process and the case that it judges.

    It is forked, for what the suite's import has made is costly; this process must have opened no device.
    """

    def __init__(self, start: Callable[[], Judge], seconds: float) -> None:
        context = multiprocessing.get_context("fork")
        self.connection, theirs = context.Pipe()
        self._seconds = seconds
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (it lives as long as the process)
        self.process = context.Process(
            target=_serve, args=(theirs, self.connection, start, self._errors.fileno()), daemon=True
        )
        self.process.start()
        theirs.close()
        self.name = ""
        self._deadline = 0.0

    def give(self, name: str) -> None:
        """Begins a case."""
        self.name, self._deadline = name, time.monotonic() + self._seconds
        with contextlib.suppress(BrokenPipeError):  # it is gone, which `verdict` says
            self.connection.send(name)

    def verdict(self) -> Verdict | None:
        """What became of the case; None as long as that is open."""
        with contextlib.suppress(EOFError, ConnectionResetError):
            if self.connection.poll():
                found = self.connection.recv()
                assert isinstance(found, Verdict) and found.name == self.name
                return found
            if time.monotonic() < self._deadline:
                return None
            self.process.kill()
            self.process.join()
            return Verdict(self.name, f"hang: no verdict within {self._seconds:.0f} s")
        self.process.join()
        status = self.process.exitcode or 0
        how = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        return Verdict(self.name, f"crash: {how} {self._last_words()}".strip())

    def close(self) -> None:
        """Ends the process."""
        self.connection.close()
        if self.process.is_alive():
            self.process.join(10)
            self.process.kill()
        self.process.join()
        self._errors.close()

    def _last_words(self) -> str:
        """Where faulthandler says that the process was, or what it wrote last."""
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors.read().decode(errors="replace").splitlines()]
        places = [line for line in lines if line.startswith("File ")][:3]
        return " < ".join(line.split("/vkml/")[-1] for line in places) or " ".join(lines[-1:])


def _serve(connection: Connection, parents: Connection, start: Callable[[], Judge], errors: int) -> None:
    parents.close()  # so that the parent's end is the end of the connection
    os.dup2(errors, 1)
    os.dup2(errors, 2)
    faulthandler.enable(file=sys.__stderr__ or errors)
    logging.getLogger("vkml").setLevel(logging.CRITICAL)
    judge = start()
    with contextlib.suppress(EOFError):
        while True:
            connection.send(judge(connection.recv()))


def run(
    names: Sequence[str], start: Callable[[], Judge], jobs: int, seconds: float = SECONDS
) -> Iterator[Verdict]:
    """Judges cases in processes, several at a time; verdicts come in the order in which they are made.

    Args:
        names: of the cases.
        start: called in each process; returns what judges a case by its name.
        jobs: processes at a time.
        seconds: that a case may take.
    """
    waiting = deque(names)
    workers: list[_Worker] = []
    try:
        while waiting or workers:
            while waiting and len(workers) < jobs:
                workers.append(_Worker(start, seconds))
                workers[-1].give(waiting.popleft())
            wait([worker.connection for worker in workers], timeout=1.0)
            for worker in list(workers):
                verdict = worker.verdict()
                if verdict is None:
                    continue
                yield verdict
                if worker.process.is_alive() and waiting and not verdict.failure.startswith("crash:"):
                    worker.give(waiting.popleft())
                else:
                    workers.remove(worker)
                    worker.close()
    finally:
        for worker in workers:
            worker.process.kill()
            worker.close()
