"""What a plan is, for people: steps, memory, what fell back and why."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StepReport:
    """One launch, one node on the CPU, or one between plans, behind which its bodies' steps follow."""

    device: str
    kernel: str
    nodes: tuple[str, ...]
    operators: tuple[str, ...]
    output_shapes: tuple[tuple[int, ...], ...]
    variant: str = ""
    reason: str = ""
    workgroups: tuple[int, int, int] | None = None
    depth: int = 0
    """How many bodies of control flow it lies in."""


@dataclass(frozen=True)
class PlanReport:
    """A plan for one set of input shapes."""

    device: str
    segments: int
    steps: tuple[StepReport, ...]
    memory: dict[str, dict[str, int]]
    """Device → kind of memory → bytes."""
    fallbacks: tuple[tuple[str, str], ...]
    """Node, and why it does not run on the first device."""
    barriers: int
    input_shapes: dict[str, tuple[int, ...]]
    assumed: tuple[str, ...] = ()
    """What this plan takes for granted though only data decides it, and what was not planned without data."""
    placement: tuple[str, ...] = ()
    """Why a device does not run all nodes that it could."""
