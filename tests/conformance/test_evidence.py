"""Cases on the list of expected failures are such that what is right fails them, too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx.reference import ReferenceEvaluator

from tests.conformance.expected import expectation_of, expectations
from tests.conformance.judge import compare
from tests.conformance.suite import Case, suite

Array = np.ndarray[Any, Any]


def meets(case: Case, outputs: list[Array]) -> bool:
    """Whether outputs pass a case."""
    [(_, expected)] = case.data_sets()
    try:
        for mine, theirs in zip(outputs, expected, strict=True):
            compare(mine, theirs, case.rtol, case.atol)
    except AssertionError:
        return False
    return True


def by_reference(case: Case) -> bool:
    """Whether ONNX's own evaluator passes a case whenever it tries: draws without a seed could by chance."""
    assert isinstance(case.source, bytes)
    evaluator = ReferenceEvaluator(onnx.load_from_string(case.source))
    [(inputs, _)] = case.data_sets()
    feed = dict(zip(evaluator.input_names, inputs, strict=True))
    return all(meets(case, evaluator.run(None, feed)) for _ in range(4))  # type: ignore[arg-type]


def by_float64(case: Case) -> bool:
    """Whether the inverse transform passes that is computed in float64 and rounded once."""
    [(inputs, _)] = case.data_sets()
    [node] = onnx.load_from_string(case.source_for_session()).graph.node
    axis = next((a.i for a in node.attribute if a.name == "axis"), None)
    axis = int(inputs[-1]) if axis is None else axis
    pairs = inputs[0].astype(np.float64)
    made = np.fft.ifft(pairs[..., 0] + 1j * pairs[..., 1], axis=axis)
    return meets(case, [np.stack([made.real, made.imag], axis=-1).astype(np.float32)])


def by_onnxruntime(case: Case) -> bool:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(case.source, options, providers=["CPUExecutionProvider"])
    [(inputs, _)] = case.data_sets()
    names = [value.name for value in session.get_inputs()]
    return meets(case, session.run(None, dict(zip(names, inputs, strict=True))))


def ten_bits(x: Array) -> Array:
    """float32 rounded to TF32's ten bits of mantissa."""
    return ((x.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)


def by_ten_bits(case: Case) -> bool:
    """Whether a convolution passes whose operands have TF32's ten bits, with sums in float64."""
    return _by_windows(case, ten_bits)


def _by_windows(case: Case, rounded: Callable[[Array], Array]) -> bool:
    assert isinstance(case.source, Path)
    graph = onnx.load(case.source).graph
    [weights] = [rounded(onnx.numpy_helper.to_array(each)).astype(np.float64) for each in graph.initializer]
    [([x], _)] = case.data_sets()
    windows = np.lib.stride_tricks.sliding_window_view(rounded(x).astype(np.float64), (3, 3), axis=(2, 3))
    made = np.einsum("bchwij,fcij->bfhw", windows, weights, optimize=True)
    return meets(case, [made.astype(np.float32)])


WITNESSES: dict[str, tuple[Callable[[Case], bool], ...]] = {
    "draws are compared": (by_reference,),
    "zeros": (by_float64, by_onnxruntime),
    "products of ten bits": (by_ten_bits,),
}
"""How a reason begins → implementations that are right, and fail."""


def listed() -> list[tuple[str, str]]:
    """Names of the cases that are expected to fail on any device, and why."""
    lines = expectations()
    kinds = {device for line in lines for device in line.devices} | {"cpu"}
    found = {
        (name, line.reason)
        for kind in kinds
        for name, case in suite().items()
        if (line := expectation_of(case, kind, lines)) is not None
    }
    return sorted(found)


@pytest.mark.parametrize(("name", "reason"), listed())
def test_what_is_right_fails_it(name: str, reason: str) -> None:
    [witnesses] = [found for start, found in WITNESSES.items() if reason.startswith(start)]
    for passes in witnesses:
        assert not passes(suite()[name]), f"{passes.__name__} passes: the case can be met"


def test_witnesses_pass_cases_that_can_be_met() -> None:
    """Else they would be none."""
    assert by_reference(suite()["test_relu"]) and by_onnxruntime(suite()["test_relu"])
    assert _by_windows(suite()["test_operator_conv"], lambda x: x)
    for name in ("test_dft_inverse", "test_dft_inverse_opset19"):
        case = suite()[name]
        assert by_float64(replace(case, atol=2e-7)) and not by_float64(case), "it is the tolerance of zeros"


def test_no_more_than_eight_cases_fail() -> None:
    """2027 of 2033 pass on the CPU, 2025 on devices."""
    lines = expectations()
    for kind, most in (("cpu", 6), ("lavapipe", 8)):
        failing = [name for name, case in suite().items() if expectation_of(case, kind, lines) is not None]
        assert len(failing) <= most, failing
