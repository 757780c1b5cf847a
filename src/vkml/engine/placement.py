"""Which device runs which node, and how the graph is cut into pieces for them."""

from __future__ import annotations

from collections.abc import Mapping

from vkml.ir import Graph, GraphIndex, Node
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
    pieces: dict[tuple[int, str], list[Node]] = {}
    for node in graph.nodes:
        device = device_of[next(name for name in node.outputs if name)]
        stage = 0
        for name in node.reads:
            if name in stage_of:
                stage = max(stage, stage_of[name] + (home[name] != device))
        for name in node.outputs:
            if name:
                stage_of[name], home[name] = stage, device
        pieces.setdefault((stage, device), []).append(node)
    index = GraphIndex.of(graph)
    cuts = []
    for key in sorted(pieces):
        read, outputs = index.boundary(pieces[key])
        inputs = tuple(name for name in read if not index.is_constant(name))
        cuts.append((key[1], Piece(tuple(pieces[key]), inputs, tuple(outputs))))
    return cuts
