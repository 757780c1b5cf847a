"""Fusion: the same results with and without it, random graphs, anchors with tails, cycles."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import vkml
from tests.counting import lines_run
from tests.vulkan_cases import GUARD_BYTES, Array, assert_close
from vkml.engine.devices import target_of
from vkml.engine.options import GraphOptimizationLevel, SessionOptions
from vkml.engine.prepare import prepare
from vkml.engine.sketch import Sketch
from vkml.ir import Graph, find
from vkml.lowering.vulkan import Piece, lower
from vkml.onnx import save_graph
from vkml.passes import fuse, specialise
from vkml.passes.fuse import MAX_LEAVES, MAX_OPERATIONS, MAX_OUTPUTS, members

UNARY = ("Relu", "Abs", "Neg", "Sigmoid", "Tanh", "Floor")
BINARY = ("Add", "Sub", "Mul", "Max", "Min")


def evaluate(graph: Graph, feed: dict[str, Array]) -> list[Array]:
    """The graph, node by node, through the operators' own evaluation."""
    ready = specialise(prepare(graph, optimise=False), {name: array.shape for name, array in feed.items()})
    values: dict[str, Array] = {**feed, **{name: c.array for name, c in ready.constants.items()}}
    for node in ready.nodes:
        made = find(node).evaluate(node, [values[name] if name else None for name in node.inputs])
        values.update(zip(node.outputs, made, strict=False))
    return [values[value.name] for value in ready.outputs]


def check(device: str, graph: Graph, feed: dict[str, Array], *, atol: float = 1e-5) -> vkml.InferenceSession:
    """Compares both levels of optimisation with the evaluation; returns the closed, optimised session."""
    expected = evaluate(graph, feed)
    for level in (0, 99):
        options = SessionOptions(
            graph_optimization_level=GraphOptimizationLevel(level), guard_bytes=GUARD_BYTES
        )
        with vkml.InferenceSession(save_graph(graph), options, devices=device, strict=True) as session:
            found = session.run(None, feed)
            session.report()
        for value, made, wanted in zip(graph.outputs, found, expected, strict=True):
            assert_close(made, wanted, 1e-5, atol, f"level {level}, output {value.name}")
    return session


def grow(random: np.random.Generator, nodes: int) -> tuple[Graph, dict[str, Array]]:
    """A random graph of pointwise nodes with broadcasting, residuals and several outputs."""
    sketch = Sketch("random")
    shapes = [(3, 4, 5), (1, 4, 1), (5,), (3, 1, 5), (4, 5)]
    feed = {f"x{i}": random.standard_normal(shape).astype(np.float32) for i, shape in enumerate(shapes)}
    values = [sketch.input(name, array.shape) for name, array in feed.items()]
    values.append(sketch.constant(np.float32(0.5)))
    values.append(sketch.constant(random.standard_normal((4, 1)).astype(np.float32)))
    for _ in range(nodes):
        recent = values[-8:] if random.random() < 0.7 else values
        a, b = (str(random.choice(recent)) for _ in range(2))
        if random.random() < 0.4:
            made = sketch.node(str(random.choice(UNARY)), a)
        else:
            # A sum of many values would grow without bound.
            made = sketch.node("Tanh", sketch.node(str(random.choice(BINARY)), a, b))
        values.append(made)
    outputs = list(dict.fromkeys([values[-1], *(str(v) for v in random.choice(values[7:], 3))]))
    return sketch.finish(*outputs), feed


@pytest.mark.parametrize("seed", range(4))
def test_random_pointwise_graphs(vulkan_device_name: str, seed: int) -> None:
    graph, feed = grow(np.random.default_rng(seed), 12)
    check(vulkan_device_name, graph, feed)


def test_a_chain_becomes_one_launch(vulkan_device_name: str) -> None:
    sketch = Sketch("chain")
    feed = {"x": np.linspace(-3, 3, 60, dtype=np.float32).reshape(3, 4, 5)}
    value = sketch.input("x", (3, 4, 5))
    for op in UNARY:
        value = sketch.node(op, sketch.node("Mul", value, sketch.constant(np.float32(1.5))))
    session = vkml.InferenceSession(save_graph(sketch.finish(value)), devices=vulkan_device_name, strict=True)
    with session:
        session.run(None, feed)
        assert len(session.report().steps) == 1


def anchors(sketch: Sketch, x: str, random: np.random.Generator) -> dict[str, str]:
    """Heavy nodes on an input of (2, 4, 6, 6)."""

    def weight(*shape: int) -> str:
        return sketch.constant((random.standard_normal(shape) / 3).astype(np.float32))

    ones = sketch.constant(np.ones(6, np.float32))
    axes = sketch.constant(np.array([3], np.int64))
    made = {
        "Conv": sketch.node("Conv", x, weight(4, 4, 3, 3), weight(4), pads=(1, 1, 1, 1)),
        "Depthwise": sketch.node("Conv", x, weight(4, 1, 3, 3), pads=(1, 1, 1, 1), group=4),
        "MatMul": sketch.node("MatMul", x, weight(6, 6)),
        "Softmax": sketch.node("Softmax", x, axis=-1),
        "InnerSoftmax": sketch.node("Softmax", x, axis=1),
        "LayerNormalization": sketch.node("LayerNormalization", x, ones, ones),
        "InstanceNormalization": sketch.node("InstanceNormalization", x, weight(4), weight(4)),
        "ReduceMean": sketch.node("ReduceMean", x, axes, keepdims=1),
        "ReduceMax": sketch.node("ReduceMax", x, axes, keepdims=0),
        "ReduceLogSumExp": sketch.node("ReduceLogSumExp", x, axes, keepdims=1),
        "MaxPool": sketch.node("MaxPool", x, kernel_shape=(3, 3), pads=(1, 1, 1, 1)),
        "AveragePool": sketch.node("AveragePool", x, kernel_shape=(2, 2)),
        "GlobalAveragePool": sketch.node("GlobalAveragePool", x),
        "ConvTranspose": sketch.node("ConvTranspose", x, weight(4, 4, 1, 1)),
        "Resize": sketch.node(
            "Resize", x, "", sketch.constant(np.array([1, 1, 2, 2], np.float32)), mode="linear"
        ),
    }
    return made


ANCHORS = sorted(anchors(Sketch("names"), "x", np.random.default_rng(0)))


@pytest.mark.parametrize("tail", ["silu", "gelu", "residual", "outputs", "broadcast"])
def test_anchors_with_tails(vulkan_device_name: str, tail: str) -> None:
    random = np.random.default_rng(7)
    sketch = Sketch("tails")
    feed = {"x": random.standard_normal((2, 4, 6, 6)).astype(np.float32)}
    x = sketch.input("x", (2, 4, 6, 6))
    outputs = []
    for name, value in anchors(sketch, x, random).items():
        if tail == "silu":
            outputs.append(sketch.node("Mul", value, sketch.node("Sigmoid", value)))
        elif tail == "gelu":
            scaled = sketch.node("Div", value, sketch.constant(np.float32(2**0.5)))
            one = sketch.node("Add", sketch.node("Erf", scaled), sketch.constant(np.float32(1)))
            half = sketch.node("Mul", value, sketch.constant(np.float32(0.5)))
            outputs.append(sketch.node("Mul", half, one))
        elif tail == "residual" and name not in ("ReduceMax", "AveragePool", "Resize"):
            outputs.append(sketch.node("Relu", sketch.node("Add", value, x)))
        elif tail == "outputs":
            # The anchor's own result is needed as well as what is made of it.
            twice = sketch.node("Add", value, value)
            outputs += [value, twice, sketch.node("Tanh", twice)]
        elif tail == "broadcast":
            row = sketch.constant(random.standard_normal(1).astype(np.float32))
            outputs.append(
                sketch.node("Max", sketch.node("Add", row, value), sketch.constant(np.float32(0.1)))
            )
    check(vulkan_device_name, sketch.finish(*outputs), feed, atol=1e-4)


def order_is_valid(graph: Graph) -> bool:
    known = {value.name for value in graph.inputs} | set(graph.constants)
    for node in graph.nodes:
        if any(name and name not in known for name in node.inputs):
            return False
        known.update(node.outputs)
    return True


def fused(graph: Graph, feed: dict[str, Array]) -> Graph:
    return fuse(specialise(prepare(graph), {name: array.shape for name, array in feed.items()}))


def test_a_detour_through_a_heavy_node_is_no_cycle(vulkan_device_name: str) -> None:
    """A → B → C with A → C, where B cannot be fused: A and C must not become one group around B."""
    sketch = Sketch("detour")
    feed = {"x": np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)}
    a = sketch.node("Relu", sketch.input("x", (3, 4)))
    b = sketch.node("Softmax", a)
    c = sketch.node("Add", a, b)
    second = sketch.node("MatMul", c, sketch.constant(np.eye(4, dtype=np.float32)))
    d = sketch.node("Mul", c, sketch.node("Sub", second, a))
    graph = sketch.finish(d)
    assert order_is_valid(fused(graph, feed))
    check(vulkan_device_name, graph, feed)


def test_two_groups_that_read_each_other(vulkan_device_name: str) -> None:
    """Two chains with edges both ways: fusing each whole would make a cycle."""
    sketch = Sketch("crossing")
    feed = {name: np.linspace(-2, 2, 8, dtype=np.float32).reshape(2, 4) for name in ("x", "y")}
    x, y = (sketch.input(name, (2, 4)) for name in feed)
    a, b = sketch.node("Softmax", x), sketch.node("Softmax", y, axis=0)
    a1, b1 = sketch.node("Add", a, x), sketch.node("Add", b, y)
    a2, b2 = sketch.node("Mul", a1, b1), sketch.node("Sub", b1, a1)
    a3, b3 = sketch.node("Tanh", a2), sketch.node("Relu", b2)
    graph = sketch.finish(sketch.node("Add", a3, b3), sketch.node("Max", b3, a2))
    assert order_is_valid(fused(graph, feed))
    check(vulkan_device_name, graph, feed)


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_random_graphs_keep_a_valid_order(data: Any) -> None:
    """Any mixture of heavy and pointwise nodes: every node once, after what it reads, same results."""
    sketch = Sketch("dag")
    feed = {"x": np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)}
    values = [sketch.input("x", (3, 4))]
    for _ in range(data.draw(st.integers(2, 14))):
        pick = st.sampled_from(values)
        kind = data.draw(st.integers(0, 3))
        if kind == 0:
            values.append(sketch.node("Softmax", data.draw(pick), axis=data.draw(st.integers(0, 1))))
        elif kind == 1:
            values.append(sketch.node("Tanh", data.draw(pick)))
        else:
            values.append(sketch.node("Min", data.draw(pick), data.draw(pick)))
    outputs = data.draw(st.lists(st.sampled_from(values[1:]), min_size=1, max_size=3, unique=True))
    graph = sketch.finish(*outputs)
    after = fused(graph, feed)
    assert order_is_valid(after)
    inside = [part.outputs[0] for node in after.nodes for part in members(node)]
    assert len(inside) == len(set(inside))
    values_after: dict[str, Array] = {**feed, **{name: c.array for name, c in after.constants.items()}}
    for node in after.nodes:
        for part in members(node):
            made = find(part).evaluate(part, [values_after[name] if name else None for name in part.inputs])
            values_after.update(zip(part.outputs, made, strict=False))
    for value, wanted in zip(after.outputs, evaluate(graph, feed), strict=True):
        np.testing.assert_array_equal(values_after[value.name], wanted)


def over_the_limits(graph: Graph) -> list[str]:
    """Fused nodes of more operands, results or members than a kernel takes."""
    found = []
    for node in graph.nodes:
        if node.op != "Fused":
            continue
        body: Graph = node.attributes["body"]
        anchor = None if find(body.nodes[0]).is_pointwise else body.nodes[0]
        tail = body.nodes[1:] if anchor else body.nodes
        read = {name for part in tail for name in part.inputs}
        leaves = [value.name for value in body.inputs if value.name in read]
        counts = {"operands": (len(leaves), MAX_LEAVES), "results": (len(body.outputs), MAX_OUTPUTS)}
        operations = sum(max(1, len(part.inputs) - 1) for part in body.nodes)
        counts["operations"] = (operations, MAX_OPERATIONS)
        found += [f"{node.label}: {count} {what}" for what, (count, most) in counts.items() if count > most]
    return found


@pytest.mark.parametrize("anchor", ["", "Softmax"])
def test_groups_have_no_more_operands_than_a_kernel_takes(device_name: str, anchor: str) -> None:
    sketch = Sketch("operands")
    feed = {f"x{i}": np.full((2, 3), 0.1 * i, np.float32) for i in range(3 * MAX_LEAVES)}
    values = [sketch.input(name, (2, 3)) for name in feed]
    total = sketch.node(anchor, values[0]) if anchor else values[0]
    for value in values[1:]:
        total = sketch.node("Add", total, value)
    graph = sketch.finish(total)
    after = fused(graph, feed)
    assert over_the_limits(after) == []
    assert len(after.nodes) <= 5  # and they are filled
    check(device_name, graph, feed)


@pytest.mark.parametrize("reader", ["Softmax", "ReduceSum", "output"])
def test_groups_have_no_more_results_than_a_kernel_takes(device_name: str, reader: str) -> None:
    """A chain of which every value is read elsewhere, too: later, by nodes that cannot join."""
    sketch = Sketch("results")
    feed = {"x": np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)}
    value, values = sketch.input("x", (3, 4)), []
    for index in range(8 * MAX_OUTPUTS):
        value = sketch.node(UNARY[index % len(UNARY)], value)
        values.append(value)
    if reader != "output":
        values = [sketch.node(reader, value) for value in values]
    graph = sketch.finish(*values)
    after = fused(graph, feed)
    assert over_the_limits(after) == []
    assert order_is_valid(after)
    assert len(after.nodes) < len(specialise(prepare(graph), {"x": (3, 4)}).nodes)
    check(device_name, graph, feed)


@pytest.mark.parametrize("anchor", ["", "Softmax"])
def test_a_full_group_fits_the_least_push_constants(vulkan_device_name: str, anchor: str) -> None:
    """All operands and results that the limits allow, broadcast ones too, in the 128 bytes Vulkan grants."""
    sketch = Sketch("full")
    shapes = {"x": (3, 4, 5)} | {f"x{i}": [(3, 4, 5), (4, 1), (3, 1, 5)][i % 3] for i in range(MAX_LEAVES)}
    x, *operands = (sketch.input(name, shape) for name, shape in shapes.items())
    value, values = sketch.node(anchor, x) if anchor else operands.pop(), []
    for operand in operands:
        value = sketch.node("Add", value, operand)
        values.append(value)
    graph = fused(sketch.finish(*values[-MAX_OUTPUTS:]), {n: np.zeros(s, "f4") for n, s in shapes.items()})
    [info] = [info for info in vkml.devices() if info.name == vulkan_device_name]
    target = replace(target_of(info), push_bytes=128)
    piece = Piece(graph.nodes, tuple(shapes), tuple(value.name for value in graph.outputs))
    program = lower(piece, graph.types, graph.constants, target)
    # An anchor whose own operands leave no room has its tail in a second dispatch; that one has to fit.
    assert len(program.dispatches) <= (2 if anchor else 1)
    assert max(dispatch.kernel.push_bytes for dispatch in program.dispatches) <= 128


def test_a_node_joins_the_group_that_has_room_for_its_operands() -> None:
    """Not the one it was nearest to, from which it would be cut off again as a launch of its own."""
    sketch = Sketch("room")
    feed = {f"x{i}": np.full((2, 3), 0.1 * i, np.float32) for i in range(MAX_LEAVES + 1)}
    free, *inputs = (sketch.input(name, (2, 3)) for name in feed)
    roomy = sketch.node("Tanh", sketch.node("Neg", free))
    full = inputs[0]
    for value in inputs[1:]:
        full = sketch.node("Add", full, value)
    after = fused(sketch.finish(sketch.node("Mul", full, roomy)), feed)
    assert over_the_limits(after) == []
    assert len(after.nodes) == 2


@pytest.mark.parametrize("is_read_elsewhere", [False, True])
def test_both_sides_of_a_node_are_one_group_unless_something_else_reads_one(is_read_elsewhere: bool) -> None:
    sketch = Sketch("sides")
    feed = {name: np.full((2, 3), 0.1, np.float32) for name in "xy"}
    x, y = (sketch.input(name, (2, 3)) for name in feed)
    left, right = sketch.node("Sqrt", x), sketch.node("Exp", y)
    results = [sketch.node("Sub", left, right)]
    if is_read_elsewhere:
        results += [sketch.node("Softmax", left), sketch.node("Softmax", right)]
    after = fused(sketch.finish(*results), feed)
    assert len(after.nodes) == (4 if is_read_elsewhere else 1)


@pytest.mark.parametrize("anchor", ["", "Softmax"])
def test_groups_have_no_more_nodes_than_a_kernel_takes(anchor: str) -> None:
    sketch = Sketch("nodes")
    feed = {"x": np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)}
    value = sketch.input("x", (3, 4))
    if anchor:
        value = sketch.node(anchor, value)
    for index in range(3 * MAX_OPERATIONS):
        value = sketch.node(UNARY[index % len(UNARY)], value)
    after = fused(sketch.finish(value), feed)
    assert over_the_limits(after) == []
    assert len(after.nodes) <= 4  # and they are filled


@pytest.mark.parametrize("anchor", ["", "Softmax"])
def test_nodes_of_many_inputs_count_as_many(anchor: str) -> None:
    """A kernel of 30 Max of 50 inputs each would be one of 1470 operations."""
    sketch = Sketch("many")
    feed = {"x": np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)}
    value = x = sketch.input("x", (3, 4))
    if anchor:
        value = sketch.node(anchor, value)
    for _ in range(30):
        value = sketch.node("Max", *[value, x] * 25)
    after = fused(sketch.finish(value), feed)
    assert over_the_limits(after) == []
    assert len(after.nodes) >= 15


@pytest.mark.parametrize("seed", range(20))
def test_random_groups_stay_within_the_limits(seed: int) -> None:
    graph, feed = grow(np.random.default_rng(seed), 150)
    after = fused(graph, feed)
    assert over_the_limits(after) == []
    assert order_is_valid(after)


def lattice(sketch: Sketch, x: str, count: int) -> list[str]:
    """Two chains that read each other at every step."""
    y = sketch.node("Neg", x)
    for _ in range(count // 4):
        a, b = sketch.node("Softmax", x), sketch.node("Softmax", y)
        x, y = sketch.node("Add", a, b), sketch.node("Mul", b, a)
    return [x, y]


def late_branch(sketch: Sketch, x: str, count: int) -> list[str]:
    """Sums of an early and a late value, which ask whether the late one depends on the early one's group."""
    early = [sketch.node("Softmax", x) for _ in range(count // 3)]
    made = []
    for value in early:
        x = sketch.node("Reshape", x, sketch.constant(np.array([4])))
        made.append(sketch.node("Add", value, x))
    return made


def sum_of_many(sketch: Sketch, x: str, count: int) -> list[str]:
    return [sketch.node("Sum", *(sketch.node(UNARY[i % len(UNARY)], x) for i in range(count)))]


def many_readers(sketch: Sketch, x: str, count: int) -> list[str]:
    value = sketch.node("Relu", x)
    return [sketch.node(UNARY[i % len(UNARY)], value) for i in range(count)]


@pytest.mark.parametrize("make", [lattice, late_branch, sum_of_many, many_readers])
def test_work_grows_as_the_graph(make: Any) -> None:
    """Four times the nodes are about four times the work."""

    def work(count: int) -> int:
        sketch = Sketch("large")
        values = make(sketch, sketch.input("x", (4,)), count)
        graph = specialise(prepare(sketch.finish(*values)), {"x": (4,)})
        return lines_run(fuse, graph)

    assert work(8000) < 6 * work(2000)
