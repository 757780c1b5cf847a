"""Which device runs which node, and how the graph is cut into pieces for them."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from fnmatch import fnmatchcase
from glob import escape
from typing import TYPE_CHECKING

from vkml.cpu.memory import amount
from vkml.dataclasses import dataclass
from vkml.engine import devices as device_registry
from vkml.engine.devices import Choice, open_device
from vkml.engine.overlap import stages
from vkml.engine.tuning_setting import tuning_of
from vkml.engine.weights import WeightStore
from vkml.ir import Graph, GraphIndex, Node
from vkml.ir.lazy import lazy
from vkml.lowering.cpu_memory import peak_bytes
from vkml.lowering.vulkan import Piece, refusals

if TYPE_CHECKING:
    from vkml.engine.options import SessionOptions
    from vkml.engine.tuning import Tuning
    from vkml.lowering.target import Target
    from vkml.vulkan import Device

CPU = "cpu"


@dataclass(frozen=True)
class Site:
    """A GPU that nodes may run on. It may be opening while nodes are placed and lowered."""

    name: str
    """The device's name."""
    open: Callable[[], Device] = field(compare=False)
    """Waits for it, and returns it open."""
    target: Target
    weights: WeightStore
    limit: int | None = None
    """Bytes that weights and values of a plan may take there; None: as many as there are."""
    tuning: Tuning | None = None
    """Chooses among candidates by what was measured; None: rules do."""
    opened: Callable[[], Device | None] = field(default=lambda: None, compare=False)
    """The device where it is open by now."""

    @lazy
    def device(self) -> Device:
        """Itself, open."""
        return self.open()


def sites_of(
    choice: Choice, precision: str, limits: Mapping[str, int], options: SessionOptions
) -> tuple[Site, ...]:
    """The GPUs that a session may use, opened when they are first needed.

    Args:
        choice: of devices.
        precision: of the session.
        limits: device → bytes that it may take there, where that is stated.
        options: of the session.
    """
    is_one_of_several = len(choice.gpus) + choice.takes_cpu > 1
    sites = []
    for info in choice.gpus:
        opened = functools.partial(open_device, info)
        weights = WeightStore(opened, options.progress, options.memory_limit)
        limit = limits.get(info.name)
        if limit is None and is_one_of_several:
            limit = opened().free_bytes()
        tuning = tuning_of(info, opened, weights, options)
        target = device_registry.target_of(info, precision)
        there = functools.partial(device_registry.opened, info)
        sites.append(Site(info.name, opened, target, weights, limit, tuning, there))
    return tuple(sites)


@dataclass(frozen=True)
class Placement:
    """Where nodes may run."""

    sites: tuple[Site, ...] = ()
    """In the order in which they are filled; what none of them runs, the CPU does."""
    strict: bool = False
    precision: str = "high"
    host_elements: int = 0
    """A plan all of whose values have at most so many elements runs on the CPU, unless it must not."""
    takes_cpu: bool = False
    """Whether the CPU was named, too, and takes what the sites have no memory for."""
    assigned: tuple[tuple[str, str], ...] = ()
    """Patterns of nodes' names, and the device that these run on; the first that fits counts."""
    named: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Names of nodes, and the device that these run on; others run where what they read is made."""
    late: frozenset[str] = frozenset()
    """Values that other devices have other work than to wait for; see `cut_for_overlap`."""
    bucket_bytes: int | None = None
    """Bytes of these that end a piece; None: as many as others have found good."""

    @property
    def device(self) -> Device | None:
        """The first GPU, open; None for the CPU alone."""
        return self.sites[0].device if self.sites else None

    def site(self, name: str) -> Site:
        """The site of a device."""
        return next(site for site in self.sites if site.name == name)


@dataclass
class Places:
    """Where the nodes of a graph run."""

    device_of: dict[str, str] = field(default_factory=dict)
    """First output of each node → device."""
    fallbacks: list[tuple[str, str]] = field(default_factory=list)
    """Labels of nodes that the CPU runs though it was not asked to, and why."""
    displaced: list[tuple[str, str]] = field(default_factory=list)
    """Those among them that are assigned to a device."""
    reasons: list[str] = field(default_factory=list)
    """Why a device does not run all nodes, for people."""


def place(graph: Graph, placement: Placement) -> Places:
    """Says for each node of a graph which device runs it.

    A node runs where it is assigned to, else on the first site that has memory for it and all before it, in
    the graph's order: weights then stay in that order, too. What a site has no kernel for, the next one runs
    that has, in the end the CPU; for a node that is assigned, the CPU at once.

    Args:
        graph: specialised, not fused.
        placement: where nodes may run.
    """
    places = Places()
    wanted = _wanted(graph, placement, places)
    refused: dict[int, dict[str, str]] = {}
    for number, site in enumerate(placement.sites):
        same = next((n for n in refused if placement.sites[n].target == site.target), None)
        refused[number] = (
            refusals(graph.nodes, graph.types, graph.constants, site.target)
            if same is None
            else refused[same]
        )
    names = [site.name for site in placement.sites]
    for node in graph.nodes:
        key = node.key
        device = wanted[key]
        if device != CPU:
            first = names.index(device)
            is_assigned = bool(placement.named) or (
                bool(placement.assigned) and _assigned(node, placement) is not None
            )
            candidates = [first] if is_assigned else range(first, len(names))
            device = next((names[n] for n in candidates if key not in refused[n]), CPU)
            if device == CPU:
                places.fallbacks.append((node.label, refused[first][key]))
                if is_assigned:
                    places.displaced.append(places.fallbacks[-1])
        places.device_of[key] = device
    return places


def _wanted(graph: Graph, placement: Placement, places: Places) -> dict[str, str]:
    """First output of each node → the device that it is to run on."""
    if placement.named:
        return _named(graph, placement)
    wanted: dict[str, str | None] = {}
    rest: Sequence[Node] = graph.nodes
    if placement.assigned:
        wanted = {node.key: _assigned(node, placement) for node in graph.nodes}
        rest = [node for node in graph.nodes if not wanted[node.key]]
    for site in placement.sites:
        count = len(rest)
        is_last = site is placement.sites[-1] and not placement.takes_cpu
        if site.limit is not None and not is_last:
            count = _fitting(graph, site.name, wanted, rest, site.limit)
        wanted.update((node.key, site.name) for node in rest[:count])
        if rest[count:]:
            places.reasons.append(
                f"{count} of {len(rest)} nodes run on {site.name}: the weights and values of more than "
                f"these take more than the {amount(site.limit or 0)} that they may take there; the next is "
                f"{rest[count].label}"
            )
        rest = rest[count:]
    wanted.update((node.key, CPU) for node in rest)
    return wanted  # type: ignore[return-value]


def named_device(node: Node, placement: Placement) -> str | None:
    """The device that a node is to run on by its name; None where its name says nothing."""
    # What a pass has made of a node has that one's name in front of its own.
    return placement.named.get(node.name) or placement.named.get(node.name.partition("/")[0])


def _named(graph: Graph, placement: Placement) -> dict[str, str]:
    """First output of each node → the device that it is to run on, where nodes have these by their names."""
    first = placement.sites[0].name if placement.sites else CPU
    made_on: dict[str, str] = {}
    wanted = {}
    for node in graph.nodes:
        device = named_device(node, placement)
        if device is None:
            device = next((made_on[name] for name in node.reads if name in made_on), first)
        wanted[node.key] = device
        made_on.update(dict.fromkeys(node.outputs, device))
    return wanted


def _assigned(node: Node, placement: Placement) -> str | None:
    for pattern, device in placement.assigned:
        if matches(node, pattern):
            return device
    return None


def matches(node: Node, pattern: str) -> bool:
    """Whether a node's name, or that of one of its outputs, is of a pattern."""
    return any(fnmatchcase(name, pattern) for name in (node.name, *node.outputs) if name)


def by_node_names(
    patterns: Sequence[tuple[str, str]], graph: Graph
) -> tuple[tuple[tuple[str, str], ...], Graph]:
    """Patterns that still hold when passes give nodes' outputs other names, as where an Identity goes.

    Args:
        patterns: of names of nodes or of their outputs, and the device of each.
        graph: as the model states it.

    Returns:
        The names of nodes that patterns find by outputs, before the patterns themselves; and the graph, in
        which nodes without names are called by their first outputs.
    """
    nodes = [node if node.name else replace(node, name=node.key) for node in graph.nodes]
    times = Counter(node.name for node in nodes)
    found: dict[str, str] = {}
    for node in nodes:
        wanted = next(((p, device) for p, device in patterns if matches(node, p)), None)
        if wanted is not None and times[node.name] == 1 and not fnmatchcase(node.name, wanted[0]):
            found[escape(node.name)] = wanted[1]
    return (*found.items(), *patterns), replace(graph, nodes=tuple(nodes))


def _fitting(
    graph: Graph, device: str, wanted: Mapping[str, str | None], nodes: Sequence[Node], limit: int
) -> int:
    """How many of the nodes, from the first on, take no more than `limit` bytes with those assigned there."""
    there = {key for key, place in wanted.items() if place == device}
    low, high = 0, len(nodes)
    while low < high:
        middle = (low + high + 1) // 2
        keys = there.union(node.key for node in nodes[:middle])
        if _bytes(graph, [node for node in graph.nodes if node.key in keys]) <= limit:
            low = middle
        else:
            high = middle - 1
    return low


def _bytes(graph: Graph, nodes: Sequence[Node]) -> int:
    """Bytes of the nodes' weights, of what comes from outside, and of their values alive at the same time."""
    read, kept = GraphIndex.of(graph).boundary(nodes)
    types, constants = graph.types, graph.constants
    given = [constants[name].type if name in constants else types[name] for name in read]
    return sum(type_.bytes for type_ in given if type_.is_static) + peak_bytes(nodes, types, kept)


def cut(graph: Graph, device_of: Mapping[str, str]) -> list[tuple[str, Piece]]:
    """Cuts a graph into pieces, each for one device, in an order in which they can run.

    A node goes into the earliest piece of its device that comes after everything it needs, so the number of
    changes between devices is that of the longest alternating path.

    Args:
        graph: specialised and fused.
        device_of: first output of each node → device name.
    """
    stage_of = stages(graph, device_of)
    pieces: dict[tuple[int, str], list[Node]] = {}
    for node in graph.nodes:
        pieces.setdefault((stage_of[node.key], device_of[node.key]), []).append(node)
    index = GraphIndex.of(graph)
    cuts = []
    for key in sorted(pieces):
        read, outputs = index.boundary(pieces[key])
        inputs = tuple(name for name in read if not index.is_constant(name))
        cuts.append((key[1], Piece(tuple(pieces[key]), inputs, tuple(outputs))))
    return cuts
