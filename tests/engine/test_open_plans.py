"""Plans with open sizes: one plan and one set of kernels give what plans for each size give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vkml
import vkml.onnx
from tests.engine.open_graphs import check as check_open_graph
from tests.engine.open_graphs import open_graph, open_plans
from tests.passes.test_fuse import evaluate
from tests.passes.test_open_sizes import MODELS
from vkml.engine.programs import VulkanBound
from vkml.engine.recorded import BINDINGS_KEPT
from vkml.engine.sketch import Sketch
from vkml.ir import Graph

SIZES = 8
"""Sets of sizes that each model runs with."""


def feed_of(graph: Graph, numbers: dict[str, int], seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    feed = {}
    for value in graph.inputs:
        shape = tuple(numbers[dim] if isinstance(dim, str) else dim for dim in value.type.shape or ())
        if value.type.dtype.is_integer:
            feed[value.name] = rng.integers(0, 100, shape).astype(value.type.dtype.storage)
        else:
            feed[value.name] = rng.standard_normal(shape).astype(value.type.dtype.storage)
    return feed


def dimensions(graph: Graph) -> list[str]:
    return sorted({dim for value in graph.inputs for dim in value.type.shape or () if isinstance(dim, str)})


@pytest.mark.parametrize("name", MODELS)
def test_results_are_those_of_known_sizes(name: str, vulkan_device_name: str) -> None:
    graph = MODELS[name]()
    data = vkml.onnx.save_graph(graph)
    names = dimensions(graph)
    rng = np.random.default_rng(11)
    options = vkml.SessionOptions(guard_bytes=256)  # a kernel that writes outside of its buffers is an error
    with (
        vkml.InferenceSession(data, options, devices=vulkan_device_name, precision="highest") as session,
        vkml.InferenceSession(data, devices="cpu") as reference,
    ):
        for turn in range(SIZES):
            numbers = {
                each: int(size) for each, size in zip(names, rng.integers(2, 40, len(names)), strict=True)
            }
            feed = feed_of(graph, numbers, turn)
            for got, expected in zip(session.run(None, feed), reference.run(None, feed), strict=True):
                np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-5, err_msg=str(numbers))
        assert open_plans(session), "no plan stayed open"


@pytest.mark.parametrize("seed", range(100, 105))
def test_random_graphs_of_all_sizes(seed: int, vulkan_device_name: str) -> None:
    check_open_graph(open_graph(seed), vulkan_device_name)


def test_a_growing_past_makes_nothing_new(vulkan_device_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the second length no kernel is compiled, no plan made; commands are kept of a few lengths."""
    graph = MODELS["gpt_with_past"]()
    made: list[int] = []
    compiled = vkml.engine.recorded.compile_kernels

    def counted(*args: Any, **rest: Any) -> Any:
        made.append(1)
        return compiled(*args, **rest)

    monkeypatch.setattr(vkml.engine.recorded, "compile_kernels", counted)
    data = vkml.onnx.save_graph(graph)
    with (
        vkml.InferenceSession(data, devices=vulkan_device_name) as session,
        vkml.InferenceSession(data, devices="cpu") as reference,
    ):
        feed, kernels = feed_of(graph, {"batch": 1, "new": 1, "past": 4}, 0), 0
        for past in range(4, 40):
            results = session.run(None, feed)
            if past == 5:
                kernels = len(made)
            if past in (4, 5, 6, 16, 17, 32, 33, 39):
                for got, expected in zip(results, reference.run(None, feed), strict=True):
                    np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-5, err_msg=str(past))
            kept = {value.name: each for value, each in zip(session.get_outputs(), results, strict=True)}
            feed = {
                "input_ids": np.array([[int(kept["logits"].argmax())]]),
                **{name.replace("present", "past"): each for name, each in kept.items() if name != "logits"},
            }
        assert len(made) == kernels, "one plan for the first length, one for all others"
        [plan] = open_plans(session)
        for program in plan.programs:
            if isinstance(program, VulkanBound):
                assert 1 < len(program._bindings) <= BINDINGS_KEPT


def test_sizes_of_0_and_1_are_plans_of_their_own(device_name: str) -> None:
    graph = MODELS["broadcast"]()
    data = vkml.onnx.save_graph(graph)
    with vkml.InferenceSession(data, devices=device_name) as session:
        for length in (5, 6, 1, 7, 0, 8, 1, 9):
            feed = feed_of(graph, {"batch": 2, "length": length}, length)
            for got, expected in zip(session.run(None, feed), evaluate(graph, feed), strict=True):
                np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-5, err_msg=str(length))
        assert len(open_plans(session)) == 1


def test_a_plan_is_not_taken_for_sizes_that_it_does_not_hold_for(device_name: str) -> None:
    """Inputs that agreed in a size that the model does not tie together, and then do not."""
    sketch = Sketch("free", 17)
    x, y = sketch.input("x", ("n", None)), sketch.input("y", ("n", None))
    graph = sketch.finish(sketch.node("Concat", x, y, axis=1), sketch.node("Relu", x))
    data = vkml.onnx.save_graph(graph)
    with vkml.InferenceSession(data, devices=device_name) as session:
        for left, right in ((3, 4), (5, 5), (6, 7), (7, 6), (5, 5)):
            feed = {
                "x": np.arange(2 * left, dtype=np.float32).reshape(2, left) - 3,
                "y": np.ones((2, right), np.float32),
            }
            joined, positive = session.run(None, feed)
            np.testing.assert_array_equal(joined, np.concatenate([feed["x"], feed["y"]], 1))
            np.testing.assert_array_equal(positive, np.maximum(feed["x"], 0))


def test_nodes_on_the_cpu_are_made_for_each_size(device_name: str) -> None:
    """What has no kernel runs on the CPU in a plan that stays open, and the report says so."""
    sketch = Sketch("mixed", 17)
    x = sketch.input("x", ("n", 6))
    y = sketch.node("Relu", x)
    det = sketch.node(
        "Unsqueeze", sketch.node("Cos", sketch.node("Cast", y, to=11)), sketch.constant(np.zeros(1, np.int64))
    )
    z = sketch.node(
        "Mul",
        y,
        sketch.node("Cast", sketch.node("Squeeze", det, sketch.constant(np.zeros(1, np.int64))), to=1),
    )
    data = vkml.onnx.save_graph(sketch.finish(z))
    options = vkml.SessionOptions()
    options.log_severity_level = 4
    with vkml.InferenceSession(data, options, devices=device_name) as session:
        for n in (2, 3, 7, 12, 3):
            feed = np.linspace(-1, 1, 6 * n, dtype=np.float32).reshape(n, 6)
            [got] = session.run(None, {"x": feed})
            positive = np.maximum(feed, 0)
            expected = positive * np.cos(positive.astype(np.float64)).astype(np.float32)
            np.testing.assert_allclose(got, expected, rtol=1e-6)
        [plan] = open_plans(session)
        assert {program.device for program in plan.programs} == {device_name, "cpu"}
        assert [step for step in session.report({"n": 5}).steps if step.device == "cpu"]


def test_wrong_shapes_keep_no_plan_from_staying_open(device_name: str) -> None:
    sketch = Sketch("sum", 17)
    x, y = sketch.input("x", ("n", "k")), sketch.input("y", ("m", "k"))
    data = vkml.onnx.save_graph(sketch.finish(sketch.node("Add", x, y)))
    with vkml.InferenceSession(data, devices=device_name) as session:
        for n, m in ((2, 2), (3, 4), (5, 5), (6, 7), (8, 8)):
            feed = {"x": np.ones((n, 4), np.float32), "y": np.full((m, 4), 2, np.float32)}
            if n != m:
                with pytest.raises(vkml.Error, match="do not broadcast"):
                    session.run(None, feed)
            else:
                np.testing.assert_array_equal(session.run(None, feed)[0], np.full((n, 4), 3, np.float32))
        assert len(open_plans(session)) == 1


def test_sizes_that_become_floats_are_known(device_name: str) -> None:
    """What divides a size as a float has plans for known sizes: Resize by a computed scale."""
    sketch = Sketch("scaled", 18)
    x = sketch.input("x", (1, 1, 4, "n"))
    size = sketch.node("Cast", sketch.node("Shape", x, start=3), to=1)
    scale = sketch.node("Div", sketch.constant(np.array([12], np.float32)), size)
    ones = sketch.constant(np.ones(3, np.float32))
    scales = sketch.node("Concat", ones, scale, axis=0)
    y = sketch.node("Resize", x, "", scales, mode="nearest")
    data = vkml.onnx.save_graph(sketch.finish(y))
    with vkml.InferenceSession(data, devices=device_name) as session:
        for n in (3, 4, 6, 12, 3):
            feed = np.arange(4 * n, dtype=np.float32).reshape(1, 1, 4, n)
            np.testing.assert_array_equal(session.run(None, {"x": feed})[0], feed.repeat(12 // n, axis=3))
