"""Order of nodes: each after what it reads, and errors that name the nodes where that is impossible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vkml.errors import InvalidGraph
from vkml.ir.graph import Node
from vkml.ir.index import GraphIndex

_SHOWN = 12


def sort_nodes(
    nodes: Sequence[Node], given: Mapping[str, str], where: str
) -> tuple[list[Node], dict[str, int]]:
    """Nodes in topological order, in the file's order as far as it is one.

    Args:
        nodes: The nodes of one graph.
        given: Names that are there before any node runs → what gives them ("input", "initializer").
        where: The graph, for messages.

    Returns:
        The nodes, and the names that are neither given nor produced here → index of a node that reads them.

    Raises:
        InvalidGraph: A name is produced twice, or nodes wait for one another in a cycle.
    """
    _check_producers(nodes, given, where)
    index = GraphIndex(nodes)
    outside: dict[str, int] = {}
    for at, node in enumerate(nodes):
        for name in node.reads:
            if name not in given and index.position(name) is None:
                outside.setdefault(name, at)
    order = index.topological_order()
    if len(order) < len(nodes):
        raise InvalidGraph(f"{where}: nodes wait for one another in a cycle: {_cycle(nodes, index, order)}")
    return [nodes[at] for at in order], outside


def _check_producers(nodes: Sequence[Node], given: Mapping[str, str], where: str) -> None:
    producer: dict[str, Node] = {}
    for node in nodes:
        for name in node.outputs:
            if not name:
                continue
            if name in given:
                raise InvalidGraph(f"{where}: {node.label} produces {name!r}, which is also an {given[name]}")
            if name in producer:
                raise InvalidGraph(
                    f"{where}: the value {name!r} is produced twice, by {producer[name].label} and by "
                    f"{node.label}"
                )
            producer[name] = node


def _cycle(nodes: Sequence[Node], graph: GraphIndex, order: Sequence[int]) -> str:
    # Each node that still waits has a predecessor that waits, so walking backwards must come round.
    needs, done = graph.needs(), set(order)
    index = next(at for at in range(len(nodes)) if at not in done)
    path: list[int] = []
    place: dict[int, int] = {}
    while index not in place:
        place[index] = len(path)
        path.append(index)
        index = min(source for source in needs[index] if source not in done)
    cycle = path[place[index] :][::-1]
    labels = [nodes[i].label for i in cycle[:_SHOWN]] + (["…"] if len(cycle) > _SHOWN else [])
    return " → ".join([*labels, nodes[cycle[0]].label])
