"""Has reductions compute what they read, and reductions of the same values run as one.

A pointwise group whose results only reductions and other groups read need not be a launch that writes them:
each reader computes them itself where that moves fewer bytes. Reductions over the same axes that read the
same values, and do not wait for one another, become one group. Its body has pointwise nodes first, which make
what is reduced, then the reductions, then what is made of their results.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

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
            unit = _Unit(node, list(members(node)), place(node))
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
        free = [name for name in results if name not in self._wanted and self._all_take(unit, name)]
        if not any(reader.is_reduction for name in free for reader in self._readers[name]):
            return
        fixed = set(results) - set(free)
        best = self._plan(unit, fixed | set(free))
        assert best is not None, "as it is"
        for written in _choices(free):
            found = self._plan(unit, fixed | set(written))
            if found is not None and (found.bytes, len(found.rest)) < (best.bytes, len(best.rest)):
                best = found
        self._carry_out(unit, best)

    def _all_take(self, unit: _Unit, name: str) -> bool:
        """Whether all that read a value may compute it themselves."""
        for reader in self._readers[name]:
            if (reader.space, reader.place) != (unit.space, unit.place):
                return False
            if reader.is_reduction:
                tail = _parts(reader.nodes)[2]
                if any(name in node.reads for node in tail):
                    return False
        return True

    def _plan(self, unit: _Unit, written: set[str]) -> _Plan | None:
        """What comes of writing only some of the results; None where a reader would be too large."""
        rest = _slice(unit.nodes, written, set())
        readers: dict[_Unit, list[Node]] = {}
        for reader in {reader for name in unit.made - written for reader in self._readers.get(name, ())}:
            readers[reader] = _slice(unit.nodes, reader.reads & (unit.made - written), written)
        moved = sum(self._bytes(name) for name in written) + self._read_bytes(self._outside(rest))
        for reader in {reader for name in unit.made for reader in self._readers.get(name, ())}:
            done = readers.get(reader, [])
            leaves = (reader.reads - unit.made) | (reader.reads & written) | self._outside(done)
            if done:
                steps = sum(map(_steps, done))
                if len(leaves - _operands(reader)) > MAX_LEAVES or (
                    len(readers) > 1 and steps > MAX_REPEATED
                ):
                    return None
                if steps + sum(map(_steps, reader.nodes)) > MAX_OPERATIONS:
                    return None
            moved += self._read_bytes(leaves)
        return _Plan(rest, readers, moved)

    def _outside(self, nodes: Sequence[Node]) -> set[str]:
        made = {name for node in nodes for name in node.outputs}
        return {name for node in nodes for name in node.reads} - made - self._numbers

    def _bytes(self, name: str) -> int:
        type_ = self._types[name]
        return typical(type_.elements) * max(1, type_.dtype.bits // 8) if type_.is_static else 0

    def _read_bytes(self, names: Iterable[str]) -> int:
        return sum(self._bytes(name) for name in names)

    def _carry_out(self, unit: _Unit, plan: _Plan) -> None:
        if not plan.readers:
            return
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
        """Has reductions of the same values over the same axes be one group, where that delays neither."""
        alike: dict[object, list[_Unit]] = {}
        for unit in self.units:
            if unit.is_reduction:
                alike.setdefault((unit.place, unit.space, unit.axes), []).append(unit)
        depths = self._depths()
        for units in alike.values():
            for at, unit in enumerate(units):
                for other in units[:at]:
                    if other.nodes and self._begins_with(other, unit, depths) and self._meet(other, unit):
                        is_later = depths[unit] > depths[other]
                        self._unite(other, unit)
                        if is_later:
                            depths = self._depths()
                        break

    def _depths(self) -> dict[_Unit, int]:
        """Units on the longest way to each."""
        depths: dict[_Unit, int] = {}
        for unit in self._ordered():
            depths[unit] = self._depth(unit.reads, depths)
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

    def _depth(self, reads: Iterable[str], depths: Mapping[_Unit, int]) -> int:
        return 1 + max([depths[self._maker[name]] for name in reads if name in self._maker], default=0)

    def _begins_with(self, one: _Unit, other: _Unit, depths: Mapping[_Unit, int]) -> bool:
        """Whether two reductions can run as one where the earlier one runs.

        Only what follows the later one's reductions may wait for the earlier one, and nothing between them.
        """
        if depths[one] > depths[other]:
            one, other = other, one
        if depths[one] == depths[other]:
            return True
        before, reductions, _ = _parts(other.nodes)
        read = {name for node in (*before, *reductions) for name in node.reads} & other.reads
        return depths[other] == depths[one] + 1 and self._depth(read, depths) <= depths[one]

    def _meet(self, one: _Unit, other: _Unit) -> bool:
        """Whether two reductions read something large in common, and fit one kernel."""
        assert one.space is not None
        elements = math.prod(one.space)
        shared = [name for name in one.reads & other.reads if self._types[name].elements == elements]
        if not shared:
            return False
        nodes = [*one.nodes, *other.nodes]
        results = {
            self._types[name].dims for node in nodes if find(node).reduction for name in node.outputs if name
        }
        if len(results) > 1 and any(_parts(unit.nodes)[2] for unit in (one, other)):
            return False
        outputs = [name for name in one.made | other.made if self._is_read_outside(name, {one, other})]
        leaves = (one.reads | other.reads) - one.made - other.made
        return (
            len(outputs) <= MAX_OUTPUTS
            and len(leaves - _operands(one) - _operands(other)) <= MAX_LEAVES
            and sum(map(_steps, nodes)) <= MAX_OPERATIONS
        )

    def _is_read_outside(self, name: str, units: set[_Unit]) -> bool:
        return name in self._wanted or bool(self._readers.get(name, set()) - units)

    def _unite(self, one: _Unit, other: _Unit) -> None:
        """Gives one unit the nodes of both."""
        both = [_parts(unit.nodes) for unit in ((other, one) if other.made & one.reads else (one, other))]
        nodes = [node for part in zip(*both, strict=True) for nodes in part for node in nodes]
        self._change(other, [])
        self._change(one, nodes)

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
    bytes: int
    """That it and its readers read and write."""


def _choices(names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Which of some values to write."""
    if len(names) > MAX_CHOICES:
        yield ()
        return
    for count in range(len(names)):
        yield from itertools.combinations(names, count)


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
    return len(ordered([form])) if isinstance(form, Scalar) else max(1, len(node.inputs) - 1)
