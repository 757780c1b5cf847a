"""Zeros added before a convolution, and rows cut off behind it, become its pads.

A causal convolution is exported either way: Pad with zeros → Conv, or Conv with pads on both sides → Slice. A
convolution reads zeros round its input for nothing; a Pad and a Slice are copies. The operators are named
here, for the rewrites are about these alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vkml.ir import Graph, GraphIndex, Node
from vkml.ops.checks import integers
from vkml.ops.padding import pad_geometry
from vkml.ops.slicing import slice_geometry

ADDS_BY_ITSELF = ("SAME_UPPER", "SAME_LOWER")


def fold_pads(graph: Graph) -> Graph:
    """The graph, specialised, in which convolutions pad and cut by themselves where they can."""
    convolutions = [at for at, node in enumerate(graph.nodes) if node.op == "Conv" and not node.domain]
    if not convolutions or not any(node.op in ("Pad", "Slice") and not node.domain for node in graph.nodes):
        return graph
    index = GraphIndex.of(graph)
    nodes: list[Node | None] = list(graph.nodes)
    for at in convolutions:
        conv = graph.nodes[at]
        if conv.attributes["auto_pad"] in ADDS_BY_ITSELF:
            continue
        found = _behind_pad(conv, graph, index)
        if found is not None:
            conv, pad = found
            nodes[pad] = None
            nodes[at] = conv
        cut = _before_slice(conv, graph, index)
        if cut is not None:
            # Where the Slice was: all that reads the result comes behind it.
            nodes[at] = None
            nodes[cut[1]] = cut[0]
    left = tuple(node for node in nodes if node is not None)
    return graph if len(left) == len(graph.nodes) else replace(graph, nodes=left)


def _behind_pad(conv: Node, graph: Graph, index: GraphIndex) -> tuple[Node, int] | None:
    """The convolution that does what it and a Pad before it do, and where the Pad is."""
    at = index.position(conv.inputs[0])
    if at is None or index.uses(conv.inputs[0]) != 1:
        return None
    pad = graph.nodes[at]
    if pad.op != "Pad" or pad.domain or pad.attributes["mode"] != "constant":
        return None
    fill = graph.constants.get(pad.inputs[2]) if len(pad.inputs) > 2 and pad.inputs[2] else None
    if len(pad.inputs) > 2 and pad.inputs[2] and (fill is None or fill.array.reshape(-1)[0] != 0):
        return None
    stated = _stated(graph, pad, (1, 3))
    if stated is None or stated[0] is None:
        return None
    geometry = pad_geometry(pad, graph.types[pad.inputs[0]].dims, stated[0], stated[1])
    sides = [*geometry.begins, *geometry.ends]
    rank = len(geometry.begins)
    if any(sides[axis] for axis in (0, 1, rank, rank + 1)) or min(sides) < 0:
        return None
    more = [*geometry.begins[2:], *geometry.ends[2:]]
    pads = [own + added for own, added in zip(pads_of(conv, rank), more, strict=True)]
    attributes = {**conv.attributes, "auto_pad": "NOTSET", "pads": tuple(pads)}
    return replace(conv, inputs=(pad.inputs[0], *conv.inputs[1:]), attributes=attributes), at


def _before_slice(conv: Node, graph: Graph, index: GraphIndex) -> tuple[Node, int] | None:
    """The convolution that makes what a Slice leaves of its result, and where the Slice is."""
    result = conv.outputs[0]
    if index.uses(result) != 1 or index.is_output(result) or index.is_captured(result):
        return None
    cut = index.consumers(result)[0]
    at = index.position(cut.outputs[0])
    if cut.op != "Slice" or cut.domain or cut.inputs[0] != result or at is None:
        return None
    stated = _stated(graph, cut, (1, 2, 3, 4))
    if stated is None or stated[0] is None or stated[1] is None:
        return None
    dims = graph.types[result].dims
    geometry = slice_geometry(cut, dims, stated[0], stated[1], *stated[2:])
    if any(step != 1 for step in geometry.steps) or tuple(geometry.sizes[:2]) != tuple(dims[:2]):
        return None
    pads, strides = pads_of(conv, len(dims)), conv.attributes["strides"] or (1,) * (len(dims) - 2)
    spatial = len(dims) - 2
    for axis in range(spatial):
        first = geometry.starts[axis + 2]
        last = dims[axis + 2] - first - geometry.sizes[axis + 2]
        if not isinstance(first, int) or not isinstance(last, int) or not geometry.sizes[axis + 2] > 0:
            return None
        pads[axis] -= first * strides[axis]
        pads[spatial + axis] -= last * strides[axis]
    if min(pads) < 0:
        return None
    attributes = {**conv.attributes, "auto_pad": "NOTSET", "pads": tuple(pads)}
    return replace(conv, outputs=cut.outputs, attributes=attributes), at


def pads_of(conv: Node, rank: int) -> list[int]:
    stated = conv.attributes["pads"] if conv.attributes["auto_pad"] != "VALID" else None
    return list(stated or (0,) * (2 * (rank - 2)))


def _stated(graph: Graph, node: Node, places: Sequence[int]) -> list[tuple[int, ...] | None] | None:
    """The integers of constant inputs, None for those that are absent; None where one is computed or open."""
    found: list[tuple[int, ...] | None] = []
    for place in places:
        name = node.inputs[place] if place < len(node.inputs) else ""
        constant = graph.constants.get(name)
        if name and (constant is None or constant.is_open):
            return None
        found.append(None if constant is None else integers(constant.array))
    return found
