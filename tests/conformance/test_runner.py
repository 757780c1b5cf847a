"""What runs the suite: data, comparison, the list of expected failures, processes that crash or hang."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper

import tests.conformance.__main__
import tests.conformance.judge
from tests.conformance import workers
from tests.conformance.__main__ import WIDTH, main, summary
from tests.conformance.expected import (
    Outcome,
    expectation_of,
    expectations,
    outcome_of,
    stale,
    stale_fallbacks,
    unexpected_fallbacks,
)
from tests.conformance.judge import compare, judge, perturbed
from tests.conformance.suite import Case, suite
from tests.conformance.verdict import Verdict
from vkml.ir.operator import REGISTRY

REPOSITORY = Path(__file__).parents[2]
LEAST = 2033
"""Cases of onnx 1.23.2; there can only be more."""


def case(name: str = "test_it", op: str = "Relu", outputs: Any = (0.0, 2.0)) -> Case:
    """One node on [-1, 2]."""
    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2]) for name in "xy")
    graph = helper.make_graph([helper.make_node(op, ["x"], ["y"])], "it", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    data = [([np.array([-1, 2], np.float32)], [np.array(outputs, np.float32)])]
    return Case(name, "node", 1e-3, 1e-7, frozenset({op}), model.SerializeToString(), lambda: iter(data))


# -- the suite -----------------------------------------------------------------------------------------------


def test_all_cases_are_there() -> None:
    assert len(suite()) >= LEAST
    kinds = {kind: sum(case.kind == kind for case in suite().values()) for kind in ("node", "simple", "real")}
    assert kinds["node"] >= 1884 and kinds["simple"] >= 23 and kinds["real"] >= 9
    for case in suite().values():
        if case.kind != "node":
            assert any(outputs for _, outputs in case.data_sets()), case.name


def digest() -> str:
    """A hash of the data of cases that are random."""
    made = hashlib.sha256()
    for name in ("test_add", "test_gemm_all_attributes", "test_layer_normalization_4d_axis0", "test_xor2d"):
        for inputs, outputs in suite()[name].data_sets():
            for array in (*inputs, *outputs):
                made.update(np.ascontiguousarray(array).tobytes())
    return made.hexdigest()


OTHER_PROCESS = """
import sys
import numpy as np
from tests.conformance.__main__ import main
np.random.seed(5)
status = main(["--pattern", "test_relu*", "--jobs", "1"])
print(np.random.random())
from tests.conformance.test_runner import digest
print(digest())
sys.exit(status)
"""


def test_the_command_in_a_process_of_its_own() -> None:
    made = subprocess.run(
        [sys.executable, "-c", OTHER_PROCESS], capture_output=True, text=True, check=False, cwd=REPOSITORY
    )
    assert made.returncode == 0, made.stdout + made.stderr
    assert "     0  unexpected failures" in made.stdout and "     0  cases" not in made.stdout
    number, data = made.stdout.split()[-2:]
    assert float(number) == np.random.RandomState(5).random(), "the caller's random numbers were changed"
    assert data == digest(), "data differ between processes"


# -- judging -------------------------------------------------------------------------------------------------


def test_verdicts() -> None:
    assert judge(case(), "cpu") == Verdict("test_it", "", frozenset({"cpu"}))
    assert judge(case(outputs=(0.0, 2.01)), "cpu").failure.startswith("AssertionError: ")
    assert judge(case(op="Nonsense"), "cpu").failure.startswith("UnsupportedOperator: ")


def test_what_the_validation_layer_says_is_a_failure(
    vulkan_device_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = ["of an earlier case"]
    compared = tests.conformance.judge.compare

    def offend(*rest: Any) -> None:
        said.append("VUID-1: it is wrong")
        compared(*rest)

    monkeypatch.setattr(tests.conformance.judge.vulkan, "validation_messages", lambda: tuple(said))
    assert not judge(case(), vulkan_device_name).failure
    monkeypatch.setattr(tests.conformance.judge, "compare", offend)
    assert judge(case(), vulkan_device_name).failure == "validation: VUID-1: it is wrong"


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (np.float32([1.0]), np.float32([1.002])),
        (np.float32([1.0]), np.float32([[1.0]])),
        (np.float32([1.0]), np.float64([1.0])),
        (np.float32([np.nan]), np.float32([1.0])),
        (np.float32([np.inf]), np.float32([-np.inf])),
        (np.int64([10**6]), np.int64([10**6 + 1])),
        (np.int32([1]), np.int64([1])),
        (np.bool_([True]), np.bool_([False])),
        (np.array([1], ml_dtypes.bfloat16), np.array([1 + 2**-5], ml_dtypes.bfloat16)),
        (np.array([0.0], ml_dtypes.bfloat16), np.array([2**-6], ml_dtypes.bfloat16)),
        (np.array([1], ml_dtypes.bfloat16), np.array([np.nan], ml_dtypes.bfloat16)),
        (np.array([1], ml_dtypes.int4), np.array([2], ml_dtypes.int4)),
        (np.array(["a", "b"], object), np.array(["a", "c"], object)),
        ([np.float32([1])], [np.float32([1]), np.float32([1])]),
        ([np.float32([1])], [np.float32([2])]),
        (np.float32([1]), [np.float32([1])]),
        (None, np.float32([1])),
        (np.float32([1]), None),
    ],
)
def test_differences_are_seen(found: Any, expected: Any) -> None:
    with pytest.raises(AssertionError):
        compare(found, expected, 1e-3, 1e-7)
    compare(expected, expected, 1e-3, 1e-7)


def test_floats_have_a_tolerance() -> None:
    compare(np.float32([1.0, np.nan]), np.float32([1.0009, np.nan]), 1e-3, 1e-7)
    compare(np.array(["a"], object), np.array(["a"]), 1e-3, 1e-7)


# -- the list ------------------------------------------------------------------------------------------------

LINES = """
[UnsupportedOperator] it is not supported
operator Nonsense  # for now
[AssertionError on lavapipe, swiftshader] it rounds
test_round_*
[AssertionError on lavapipe at high] it has ten bits
test_ten
"""


@pytest.mark.parametrize(
    ("name", "op", "device", "failure", "outcome"),
    [
        ("test_a", "Relu", "cpu", "", Outcome.PASSED),
        ("test_a", "Relu", "cpu", "AssertionError: no", Outcome.UNEXPECTED_FAILURE),
        ("test_a", "Nonsense", "cpu", "UnsupportedOperator: no", Outcome.EXPECTED_FAILURE),
        ("test_a", "Nonsense", "cpu", "", Outcome.UNEXPECTED_PASS),
        ("test_a", "Nonsense", "cpu", "crash: SIGSEGV", Outcome.UNEXPECTED_FAILURE),
        ("test_round_1", "Round", "lavapipe", "AssertionError: no", Outcome.EXPECTED_FAILURE),
        ("test_round_1", "Round", "lavapipe", "", Outcome.UNEXPECTED_PASS),
        ("test_round_1", "Round", "lavapipe at high", "AssertionError: no", Outcome.EXPECTED_FAILURE),
        ("test_ten", "Conv", "lavapipe at high", "AssertionError: no", Outcome.EXPECTED_FAILURE),
        ("test_ten", "Conv", "lavapipe at highest", "", Outcome.PASSED),
        ("test_ten", "Conv", "lavapipe at highest", "AssertionError: no", Outcome.UNEXPECTED_FAILURE),
        ("test_round_1", "Round", "cpu", "", Outcome.PASSED),
        ("test_round_1", "Round", "cpu", "AssertionError: no", Outcome.UNEXPECTED_FAILURE),
    ],
)
def test_outcomes(name: str, op: str, device: str, failure: str, outcome: Outcome) -> None:
    listed = expectations(LINES)
    assert outcome_of(Verdict(name, failure), expectation_of(case(name, op), device, listed)) is outcome
    assert outcome.is_good == (outcome in (Outcome.PASSED, Outcome.EXPECTED_FAILURE))


def test_lines_about_nothing_are_named() -> None:
    names = {"test_round_1": "Round", "test_a": "Relu", "test_ten": "Conv"}
    cases = {name: case(name, op) for name, op in names.items()}
    assert stale(cases, expectations(LINES)) == ["line 3: 'Nonsense' is about no case"]
    twice = expectations("[E] r\ntest_round_1\noperator Round\noperator Relu")
    assert stale(cases, twice) == ["line 3: 'Round' is about no case"]


@pytest.mark.parametrize("text", ["test_a", "[no reason]\ntest_a", "[E] r\noperators Relu"])
def test_lines_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="line"):
        expectations(text)


def test_every_line_of_the_list_is_about_a_case() -> None:
    assert stale(suite(), expectations()) == []


def test_operators_of_the_list_are_not_supported() -> None:
    """Whoever adds an operator takes its line off the list."""
    names = {name for domain, name in REGISTRY if not domain}
    assert {line.pattern for line in expectations() if line.is_operator} & names == set()


# -- processes -----------------------------------------------------------------------------------------------


def judging() -> workers.Judge:
    def judged(name: str) -> Verdict:
        if name.startswith("crash"):
            os.kill(os.getpid(), signal.SIGSEGV)
        if name.startswith("exit"):
            os._exit(3)
        if name.startswith("hang"):
            time.sleep(600)
        return Verdict(name, f"pid: {os.getpid()}")

    return judged


def test_a_process_that_ends_costs_its_case() -> None:
    names = ["a", "crash 1", "b", "exit", "crash 2", "crash 3", "c", "hang", "d"]
    found = {each.name: each.failure for each in workers.run(names, judging, 2, seconds=3)}
    assert sorted(found) == sorted(names)
    assert all(found[name].startswith("pid: ") for name in "abcd")
    assert all(found[f"crash {at}"].startswith("crash: SIGSEGV") for at in (1, 2, 3))
    assert found["exit"].startswith("crash: exit status 3")
    assert found["hang"] == "hang: no verdict within 3 s"


def test_processes_stay() -> None:
    found = [each.failure for each in workers.run([f"{at}" for at in range(20)], judging, 2)]
    assert len(found) == 20 and len(set(found)) <= 2


# -- the summary ---------------------------------------------------------------------------------------------


def test_the_summary_says_what_is_unexpected() -> None:
    cases = {f"test_{name}": case(f"test_{name}") for name in ("a", "b", "c_" + "long_" * 20)}
    cases["test_n"] = case("test_n", "Nonsense")
    listed = expectations(
        "[E] it is so, for a reason that takes many words " + "more " * 20 + "\ntest_b\ntest_n"
    )
    found = {name: Verdict(name) for name in cases}
    found["test_a"] = Verdict("test_a", "E: " + "much to say " * 20)
    found["test_n"] = Verdict("test_n", "E: it is so")
    lines = list(summary(cases, found, "cpu", listed, ["line 1: 'x' is about no case"], 2.0))
    assert max(map(len, lines)) <= WIDTH
    text = "\n".join(lines)
    for part in (
        "     1  passed",
        "     1  expected failures",
        "     1  unexpected failures",
        "     1  unexpected passes",
        "     4  cases in 2 s",
        "test_a\n    E: much to say",
        "test_b\n    passed: take it off",
        "about no case",
    ):
        assert part in text, text


@pytest.mark.parametrize(
    ("pattern", "status", "said"),
    [("test_relu*", 0, "     0  unexpected failures"), ("test_no_such_case", 1, "     0  cases")],
)
def test_the_command(
    pattern: str, status: int, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["--pattern", pattern, "--jobs", "0"]) == status
    assert said in capsys.readouterr().out


def test_the_command_fails_by_the_list(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = [*expectations(), *expectations("[AssertionError] no\ntest_relu\ntest_gone")]
    monkeypatch.setattr(tests.conformance.__main__, "expectations", lambda: listed)
    assert main(["--pattern", "test_abs", "--jobs", "0"]) == 1
    assert "'test_gone' is about no case" in capsys.readouterr().out
    assert main(["--pattern", "test_relu", "--jobs", "0"]) == 1
    assert "     1  unexpected passes" in capsys.readouterr().out


def test_the_list_of_fallbacks_is_exact() -> None:
    """What falls back without being listed is found, and what is listed and falls back no more."""
    listed = expectations("[Relu on lavapipe] because\ntest_it\n[Exp on lavapipe] because\ntest_other")
    cases = {name: case(name) for name in ("test_it", "test_other", "test_third")}
    fell = {name: Verdict(name, fallbacks=("Relu: because",)) for name in cases}
    unexpected = [name for name in cases if unexpected_fallbacks(cases[name], fell[name], "lavapipe", listed)]
    assert unexpected == ["test_other", "test_third"]
    assert not unexpected_fallbacks(cases["test_it"], fell["test_it"], "nvidia", listed)
    assert [line.partition(":")[0] for line in stale_fallbacks(cases, fell, "lavapipe", listed)] == ["line 4"]
    assert not stale_fallbacks(cases, {"test_third": fell["test_third"]}, "lavapipe", listed)
    assert not stale_fallbacks(cases, fell, "nvidia", listed)


@pytest.mark.parametrize(
    "value",
    [
        np.float32([[1.0, -2.0], [3.0, 0.0]]),
        np.float32([np.inf, np.nan]),
        np.float64(3.0),
        np.complex64([1j]),
        np.int64([1, 2]),
        np.bool_([True, False]),
        np.array([1, 0], ml_dtypes.bfloat16),
        np.array([1, 2], ml_dtypes.int4),
        np.array([1, 0], ml_dtypes.float8_e4m3fn),
        np.array(["a", "b"], object),
        [np.float32([1]), np.float32([2])],
    ],
)
def test_a_changed_element_is_seen(value: Any) -> None:
    """What `--perturb` does to outputs fails a comparison with what they were."""
    value = np.asarray(value) if isinstance(value, np.generic) else value
    with pytest.raises(AssertionError):
        compare(perturbed(value), value, 1e-3, 1e-7)
