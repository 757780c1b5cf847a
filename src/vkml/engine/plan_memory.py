"""Whether there is memory for what a plan computes on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from vkml.cpu.memory import MemoryBudget, amount, free_memory
from vkml.engine.cpu_bound import CpuBound
from vkml.engine.programs import Bound
from vkml.errors import OutOfMemory
from vkml.ir import Node, TensorType, find
from vkml.lowering.cpu import CpuProgram


def budget_of(share: float) -> MemoryBudget:
    """A share of the memory that is free now."""
    return MemoryBudget(free_memory(), share)


def check_results(nodes: Sequence[Node], types: Mapping[str, TensorType], budget: MemoryBudget) -> None:
    """Refuses nodes one of which cannot fit by itself, before anything is compiled for it."""
    sizes = [_result_bytes(node, types) for node in nodes]
    need = max(sizes, default=0)
    if not budget.admits(need):
        label = nodes[sizes.index(need)].label
        raise OutOfMemory(
            f"cpu: {label} needs {amount(need)} for its results, {budget}; use a smaller batch, or another "
            "device"
        )


def check_folded(share: float) -> Callable[[Node, int], None]:
    """What refuses values that decide sizes where there is no memory to compute them before a run.

    It is given the node that makes one, and the bytes of all that planning then holds beyond its allowance.

    Args:
        share: of the memory that is free when the first comes.
    """
    found: list[MemoryBudget] = []

    def check(node: Node, need: int) -> None:
        if not found:
            found.append(budget_of(share))
        [budget] = found
        if not budget.admits(need):
            raise OutOfMemory(
                f"cpu: the result of {node.label} decides sizes, so it is computed before the model runs; "
                f"such values need {amount(need)} beyond what constants take, {budget}; use a smaller batch"
            )

    return check


def check_peak(programs: Sequence[Bound], types: Mapping[str, TensorType], share: float) -> None:
    """Refuses programs that cannot fit: the system would end the process instead of saying so."""
    on_cpu = [program for program in programs if isinstance(program, CpuBound)]
    if not on_cpu:
        return
    held = most = 0
    for program in programs:
        if isinstance(program, CpuBound):
            most = max(most, held + program.result_bytes)
        # What a program makes is held to the end of the run.
        held += sum(types[name].host_bytes for name in program.outputs if types[name].is_static)
    need = most + sum(program.arena_bytes for program in on_cpu)
    _check_need(need, [node for program in on_cpu for node in program.piece.nodes], types, share)


def check_program(
    program: CpuProgram, nodes: Sequence[Node], types: Mapping[str, TensorType], share: float
) -> None:
    """As `check_peak`, for one program."""
    _check_need(program.result_bytes(types) + program.arena_bytes, nodes, types, share)


def _check_need(need: int, nodes: Sequence[Node], types: Mapping[str, TensorType], share: float) -> None:
    budget = budget_of(share)
    if budget.admits(need):
        return
    largest = max(nodes, key=lambda node: _result_bytes(node, types))
    name = max((name for name in largest.outputs if name), key=lambda name: _bytes(types[name]))
    raise OutOfMemory(
        f"cpu: values alive at the same time need {amount(need)}, {budget}; the largest is "
        f"'{name}' of {largest.label} with {amount(_bytes(types[name]))}; use a smaller batch, or "
        "another device"
    )


def _result_bytes(node: Node, types: Mapping[str, TensorType]) -> int:
    """What a node's results take; nothing where they are views."""
    if find(node).is_view:
        return 0
    return sum(_bytes(types[name]) for name in node.outputs if name)


def _bytes(type_: TensorType) -> int:
    return type_.host_bytes if type_.is_static else 0
