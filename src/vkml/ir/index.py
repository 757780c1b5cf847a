"""The graph index: who makes and who reads each value."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Container, Iterable, Sequence

from vkml.ir.graph import Graph, Node
from vkml.ir.lazy import lazy


class GraphIndex:
    """Answers for the values of a graph, or of a part of one, where they come from and who needs them.

    A node that holds subgraphs reads, besides its inputs, the outer values that these capture, however deep
    they are nested (`Node.reads`). Every map is made when it is first asked for, in linear time.

    Args:
        nodes: each value is made by one of them at most.
        inputs: values that are given from outside.
        outputs: values that are wanted outside; one that is listed twice is used twice.
        constants: values that are known.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        inputs: Iterable[str] = (),
        outputs: Iterable[str] = (),
        constants: Container[str] = (),
    ) -> None:
        self.nodes = nodes
        self._inputs = frozenset(inputs)
        self._outputs: dict[str, int] = {}
        for name in outputs:
            self._outputs[name] = self._outputs.get(name, 0) + 1
        self._constants = constants

    @classmethod
    def of(cls, graph: Graph) -> GraphIndex:
        """The index of a whole graph."""
        inputs, outputs = ((value.name for value in values) for values in (graph.inputs, graph.outputs))
        return cls(graph.nodes, inputs, outputs, graph.constants)

    def is_input(self, name: str) -> bool:
        """Whether a value is given from outside."""
        return name in self._inputs

    def is_output(self, name: str) -> bool:
        """Whether a value is wanted outside."""
        return name in self._outputs

    def is_constant(self, name: str) -> bool:
        """Whether a value is known."""
        return name in self._constants

    def is_captured(self, name: str) -> bool:
        """Whether a subgraph reads a value."""
        return name in self._captured

    def position(self, name: str) -> int | None:
        """Where the node that makes a value stands among the nodes; None where no node makes it."""
        return self._positions.get(name)

    def producer(self, name: str) -> Node | None:
        """The node that makes a value; None for inputs, constants and what is not there at all."""
        position = self._positions.get(name)
        return None if position is None else self.nodes[position]

    def output_position(self, name: str) -> int:
        """Which of its producer's outputs a value is; `KeyError` where no node makes it."""
        return self.nodes[self._positions[name]].outputs.index(name)

    def consumers(self, name: str) -> list[Node]:
        """The nodes that read a value, themselves or in their subgraphs: each once, in order."""
        return [self.nodes[position] for position in self._consumers.get(name, ())]

    def last_consumer(self, name: str) -> int | None:
        """Where the last node that reads a value stands; None where no node does."""
        positions = self._consumers.get(name)
        return positions[-1] if positions else None

    def uses(self, name: str) -> int:
        """How often a value is needed: once for each input it is of a node, for each node with subgraphs that
        capture it, and for each time it is listed among the outputs."""
        return self._uses.get(name, 0)

    def readers(self, name: str) -> int:
        """How many nodes, and places among the outputs, need a value."""
        return len(self._consumers.get(name, ())) + self._outputs.get(name, 0)

    def boundary(self, members: Sequence[Node]) -> tuple[list[str], list[str]]:
        """What some of the nodes, taken together, read from outside and make for outside.

        Returns:
            The values that the members read, but do not make themselves, constants among them, in the order
            read; and those that they make and that other nodes or the outputs need, in the order made.
        """
        made: dict[str, None] = {}
        read: dict[str, int] = {}
        """Value → how many members read it."""
        for node in members:
            for name in dict.fromkeys(node.reads):
                read[name] = read.get(name, 0) + 1
            for name in node.outputs:
                made[name] = None
        made.pop("", None)
        consumers, outputs = self._consumers, self._outputs
        return (
            [name for name in read if name not in made],
            [n for n in made if n in outputs or len(consumers.get(n, ())) > read.get(n, 0)],
        )

    def needs(self) -> list[set[int]]:
        """For each node, where the nodes stand whose results it reads."""
        positions = self._positions
        return [{positions[name] for name in node.reads if name in positions} for node in self.nodes]

    def topological_order(self) -> list[int]:
        """Positions of the nodes, each behind those it needs and in the given order as far as that is one.

        Nodes that wait for one another in a cycle, and what needs them, are left out.
        """
        needs = self.needs()
        if all(need < at for at, mine in enumerate(needs) for need in mine):
            return list(range(len(needs)))
        waiting = [len(mine) for mine in needs]
        users: list[list[int]] = [[] for _ in needs]
        for at, mine in enumerate(needs):
            for need in mine:
                users[need].append(at)
        ready = [at for at, count in enumerate(waiting) if count == 0]
        order = []
        while ready:
            at = heapq.heappop(ready)
            order.append(at)
            for user in users[at]:
                waiting[user] -= 1
                if waiting[user] == 0:
                    heapq.heappush(ready, user)
        return order

    @lazy
    def _positions(self) -> dict[str, int]:
        return {name: at for at, node in enumerate(self.nodes) for name in node.outputs if name}

    @lazy
    def _consumers(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for at, node in enumerate(self.nodes):
            for name in node.reads:
                positions = found.get(name)
                if positions is None:
                    found[name] = [at]
                elif positions[-1] != at:
                    positions.append(at)
        return found

    @lazy
    def _uses(self) -> Counter[str]:
        uses = Counter(name for node in self.nodes for name in node.reads)
        uses.update(self._outputs)
        return uses

    @lazy
    def _captured(self) -> frozenset[str]:
        return frozenset(name for node in self.nodes if node.attributes for name in node.captures)
