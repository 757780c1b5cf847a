"""What the steps of a plan do, for people: shapes as the model has them, operations, bytes, reasons."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from vkml.engine.cpu_bound import CpuBound
from vkml.engine.flight import Timing
from vkml.engine.plan import Plan
from vkml.engine.programs import Bound, VulkanBound
from vkml.engine.report import StepReport
from vkml.ir import Node, TensorType, find
from vkml.ir.lazy import lazy
from vkml.ir.size import concrete
from vkml.ir.size_terms import Symbol
from vkml.ir.wording import counted
from vkml.kernels.spec import Dispatch
from vkml.kernels.views import Buffer, View
from vkml.lowering.cpu import Form
from vkml.passes.bind_sizes import bind_sizes
from vkml.passes.fuse import is_fused, members

NUMPY = "numpy"
"""Variant of a step that NumPy runs."""


class StepFacts:
    """What is known of a plan's steps for certain sizes.

    Args:
        plan: whose.
        known: the open sizes.
    """

    def __init__(self, plan: Plan, known: Mapping[Symbol, int]) -> None:
        self._known = known
        # Nothing here may keep the plan or its programs alive: these have memory on devices.
        gpu = [program for program in plan.programs if isinstance(program, VulkanBound)]
        self._dispatches = [each for program in gpu for each in program.program.dispatches]
        cpu = [(program.types, program.forms) for program in plan.programs if isinstance(program, CpuBound)]
        self._forms = [(node, types, form) for types, forms in cpu for node, form in forms]
        graph = plan.graph
        bound = bind_sizes(graph.nodes, graph.types, graph.constants, known)
        self._types = {**bound.types, **{name: each.type for name, each in bound.constants.items()}}
        self._whole = {part.label: node for node in bound.nodes for part in members(node)}
        self._alike: dict[tuple[str, ...], list[Node]] = {}
        """By the labels of their parts: nodes of one body, which is called by the node that it stands for."""
        for node in bound.nodes:
            self._alike.setdefault(tuple(part.label for part in members(node)), []).append(node)
        self._refused = dict(plan.fallbacks)

    def steps(self, program: Bound) -> list[StepReport]:
        """The steps of one of the plan's programs, in their order."""
        if isinstance(program, CpuBound):
            return [self.on_cpu(node, program.types, form) for node, form in program.forms]
        assert isinstance(program, VulkanBound)
        return [self.dispatched(program.device, each) for each in program.program.dispatches]

    def dispatched(self, device: str, dispatch: Dispatch) -> StepReport:
        """A launch on a GPU; of all launches of its nodes, the one that moves most does what they cost."""
        payers = self._payers.get(id(dispatch))
        nodes = payers or self._nodes(dispatch.nodes)
        shapes = [self._types[name].dims for node in nodes for name in node.outputs if name in self._types]
        kernel = dispatch.kernel
        x, y, z = (concrete(count, self._known) for count in dispatch.groups)
        return StepReport(
            device,
            kernel.label,
            dispatch.nodes,
            dispatch.operators,
            tuple(shapes) or tuple(self._shape(view) for view in dispatch.writes),
            kernel.variant,
            _reason(dispatch.operators, kernel.reason or "the one kernel for it"),
            (x, y, z),
            flops=sum(self._flops(node, self._types) for node in payers or ()),
            bytes=self._bytes(dispatch),
        )

    def timed(self, timing: Timing) -> StepReport:
        """A step that ran: a launch, or a node on the CPU, which may have several launches."""
        if timing.dispatch is not None:
            return self.dispatched(timing.device, timing.dispatch)
        keys = (timing.nodes, *((label,) for label in timing.nodes))
        found = next((self._on_cpu[key] for key in keys if key in self._on_cpu), None)
        if found is None:
            return StepReport("cpu", ", ".join(timing.nodes), timing.nodes, (), (), reason="it serves others")
        return found

    @lazy
    def _on_cpu(self) -> dict[tuple[str, ...], StepReport]:
        """Steps of the CPU by the labels of their nodes, and by each of these; those alike are one."""
        found: dict[tuple[str, ...], StepReport] = {}
        for node, types, form in self._forms:
            step = self.on_cpu(node, types, form)
            other = found.get(step.nodes)
            if other is not None:
                step = replace(step, flops=step.flops + other.flops, bytes=step.bytes + other.bytes)
            found[step.nodes] = step
        for step in list(found.values()):
            for label in step.nodes:
                found.setdefault((label,), step)
        return found

    def on_cpu(self, node: Node, types: Mapping[str, TensorType], form: Form) -> StepReport:
        """A node on the CPU, which may be several fused ones."""
        parts = members(node)
        operators = tuple(part.op for part in parts)
        types = {**self._types, **types}
        shapes = tuple(types[name].dims for name in node.outputs if name and types[name].is_static)
        refused = next((self._refused[part.label] for part in parts if part.label in self._refused), "")
        how = form.reason or ("by NumPy" if form.variant == NUMPY else "machine code")
        return StepReport(
            "cpu",
            "+".join(part.op for part in parts[:6]),
            tuple(part.label for part in parts),
            operators,
            shapes,
            form.variant,
            _reason(operators, f"{refused}; {how}" if refused else how),
            flops=self._flops(node, types),
            bytes=sum(
                types[name].bytes
                for name in dict.fromkeys((*node.reads, *node.outputs))
                if name in types and types[name].is_static
            ),
        )

    def _nodes(self, labels: Iterable[str]) -> list[Node]:
        found = {id(self._whole[label]): self._whole[label] for label in labels if label in self._whole}
        return list(found.values())

    @lazy
    def _payers(self) -> dict[int, list[Node]]:
        """Launches, by identity, that do what nodes cost, and these nodes.

        Of a node's launches that is the one that moves most: others bring its operands into form, or sum up.
        """
        launches: dict[tuple[str, ...], list[Dispatch]] = {}
        for each in self._dispatches:
            launches.setdefault(each.nodes, []).append(each)
        found: dict[int, list[Node]] = {}
        for labels, dispatches in launches.items():
            alike = self._alike.get(labels)
            if alike is None:
                heaviest = max(dispatches, key=self._bytes)
                found[id(heaviest)] = self._nodes(labels)
                continue
            heavy = {id(each) for each in sorted(dispatches, key=self._bytes, reverse=True)[: len(alike)]}
            paying = [each for each in dispatches if id(each) in heavy]
            for number, node in enumerate(alike):
                found.setdefault(id(paying[min(number, len(paying) - 1)]), []).append(node)
        return found

    def _flops(self, node: Node, types: Mapping[str, TensorType]) -> int:
        if is_fused(node):
            types = {**node.attributes["body"].types, **types}
        count = 0
        for part in members(node):
            inputs = [types.get(name) for name in part.inputs]
            outputs = [types[name] for name in part.outputs if name in types]
            given = [type_ for type_ in (*inputs, *outputs) if type_ is not None]
            is_complete = len(given) == sum(map(bool, part.inputs)) + len(outputs) and bool(outputs)
            if is_complete and all(type_.is_static and not type_.is_open for type_ in given):
                count += 2 * find(part).multiply_adds(part, inputs, outputs)
        return count

    def _shape(self, view: View) -> tuple[int, ...]:
        return tuple(concrete(size, self._known) for size in view.shape)

    def _bytes(self, dispatch: Dispatch) -> int:
        """What a launch has to read and write: elements that strides repeat count once."""
        found: dict[Buffer, int] = {}
        for view in (*dispatch.reads, *dispatch.writes):
            dims = [size for size, stride in zip(self._shape(view), view.strides, strict=True) if stride != 0]
            whole = concrete(view.buffer.bytes, self._known)
            found[view.buffer] = min(found.get(view.buffer, 0) + view.dtype.bytes_for(math.prod(dims)), whole)
        return sum(found.values())


def _reason(operators: Sequence[str], how: str) -> str:
    """Why a step is as it is, in words."""
    if len(operators) < 2:
        return how
    return f"{counted(len(operators), 'node')} in one pass; {how}"
