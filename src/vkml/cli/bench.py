"""``vkml bench``: times models on random inputs."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vkml.cli.inputs import parse_dimensions, random_feed
from vkml.cli.output import console, print_json, show_table, table
from vkml.cli.sessions import opened_session, timed_runs, where_it_ran
from vkml.ir.wording import counted, duration

if TYPE_CHECKING:
    from vkml.engine.report import PlanReport
    from vkml.engine.session import InferenceSession

Array = np.ndarray[Any, Any]

WARM_UP_RUNS = 3
MAX_RUNS = 10_000_000


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
    for model in models:
        for device in devices:
            with opened_session(model, device=device, precision=precision) as opened:
                session = opened.session
                feed = random_feed(session.get_inputs(), sizes, seed)
                _, first = timed_runs(session, feed, 1)
                opened.progress.close()
                timed_runs(session, feed, WARM_UP_RUNS)
                runs = _timed(session, feed, repeat, seconds)
                report = where_it_ran(session, feed)
            timings.append(_timing(str(model), report, opened.load_seconds, first[0], runs))
    if as_json:
        print_json([asdict(timing) for timing in timings])
    else:
        _show(timings)
    return 0


def _timed(
    session: InferenceSession, feed: Mapping[str, Array], repeat: int | None, seconds: float
) -> list[float]:
    """Each run's seconds: `repeat` runs, or as many as fit in the time (at least 3)."""
    if repeat is not None:
        return timed_runs(session, feed, repeat)[1]
    taken: list[float] = []
    until = time.perf_counter() + seconds
    while len(taken) < 3 or (time.perf_counter() < until and len(taken) < MAX_RUNS):
        taken += timed_runs(session, feed, 1)[1]
    return taken


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
    numbers = ("load", "first run", "median", "p95", "p99", "least", "runs")
    rows = table("model", "device", *numbers, right=numbers)
    for each in timings:
        times = (each.load, each.first, each.median, each.p95, each.p99, each.least)
        rows.add_row(Path(each.model).stem, each.device, *(duration(time) for time in times), str(each.runs))
    out = console()
    show_table(out, rows)
    for each in timings:
        if each.nodes_on_cpu:
            where = f"{Path(each.model).stem} on {each.device}"
            out.print(
                f"{where}: {counted(each.nodes_on_cpu, 'node')} on the CPU (see vkml inspect --plan)",
                markup=False,
            )
