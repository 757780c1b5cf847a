"""What lowering the nodes of a graph has in common for all back ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vkml.ir import Constant, GraphIndex, Node, TensorType, find
from vkml.kernels.views import View
from vkml.lowering.builder import Builder


def view_of(
    name: str,
    views: dict[str, View],
    constants: Mapping[str, Constant],
    build: Builder[Any],
    shared: dict[int, View],
) -> View | None:
    if not name:
        return None
    found = views.get(name)
    if found is None:
        constant = constants[name]
        found = shared.get(id(constant))
        if found is None:
            found = shared[id(constant)] = build.constant(constant, name)
        views[name] = found
    return found


def place_concatenations(
    build: Builder[Any], nodes: Sequence[Node], types: Mapping[str, TensorType], outputs: Mapping[str, View]
) -> None:
    """Lets values that are laid end to end be written where they will stand in the result."""
    index = GraphIndex(nodes)
    for node in nodes:
        name = node.outputs[0] if node.outputs else ""
        axis = find(node).concatenation_axis(node, types[name].rank) if name else None
        if axis is None:
            continue
        whole = outputs.get(name)
        if whole is None:
            whole = build.activation(types[name], name)
            build.set_destination(name, whole)
        start = 0
        for part in node.inputs:
            view = slice_along(whole, axis, start, types[part].dims[axis])
            start += types[part].dims[axis]
            if index.position(part) is not None and not build.has_destination(part):
                build.set_destination(part, view)


def slice_along(view: View, axis: int, start: int, size: int) -> View:
    """The part [start, start + size) of one axis."""
    starts = [start if a == axis else 0 for a in range(len(view.shape))]
    shape = [size if a == axis else d for a, d in enumerate(view.shape)]
    return view.slice(starts, [1] * len(shape), shape)
