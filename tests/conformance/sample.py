"""The cases that `make test` runs: some of every operator on each device, all where that takes no time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from tests.conformance.expected import expectations
from tests.conformance.suite import Case

SHARE = {"cpu": 3}
"""Kind of device → one of so many cases of an operator is run, and at least one; others: `COSTLY_SHARE`."""
COSTLY_SHARE = 12
"""Where kernels are compiled, which takes half a second a case."""


def sample(cases: Mapping[str, Case], device: str) -> list[str]:
    """Names of cases of the operators that are supported, the same every time.

    Args:
        cases: of the suite.
        device: its kind, as "cpu" or "lavapipe".
    """
    unsupported = {line.pattern for line in expectations() if line.is_operator}
    share = SHARE.get(device, COSTLY_SHARE)
    uses = Counter(op for case in cases.values() for op in case.operators)
    seen: Counter[str] = Counter()
    chosen = []
    for name, case in cases.items():
        if case.operators & unsupported or case.kind == "real":
            continue
        # The rarest operator is what a case is about.
        about = min(case.operators, key=lambda op: (uses[op], op))
        if seen[about] % share == 0:
            chosen.append(name)
        seen[about] += 1
    return chosen
