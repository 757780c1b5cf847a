"""``vkml tune``: measures candidates for models' kernels, and writes what is the fastest to a file."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vkml.cli.inputs import parse_dimensions, random_feed
from vkml.cli.output import console, print_json, show_table, table
from vkml.cli.progress import StageProgress
from vkml.cli.sessions import timed_runs
from vkml.cli.sources import model_file
from vkml.dataclasses import dataclass
from vkml.errors import InvalidDevice, OutOfMemory
from vkml.ir.wording import counted, duration

if TYPE_CHECKING:
    from vkml.engine.session import InferenceSession
    from vkml.engine.tuning import Tuning
    from vkml.engine.tuning_file import Found, Setup

Array = np.ndarray[Any, Any]
WARM_UP_RUNS = 3
LEAST_RUNS, MOST_RUNS = 5, 200
BURST_RUNS = 5
SECONDS = 1.0
"""That runs of a model, by rules and as measured, are timed for in turns."""


@dataclass(frozen=True)
class TunedLaunch:
    """A launch for which another candidate than the rule's was picked."""

    question: str
    count: int
    """How often it came up."""
    rule: str
    pick: str
    rule_microseconds: float
    microseconds: float


@dataclass(frozen=True)
class Tuned:
    """What was found for a model."""

    model: str
    device: str
    seconds: float
    """That planning and measuring took."""
    launches: int
    """Different ones that there are rules for;"""
    measured: int
    """of these, those that need no rule: there was time to measure, now or before, or one candidate."""
    changed: list[TunedLaunch] = field(default_factory=list)
    by_rules: float | None = None
    """Median seconds of a run; None where there was no memory for both sessions."""
    as_measured: float | None = None


def tune_models(
    models: Sequence[Path],
    *,
    output: Path | None,
    effort: str,
    device: str,
    precision: str,
    dimensions: Sequence[str],
    seed: int,
    as_json: bool,
) -> int:
    """Measures each model; returns the exit code."""
    sizes = parse_dimensions(dimensions)
    done: list[Tuned] = []
    found: dict[Setup, Found] = {}
    for model in models:
        with model_file(model) as file:
            done.append(_tuned(file, effort, device, precision, sizes, seed, found))
        if not as_json:
            _show(done[-1])
    if output is not None:
        from vkml.engine.tuning_file import write_file

        write_file(output, found)
    if as_json:
        print_json([asdict(each) for each in done])
    elif output is not None:
        console().print(f"written to {output}", markup=False, soft_wrap=True)
    return 0


def _tuned(
    model: Path,
    effort: str,
    device: str,
    precision: str,
    sizes: Mapping[str, int],
    seed: int,
    found: dict[Setup, Found],
) -> Tuned:
    started = time.perf_counter()
    with _session(model, device, precision, effort) as session:
        feed = random_feed(session.get_inputs(), sizes, seed)
        timed_runs(session, feed, 1)
        seconds = time.perf_counter() - started
        made = _described(model, session, seconds, found)
        try:
            with _session(model, device, precision, "off") as plain:
                by_rules, as_measured = _in_turns(plain, session, feed)
        except OutOfMemory:
            return made
    return Tuned(**{**vars(made), "by_rules": by_rules, "as_measured": as_measured})


def _described(model: Path, session: InferenceSession, seconds: float, found: dict[Setup, Found]) -> Tuned:
    """What a session has found, which is added to `found`, too."""
    from vkml.engine.tuning_setting import tunings_of

    tunings = tunings_of(session)
    if not tunings:
        raise InvalidDevice(f"vkml tune measures kernels of GPUs; the model runs on {session.device}")
    changed: list[TunedLaunch] = []
    launches = measured = 0
    for tuning in tunings:
        asked = tuning.asked_and_found()
        found.setdefault(tuning.setup, {}).update(asked)
        launches += len(asked)
        measured += sum(each.effort != "rule" for each in asked.values())
        changed += _changes(tuning, asked)
    return Tuned(str(model), session.device, seconds, launches, measured, changed)


def _changes(tuning: Tuning, asked: Found) -> list[TunedLaunch]:
    changed = []
    for question, each in asked.items():
        rule = next(iter(each.microseconds), each.pick)
        if each.pick != rule:
            times = each.microseconds
            count = tuning.asked[question]
            changed.append(TunedLaunch(question, count, rule, each.pick, times[rule], times[each.pick]))
    return sorted(changed, key=lambda each: -each.count * (each.rule_microseconds - each.microseconds))


@contextmanager
def _session(model: Path, device: str, precision: str, tune: str) -> Iterator[InferenceSession]:
    import vkml

    with StageProgress() as progress:
        options = vkml.SessionOptions()
        options.progress = progress
        options.tune = tune
        with vkml.InferenceSession(str(model), options, devices=device, precision=precision) as session:
            yield session


def _in_turns(
    plain: InferenceSession, tuned: InferenceSession, feed: Mapping[str, Array]
) -> tuple[float, float]:
    """Median seconds of runs of two sessions, which take turns."""
    timed_runs(plain, feed, WARM_UP_RUNS)
    _, [first] = timed_runs(tuned, feed, 1)
    runs = int(min(MOST_RUNS, max(LEAST_RUNS, SECONDS / 2 / max(first, 1e-6))))
    times: tuple[list[float], list[float]] = ([], [])
    while len(times[0]) < runs:
        for session, taken in zip((plain, tuned), times, strict=True):
            timed_runs(session, feed, 1)
            taken += timed_runs(session, feed, min(BURST_RUNS, runs))[1]
    return statistics.median(times[0]), statistics.median(times[1])


def _show(done: Tuned) -> None:
    out = console()
    name = Path(done.model).stem
    found = f"{counted(len(done.changed), 'pick')} other than by rules"
    measured = f"{done.measured} of {counted(done.launches, 'launch')} measured"
    text = f"{name} on {done.device}: {measured}, {found}, in {duration(done.seconds)}"
    if done.by_rules is not None and done.as_measured is not None:
        text += f"; a run takes {duration(done.as_measured)}, by rules {duration(done.by_rules)}"
    out.print(text, markup=False, soft_wrap=True)
    if done.changed:
        rows = table("launch", "times", "by rules", "µs", "picked", "µs", right=("times", "µs"))
        for each in done.changed:
            rows.add_row(
                each.question,
                str(each.count),
                each.rule,
                f"{each.rule_microseconds:.1f}",
                each.pick,
                f"{each.microseconds:.1f}",
            )
        show_table(out, rows)
