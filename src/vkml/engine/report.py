"""What a plan is, for people: steps, memory, what fell back and why."""

from __future__ import annotations

from vkml.dataclasses import dataclass
from vkml.engine.report_text import report_lines


@dataclass(frozen=True)
class StepReport:
    """One launch, one node on the CPU, or one between plans, behind which its bodies' steps follow."""

    device: str
    """The name of the device that it runs on."""
    kernel: str
    """What runs; of what NumPy computes, the operator."""
    nodes: tuple[str, ...]
    """Labels of the nodes it computes."""
    operators: tuple[str, ...]
    """Of these nodes."""
    output_shapes: tuple[tuple[int, ...], ...]
    """Of these nodes, as the model has them."""
    variant: str = ""
    """Which form of the kernel: tiles, ranges, or what computes it on the CPU."""
    reason: str = ""
    """Why it runs there, and in this way."""
    workgroups: tuple[int, int, int] | None = None
    """How many of them a launch on a GPU has along x, y and z."""
    depth: int = 0
    """How many bodies of control flow it lies in."""
    flops: int = 0
    """Of products that are summed up, a multiply-add being two; 0 for what only passes over its elements."""
    bytes: int = 0
    """That it has to read and write, each value once."""
    seconds: float | None = None
    """How long it took; None where that was not measured."""


@dataclass(frozen=True)
class PlanReport:
    """A plan for one set of input shapes."""

    device: str
    """The device that runs all it can."""
    segments: int
    """Parts, each of which one device runs without coming back to the host."""
    steps: tuple[StepReport, ...]
    """In the order of the model."""
    memory: dict[str, dict[str, int]]
    """Device → kind of memory → bytes."""
    fallbacks: tuple[tuple[str, str], ...]
    """Node, and why it does not run on the first device."""
    barriers: int
    """How often a GPU waits for what it has begun before it goes on."""
    input_shapes: dict[str, tuple[int, ...]]
    """Which the plan is for."""
    assumed: tuple[str, ...] = ()
    """What this plan takes for granted though only data decides it, and what was not planned without data."""
    placement: tuple[str, ...] = ()
    """Why a device does not run all nodes that it could."""

    def __str__(self) -> str:
        """A table of 80 columns."""
        return "\n".join(report_lines(self))
