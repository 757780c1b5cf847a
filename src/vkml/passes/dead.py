"""Removes nodes and constants that no output needs."""

from __future__ import annotations

from dataclasses import replace

from vkml.ir import Graph, Node


def remove_dead(graph: Graph) -> Graph:
    """The graph without nodes whose outputs nobody reads, and without unread constants."""
    needed = {value.name for value in graph.outputs}
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if not needed.isdisjoint(node.outputs):
            kept.append(node)
            needed.update(node.reads)
    constants = {name: constant for name, constant in graph.constants.items() if name in needed}
    if len(kept) == len(graph.nodes) and len(constants) == len(graph.constants):
        return graph
    return replace(graph, nodes=tuple(reversed(kept)), constants=constants)
