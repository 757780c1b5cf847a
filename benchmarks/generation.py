"""``python -m benchmarks.generation``: what a token costs whose past is one longer than the last one's.

A small decoder (`benchmarks.models.gpt_with_past`) writes one token after another; the keys and values that a
run returns are fed to the next. Beside it, the same step again and again at one length.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import NotAvailable
from benchmarks.models import model_file
from benchmarks.peers import make_peers
from benchmarks.report import machine
from vkml.cli.output import console, show_table, table
from vkml.ir.wording import duration

Array = np.ndarray[Any, Any]
Run = Callable[[Mapping[str, Any]], Sequence[Any]]
MODEL = "gpt_with_past"
HEADS, EACH, BLOCKS = 4, 64, 2
REPEATED = 512
"""Steps at one length."""


@dataclass(frozen=True)
class Generation:
    """Medians in seconds of one runtime."""

    peer: str
    growing: float
    """A step whose past is one longer than before."""
    repeated: float
    """A step at one length."""
    first: float
    """The slowest of the first ten steps: what the second length costs."""
    grown_bytes: int
    """Resident memory at the end, less that after `settled` steps."""


def _feed(past: int, rng: np.random.Generator) -> dict[str, Array]:
    shape = (1, HEADS, past, EACH)
    kept = {
        f"past.{block}.{what}": rng.standard_normal(shape, np.float32)
        for block in range(BLOCKS)
        for what in ("key", "value")
    }
    return {"input_ids": np.array([[1]], np.int64), **kept}


def _next(names: Sequence[str], results: Sequence[Any]) -> dict[str, Any]:
    """The feed of the next step: the likeliest token, and what the step returned."""
    kept = dict(zip(names, results, strict=True))
    logits = kept.pop("logits")
    token = np.array([[int(logits[0, -1].argmax())]], np.int64)
    return {"input_ids": token, **{name.replace("present", "past"): each for name, each in kept.items()}}


def _resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096


def bound(session: Any, device: str, names: Sequence[str]) -> Run:
    """Steps whose keys and values stay on a device; the logits come to the host."""
    binding = session.io_binding()

    def run(feed: Mapping[str, Any]) -> list[Any]:
        for name, value in feed.items():
            if isinstance(value, np.ndarray):
                binding.bind_cpu_input(name, value)
            else:
                binding.bind_ortvalue_input(name, value)
        for name in names:
            binding.bind_output(name, "cpu" if name == "logits" else device, 0)
        session.run_with_iobinding(binding)
        made = binding.get_outputs()
        return [value.numpy() if name == "logits" else value for name, value in zip(names, made, strict=True)]

    return run


def generate(peer: str, run: Run, names: Sequence[str], start: int, steps: int) -> Generation:
    """Times a growing past from `start` on, and the last length again."""
    feed: Mapping[str, Any] = _feed(start, np.random.default_rng(0))
    times, settled = [], 0
    for step in range(steps):
        began = time.perf_counter()
        results = run(feed)
        times.append(time.perf_counter() - began)
        if step == min(100, steps // 2):
            settled = _resident_bytes()
        last, feed = feed, _next(names, results)
    grown = _resident_bytes() - settled
    repeated = []
    for _ in range(min(steps, REPEATED)):
        began = time.perf_counter()
        run(last)
        repeated.append(time.perf_counter() - began)
    later = times[10:] or times
    return Generation(peer, float(np.median(later)), float(np.median(repeated[3:])), max(times[:10]), grown)


def main() -> None:
    """Prints a table; growing ÷ repeated is what a length never seen before costs."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.generation", description=__doc__)
    parser.add_argument("--device", default="cpu", help="where vkml runs")
    parser.add_argument("--peers", nargs="*", default=["vkml", "ort-cpu"])
    parser.add_argument("--start", type=int, default=16, help="tokens of the past before the first step")
    parser.add_argument("--steps", type=int, default=512)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    options = parser.parse_args()
    path = str(model_file(MODEL))
    out = console()
    found: list[Generation] = []
    for peer in make_peers(options.peers, options.device):
        try:
            prepared = peer.prepare(path)
        except NotAvailable as reason:
            out.print(f"{peer.name}: {reason}", markup=False)
            continue
        outputs = [*(f"present.{b}.{what}" for b in range(BLOCKS) for what in ("key", "value")), "logits"]
        found.append(generate(peer.name, prepared.run, outputs, options.start, options.steps))
        if prepared.session is not None and prepared.device != "cpu":
            run = bound(prepared.session, prepared.device, outputs)
            found.append(generate(f"{peer.name}, bound", run, outputs, options.start, options.steps))
        prepared.close()
    columns = ("growing", "repeated", "growing ÷ repeated", "second length", "grown")
    rows = table("runtime", *columns, right=columns)
    for each in found:
        rows.add_row(
            each.peer,
            duration(each.growing),
            duration(each.repeated),
            f"{each.growing / each.repeated:.2f}",
            duration(each.first),
            f"{each.grown_bytes / 2**20:.1f} MiB",
        )
    show_table(out, rows, f"{MODEL}: {options.steps} tokens, a past of {options.start} and more")
    if options.json:
        figures = [asdict(each) for each in found]
        options.json.write_text(json.dumps({"machine": machine(), "generation": figures}, indent=1) + "\n")


if __name__ == "__main__":
    main()
