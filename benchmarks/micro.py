"""Micro-benchmarks through the public API: what a launch, a byte and a multiplication cost on one device.

``python -m benchmarks.micro [--device NAME]``. Everything but the launch is a slope: the same model with few
and with many repetitions of one operator, fusion off, its big tensors made on the device from one number and
reduced to one number there, so that transfers and the launch cancel out.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import vkml
import vkml.onnx
from benchmarks.models import chain_add
from benchmarks.report import machine
from vkml.cli.output import console, duration, show_table, table
from vkml.engine.sketch import Sketch
from vkml.ir import dtypes
from vkml.ir.graph import Graph

ELEMENTWISE_SIZES = (1 << 12, 1 << 16, 1 << 20, 1 << 24, 1 << 26)
MATMUL_SIZE = 4096


@dataclass(frozen=True)
class Figure:
    """One result."""

    name: str
    seconds: float
    """Of one launch or one operator."""
    rate: float = 0.0
    unit: str = ""


@dataclass(frozen=True)
class Setting:
    """Where and how long to measure."""

    device: str
    precision: str
    seconds: float


def median_run(graph: Graph, setting: Setting, *, fuses: bool = False) -> tuple[float, float]:
    """Median seconds of a run, and seconds from nothing to the end of the first run."""
    model = vkml.onnx.save_graph(graph)
    assert model is not None
    options = vkml.SessionOptions()
    if not fuses:
        options.graph_optimization_level = vkml.GraphOptimizationLevel.ORT_DISABLE_ALL
    feed = {value.name: np.zeros(value.type.dims, np.float32) for value in graph.inputs}
    started = time.perf_counter()
    with vkml.InferenceSession(
        model, options, devices=setting.device, precision=setting.precision
    ) as session:
        session.run(None, feed)
        first = time.perf_counter() - started
        for _ in range(3):
            session.run(None, feed)
        taken: list[float] = []
        until = time.perf_counter() + setting.seconds
        while len(taken) < 5 or (time.perf_counter() < until and len(taken) < 5000):
            started = time.perf_counter()
            session.run(None, feed)
            taken.append(time.perf_counter() - started)
    return float(np.median(taken)), first


def slope(build: Callable[[int], Graph], few: int, many: int, setting: Setting) -> float:
    """Seconds that one more repetition costs."""
    return max(
        1e-12, (median_run(build(many), setting)[0] - median_run(build(few), setting)[0]) / (many - few)
    )


def _between(
    start: Callable[[Sketch, str], str], repeat: Callable[[Sketch, str, int], str], count: int
) -> Graph:
    """One number → a big tensor → `count` operators → one number."""
    sketch = Sketch("micro")
    x = sketch.input("x", (1,))
    value = start(sketch, x)
    for index in range(count):
        value = repeat(sketch, value, index)
    sketch.output(sketch.node("ReduceMax", value, keepdims=0), "y", (), dtypes.FLOAT32)
    return sketch.finish()


def elementwise(elements: int) -> Callable[[int], Graph]:
    """Repetitions of one addition over so many elements."""
    side = 1 << (elements.bit_length() - 1) // 2

    def start(sketch: Sketch, x: str) -> str:
        return sketch.node("Add", sketch.constant(np.zeros((side, elements // side), np.float32)), x)

    def repeat(sketch: Sketch, value: str, index: int) -> str:
        return sketch.node("Add", value, "x")

    return lambda count: _between(start, repeat, count)


def transposition(elements: int) -> Callable[[int], Graph]:
    """Repetitions of transposing a square matrix: each a copy in another order."""
    side = int(elements**0.5)

    def start(sketch: Sketch, x: str) -> str:
        return sketch.node("Add", sketch.constant(np.zeros((side, side), np.float32)), x)

    def repeat(sketch: Sketch, value: str, index: int) -> str:
        # The addition keeps two transpositions from cancelling each other out.
        return sketch.node("Add", sketch.node("Transpose", value, perm=(1, 0)), "x")

    return lambda count: _between(start, repeat, count)


def products(size: int) -> Callable[[int], Graph]:
    """Repetitions of a product with one constant square matrix."""
    weight = (
        np.random.default_rng(0).standard_normal((size, size), np.float32) / np.float32(size**0.5)
    ).astype("f4")

    def start(sketch: Sketch, x: str) -> str:
        sketch.constant(weight, "weight")
        return sketch.node("Add", "weight", x)

    def repeat(sketch: Sketch, value: str, index: int) -> str:
        return sketch.node("MatMul", value, "weight")

    return lambda count: _between(start, repeat, count)


def figures(setting: Setting, matmul_size: int, sizes: tuple[int, ...]) -> list[Figure]:
    """All micro-benchmarks, in the order of the table."""
    launch, _ = median_run(chain_add(1), setting)
    found = [Figure("one Add of one number, host to host", launch)]
    short, first_short = median_run(chain_add(10), setting)
    long, first_long = median_run(chain_add(1000), setting)
    found.append(Figure("one Add more in a chain, fusion off", (long - short) / 990))
    # Kernels are in the cache by now, so what grows with the chain is planning and recording.
    found.append(Figure("plan and record one Add, once", max(0.0, first_long - first_short) / 990))
    for elements in sizes:
        taken = slope(elementwise(elements), 4, 24, setting)
        found.append(Figure(f"Add, {elements:,} floats", taken, 8 * elements / taken / 1e9, "GB/s"))
    taken = slope(transposition(sizes[-1]), 4, 12, setting) - slope(elementwise(sizes[-1]), 4, 12, setting)
    taken = max(taken, 1e-12)
    found.append(Figure(f"Transpose, {sizes[-1]:,} floats", taken, 8 * sizes[-1] / taken / 1e9, "GB/s"))
    taken = slope(products(matmul_size), 1, 4, setting)
    rate = 2 * matmul_size**3 / taken / 1e12
    found.append(Figure(f"MatMul {matmul_size}³ at precision {setting.precision}", taken, rate, "TFLOP/s"))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.micro", description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="highest", choices=("highest", "high", "medium"))
    parser.add_argument("--seconds", type=float, default=1.0, help="time for each point")
    parser.add_argument("--matmul", type=int, default=MATMUL_SIZE, metavar="N", help="side of the matrices")
    parser.add_argument(
        "--largest", type=int, default=ELEMENTWISE_SIZES[-1], metavar="N", help="most elements"
    )
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    setting = Setting(options.device, options.precision, options.seconds)
    sizes = tuple(size for size in ELEMENTWISE_SIZES if size <= options.largest) or (options.largest,)
    found = figures(setting, options.matmul, sizes)
    rows = table("what", "time", "rate", right=("time", "rate"))
    for figure in found:
        rows.add_row(
            figure.name, duration(figure.seconds), f"{figure.rate:.3g} {figure.unit}" if figure.unit else ""
        )
    show_table(console(), rows, f"device {options.device}")
    if options.json:
        content: dict[str, Any] = {"machine": machine(), "figures": [asdict(figure) for figure in found]}
        options.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
