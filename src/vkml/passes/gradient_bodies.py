"""Gives Gradient nodes the function that they differentiate as their body."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from vkml.errors import InvalidGraph
from vkml.ir import Graph, Node, Value, with_bodies
from vkml.ir.types import UNKNOWN

DOMAIN = "ai.onnx.preview.training"


def state_gradient_bodies(graph: Graph) -> Graph:
    """The graph with a body in every Gradient node, also of its subgraphs; itself where there is none."""
    nodes: list[Node] = []
    for node in graph.nodes:
        if node.op == "Gradient" and node.domain == DOMAIN and "body" not in node.attributes:
            # Those before it have theirs: derivatives of derivatives.
            body = _function(node, nodes, graph)
            nodes.append(replace(node, attributes={**node.attributes, "body": body}))
        else:
            nodes.append(with_bodies(node, state_gradient_bodies))
    if all(made is node for made, node in zip(nodes, graph.nodes, strict=True)):
        return graph
    return replace(graph, nodes=tuple(_in_order(nodes)))


def _function(node: Node, stated: list[Node], graph: Graph) -> Graph:
    """What makes `y` of `xs` and `zs`: all nodes on the way, those that depend on neither among them."""
    variables = [*node.attributes.get("xs", ()), *(node.attributes.get("zs") or ())]
    y = node.attributes.get("y", "")
    done = {name: made for made in stated for name in made.outputs if name}
    producers = {name: done.get(name, made) for made in graph.nodes for name in made.outputs if name}
    if y not in producers and y not in variables:
        raise InvalidGraph(f"{node.label}: nothing in the graph makes '{y}'")
    needed: set[int] = set()
    known, stack = set(variables), [y]
    while stack:
        name = stack.pop()
        if name in known:
            continue
        known.add(name)
        made = producers.get(name)
        if made is node or (made is not None and name in node.outputs):
            raise InvalidGraph(f"{node.label}: '{y}' depends on its own derivative")
        if made is not None and id(made) not in needed:
            needed.add(id(made))
            stack += made.reads
    order = {id(producers[name]): producers[name] for each in graph.nodes for name in each.outputs if name}
    inputs = tuple(Value(name, graph.types.get(name, UNKNOWN)) for name in variables)
    nodes = tuple(made for number, made in order.items() if number in needed)
    return Graph(
        inputs, (Value(y, graph.types.get(y, UNKNOWN)),), nodes, {}, name=f"{node.name or y}/function"
    )


def _in_order(nodes: list[Node]) -> list[Node]:
    """Nodes each behind what it reads: bodies read more than the nodes did."""
    producers: Mapping[str, Node] = {name: node for node in nodes for name in node.outputs if name}
    ordered: list[Node] = []
    done: set[int] = set()
    for first in nodes:
        stack: list[tuple[Node, bool]] = [(first, False)]
        while stack:
            node, is_ready = stack.pop()
            if id(node) in done:
                continue
            if is_ready:
                done.add(id(node))
                ordered.append(node)
                continue
            stack.append((node, True))
            stack += [(producers[name], False) for name in node.reads if name in producers]
    return ordered
