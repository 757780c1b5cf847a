"""Nodes → recorded machine code: one step of a program for the CPU."""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from functools import partial

from vkml.cpu.memory import MemoryBudget
from vkml.cpu.native.executable import InstructionSet
from vkml.cpu.pool import WorkerPool
from vkml.ir import Constant, Node, TensorType, find
from vkml.ir.lowering import CannotLower
from vkml.ir.operator import Operator
from vkml.ir.size import TooOpen, is_deciding
from vkml.ir.size_terms import Symbol
from vkml.kernels.views import BufferKind, View
from vkml.lowering.native_builder import NativeBuilder
from vkml.lowering.native_layout import Border, Layouts
from vkml.lowering.native_step import NativeStep
from vkml.lowering.native_taps import Rules, border_of
from vkml.lowering.nodes import place_concatenations, view_of
from vkml.lowering.schedule import schedule
from vkml.ops.conv import ConvGeometry
from vkml.passes.fuse import members

_FORMS_KEPT = 4096
_borders: dict[Hashable, Border] = {}
"""What nodes of a form want round their first input."""


class Refused(Exception):
    """A node has no machine code."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(reason)
        self.position = position


def compile_native(
    nodes: Sequence[Node],
    inputs: Sequence[str],
    outputs: Sequence[str],
    types: Mapping[str, TensorType],
    constants: Mapping[str, Constant],
    slots: Mapping[str, int],
    instructions: InstructionSet,
    pool: WorkerPool,
    is_strict: bool,
    budget: MemoryBudget,
    symbols: Sequence[Symbol] = (),
) -> NativeStep:
    """Nodes as one step.

    Args:
        nodes: in topological order.
        inputs: values that come from outside and are no constants.
        outputs: values that are wanted outside, all made by `nodes`.
        types: static types of all values.
        constants: values that are known.
        slots: where a run keeps each value.
        instructions: the set that code may use.
        pool: whose threads run it.
        is_strict: whether convolutions must add up the products that they state (no Winograd).
        budget: for the memory that is kept between runs.
        symbols: the sizes that are open; with any this belongs inside of `Sizes.deciding`.

    Raises:
        OutOfMemory: that is not enough.
        Refused: a node has no machine code.
    """
    layouts = _layouts(
        nodes, outputs, types, partial(_rules, constants, instructions, pool.size, is_strict, types)
    )
    build = NativeBuilder(instructions, pool.size, layouts, is_strict)
    views: dict[str, View] = {}
    sources = {name: build.buffer(BufferKind.INPUT, types[name], name) for name in inputs}
    views.update(sources)
    results = {name: build.buffer(BufferKind.OUTPUT, types[name], name) for name in outputs}
    for name, view in results.items():
        build.set_destination(name, view)
    place_concatenations(build, nodes, types, results)
    shared: dict[int, View] = {}
    for position, node in enumerate(nodes):
        given = [views.get(name) or view_of(name, views, constants, build, shared) for name in node.inputs]
        try:
            made = build.lower(node, members(node), given, [types[name] for name in node.outputs if name])
        except (CannotLower, TooOpen, struct.error) as reason:
            # struct.error: a stride or size that no instruction can state.
            raise Refused(position, str(reason)) from reason
        for name, result in zip(node.outputs, made, strict=False):
            if name and result is not None:
                views[name] = result
    for name, target in results.items():
        if views[name] is target:
            continue
        try:
            build.copy(views[name], target)
        except (CannotLower, TooOpen, struct.error) as reason:
            maker = next(at for at, node in enumerate(nodes) if name in node.outputs)
            raise Refused(maker, str(reason)) from reason
    # A level costs little here; launches beside each other keep alive what both read.
    levels = schedule(build.launches, tells_columns=False)
    return NativeStep(
        levels,
        build,
        [(slots[name], view) for name, view in sources.items()],
        [(slots[name], view) for name, view in results.items()],
        pool,
        budget,
        symbols,
    )


def refusals(
    nodes: Sequence[Node],
    types: Mapping[str, TensorType],
    constants: Mapping[str, Constant],
    instructions: InstructionSet,
    threads: int,
    is_strict: bool,
) -> dict[str, str]:
    """First output of each node that has no machine code by itself → why.

    Nodes are lowered to find out, on throw-away buffers; what they come to is kept for `compile_native`.

    Args:
        nodes: any.
        types: of all values.
        constants: values that are known.
        instructions: the set that code may use.
        threads: that will run it.
        is_strict: as for `compile_native`.
    """
    build = NativeBuilder(instructions, threads, Layouts(frozenset(), {}), is_strict)
    found = {}
    for node in nodes:
        if type(find(node)).lower is Operator.lower:
            found[node.key] = f"{node.op} has no {build.makes}"
            continue
        views = {
            name: build.buffer(BufferKind.INPUT, types[name], name)
            for name in node.inputs
            if name and name not in constants
        }
        given = [view_of(name, views, constants, build, {}) for name in node.inputs]
        try:
            reason = build.refusal(node, given, [types[name] for name in node.outputs if name])
        except (TooOpen, struct.error) as error:
            reason = str(error)
        if reason is not None:
            found[node.key] = reason
    return found


def _rules(
    constants: Collection[str],
    instructions: InstructionSet,
    threads: int,
    is_strict: bool,
    types: Mapping[str, TensorType],
    node: Node,
) -> Rules:
    """What a convolution may do."""
    if not types[node.inputs[0]].dtype.is_float:
        return Rules.of_bytes(instructions, threads, find(node).halo_fill(node))
    is_known = node.inputs[1] in constants
    return Rules.of_floats(instructions, threads, is_known=is_known, is_strict=is_strict)


def _layouts(
    nodes: Sequence[Node],
    outputs: Sequence[str],
    types: Mapping[str, TensorType],
    rules: Callable[[Node], Rules],
) -> Layouts:
    """Which values lie channels-last, and what borders convolutions want round them.

    Args:
        nodes: in topological order.
        outputs: values that are wanted outside.
        types: of all values.
        rules: of a convolution.
    """
    last: set[str] = set()
    borders: dict[str, Border] = {}
    for node in nodes:
        anchor = members(node)[0]
        operator = find(anchor)
        follows = not last.isdisjoint(node.inputs) and operator.keeps_layout(anchor)
        if operator.is_spatial or follows:
            last.update(
                [
                    name
                    for name in node.outputs
                    if name and types[name].is_static and types[name].rank in (3, 4, 5)
                ]
            )
        if operator.is_spatial:
            _want_border(borders, anchor, types, rules)
    return Layouts(frozenset(last - set(outputs)), borders)


def _want_border(
    borders: dict[str, Border],
    node: Node,
    types: Mapping[str, TensorType],
    rules: Callable[[Node], Rules],
) -> None:
    x = types.get(node.inputs[0])
    if x is None or not x.is_static or len(x.dims) not in (3, 4, 5):
        return
    given = [types.get(name) for name in node.inputs]
    operator = find(node)
    under = rules(node) if len(node.inputs) > 1 else None
    form = (
        None
        if node.form is None or is_deciding()
        else (node.form, under, *[type_ and type_.key for type_ in given])
    )
    wanted = _borders.get(form) if form else None
    if wanted is None:
        windows, fill = operator.windows(node, given), operator.halo_fill(node)
        if windows is None:
            wanted = Border()
        elif under is not None and isinstance(windows, ConvGeometry):
            wanted = border_of(windows, under, fill)
        else:
            wanted = Border.reached_by(windows, fill)
        if form:
            if len(_borders) >= _FORMS_KEPT:
                _borders.clear()
            _borders[form] = wanted
    name = node.inputs[0]
    known = borders.get(name)
    borders[name] = wanted if known is None else known.joined(wanted)
