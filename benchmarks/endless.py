"""``python -m benchmarks.endless``: a small training loop without an end: memory and time of its steps.

A perceptron with dropout, Adam, and a schedule that changes the learning rate at every step, fed batches of
the host whose losses are read: all that a step could leave something behind of. Steps are counted in parts
whose median time and memory at the end are printed; the last part should be as the first settled one.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

import vkml
from benchmarks.growth import resident_bytes
from benchmarks.report import machine
from vkml import nn, optim
from vkml.cli.output import console, show_table, table
from vkml.engine.devices import open_device
from vkml.ir.wording import duration

WAYS = ("jit", "eager")
PARTS = 10
BATCH, FEATURES, CLASSES = 16, 32, 4


@dataclass(frozen=True)
class Part:
    """Some of the steps, one behind another.

    Attributes:
        device: where they ran.
        way: "jit" or "eager".
        steps: how many there have been at its end.
        seconds: median of a step's.
        host_bytes: resident memory of the process at its end.
        device_bytes: allocated on the device at its end; 0 for the CPU.
        objects: that Python's collector watches, at its end.
        loss: of its last step.
    """

    device: str
    way: str
    steps: int
    seconds: float
    host_bytes: int
    device_bytes: int
    objects: int
    loss: float


def endless(device: str, way: str, steps: int, parts: int = PARTS) -> Iterator[Part]:
    """Trains, and says what each part of the steps took and left.

    Args:
        device: where.
        way: "jit" or "eager".
        steps: in all.
        parts: into how many they are divided.
    """
    vkml.manual_seed(0)
    on = None if device == "cpu" else open_device(vkml.vulkan.find_device(device, True))
    model = nn.Sequential(
        nn.Linear(FEATURES, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, CLASSES)
    ).to(device)  # fmt: skip
    optimizer = optim.Adam(model.parameters(), lr=1e-3)
    schedule = optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    loss_of = nn.CrossEntropyLoss()

    def step(x: vkml.Tensor, y: vkml.Tensor) -> vkml.Tensor:
        optimizer.zero_grad()
        loss: vkml.Tensor = loss_of(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    captured = vkml.jit(step, device=device)
    rng = np.random.default_rng(0)
    projection = rng.standard_normal((FEATURES, CLASSES), np.float32)
    each = steps // parts
    for part in range(parts):
        times = np.empty(each)
        for at in range(each):
            x = rng.standard_normal((BATCH, FEATURES), np.float32)
            y = (x @ projection).argmax(1)
            begin = time.perf_counter()
            if way == "jit":
                loss = float(captured(x, y).item())
            else:
                loss = float(step(vkml.tensor(x, device=device), vkml.tensor(y, device=device)).item())
            schedule.step()
            times[at] = time.perf_counter() - begin
        gc.collect()
        allocated = 0 if on is None else on.allocated_bytes
        watched = len(gc.get_objects())
        median = float(np.median(times))
        yield Part(device, way, (part + 1) * each, median, resident_bytes(), allocated, watched, loss)


def main() -> None:
    """Prints a table for each way, as its parts end."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.endless", description=__doc__)
    parser.add_argument("--device", default=vkml.devices()[0].name)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS, metavar="WAY")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    out, everything = console(), []
    for way in options.ways:
        found = []
        for part in endless(options.device, way, options.steps):
            found.append(part)
            print(
                f"{way}: {part.steps} steps, {duration(part.seconds)} a step, "
                f"{part.host_bytes / 2**20:.1f} MiB, {part.objects} objects",
                flush=True,
            )
        columns = ("step", "host memory", "device memory", "objects", "loss")
        rows = table("steps", *columns, right=("steps", *columns))
        for part in found:
            memory = [f"{count / 2**20:.1f} MiB" for count in (part.host_bytes, part.device_bytes)]
            rows.add_row(
                str(part.steps), duration(part.seconds), *memory, str(part.objects), f"{part.loss:.3f}"
            )
        show_table(out, rows, f"{way} on {options.device}")
        everything += found
    if options.json:
        content = {"machine": machine(), "endless": [asdict(part) for part in everything]}
        options.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
