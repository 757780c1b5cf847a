"""Pointwise bodies that builders make: of single nodes, of what follows an anchor, of copies."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

from vkml.ir import Graph, Node, TensorType, Value
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
