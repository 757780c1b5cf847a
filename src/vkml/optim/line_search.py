"""A step along a direction that meets the strong Wolfe conditions."""

from __future__ import annotations

import math
from collections.abc import Callable

from vkml.dataclasses import dataclass
from vkml.tensors import Tensor


@dataclass(frozen=True)
class Point:
    """A step along a direction.

    Attributes:
        step: how far.
        loss: there.
        gradient: there, of all parameters in a row.
        slope: the gradient along the direction.
    """

    step: float
    loss: float
    gradient: Tensor
    slope: float


Look = Callable[[float], Point]


def strong_wolfe(
    look: Look, start: Point, first: float, reach: float, *, sufficient: float = 1e-4, curvature: float = 0.9,
    tolerance: float = 1e-9, most: int = 25,
) -> tuple[Point, int]:  # fmt: skip
    """A step after which the loss and the slope have fallen enough (Nocedal and Wright, algorithms 3.5, 3.6).

    Args:
        look: the point that is so far along the direction.
        start: with a step of 0; its slope is negative.
        first: step to be tried first.
        reach: the greatest element of the direction.
        sufficient: share of the slope by which the loss has to fall.
        curvature: share of the slope that may be left.
        tolerance: the least difference of parameters.
        most: looks after the first.

    Returns:
        the point, and how often was looked.
    """

    def rises(point: Point) -> bool:
        return point.loss > start.loss + sufficient * point.step * start.slope

    def is_flat(point: Point) -> bool:
        return abs(point.slope) <= -curvature * start.slope

    # A bracket: points between which there is one that will do.
    before, now, looks = start, look(first), 0
    while looks < most:
        if rises(now) or (looks > 1 and now.loss >= before.loss):
            bracket = [before, now]
            break
        if is_flat(now):
            return now, looks + 1
        if now.slope >= 0:
            bracket = [before, now]
            break
        bounds = now.step + 0.01 * (now.step - before.step), now.step * 10
        before, now = now, look(_cubic(before, now, bounds))
        looks += 1
    else:
        bracket = [start, now]

    low, high = (0, 1) if bracket[0].loss <= bracket[1].loss else (1, 0)
    was_near = False
    while looks < most:
        if abs(bracket[1].step - bracket[0].step) * reach < tolerance:
            break
        step = _cubic(bracket[0], bracket[1])
        least, greatest = sorted(point.step for point in bracket)
        margin = 0.1 * (greatest - least)
        is_near = min(greatest - step, step - least) < margin
        if is_near and (was_near or not least < step < greatest):
            step = greatest - margin if abs(step - greatest) < abs(step - least) else least + margin
            is_near = False
        was_near = is_near
        now = look(step)
        looks += 1
        if rises(now) or now.loss >= bracket[low].loss:
            bracket[high] = now
            low, high = (0, 1) if bracket[0].loss <= bracket[1].loss else (1, 0)
            continue
        if is_flat(now):
            bracket[low] = now
            break
        if now.slope * (bracket[high].step - bracket[low].step) >= 0:
            bracket[high] = bracket[low]
        bracket[low] = now
    return bracket[low], looks + 1


def _cubic(one: Point, other: Point, bounds: tuple[float, float] | None = None) -> float:
    """Where the cubic through two points with their slopes is least, within bounds."""
    least, greatest = bounds or sorted((one.step, other.step))
    if one.step == other.step:
        return one.step
    left, right = (one, other) if one.step <= other.step else (other, one)
    chord = one.slope + other.slope - 3 * (one.loss - other.loss) / (one.step - other.step)
    square = chord * chord - one.slope * other.slope
    if not square >= 0:
        return (least + greatest) / 2
    root = math.sqrt(square)
    divisor = right.slope - left.slope + 2 * root
    if divisor == 0:  # a line, or what is not finite
        return greatest if root == root else (least + greatest) / 2
    at = right.step - (right.step - left.step) * ((right.slope + root - chord) / divisor)
    return min(max(at, least), greatest)
