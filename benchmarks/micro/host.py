"""What launches, trips of loops and transfers cost, from the host."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

import vkml
import vkml.onnx
from benchmarks.micro.runs import Setting, median_run, timed_runs
from benchmarks.models import chain_add
from vkml.engine.sketch import Sketch
from vkml.ir import dtypes
from vkml.ir.graph import Graph
from vkml.ir.wording import duration


@dataclass(frozen=True)
class Figure:
    """One result."""

    name: str
    value: float
    """Seconds where `unit` is "s", else a ratio."""
    unit: str = "s"
    note: str = ""

    @property
    def shown(self) -> str:
        return duration(self.value) if self.unit == "s" else f"{self.value:.3g} {self.unit}"


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


def figures(setting: Setting) -> Iterator[Figure]:
    """What launches cost, one figure after the other."""
    launches = timed_runs(chain_add(1), setting, optimises=True)
    note = f"p95 {duration(float(np.percentile(launches, 95)))}"
    yield Figure("chain_add_1, host to host", float(np.median(launches)), note=note)
    short, long = (median_run(chain_add(count), setting) for count in (10, 1000))
    yield Figure("one Add more in a chain, fusion off", (long - short) / 990)
    yield Figure("chain_add_1000, fusion off, for each Add", long / 1000)
    fused = timed_runs(chain_add(1000), setting, optimises=True)
    yield Figure("chain_add_1000, fused", float(np.median(fused)))
    yield Figure("record one dispatch with its barrier, once", recording(setting))
    yield from residency(setting)
    yield from trips(setting)
