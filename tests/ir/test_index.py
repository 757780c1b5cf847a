"""The graph index: producers, consumers, uses, captured values and the boundaries of parts."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from tests.counting import lines_run
from tests.patience import patience
from tests.subgraphs import body_reading, choose
from vkml.ir import Constant, Graph, GraphIndex, Node, TensorType, Value, dtypes, every_node, value_names

FLOATS = TensorType(dtypes.FLOAT32, (2, 3))


def node(op: str, inputs: str, outputs: str, **attributes: Graph) -> Node:
    """A node with names of one letter; "-" for what is absent."""
    names = [tuple("" if name == "-" else name for name in names) for names in (inputs, outputs)]
    return Node(op, names[0], names[1], attributes, op)


def graph(*nodes: Node, inputs: str = "", outputs: str = "", constants: str = "") -> Graph:
    number = Constant(dtypes.FLOAT32, (), np.float32(1))
    values = [tuple(Value(name, FLOATS) for name in names) for names in (inputs, outputs)]
    return Graph(values[0], values[1], nodes, dict.fromkeys(constants, number))


def test_indices_are_made_side_by_side() -> None:
    """No lock is shared: a child that is forked while another thread makes one would wait for ever."""
    begun, go_on = threading.Event(), threading.Event()

    class Waiting(tuple[Node, ...]):
        def __iter__(self) -> Iterator[Node]:
            begun.set()
            go_on.wait()
            return super().__iter__()

    first = threading.Thread(target=lambda: GraphIndex(Waiting()).uses("x"))
    second = threading.Thread(target=lambda: GraphIndex(()).uses("x"))
    try:
        first.start()
        begun.wait()
        second.start()
        second.join(patience(20))
        assert not second.is_alive()
    finally:
        go_on.set()
        first.join()
        second.join()


def test_producers_and_consumers() -> None:
    split = node("Split", "x", "a-b")
    add, neg = node("Add", "ab", "c"), node("Neg", "b", "d")
    index = GraphIndex.of(graph(split, add, neg, inputs="x", outputs="cd", constants="k"))
    assert index.producer("b") is split and index.position("b") == 0 and index.output_position("b") == 2
    assert index.producer("c") is add and index.position("c") == 1 and index.output_position("c") == 0
    for name in ("x", "k", "", "nothing"):
        assert index.producer(name) is None and index.position(name) is None
    with pytest.raises(KeyError):
        index.output_position("x")
    assert index.consumers("b") == [add, neg] and index.last_consumer("b") == 2
    assert index.consumers("x") == [split] and index.consumers("c") == []
    assert index.last_consumer("c") is None
    assert [name for name in "xkacd" if index.is_input(name)] == ["x"]
    assert [name for name in "xkacd" if index.is_constant(name)] == ["k"]
    assert [name for name in "xkacd" if index.is_output(name)] == ["c", "d"]


def test_uses_count_every_place_and_readers_every_node() -> None:
    index = GraphIndex.of(graph(node("Mul", "xx", "a"), node("Where", "xaa", "b"), inputs="x", outputs="bba"))
    assert [index.uses(name) for name in "xab"] == [3, 3, 2]
    assert [index.readers(name) for name in "xab"] == [2, 2, 2]
    assert [len(index.consumers(name)) for name in "xab"] == [2, 1, 0]


def test_absent_values_are_no_values() -> None:
    clip = node("Clip", "x-k", "-a")
    index = GraphIndex.of(graph(clip, inputs="x", outputs="a", constants="k"))
    assert clip.reads == ("x", "k")
    assert index.uses("") == index.readers("") == 0 and index.consumers("") == []
    assert index.position("") is None
    assert index.boundary([clip]) == (["x", "k"], ["a"])


@pytest.mark.parametrize("depth", [0, 1, 4])
def test_captures_of_nested_subgraphs(depth: int) -> None:
    made = [node("Exp", "x", "a"), node("Neg", "x", "b")]
    chosen = choose("a", "b", condition="c", result="y", depth=depth)
    index = GraphIndex.of(graph(*made, chosen, inputs="xc", outputs="y"))
    assert chosen.captures == ("a", "b") and chosen.reads == ("c", "a", "b")
    assert index.consumers("a") == index.consumers("b") == [chosen]
    assert [index.uses(name) for name in "abc"] == [1, 1, 1]
    assert [name for name in "xabcy" if index.is_captured(name)] == ["a", "b"]
    assert index.boundary(made) == (["x"], ["a", "b"])
    assert index.boundary([chosen]) == (["c", "a", "b"], ["y"])


def test_a_value_read_and_captured_by_one_node() -> None:
    body = body_reading("a", depth=2)
    chosen = Node("If", ("a",), ("y",), {"then_branch": body, "else_branch": body})
    index = GraphIndex.of(graph(node("Exp", "x", "a"), chosen, inputs="x", outputs="y"))
    assert index.uses("a") == 2 and index.readers("a") == 1
    assert index.consumers("a") == [chosen]


def test_what_a_subgraph_defines_itself_is_not_captured() -> None:
    inside = graph(node("Add", "ip", "q"), node("Mul", "qk", "a"), inputs="i", outputs="aq", constants="k")
    assert inside.captures == ("p",)
    # An output that nothing in the subgraph makes comes from outside, too.
    assert replace(inside, outputs=(Value("z", FLOATS),)).captures == ("p", "z")
    # Several subgraphs in one attribute.
    several = Node("Switch", (), ("y",), {"branches": (inside, body_reading("z"), inside)})
    assert several.captures == ("p", "z") and len(several.subgraphs) == 3
    # A body's own "a" is not the outer one.
    index = GraphIndex.of(graph(node("Exp", "x", "a"), several, inputs="xpz", outputs="y"))
    assert index.uses("a") == 0 and index.is_captured("p")


def test_a_part_reads_and_makes() -> None:
    first, second = node("Exp", "x", "a"), node("Mul", "ak", "b")
    third = node("Add", "ab", "c")
    index = GraphIndex.of(graph(first, second, third, inputs="x", outputs="cc", constants="k"))
    assert index.boundary([first, second]) == (["x", "k"], ["a", "b"])
    assert index.boundary([second, third]) == (["a", "k"], ["c"])
    assert index.boundary([first, second, third]) == (["x", "k"], ["c"])
    assert index.boundary([first, third]) == (["x", "b"], ["a", "c"])
    assert index.boundary([]) == ([], [])


def test_order_is_stable_and_leaves_cycles_out() -> None:
    sorted_ = [node("Exp", "x", "a"), node("Neg", "x", "b"), node("Add", "ab", "c")]
    assert GraphIndex(sorted_).topological_order() == [0, 1, 2]
    assert GraphIndex(sorted_[::-1]).topological_order() == [1, 2, 0]
    ring = [node("Add", "xq", "p"), node("Neg", "p", "q"), node("Exp", "q", "r"), node("Abs", "x", "s")]
    assert GraphIndex(ring).topological_order() == [3]
    late = [choose("b", "x", condition="x", result="y"), node("Neg", "a", "b"), node("Exp", "x", "a")]
    assert GraphIndex(late).topological_order() == [2, 1, 0]


def test_every_node_and_every_name() -> None:
    whole = graph(choose("x", "x", condition="c", result="y", depth=1), inputs="xc", outputs="y")
    assert [each.op for each in every_node(whole)].count("Neg") == 6
    assert value_names(whole) >= {"x", "c", "y", "result_0", "result_1", "result_2", "here"}


def test_time_is_linear() -> None:
    def effort(count: int) -> int:
        body, nodes = body_reading("x"), []
        for at in range(count):
            branches = {"then_branch": body, "else_branch": body_reading(f"v{at}")}
            nodes.append(Node("Add", ("x", f"v{at}"), (f"w{at}",)))
            nodes.append(Node("If", ("c",), (f"v{at + 1}",), branches))
        whole = Graph((Value("x", FLOATS),), (Value(f"v{count}", FLOATS),), tuple(nodes), {})

        def ask() -> None:
            index = GraphIndex.of(whole)
            for each in nodes:
                index.uses(each.outputs[0])
                index.consumers(each.outputs[0])
            index.boundary(nodes[: count // 2])
            index.topological_order()

        return lines_run(ask)

    assert effort(800) < 5 * effort(200)


def test_time_is_linear_in_the_depth_of_subgraphs() -> None:
    def effort(depth: int) -> int:
        body = body_reading("x")
        for _ in range(depth):
            branch = Node("If", ("here",), ("r",), {"then_branch": body, "else_branch": body})
            here = {"here": Constant(dtypes.BOOL, (), np.array(True))}
            body = Graph((), (Value("r", FLOATS),), (branch,), here)
        return lines_run(lambda: body.captures)

    assert effort(80) < 5 * effort(20)
