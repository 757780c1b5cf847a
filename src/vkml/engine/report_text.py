"""Plan reports as text: a table of the steps with their reasons, memory, and what was assumed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vkml.engine.text_table import Column, text_table, wrapped
from vkml.ir.wording import counted, duration, shape_text, size, three_digits

if TYPE_CHECKING:
    from vkml.engine.report import PlanReport, StepReport

WIDTH = 80
COLUMNS = (
    Column("#", is_right=True),
    Column("node", is_cut=True),
    Column("operators", is_cut=True),
    Column("output", is_cut=True),
    Column("MFLOP", is_right=True),
    Column("bytes", is_right=True),
    Column("time", is_right=True),
)


def report_lines(report: PlanReport, width: int = WIDTH) -> list[str]:
    """The report as lines of at most `width` characters, where names do not hold line ends.

    Each step has a line with its node, operators, shape of the output, operations and bytes, and below it the
    device, the kernel and why it is so.
    """
    return [*step_lines(report, width), "", *memory_lines(report, width), *note_lines(report, width)]


def step_lines(report: PlanReport, width: int = WIDTH) -> list[str]:
    """The steps of a report."""
    parts = ((len(report.steps), "step"), (report.segments, "segment"), (report.barriers, "barrier"))
    title = f"Plan for {report.device}: {', '.join(counted(count, noun) for count, noun in parts)}"
    rows = [
        (
            str(number),
            "  " * step.depth + (node_names(step.nodes) or f"({step.kernel})"),
            operator_names(step.operators),
            " ".join(map(shape_text, step.output_shapes)),
            mega(step.flops),
            size(step.bytes) if step.bytes else "",
            "" if step.seconds is None else duration(step.seconds),
        )
        for number, step in enumerate(report.steps)
    ]
    notes = [step_note(step) for step in report.steps]
    return [title, *text_table(COLUMNS, rows, width, notes)]


def memory_lines(report: PlanReport, width: int = WIDTH) -> list[str]:
    """Where memory goes, a line a device."""
    lines = []
    for device, kinds in report.memory.items():
        held = ", ".join(f"{kind} {size(count)}" for kind, count in kinds.items())
        lines += wrapped(f"memory on {device}: {held}", width)
    return lines


def note_lines(report: PlanReport, width: int = WIDTH) -> list[str]:
    """What fell back to the CPU and why, why devices do not run more, and what was assumed."""
    found = [f"on the CPU: {node}: {reason}" for node, reason in report.fallbacks]
    found += report.placement
    found += [f"assumed: {text}" for text in report.assumed]
    return [line for text in found for line in wrapped(text, width)]


def step_note(step: StepReport) -> str:
    """The device, the kernel, and why a step is as it is."""
    kernel = f"{step.kernel} ({step.variant})" if step.variant else step.kernel
    what = step.variant or "cpu" if step.device == "cpu" else kernel
    return f"{step.device}: {what}: {step.reason}" if step.reason else f"{step.device}: {what}"


def node_name(label: str) -> str:
    """The name in a node's label: ``conv1`` of ``Conv node 'conv1'``."""
    _, quote, rest = label.partition("'")
    return rest.rpartition("'")[0] if quote else label


def node_names(labels: Sequence[str]) -> str:
    """The name of the first of some nodes, and how many others there are."""
    if not labels:
        return ""
    more = len(labels) - 1
    return f"{node_name(labels[0])} +{more}" if more else node_name(labels[0])


def operator_names(names: Sequence[str]) -> str:
    """``Conv Relu``, a run of the same one as ``Add ×9``."""
    runs: list[tuple[str, int]] = []
    for name in names:
        if runs and runs[-1][0] == name:
            runs[-1] = name, runs[-1][1] + 1
        else:
            runs.append((name, 1))
    return " ".join(name if count == 1 else f"{name} ×{count}" for name, count in runs)


def mega(flops: float) -> str:
    """Operations in millions; "" for none."""
    if not flops:
        return ""
    millions = flops / 1e6
    return f"{millions:,.0f}" if millions >= 1000 else three_digits(millions) if millions >= 0.01 else "<0.01"
