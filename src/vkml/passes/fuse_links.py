"""Has a convolution over channels, or a pooling, compute the convolutions before it that it alone reads."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from vkml.ir import Graph, GraphIndex, Node, find
from vkml.passes.fuse import joined, members

MOST_LINKS = 3
"""1×1, windows of each channel, 1×1: no kernel computes more."""


def fuse_links(
    graph: Graph,
    place: Callable[[Node], str],
    accepted: Callable[[Sequence[Node]], Collection[str]],
) -> Graph:
    """The graph with chains, each node the one reader of that before, as groups where that pays.

    Args:
        graph: fused.
        place: node → device, and what else nodes have in common that may be fused.
        accepted: says of `Fused` nodes which the back end takes, by the names of their results.
    """
    index = GraphIndex.of(graph)
    chains = {node.key: _chain(node, graph, index, place) for node in graph.nodes}
    taken: dict[str, list[Node]] = {}
    """Last node → all of a chain."""
    # The longest first; a node belongs to one chain.
    for length in range(MOST_LINKS, 1, -1):
        within = {node.key for chain in taken.values() for node in chain}
        asked = {}
        for key, chain in chains.items():
            part = chain[-length:]
            if len(part) == length and within.isdisjoint(node.key for node in part):
                asked[key] = part
        names = {*accepted([joined(part, graph) for part in asked.values()])} if asked else set()
        for key, part in asked.items():
            # Of pairs that share a node, the first.
            if key in names and within.isdisjoint(node.key for node in part):
                taken[key] = part
                within.update(node.key for node in part)
    if not taken:
        return graph
    gone = {node.key for chain in taken.values() for node in chain[:-1]}
    nodes = [
        joined(taken[node.key], graph) if node.key in taken else node
        for node in graph.nodes
        if node.key not in gone
    ]
    return replace(graph, nodes=tuple(nodes))


def _chain(node: Node, graph: Graph, index: GraphIndex, place: Callable[[Node], str]) -> list[Node]:
    """A node behind those before it that it alone reads, as far as it may compute them."""
    chain = [node]
    if not find(members(node)[0]).is_linked:
        return chain
    while len(chain) < MOST_LINKS:
        reader, *behind = members(chain[0])
        name = reader.inputs[0]
        before = index.producer(name)
        if (
            before is None
            or not find(members(before)[0]).is_linked
            or list(filter(None, before.outputs)) != [name]
            or place(members(before)[0]) != place(reader)
            or index.is_output(name)
            or index.is_captured(name)
            or index.consumers(name) != [chain[0]]
            or reader.inputs.count(name) != 1
            or any(name in each.reads for each in behind)
        ):
            break
        chain.insert(0, before)
    return chain
