"""The cases that `make test` runs: some of every operator on each device, all where that takes no time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import vkml.ops  # noqa: F401  (fills the registry)
from tests.conformance.expected import expectations
from tests.conformance.suite import Case
from vkml.ir.operator import REGISTRY

SHARE = {"cpu": 3, "swiftshader": 4}
"""Kind of device → one of so many cases of an operator is run, and at least one; others: `COSTLY_SHARE`."""
COSTLY_SHARE = 16
"""Where kernels are compiled, which takes half a second a case; what stands alone is run all the same."""

ALWAYS = ("align_corners",)
"""In names of cases that were wrong once, and of which a sample may have none."""
WHOLE = frozenset(("LSTM", "GRU", "RNN", "NonMaxSuppression", "NonZero", "Unique", "Compress"))
"""Operators of which all cases are run everywhere, as of those that stand alone."""


def sample(cases: Mapping[str, Case], device: str) -> list[str]:
    """Names of cases of the operators that are supported, the same every time.

    Args:
        cases: of the suite.
        device: its kind, as "cpu" or "lavapipe".
    """
    unsupported = {line.pattern for line in expectations() if line.is_operator}
    share = SHARE.get(device, COSTLY_SHARE)
    uses = Counter(op for case in cases.values() for op in case.operators)
    whole = WHOLE.union(op for (_, op), operator in REGISTRY.items() if operator.stands_alone)
    seen: Counter[str] = Counter()
    chosen = []
    for name, case in cases.items():
        if case.operators & unsupported or case.kind == "real":
            continue
        # The rarest operator is what a case is about.
        about = min(case.operators, key=lambda op: (uses[op], op))
        if seen[about] % share == 0 or case.operators & whole or any(each in name for each in ALWAYS):
            chosen.append(name)
        seen[about] += 1
    return chosen
