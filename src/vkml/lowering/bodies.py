"""Pointwise bodies that builders make: of single nodes, of what follows an anchor, of copies."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Sequence
from dataclasses import replace

from vkml.ir import Graph, Node, TensorType, Value, find
from vkml.ir.graph import attribute_key


def identity(type_: TensorType) -> Graph:
    value = Value("x", type_)
    return Graph((value,), (value,), (), {})


def tail_of(body: Graph) -> Graph:
    """A fused body without its anchor; the anchor's result becomes an input."""
    anchor = body.nodes[0]
    result = Value(anchor.outputs[0], body.types[anchor.outputs[0]])
    used = {name for node in body.nodes[1:] for name in node.reads}
    leaves = tuple(value for value in body.inputs if value.name in used)
    return replace(body, inputs=(result, *leaves), nodes=body.nodes[1:])


def anchors_of(body: Graph) -> list[Node]:
    """The nodes of a fused body that are not pointwise."""
    return [node for node in body.nodes if not find(node).is_pointwise]


def begins_late(body: Graph) -> int:
    """How many nodes come before the anchor that computes them, or reads their operands in their place."""
    anchors = (
        at for at, node in enumerate(body.nodes) if find(node).takes_prologue or find(node).reads_parts
    )
    return next(anchors, 0)


def parts_of_links(body: Graph) -> list[Graph]:
    """A body of anchors and what is pointwise behind each, cut before each of them."""
    starts = [at for at, node in enumerate(body.nodes) if not find(node).is_pointwise]
    types = {**body.types, **{value.name: value.tensor for value in body.inputs}}
    parts = []
    for start, end in itertools.pairwise([*starts, len(body.nodes)]):
        nodes = body.nodes[start:end]
        made = {name for node in nodes for name in node.outputs}
        read = [name for node in nodes for name in node.reads if name not in made]
        is_last = end == len(body.nodes)
        outputs = body.outputs if is_last else (Value(nodes[-1].outputs[0], types[nodes[-1].outputs[0]]),)
        inputs = tuple([Value(n, types[n]) for n in dict.fromkeys(read) if n not in body.constants])
        parts.append(replace(body, inputs=inputs, outputs=outputs, nodes=nodes, types=types))
    return parts


def parts_of_reduction(body: Graph) -> tuple[Graph, list[Node], Graph]:
    """A body of reductions and pointwise nodes before and behind them.

    Returns:
        What makes the elements that are reduced, an output for each reduction; the reductions; and what is
        made of their results, which are its inputs besides those that it reads of the body's.
    """
    reductions = anchors_of(body)
    data = [node.inputs[0] for node in reductions]
    needed, before = set(data), []
    for node in reversed(body.nodes):
        if not needed.isdisjoint(node.outputs):
            before.append(node)
            needed.update(node.reads)
    types = {**body.types, **{value.name: value.tensor for value in body.inputs}}
    made = [name for node in reductions for name in node.outputs if name]
    behind = [node for node in body.nodes if node not in before and node not in reductions]
    read = {name for node in behind for name in node.reads} | {value.name for value in body.outputs}
    first = replace(
        body,
        inputs=tuple([value for value in body.inputs if value.name in needed]),
        outputs=tuple([Value(name, types[name]) for name in data]),
        nodes=tuple(before[::-1]),
    )
    leaves = [value for value in body.inputs if value.name in read]
    results = [Value(name, types[name]) for name in made if name in read]
    return first, reductions, replace(body, inputs=(*results, *leaves), nodes=tuple(behind))


_BODIES_KEPT = 1024
_bodies: dict[Hashable, Graph] = {}


def body_graph(node: Node, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> Graph:
    """A body of one pointwise node, the same one for equal nodes.

    Its inputs, and their names in it, are the distinct inputs that are there, in order.
    """
    numbers: dict[str, int] = {}
    present = [(name, type_) for name, type_ in zip(node.inputs, inputs, strict=True) if name and type_]
    for name, _ in present:
        numbers.setdefault(name, len(numbers))
    places = tuple(numbers.get(name) for name in node.inputs)
    result = next(type_ for name, type_ in zip(node.outputs, outputs, strict=False) if name)
    types = tuple(type_ for _, type_ in present)
    key = (node.op, node.domain, attribute_key(node.attributes), places, types, result)
    body = _bodies.get(key)
    if body is None:
        names = tuple("" if place is None else f"x{place}" for place in places)
        given = {f"x{numbers[name]}": type_ for name, type_ in present}
        made = replace(node, inputs=names, outputs=("y",), name="")
        values = tuple(Value(name, type_) for name, type_ in given.items())
        body = Graph(values, (Value("y", result),), (made,), {}, {"y": result})
        if len(_bodies) >= _BODIES_KEPT:
            _bodies.clear()
        _bodies[key] = body
    return body
