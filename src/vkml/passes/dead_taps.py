"""Taps of a convolution that lie in the padding for all results are left out of its weights.

Windows of wide dilations over small images, as segmentation networks have them, see little else: a 3×3 kernel
of dilation 24 over 16×16 pixels is a 1×1 one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from vkml.ir import Constant, Graph, Node, find, unused, value_names
from vkml.ir.dtypes import FLOATS
from vkml.ir.file_constant import release_pages


def drop_dead_taps(graph: Graph) -> Graph:
    """The graph, specialised, with the kernels of convolutions cut to what any result needs.

    Weights are constants, of which those that are cut off are finite: others make NaN of zeros.
    """
    nodes = list(graph.nodes)
    constants, types = dict(graph.constants), dict(graph.types)
    taken = value_names(graph)
    is_changed = False
    for at, node in enumerate(graph.nodes):
        if node.op != "Conv" or node.domain or node.inputs[1] not in graph.constants:
            continue
        found = _cut(node, graph)
        if found is None:
            continue
        conv, weight = found
        name = unused(f"{node.outputs[0]}+taps", taken)
        taken.add(name)
        constants[name], types[name] = weight, weight.type
        nodes[at] = replace(conv, inputs=(conv.inputs[0], name, *conv.inputs[2:]))
        is_changed = True
    return replace(graph, nodes=tuple(nodes), constants=constants, types=types) if is_changed else graph


def _cut(node: Node, graph: Graph) -> tuple[Node, Constant] | None:
    """A convolution over live taps, and its weights; None where all are, or nothing is known of them."""
    given = [graph.types[name] if name else None for name in node.inputs]
    x, weight = given[0], graph.constants[node.inputs[1]]
    if x is None or x.is_open or weight.dtype not in FLOATS or 0 in x.dims or 0 in weight.shape:
        return None
    windows = find(node).windows(node, given)
    if windows is None or 0 in windows.output:
        return None
    axes = range(len(windows.kernel))
    live = [windows.live_taps(axis) for axis in axes]
    kernel = tuple(last - first for first, last in live)
    if kernel == windows.kernel:
        return None
    cut = _without(weight, live)
    if cut is None:
        return None
    begins = [windows.pads_begin[axis] - live[axis][0] * windows.dilations[axis] for axis in axes]
    made = replace(windows, kernel=kernel, pads_begin=tuple(begins))
    ends = [max(0, reach) for reach in made.reach_end]
    is_same = all(made.count_with(axis, ends[axis]) == made.output[axis] for axis in axes)
    if min(begins) < 0 or not is_same:
        return None
    attributes = {**node.attributes, "auto_pad": "NOTSET", "pads": (*begins, *ends), "kernel_shape": kernel}
    return replace(node, attributes=attributes), cut


def _without(weight: Constant, live: Sequence[tuple[int, int]]) -> Constant | None:
    """A weight's live taps, the same constant for all plans; None where not all of it is finite.

    Weights keep what was made of them.
    """
    if "_cuts" not in weight.__dict__:
        object.__setattr__(weight, "_cuts", {})
    known: dict[tuple[tuple[int, int], ...], Constant | None] = weight.__dict__["_cuts"]
    key = tuple(live)
    if key not in known:
        array = weight.array
        left = (slice(None), slice(None), *(slice(first, last) for first, last in live))
        made = np.ascontiguousarray(array[left])
        # What is left, too: it is no more than there was.
        known[key] = Constant(weight.dtype, made.shape, made) if np.isfinite(array).all() else None
        release_pages(weight)
    return known[key]
