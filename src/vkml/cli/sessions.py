"""Opens sessions for commands and times their runs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vkml.cli.progress import StageProgress
from vkml.dataclasses import dataclass

if TYPE_CHECKING:
    from vkml.engine.report import PlanReport
    from vkml.engine.session import InferenceSession

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class OpenedSession:
    """A session and how long it took to make, in seconds."""

    session: InferenceSession
    load_seconds: float
    progress: StageProgress
    """Still open: the first run compiles, too. Close it before printing."""


@contextmanager
def opened_session(
    model: Path,
    *,
    device: str = "auto",
    precision: str = "high",
    strict: bool = False,
    is_traced: bool = False,
) -> Iterator[OpenedSession]:
    """A session on a device, closed at the end; shows its progress where that is slow."""
    import vkml

    with StageProgress() as progress:
        options = vkml.SessionOptions()
        options.progress = progress
        options.enable_profiling = is_traced
        started = time.perf_counter()
        session = vkml.InferenceSession(
            str(model), options, devices=device, precision=precision, strict=strict
        )
        taken = time.perf_counter() - started
        with session:
            yield OpenedSession(session, taken, progress)


def timed_runs(
    session: InferenceSession, feed: Mapping[str, Array], count: int
) -> tuple[list[Array], list[float]]:
    """Outputs of the last of `count` runs, and each run's seconds."""
    seconds: list[float] = []
    outputs: list[Array] = []
    for _ in range(count):
        started = time.perf_counter()
        outputs = session.run(None, dict(feed))
        seconds.append(time.perf_counter() - started)
    return outputs, seconds


def where_it_ran(session: InferenceSession, feed: Mapping[str, Array]) -> PlanReport:
    """The plan report for inputs of the feed's shapes."""
    sizes: dict[str, int] = {}
    for info in session.get_inputs():
        for dimension, size in zip(info.shape, feed[info.name].shape, strict=False):
            if isinstance(dimension, str):
                sizes[dimension] = size
    return session.report(sizes)
