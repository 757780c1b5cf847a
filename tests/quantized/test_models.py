"""Models that onnxruntime's quantiser made run with products of bytes, and agree with onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnxruntime.quantization import QuantFormat, QuantType

import vkml
from tests.quantized.models import quantized, residual, transformer
from vkml.cpu.native.executable import instruction_set

UNSIGNED = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QUInt8}
OPERATORS = {"quant_format": QuantFormat.QOperator, "activation_type": QuantType.QUInt8}
CASES: dict[str, tuple[Any, dict[str, Any], str, int]] = {
    "residual": (residual, {}, "ConvInteger", 8),
    "residual, a scale for each filter": (residual, {"per_channel": True}, "ConvInteger", 8),
    "residual, unsigned weights": (residual, UNSIGNED, "ConvInteger", 0),
    "residual of quantised operators": (residual, OPERATORS, "ConvInteger", 8),
    "transformer": (transformer, {}, "MatMulInteger", 6),
    "transformer, scales at run time": (transformer, {"dynamic": True}, "MatMulInteger", 6),
}


def outputs(data: bytes, x: Any, level: Any) -> Any:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


@pytest.mark.parametrize("name", CASES)
def test_agrees_within_a_step(name: str) -> None:
    make, settings, op, count = CASES[name]
    data = quantized(make(), **settings)
    session = vkml.InferenceSession(data, devices="cpu")
    levels = onnxruntime.GraphOptimizationLevel
    shape = session.get_inputs()[0].shape
    for seed in range(3):
        x = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
        [found] = session.run(None, {"x": x})
        plain, fast = (outputs(data, x, level) for level in (levels.ORT_DISABLE_ALL, levels.ORT_ENABLE_ALL))
        # A step on the way becomes one of the result; two ways of onnxruntime.s own differ, too.
        step = 2 * np.abs(plain).max() / 255
        assert np.abs(found - plain).max() <= step + np.abs(fast - plain).max()
    if instruction_set() is not None:
        steps = [each for each in session.report().steps if op in each.operators]
        assert len(steps) >= count
        by_numpy = [each.operators for each in session.report().steps if each.variant == "numpy"]
        assert all(operators[0] == "MaxPool" for operators in by_numpy)  # of bytes
