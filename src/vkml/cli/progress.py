"""Shows how far reading, loading, uploading and compiling is, when that takes long and someone watches."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

PATIENCE = 0.5
"""Seconds before anything is shown."""

TITLES = {
    "read": "Reading",
    "load": "Loading",
    "upload": "Uploading",
    "compile": "Compiling kernels",
    "tune": "Measuring kernels",
}


class StageProgress:
    """A `SessionOptions.progress` callback; draws on the standard error if that is a terminal."""

    def __init__(self) -> None:
        self._is_watched = sys.stderr.isatty()
        self._started = time.perf_counter()
        self._lock = threading.RLock()
        self._drawing: Progress | None = None
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, stage: str, done: int, total: int) -> None:
        if not self._is_watched or time.perf_counter() - self._started < PATIENCE:
            return
        with self._lock:
            if self._drawing is None:
                self._drawing = _start_drawing()
            if stage not in self._tasks:
                self._tasks[stage] = self._drawing.add_task(TITLES.get(stage, stage), total=total)
            self._drawing.update(self._tasks[stage], completed=done, total=total)

    def close(self) -> None:
        """Wipes what was drawn; nothing is drawn after it."""
        with self._lock:
            self._is_watched = False
            if self._drawing is not None:
                self._drawing.stop()
                self._drawing = None

    def __enter__(self) -> StageProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _start_drawing() -> Progress:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from vkml.cli.output import console

    drawing = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console(stderr=True),
        transient=True,
    )
    drawing.start()
    return drawing
