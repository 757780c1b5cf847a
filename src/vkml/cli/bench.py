"""``vkml bench``: times models on random inputs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from vkml.cli.inputs import parse_dimensions, random_feed
from vkml.cli.output import console, duration, print_json, table
from vkml.cli.sessions import opened_session, timed_runs, where_it_ran

WARM_UP_RUNS = 3
MAX_RUNS = 100_000


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


def _timed(session: object, feed: object, repeat: int | None, seconds: float) -> list[float]:
    """Each run's seconds: `repeat` runs, or as many as fit in the time (at least 3)."""
    if repeat is not None:
        return timed_runs(session, feed, repeat)[1]  # type: ignore[arg-type]
    taken: list[float] = []
    until = time.perf_counter() + seconds
    while len(taken) < 3 or (time.perf_counter() < until and len(taken) < MAX_RUNS):
        taken += timed_runs(session, feed, 1)[1]  # type: ignore[arg-type]
    return taken


def _timing(model: str, report: object, load: float, first: float, runs: Sequence[float]) -> Timing:
    median, p95, p99 = (float(each) for each in np.percentile(runs, [50, 95, 99]))
    return Timing(
        model=model,
        device=report.device,  # type: ignore[attr-defined]
        load=load,
        first=first,
        median=median,
        p95=p95,
        p99=p99,
        least=min(runs),
        runs=len(runs),
        nodes_on_cpu=len(report.fallbacks),  # type: ignore[attr-defined]
    )


def _show(timings: Sequence[Timing]) -> None:
    numbers = ("load", "first run", "median", "p95", "p99", "least", "runs")
    rows = table("model", "device", *numbers, right=numbers)
    for each in timings:
        times = (each.load, each.first, each.median, each.p95, each.p99, each.least)
        rows.add_row(Path(each.model).stem, each.device, *(duration(time) for time in times), str(each.runs))
    out = console()
    out.print(rows, markup=False)
    for each in timings:
        if each.nodes_on_cpu:
            out.print(f"{each.model} on {each.device}: {each.nodes_on_cpu} nodes ran on the CPU (vkml inspect --plan)")
