"""A node with subgraphs for tests of what stands outside of them: two branches that capture values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from vkml.ir import REQUIRED, Constant, Graph, Known, Node, Operator, TensorType, Value, dtypes
from vkml.ir.operator import REGISTRY

DOMAIN = "test"
SHAPE = (2, 3)
_TYPE = TensorType(dtypes.FLOAT32, SHAPE)


class _Choose(Operator):
    """As If, but that nothing computes it: whoever evaluates it knows too little, for it captures values."""

    attributes = {"then_branch": REQUIRED, "else_branch": REQUIRED}

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        return [_TYPE]

    def evaluate(self, node: Node, inputs: Sequence[Any]) -> list[Any]:
        raise AssertionError(f"{node.label} is evaluated without the values that its subgraphs capture")


def register_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the operator known for the time of one test."""
    monkeypatch.setitem(REGISTRY, (DOMAIN, "Choose"), _Choose("Choose"))


def body_reading(name: str, depth: int = 0) -> Graph:
    """A branch that reads a value from outside: itself, or in a branch of a branch, and so on."""
    result = f"result_{depth}"
    if depth:
        inner = body_reading(name, depth - 1)
        node = _node("here", result, inner, inner)
    else:
        node = Node("Neg", (name,), (result,), {}, "inner", version=20)
    constants = {"here": Constant(dtypes.BOOL, (), np.array(True))} if depth else {}
    return Graph((), (Value(result, _TYPE),), (node,), constants)


def choose(then: str, other: str, *, condition: str, result: str, depth: int = 0) -> Node:
    """A node with two branches, the first of which reads one value and the second, deeper, another."""
    return _node(condition, result, body_reading(then, depth), body_reading(other, depth + 1))


def _node(condition: str, result: str, then: Graph, other: Graph) -> Node:
    branches = {"then_branch": then, "else_branch": other}
    return Node("Choose", (condition,), (result,), branches, result, DOMAIN, 1)


def captured(graph: Graph) -> set[str]:
    """What a body reads from outside; written again, so that tests do not ask what they test."""
    known = {value.name for value in graph.inputs} | set(graph.constants)
    found: set[str] = set()
    for node in graph.nodes:
        found |= needs(node) - known
        known |= set(node.outputs)
    return found


def needs(node: Node) -> set[str]:
    """What a node reads, its subgraphs included."""
    return {name for name in node.inputs if name}.union(*map(captured, _bodies(node)))


def _bodies(node: Node) -> Iterator[Graph]:
    return (value for value in node.attributes.values() if isinstance(value, Graph))


def assert_is_whole(graph: Graph) -> None:
    """Asserts that every node, and every output, finds what it reads."""
    known = {value.name for value in graph.inputs} | set(graph.constants)
    for node in graph.nodes:
        missing = needs(node) - known
        assert not missing, f"{node.label} reads {missing}, which is not made before it"
        known |= {name for name in node.outputs if name}
    assert {value.name for value in graph.outputs} <= known
