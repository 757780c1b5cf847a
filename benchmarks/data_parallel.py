"""``python -m benchmarks.data_parallel``: training steps on one device and on several.

With as many samples a device (so many times the work should take as long) and with as many altogether (the
same work, shared). Data come from the host and losses are read; what is compared begins with the same
weights, runs in turns, and has to end with the same losses where the batches are the same.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import vkml
from benchmarks.report import machine
from benchmarks.training import CASES, WARM_UP, Case, Step, initial, set_precision
from vkml import Tensor, nn, optim
from vkml.cli.output import console, show_table, table
from vkml.ir.wording import duration

TOLERANCE = 1e-3
"""Relative difference of losses that goes unmarked: sums are taken in another order."""


@dataclasses.dataclass
class Measured:
    """Steps on some devices; times in seconds."""

    case: str
    devices: list[str]
    batch: int
    first: float = 0.0
    """Of all warm-up steps."""
    steps: list[float] = dataclasses.field(default_factory=list)
    loss: float = 0.0
    """Behind the warm-up steps."""

    @property
    def median(self) -> float:
        """Of a step."""
        return float(np.median(self.steps))

    @property
    def rate(self) -> float:
        """Samples a second."""
        return self.batch / self.median


def step_of(name: str, case: Case, devices: Sequence[str], bucket: float, is_captured: bool) -> Step:
    """A training step on some devices."""
    model = case.layers(nn)
    model.load_state_dict({key: vkml.tensor(value) for key, value in initial(name).items()})
    model.to(devices[0])
    optimizer = getattr(optim, case.optimizer)(model.parameters(), **case.settings)
    computed: nn.Module = model
    if len(devices) > 1:
        computed = nn.DataParallel(model, devices, bucket_cap_mb=bucket)
    loss_of = nn.CrossEntropyLoss()

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        given = x if len(devices) > 1 else x.to(devices[0])
        loss: Tensor = loss_of(computed(given), y.to(devices[0]))
        loss.backward()
        optimizer.step()
        return loss

    run = vkml.jit(step) if is_captured else step
    return lambda x, y: float(run(vkml.tensor(x), vkml.tensor(y)).item())


def measure(
    name: str, devices: Sequence[str], seconds: float, bucket: float = 25, is_captured: bool = True
) -> list[Measured]:
    """Steps on one device; on all, with as many samples a device; on all, with as many altogether.

    Args:
        name: of a case of `benchmarks.training`.
        devices: the first is the one that computes alone.
        seconds: for each.
        bucket: see `vkml.nn.DataParallel`.
        is_captured: whether by `vkml.jit`.
    """
    case = CASES[name]
    wide = dataclasses.replace(case, batch=case.batch * len(devices))
    found: list[Measured] = []
    runs: list[tuple[Step, list[Any]]] = []
    for used, given in ((devices[:1], case), (devices, wide), (devices, case)):
        entry = Measured(name, list(used), given.batch)
        step, batches = step_of(name, given, used, bucket, is_captured), given.batches()
        start = time.perf_counter()
        for number in range(WARM_UP):
            entry.loss = step(*batches[number % len(batches)])
        entry.first = time.perf_counter() - start
        found.append(entry)
        runs.append((step, batches))
    for _ in range(max(1, round(seconds / 0.2))):
        for entry, (step, batches) in zip(found, runs, strict=True):
            step(*batches[0])  # clocks and caches settle
            end = time.perf_counter() + 0.2
            while (start := time.perf_counter()) < end:
                step(*batches[len(entry.steps) % len(batches)])
                entry.steps.append(time.perf_counter() - start)
    return found


def show(name: str, found: Sequence[Measured]) -> None:
    """The table of a case; the ratio is of samples a second."""
    columns = ("batch", "step", "samples/s", "ratio", "warm-up", "steps", "loss")
    rows = table("devices", *columns, right=columns)
    alone = found[0]
    for entry in found:
        same = entry.batch == alone.batch
        differs = same and abs(entry.loss - alone.loss) > TOLERANCE * abs(alone.loss)
        rows.add_row(
            ", ".join(entry.devices),
            str(entry.batch),
            duration(entry.median),
            f"{entry.rate:.0f}",
            f"{entry.rate / alone.rate:.2f}×",
            duration(entry.first),
            str(len(entry.steps)),
            f"{entry.loss:.5f}{' (!)' if differs else ''}",
        )
    show_table(console(), rows, name)
    console().print()


def main() -> None:
    """Prints a table a case."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.data_parallel", description=__doc__)
    chosen = ("mlp_b512", "resnet18_b64", "transformer_b16")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}")
    gpus = [device.name for device in vkml.devices() if device.name != "cpu"]
    parser.add_argument("--devices", nargs="+", default=gpus, help="all GPUs by default")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each row")
    parser.add_argument("--bucket", type=float, default=25.0, metavar="MiB", help="of gradients")
    parser.add_argument("--eager", action="store_true", help="without vkml.jit")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--precision", choices=("highest", "high", "medium"), default="highest")
    options = parser.parse_args()
    if len(options.devices) < 2:
        parser.error(f"several devices are compared with the first of them; given: {options.devices}")
    set_precision(options.precision)
    unknown = [name for name in options.cases if name not in CASES]
    if unknown:
        parser.error(f"there is no case {unknown[0]}; there are {', '.join(CASES)}")
    everything = []
    for name in options.cases or chosen:
        found = measure(name, options.devices, options.seconds, options.bucket, not options.eager)
        show(name, found)
        everything += found
    if options.json:
        entries = [
            {**dataclasses.asdict(entry), "steps": len(entry.steps), "median": entry.median}
            for entry in everything
        ]
        options.json.write_text(json.dumps({"machine": machine(), "data_parallel": entries}, indent=1) + "\n")


if __name__ == "__main__":
    main()
