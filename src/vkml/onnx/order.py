"""Order of nodes: each after what it reads, and errors that name the nodes where that is impossible."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence

from vkml.errors import InvalidGraph
from vkml.ir.graph import Node

_SHOWN = 12


def sort_nodes(
    nodes: Sequence[Node], reads: Sequence[Iterable[str]], given: Mapping[str, str], where: str
) -> tuple[list[Node], dict[str, int]]:
    """Nodes in topological order, in the file's order as far as it is one.

    Args:
        nodes: The nodes of one graph.
        reads: For each, the values it needs: its inputs and what its subgraphs read from outside.
        given: Names that are there before any node runs → what gives them ("input", "initializer").
        where: The graph, for messages.

    Returns:
        The nodes, and the names that are neither given nor produced here → index of a node that reads them.

    Raises:
        InvalidGraph: A name is produced twice, or nodes wait for one another in a cycle.
    """
    producer: dict[str, int] = {}
    for index, node in enumerate(nodes):
        for name in node.outputs:
            if not name:
                continue
            if name in given:
                raise InvalidGraph(f"{where}: {node.label} produces {name!r}, which is also an {given[name]}")
            if name in producer:
                raise InvalidGraph(
                    f"{where}: the value {name!r} is produced twice, by {nodes[producer[name]].label} and by "
                    f"{node.label}"
                )
            producer[name] = index
    outside: dict[str, int] = {}
    is_sorted = True
    for index, names in enumerate(reads):
        for name in names:
            if name and name not in given:
                source = producer.get(name)
                if source is None:
                    outside.setdefault(name, index)
                elif source >= index:
                    is_sorted = False
    if is_sorted:
        return list(nodes), outside
    return _kahn(nodes, reads, producer, where), outside


def _kahn(
    nodes: Sequence[Node], reads: Sequence[Iterable[str]], producer: Mapping[str, int], where: str
) -> list[Node]:
    needs = [{producer[name] for name in names if name in producer} for names in reads]
    readers: list[list[int]] = [[] for _ in nodes]
    for index, sources in enumerate(needs):
        for source in sources:
            readers[source].append(index)
    waiting = [len(sources) for sources in needs]
    ready = [index for index, count in enumerate(waiting) if count == 0]
    ordered: list[Node] = []
    while ready:
        index = heapq.heappop(ready)
        ordered.append(nodes[index])
        for reader in readers[index]:
            waiting[reader] -= 1
            if waiting[reader] == 0:
                heapq.heappush(ready, reader)
    if len(ordered) < len(nodes):
        raise InvalidGraph(f"{where}: nodes wait for one another in a cycle: {_cycle(nodes, needs, waiting)}")
    return ordered


def _cycle(nodes: Sequence[Node], needs: Sequence[set[int]], waiting: Sequence[int]) -> str:
    # Each node that still waits has a predecessor that waits, so walking backwards must come round.
    index = next(i for i, count in enumerate(waiting) if count)
    path: list[int] = []
    place: dict[int, int] = {}
    while index not in place:
        place[index] = len(path)
        path.append(index)
        index = min(source for source in needs[index] if waiting[source])
    cycle = path[place[index] :][::-1]
    labels = [nodes[i].label for i in cycle[:_SHOWN]] + (["…"] if len(cycle) > _SHOWN else [])
    return " → ".join([*labels, nodes[cycle[0]].label])
