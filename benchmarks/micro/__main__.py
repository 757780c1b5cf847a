"""``python -m benchmarks.micro``: kernels of every family against their ceilings, and what launches cost.

A kernel's time is the device's own: a chain of the launches that a model of one operator becomes, barriers
between them, values on the device, clocks warmed. Its ceiling is what the device was seen to do: products of
its matrix units alone, or a copy's bytes a second. Products are compared with float64 and, where PyTorch on
CUDA is installed, timed there too. Cold starts are `benchmarks.cold`.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import vkml
from benchmarks.micro.cases import Sizes, cases
from benchmarks.micro.host import Figure, figures
from benchmarks.micro.kernels import CHAIN_SECONDS, Bench, Found
from benchmarks.micro.peers import Peer
from benchmarks.micro.runs import Setting
from benchmarks.report import machine
from vkml.cli.output import console, show_table, table
from vkml.ir.wording import duration

HOST = "host"
"""The family of what is not kernels."""


def measured(bench: Bench, sizes: Sizes, words: tuple[str, ...]) -> list[Found]:
    """The cases whose family or label has one of the words; all if there is none."""

    def is_wanted(family: str, label: str) -> bool:
        return not words or any(word in family or word in label for word in words)

    found = [bench.measure(case) for case in cases(sizes) if is_wanted(case.family, case.label)]
    if is_wanted("attention", "backward"):
        found.append(bench.measure_attention_gradients(sizes.length))
    return found


def show(bench: Bench, found: list[Found]) -> None:
    """Prints the ceilings and a line a case."""
    columns = ("time", "rate", "of ceiling", "error", "PyTorch")
    rows = table("family", "case", *columns, right=columns)
    for each in found:
        if each.problem:
            rows.add_row(each.family, each.label, each.problem)
            continue
        scale, unit = 1e12, "T/s" if each.is_of_operations else "TB/s"
        peer = ""
        if each.peer_seconds:
            peer = f"{each.rate * each.seconds / each.peer_seconds / scale:.3g} {unit}"
        rows.add_row(
            each.family,
            each.label,
            duration(each.seconds),
            f"{each.rate / scale:.3g} {unit}",
            "" if each.share is None else f"{each.share:.0%}",
            "" if each.error is None else f"{each.error:.1e}",
            peer,
        )
    out = console()
    show_table(out, rows, f"kernels on {bench.info}")
    units = ", ".join(f"{name} {rate / 1e12:.0f} T/s" for name, rate in bench.operations.items())
    out.print(f"ceilings: {units or 'no matrix units'}; copy {bench.bytes / 1e12:.3g} TB/s", markup=False)


def show_figures(found: list[Figure]) -> None:
    """Prints a line a figure."""
    rows = table("what", "figure", "note", right=("figure",))
    for figure in found:
        rows.add_row(figure.name, figure.shown, figure.note)
    show_table(console(), rows, "launches")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.micro", description=__doc__)
    parser.add_argument(
        "words", nargs="*", metavar="WORD", help=f"of families or cases; {HOST!r}: what launches cost"
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seconds", type=float, default=0.5, help="time for each figure of launches")
    for name, size in asdict(Sizes()).items():
        parser.add_argument(f"--{name}", type=int, default=size, metavar="N", help=f"{size} by default")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    started = time.perf_counter()
    words = tuple(word for word in options.words if word != HOST)
    device = vkml.devices()[0].name if options.device == "auto" else options.device
    content: dict[str, Any] = {"machine": machine()}
    if device != "cpu" and (words or not options.words):
        bench = Bench(device, Peer.find(CHAIN_SECONDS))
        sizes = Sizes(options.side, options.elements, options.length)
        found = measured(bench, sizes, words)
        show(bench, found)
        content["ceilings"] = {**bench.operations, "bytes": bench.bytes}
        content["kernels"] = [{**asdict(each), "share": each.share} for each in found]
        bench.close()
    if not words:
        costs = figures(Setting(device, "high", options.seconds))
        show_figures(costs)
        content["figures"] = [asdict(figure) for figure in costs]
    if options.json:
        options.json.write_text(json.dumps(content, indent=1) + "\n")
    print(f"{time.perf_counter() - started:.0f} s in all")


if __name__ == "__main__":
    main()
