"""The list of cases that are expected to fail, and what a run makes of it."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from tests.conformance.suite import Case
from tests.conformance.verdict import Verdict

LIST = Path(__file__).parent / "expected_failures.txt"
FALLBACKS = Path(__file__).parent / "expected_fallbacks.txt"
_HEADING = re.compile(r"\[(?P<failure>\w+)(?: on (?P<devices>[\w, ]+))?\] (?P<reason>.+)")


@dataclass(frozen=True)
class Expectation:
    """A line of the list: cases that fail, and how."""

    number: int
    """Of the line."""
    pattern: str
    """Of names; of the operator where `is_operator`."""
    is_operator: bool
    failure: str
    """What the failure's text begins with."""
    devices: tuple[str, ...]
    """Kinds of devices that the cases fail on, as "nvidia", or "nvidia at high"; none: on all."""
    reason: str

    def matches(self, case: Case) -> bool:
        """Whether the line is about a case."""
        if self.is_operator:
            return self.pattern in case.operators
        return fnmatchcase(case.name, self.pattern)

    def holds_on(self, device: str) -> bool:
        """Whether the line is about a kind of device, as "cpu" or "nvidia at high"."""
        return not self.devices or not {device, device.partition(" at ")[0]}.isdisjoint(self.devices)


class Outcome(enum.Enum):
    """What a verdict is, with the list in mind."""

    PASSED = "passed"
    EXPECTED_FAILURE = "expected failures"
    UNEXPECTED_FAILURE = "unexpected failures"
    UNEXPECTED_PASS = "unexpected passes"

    @property
    def is_good(self) -> bool:
        """Whether a run with it succeeds."""
        return self in (Outcome.PASSED, Outcome.EXPECTED_FAILURE)


def expectations(text: str | None = None) -> list[Expectation]:
    """The lines of the list.

    Args:
        text: the list, for tests.

    Raises:
        ValueError: a line is none.
    """
    found: list[Expectation] = []
    heading = None
    for number, line in enumerate((LIST.read_text() if text is None else text).splitlines(), 1):
        entry = line.partition("#")[0].strip()
        if not entry:
            continue
        if entry.startswith("["):
            heading = _HEADING.fullmatch(entry)
            if heading is None:
                raise ValueError(f"line {number} of the list: {entry!r} is no heading")
            continue
        if heading is None:
            raise ValueError(f"line {number} of the list: {entry!r} has no heading with its reason")
        kind, _, name = entry.rpartition(" ")
        if kind not in ("", "operator"):
            raise ValueError(f"line {number} of the list: {entry!r} is neither a case nor an operator")
        devices = tuple(each.strip() for each in (heading["devices"] or "").split(",") if each.strip())
        found.append(Expectation(number, name, bool(kind), heading["failure"], devices, heading["reason"]))
    return found


def unexpected_fallbacks(
    case: Case, verdict: Verdict, device: str, listed: Sequence[Expectation]
) -> list[str]:
    """What fell back to the CPU though the list of fallbacks, whose headings name operators, does not say so.

    Args:
        case: of the suite.
        verdict: on the case.
        device: its kind.
        listed: the lines of `FALLBACKS`. Devices that none is about may lack any kernel.
    """
    if not any(line.devices and line.holds_on(device) for line in listed):
        return []
    known = {line.failure for line in listed if line.holds_on(device) and line.matches(case)}
    return [text for text in verdict.fallbacks if text.partition(":")[0] not in known]


def stale_fallbacks(
    cases: Mapping[str, Case], found: Mapping[str, Verdict], device: str, listed: Sequence[Expectation]
) -> list[str]:
    """Lines of the list of fallbacks by which none of the cases that were run fell back any more.

    Args:
        cases: of the suite.
        found: name → verdict, of those that were run.
        device: its kind.
        listed: the lines.
    """
    wrong = []
    for line in listed:
        mine = [verdict for name, verdict in found.items() if line.matches(cases[name])]
        if not line.holds_on(device) or not mine:
            continue
        if not any(text.partition(":")[0] == line.failure for verdict in mine for text in verdict.fallbacks):
            wrong.append(f"line {line.number}: '{line.pattern}' falls back no more: take it off")
    return wrong


def known_fallbacks() -> list[Expectation]:
    """The lines of `FALLBACKS`."""
    return expectations(FALLBACKS.read_text())


def expectation_of(case: Case, device: str, listed: Sequence[Expectation]) -> Expectation | None:
    """The line that a case is expected to fail by on a kind of device; the first of several."""
    return next((line for line in listed if line.holds_on(device) and line.matches(case)), None)


def outcome_of(verdict: Verdict, expectation: Expectation | None) -> Outcome:
    """What a verdict is; a case that fails otherwise than the list says fails unexpectedly."""
    if not verdict.failure:
        return Outcome.PASSED if expectation is None else Outcome.UNEXPECTED_PASS
    if expectation is not None and verdict.failure.startswith(f"{expectation.failure}:"):
        return Outcome.EXPECTED_FAILURE
    return Outcome.UNEXPECTED_FAILURE


def stale(cases: Mapping[str, Case], listed: Iterable[Expectation]) -> list[str]:
    """Lines that are about no case at all, or only about cases of earlier lines."""
    taken: set[str] = set()
    found = []
    for line in listed:
        mine = {f"{name} {line.devices}" for name, case in cases.items() if line.matches(case)}
        if mine <= taken:
            found.append(f"line {line.number}: '{line.pattern}' is about no case")
        taken |= mine
    return found
