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
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import vkml
from benchmarks.micro.cases import HEAD_SIZE, HEADS, Sizes, cases
from benchmarks.micro.host import Figure, figures
from benchmarks.micro.kernels import CHAIN_SECONDS, Bench, Found
from benchmarks.micro.peers import Peer
from benchmarks.micro.runs import Setting
from benchmarks.report import machine
from vkml.ir.wording import duration

HOST = "host"
"""The family of what is not kernels."""


def line(each: Found) -> str:
    """What is shown of a case."""
    if each.problem:
        return f"{each.family:<12}{each.label:<52}{each.problem}"
    scale, unit = 1e12, "T/s " if each.operations else "TB/s"
    share = "" if each.share is None else f"{each.share:.0%}"
    error = "" if each.error is None else f"{each.error:.1e}"
    rate = f"{each.rate / scale:.3g} {unit}"
    return f"{each.family:<12}{each.label:<52}{duration(each.seconds):>9}{rate:>14}{share:>6}{error:>9}"


def measured(bench: Bench, sizes: Sizes, is_wanted: Callable[[str, str], bool], until: float) -> list[Found]:
    """Times the cases that are wanted, and prints each as it is known."""
    chosen = [case for case in cases(sizes) if is_wanted(case.family, case.label)]
    found = []
    for _, each in bench.measure(chosen, until):
        found.append(each)
        print(line(each), flush=True)
    if is_wanted("attention", "backward") and time.perf_counter() < until:
        found.append(bench.measure_attention_gradients(sizes.length))
        print(line(found[-1]), flush=True)
    return found


def beside(found: list[Found], sizes: Sizes, until: float) -> list[Found]:
    """The same with PyTorch's times, as far as there is time for them."""
    peer = Peer.find(CHAIN_SECONDS) if time.perf_counter() < until else None
    if peer is None:
        return found
    asked = {(case.family, case.label): case.peer for case in cases(sizes)}
    asked["attention", "backward"] = ("attention_gradients", (1, HEADS, sizes.length, HEAD_SIZE))
    compared = []
    for each in found:
        key = each.family, each.label.rpartition(", ")[2] if "backward" in each.label else each.label
        what = asked.get(key)
        if what is not None and not each.problem and time.perf_counter() < until:
            seconds = peer.seconds(*what)
            if seconds is not None:
                rate = each.rate * each.seconds / seconds / 1e12
                print(f"PyTorch     {each.label:<52}{duration(seconds):>9}{rate:>9.3g} T/s", flush=True)
                each = replace(each, peer_seconds=seconds)
        compared.append(each)
    return compared


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.micro", description=__doc__)
    parser.add_argument(
        "words", nargs="*", metavar="WORD", help=f"of families or cases; {HOST!r}: what launches cost"
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seconds", type=float, default=0.2, help="time for each figure of launches")
    for name, size in asdict(Sizes()).items():
        parser.add_argument(f"--{name}", type=int, default=size, metavar="N", help=f"{size} by default")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--limit", type=float, default=100, help="seconds after which no case is begun")
    options = parser.parse_args()
    started = time.perf_counter()
    until = started + options.limit
    words = tuple(word for word in options.words if word != HOST)
    device = vkml.devices()[0].name if options.device == "auto" else options.device
    content: dict[str, Any] = {"date": time.strftime("%Y-%m-%d", time.gmtime()), "machine": machine()}
    sizes = Sizes(options.side, options.elements, options.length)
    found: list[Found] = []

    def is_wanted(family: str, label: str) -> bool:
        return not words or any(word in family or word in label for word in words)

    def write() -> None:
        content["kernels"] = [{**asdict(each), "share": each.share} for each in found]
        if options.json:
            options.json.write_text(json.dumps(content, indent=1) + "\n")

    if device != "cpu" and (words or not options.words):
        bench = Bench(device)
        content["ceilings"] = {**bench.operations, "bytes": bench.bytes}
        units = ", ".join(f"{name} {rate / 1e12:.0f} T/s" for name, rate in bench.operations.items())
        print(f"{bench.info}: ceilings: {units or 'no matrix units'}; copy {bench.bytes / 1e12:.3g} TB/s")
        print(f"{'':<64}{'time':>9}{'rate':>14}{'share':>6}{'error':>9}", flush=True)
        found = measured(bench, sizes, is_wanted, until)
        bench.close()
        write()
    if not words:
        costs: list[Figure] = []
        for figure in figures(Setting(device, "high", options.seconds)):
            costs.append(figure)
            print(f"{figure.name:<80}{figure.shown:>10}  {figure.note}", flush=True)
        content["figures"] = [asdict(figure) for figure in costs]
        write()
    found = beside(found, sizes, until)
    write()
    print(f"{time.perf_counter() - started:.0f} s in all")


if __name__ == "__main__":
    main()
