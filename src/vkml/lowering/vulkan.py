"""Graph → Vulkan program: views, kernels, levels, memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence

from vkml.dataclasses import dataclass
from vkml.ir import Constant, Node, TensorType, find
from vkml.ir.size import Sizes, is_deciding
from vkml.kernels.spec import Dispatch
from vkml.kernels.views import BufferKind, View
from vkml.kernels.writer import NEEDS, STORAGE
from vkml.lowering.donation import written_last
from vkml.lowering.horizontal import fused_horizontally
from vkml.lowering.kept import FORMS_KEPT, certain_for
from vkml.lowering.memory import plan_memory
from vkml.lowering.nodes import place_concatenations, view_of
from vkml.lowering.phases import merged_levels
from vkml.lowering.plan import VulkanProgram
from vkml.lowering.schedule import schedule
from vkml.lowering.target import Target
from vkml.lowering.trials import Trials
from vkml.lowering.vulkan_builder import VulkanBuilder
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


MOST_KEPT = 1 << 29
"""Bytes of a graph's constants that may lie on the device in pieces of fp16 besides as they are."""


def lower(
    piece: Piece,
    types: Mapping[str, TensorType],
    constants: Mapping[str, Constant],
    target: Target,
    guard_bytes: int = 0,
    sizes: Sizes | None = None,
    donated: Sequence[tuple[str, str]] = (),
    note: Callable[[Dispatch], None] | None = None,
) -> VulkanProgram:
    """Lowers a piece of a specialised graph.

    With open sizes this belongs inside of `Sizes.deciding`.

    Args:
        piece: what is lowered.
        types: of its values.
        constants: of the graph.
        target: what the device can do.
        guard_bytes: between values, for tests.
        sizes: those that are open.
        donated: inputs, and outputs to be written over them, as far as they are the piece's.
        note: is told each launch as soon as its node is lowered; what is made of it may be another.

    Raises:
        CannotLower: a node has no Vulkan form on this target (ask `refusals` before).
    """
    build = VulkanBuilder(target, keeps_pieces=_keeps_pieces(constants))
    inputs, outputs = _lower_into(build, piece, types, constants, note)
    over = {outputs[o].buffer: inputs[i].buffer for i, o in donated if i in inputs and o in outputs}
    levels = schedule(written_last(build.launches, over) if over else build.launches, over)
    if sizes is None:
        levels = fused_horizontally(levels, target, over)
    levels = merged_levels(levels, target)
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
        sizes,
    )


def collect_trials(
    piece: Piece,
    types: Mapping[str, TensorType],
    constants: Mapping[str, Constant],
    target: Target,
    trials: Trials,
) -> None:
    """Lowers a piece to see what candidates there are for its launches.

    Args:
        piece: what is lowered, of known sizes.
        types: of its values.
        constants: of the graph.
        target: what the device can do.
        trials: receives them.
    """
    _lower_into(VulkanBuilder(target, trials, keeps_pieces=_keeps_pieces(constants)), piece, types, constants)


def _keeps_pieces(constants: Mapping[str, Constant]) -> bool:
    """Whether a graph's constants are few enough to lie on the device twice."""
    different = {id(constant): constant.type.bytes for constant in constants.values()}
    return sum(different.values()) <= MOST_KEPT


def _lower_into(
    build: VulkanBuilder,
    piece: Piece,
    types: Mapping[str, TensorType],
    constants: Mapping[str, Constant],
    note: Callable[[Dispatch], None] | None = None,
) -> tuple[dict[str, View], dict[str, View]]:
    """Has a builder lower all nodes of a piece; its inputs and outputs."""
    views: dict[str, View] = {}
    inputs = {name: build.buffer(BufferKind.INPUT, types[name], name) for name in piece.inputs}
    views.update(inputs)
    outputs = {name: build.buffer(BufferKind.OUTPUT, types[name], name) for name in piece.outputs}
    for name, view in outputs.items():
        build.set_destination(name, view)
    place_concatenations(build, piece.nodes, types, outputs)
    products = _products(piece, constants)
    for name, view in inputs.items():
        view.buffer.products = products[name]
    shared: dict[int, View] = {}
    for node in piece.nodes:
        given = [views.get(name) or view_of(name, views, constants, build, shared) for name in node.inputs]
        known = len(build.launches)
        results = build.lower(node, members(node), given, _made(node, types))
        if note is not None:
            for launch in build.launches[known:]:
                note(launch)
        for name, made in zip(node.outputs, results, strict=False):
            if name and made is not None:
                views[name] = made
                made.buffer.products += products[name]
    for name, target_view in outputs.items():
        made = view_of(name, views, constants, build, shared)
        if made is not None and not _lies_at(made, target_view):
            build.copy(made, target_view)
    return inputs, outputs


def _products(piece: Piece, constants: Mapping[str, Constant]) -> Counter[str]:
    """How many products by constant weights read each value."""
    return Counter(
        node.inputs[0]
        for node in piece.nodes
        if len(node.inputs) > 1
        and node.inputs[1] in constants
        and any(part.op in ("MatMul", "Gemm") for part in members(node))
    )


def _lies_at(made: View, place: View) -> bool:
    """Whether a value is where an output is to be: what reshapes it is a view of it."""
    if made.buffer is not place.buffer or (made.dtype, made.offset) != (place.dtype, place.offset):
        return False
    return made is place or made.is_contiguous


def refusals(
    nodes: Sequence[Node],
    types: Mapping[str, TensorType],
    constants: Mapping[str, Constant],
    target: Target,
) -> dict[str, str]:
    """First output of each node that cannot run on the target → why.

    Nodes are lowered to find out, on throw-away buffers; what they come to is kept for `lower`.
    """
    build = VulkanBuilder(target, keeps_pieces=_keeps_pieces(constants))
    views: dict[Hashable, View] = {}
    tried: dict[Hashable, str | None] = {}
    """With open sizes, for which nothing is kept longer."""
    found = {}
    certain = certain_for(target)
    for node in nodes:
        known_form = None if is_deciding() else _known_form(node, types, constants)
        if known_form in certain:
            continue
        reason = _refused_value(node, types, target)
        inputs, outputs = [types[name] if name else None for name in node.inputs], _made(node, types)
        if reason is None and not find(node).always_lowers(inputs, outputs):
            form = _open_form(node, types, constants) if is_deciding() else None
            if form is not None and form in tried:
                reason = tried[form]
            else:
                given = [_probe_view(node, name, types, constants, views, build) for name in node.inputs]
                build.error_labels.clear()
                reason = build.refusal(node, given, outputs)
                if form is not None:
                    tried[form] = reason
                if known_form is not None and reason is None and build.is_certain(node, given, outputs):
                    if len(certain) >= FORMS_KEPT:
                        certain.clear()
                    certain.add(known_form)
        if reason is not None:
            found[node.key] = reason
    return found


def _made(node: Node, types: Mapping[str, TensorType]) -> list[TensorType]:
    """The types of what a node makes."""
    return [types[name] for name in node.outputs if name]


def _known_form(
    node: Node, types: Mapping[str, TensorType], constants: Mapping[str, Constant]
) -> Hashable | None:
    """What is equal for nodes that are lowered alike, but for what is in their constants."""
    if node.form is None:
        return None
    names = node.inputs
    inputs = [name and (types[name].key, name in constants) for name in names]
    if len({id(constants[name]) for name in names if name in constants}) < sum(n in constants for n in names):
        return None  # one constant under two names
    return node.form, *inputs, *[name and types[name].key for name in node.outputs]


def _open_form(
    node: Node, types: Mapping[str, TensorType], constants: Mapping[str, Constant]
) -> Hashable | None:
    """All that decides within one plan whether a node can be lowered: equal nodes are tried once."""
    inputs = [name and (types[name], id(constants.get(name))) for name in node.inputs]
    return node.form and (node.form, *inputs, *[name and types[name] for name in node.outputs])


def _refused_value(node: Node, types: Mapping[str, TensorType], target: Target) -> str | None:
    """Why no kernel handles one of the values that a node reads and makes."""
    for name in (*node.inputs, *node.outputs):
        if not name:
            continue
        if not types[name].is_static:
            return f"the shape of '{name}' depends on data"
        if types[name].elements > MAX_ELEMENTS:  # of open sizes, too: the plan then holds for no others
            return f"'{name}' has {types[name].elements} elements, kernels count to {MAX_ELEMENTS}"
        if types[name].dtype not in STORAGE:
            return f"no Vulkan kernel handles {types[name].dtype.name}"
    for name in node.outputs:
        missing = set(NEEDS.get(types[name].dtype, ()) if name else ()) - target.capabilities
        if missing:
            return f"storing {types[name].dtype.name} needs {', '.join(sorted(missing))}"
    return None


def _probe_view(
    node: Node,
    name: str,
    types: Mapping[str, TensorType],
    constants: Mapping[str, Constant],
    views: dict[Hashable, View],
    build: VulkanBuilder,
) -> View | None:
    """A view of an input; `views` has those of nodes before, of values by type and place among the inputs."""
    if not name:
        return None
    constant = constants.get(name)
    key = id(constant) if constant is not None else (types[name], node.inputs.index(name))
    found = views.get(key)
    if found is None:
        found = views[key] = (
            build.buffer(BufferKind.INPUT, types[name], name)
            if constant is None
            else build.constant(constant, name)
        )
    return found
