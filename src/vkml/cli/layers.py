"""Places for the nodes of a directed graph without cycles, in layers: sources above, results below.

After K. Sugiyama, S. Tagawa and M. Toda, "Methods for Visual Understanding of Hierarchical System
Structures", 1981: layers by the longest way from a source, edges over several layers through places of their
own in each, an order in every layer by the means of the neighbours' places, and in the end distances.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import field

from vkml.dataclasses import dataclass

SWEEPS = 12
GAP = 24.0
_BEND = 14.0
"""Room that an edge takes where it passes a layer."""


@dataclass
class _Place:
    width: float
    layer: int
    x: float = 0.0
    above: list[int] = field(default_factory=list)
    below: list[int] = field(default_factory=list)
    is_bend: bool = False


@dataclass(frozen=True)
class Layout:
    """Where nodes lie, and the ways of edges.

    Attributes:
        layers: of each node.
        centres: of each node, across.
        ways: of each edge, in their order, the (layer, place across) that it passes, its ends included.
        width: from the leftmost to the rightmost edge of a node.
    """

    layers: list[int]
    centres: list[float]
    ways: list[list[tuple[int, float]]]
    width: float


def layout(widths: Sequence[float], edges: Sequence[tuple[int, int]]) -> Layout:
    """Lays a graph out.

    Args:
        widths: of the nodes, in an order in which all edges lead on.
        edges: pairs of nodes, from and to.
    """
    places = [_Place(width, 0) for width in widths]
    for start, end in sorted(edges, key=lambda edge: edge[1]):
        places[end].layer = max(places[end].layer, places[start].layer + 1)
    _pull_down_sources(places, edges)
    ways = _with_bends(places, edges)
    rows: list[list[int]] = [[] for _ in range(1 + max((place.layer for place in places), default=0))]
    for number, place in enumerate(places):
        rows[place.layer].append(number)
    for row in rows:
        _spread(places, row, [float(at) for at in range(len(row))])
    for sweep in range(SWEEPS):
        downwards = sweep % 2 == 0
        for row in rows if downwards else reversed(rows):
            _sort(places, row, downwards)
    for sweep in range(SWEEPS):
        for row in rows if sweep % 2 == 0 else reversed(rows):
            _spread(places, row, [_mean(places, number, None) for number in row])
    left = min((place.x - place.width / 2 for place in places), default=0.0)
    right = max((place.x + place.width / 2 for place in places), default=0.0)
    for place in places:
        place.x -= left
    count = len(widths)
    return Layout(
        [place.layer for place in places[:count]],
        [place.x for place in places[:count]],
        [[(places[each].layer, places[each].x) for each in way] for way in ways],
        right - left,
    )


def _pull_down_sources(places: Sequence[_Place], edges: Sequence[tuple[int, int]]) -> None:
    """Nodes that nothing leads to go right above the first that they lead to."""
    fed = {end for _, end in edges}
    nearest: dict[int, int] = {}
    for start, end in edges:
        if start not in fed:
            nearest[start] = min(nearest.get(start, places[end].layer), places[end].layer)
    for start, layer in nearest.items():
        places[start].layer = layer - 1


def _with_bends(places: list[_Place], edges: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Adds places where edges pass layers, shared by the edges of a node; returns the ways of all edges."""
    chains: dict[int, list[int]] = {}
    ways = []
    joined: set[tuple[int, int]] = set()
    for start, end in edges:
        chain = chains.setdefault(start, [start])
        span = places[end].layer - places[start].layer
        while len(chain) < span:
            places.append(_Place(_BEND, places[chain[-1]].layer + 1, is_bend=True))
            chain.append(len(places) - 1)
        way = [*chain[:span], end]
        for upper, lower in itertools.pairwise(way):
            if (upper, lower) not in joined:
                joined.add((upper, lower))
                places[upper].below.append(lower)
                places[lower].above.append(upper)
        ways.append(way)
    return ways


def _mean(places: Sequence[_Place], number: int, downwards: bool | None) -> float:
    """The mean of the neighbours' places: above, below, or (None) both; its own without any."""
    place = places[number]
    near = place.above + place.below if downwards is None else place.above if downwards else place.below
    return sum(places[each].x for each in near) / len(near) if near else place.x


def _sort(places: Sequence[_Place], row: list[int], downwards: bool) -> None:
    wanted = {number: _mean(places, number, downwards) for number in row}
    row.sort(key=wanted.__getitem__)
    _spread(places, row, [wanted[number] for number in row])


def _spread(places: Sequence[_Place], row: Sequence[int], wanted: Sequence[float]) -> None:
    """Brings the nodes of a layer, in their order, as near to where they want to be as their widths allow.

    The least squares of what is missing, by pooling adjacent violators.
    """
    offsets: list[float] = []
    for at, number in enumerate(row):
        if at == 0:
            offsets.append(0.0)
        else:
            between = (places[row[at - 1]].width + places[number].width) / 2 + GAP
            offsets.append(offsets[-1] + between)
    pools: list[tuple[float, float, int]] = []
    """Sum of weighted wishes, sum of weights, number of nodes."""
    for number, wish, offset in zip(row, wanted, offsets, strict=True):
        weight = 4.0 if places[number].is_bend else 1.0  # edges over several layers are to be straight
        total, weights, count = weight * (wish - offset), weight, 1
        while pools and pools[-1][0] / pools[-1][1] > total / weights:
            before = pools.pop()
            total, weights, count = total + before[0], weights + before[1], count + before[2]
        pools.append((total, weights, count))
    at = 0
    for total, weights, count in pools:
        for _ in range(count):
            places[row[at]].x = total / weights + offsets[at]
            at += 1
