"""Removes nodes, outputs for gradients and constants that no output needs."""

from __future__ import annotations

import operator
from collections.abc import Collection
from dataclasses import replace

from vkml.ir import Graph, Node
from vkml.ir.operator import REGISTRY


def remove_dead(graph: Graph) -> Graph:
    """The graph without nodes whose outputs nobody reads, without unread constants, and with nodes that make
    nothing for gradients which nobody reads."""
    needed = {value.name for value in graph.outputs}
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if not needed.isdisjoint(node.outputs):
            kept.append(_without_gradient_outputs(node, needed))
            needed.update(node.reads)
    constants = {name: constant for name, constant in graph.constants.items() if name in needed}
    nodes = tuple(reversed(kept))
    is_whole = len(nodes) == len(graph.nodes) and all(map(operator.is_, nodes, graph.nodes))
    if is_whole and len(constants) == len(graph.constants):
        return graph
    return replace(graph, nodes=nodes, constants=constants)


def _without_gradient_outputs(node: Node, needed: Collection[str]) -> Node:
    known = REGISTRY.get((node.domain, node.op))
    if known is None or not known.gradient_outputs:
        return node
    least = known.outputs[1] - known.gradient_outputs
    outputs = node.outputs
    while len(outputs) > least and outputs[-1] not in needed:
        outputs = outputs[:-1]
    return node if len(outputs) == len(node.outputs) else replace(node, outputs=outputs)
