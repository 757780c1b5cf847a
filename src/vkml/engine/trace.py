"""The trace of a session's runs, in the format of Chrome's trace viewer."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import threading
import time
from collections.abc import Sequence
from typing import Any

from vkml.engine.flight import Timing


class Trace:
    """Runs and their steps, as they ended."""

    def __init__(self) -> None:
        self._events: list[dict[str, Any]] = []
        self.began_ns = time.monotonic_ns()
        """When it began."""

    def add(self, name: str, start: float, steps: Sequence[Timing]) -> None:
        """Notes a run that began at `start` (of `time.perf_counter`) and ends now, and its steps."""
        self._add(name, "Session", start, time.perf_counter() - start)
        for step in steps:
            self._add(step.nodes, "Node", start, step.seconds, device=step.device)
            start += step.seconds

    def _add(self, name: str, category: str, start: float, seconds: float, **args: str) -> None:
        event = {"name": name, "cat": category, "ph": "X", "ts": start * 1e6, "dur": seconds * 1e6}
        self._events.append({**event, "pid": os.getpid(), "tid": threading.get_native_id(), "args": args})

    def write(self, prefix: str) -> str:
        """Writes all of it to a new file whose name begins so, and returns its path."""
        stem = f"{prefix}_{time.strftime('%Y-%m-%d_%H-%M-%S')}"
        for count in itertools.count(1):
            path = f"{stem}_{count}.json" if count > 1 else f"{stem}.json"
            # Another session, perhaps of another process, may have written in this second.
            with contextlib.suppress(FileExistsError), open(path, "x", encoding="utf-8") as file:
                # An event a line, for programs that read it so.
                file.write("[\n" + ",\n".join(map(json.dumps, self._events)) + "\n]\n")
                break
        return path
