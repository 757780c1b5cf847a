"""Which device runs which node, and how the graph is cut into pieces for them."""

from __future__ import annotations

from collections.abc import Mapping

from vkml.ir import Graph
from vkml.lowering.vulkan import Piece


def cut(graph: Graph, device_of: Mapping[str, str]) -> list[tuple[str, Piece]]:
    """Cuts a graph into pieces, each for one device, in an order in which they can run.

    A node goes into the earliest piece of its device that comes after everything it needs, so the number of
    changes between devices is that of the longest alternating path.

    Args:
        graph: specialised and fused.
        device_of: first output of each node → device name.
    """
    stage_of: dict[str, int] = {}
    home: dict[str, str] = {}
    pieces: dict[tuple[int, str], list[int]] = {}
    for index, node in enumerate(graph.nodes):
        device = device_of[next(name for name in node.outputs if name)]
        stage = 0
        for name in node.inputs:
            if name in stage_of:
                stage = max(stage, stage_of[name] + (home[name] != device))
        for name in node.outputs:
            if name:
                stage_of[name], home[name] = stage, device
        pieces.setdefault((stage, device), []).append(index)
    place = {name: (stage_of[name], home[name]) for name in stage_of}
    wanted = {value.name for value in graph.outputs}
    outside: dict[tuple[int, str], set[str]] = {key: set() for key in pieces}
    for key, indices in pieces.items():
        for index in indices:
            for name in graph.nodes[index].inputs:
                if name in place and place[name] != key:
                    outside[place[name]].add(name)
    cuts = []
    for key in sorted(pieces):
        nodes = tuple(graph.nodes[index] for index in pieces[key])
        made = [name for node in nodes for name in node.outputs if name]
        inputs = dict.fromkeys(
            name
            for node in nodes
            for name in node.inputs
            if name and name not in graph.constants and place.get(name) != key
        )
        outputs = tuple(name for name in made if name in wanted or name in outside[key])
        cuts.append((key[1], Piece(nodes, tuple(inputs), outputs)))
    return cuts
