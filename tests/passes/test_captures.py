"""What subgraphs capture is used: no pass drops it, renames it, fuses it away or moves it behind a reader."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from tests.subgraphs import SHAPE, assert_is_whole, choose, needs, register_choose
from vkml.engine.placement import cut
from vkml.engine.prepare import fold_constants, prepare
from vkml.engine.sketch import Sketch
from vkml.ir import Graph, Node, TensorType, Value, dtypes
from vkml.lowering.cpu_memory import peak_bytes
from vkml.passes import fuse, normalise, remove_dead, simplify, specialise
from vkml.passes.fuse import members
from vkml.passes.segments import segments

FLOATS = TensorType(dtypes.FLOAT32, SHAPE)


@pytest.fixture(autouse=True)
def _choose_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    register_choose(monkeypatch)


def with_choice(sketch: Sketch, then: str, other: str, *, depth: int = 0, also: Sequence[Node] = ()) -> Graph:
    """The sketch, its output being a choice between two values that only subgraphs read."""
    graph = sketch.finish()
    made = (*graph.nodes, choose(then, other, condition="condition", result="chosen", depth=depth), *also)
    inputs = (*graph.inputs, Value("condition", TensorType(dtypes.BOOL, ())))
    last = also[-1].outputs[0] if also else "chosen"
    outputs = (*graph.outputs, Value(last, FLOATS))
    return replace(graph, inputs=inputs, nodes=made, outputs=outputs, opsets={"": 20, "test": 1})


def shapes(graph: Graph) -> dict[str, tuple[int, ...]]:
    return {value.name: value.type.dims for value in graph.inputs}


def specialised(graph: Graph) -> Graph:
    return specialise(prepare(graph, optimise=False), shapes(graph))


@pytest.mark.parametrize("depth", [0, 2])
def test_dead_code_keeps_what_subgraphs_read(depth: int) -> None:
    sketch = Sketch("dead")
    x = sketch.input("x", SHAPE)
    then, other = sketch.node("Exp", x), sketch.node("Mul", x, sketch.constant(np.float32(2)))
    unread = sketch.node("Abs", x)
    kept = remove_dead(with_choice(sketch, then, other, depth=depth))
    assert_is_whole(kept)
    assert unread not in {name for node in kept.nodes for name in node.outputs}
    number = sketch.constant(np.float32(3))
    assert number in remove_dead(with_choice(sketch, then, number, depth=depth)).constants


def test_values_of_rewrites_are_not_called_as_values_of_subgraphs() -> None:
    sketch = Sketch("names", opset=1)
    # A Reshape of opset 1 is written as one of today, whose shape is a constant with a name.
    sketch.node("Reshape", sketch.input("x", SHAPE), shape=(3, 2))
    graph = with_choice(sketch, "x", "x")
    [invented] = set(normalise(graph).constants) - set(graph.constants)
    body = Graph((), (Value(invented, FLOATS),), (Node("Neg", ("x",), (invented,), version=1),), {})
    branches = {"then_branch": body, "else_branch": body}
    nodes = tuple(replace(node, attributes=branches) if node.op == "Choose" else node for node in graph.nodes)
    [other] = set(normalise(replace(graph, nodes=nodes)).constants) - set(graph.constants)
    assert other != invented


def test_an_identity_that_a_subgraph_reads_stays_or_its_reader_follows() -> None:
    sketch = Sketch("identities")
    x = sketch.input("x", SHAPE)
    same = sketch.node("Identity", sketch.node("Abs", x))
    also = sketch.node("Mul", sketch.node("Neg", x), sketch.constant(np.float32(1)))
    assert_is_whole(simplify(specialised(with_choice(sketch, same, also))))


def test_a_convolution_that_a_subgraph_reads_is_not_folded_away() -> None:
    sketch = Sketch("normalised")
    x = sketch.input("x", (1, 2, 4, 4))
    weight = sketch.constant(np.ones((3, 2, 1, 1), np.float32))
    ones = [sketch.constant(np.ones(3, np.float32)) for _ in range(4)]
    conv = sketch.node("Conv", x, weight)
    sketch.output(sketch.node("BatchNormalization", conv, *ones), "normal")
    graph = with_choice(sketch, conv, x)
    assert_is_whole(prepare(graph))
    assert_is_whole(simplify(specialised(graph)))


def test_fusion_hands_out_what_a_subgraph_reads() -> None:
    sketch = Sketch("chain")
    x = sketch.input("x", SHAPE)
    first = sketch.node("Exp", x)
    second = sketch.node("Neg", first)
    sketch.output(sketch.node("Abs", second), "absolute")
    fused = fuse(specialised(with_choice(sketch, first, second, depth=1)))
    assert_is_whole(fused)
    assert any(len(members(node)) > 1 for node in fused.nodes)


def test_fusion_makes_no_cycle_through_what_a_subgraph_reads() -> None:
    sketch = Sketch("cycle")
    x = sketch.input("x", SHAPE)
    first = sketch.node("Exp", x)
    last = Node("Add", (first, "chosen"), ("sum",), {}, "last", version=20)
    fused = fuse(specialised(with_choice(sketch, first, first, also=[last])))
    assert_is_whole(fused)


def test_nodes_that_capture_are_not_folded() -> None:
    sketch = Sketch("constant condition")
    x = sketch.input("x", SHAPE)
    condition = sketch.constant(np.array(True))
    graph = sketch.finish()
    node = choose(x, x, condition=condition, result="chosen")
    graph = replace(graph, nodes=(*graph.nodes, node), outputs=(Value("chosen", FLOATS),))
    assert [node.op for node in fold_constants(normalise(graph)).nodes] == ["Choose"]
    assert [node.op for node in specialised(graph).nodes] == ["Choose"]


def test_folding_keeps_constants_that_subgraphs_read() -> None:
    sketch = Sketch("constants")
    x = sketch.input("x", SHAPE)
    numbers = sketch.constant(np.ones(SHAPE, np.float32))
    doubled = sketch.node("Add", numbers, numbers)
    sizes = sketch.node("Cast", sketch.node("Shape", x), to=1)
    sketch.output(sketch.node("Add", sizes, sizes), "sums")
    sketch.output(sketch.node("Neg", doubled), "negative")
    graph = with_choice(sketch, doubled, sizes)
    assert doubled in fold_constants(normalise(graph)).constants
    assert_is_whole(specialised(graph))


def test_constants_that_subgraphs_read_become_their_own() -> None:
    sketch = Sketch("constants")
    x = sketch.input("x", SHAPE)
    numbers = sketch.constant(np.ones(SHAPE, np.float32))
    doubled = sketch.node("Add", numbers, numbers)
    prepared = prepare(with_choice(sketch, x, doubled, depth=1))
    assert_is_whole(prepared)
    assert not prepared.constants
    body = prepared.nodes[-1].attributes["else_branch"]
    while body.nodes:
        assert body.captures == ()
        body = body.nodes[0].attributes["then_branch"]
    # Nothing is left of the innermost body, a Neg, but its result.
    [result] = body.constants.values()
    assert result.array.tolist() == np.full(SHAPE, -2.0).tolist()


def segmented(graph: Graph) -> list[list[str]]:
    """The labels of each segment's nodes, after what must hold: each segment finds what it reads."""
    ready = prepare(graph, optimise=False)
    parts = segments(ready)
    there = {value.name for value in ready.inputs}
    for part in parts:
        assert_is_whole(part.graph)
        assert {value.name for value in part.graph.inputs} <= there
        there |= {value.name for value in part.graph.outputs}
    assert {value.name for value in ready.outputs} <= there
    return [[node.op for node in part.graph.nodes] for part in parts]


def test_segments_hand_over_what_subgraphs_read() -> None:
    sketch = Sketch("segments")
    x = sketch.input("x", SHAPE)
    places = sketch.node("NonZero", x)
    rows = sketch.node("Neg", sketch.node("Transpose", places, perm=(1, 0)))
    batch = sketch.node("Shape", x)
    sketch.output(rows, "rows")
    # Captured: a value of unknown size, made in the first segment and read in the second …
    assert len(segmented(with_choice(sketch, places, x))) == 2
    # … one made there whose size is known, and one that every segment can compute.
    exp = sketch.node("Exp", x)
    later = choose(exp, batch, condition="chosen", result="later")
    first, second = segmented(with_choice(sketch, exp, places, also=[later]))
    assert first.count("Exp") == 1 and second.count("Choose") == 2 and "Shape" in second


def test_segments_wait_for_sizes_that_only_subgraphs_read() -> None:
    sketch = Sketch("sizes")
    x = sketch.input("x", SHAPE)
    places = sketch.node("NonZero", x)
    first, second = segmented(with_choice(sketch, places, places))
    assert "Choose" not in first and "Choose" in second


def test_planning_knows_no_value_that_a_subgraph_makes_of_data() -> None:
    sketch = Sketch("values")
    x = sketch.input("x", SHAPE)
    data = sketch.node("Exp", x)
    condition = sketch.constant(np.array(True))
    graph = sketch.finish()
    node = choose(data, data, condition=condition, result="chosen")
    flat = Node("Reshape", (x, "sizes"), ("flat",), {}, "reshape", version=20)
    sizes = Node("Cast", ("chosen",), ("sizes",), {"to": 7}, "sizes", version=20)
    graph = replace(graph, nodes=(*graph.nodes, node, sizes, flat), outputs=(Value("flat", FLOATS),))
    first, second = segmented(graph)
    assert "Choose" in first and second == ["Reshape"]


def test_pieces_take_what_subgraphs_read_from_other_devices() -> None:
    sketch = Sketch("pieces")
    x = sketch.input("x", SHAPE)
    first = sketch.node("Exp", x)
    graph = with_choice(sketch, first, first)
    device_of = {name: "cpu" for node in graph.nodes for name in node.outputs} | {first: "vulkan:0"}
    pieces = cut(graph, device_of)
    there = {value.name for value in graph.inputs} | set(graph.constants)
    for _, piece in pieces:
        assert set(piece.inputs) <= there
        known = set(piece.inputs) | set(graph.constants)
        for node in piece.nodes:
            assert needs(node) <= known
            known |= set(node.outputs)
        there |= set(piece.outputs)
    assert [device for device, _ in pieces] == ["vulkan:0", "cpu"]


def test_memory_is_held_for_what_subgraphs_read() -> None:
    size = FLOATS.bytes
    exp = Node("Exp", ("x",), ("a",))
    between = [Node("Neg", ("x",), ("b",)), Node("Neg", ("b",), ("c",)), Node("Neg", ("c",), ("d",))]
    types = dict.fromkeys("xabcd", FLOATS) | {"chosen": FLOATS}
    last = choose("a", "d", condition="condition", result="chosen")
    assert peak_bytes([exp, *between, last], types, ["chosen"]) == 3 * size
