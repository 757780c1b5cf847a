"""Which elementwise launches become one: those of one form that nothing keeps apart."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence

from vkml.kernels.horizontal import MOST_VARIANTS, joined
from vkml.kernels.spec import Dispatch
from vkml.kernels.views import Buffer
from vkml.lowering.target import Target

LEAST_MEMBERS = 4
"""A launch beside others of its level takes 0.17 µs on an H200; reading a table is taken to cost two."""
MOVED_ELEMENTS = 1 << 16
"""What is larger keeps its level: it fills a device by itself, and to wait would keep alive what it reads."""


def fused_horizontally(
    levels: list[list[Dispatch]], target: Target, over: Mapping[Buffer, Buffer] | None = None
) -> list[list[Dispatch]]:
    """The levels with elementwise launches of one form joined, such as the updates of many parameters.

    A launch may move to a later level than `schedule` found, up to where something needs what it writes, or
    writes what it reads. So updates of all small parameters are one launch, whenever their gradients come.

    Args:
        levels: without open sizes.
        target: the device.
        over: as for `schedule`.
    """
    forms: dict[Hashable, list[tuple[int, int, Dispatch]]] = defaultdict(list)
    """Form → last and first possible level, and the launch."""
    if sum(launch.kernel.form is not None for level in levels for launch in level) < LEAST_MEMBERS:
        return levels
    for launch, level, latest in _ranges(levels, over or {}):
        forms[launch.kernel.form].append((latest, level, launch))
    replaced: set[int] = set()
    added: dict[int, list[Dispatch]] = defaultdict(list)
    for launches in forms.values():
        for level, members in _meeting(launches):
            replaced.update(map(id, members))
            added[level].append(joined(members, target.push_bytes, target.max_groups))
    if not replaced:
        return levels
    kept = [
        [*[launch for launch in level if id(launch) not in replaced], *added[number]]
        for number, level in enumerate(levels)
    ]
    return [level for level in kept if level]


def _ranges(
    levels: Sequence[Sequence[Dispatch]], over: Mapping[Buffer, Buffer]
) -> list[tuple[Dispatch, int, int]]:
    """Elementwise launches, in their order, each with its level and the latest in which it may run."""
    found: list[tuple[Dispatch, int, int]] = []
    touched: dict[Buffer, int] = {}
    written: dict[Buffer, int] = {}
    """The next level in which a buffer is touched at all, or written."""
    end = len(levels)
    for number in range(end - 1, -1, -1):
        places = [
            (
                launch,
                {over.get(view.buffer, view.buffer) for view in launch.reads},
                {over.get(view.buffer, view.buffer) for view in launch.writes},
            )
            for launch in levels[number]
        ]
        for launch, reads, writes in reversed(places):
            if launch.kernel.form is None:
                continue
            latest = number
            if all(view.elements <= MOVED_ELEMENTS for view in launch.writes):
                latest = min(
                    [end, *[touched.get(b, end) for b in writes], *[written.get(b, end) for b in reads]]
                )
                latest -= 1
            found.append((launch, number, latest))
        for _, reads, writes in places:
            touched.update(dict.fromkeys(reads | writes, number))
            written.update(dict.fromkeys(writes, number))
    return found[::-1]


def _meeting(launches: Sequence[tuple[int, int, Dispatch]]) -> list[tuple[int, list[Dispatch]]]:
    """Sets of launches that can run in one level, as few as possible, and the first such level of each."""
    found = []
    ordered = sorted(launches, key=lambda entry: entry[1])
    waiting: list[tuple[int, int, Dispatch]] = []
    at = 0
    for latest in sorted({entry[0] for entry in launches}):
        while at < len(ordered) and ordered[at][1] <= latest:
            waiting.append(ordered[at])
            at += 1
        if len(waiting) < LEAST_MEMBERS:  # too few meet those that cannot wait: others may wait longer
            waiting = [entry for entry in waiting if entry[0] > latest]
            continue
        group, waiting = waiting, []
        texts = list(dict.fromkeys(launch.kernel.text for _, _, launch in group))
        for first in range(0, len(texts), MOST_VARIANTS):
            chosen = texts[first : first + MOST_VARIANTS]
            part = [entry for entry in group if entry[2].kernel.text in chosen]
            if len(part) >= LEAST_MEMBERS:
                found.append((max(level for _, level, _ in part), [launch for _, _, launch in part]))
    return found
