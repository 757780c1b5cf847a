"""A sample of ONNX's backend suite on every device; `python -m tests.conformance` runs all of it."""

from __future__ import annotations

import pytest

from tests.conformance.expected import (
    Outcome,
    expectation_of,
    expectations,
    known_fallbacks,
    outcome_of,
    unexpected_fallbacks,
)
from tests.conformance.judge import judge
from tests.conformance.sample import sample
from tests.conformance.suite import suite
from tests.conftest import vulkan_devices


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each device with the cases that are run on its kind."""
    if "case_name" in metafunc.fixturenames:
        devices = [("cpu", "cpu"), *vulkan_devices()]
        metafunc.parametrize(
            ("device", "kind", "case_name"),
            [
                pytest.param(device, kind, name, id=f"{kind}-{name}")
                for device, kind in devices
                for name in sample(suite(), kind)
            ],
        )


def test_case(device: str, kind: str, case_name: str) -> None:
    case = suite()[case_name]
    verdict = judge(case, device)
    outcome = outcome_of(verdict, expectation_of(case, f"{kind} at high", expectations()))
    assert outcome.is_good, f"{outcome.value}: {verdict.failure}"
    assert not unexpected_fallbacks(case, verdict, kind, known_fallbacks())


def test_there_is_a_case_of_each_operator_that_is_supported() -> None:
    cases = suite()
    used = {op for case in cases.values() for op in case.operators}
    unsupported = {line.pattern for line in expectations() if line.is_operator}
    for kind in ("cpu", "lavapipe"):
        chosen = {op for name in sample(cases, kind) for op in cases[name].operators}
        assert chosen == used - unsupported - _only_beside(unsupported)


ENGINE = """
If Loop Scan SequenceAt SequenceConstruct SequenceEmpty SequenceErase SequenceInsert SequenceLength
SplitToSequence ConcatFromSequence SequenceMap Optional OptionalHasElement OptionalGetElement LSTM GRU RNN
NonMaxSuppression NonZero Unique Compress
"""
"""Operators that are the engine's own work: containers, control flow, recurrence, sizes from data."""


@pytest.mark.parametrize("kind", ["cpu", "lavapipe"])
def test_all_cases_of_what_the_engine_does_itself_are_run(kind: str) -> None:
    """And none of them is expected to fail."""
    cases, chosen = suite(), set(sample(suite(), kind))
    for op in ENGINE.split():
        mine = {name for name, case in cases.items() if op in case.operators}
        assert mine and mine <= chosen, op
        assert not [name for name in mine if expectation_of(cases[name], kind, expectations())], op


def _only_beside(unsupported: set[str]) -> set[str]:
    """Operators that only cases with one of others have."""
    cases = suite().values()
    used = {op for case in cases for op in case.operators}
    return used - {op for case in cases if not case.operators & unsupported for op in case.operators}


def test_cases_that_round_otherwise_still_do() -> None:
    """Those of the list that fail though all operators are supported, on the CPU."""
    cases = suite()
    lines = [line for line in expectations() if not line.is_operator and line.holds_on("cpu")]
    for name, case in cases.items():
        line = expectation_of(case, "cpu", lines)
        if line is not None:
            assert outcome_of(judge(case, "cpu"), line) is Outcome.EXPECTED_FAILURE, name
