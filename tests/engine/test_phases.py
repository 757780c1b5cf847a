"""Levels that are phases of one dispatch compute what they do by themselves, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vkml
from benchmarks.models import lstm, mnist_like
from tests.engine.open_graphs import open_graph
from tests.engine.test_recordings import looping
from vkml import nn, optim
from vkml.engine.profile import profiled_steps
from vkml.engine.sketch import Sketch
from vkml.ir import Graph
from vkml.kernels.phases import Phases
from vkml.kernels.spec import Dispatch
from vkml.lowering import horizontal, phases
from vkml.onnx import save_graph
from vkml.tracing import evaluation

Array = np.ndarray[Any, Any]
NEVER, TURNS = 0, 64
"""Of a workgroup in a level, that the tests allow: nearly all of small models is merged."""


@pytest.fixture(autouse=True)
def merged(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Phases]]:
    """What was merged in the test, which is to be something."""
    found: list[Phases] = []

    def noting(given: Phases) -> Dispatch:
        found.append(given)
        return made(given)

    made = phases.merged
    monkeypatch.setattr(phases, "merged", noting)
    yield found
    phases.forced = None
    assert found


def feed_of(graph: Graph) -> dict[str, Array]:
    rng = np.random.default_rng(3)
    return {
        value.name: rng.standard_normal([int(size) for size in value.type.shape], np.float32)
        for value in graph.inputs
    }


def both(
    source: bytes, device: str, feeds: Sequence[dict[str, Array]], guard_bytes: int = 256
) -> list[list[list[Array]]]:
    """Results of all feeds with levels as they are, and merged."""
    found = []
    for turns in (NEVER, TURNS):
        phases.forced = turns
        options = vkml.SessionOptions(guard_bytes=guard_bytes)
        with vkml.InferenceSession(source, options, devices=device) as session:
            found.append([session.run(None, feed) for feed in feeds])
    return found


def check_same(runs: Sequence[Sequence[Sequence[Array]]]) -> None:
    for plain, merged in zip(*runs, strict=True):
        assert [each.tobytes() for each in plain] == [each.tobytes() for each in merged]


def unfused(count: int) -> Graph:
    """Additions one after the other, to rows that differ, so that a launch each stays."""
    sketch = Sketch("unfused")
    x = sketch.input("x", (1, 300))
    for _ in range(count):
        total = sketch.node("ReduceSum", x, sketch.constant(np.array([1], np.int64)), keepdims=1)
        x = sketch.node("Add", x, sketch.node("Tanh", total))
    return sketch.finish(x)


def softmaxes() -> Graph:
    """Products and rows that other threads read than wrote."""
    rng = np.random.default_rng(0)
    sketch = Sketch("softmaxes")
    x = sketch.input("x", (7, 33))
    for _ in range(4):
        weight = sketch.constant(rng.standard_normal((33, 33)).astype(np.float32))
        x = sketch.node("Softmax", sketch.node("MatMul", x, weight), axis=0)
        x = sketch.node("Transpose", sketch.node("Transpose", x, perm=(1, 0)), perm=(1, 0))
    return sketch.finish(x)


def transposes() -> Graph:
    """Elementwise launches that read what other threads have written; nothing else has them wait."""
    sketch = Sketch("transposes")
    x = sketch.input("x", (40, 40))
    for _ in range(8):
        x = sketch.node("Tanh", sketch.node("Add", x, sketch.node("Transpose", x, perm=(1, 0))))
    return sketch.finish(x)


MODELS: dict[str, Callable[[], Graph]] = {
    "mnist": mnist_like,
    "unfused": lambda: unfused(12),
    "softmaxes": softmaxes,
    "transposes": transposes,
    "lstm": lambda: lstm(1, 24, 5),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_are_the_same_bit_for_bit(vulkan_device_name: str, name: str) -> None:
    graph = MODELS[name]()
    feed = feed_of(graph)
    other = {key: array + np.float32(1) for key, array in feed.items()}
    check_same(both(save_graph(graph), vulkan_device_name, [feed, other, feed]))


def test_barriers_are_spared(vulkan_device_name: str) -> None:
    source = save_graph(unfused(12))
    barriers = []
    for turns in (NEVER, TURNS):
        phases.forced = turns
        with vkml.InferenceSession(source, devices=vulkan_device_name) as session:
            barriers.append(session.report().barriers)
    assert barriers[0] >= 12
    assert barriers[1] <= barriers[0] // 3


@pytest.mark.parametrize("seed", range(7))
def test_random_graphs_are_the_same_bit_for_bit(vulkan_device_name: str, seed: int) -> None:
    """With known sizes first, then with open ones."""
    opened = open_graph(seed)
    feeds = [opened.feed(run) for run in range(3)]
    check_same(both(save_graph(opened.graph), vulkan_device_name, feeds))


@pytest.mark.parametrize("optimizer", [optim.SGD, optim.RMSprop])
def test_a_captured_training_step_is_the_same_bit_for_bit(
    vulkan_device_name: str,
    optimizer: Callable[..., optim.Optimizer],
    merged: list[Phases],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Parameters are written over themselves, in the dispatch that has read them."""
    monkeypatch.setattr(horizontal, "LEAST_MEMBERS", 99)  # tables of tensors are no phases
    rng = np.random.default_rng(0)
    x, classes = rng.standard_normal((4, 8, 12), np.float32), rng.integers(0, 5, (4, 8))

    def trained() -> tuple[list[float], list[bytes]]:
        vkml.manual_seed(0)
        model = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 5)).to(vulkan_device_name)
        made = optimizer(model.parameters(), lr=0.05)
        loss_of = nn.CrossEntropyLoss()

        @vkml.jit(device=vulkan_device_name)
        def step(x: Any, y: Any) -> Any:
            made.zero_grad()
            loss = loss_of(model(x), y)
            loss.backward()
            made.step()
            return loss

        losses = [step(x[number % 4], classes[number % 4]).item() for number in range(12)]
        return losses, [each.detach().numpy().tobytes() for each in model.parameters()]

    plain = trained()
    evaluation._programs.clear()  # else the plans that there are serve
    assert not merged
    phases.forced = TURNS
    assert trained() == plain
    assert plain[0][-1] < plain[0][0]
    assert len(merged) > 1


def test_trips_of_a_loop_are_the_same_bit_for_bit(vulkan_device_name: str) -> None:
    """Of a number that is known when it runs, and where each trip says whether there is another."""
    for more in ("Identity (go_on)", "Less (largest, top)"):
        feeds = [{"n": np.array(n), "go": np.array(True), "x": np.ones((40, 4), np.float32)} for n in (2, 5)]
        check_same(both(looping(more, "after_1"), vulkan_device_name, feeds, guard_bytes=0))


def test_a_profile_names_the_nodes_of_all_phases(vulkan_device_name: str, tmp_path: Path) -> None:
    options = vkml.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "trace")
    phases.forced = TURNS
    graph = softmaxes()
    with vkml.InferenceSession(save_graph(graph), options, devices=vulkan_device_name) as session:
        session.run(None, feed_of(graph))
        steps = profiled_steps([session.traced_runs])
        session.end_profiling()
    assert any(step.variant.startswith("one workgroup: ") for step in steps)
    named = {label for step in steps for label in step.nodes}
    with vkml.InferenceSession(save_graph(graph), devices=vulkan_device_name) as session:
        assert named == {label for step in session.report().steps for label in step.nodes}
    assert sum(step.operators.count("Softmax") for step in steps) == 4
