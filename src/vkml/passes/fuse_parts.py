"""Has attention read keys and values of before, and new ones, where they are before a Concat joins them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from vkml.ir import Graph, GraphIndex, Node, find
from vkml.passes.dead import remove_dead
from vkml.passes.fuse import is_fused, members, prepended

ROWS, AXES = 2, 4
"""The axis along which parts are joined, and how many there are: (batch, heads, rows, columns)."""


def fuse_parts(
    graph: Graph,
    place: Callable[[Node], str],
    accepted: Callable[[Sequence[Node]], Collection[str]],
) -> Graph:
    """The graph with Concats of two values inside of what can read the two, which then waits for no copy.

    Whoever else needs what a Concat makes, such as the next token, still has it made.

    Args:
        graph: fused.
        place: node → device, and what else nodes have in common that may be fused.
        accepted: says of `Fused` nodes which the back end takes, by the names of their results.
    """
    index = GraphIndex.of(graph)
    found: dict[str, Node] = {}
    for node in graph.nodes:
        first = _concats(node, graph, index)
        if first and all(place(each) == place(members(node)[0]) for each in first):
            found[node.key] = prepended(first, node, graph)
    if not found:
        return graph
    names = {*accepted([*found.values()])}
    nodes = [found[node.key] if node.key in names else node for node in graph.nodes]
    return remove_dead(replace(graph, nodes=tuple(nodes)))


def _concats(node: Node, graph: Graph, index: GraphIndex) -> list[Node]:
    """The nodes that join a node's operands, and views of these; none unless all can be read apart."""
    reader = members(node)[0]
    made: list[Node] = []
    for at in find(reader).reads_parts:
        way = _way_to_concat(reader.inputs[at], graph, index)
        if not way or any(each in made for each in way):
            return []
        made += way
    return made


def _way_to_concat(name: str, graph: Graph, index: GraphIndex) -> list[Node]:
    """A Concat of two values, and the views of it that lead to a value."""
    way: list[Node] = []
    while (producer := index.producer(name)) is not None and not is_fused(producer):
        way.insert(0, producer)
        if find(producer).is_view and len(producer.inputs) == 1:
            name = producer.inputs[0]
            continue
        rank = graph.types[producer.key].rank
        is_join = rank == AXES and find(producer).concatenation_axis(producer, rank) == ROWS
        return way if is_join and len({*producer.inputs}) == len(producer.inputs) == 2 else []
    return []
