"""One checkout of vkml in a process of its own that runs a model when told to, over its standard streams.

It uses nothing of vkml but its public names, so that it drives older and newer checkouts alike.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

Array = np.ndarray[Any, Any]
WARM_UP_SECONDS = 0.2


class Checkout:
    """A process that imports vkml from one folder.

    Args:
        root: of the checkout.
        device: where its sessions run.
        precision: of its sessions.
    """

    def __init__(self, root: Path, device: str, precision: str) -> None:
        here = Path(__file__).parents[1]
        self._root = root
        paths = [str(root / "src"), str(here), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}
        command = [sys.executable, "-P", "-m", "benchmarks.checkout", device, precision]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        )
        self.source = Path(self._ask(("source",)))

    def load(self, path: str, feed: dict[str, Array]) -> tuple[float, list[Array]]:
        """Loads a model and runs it once: the seconds that took, and the outputs."""
        seconds, outputs = self._ask(("load", path, feed))
        return seconds, outputs

    def burst(self, seconds: float) -> list[float]:
        """Seconds of each run in a turn of that length."""
        times: list[float] = self._ask(("burst", seconds))
        return times

    def close(self) -> None:
        """Ends the process."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def _ask(self, request: tuple[Any, ...]) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        pickle.dump(request, self._process.stdin)
        self._process.stdin.flush()
        try:
            problem, answer = pickle.load(self._process.stdout)
        except EOFError:
            raise SystemExit(f"the process of {self._root} ended; see its messages above") from None
        if problem:
            raise SystemExit(problem)
        return answer


def _serve(device: str, precision: str, requests: BinaryIO, answers: BinaryIO) -> None:
    import vkml

    session: vkml.InferenceSession | None = None
    feed: dict[str, Array] = {}
    while True:
        try:
            kind, *arguments = pickle.load(requests)
        except EOFError:
            return
        problem = ""
        answer: Any = None
        try:
            if kind == "source":
                answer = str(Path(vkml.__file__).parent)
            elif kind == "load":
                if session is not None:
                    session.close()
                path, feed = arguments
                started = time.perf_counter()
                session = vkml.InferenceSession(path, devices=device, precision=precision)
                outputs = session.run(None, feed)
                answer = time.perf_counter() - started, outputs
                _times(session, feed, WARM_UP_SECONDS)
            elif session is not None:
                session.run(None, feed)
                answer = _times(session, feed, *arguments)
        except vkml.Error as error:
            problem = f"{vkml.__file__}: {error}"
        pickle.dump((problem, answer), answers)
        answers.flush()


def _times(session: Any, feed: dict[str, Array], seconds: float) -> list[float]:
    times: list[float] = []
    until = time.perf_counter() + seconds
    while True:
        started = time.perf_counter()
        session.run(None, feed)
        ended = time.perf_counter()
        times.append(ended - started)
        if ended >= until:
            return times


if __name__ == "__main__":
    # What a library prints must not fall among the answers.
    stream = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    _serve(sys.argv[1], sys.argv[2], sys.stdin.buffer, stream)
