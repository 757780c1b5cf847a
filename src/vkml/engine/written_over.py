"""Which outputs of a plan of several programs may be written over an input, and what has to begin before."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from vkml.engine.programs import VulkanBound
from vkml.lowering.donation import donations

Pairs = frozenset[tuple[str, str]]


class Reading(Protocol):
    """A program, as far as it matters here."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def written_over(
    programs: Sequence[Reading], wanted: Collection[tuple[str, str]]
) -> tuple[Pairs, list[set[int]]]:
    """Inputs, and outputs that may be at their address.

    They may where every other program that reads the input can begin before the one that makes the output:
    what begins on one device is done in that order, and other devices have a copy from their beginning on.

    Args:
        programs: of a plan, in an order in which they can run.
        wanted: inputs, and outputs that are to be written over them.

    Returns:
        Those among them that may, and for each program those that have to begin before it.
    """
    if not wanted:
        return frozenset(), []
    maker = {name: at for at, program in enumerate(programs) for name in program.outputs}
    before = [{maker[name] for name in program.inputs if name in maker} for program in programs]
    behind: list[set[int]] = [set() for _ in programs]
    own = [donations(p.program) if isinstance(p, VulkanBound) else frozenset() for p in programs]
    found = set()
    for name, output in wanted:
        at = maker.get(output)
        if at is None or not isinstance(programs[at], VulkanBound):
            continue
        readers = {number for number, program in enumerate(programs) if name in program.inputs}
        if at in readers and (name, output) not in own[at]:
            continue
        others = readers - {at}
        if any(_needs(number, at, before) for number in others):
            continue
        for number in others:
            before[at].add(number)
            behind[at].add(number)
        found.add((name, output))
    return frozenset(found), behind


def _needs(program: int, other: int, before: Sequence[Collection[int]]) -> bool:
    """Whether a program can begin only behind another one."""
    seen: set[int] = set()
    stack = [program]
    while stack:
        at = stack.pop()
        if at == other:
            return True
        if at not in seen:
            seen.add(at)
            stack += before[at]
    return False
