"""``python -m benchmarks.architectures``: networks that torch.onnx exports, beside onnxruntime.

Each is run by both in turns, from arrays to arrays. Networks of open sizes are given one size again and
again, the growing decoder another one at each run. Errors are the largest differences from one run of
onnxruntime's CPU provider, relative to the largest value.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.architectures.catalogue import ALL, ARCHITECTURES, LIBRARIES, TIMM, Feed, files_of
from benchmarks.measure import TOLERANCE, Measured, Peer, Prepared, measure
from benchmarks.peers import make_peers
from benchmarks.peers.onnxruntime import OnnxRuntimeCpu
from benchmarks.peers.vkml import Vkml
from benchmarks.report import as_json, machine
from vkml.cli.output import console, show_table, table
from vkml.ir.wording import duration

QUANTIZED_TOLERANCE = 0.1
"""Rounding differs, and by a step of the greatest value somewhere: of random weights errors add up."""


@dataclass(frozen=True)
class Cycled:
    """A peer that is given one feed after another."""

    inner: Peer
    feeds: Sequence[Feed]

    @property
    def name(self) -> str:
        return self.inner.name

    def prepare(self, path: str) -> Prepared:
        ready = self.inner.prepare(path)
        # The first run is compared with others', and begins the second time round, too.
        feeds = itertools.chain([self.feeds[0]] * 2, itertools.cycle(self.feeds))
        return replace(ready, run=lambda _: ready.run(next(feeds)))


def least_ratio(here: Measured, there: Measured) -> float:
    """The other's time over vkml's, of their shortest runs: what else the machine does only adds."""
    return min(there.runs) / min(here.runs)


def main() -> None:
    """Prints a table; a ratio above 1 says that vkml is faster."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.architectures", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="by default all: " + ", ".join(ARCHITECTURES)
    )
    parser.add_argument(
        "--libraries", action="store_true", help="networks of torchvision and transformers instead"
    )
    parser.add_argument("--timm", action="store_true", help="networks of timm instead")
    parser.add_argument(
        "--against",
        metavar="PEER",
        help="what vkml is beside, as of python -m benchmarks; by default onnxruntime",
    )
    parser.add_argument("--device", default="cpu", help="where vkml runs")
    parser.add_argument("--threads", type=int, default=2, help="of each runtime")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each runtime and network")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    options = parser.parse_args()
    if unknown := set(options.names) - ALL.keys():
        parser.error(f"there is no {', '.join(unknown)}; there is {', '.join(ALL)}")
    other = options.against or "onnxruntime"
    columns = ("vkml", other, "ratio", "of medians", "error", "the other's", "by NumPy")
    rows, ratios, figures = table("network", *columns, right=columns), [], []
    out = console()
    chosen = LIBRARIES if options.libraries else TIMM if options.timm else ARCHITECTURES
    for name in options.names or chosen:
        try:
            path, feeds = files_of(name)
        except Exception as problem:  # a library of another release may not export what it did
            out.print(f"{name}: not exported: {type(problem).__name__}: {problem}", markup=False)
            continue
        peers: list[Peer] = [
            Vkml("vkml", options.device, "high", options.threads),
            *(
                make_peers([options.against], options.device)
                if options.against
                else [OnnxRuntimeCpu("onnxruntime", options.threads)]
            ),
        ]
        if len(feeds) > 1:
            peers = [Cycled(peer, feeds) for peer in peers]
        here, there = measure(
            str(path), feeds[0], peers, options.seconds, expected=_expected(path, feeds[0], options.threads)
        )
        for each in (here, there):
            if each.reason:
                out.print(f"{name}: {each.peer}: {each.reason}", markup=False)
        if here.reason or there.reason:
            continue
        figures.append(as_json(name, (here, there), {}))
        ratios.append(least_ratio(here, there))
        rows.add_row(
            name,
            duration(min(here.runs)),
            duration(min(there.runs)),
            f"{ratios[-1]:.2f}",
            f"{there.median / here.median:.2f}",
            *_errors(here, there, is_quantized=ALL[name].is_quantized),
            str(len(by_numpy(path, feeds[0], options.device))),
        )
    show_table(out, rows, "shortest runs")
    if ratios:
        mean = float(np.exp(np.mean(np.log(ratios))))
        out.print(f"geometric mean {mean:.2f}, least {min(ratios):.2f}")
    if options.json:
        options.json.write_text(json.dumps({"machine": machine(), "architectures": figures}, indent=1) + "\n")


def by_numpy(path: Path, feed: Mapping[str, Any], device: str) -> list[str]:
    """Operators of the nodes for which vkml's device has no kernel, one a node."""
    import vkml

    with vkml.InferenceSession(path, devices=device) as session:
        session.run(None, dict(feed))
        return [op for step in session.report().steps if step.variant == "numpy" for op in step.operators]


def _expected(path: Path, feed: Feed, threads: int) -> Sequence[np.ndarray[Any, Any]] | None:
    """What onnxruntime's CPU provider computes once; None where it cannot."""
    try:
        ready = OnnxRuntimeCpu("expected", threads).prepare(str(path))
    except Exception:  # a peer's failure is a result: the row says so where it is a peer
        return None
    try:
        return [np.array(each) for each in ready.run(feed)]
    finally:
        ready.close()


def _errors(here: Measured, there: Measured, *, is_quantized: bool) -> tuple[str, str]:
    """Of vkml, marked where it is large and more than twice the other's, and of the other."""
    assert here.errors is not None and there.errors is not None
    limit = QUANTIZED_TOLERANCE if is_quantized else TOLERANCE
    if np.isfinite(there.errors.largest):
        limit = max(limit, 2 * there.errors.largest)
    mark = "" if here.errors.largest <= limit else " (!)"
    return f"{here.errors.largest:.1e}{mark}", f"{there.errors.largest:.1e}"


if __name__ == "__main__":
    main()
