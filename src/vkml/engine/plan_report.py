"""Plans for people: the steps that they take, and where memory goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vkml.engine.cpu_bound import CpuBound
from vkml.engine.plan import Plan
from vkml.engine.programs import VulkanBound
from vkml.engine.report import PlanReport, StepReport
from vkml.engine.weights import WeightStore
from vkml.ir import Node, TensorType
from vkml.lowering.cpu import Form
from vkml.passes.fuse import members


def report(
    plans: Sequence[Plan],
    weights: WeightStore | None,
    shapes: Mapping[str, tuple[int, ...]],
    assumed: Sequence[str] = (),
) -> PlanReport:
    """The plans of a model's segments for people.

    Args:
        plans: in the order in which they run.
        weights: on the device.
        shapes: of the model's inputs.
        assumed: what planning took for known, and what it could not plan.
    """
    steps: list[StepReport] = []
    memory: dict[str, dict[str, int]] = {}
    barriers = 0
    programs = [(plan, program) for plan in plans for program in plan.programs]
    for plan, program in programs:
        kinds = memory.setdefault(program.device, {})
        if isinstance(program, VulkanBound):
            barriers += max(0, len(program.program.levels) - 1)
            steps += [
                StepReport(
                    program.device,
                    d.kernel.label,
                    d.nodes,
                    d.operators,
                    tuple(view.shape for view in d.writes),
                    d.kernel.variant,
                    d.kernel.reason,
                    d.groups,
                )
                for d in program.program.dispatches
            ]
            sizes = {
                "weights": weights.bytes if weights else 0,
                "activations": program.arena_bytes,
                "inputs": program.input_bytes,
                "outputs": program.output_bytes,
            }
            for kind, size in sizes.items():
                kinds[kind] = size if kind == "weights" else kinds.get(kind, 0) + size
        elif isinstance(program, CpuBound):
            kinds["activations"] = kinds.get("activations", 0) + program.arena_bytes
            steps += [_cpu_step(node, program.types, form) for node, form in program.forms]
            names = {name for node in program.piece.nodes for name in node.reads}
            kinds["weights"] = kinds.get("weights", 0) + sum(
                plan.graph.constants[name].type.bytes for name in names if name in plan.graph.constants
            )
    device = next((program.device for _, program in programs if program.device != "cpu"), "cpu")
    fallbacks = tuple(fallback for plan in plans for fallback in plan.fallbacks)
    return PlanReport(
        device, len(programs), tuple(steps), memory, fallbacks, barriers, dict(shapes), tuple(assumed)
    )


def _cpu_step(node: Node, types: Mapping[str, TensorType], form: Form) -> StepReport:
    parts = members(node)
    shapes = tuple(types[name].dims for name in node.outputs if name and types[name].is_static)
    name = "+".join(part.op for part in parts[:6])
    labels, operators = tuple(p.label for p in parts), tuple(p.op for p in parts)
    return StepReport("cpu", name, labels, operators, shapes, form.variant, form.reason)
