"""Which levels become phases of one dispatch: those that one workgroup does sooner than a device waits."""

from __future__ import annotations

import math
from collections.abc import Sequence

from vkml.kernels.phases import NEEDS, Phases, is_whole, merged, turns
from vkml.kernels.spec import Dispatch
from vkml.lowering.target import Target

offered = False
"""Whether levels are merged without being `forced` to: it has not been timed on a GPU yet."""
forced: int | None = None
"""For tests and measurements: how often a workgroup may begin anew in a level, whatever that costs."""

LEVEL_MICROSECONDS = 1.78
"""Of a dispatch that waits for the one before it, on an H200,"""
STEP_MICROSECONDS = 0.45
"""and of a phase that does, in one workgroup."""
TURN_MICROSECONDS = 0.6
"""Of a workgroup's worth of an elementwise launch behind another: loads, and stores. An estimate."""
MOST_LEVELS = 16
MOST_SOURCE = 32768
"""Levels in one dispatch, and characters of their launches' sources, of which a product of a few rows has
9,000 and an Add 600: drivers would have compiled single kernels at the same time."""


def merged_levels(levels: list[list[Dispatch]], target: Target) -> list[list[Dispatch]]:
    """The levels, with runs of small ones as one dispatch each.

    Args:
        levels: of a program; numbers of workgroups may be open, where levels stay as they are.
        target: the device.
    """
    if not (offered and target.processors > 1) and forced is None:
        return levels
    if not target.capabilities.issuperset(NEEDS):
        return levels
    made: list[list[Dispatch]] = []
    run = Phases()

    def close() -> None:
        nonlocal run
        if len(run.levels) > 1:
            made.append([merged(run)])
        else:
            made.extend(map(list, run.levels))
        run = Phases()

    for level in levels:
        if not _is_small(level):
            close()
            made.append(level)
            continue
        longer = _longer(run, level, target)
        if longer is None and run.levels:
            close()
            longer = _longer(run, level, target)
        if longer is None:
            made.append(level)
        else:
            run = longer
    close()
    return made


def _longer(run: Phases, level: Sequence[Dispatch], target: Target) -> Phases | None:
    """A run of levels with one more, where a kernel can be all of them and saves time."""
    found = run.with_level(level)
    if found is None or len(found.levels) > MOST_LEVELS:
        return None
    if sum(len(launch.kernel.source) for each in found.levels for launch in each) > MOST_SOURCE:
        return None
    if found.push_bytes > target.push_bytes or found.shared_bytes > target.shared_bytes:
        return None
    if found.workgroup > target.max_invocations:
        return None
    # With another number of threads others may take more turns.
    asked = found.levels if found.workgroup != run.workgroup else found.levels[-1:]
    return found if all(_is_worthwhile(each, found.workgroup) for each in asked) else None


def _is_small(level: Sequence[Dispatch]) -> bool:
    """Whether a level may be worthwhile, before anybody looks into its kernels."""
    if any(type(count) is not int for launch in level for count in launch.groups):
        return False
    most = forced if forced is not None else 1 + (LEVEL_MICROSECONDS - STEP_MICROSECONDS) / TURN_MICROSECONDS
    # Workgroups of the smallest kernels have 64 threads, of which four fit.
    return sum(math.prod(launch.groups) for launch in level) <= 4 * most


def _is_worthwhile(level: Sequence[Dispatch], threads: int) -> bool:
    """Whether a workgroup does a level before a device has waited for it."""
    each = [turns(launch, threads) for launch in level]
    if forced is not None:
        return sum(each) <= forced
    # How long a turn of a product takes is not known here: two of them are beside each other in a level.
    if sum(count for launch, count in zip(level, each, strict=True) if is_whole(launch)) > 1:
        return False
    return (sum(each) - 1) * TURN_MICROSECONDS <= LEVEL_MICROSECONDS - STEP_MICROSECONDS
