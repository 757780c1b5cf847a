"""Plans for people: the steps that they take, and where memory goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from vkml.engine.control import Planned
from vkml.engine.cpu_bound import CpuBound
from vkml.engine.plan import Plan
from vkml.engine.programs import Bound, VulkanBound
from vkml.engine.report import PlanReport, StepReport
from vkml.engine.step_facts import StepFacts
from vkml.engine.weights import WeightStore

HOST = "between plans"
"""Variant of a step that no program has: control flow, sequences, optionals."""
HOST_REASON = "control flow, sequences and optionals are run by the host"


def report(
    planned: Sequence[Planned],
    weights: Mapping[str, WeightStore],
    shapes: Mapping[str, tuple[int, ...]],
    assumed: Sequence[str] = (),
) -> PlanReport:
    """The plans of a model's segments for people.

    Args:
        planned: in the order in which they run, bodies behind the nodes that run them.
        weights: device → what is there.
        shapes: of the model's inputs.
        assumed: what planning took for known, and what it could not plan.
    """
    steps: list[StepReport] = []
    memory: dict[str, dict[str, int]] = {}
    barriers = 0
    for each in planned:
        if each.plan is None:
            steps.append(_host_step(each))
            continue
        facts = StepFacts(each.plan, each.plan.known(each.shapes))
        for program in each.plan.programs:
            steps += [replace(step, depth=each.depth) for step in facts.steps(program)]
            barriers += max(0, len(program.program.levels) - 1) if isinstance(program, VulkanBound) else 0
            kinds = memory.setdefault(program.device, {})
            for kind, size in _memory(program, each.plan, weights.get(program.device)).items():
                is_shared = kind == "weights" and isinstance(program, VulkanBound)
                kinds[kind] = size if is_shared else kinds.get(kind, 0) + size
    plans = [each.plan for each in planned if each.plan is not None]
    programs = [program for plan in plans for program in plan.programs]
    device = next((program.device for program in programs if program.device != "cpu"), "cpu")
    fallbacks = tuple(fallback for plan in plans for fallback in plan.fallbacks)
    return PlanReport(
        device,
        len(programs),
        tuple(steps),
        memory,
        fallbacks,
        barriers,
        dict(shapes),
        tuple(assumed),
        tuple(dict.fromkeys(reason for plan in plans for reason in plan.reasons)),
    )


def _host_step(planned: Planned) -> StepReport:
    node = planned.node
    assert node is not None
    return StepReport("cpu", node.op, (node.label,), (node.op,), (), HOST, HOST_REASON, depth=planned.depth)


def _memory(program: Bound, plan: Plan, weights: WeightStore | None) -> dict[str, int]:
    """Kind of memory → bytes of it that a program uses."""
    if isinstance(program, CpuBound):
        names = {name for node in program.piece.nodes for name in node.reads}
        constants = [plan.graph.constants[name] for name in names if name in plan.graph.constants]
        return {
            "activations": program.arena_bytes,
            "weights": sum(constant.type.bytes for constant in constants),
        }
    assert isinstance(program, VulkanBound)
    return {
        "weights": weights.bytes if weights else 0,
        "activations": program.arena_bytes,
        "inputs": program.input_bytes,
        "outputs": program.output_bytes,
    }
