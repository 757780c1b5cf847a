"""``python -m benchmarks.arrays``: calls of `vkml.ops` on each device beside NumPy's."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import vkml
from vkml.cli.output import console, show_table, table
from vkml.ir.wording import duration

Array = np.ndarray[Any, Any]
ADDED = (1024, 1 << 15, 1 << 22)
"""Elements of sums."""
MULTIPLIED = (32, 1024)
"""Rows of square matrices."""


@dataclass(frozen=True)
class Timing:
    """A function of arrays of a size.

    Attributes:
        what: function and size.
        seconds: of a call, the best of several turns, by device; NumPy's under "numpy".
    """

    what: str
    seconds: dict[str, float]


def timings(devices: list[str], turn: float = 0.2, turns: int = 7) -> Iterator[Timing]:
    """Times sums and products, all ways in turns.

    Args:
        devices: names.
        turn: seconds.
        turns: of each way.
    """
    random = np.random.default_rng(0)
    for what, sizes in (("add", ADDED), ("matmul", MULTIPLIED)):
        for size in sizes:
            shape = (size,) if what == "add" else (size, size)
            a, b = (random.standard_normal(shape, np.float32) for _ in range(2))
            out = np.empty_like(a)
            ways: dict[str, Callable[[], Any]] = {
                device: partial(getattr(vkml.ops, what), a, b, out=out, device=device) for device in devices
            }
            ways["numpy"] = partial(getattr(np, what), a, b, out=out)
            best = dict.fromkeys(ways, float("inf"))
            for _ in range(turns):
                for name, call in ways.items():
                    best[name] = min(best[name], _seconds(call, turn))
            yield Timing(f"{what} {' x '.join(map(str, shape))}", best)


def _seconds(call: Callable[[], Any], turn: float) -> float:
    call()
    start, count = time.perf_counter(), 0
    while (taken := time.perf_counter() - start) < turn:
        call()
        count += 1
    return taken / count


def main() -> None:
    """Prints the times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", action="append", help="a name of vkml.devices(); all where left out")
    wanted = parser.parse_args().device or [device.name for device in vkml.devices()]
    shown = table("function", *wanted, "numpy")
    for timing in timings(wanted):
        shown.add_row(timing.what, *(duration(timing.seconds[name]) for name in (*wanted, "numpy")))
    show_table(console(), shown)


if __name__ == "__main__":
    main()
