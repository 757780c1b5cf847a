"""Which levels become phases of one dispatch: those that one workgroup does sooner than a device waits."""

from __future__ import annotations

import math
from collections.abc import Sequence

from vkml.kernels.phases import NEEDS, Phases, kind_of, merged, turns
from vkml.kernels.spec import Dispatch
from vkml.lowering.target import Target

offered = True
"""Whether levels are merged without being `forced` to."""
forced: int | None = None
"""For tests and measurements: how often a workgroup may begin anew in a level, whatever that costs."""

SPARED_MICROSECONDS = 1.75
"""By which a level is longer than a phase on an H200, where a workgroup does either in a turn: 1.75 to 1.83
in chains of 64 and 100 Adds, 1.72 in one of products and softmaxes. The turn itself takes as long in both."""
TURN_MICROSECONDS = 0.12
"""Of a further turn, 1024 elements, of an Add: one takes 0.23, three 0.42, seven 0.81,"""
TURN_OPERANDS = 3
"""which reads two operands and writes one; with more of them it takes as much longer."""
MOST_ADDED = SPARED_MICROSECONDS / 2
"""That turns may take: half, for in those chains a workgroup read from its L1 what it had written itself, and
none took more than eight."""
MOST_WORKGROUPS = 4 * (1 + MOST_ADDED / TURN_MICROSECONDS)
"""A level of more is no phase: the smallest kernels' have 64 threads, of which four fit into one."""
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

    small = [False, *map(_is_small, levels), False]
    for number, level in enumerate(levels):
        before, is_small, after = small[number : number + 3]
        # Of one that is alone nobody need know the kernels.
        if not is_small or not (before or after):
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
    """Whether a level may be worthwhile, by what is known before its kernels are compiled."""
    if any(type(count) is not int for launch in level for count in launch.groups):
        return False
    most = 4 * forced if forced is not None else MOST_WORKGROUPS
    if sum(math.prod(launch.groups) for launch in level) > most:
        return False
    others = 0
    for launch in level:
        kind = kind_of(launch.kernel.text)
        if kind is None or launch.table is not None:
            return False
        if not kind.is_simple:
            others += -(-math.prod(launch.groups) // (1 if kind.is_whole else 4))
    return forced is not None or others <= 1


def _is_worthwhile(level: Sequence[Dispatch], threads: int) -> bool:
    """Whether a workgroup does a level before a device has waited for it."""
    if forced is not None:
        return sum(turns(launch, threads) for launch in level) <= forced
    added = added_microseconds(level, threads)
    return added is not None and added <= MOST_ADDED


def added_microseconds(level: Sequence[Dispatch], threads: int) -> float | None:
    """What one workgroup takes longer for a level than workgroups that are beside each other.

    Args:
        level: launches of known numbers of workgroups.
        threads: of the one workgroup.

    Returns:
        None where that is not known: how long threads go together, or in a loop, hangs on sizes. A turn of a
        product of 16 rows and 64 steps of k takes 1.0 µs, so that two of them would spare something, and four
        of them cost more than they spare.
    """
    simple, others, longest = 0.0, 0, 0.0
    for launch in level:
        count, kind = turns(launch, threads), kind_of(launch.kernel.text)
        if kind is not None and kind.is_simple:
            one = TURN_MICROSECONDS * max(1.0, (len(launch.reads) + len(launch.writes)) / TURN_OPERANDS)
            simple += count * one
            longest = max(longest, one)
        else:
            others += count
    if others > 1:
        return None
    # One of them would take a turn in a level, too: the other one, whatever that is, or the longest.
    return simple if others else simple - longest
