"""Micro-benchmarks: what a launch, a byte, a multiplication and a load cost on one device.

``python -m benchmarks.micro [--device NAME]``. Operators' figures are slopes: the same model with few and
with many repetitions of one operator, fusion off, its big tensors made on the device from one number and
reduced to one number there, so that transfers and the launch cancel out.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import vkml
import vkml.onnx
from benchmarks.loading import loading
from benchmarks.models import chain_add, model_file
from benchmarks.report import machine
from vkml.cli.output import console, show_table, table
from vkml.engine.sketch import Sketch
from vkml.ir import dtypes
from vkml.ir.graph import Graph
from vkml.ir.wording import duration, size

ELEMENTWISE_SIZES = (1 << 12, 1 << 16, 1 << 20, 1 << 24, 1 << 26)
MATMUL_SIZE = 4096


@dataclass(frozen=True)
class Figure:
    """One result."""

    name: str
    value: float
    """Seconds or bytes where `unit` is "s" or "B", else a rate."""
    unit: str = "s"
    note: str = ""

    @property
    def shown(self) -> str:
        if self.unit == "s":
            return duration(self.value)
        return size(int(self.value)) if self.unit == "B" else f"{self.value:.3g} {self.unit}"


@dataclass(frozen=True)
class Setting:
    """Where and how long to measure."""

    device: str
    precision: str
    seconds: float


def timed_runs(graph: Graph, setting: Setting, *, optimises: bool = False) -> list[float]:
    """Seconds of each of many runs."""
    model = vkml.onnx.save_graph(graph)
    assert model is not None
    options = vkml.SessionOptions()
    if not optimises:
        options.graph_optimization_level = vkml.GraphOptimizationLevel.ORT_DISABLE_ALL
    feed = {value.name: np.zeros(value.tensor.dims, np.float32) for value in graph.inputs}
    with vkml.InferenceSession(
        model, options, devices=setting.device, precision=setting.precision
    ) as session:
        for _ in range(4):
            session.run(None, feed)
        taken: list[float] = []
        until = time.perf_counter() + setting.seconds
        while len(taken) < 5 or (time.perf_counter() < until and len(taken) < 5000):
            started = time.perf_counter()
            session.run(None, feed)
            taken.append(time.perf_counter() - started)
    return taken


def median_run(graph: Graph, setting: Setting) -> float:
    """Median seconds of a run without optimisation."""
    return float(np.median(timed_runs(graph, setting)))


def slope(build: Callable[[int], Graph], few: int, many: int, setting: Setting) -> float:
    """Seconds that one more repetition costs."""
    return max(1e-12, (median_run(build(many), setting) - median_run(build(few), setting)) / (many - few))


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
    """Repetitions of adding to a square matrix transposed: it is read down its columns."""
    side = int(elements**0.5)

    def start(sketch: Sketch, x: str) -> str:
        return sketch.node("Add", sketch.constant(np.zeros((side, side), np.float32)), x)

    def repeat(sketch: Sketch, value: str, index: int) -> str:
        return sketch.node("Add", sketch.node("Transpose", value, perm=(1, 0)), "x")

    return lambda count: _between(start, repeat, count)


def rotation(elements: int) -> Callable[[int], Graph]:
    """Repetitions of swapping a matrix's halves: copies of all of it, by kernels."""
    side = 1 << (elements.bit_length() - 1) // 2
    half = side // 2

    def start(sketch: Sketch, x: str) -> str:
        for name, value in (("zero", 0), ("half", half), ("end", side)):
            sketch.constant(np.array([value], np.int64), name)
        return sketch.node("Add", sketch.constant(np.zeros((side, elements // side), np.float32)), x)

    def repeat(sketch: Sketch, value: str, index: int) -> str:
        upper, lower = (
            sketch.node("Slice", value, a, b, "zero") for a, b in (("zero", "half"), ("half", "end"))
        )
        return sketch.node("Concat", lower, upper, axis=0)

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


def recording(setting: Setting) -> float:
    """Seconds to record one dispatch and its barrier; 0 where nothing is recorded."""
    from vkml.engine.programs import VulkanBound

    model = vkml.onnx.save_graph(chain_add(1000))
    assert model is not None
    options = vkml.SessionOptions()
    options.graph_optimization_level = vkml.GraphOptimizationLevel.ORT_DISABLE_ALL
    with vkml.InferenceSession(model, options, devices=setting.device) as session:
        [plan] = session._runner.plans.kept.values()
        bound = plan.programs[0]
        if not isinstance(bound, VulkanBound):
            return 0.0
        taken = []
        for _ in range(7):
            started = time.perf_counter()
            commands = bound.record()
            taken.append(time.perf_counter() - started)
            commands.free()
        return float(np.median(taken)) / len(bound.program.dispatches)


def loads(setting: Setting, large: str, mnist: Path | None) -> list[Figure]:
    """Time and memory of fresh processes, the second of each with the caches that the first filled."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        path = os.fspath(model_file(large))
        for state in ("cold", "warm"):
            seen = loading(path, setting.device, Path(folder))
            note = f"{size(seen.peak_bytes)} in all; load and first run {duration(seen.seconds)}"
            found.append(Figure(f"loading {large}, {state} caches: memory", seen.grown_bytes, "B", note))
        if mnist is not None:
            loading(os.fspath(mnist), setting.device, Path(folder))
            again = [
                loading(os.fspath(mnist), setting.device, Path(folder), is_watched=False) for _ in range(3)
            ]
            best = sorted(again, key=lambda seen: seen.seconds)[1]
            note = f"with import vkml {duration(best.seconds_with_import)}; median of 3"
            found.append(Figure(f"second process, {mnist.stem}: session, first run", best.seconds, note=note))
    return found


def bound_runs(graph: Graph, setting: Setting) -> list[float]:
    """Seconds of each of many runs whose inputs and outputs stay on the device."""
    model = vkml.onnx.save_graph(graph)
    assert model is not None
    with vkml.InferenceSession(model, devices=setting.device, precision=setting.precision) as session:
        binding = session.io_binding()
        for value in graph.inputs:
            zeros = np.zeros(value.tensor.dims, np.float32)
            given = vkml.OrtValue.ortvalue_from_numpy(zeros, session.device)
            binding.bind_ortvalue_input(value.name, given)
        outputs = [output.name for output in session.get_outputs()]
        for name in outputs:
            binding.bind_output(name, session.device)
        session.run_with_iobinding(binding)
        for name, made in zip(outputs, binding.get_outputs(), strict=True):
            binding.bind_ortvalue_output(name, made)
        for _ in range(4):
            session.run_with_iobinding(binding)
        taken: list[float] = []
        until = time.perf_counter() + setting.seconds
        while time.perf_counter() < until or len(taken) < 10:
            start = time.perf_counter()
            session.run_with_iobinding(binding)
            taken.append(time.perf_counter() - start)
    return taken


def throughput(graph: Graph, setting: Setting, sessions: int, threads: int) -> float:
    """Runs a second of some threads, which share that many sessions."""
    model = vkml.onnx.save_graph(graph)
    assert model is not None
    feed = {value.name: np.zeros(value.tensor.dims, np.float32) for value in graph.inputs}
    made = [
        vkml.InferenceSession(model, devices=setting.device, precision=setting.precision)
        for _ in range(sessions)
    ]
    counts = [0] * threads
    barrier = threading.Barrier(threads)

    def act(number: int) -> None:
        session = made[number % sessions]
        session.run(None, feed)
        barrier.wait()
        until = time.perf_counter() + setting.seconds
        while time.perf_counter() < until:
            session.run(None, feed)
            counts[number] += 1

    at_work = [threading.Thread(target=act, args=(number,)) for number in range(threads)]
    for thread in at_work:
        thread.start()
    for thread in at_work:
        thread.join()
    for session in made:
        session.close()
    return sum(counts) / setting.seconds


def residency(setting: Setting) -> list[Figure]:
    """What it costs to take values from the host and give them there, and what several threads gain."""
    taken = float(np.median(bound_runs(chain_add(1), setting)))
    found = [Figure("chain_add_1, values on the device", taken)]
    through = float(np.median(timed_runs(copying(1 << 24), setting, optimises=True)))
    stays = float(np.median(bound_runs(copying(1 << 24), setting)))
    found.append(Figure("Relu of 64 MiB, host to host", through))
    found.append(Figure("Relu of 64 MiB, values on the device", stays))
    for name, graph in (("chain_add_100", chain_add(100)), ("100 Softmax, 64 rows", softmaxes(100))):
        one = throughput(graph, setting, 1, 1)
        for threads, sessions in ((2, 2), (8, 1)):
            ratio = throughput(graph, setting, sessions, threads) / one
            what = f"{name}: {threads} threads on {sessions} session{'s'[: sessions - 1]}, against one"
            found.append(Figure(what, ratio, "x", f"one: {one:.0f} runs/s"))
    return found


def softmaxes(count: int) -> Graph:
    """Launches one behind the other, of 64 rows each: a large GPU is mostly idle."""
    sketch = Sketch("softmaxes", 17)
    value = sketch.input("x", (64, 256))
    for _ in range(count):
        value = sketch.node("Softmax", value)
    return sketch.finish(value)


def looping(condition_of: str) -> Graph:
    """A Loop over n trips of three launches.

    Args:
        condition_of: what the body computes its condition of: "nothing", one "element" of its result, which
            takes a launch more, or "all" of them.
    """
    body = Sketch("body", 17)
    body.input("number", (), dtypes.INT64)
    condition = body.input("goes_on", (), dtypes.BOOL)
    value = body.input("before", (128, 128))
    half = body.constant(np.float32(0.5))
    for _ in range(3):  # a launch each, for it reads columns where the one before writes rows
        value = body.node("Tanh", body.node("Mul", body.node("Transpose", value, perm=[1, 0]), half))
    if condition_of != "nothing":
        if condition_of == "all":
            least = body.node("ReduceMin", value, keepdims=0)
        else:
            ends = [body.constant(np.array([number, number])) for number in (0, 1)]
            least = body.node(
                "Reshape", body.node("Slice", value, *ends), body.constant(np.zeros(0, np.int64))
            )
        condition = body.node("Less", least, body.constant(np.float32(2)))
    inner = body.finish(condition, value)
    sketch = Sketch("looping", 17)
    names = [
        sketch.input("n", (), dtypes.INT64),
        sketch.input("go", (), dtypes.BOOL),
        sketch.input("x", (128, 128)),
    ]
    return sketch.finish(sketch.node("Loop", *names, body=inner))


def trips(setting: Setting, count: int = 1000) -> list[Figure]:
    """What a trip of a loop costs, with its number known, and with a condition that the device computes."""
    found = []
    for condition_of, kind in (
        ("nothing", "their number known"),
        ("element", "a condition from the device"),
        ("all", "a condition from all 16,384 elements"),
    ):
        model = vkml.onnx.save_graph(looping(condition_of))
        assert model is not None
        feed = {"n": np.array(count), "go": np.array(True), "x": np.zeros((128, 128), np.float32)}
        with vkml.InferenceSession(model, devices=setting.device, precision=setting.precision) as session:
            taken = []
            for _ in range(7):
                start = time.perf_counter()
                session.run(None, feed)
                taken.append(time.perf_counter() - start)
        found.append(Figure(f"Loop of {count} trips of 3 launches, {kind}: a trip", min(taken) / count))
    return found


def copying(elements: int) -> Graph:
    """One Relu."""
    sketch = Sketch("relu", 17)
    return sketch.finish(sketch.node("Relu", sketch.input("x", (elements,))))


def figures(setting: Setting, matmul_size: int, sizes: tuple[int, ...]) -> list[Figure]:
    """The micro-benchmarks of one process, in the order of the table."""
    launches = timed_runs(chain_add(1), setting, optimises=True)
    note = f"p95 {duration(float(np.percentile(launches, 95)))}"
    found = [Figure("chain_add_1, host to host", float(np.median(launches)), note=note)]
    found += residency(setting)
    found += trips(setting)
    short, long = (median_run(chain_add(count), setting) for count in (10, 1000))
    found.append(Figure("one Add more in a chain, fusion off", (long - short) / 990))
    found.append(Figure("chain_add_1000, fusion off, for each Add", long / 1000))
    found.append(Figure("record one dispatch with its barrier, once", recording(setting)))
    for elements in sizes:
        taken = slope(elementwise(elements), 4, 24, setting)
        rate = 8 * elements / taken / 1e12
        found.append(Figure(f"Add, {elements:,} floats", rate, "TB/s", duration(taken)))
    taken = slope(rotation(sizes[-1]), 4, 24, setting)
    rate = 8 * sizes[-1] / taken / 1e12
    found.append(Figure(f"copy, {sizes[-1]:,} floats", rate, "TB/s", duration(taken)))
    taken = slope(transposition(sizes[-1]), 4, 12, setting)
    rate = 8 * sizes[-1] / taken / 1e12
    found.append(Figure(f"Add to a transposed matrix, {sizes[-1]:,} floats", rate, "TB/s", duration(taken)))
    taken = slope(products(matmul_size), 1, 4, setting)
    rate = 2 * matmul_size**3 / taken / 1e12
    name = f"MatMul {matmul_size}³ at precision {setting.precision}"
    found.append(Figure(name, rate, "TFLOP/s", duration(taken)))
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
    parser.add_argument(
        "--load",
        default="matmul_1GB_16layers",
        metavar="MODEL",
        help="what fresh processes load; '' for none",
    )
    parser.add_argument("--mnist", type=Path, metavar="FILE", help="mnist-12.onnx, for the second process")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    setting = Setting(options.device, options.precision, options.seconds)
    sizes = tuple(count for count in ELEMENTWISE_SIZES if count <= options.largest) or (options.largest,)
    found = figures(setting, options.matmul, sizes)
    if options.load:
        found += loads(setting, options.load, options.mnist)
    rows = table("what", "figure", "note", right=("figure",))
    for figure in found:
        rows.add_row(figure.name, figure.shown, figure.note)
    show_table(console(), rows, f"device {options.device}")
    if options.json:
        content: dict[str, Any] = {"machine": machine(), "figures": [asdict(figure) for figure in found]}
        options.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
