"""Candidates for one launch: kernels and tiles that compute the same with the same precision."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping

from vkml.dataclasses import dataclass
from vkml.ir.size import is_multiple
from vkml.kernels.views import View

MOST_CANDIDATES = 6
"""That are measured for a launch: each is a kernel that has to be compiled;"""
WITHIN = 2.0
"""none that the rule expects to take so many times as long as its own choice."""
MOST_ALIKE = 2
"""Of one tile, which differ in numbers of K ranges alone."""


@dataclass(frozen=True)
class Candidate:
    """One way to compute a value."""

    label: str
    """Names it among the others, also in files."""
    expected: float | None
    """Microseconds by the rule's model; None where that has no estimate."""
    emit: Callable[[], list[View]]
    """Emits the launches; the views of the results."""
    family: str = ""
    """Names what it has in common with candidates that are `MOST_ALIKE`."""


def described(view: View) -> str:
    """What times hang on of an operand: type, shape, strides, whether it is aligned, whether a constant."""
    kind = " constant" if view.buffer.is_constant else ""
    aligned = "" if is_multiple(view.offset, 4) else " unaligned"
    return f"{view.dtype.name}{list(view.shape)}{list(view.strides)}{aligned}{kind}"


class Picks(Mapping[str, str]):
    """What measurement has found: question → label of the candidate to take. Hashable, never changed.

    A question says all that candidates' times hang on: sizes, element types, how operands lie.
    """

    def __init__(self, picks: Mapping[str, str]) -> None:
        self._picks = dict(picks)
        self._hash = hash(frozenset(self._picks.items()))

    def __getitem__(self, question: str) -> str:
        return self._picks[question]

    def __iter__(self) -> Iterator[str]:
        return iter(self._picks)

    def __len__(self) -> int:
        return len(self._picks)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Picks) and self._picks == other._picks


def picked(candidates: Iterable[Candidate], label: str | None) -> Candidate:
    """The candidate of a label; the first, the rule's, where there is no such (any more)."""
    if label is None:
        return next(iter(candidates))
    first: Candidate | None = None
    for candidate in candidates:
        if candidate.label == label:
            return candidate
        first = first or candidate
    assert first is not None, "the rule has a choice"
    return first


def worth_measuring(candidates: Iterable[Candidate]) -> list[Candidate]:
    """The rule's choice, those that it has no estimate for, then those that it expects to be little slower.

    Args:
        candidates: the rule's choice first.
    """
    given = iter(candidates)
    rule = next(given)
    rest = sorted(given, key=lambda each: each.expected or 0.0)
    expected = [each.expected for each in itertools.chain([rule], rest) if each.expected is not None]
    limit = WITHIN * min(expected, default=0.0)
    found = [rule]
    families = {rule.family: 1}
    for each in rest:
        if len(found) == MOST_CANDIDATES:
            break
        alike = families.get(each.family, 0)
        if (
            any(each.label == other.label for other in found)
            or (each.expected is not None and each.expected > limit)
            or (each.family and alike >= MOST_ALIKE)
        ):
            continue
        families[each.family] = alike + 1
        found.append(each)
    return found
