"""``python -m benchmarks.compare OTHER_CHECKOUT``: this checkout of vkml against another one, in turns."""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.checkout import Checkout
from benchmarks.feeds import feed_of
from benchmarks.measure import BURST_SECONDS, PAUSE_SECONDS
from benchmarks.models import DEFAULT_MODELS, MODELS, model_file
from benchmarks.report import machine
from vkml.cli.output import console, duration, show_table, table


def compare(path: str, ours: Checkout, theirs: Checkout, seconds: float) -> dict[str, Any]:
    """Times one model in both, turn by turn.

    Returns:
        Medians in seconds, seconds to load and run once, and the largest difference of any output, relative
        to the largest value.
    """
    feed = feed_of(path)
    both = (ours, theirs)
    loaded = [each.load(path, feed) for each in both]
    times: list[list[float]] = [[], []]
    until = time.perf_counter() + 2 * seconds
    turn = 0
    while time.perf_counter() < until or turn < 4:
        # Each goes first in every other pair of turns.
        for index in (0, 1) if turn % 2 else (1, 0):
            time.sleep(PAUSE_SECONDS)
            times[index] += both[index].burst(BURST_SECONDS)
        turn += 1
    gap = 0.0
    for left, right in zip(loaded[0][1], loaded[1][1], strict=True):
        scale = float(np.abs(right).max(initial=0)) or 1.0
        gap = max(gap, float(np.abs(left - right).max(initial=0)) / scale)
    return {
        "model": Path(path).stem,
        "median": [float(np.median(each)) for each in times],
        "load": [seconds for seconds, _ in loaded],
        "runs": [len(each) for each in times],
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
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    options = parser.parse_args()
    names = list(MODELS) if options.models == ["all"] else options.models or list(DEFAULT_MODELS)
    paths = [os.fspath(model_file(name)) for name in names]
    checkouts = [
        Checkout(root.resolve(), options.device, options.precision)
        for root in (Path(__file__).parents[1], options.other)
    ]
    found = []
    columns = ("this", "other", "other ÷ this", "load, this", "load, other", "difference")
    rows = table("model", *columns, right=columns)
    try:
        for path in paths:
            each = compare(path, checkouts[0], checkouts[1], options.seconds)
            found.append(each)
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
        for checkout in checkouts:
            checkout.close()
    out = console()
    show_table(out, rows, f"{checkouts[0].source} against {checkouts[1].source}")
    ratios = [each["median"][1] / each["median"][0] for each in found]
    out.print(f"geometric mean {np.exp(np.mean(np.log(ratios))):.3f}, least {min(ratios):.3f}", markup=False)
    if options.json:
        options.json.write_text(json.dumps({"machine": machine(), "models": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
