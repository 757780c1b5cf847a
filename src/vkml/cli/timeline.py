"""A drawing of a run: a row a device, a box a step, as wide as it took."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from vkml.cli.drawing import Box, Drawing, Label, Line, colours, fitting, legend
from vkml.engine.report import StepReport
from vkml.engine.report_text import node_names
from vkml.ir.wording import duration, shape_text

WIDTH = 1200
_LEFT, _RIGHT, _TOP, _ROW, _GAP = 90, 20, 56, 54, 12


def timeline(title: str, steps: Sequence[StepReport]) -> Drawing:
    """Draws steps, which run one behind the other.

    Args:
        title: above it.
        steps: in the order in which they ran, with their times.
    """
    devices = list(dict.fromkeys(step.device for step in steps))
    total = sum(step.seconds or 0.0 for step in steps) or 1e-9
    scale = (WIDTH - _LEFT - _RIGHT) / total
    bottom = _TOP + len(devices) * (_ROW + _GAP)
    drawing = Drawing(WIDTH, bottom, [Label(12, 24, title, 15, is_bold=True)])
    every = _tick(total)
    for count in range(int(total / every) + 1):
        x, time = _LEFT + count * every * scale, duration(count * every) if count else "0"
        drawing.shapes.append(Line(((x, _TOP - 8), (x, bottom)), "#dddddd"))
        drawing.shapes.append(Label(x, _TOP - 12, time, 10, True, "#666666"))
    for number, device in enumerate(devices):
        drawing.shapes.append(Label(12, _TOP + number * (_ROW + _GAP) + _ROW / 2 + 4, device, 12))
    weights: Counter[str] = Counter()
    for step in steps:
        weights[_kind(step)] += round((step.seconds or 0.0) * 1e9)
    fills = colours([name for name, _ in weights.most_common()])
    start = 0.0
    for step in steps:
        seconds, name = step.seconds or 0.0, _kind(step)
        x, width = _LEFT + start * scale, seconds * scale
        y = _TOP + devices.index(step.device) * (_ROW + _GAP)
        drawing.shapes.append(Box(x, y, width, _ROW, fills[name], _note(step)))
        texts = ((name, 12), (node_names(step.nodes), 10), (duration(seconds), 10))
        for line, (text, size) in enumerate(texts):
            shown = fitting(text, width - 6, size)
            if shown:
                drawing.shapes.append(Label(x + 3, y + 16 + 15 * line, shown, size))
        start += seconds
    shapes, end = legend(fills, _LEFT, bottom + 10, WIDTH - _LEFT - _RIGHT)
    drawing.shapes += shapes
    drawing.height = end + 6
    return drawing


def _kind(step: StepReport) -> str:
    return step.operators[0] if step.operators else step.kernel


def _note(step: StepReport) -> str:
    shapes, kernel = " ".join(map(shape_text, step.output_shapes)), f"{step.kernel} {step.variant}".strip()
    lines = (", ".join(step.nodes), kernel, shapes, duration(step.seconds or 0.0))
    return "\n".join(line for line in lines if line)


def _tick(total: float) -> float:
    """A round time that goes into the total five to twelve times."""
    power = 10.0 ** math.floor(math.log10(total / 5))
    return next(power * each for each in (1, 2, 5, 10) if total / (power * each) <= 12)
