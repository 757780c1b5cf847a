"""Graph → Vulkan program: views, kernels, levels, memory."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from vkml.ir import Constant, GraphIndex, Node, TensorType, dtypes, find
from vkml.ir.graph import attribute_key
from vkml.ir.lowering import CannotLower
from vkml.ir.size import Sizes
from vkml.kernels.views import BufferKind, View
from vkml.kernels.writer import NEEDS
from vkml.lowering.builder import Builder, Target
from vkml.lowering.memory import plan_memory
from vkml.lowering.plan import VulkanProgram
from vkml.lowering.schedule import schedule
from vkml.passes.fuse import members

MAX_ELEMENTS = 2**31 - 1
"""Kernels count elements in 32 bits."""


@dataclass(frozen=True)
class Piece:
    """A run of nodes for one device, cut out of a graph."""

    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    """Values that come from outside."""
    outputs: tuple[str, ...]
    """Values that are needed outside."""


def lower(
    piece: Piece,
    types: Mapping[str, TensorType],
    constants: Mapping[str, Constant],
    target: Target,
    guard_bytes: int = 0,
    sizes: Sizes | None = None,
) -> VulkanProgram:
    """Lowers a piece of a specialised graph.

    With open sizes this belongs inside of `Sizes.deciding`.

    Raises:
        CannotLower: a node has no Vulkan form on this target (ask `refusals` before).
    """
    build = Builder(target)
    views: dict[str, View] = {}
    inputs = {name: build.buffer(BufferKind.INPUT, types[name], name) for name in piece.inputs}
    views.update(inputs)
    outputs = {name: build.buffer(BufferKind.OUTPUT, types[name], name) for name in piece.outputs}
    for name, view in outputs.items():
        build.set_destination(name, view)
    place_concatenations(build, piece.nodes, types, outputs)
    shared: dict[int, View] = {}
    for node in piece.nodes:
        given = [view_of(name, views, constants, build, shared) for name in node.inputs]
        results = lower_one(build, node, given, [types[name] for name in node.outputs if name])
        views.update((name, view) for name, view in zip(node.outputs, results, strict=False) if name)
    for name, target_view in outputs.items():
        made = view_of(name, views, constants, build, shared)
        if made is not None and made is not target_view:
            build.copy(made, target_view)
    levels = schedule(build.dispatches)
    # With open sizes there is no telling yet how much memory is needed.
    offsets, arena = plan_memory(levels, guard_bytes) if sizes is None else ({}, 0)
    return VulkanProgram(
        levels,
        build.buffers,
        inputs,
        outputs,
        offsets,
        arena,
        build.status,
        build.uses_status,
        build.error_labels,
        tuple(sizes.examples) if sizes is not None else (),
    )


def lower_one(
    build: Builder, node: Node, inputs: Sequence[View | None], types: Sequence[TensorType]
) -> Sequence[View]:
    parts = members(node)
    with build.node(node, [part.label for part in parts], [part.op for part in parts]):
        mark = build.mark()
        try:
            return build.lower_node(node, inputs, types)
        except CannotLower:
            # A strided destination may be what the kernel could not write to.
            if not build.forget_destinations(node.outputs):
                raise
            build.rewind(mark)
            return build.lower_node(node, inputs, types)


def view_of(
    name: str,
    views: dict[str, View],
    constants: Mapping[str, Constant],
    build: Builder,
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
    build: Builder, nodes: Sequence[Node], types: Mapping[str, TensorType], outputs: Mapping[str, View]
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


def refusals(
    nodes: Sequence[Node],
    types: Mapping[str, TensorType],
    constants: Mapping[str, Constant],
    target: Target,
) -> dict[str, str]:
    """First output of each node that cannot run on the target → why."""
    tried: dict[Hashable, str | None] = {}
    found = {}
    for node in nodes:
        reason = _refused_value(node, types, target)
        if reason is None:
            form = _form(node, types, constants)
            if form not in tried:
                tried[form] = _try_lowering(node, types, constants, target)
            reason = tried[form]
        if reason is not None:
            found[next(name for name in node.outputs if name)] = reason
    return found


def _form(node: Node, types: Mapping[str, TensorType], constants: Mapping[str, Constant]) -> Hashable:
    """All of a node that decides whether it can be lowered: equal nodes are tried once."""
    reads_values = not find(node).is_pointwise
    places: dict[str, int] = {}
    inputs = [
        name and (places.setdefault(name, at), types[name], reads_values and id(constants.get(name)))
        for at, name in enumerate(node.inputs)
    ]
    outputs = [name and types[name] for name in node.outputs]
    return node.op, node.domain, attribute_key(node.attributes), tuple(inputs), tuple(outputs)


def _refused_value(node: Node, types: Mapping[str, TensorType], target: Target) -> str | None:
    """Why no kernel handles one of the values that a node reads and makes."""
    for name in (*node.inputs, *node.outputs):
        if not name:
            continue
        if not types[name].is_static:
            return f"the shape of '{name}' depends on data"
        if types[name].elements > MAX_ELEMENTS:  # of open sizes, too: the plan then holds for no others
            return f"'{name}' has {types[name].elements} elements, kernels count to {MAX_ELEMENTS}"
        if types[name].dtype == dtypes.STRING or not types[name].dtype.is_native:
            return f"no Vulkan kernel handles {types[name].dtype.name}"
    for name in node.outputs:
        missing = set(NEEDS.get(types[name].dtype, ()) if name else ()) - target.capabilities
        if missing:
            return f"storing {types[name].dtype.name} needs {', '.join(sorted(missing))}"
    return None


def _try_lowering(
    node: Node,
    types: Mapping[str, TensorType],
    constants: Mapping[str, Constant],
    target: Target,
) -> str | None:
    """Why a node cannot be lowered: that is tried on throw-away buffers."""
    build = Builder(target)
    try:
        views: dict[str, View] = {}
        given = [_probe_view(name, types, constants, views, build) for name in node.inputs]
        with build.node(node, [node.label], [node.op]):
            build.lower_node(node, given, [types[name] for name in node.outputs if name])
    except CannotLower as reason:
        return str(reason)
    return None


def _probe_view(
    name: str,
    types: Mapping[str, TensorType],
    constants: Mapping[str, Constant],
    views: dict[str, View],
    build: Builder,
) -> View | None:
    if not name:
        return None
    if name not in views:
        constant = constants.get(name)
        if constant is not None:
            views[name] = build.constant(constant, name)
        else:
            views[name] = build.buffer(BufferKind.INPUT, types[name], name)
    return views[name]
