"""Models that onnxruntime's quantiser made run with products of bytes, and agree with onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, load_from_string, numpy_helper
from onnxruntime.quantization import QuantFormat, QuantType

import vkml
from tests.quantized.models import inverted_residual, quantized, residual, transformer
from vkml.cpu.native.executable import instruction_set
from vkml.engine import devices as device_registry

UNSIGNED = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QUInt8}
OPERATORS = {"quant_format": QuantFormat.QOperator, "activation_type": QuantType.QUInt8}
CASES: dict[str, tuple[Any, dict[str, Any], str, int]] = {
    "residual": (residual, {}, "ConvInteger", 8),
    "residual, a scale for each filter": (residual, {"per_channel": True}, "ConvInteger", 8),
    "residual, unsigned weights": (residual, UNSIGNED, "ConvInteger", 0),
    "residual of quantised operators": (residual, OPERATORS, "ConvInteger", 8),
    "inverted residual": (inverted_residual, {}, "ConvInteger", 5),
    "inverted residual, a scale for each filter": (
        inverted_residual,
        {"per_channel": True, "activation_type": QuantType.QUInt8},
        "ConvInteger",
        5,
    ),
    "inverted residual of quantised operators": (inverted_residual, OPERATORS, "ConvInteger", 5),
    "transformer": (transformer, {}, "MatMulInteger", 6),
    "transformer, scales at run time": (transformer, {"dynamic": True}, "MatMulInteger", 6),
}


def outputs(data: bytes, x: Any, level: Any) -> Any:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


def last_step(data: bytes) -> float:
    """The scale of the result, where it was quantised; else 0."""
    graph = load_from_string(data).graph
    [last] = [node for node in graph.node if graph.output[0].name in node.output]
    if last.op_type != "DequantizeLinear":
        return 0.0
    [scale] = [each for each in graph.initializer if each.name == last.input[1]]
    return float(numpy_helper.to_array(scale).max())


def multiplies_bytes(device: str) -> bool:
    """Whether a device has kernels for products of bytes."""
    return device_registry.resolve(device, "cpu").multiplies_bytes


@pytest.mark.usefixtures("launches_of_their_own")
@pytest.mark.parametrize("name", CASES)
def test_agrees_within_a_step(name: str, either_device_name: str) -> None:
    make, settings, op, count = CASES[name]
    data = quantized(make(), **settings)
    session = vkml.InferenceSession(data, devices=either_device_name)
    levels = onnxruntime.GraphOptimizationLevel
    shape = session.get_inputs()[0].shape
    for seed in range(3):
        x = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
        [found] = session.run(None, {"x": x})
        plain, fast = (outputs(data, x, level) for level in (levels.ORT_DISABLE_ALL, levels.ORT_ENABLE_ALL))
        # A step on the way becomes one of the result; two ways of onnxruntime.s own differ, too.
        step = last_step(data)
        if step:  # results are whole steps, but for how their products with the scale are rounded
            found, plain, fast = (np.rint(result / np.float64(step)) for result in (found, plain, fast))
            assert np.abs(found - plain).max() <= 1 + np.abs(fast - plain).max()
        else:
            assert np.abs(found - plain).max() <= 2 * np.abs(plain).max() / 255 + np.abs(fast - plain).max()
    steps = [each for each in session.report().steps if op in each.operators]
    if multiplies_bytes(either_device_name):
        assert len(steps) >= count
    if either_device_name == "cpu" and instruction_set() is not None:
        by_numpy = [each.operators for each in session.report().steps if each.variant == "numpy"]
        assert not by_numpy
        assert all("Conv" not in each.operators for each in session.report().steps) or UNSIGNED is settings


def test_a_model_that_is_fed_a_sequence_has_products_of_bytes_too() -> None:
    rng = np.random.default_rng(0)
    weight = rng.integers(-100, 100, (16, 8), np.int8)
    tensor = helper.make_tensor_type_proto(TensorProto.UINT8, [4, 16])
    graph = helper.make_graph(
        [
            helper.make_node("SequenceAt", ["list", "at"], ["x"]),
            helper.make_node("DequantizeLinear", ["x", "scale", "x_zero"], ["a"]),
            helper.make_node("DequantizeLinear", ["weight", "scale", "zero"], ["b"]),
            helper.make_node("MatMul", ["a", "b"], ["y"]),
        ],
        "sequence",
        [helper.make_value_info("list", helper.make_sequence_type_proto(tensor))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 8])],
        [
            numpy_helper.from_array(array, name)
            for name, array in {
                "at": np.array(1),
                "scale": np.float32(0.5),
                "x_zero": np.uint8(7),
                "zero": np.int8(0),
                "weight": weight,
            }.items()
        ],
    )
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])
    x = [rng.integers(0, 256, (4, 16), np.uint8) for _ in range(2)]
    [found] = vkml.InferenceSession(model.SerializeToString(), devices="cpu").run(None, {"list": x})
    expected = (x[1].astype(np.int64) - 7) @ weight.astype(np.int64) / 4
    np.testing.assert_allclose(found, expected, rtol=1e-6)
