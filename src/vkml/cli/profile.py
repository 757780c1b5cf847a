"""``vkml profile``: which steps of a model take how long, and how near that is to what the device can do."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vkml.cli.drawing import check_drawing
from vkml.cli.inputs import FeedRequest, make_feed
from vkml.cli.output import console, print_json, show_lines
from vkml.cli.sessions import opened_session, timed_runs
from vkml.cli.sources import model_file
from vkml.dataclasses import dataclass
from vkml.engine.report_text import node_names
from vkml.engine.text_table import Column, text_table, wrapped
from vkml.ir.wording import counted, duration, shape_text, three_digits

if TYPE_CHECKING:
    from vkml.engine.profile import Ceiling
    from vkml.engine.report import StepReport

WARM_UP_RUNS = 3
COLUMNS = (
    Column("node", is_cut=True),
    Column("kernel", is_cut=True),
    Column("device"),
    Column("time", is_right=True),
    Column("%", is_right=True),
    Column("rate", is_right=True),
    Column("of ceiling", is_right=True),
)


@dataclass(frozen=True)
class ProfileRequest:
    """The options of ``vkml profile``, as given."""

    model: Path
    inputs: tuple[str, ...]
    device: str
    precision: str
    dimensions: tuple[str, ...]
    seed: int
    repeat: int
    top: int
    trace: Path | None
    """Where the trace goes; None: where `writes_files` says."""
    picture: Path | None
    writes_files: bool
    """Whether trace and picture are written beside where one stands, if they are not given a place."""
    has_ceiling: bool
    as_json: bool


@dataclass(frozen=True)
class _Outcome:
    device: str
    seconds: float
    steps: Sequence[StepReport]
    ceilings: Mapping[str, Ceiling]
    files: Sequence[Path]

    @property
    def total(self) -> float:
        return sum(step.seconds or 0.0 for step in self.steps) or 1e-12


def profile_model(request: ProfileRequest) -> int:
    """Carries the command out; returns its exit code."""
    with model_file(request.model, request.inputs) as path:
        return _profile(replace(request, model=path))


def _profile(request: ProfileRequest) -> int:
    check_drawing(request.picture)
    stem = request.model.stem
    trace = request.trace or (Path(f"{stem}-trace.json") if request.writes_files else None)
    picture = request.picture or (Path(f"{stem}-timeline.svg") if request.writes_files else None)
    from vkml.engine.profile import measured_ceiling, profiled_steps

    feed_request = FeedRequest(request.inputs, request.dimensions, fill_randomly=True, seed=request.seed)
    opening = partial(opened_session, request.model, device=request.device, precision=request.precision)
    with opening() as opened:
        feed = make_feed(opened.session.get_inputs(), feed_request)
        timed_runs(opened.session, feed, WARM_UP_RUNS)
        _, seconds = timed_runs(opened.session, feed, request.repeat)
        device = opened.session.device
    with opening(is_traced=True) as opened:
        session = opened.session
        timed_runs(session, feed, WARM_UP_RUNS)
        runs = []
        for _ in range(request.repeat):
            before = len(session.traced_runs)
            timed_runs(session, feed, 1)
            runs.append(list(session.traced_runs[before:]))
        events = session.trace_events()
    steps = profiled_steps(runs)
    devices = dict.fromkeys(step.device for step in steps) if request.has_ceiling else {}
    ceilings = {name: measured_ceiling(name, request.precision) for name in devices}
    files = []
    if trace is not None:
        trace.write_text(json.dumps(events), encoding="utf-8")
        files.append(trace)
    if picture is not None:
        from vkml.cli.timeline import timeline

        last = [step for run in runs[-1] for step in run.steps]
        timeline(f"{request.model.name} on {device}: one run, step by step", last).write(picture)
        files.append(picture)
    outcome = _Outcome(device, statistics.median(seconds), steps, ceilings, files)
    if request.as_json:
        print_json(_as_json(request, outcome))
    else:
        _show(request, outcome)
    return 0


def _show(request: ProfileRequest, outcome: _Outcome) -> None:
    out = console()
    one = duration(outcome.seconds)
    alone = duration(outcome.total)
    title = f"{request.model.name} on {outcome.device}: a run takes {one}, its steps one by one {alone}"
    out.print(title, style="bold", markup=False)
    shown, rest = outcome.steps[: request.top], outcome.steps[request.top :]
    rows = [_row(step, outcome) for step in shown]
    if rest:
        seconds = sum(step.seconds or 0.0 for step in rest)
        share = f"{100 * seconds / outcome.total:.1f}"
        rows.append((counted(len(rest), "other step"), "", "", duration(seconds), share, "", ""))
    show_lines(out, text_table(COLUMNS, rows, out.width))
    for name, ceiling in outcome.ceilings.items():
        text = (
            f"ceiling of {name}: {_rate(ceiling.flops, 'FLOP/s')} in a large product of float32, "
            f"{_rate(ceiling.bytes, 'B/s')} in a large sum"
        )
        show_lines(out, wrapped(text, out.width))
    pairs = [(step, outcome.ceilings.get(step.device)) for step in shown]
    shares = [None if best is None else best.share(step) for step, best in pairs]
    if any(share is not None and share > 1 for share in shares):
        text = "over 100 %: values that stay in caches, convolutions by fewer operations (Winograd)"
        show_lines(out, wrapped(text, out.width))
    timeless = [step.device for step in shown if step.device != "cpu" and not step.seconds]
    if timeless:
        text = f"steps of {timeless[0]} that have no time: its driver has written no timestamps for them"
        show_lines(out, wrapped(text, out.width))
    for path in outcome.files:
        out.print(f"wrote {path}", markup=False)


def _row(step: StepReport, outcome: _Outcome) -> tuple[str, ...]:
    seconds = step.seconds or 0.0
    ceiling = outcome.ceilings.get(step.device)
    share = None if ceiling is None else ceiling.share(step)
    return (
        node_names(step.nodes) or f"({step.kernel})",
        step.kernel,
        step.device,
        duration(seconds),
        f"{100 * seconds / outcome.total:.1f}",
        _step_rate(step, ceiling),
        "" if share is None else f"{100 * share:.0f} %",
    )


def _step_rate(step: StepReport, ceiling: Ceiling | None) -> str:
    """Operations a second where these take the longer, else bytes a second."""
    if not step.seconds:
        return ""
    is_computing = step.flops > 10 * step.bytes if ceiling is None else ceiling.is_bound_by_operations(step)
    if is_computing:
        return _rate(step.flops / step.seconds, "FLOP/s")
    return _rate(step.bytes / step.seconds, "B/s") if step.bytes else ""


def _rate(value: float, unit: str) -> str:
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if value >= factor or prefix == "M":
            return f"{three_digits(value / factor)} {prefix}{unit}"
    raise AssertionError


def _as_json(request: ProfileRequest, outcome: _Outcome) -> dict[str, Any]:
    steps = []
    for step in outcome.steps:
        ceiling = outcome.ceilings.get(step.device)
        steps.append(
            {
                "nodes": list(step.nodes),
                "operators": list(step.operators),
                "kernel": step.kernel,
                "variant": step.variant,
                "device": step.device,
                "output": [shape_text(shape) for shape in step.output_shapes],
                "seconds": step.seconds,
                "share": (step.seconds or 0.0) / outcome.total,
                "flops": step.flops,
                "bytes": step.bytes,
                "of_ceiling": None if ceiling is None else ceiling.share(step),
            }
        )
    return {
        "model": str(request.model),
        "device": outcome.device,
        "precision": request.precision,
        "run_seconds": outcome.seconds,
        "step_seconds": outcome.total,
        "ceilings": {name: asdict(ceiling) for name, ceiling in outcome.ceilings.items()},
        "steps": steps,
        "files": [str(path) for path in outcome.files],
    }
