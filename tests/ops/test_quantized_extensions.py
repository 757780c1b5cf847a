"""Quantised operators of com.microsoft against onnxruntime, within one step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

import vkml
from tests.ops.checking import build_model, run_operator
from tests.ops.extension_cases import check_all_on
from vkml.errors import Error
from vkml.ir import Node, find
from vkml.ir.operator import normalise_attributes
from vkml.ops.stepwise import evaluate_steps

Array = np.ndarray[Any, Any]
RANDOM = np.random.default_rng(93)


def steps(*shape: int, dtype: Any = np.uint8) -> Array:
    bounds = np.iinfo(dtype)
    return RANDOM.integers(bounds.min, bounds.max + 1, shape).astype(dtype)


def quantization(scale: float = 0.05, zero: int = 120, dtype: Any = np.uint8) -> list[Array]:
    return [np.float32(scale), dtype(zero)]


def real(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype(np.float32)


X, Y = [steps(1, 4, 6, 5), *quantization()], [steps(4, 1, 5), *quantization(0.02, 90)]
SIGNED = [steps(1, 4, 6, 5, dtype=np.int8), *quantization(0.05, -3, np.int8)]
A, B = [steps(3, 8), *quantization()], [steps(8, 6, dtype=np.int8), *quantization(0.03, 2, np.int8)]
POOL = {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]}
WIDE = [steps(3, 8, dtype=np.int16), np.full(8, 0.25, np.float32), steps(8, dtype=np.int16)]
REAL = real(3, 8)
PRODUCT = [np.float32(0.05), np.float32(0.03)]
BIAS = real(6)
LAST = np.moveaxis(X[0], 1, -1).copy()
KERNEL = [steps(5, 4, 3, 2, dtype=np.int8), *quantization(0.02, 0, np.int8)]
KERNEL_BIAS = steps(5, dtype=np.int8).astype(np.int32) * 50
QUERIES = [steps(2, 4, 10), steps(10, 48, dtype=np.int8), real(48), np.float32(0.02), np.float32(0.01)]
ZEROS = [np.uint8(120), np.int8(0)]
WORDS = RANDOM.integers(0, 6, (2, 3)).astype(np.int32)
CASES: dict[str, tuple[list[Array | None], dict[str, Any]]] = {
    "QLinearAdd": ([*X, *Y, *quantization(0.1, 100)], {}),
    "QLinearMul": ([*X, *Y, *quantization(0.2, 100)], {}),
    "QLinearSigmoid": ([*X, *quantization(1 / 256, 0)], {}),
    "QLinearLeakyRelu": ([*SIGNED, *quantization(0.04, -9, np.int8)], {"alpha": 0.2}),
    "QLinearSoftmax": ([*X, *quantization(1 / 256, 0)], {"axis": -1, "opset": 13}),
    "QLinearSoftmax of old": ([*X, *quantization(1 / 256, 0)], {"axis": 1, "opset": 11}),
    "QLinearAveragePool": ([*X, *quantization()], POOL),
    "QLinearAveragePool of channels last": ([*X, *quantization()], {**POOL, "channels_last": 1}),
    "QLinearGlobalAveragePool": ([*X, *quantization(0.01)], {}),
    "QLinearGlobalAveragePool of channels last": ([*X, *quantization(0.01)], {"channels_last": 1}),
    "QLinearConv": ([*X, *KERNEL, *quantization(0.3, 100), KERNEL_BIAS], {"kernel_shape": [3, 2]}),
    "QLinearConv of channels last": (
        [LAST, *X[1:], *KERNEL, *quantization(0.3, 100), KERNEL_BIAS],
        {"kernel_shape": [3, 2], "channels_last": 1, "pads": [1, 0, 1, 1]},
    ),
    "QAttention": ([*QUERIES, None, *ZEROS], {"num_heads": 2}),
    "QAttention of a mask": (
        [*QUERIES, np.array([2, 4], np.int32), *ZEROS], {"num_heads": 2, "unidirectional": 1},
    ),
    "QAttention with a past": (
        [*QUERIES, None, *ZEROS, real(2, 2, 2, 3, 8)], {"num_heads": 2, "unidirectional": 1},
    ),
    "QEmbedLayerNormalization": (
        [
            WORDS, WORDS % 2, steps(6, 4), steps(7, 4), steps(2, 4), steps(4), steps(4), WORDS % 3,
            *[np.float32(0.02 * at) for at in range(1, 6)], *[np.uint8(100 + at) for at in range(5)],
        ],
        {},
    ),
    "QLinearConcat": ([*quantization(0.06, 100), *X, *X[:1], *quantization(0.03, 99)], {"axis": 1}),
    "QLinearWhere": ([steps(6, 5) > 99, *X, *Y, *quantization(0.06, 100)], {}),
    "QGemm": ([*A, *B, steps(6, dtype=np.int8).astype(np.int32), *quantization(0.1, 100)], {}),
    "QGemm to float": ([*A, *B, steps(6, dtype=np.int8).astype(np.int32)], {"alpha": 0.5}),
    "MatMulIntegerToFloat": ([A[0], B[0], *PRODUCT, A[2], B[2], BIAS], {}),
    "DynamicQuantizeMatMul": ([REAL, B[0], PRODUCT[1], B[2], BIAS], {}),
    "QuantizeLinear": ([REAL, np.float32(0.01), np.uint16(300)], {}),
    "DequantizeLinear": (WIDE, {}),
    "MatMulNBits": (
        [real(2, 3, 40), steps(5, 3, 8), RANDOM.random(15).astype(np.float32)],
        {"K": 40, "N": 5, "bits": 4, "block_size": 16},
    ),
    "MatMulNBits with zero points": (
        [
            real(3, 40), steps(5, 3, 8),
            RANDOM.random(15).astype(np.float32), steps(10), None, real(5),
        ],
        {"K": 40, "N": 5, "bits": 4, "block_size": 16},
    ),
    "MatMulNBits of bytes": (
        [real(3, 32), steps(5, 1, 32), RANDOM.random(5).astype(np.float32)],
        {"K": 32, "N": 5, "bits": 8, "block_size": 32},
    ),
    # Without zero points, which onnxruntime leaves out where there are groups.
    "MatMulNBits of groups": (
        [
            real(3, 40), steps(5, 3, 8), RANDOM.random((5, 3)).astype(np.float32), None,
            RANDOM.integers(0, 3, 40).astype(np.int32),
        ],
        {"K": 40, "N": 5, "bits": 4, "block_size": 16},
    ),
    "MatMulNBits of 2": (
        [real(3, 32), steps(5, 2, 4), RANDOM.random(10).astype(np.float32)],
        {"K": 32, "N": 5, "bits": 2, "block_size": 16},
    ),
    "GatherBlockQuantized with zero points": (
        [
            steps(6, 20), np.array([[5, -2]]), RANDOM.random((6, 3)).astype(np.float32), steps(6, 2),
        ],
        {"block_size": 16, "gather_axis": 0, "quantize_axis": 1, "bits": 4},
    ),
    "GatherBlockQuantized of bytes": (
        [steps(6, 20), np.array([5, 2], np.int32), RANDOM.random((6, 3)).astype(np.float32)],
        {"block_size": 16, "gather_axis": 0, "quantize_axis": 1, "bits": 4},
    ),
}  # fmt: skip


OF_TWO = ("QAttention with a past", "QEmbedLayerNormalization")
"""Those of two outputs."""


def model_of(name: str) -> tuple[bytes, dict[str, Array]]:
    inputs, attributes = CASES[name]
    op = name.split()[0]
    outputs = 2 if name in OF_TWO else 1
    model = build_model(op, inputs, attributes, opset=1, domain="com.microsoft", outputs=outputs)
    del model.opset_import[:]
    model.opset_import.extend([helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)])
    model.ir_version = 10
    return model.SerializeToString(), {
        f"x{at}": np.asarray(x) for at, x in enumerate(inputs) if x is not None
    }


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_onnxruntime(name: str) -> None:
    data, feed = model_of(name)
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    results = vkml.InferenceSession(data, devices="cpu").run(None, feed)
    for found, expected in zip(results, session.run(None, feed), strict=True):
        check(found, expected)


def check(found: Array, expected: Array) -> None:
    assert found.dtype == expected.dtype and found.shape == expected.shape
    if found.dtype == np.float32:
        # onnxruntime quantises A of MatMulNBits, too, where it may.
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
    else:
        assert np.abs(found.astype(int) - expected.astype(int)).max() <= 1
        assert (found == expected).mean() > 0.9


OF_FEW_BITS = [name for name in CASES if name.startswith(("MatMulNBits", "GatherBlock"))]


@pytest.mark.parametrize("name", OF_FEW_BITS)
def test_steps_do_what_the_definition_says(name: str) -> None:
    inputs, attributes = CASES[name]
    given = [None if x is None else np.asarray(x) for x in inputs]
    names = tuple("" if x is None else f"x{at}" for at, x in enumerate(given))
    node = Node(name.split()[0], names, ("y",), attributes, "n", "com.microsoft", 1)
    node = replace(node, attributes=normalise_attributes(node, find(node)))
    [expected], [found] = find(node).evaluate(node, given), evaluate_steps(node, given)
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["MatMulNBits with zero points", "GatherBlockQuantized of bytes"])
def test_weights_of_few_bits_are_machine_code(name: str) -> None:
    with vkml.InferenceSession(model_of(name)[0], devices="cpu") as session:
        assert not [step for step in session.report().steps if step.variant == "numpy"]


def test_weights_of_few_bits_run_on_a_device(vulkan_device_name: str) -> None:
    models = []
    for name in OF_FEW_BITS:
        data, feed = model_of(name)
        models.append((onnx.load_from_string(data), feed))
    check_all_on(vulkan_device_name, models)


def test_gathered_numbers_of_4_bits() -> None:
    data, zeros = (RANDOM.integers(-8, 8, shape).astype(ml_dtypes.int4) for shape in ((6, 40), (6, 3)))
    indices, factors = np.array([[0, -1], [3, 3]]), RANDOM.random((6, 3)).astype(np.float32)
    attributes = {"block_size": 16, "gather_axis": 0, "quantize_axis": 1}
    [found] = run_operator(
        "GatherBlockQuantized", [data, indices, factors, zeros], attributes, opset=1, domain="com.microsoft"
    )
    wide_zeros, wide_factors = (np.repeat(x.astype(np.float32), 16, 1)[:, :40] for x in (zeros, factors))
    np.testing.assert_array_equal(found, ((data.astype(np.float32) - wide_zeros) * wide_factors)[indices])


def test_an_index_is_outside() -> None:
    data, feed = model_of("GatherBlockQuantized of bytes")
    feed["x1"] = np.array([6, 0], np.int32)
    with pytest.raises(Error, match=r"GatherBlockQuantized node .* lies outside"):
        vkml.InferenceSession(data, devices="cpu").run(None, feed)
