"""``vkml bench``: times models on random inputs."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vkml.cli.inputs import parse_dimensions, random_feed
from vkml.cli.output import console, print_json, show_lines
from vkml.cli.sessions import opened_session, timed_runs, where_it_ran
from vkml.cli.sources import model_file
from vkml.cli.terminal import PrintableStream, printable
from vkml.dataclasses import dataclass
from vkml.engine.text_table import Column, text_table
from vkml.ir.wording import counted, duration

if TYPE_CHECKING:
    from vkml.engine.report import PlanReport
    from vkml.engine.session import InferenceSession

Array = np.ndarray[Any, Any]

WARM_UP_RUNS = 3
MAX_RUNS = 10_000_000
REDRAWN_SECONDS = 0.25
COLUMNS = (
    Column("model", is_cut=True),
    Column("device"),
    *(Column(name, is_right=True) for name in ("load", "first", "median", "p95", "p99", "least", "runs")),
)


@dataclass(frozen=True)
class Timing:
    """How fast one model is on one device; seconds."""

    model: str
    device: str
    load: float
    first: float
    """The first run, which plans, compiles and uploads."""
    median: float
    p95: float
    p99: float
    least: float
    runs: int
    nodes_on_cpu: int


def bench_models(
    models: Sequence[Path],
    *,
    devices: Sequence[str],
    precision: str,
    repeat: int | None,
    seconds: float,
    dimensions: Sequence[str],
    seed: int,
    as_json: bool,
) -> int:
    """Times each model on each device and prints one table; returns the exit code."""
    sizes = parse_dimensions(dimensions)
    timings: list[Timing] = []
    is_interrupted = False
    try:
        for model in models:
            with model_file(model) as file:
                for device in devices:
                    timing, is_interrupted = _bench(file, device, precision, sizes, seed, repeat, seconds)
                    timings += [] if timing is None else [timing]
                    if is_interrupted:
                        raise KeyboardInterrupt
    except KeyboardInterrupt:
        if not timings:
            raise
        is_interrupted = True
    if as_json:
        print_json([asdict(timing) for timing in timings])
    else:
        _show(timings)
    return 130 if is_interrupted else 0


def _bench(
    model: Path,
    device: str,
    precision: str,
    sizes: Mapping[str, int],
    seed: int,
    repeat: int | None,
    seconds: float,
) -> tuple[Timing | None, bool]:
    """How fast a model is on a device, None where nothing was timed; and whether Ctrl-C came meanwhile."""
    with opened_session(model, device=device, precision=precision) as opened:
        session = opened.session
        feed = random_feed(session.get_inputs(), sizes, seed)
        _, first = timed_runs(session, feed, 1)
        opened.progress.close()
        timed_runs(session, feed, WARM_UP_RUNS)
        report = where_it_ran(session, feed)
        with Counter(f"{model.stem} on {report.device}", repeat, seconds) as counter:
            runs, is_interrupted = _timed(session, feed, repeat, seconds, counter)
    timing = _timing(str(model), report, opened.load_seconds, first[0], runs) if runs else None
    return timing, is_interrupted


def _timed(
    session: InferenceSession,
    feed: Mapping[str, Array],
    repeat: int | None,
    seconds: float,
    counter: Counter,
) -> tuple[list[float], bool]:
    """Each run's seconds: `repeat` runs, or as many as fit in the time (at least 3); whether Ctrl-C came."""
    taken: list[float] = []
    until = time.perf_counter() + seconds
    most = MAX_RUNS if repeat is None else repeat
    try:
        while len(taken) < most and (repeat is not None or len(taken) < 3 or time.perf_counter() < until):
            taken += timed_runs(session, feed, 1)[1]
            counter.show(len(taken))
    except KeyboardInterrupt:
        return taken, True
    return taken, False


class Counter:
    """A line on the standard error that says how far timing is, where somebody watches.

    It is drawn between runs, by no thread that would take part in what is timed.

    Args:
        what: is timed.
        runs: there are to be; None: as many as fit.
        seconds: that it takes, then.
    """

    def __init__(self, what: str, runs: int | None, seconds: float) -> None:
        self._what, self._runs, self._seconds = what, runs, seconds
        self._is_watched = sys.stderr.isatty()
        self._started = self._drawn = time.perf_counter()
        self._width = 0

    def show(self, count: int) -> None:
        """Draws it anew, a few times a second."""
        now = time.perf_counter()
        if not self._is_watched or now - self._drawn < REDRAWN_SECONDS:
            return
        self._drawn = now
        if self._runs is None:
            text = f"{self._what}: {counted(count, 'run')}, {now - self._started:.0f} of {self._seconds:g} s"
        else:
            text = f"{self._what}: {count} of {counted(self._runs, 'run')}"
        self._draw(f"{text} (Ctrl-C shows what there is)")

    def _draw(self, text: str) -> None:
        text = printable(text)[: shutil.get_terminal_size().columns - 1]
        stream = sys.stderr.unescaped if isinstance(sys.stderr, PrintableStream) else sys.stderr
        stream.write(f"\r{text.ljust(self._width)}\r")
        stream.flush()
        self._width = len(text)

    def __enter__(self) -> Counter:
        return self

    def __exit__(self, *_: object) -> None:
        if self._width:
            self._draw("")


def _timing(model: str, report: PlanReport, load: float, first: float, runs: Sequence[float]) -> Timing:
    median, p95, p99 = (float(each) for each in np.percentile(runs, [50, 95, 99]))
    return Timing(
        model=model,
        device=report.device,
        load=load,
        first=first,
        median=median,
        p95=p95,
        p99=p99,
        least=min(runs),
        runs=len(runs),
        nodes_on_cpu=len(report.fallbacks),
    )


def _show(timings: Sequence[Timing]) -> None:
    rows = []
    for each in timings:
        times = (each.load, each.first, each.median, each.p95, each.p99, each.least)
        rows.append((Path(each.model).stem, each.device, *map(duration, times), str(each.runs)))
    out = console()
    show_lines(out, text_table(COLUMNS, rows, out.width))
    for each in timings:
        if each.nodes_on_cpu:
            where, nodes = f"{Path(each.model).stem} on {each.device}", counted(each.nodes_on_cpu, "node")
            out.print(f"{where}: {nodes} on the CPU (see vkml inspect --plan)", markup=False)
