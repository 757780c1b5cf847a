"""Equal nodes of small results are one."""

from __future__ import annotations

import numpy as np

from vkml.engine.prepare import prepare
from vkml.engine.sketch import Sketch
from vkml.ir import Graph
from vkml.passes import share_small, specialise


def shared(sketch: Sketch, *outputs: str, size: int = 8) -> list[str]:
    graph: Graph = specialise(prepare(sketch.finish(*outputs)), {"x": (size, 4)})
    return sorted(node.op for node in share_small(graph).nodes if node.op != "Identity")


def statistics(sketch: Sketch, x: str, axis: int) -> str:
    """A mean and what is made of it; each has a constant of its own for the axes."""
    return sketch.node("Sqrt", sketch.node("ReduceMean", x, sketch.constant(np.array([axis], np.int64))))


def test_equal_nodes_are_one() -> None:
    sketch = Sketch("equal")
    x = sketch.input("x", (8, 4))
    one, other = (statistics(sketch, x, 0) for _ in range(2))
    assert shared(sketch, sketch.node("Add", one, other)) == ["Add", "ReduceMean", "Sqrt"]


def test_nodes_that_differ_stay() -> None:
    sketch = Sketch("different")
    x = sketch.input("x", (8, 4))
    one, other = statistics(sketch, x, 0), statistics(sketch, x, 1)
    made = sketch.node("Add", one, other)
    assert shared(sketch, made) == ["Add", "ReduceMean", "ReduceMean", "Sqrt", "Sqrt"]


def test_outputs_keep_their_names() -> None:
    sketch = Sketch("outputs")
    x = sketch.input("x", (8, 4))
    outputs = [statistics(sketch, x, 0) for _ in range(2)]
    assert shared(sketch, *outputs).count("ReduceMean") == 1


def test_what_is_large_is_made_again() -> None:
    sketch = Sketch("large")
    x = sketch.input("x", (1 << 15, 4))
    made = sketch.node("Add", sketch.node("Exp", x), sketch.node("Exp", x))
    assert shared(sketch, made, size=1 << 15) == ["Add", "Exp", "Exp"]


def test_random_numbers_are_drawn_twice() -> None:
    sketch = Sketch("random")
    x = sketch.input("x", (8, 4))
    drawn = [sketch.node("RandomNormalLike", x) for _ in range(2)]
    assert shared(sketch, sketch.node("Sub", *drawn)).count("RandomNormalLike") == 2


def test_devices_do_not_share() -> None:
    sketch = Sketch("devices")
    x = sketch.input("x", (8, 4))
    made = sketch.finish(sketch.node("Add", statistics(sketch, x, 0), statistics(sketch, x, 0)))
    graph = specialise(prepare(made), {"x": (8, 4)})
    assert len(share_small(graph, lambda node: node.key).nodes) == len(graph.nodes)
