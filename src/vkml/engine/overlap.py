"""How a graph of several devices is cut, so that none waits for what another could have sent."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from vkml.dataclasses import dataclass
from vkml.ir import Graph, GraphIndex, Node, value_names
from vkml.ir.names import unused
from vkml.lowering.vulkan import Piece
from vkml.ops.upgrading import NEWEST

BUCKET_BYTES = 25 << 20
"""Of what other devices wait for, where a graph does not say: PyTorch's choice."""
LEAST_NODES = 8
"""Nodes that nobody waits for are a piece of their own from here on: a piece costs a submission."""


def stages(graph: Graph, device_of: Mapping[str, str]) -> dict[str, int]:
    """First output of each node → how many times values have changed devices on the longest way to it."""
    stage_of: dict[str, int] = {}
    made_on: dict[str, str] = {}
    found = {}
    for node in graph.nodes:
        device = device_of[node.key]
        before = [stage_of[name] + (made_on[name] != device) for name in node.reads if name in stage_of]
        stage = found[node.key] = max(before, default=0)
        for name in node.outputs:
            if name:
                stage_of[name], made_on[name] = stage, device
    return found


def with_copies(
    graph: Graph, device_of: dict[str, str], late: Collection[str], host: str
) -> tuple[Graph, set[str]]:
    """Has devices make a copy for others of what they read themselves, or keep: both need it where they are.

    Args:
        graph: fused.
        device_of: first output of each node → device; receives the copies.
        late: see `cut_for_overlap`.
        host: a device whose values all others read where they are.

    Returns:
        The graph, and `late` with the copies of values that were in it.
    """
    index = GraphIndex.of(graph)
    taken = value_names(graph)
    copied: dict[str, str] = {}
    """Value → its copy for other devices than the one that makes it."""
    made_on: dict[str, str] = {}
    nodes: list[Node] = []
    types = dict(graph.types)
    for node in graph.nodes:
        device = device_of[node.key]
        made_on.update(dict.fromkeys(node.outputs, device))
        if any(name in copied and made_on[name] != device for name in node.inputs):
            inputs = [copied.get(x, x) if made_on.get(x, device) != device else x for x in node.inputs]
            node = replace(node, inputs=tuple(inputs))
        nodes.append(node)
        for name in node.outputs if device != host else ():
            readers = {device_of[reader.key] for reader in index.consumers(name)} if name else set()
            if readers - {device} and (device in readers or index.is_output(name)):
                made = copied[name] = unused(f"{name} for others", taken)
                taken.add(made)
                types[made] = types[name]
                nodes.append(Node("Identity", (name,), (made,), {}, f"{node.name or name}/copy", "", NEWEST))
                device_of[made] = device
    found = {*late, *[copied[name] for name in late if name in copied]}
    return (replace(graph, nodes=tuple(nodes), types=types) if copied else graph), found


@dataclass
class _Part:
    """What one device does between two changes of devices."""

    device: str
    nodes: list[Node]

    def __post_init__(self) -> None:
        self.made = {name for node in self.nodes for name in node.outputs if name}


class _Cutter:
    """See `cut_for_overlap`."""

    def __init__(
        self, graph: Graph, device_of: Mapping[str, str], late: Collection[str], bucket_bytes: int
    ) -> None:
        self._graph, self._device_of, self._late = graph, device_of, late
        self._bucket_bytes = bucket_bytes
        self._index = GraphIndex.of(graph)
        self._piece_of: dict[str, int] = {}
        """Value → number of the piece that makes it."""
        self._made_on: dict[str, str] = {}

    def pieces(self) -> Iterator[tuple[str, list[Node]]]:
        stage_of = stages(self._graph, self._device_of)
        parts: dict[tuple[int, str], list[Node]] = {}
        for node in self._graph.nodes:
            device = self._device_of[node.key]
            parts.setdefault((stage_of[node.key], device), []).append(node)
            self._made_on.update(dict.fromkeys(node.outputs, device))
        number = 0
        for stage in sorted({stage for stage, _ in parts}):
            there = [(device, nodes) for (at, device), nodes in sorted(parts.items()) if at == stage]
            cuts = [(key, device, nodes) for device, each in there for key, nodes in self._cut(device, each)]
            for _, device, nodes in sorted(cuts, key=lambda cut: cut[:2]):
                for node in nodes:
                    self._piece_of.update(dict.fromkeys(node.outputs, number))
                yield device, nodes
                number += 1

    def _cut(self, device: str, nodes: list[Node]) -> list[tuple[tuple[int, int], list[Node]]]:
        """A part in pieces, in order: by what has come from other devices, and by what these wait for."""
        part = _Part(device, nodes)
        exports = [name for node in nodes for name in node.outputs if name and self._is_sent(name, part)]
        ready = self._ready(part, exports)
        bucket = self._buckets(part, exports)
        found: dict[tuple[int, int], list[Node]] = {}
        for node in nodes:
            found.setdefault((ready[node.key], bucket[node.key]), []).append(node)
        return sorted(found.items())

    def _is_sent(self, name: str, part: _Part) -> bool:
        """Whether another device waits for a value, or this one for what it is added to on its way."""
        for reader in self._index.consumers(name):
            if self._device_of[reader.key] != part.device:
                return True
            if reader.key not in part.made and any(
                other in self._late and self._made_on.get(other, part.device) != part.device
                for other in reader.inputs
            ):
                return True
        return False

    def _ready(self, part: _Part, exports: Sequence[str]) -> dict[str, int]:
        """First output of each node → the last piece of other devices that has to be done before."""
        of_value: dict[str, int] = {}
        found: dict[str, int] = {}
        for node in part.nodes:
            latest = -1
            for name in node.reads:
                if name in part.made:
                    latest = max(latest, of_value[name])
                elif self._made_on.get(name, part.device) != part.device:
                    latest = max(latest, self._piece_of[name])
            found[node.key] = latest
            of_value.update(dict.fromkeys(node.outputs, latest))
        # Few nodes that nobody waits for, and that wait for little, come with those that are ready next.
        levels = sorted(set(found.values()))
        exporting = {of_value[name] for name in exports}
        exporting |= self._receiving(part, found)
        raised: dict[int, int] = {}
        for level, following in pairwise(levels):
            count = sum(1 for latest in found.values() if raised.get(latest, latest) == level)
            if count < LEAST_NODES and level not in exporting:
                raised.update({before: following for before, to in raised.items() if to == level})
                raised[level] = following
        return {key: raised.get(latest, latest) for key, latest in found.items()}

    def _receiving(self, part: _Part, ready: Mapping[str, int]) -> set[int]:
        """Those of the levels of `_ready` at which a good part of a bucket has come from other devices."""
        read: dict[str, int] = {}
        for node in part.nodes:
            for name in node.reads:
                if self._made_on.get(name, part.device) != part.device:
                    read[name] = min(read.get(name, ready[node.key]), ready[node.key])
        held: dict[int, int] = {}
        for name, level in read.items():
            held[level] = held.get(level, 0) + self._graph.types[name].bytes
        return {level for level, size in held.items() if size >= self._bucket_bytes // 4}

    def _buckets(self, part: _Part, exports: Sequence[str]) -> dict[str, int]:
        """First output of each node → the first bucket of values for others that it is needed for."""
        urgent = [name for name in exports if not self._may_be_late(name, part)]
        bucket_of = dict.fromkeys(urgent, 0)
        bucket, held = int(bool(urgent)), 0
        for name in exports:
            if name not in bucket_of:
                if held >= self._bucket_bytes:
                    bucket, held = bucket + 1, 0
                bucket_of[name] = bucket
                held += self._graph.types[name].bytes
        last = max(bucket_of.values(), default=0)
        found: dict[str, int] = {}
        rest: list[str] = []
        for node in reversed(part.nodes):
            needed = [bucket_of[name] for name in node.outputs if name in bucket_of]
            if not needed:
                rest.append(node.key)
            found[node.key] = first = min(needed, default=last + 1)
            for name in node.reads:
                if name in part.made:
                    bucket_of[name] = min(bucket_of.get(name, first), first)
        if last or len(rest) < LEAST_NODES:
            found = {key: min(bucket, last) for key, bucket in found.items()}
        return found

    def _may_be_late(self, name: str, part: _Part) -> bool:
        """Whether what waits for a value has something else to do: it is one of many, as gradients are."""
        readers = self._index.consumers(name)
        return name in self._late or all(self._device_of[reader.key] == part.device for reader in readers)


def cut_for_overlap(
    graph: Graph, device_of: Mapping[str, str], late: Collection[str], bucket_bytes: int | None
) -> list[tuple[str, Piece]]:
    """Cuts a graph into pieces, each for one device, in an order in which they can run.

    What other devices wait for is made first, and ends a piece: they have it while this device goes on.
    Of values that may be late, gradients, a piece makes so many bytes; what is made of them is made as they
    come.

    Args:
        graph: specialised and fused.
        device_of: first output of each node → device.
        late: values that other devices have other work than to wait for.
        bucket_bytes: bytes of these that end a piece.
    """
    cutter = _Cutter(graph, device_of, late, BUCKET_BYTES if bucket_bytes is None else bucket_bytes)
    pieces = list(cutter.pieces())
    index = GraphIndex.of(graph)
    found = []
    for device, nodes in pieces:
        read, outputs = index.boundary(nodes)
        inputs = tuple(name for name in read if not index.is_constant(name))
        found.append((device, Piece(tuple(nodes), inputs, tuple(outputs))))
    return found
