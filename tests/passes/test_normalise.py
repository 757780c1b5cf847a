"""Nodes of old opsets become newest ones, whatever the model's values are called."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import vkml
from vkml.engine.sketch import Sketch
from vkml.ir import Graph, dtypes
from vkml.onnx import save_graph
from vkml.passes import normalise

DATA = np.arange(6, dtype=np.float32).reshape(1, 2, 3)


def results(graph: Graph, **feeds: np.ndarray) -> list[np.ndarray]:
    model = save_graph(graph)
    assert model is not None
    return vkml.InferenceSession(model, devices="cpu").run(None, feeds)


@pytest.mark.parametrize("taken", [("node:0/axes",), ("node:0/axes", "node:0/axes.1", "node:0/axes.2")])
def test_made_up_names_avoid_inputs_and_constants(taken: tuple[str, ...]) -> None:
    for is_input in (True, False):
        sketch = Sketch("old", opset=11)
        other = np.full(3, 7, np.float32)
        x = sketch.input("x", DATA.shape)
        feeds = {"x": DATA}
        for name in taken:
            if is_input:
                feeds[sketch.input(name, other.shape)] = other
            else:
                sketch.constant(other, name)
        # The other values are read before the node and behind it.
        before = [sketch.node("Neg", name) for name in taken]
        squeezed = sketch.node("Squeeze", x, axes=[0], name="node")
        after = [sketch.node("Neg", name) for name in taken]
        found, *others = results(sketch.finish(squeezed, *before, *after), **feeds)
        np.testing.assert_array_equal(found, DATA[0])
        for array in others:
            np.testing.assert_array_equal(array, -other)


@pytest.mark.parametrize("is_first", [True, False])
def test_made_up_names_avoid_results_of_nodes(is_first: bool) -> None:
    sketch = Sketch("old", opset=11)
    x = sketch.input("x", DATA.shape)
    if is_first:
        other = sketch.node("Neg", x, name="other")
        squeezed = sketch.node("Squeeze", x, axes=[0], name="node")
    else:
        squeezed = sketch.node("Squeeze", x, axes=[0], name="node")
        other = sketch.node("Neg", x, name="other")
    graph = sketch.finish(squeezed, sketch.node("Abs", other))

    def renamed(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple("node:0/axes" if name == other else name for name in names)

    nodes = (replace(n, inputs=renamed(n.inputs), outputs=renamed(n.outputs)) for n in graph.nodes)
    found, absolute = results(replace(graph, nodes=tuple(nodes)), x=DATA)
    np.testing.assert_array_equal(found, DATA[0])
    np.testing.assert_array_equal(absolute, DATA)


def test_every_value_of_a_rewrite_of_many_nodes_is_moved_aside() -> None:
    """BatchNormalization with spatial=0 becomes seven nodes; every name that it makes up is taken."""

    def sketched(*taken: str) -> Graph:
        sketch = Sketch("old", opset=8)
        x = sketch.input("x", (2, 3))
        for name in taken:
            sketch.input(name, (1,))
        vectors = [sketch.constant(np.array([at + 1, 2, 3], np.float32)) for at in range(4)]
        value = sketch.node("BatchNormalization", x, *vectors, spatial=0, name="node")
        return sketch.finish(value, *(sketch.node("Neg", name) for name in taken))

    plain = sketched()
    stated = {name for node in plain.nodes for name in (*node.inputs, *node.outputs)}
    made = normalise(plain)
    taken = sorted({*made.constants, *(name for node in made.nodes for name in node.outputs)} - stated)
    assert len(taken) == 7
    data = np.arange(6, dtype=np.float32).reshape(2, 3)
    [wanted] = results(plain, x=data)
    found, *others = results(sketched(*taken), x=data, **{name: np.ones(1, np.float32) for name in taken})
    np.testing.assert_array_equal(found, wanted)
    assert all(array == [-1] for array in others)


def test_made_up_names_avoid_what_the_node_itself_reads() -> None:
    sketch = Sketch("old", opset=11)
    x = sketch.input("node:0/axes", DATA.shape)
    graph = sketch.finish(sketch.node("Squeeze", x, axes=[0], name="node"))
    [found] = results(graph, **{"node:0/axes": DATA})
    np.testing.assert_array_equal(found, DATA[0])


def test_what_is_in_its_newest_form_stays_the_same_object() -> None:
    body = Sketch("body")
    body.output(body.node("Exp", "x"), "y")
    sketch = Sketch("outer")
    x, condition = sketch.input("x", (2,)), sketch.input("c", (), dtypes.BOOL)
    chosen = sketch.node("If", condition, then_branch=body.finish(), else_branch=body.finish())
    graph = sketch.finish(chosen, sketch.node("Concat", x, x, axis=0))
    assert normalise(graph) is graph
    older = Sketch("older", opset=11)
    older.output(older.node("Squeeze", "x", axes=[0]), "y")
    choice, *others = graph.nodes
    choice = replace(choice, attributes={**choice.attributes, "else_branch": older.finish()})
    changed = normalise(replace(graph, nodes=(choice, *others)))
    assert changed.nodes[0].attributes["then_branch"] is graph.nodes[0].attributes["then_branch"]
    assert changed.nodes[0].attributes["else_branch"].nodes[0].attributes == {}
    assert changed.nodes[1] is graph.nodes[1]
