"""``vkml warmup``: what a model's first session takes, so that later ones find it in the caches."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from vkml.cli.inputs import parse_dimensions, random_feed
from vkml.cli.output import console, print_json
from vkml.cli.sessions import opened_session, timed_runs, where_it_ran
from vkml.cli.sources import model_file
from vkml.dataclasses import dataclass
from vkml.errors import Error
from vkml.ir.wording import counted, duration, size

if TYPE_CHECKING:
    from vkml.engine.session import InferenceSession


@dataclass(frozen=True)
class Warmed:
    """What was done for one model."""

    model: str
    device: str
    seconds: float
    """From making the session to the end of its last run."""
    new: int
    """Entries that the cache has now and had not before: kernels, and what drivers made of them;"""
    new_bytes: int
    """what these take."""
    cache: str | None
    """The cache's folder; None where there is none."""
    entries: int
    """All that are there."""
    has_other_sizes: bool
    """Whether sizes that the model leaves open are prepared for, too: those that were given and others."""
    nodes_on_cpu: int


def warm_models(
    models: Sequence[Path],
    *,
    device: str,
    precision: str,
    dimensions: Sequence[str],
    seed: int,
    as_json: bool,
) -> int:
    """Plans, compiles and runs each model once; returns the exit code."""
    sizes = parse_dimensions(dimensions)
    done = []
    for model in models:
        with model_file(model) as file:
            done.append(_warmed(file, device, precision, sizes, seed))
        if not as_json:
            _show(done[-1])
    if as_json:
        print_json([asdict(each) for each in done])
    return 0


def _warmed(model: Path, device: str, precision: str, sizes: Mapping[str, int], seed: int) -> Warmed:
    from vkml.vulkan import cache

    entries, held = cache.usage()
    started = time.perf_counter()
    with opened_session(model, device=device, precision=precision) as opened:
        session = opened.session
        feed = random_feed(session.get_inputs(), sizes, seed)
        timed_runs(session, feed, 1)
        has_other_sizes = _ran_with_other_sizes(session, sizes, seed)
        seconds = time.perf_counter() - started
        report = where_it_ran(session, feed)
    now, now_held = cache.usage()
    folder = cache.folder()
    return Warmed(
        model=str(model),
        device=report.device,
        seconds=seconds,
        new=max(now - entries, 0),
        new_bytes=max(now_held - held, 0),
        cache=None if folder is None else str(folder),
        entries=now,
        has_other_sizes=has_other_sizes,
        nodes_on_cpu=len(report.fallbacks),
    )


def _ran_with_other_sizes(session: InferenceSession, sizes: Mapping[str, int], seed: int) -> bool:
    """Runs a model that leaves sizes open with others: the second ones are planned for all that come."""
    named = {each for info in session.get_inputs() for each in info.shape if isinstance(each, str)}
    if not named:
        return False
    try:
        others = {name: sizes.get(name, 1) + 1 for name in named}
        timed_runs(session, random_feed(session.get_inputs(), others, seed), 1)
    except Error:  # of sizes that go together there may be no others
        return False
    return True


def _show(done: Warmed) -> None:
    out = console()
    name = Path(done.model).stem
    if done.cache is None:
        kept = "nothing is kept, for there is no home folder (set VKML_CACHE_DIR)"
    elif done.new:
        kept = f"{counted(done.new, 'file')} more in {done.cache} ({size(done.new_bytes)})"
        kept += f", {done.entries:,} in all"
    else:
        kept = f"all it needs was in {done.cache}"
    out.print(
        f"{name} on {done.device}: ready in {duration(done.seconds)}; {kept}", markup=False, soft_wrap=True
    )
    if done.has_other_sizes:
        out.print(f"{name}: other sizes than these are prepared for, too", markup=False, soft_wrap=True)
    if done.nodes_on_cpu:
        nodes = counted(done.nodes_on_cpu, "node")
        out.print(f"{name}: {nodes} on the CPU (see vkml inspect --plan)", markup=False, soft_wrap=True)
