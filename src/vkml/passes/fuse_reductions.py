"""Has reductions compute what they read, and reductions of the same values run as one.

A pointwise group whose results only reductions and other groups read need not be a launch that writes them:
each reader computes them itself where that moves fewer bytes. Reductions over the same axes that read the
same values, and do not wait for one another, become one group. Its body has pointwise nodes first, which make
what is reduced, then the reductions, then what is made of their results.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field, replace

from vkml.dataclasses import dataclass
from vkml.ir import Graph, GraphIndex, Node, find, unused, value_names
from vkml.ir.scalar import Scalar, ordered
from vkml.ir.size import typical
from vkml.passes.fuse import (
    MAX_LEAVES,
    MAX_OPERATIONS,
    MAX_OUTPUTS,
    fits_body,
    group_node,
    members,
    numbers_of,
)

MAX_REPEATED = 32
"""Steps that several readers may each do again: about what a GPU computes while its memory answers."""
MAX_CHOICES = 4
"""Results of a group about which is decided one by one: each doubles what is tried."""


@dataclass(eq=False)
class _Unit:
    """A node or a group."""

    number: int
    """In the order of the graph."""
    node: Node | None
    """As which it stands in the graph, while nothing about it has changed."""
    nodes: list[Node]
    place: str
    space: tuple[int, ...] | None = None
    """Of a pointwise group its shape, of reductions that of what they read; None for all others."""
    axes: tuple[int, ...] = ()
    """That are reduced; none for pointwise groups."""
    reads: set[str] = field(default_factory=set)
    made: set[str] = field(default_factory=set)

    @property
    def is_reduction(self) -> bool:
        return bool(self.axes)

    def notice(self, numbers: frozenset[str]) -> None:
        """Notes what the nodes read from outside, but for numbers, and make."""
        self.made = {name for node in self.nodes for name in node.outputs if name}
        self.reads = {name for node in self.nodes for name in node.reads} - self.made - numbers


def fuse_reductions(
    graph: Graph, place: Callable[[Node], str], takes: Callable[[Node], bool]
) -> tuple[Graph, dict[str, str]]:
    """The graph with reductions that compute what they read.

    Args:
        graph: fused.
        place: node → what it has in common with those that it may be fused with.
        takes: whether a node's device has kernels of reductions that compute what they read.

    Returns:
        The graph; and for the nodes that are done once more, the keys of the nodes that they repeat.
    """
    if not any(find(part).reduction for node in graph.nodes for part in members(node)):
        return graph, {}
    search = _Search(graph, place, takes)
    for unit in reversed(search.units):
        search.dissolve(unit)
    search.join()
    search.follow()
    return search.finish()


class _Search:
    def __init__(self, graph: Graph, place: Callable[[Node], str], takes: Callable[[Node], bool]) -> None:
        self._graph, self._types = graph, dict(graph.types)
        self._types.update(
            (value.name, value.tensor) for value in graph.inputs if not value.type.is_container
        )
        self._types.update((name, constant.type) for name, constant in graph.constants.items())
        self._numbers = numbers_of(graph)
        self._taken = value_names(graph)
        self._copies: dict[str, str] = {}
        self._wanted = {value.name for value in graph.outputs}
        self.units: list[_Unit] = []
        self._readers: dict[str, set[_Unit]] = {}
        self._maker: dict[str, _Unit] = {}
        for node in graph.nodes:
            unit = _Unit(len(self.units), node, list(members(node)), place(node))
            if takes(node):
                self._classify(unit)
            unit.notice(self._numbers)
            self.units.append(unit)
            self._enter(unit)

    def _classify(self, unit: _Unit) -> None:
        """Says what kind of unit it is that may change."""
        first, types = unit.nodes[0], self._types
        operator = find(first)
        if all(fits_body(node, types) for node in unit.nodes):
            result = types[first.outputs[0]]
            unit.space = result.dims if result.is_static else None
        elif operator.reduction:
            data = types[first.inputs[0]]
            is_plain = data.is_static and data.dtype.is_native and 0 not in data.dims
            axes = operator.reduced_axes(first, data.rank, self._graph.constants) if is_plain else None
            if axes:
                unit.space, unit.axes = data.dims, axes

    def _enter(self, unit: _Unit) -> None:
        for name in unit.reads:
            self._readers.setdefault(name, set()).add(unit)
        for name in unit.made:
            self._maker[name] = unit

    def _change(self, unit: _Unit, nodes: list[Node]) -> None:
        """Gives a unit other nodes."""
        for name in unit.reads:
            self._readers[name].discard(unit)
        for name in unit.made:
            del self._maker[name]
        unit.node, unit.nodes = None, nodes
        unit.notice(self._numbers)
        self._enter(unit)

    # -- pointwise groups that readers do themselves ----------------------------------------------------

    def dissolve(self, unit: _Unit) -> None:
        """Has the readers of a pointwise group compute what they read of it, where that moves fewer bytes."""
        if unit.space is None or unit.is_reduction:
            return
        results = [name for name in _in_order(unit) if self._readers.get(name) or name in self._wanted]
        readers = self._read_by(results)
        takers = {reader for reader in readers if self._takes(reader, unit)}
        if not any(reader.is_reduction for reader in takers):
            return
        free = [n for n in results if n not in self._wanted and takers.issuperset(self._readers[n])]
        best = None
        for written in _choices(free, set(results)):
            found = self._plan(unit, written, readers, takers)
            if found is not None and (best is None or found.cost < best.cost):
                best = found
        assert best is not None, "all may be written"
        if best.readers:
            self._carry_out(unit, best)

    def _read_by(self, names: Iterable[str]) -> list[_Unit]:
        """What reads any of some values, in a fixed order."""
        found = {reader for name in names for reader in self._readers.get(name, ())}
        return sorted(found, key=lambda reader: reader.number)

    def _takes(self, reader: _Unit, unit: _Unit) -> bool:
        """Whether what reads a pointwise group's results may compute them itself."""
        if (reader.space, reader.place) != (unit.space, unit.place):
            return False
        tail = _parts(reader.nodes)[2] if reader.is_reduction else []
        return all(unit.made.isdisjoint(node.reads) for node in tail)

    def _plan(
        self, unit: _Unit, written: set[str], readers: Sequence[_Unit], takers: set[_Unit]
    ) -> _Plan | None:
        """What comes of writing some of the results; None where a reader would be too large.

        A reader also computes what is written, where it reads all that takes.

        Args:
            unit: the pointwise group.
            written: those of its results.
            readers: of its results.
            takers: those of them that may compute what they read.
        """
        rest = _slice(unit.nodes, written, set())
        done: dict[_Unit, list[Node]] = {}
        together: dict[object, list[_Unit]] = {}
        """Readers of which one launch will be: reductions over the same axes."""
        for reader in readers:
            together.setdefault((reader.axes, reader in takers) if reader.axes else reader, []).append(reader)
        repeated = {id(node) for node in rest} if len(readers) == 1 else None
        moved = 0
        for group in together.values():
            ways = [[_slice(unit.nodes, (r.reads & unit.made) - written, written) for r in group]]
            if takers.issuperset(group):
                ways.append([_slice(unit.nodes, r.reads & unit.made, set()) for r in group])
            best: tuple[int, list[list[Node]]] | None = None
            for way in ways:
                leaves = [self._leaves(r, unit, nodes) for r, nodes in zip(group, way, strict=True)]
                if all(map(self._is_small, group, way, leaves, itertools.repeat(repeated))):
                    read = self._read_bytes(set().union(*leaves))
                    best = (read, way) if best is None or read < best[0] else best
            if best is None:
                return None
            moved += best[0]
            done.update((r, nodes) for r, nodes in zip(group, best[1], strict=True) if nodes)
        moved += self._read_bytes(written) + self._read_bytes(self._outside(rest))
        return _Plan(rest, done, (moved, len(rest)))

    def _leaves(self, reader: _Unit, unit: _Unit, done: Sequence[Node]) -> set[str]:
        """What a unit reads that does some nodes of a pointwise group itself."""
        made = {name for node in done for name in node.outputs}
        return ((reader.reads - made) | self._outside(done)) - _operands(reader)

    def _is_small(
        self, reader: _Unit, done: Sequence[Node], leaves: set[str], others: set[int] | None
    ) -> bool:
        """Whether a unit may do some nodes besides its own.

        Args:
            reader: the unit.
            done: the nodes.
            leaves: what it then reads.
            others: nodes that are done elsewhere, too, by identity; None: all.
        """
        if not done:
            return True
        again = sum(_steps(node) for node in done if others is None or id(node) in others)
        steps = sum(map(_steps, (*done, *reader.nodes)))
        return len(leaves) <= MAX_LEAVES and again <= MAX_REPEATED and steps <= MAX_OPERATIONS

    def _outside(self, nodes: Sequence[Node]) -> set[str]:
        made = {name for node in nodes for name in node.outputs}
        return {name for node in nodes for name in node.reads} - made - self._numbers

    def _bytes(self, name: str) -> int:
        maker = self._maker.get(name)
        if maker is not None and find(maker.nodes[0]).is_repetition:
            name = maker.nodes[0].inputs[0]
        type_ = self._types[name]
        return typical(type_.elements) * max(1, type_.dtype.bits // 8) if type_.is_static else 0

    def _read_bytes(self, names: Iterable[str]) -> int:
        return sum(self._bytes(name) for name in names)

    def _carry_out(self, unit: _Unit, plan: _Plan) -> None:
        kept = {id(node) for node in plan.rest}
        for reader, nodes in plan.readers.items():
            renamed: dict[str, str] = {}
            done = []
            is_only = len(plan.readers) == 1
            for node in nodes:
                if is_only and id(node) not in kept:
                    done.append(replace(node, inputs=tuple(renamed.get(n, n) for n in node.inputs)))
                    continue
                [result] = node.outputs
                name = renamed[result] = unused(f"{result}~again", self._taken)
                self._taken.add(name)
                self._types[name] = self._types[result]
                inputs = tuple(renamed.get(n, n) for n in node.inputs)
                done.append(replace(node, inputs=inputs, outputs=(name,)))
                self._copies[done[-1].key] = self._copies.get(node.key, node.key)
            plan.readers[reader] = done + [
                replace(node, inputs=tuple(renamed.get(n, n) for n in node.inputs))
                if not renamed.keys().isdisjoint(node.inputs)
                else node
                for node in reader.nodes
            ]
        self._change(unit, plan.rest)
        for reader, nodes in plan.readers.items():
            self._change(reader, nodes)

    # -- reductions that become one ---------------------------------------------------------------------

    def join(self) -> None:
        """Has reductions of the same values over the same axes be one group, where none waits for another."""
        alike: dict[object, list[_Unit]] = {}
        for unit in self.units:
            if unit.is_reduction:
                alike.setdefault((unit.place, unit.space, unit.axes), []).append(unit)
        together = [units for units in alike.values() if len(units) > 1]
        for units in together:
            for unit in units:
                self._cut(unit)
        depths = self._depths()
        for units in together:
            for at, unit in enumerate(units):
                for other in units[:at]:
                    if other.nodes and depths[other] == depths[unit] and self._meet(other, unit):
                        self._unite(other, unit)
                        break

    def _cut(self, unit: _Unit) -> None:
        """Makes what follows reductions a unit of its own, which may wait for more; see `follow`."""
        before, reductions, behind = _parts(unit.nodes)
        if behind:
            self._change(unit, [*before, *reductions])
            end = _Unit(len(self.units), None, behind, unit.place, self._types[behind[0].outputs[0]].dims)
            end.notice(self._numbers)
            self.units.append(end)
            self._enter(end)

    def _depths(self) -> dict[_Unit, int]:
        """Units on the longest way to each."""
        depths: dict[_Unit, int] = {}
        for unit in self._ordered():
            makers = [self._maker[name] for name in unit.reads if name in self._maker]
            depths[unit] = 1 + max([depths[maker] for maker in makers], default=0)
        return depths

    def _ordered(self) -> list[_Unit]:
        """The units that there are, each behind those that make what it reads."""
        units = [unit for unit in self.units if unit.nodes]
        seen: set[_Unit] = set()
        found: list[_Unit] = []
        for start in units:
            waiting = [start]
            while waiting:
                unit = waiting[-1]
                needs = [self._maker[name] for name in unit.reads if name in self._maker]
                missing = [need for need in needs if need not in seen]
                waiting += missing
                if not missing:
                    waiting.pop()
                    if unit not in seen:
                        seen.add(unit)
                        found.append(unit)
        return found

    def _meet(self, one: _Unit, other: _Unit) -> bool:
        """Whether two reductions read something large in common, and fit one kernel."""
        assert one.space is not None
        elements = math.prod(one.space)
        shared = [name for name in one.reads & other.reads if self._types[name].elements == elements]
        return bool(shared) and self._fit(one, other)

    def _fit(self, one: _Unit, other: _Unit) -> bool:
        """Whether the nodes of both fit one kernel."""
        outputs = [name for name in one.made | other.made if self._is_read_outside(name, {one, other})]
        leaves = (one.reads | other.reads) - one.made - other.made
        return (
            len(outputs) <= MAX_OUTPUTS
            and len(leaves - _operands(one) - _operands(other)) <= MAX_LEAVES
            and sum(map(_steps, (*one.nodes, *other.nodes))) <= MAX_OPERATIONS
        )

    def _is_read_outside(self, name: str, units: set[_Unit]) -> bool:
        return name in self._wanted or bool(self._readers.get(name, set()) - units)

    def _unite(self, one: _Unit, other: _Unit) -> None:
        """Gives one unit the nodes of both: what is reduced first."""
        nodes = [
            node
            for parts in zip(_parts(one.nodes), _parts(other.nodes), strict=True)
            for part in parts
            for node in part
        ]
        self._change(other, [])
        self._change(one, nodes)

    # -- what is made of results ---------------------------------------------------------------------------

    def follow(self) -> None:
        """Has reductions do what pointwise groups do to their results, where these wait for nothing else."""
        depths = self._depths()
        for unit in self._ordered():
            if unit.space is None or unit.is_reduction:
                continue
            makers = {self._maker[name] for name in unit.reads if name in self._maker}
            for maker in sorted(makers, key=lambda maker: maker.number):
                late = [other for other in makers - {maker} if depths[other] >= depths[maker]]
                if not late and self._ends_with(maker, unit):
                    nodes = [*maker.nodes, *unit.nodes]
                    self._change(unit, [])
                    self._change(maker, nodes)
                    break

    def _ends_with(self, unit: _Unit, end: _Unit) -> bool:
        """Whether a pointwise group is over the results of reductions, and fits their kernel."""
        given = {self._types[name].dims for name in end.reads & unit.made}
        return unit.is_reduction and unit.place == end.place and given == {end.space} and self._fit(unit, end)

    # -- the graph --------------------------------------------------------------------------------------

    def finish(self) -> tuple[Graph, dict[str, str]]:
        """The graph of what the units have become."""
        if all(unit.node is not None for unit in self.units):
            return self._graph, {}
        graph = replace(
            self._graph, types={**self._graph.types, **{n: self._types[n] for n in self._made_anew()}}
        )
        units = self._ordered()
        nodes = [node for unit in units for node in unit.nodes]
        index = GraphIndex(
            nodes,
            [value.name for value in graph.inputs],
            [value.name for value in graph.outputs],
            graph.constants,
        )
        made = [
            unit.node if unit.node is not None else group_node(unit.nodes, graph, self._numbers, index)
            for unit in units
        ]
        return replace(graph, nodes=tuple(made)), self._copies

    def _made_anew(self) -> Iterator[str]:
        return (name for unit in self.units for name in unit.made if name not in self._graph.types)


@dataclass(frozen=True)
class _Plan:
    """What a pointwise group comes to."""

    rest: list[Node]
    """Its nodes that stay."""
    readers: dict[_Unit, list[Node]]
    """Nodes that its readers do themselves."""
    cost: tuple[int, int]
    """Bytes that it and its readers read and write, then its nodes that stay."""


def _choices(free: Sequence[str], results: set[str]) -> Iterator[set[str]]:
    """Which of a group's results to write: those that are not free, and any of the others."""
    counts = range(len(free) + 1) if len(free) <= MAX_CHOICES else (0, len(free))
    for count in counts:
        for written in itertools.combinations(free, count):
            yield (results - set(free)) | set(written)


def _in_order(unit: _Unit) -> list[str]:
    return [name for node in unit.nodes for name in node.outputs if name]


def _slice(nodes: Sequence[Node], wanted: set[str], known: set[str]) -> list[Node]:
    """Those of some nodes, in order, that make what is wanted of what is known."""
    needed = set(wanted)
    found = []
    for node in reversed(nodes):
        if not needed.isdisjoint(node.outputs):
            found.append(node)
            needed |= set(node.reads) - known
    return found[::-1]


def _parts(nodes: Sequence[Node]) -> tuple[list[Node], list[Node], list[Node]]:
    """Of nodes with reductions: those that make what is reduced, the reductions, and the others."""
    reductions = [node for node in nodes if find(node).reduction]
    before = _slice(
        [node for node in nodes if not find(node).reduction], {node.inputs[0] for node in reductions}, set()
    )
    seen = {id(node) for node in (*before, *reductions)}
    return before, reductions, [node for node in nodes if id(node) not in seen]


def _operands(unit: _Unit) -> set[str]:
    """What reductions read besides their data: axes, which no kernel reads."""
    return {name for node in unit.nodes if find(node).reduction for name in node.inputs[1:]}


def _steps(node: Node) -> int:
    """About how many operations a node is for one element."""
    form = node.attributes.get("form")
    if isinstance(form, Scalar):
        return sum(bool(part.inputs) for part in ordered([form]))
    return max(1, len(node.inputs) - 1)
