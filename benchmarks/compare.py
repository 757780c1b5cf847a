"""``python -m benchmarks.compare OTHER_CHECKOUT``: this checkout of vkml against another one, in turns."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.checkout import Checkout
from benchmarks.feeds import feed_of
from benchmarks.measure import BURST_SECONDS, PAUSE_SECONDS
from benchmarks.models import DEFAULT_MODELS, MODELS, model_file
from benchmarks.report import machine
from vkml.cli.output import console, show_table, table
from vkml.ir.wording import duration


def compare(
    path: str, ours: Sequence[Checkout], theirs: Sequence[Checkout], seconds: float
) -> dict[str, Any]:
    """Times one model in both, turn by turn.

    Of several processes of each the median counts: where a driver places memory and what lies beside it makes
    runs of 16 µs up to 1 µs longer for the life of a process, which more runs in that process do not show.

    Returns:
        Medians in seconds, seconds to load and run once, and the largest difference of any output, relative
        to the largest value.
    """
    feed = feed_of(path)
    both = (ours, theirs)
    loaded = [[process.load(path, feed) for process in each] for each in both]
    times: list[list[list[float]]] = [[[] for _ in each] for each in both]
    until = time.perf_counter() + 2 * seconds
    turn = 0
    while time.perf_counter() < until or turn < 4 * len(ours):
        at = turn // 2 % len(ours)
        # Each goes first in every other pair of turns.
        for index in (0, 1) if turn % 2 else (1, 0):
            time.sleep(PAUSE_SECONDS)
            times[index][at] += both[index][at].burst(BURST_SECONDS)
        turn += 1
    gap = 0.0
    for left, right in zip(loaded[0][0][1], loaded[1][0][1], strict=True):
        scale = float(np.abs(right).max(initial=0)) or 1.0
        gap = max(gap, float(np.abs(left - right).max(initial=0)) / scale)
    medians = [[float(np.median(runs)) for runs in each] for each in times]
    return {
        "model": Path(path).stem,
        "median": [float(np.median(each)) for each in medians],
        "medians": medians,
        "load": [float(np.median([taken for taken, _ in each])) for each in loaded],
        "runs": [sum(map(len, each)) for each in times],
        "difference": gap,
    }


def main() -> None:
    """Prints a table; a ratio above 1 says that this checkout is the faster one."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare", description=__doc__)
    parser.add_argument("other", type=Path, metavar="CHECKOUT", help="folder of the other checkout")
    parser.add_argument("models", nargs="*", metavar="MODEL", help="names or .onnx files; or: all")
    parser.add_argument("--device", default="cpu", help="where both run")
    parser.add_argument("--precision", default="high")
    parser.add_argument("--seconds", type=float, default=3.0, help="time for each on each model")
    parser.add_argument(
        "--processes", type=int, default=1, help="processes of each, of which the median counts"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    options = parser.parse_args()
    names = list(MODELS) if options.models == ["all"] else options.models or list(DEFAULT_MODELS)
    paths = [os.fspath(model_file(name)) for name in names]
    checkouts = [
        [
            Checkout(root.resolve(), options.device, options.precision)
            for _ in range(max(1, options.processes))
        ]
        for root in (Path(__file__).parents[1], options.other)
    ]
    found = []
    columns = ("this", "other", "other ÷ this", "load, this", "load, other", "difference")
    rows = table("model", *columns, right=columns)
    try:
        for path in paths:
            found.append(compare(path, checkouts[0], checkouts[1], options.seconds))
            each = found[-1]
            (this, other), (load, other_load) = each["median"], each["load"]
            shown = (
                duration(this),
                duration(other),
                f"{other / this:.3f}",
                duration(load),
                duration(other_load),
            )
            rows.add_row(each["model"], *shown, f"{each['difference']:.1e}")
    finally:
        for process in (*checkouts[0], *checkouts[1]):
            process.close()
    out = console()
    show_table(out, rows, f"{checkouts[0][0].source} against {checkouts[1][0].source}")
    ratios = [each["median"][1] / each["median"][0] for each in found]
    out.print(f"geometric mean {np.exp(np.mean(np.log(ratios))):.3f}, least {min(ratios):.3f}", markup=False)
    if options.json:
        options.json.write_text(json.dumps({"machine": machine(), "models": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
