"""Launches of all candidates that a lowering has met, for measuring them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import field

from vkml.dataclasses import dataclass
from vkml.kernels.spec import Dispatch


@dataclass(frozen=True)
class Trial:
    """What a candidate launches."""

    label: str
    expected: float | None
    """Microseconds by the rule's model."""
    launches: tuple[Dispatch, ...]
    """In an order in which they can run; none where it has no form here."""

    shared: frozenset[int] = frozenset()
    """Which of these are passes over an operand for all products that read it."""

    @property
    def passes(self) -> list[Dispatch]:
        """The launches that products share,"""
        return [launch for number, launch in enumerate(self.launches) if number in self.shared]

    @property
    def own(self) -> list[Dispatch]:
        """and the others."""
        return [launch for number, launch in enumerate(self.launches) if number not in self.shared]

    @property
    def form(self) -> Hashable:
        """Equal for candidates that launch the same."""
        return tuple((launch.kernel.name, launch.groups) for launch in self.launches)


@dataclass
class Trials:
    """Questions about launches, and the candidates for each, the rule's choice first."""

    is_wanted: Callable[[str], bool] = lambda question: True
    """Whether candidates for a question are to be collected."""
    counts: Counter[str] = field(default_factory=Counter)
    """How often each question came up."""
    found: dict[str, list[Trial]] = field(default_factory=dict)

    operands: dict[str, list[Hashable]] = field(default_factory=dict)
    """Of each question, the operands that it came up with whose passes may be shared."""
    readers: Counter[Hashable] = field(default_factory=Counter)
    """How many products read such an operand."""

    def wants(self, question: str, operand: Hashable = None) -> bool:
        """Notes that a question came up; whether its candidates are wanted, which happens once.

        Args:
            question: that came up.
            operand: whose passes other products may share; None where there is none.
        """
        self.counts[question] += 1
        if operand is not None:
            self.readers[operand] += 1
            self.operands.setdefault(question, []).append(operand)
        return question not in self.found and self.is_wanted(question)

    def share(self, question: str) -> float:
        """The share of a shared pass that a product has to bear, on the average."""
        operands = self.operands.get(question, [])
        return sum(1 / self.readers[each] for each in operands) / len(operands) if operands else 1.0

    def add(self, question: str, trials: Sequence[Trial]) -> None:
        """The candidates for a question, the rule's first."""
        if not trials[0].launches:
            return  # the node is lowered in another way, which has questions of its own
        # Numbers of K ranges that come to the same launches are one candidate.
        unlike = {trial.form: trial for trial in reversed(trials)}
        self.found[question] = [trial for trial in trials if unlike[trial.form] is trial and trial.launches]
