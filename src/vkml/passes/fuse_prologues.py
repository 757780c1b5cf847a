"""Has products of few rows compute the normalisation of their rows: a launch less before each of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from vkml.ir import Graph, GraphIndex, Node, find
from vkml.ir.size import Size
from vkml.passes.fuse import is_fused, members, prepended

MOST_ROWS = 4
"""Products of more are tiled, and no kernel of these normalises rows: nobody need be asked."""


def fuse_prologues(
    graph: Graph,
    place: Callable[[Node], str],
    accepted: Callable[[Sequence[Node]], Collection[str]],
) -> Graph:
    """The graph with normalisations inside of the products that read them.

    A normalisation goes where all that reads it are products that compute it themselves: what these read is
    its operands then, of which each of their workgroups needs whole rows anyway.

    Args:
        graph: fused.
        place: node → device, and what else nodes have in common that may be fused.
        accepted: says of `Fused` nodes which the back end takes, by the names of their results.
    """
    index = GraphIndex.of(graph)
    found: dict[str, dict[str, Node]] = {}
    """Normalisation → product → the two as one, all by their first results."""
    for node in graph.nodes:
        readers = _readers(node, graph, index)
        if readers and all(place(members(reader)[0]) == place(node) for reader in readers):
            found[node.key] = {reader.key: prepended([node], reader, graph) for reader in readers}
    if not found:
        return graph
    names = {*accepted([made for each in found.values() for made in each.values()])}
    taken = {key: each for key, each in found.items() if names >= each.keys()}
    made = {key: node for each in taken.values() for key, node in each.items()}
    nodes = [made.get(node.key, node) for node in graph.nodes if node.key not in taken]
    return replace(graph, nodes=tuple(nodes))


def _readers(node: Node, graph: Graph, index: GraphIndex) -> list[Node]:
    """The products that a normalisation is made for; none where anything else needs it."""
    if is_fused(node) or not find(node).is_prologue or any(node.outputs[1:]):
        return []
    name = node.outputs[0]
    rows = math.prod(graph.types[name].dims[:-1]) if graph.types[name].is_static else MOST_ROWS + 1
    if isinstance(rows, Size) or rows > MOST_ROWS:
        return []
    if index.is_output(name) or index.is_captured(name):
        return []
    readers = index.consumers(name)
    return readers if all(_multiplies(name, reader) for reader in readers) else []


def _multiplies(name: str, reader: Node) -> bool:
    """Whether a node, or the group that it stands for, reads a value as the rows of a product alone."""
    product, *behind = members(reader)
    if not find(product).takes_prologue or product.inputs.count(name) != 1 or product.inputs[0] != name:
        return False
    return all(name not in node.reads for node in behind)
