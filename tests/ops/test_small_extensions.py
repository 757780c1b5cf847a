"""Operators of com.microsoft that are a few of ONNX's: against onnxruntime, else against their formulas."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnxruntime
import pytest

import vkml
from tests.ops.checking import build_model
from vkml.errors import InvalidGraph, NotImplemented, ShapeError

Array = np.ndarray[Any, Any]
MICROSOFT = "com.microsoft"
Given = tuple[str, Sequence[Array | None], dict[str, Any]]


def normal(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(seed + sum(shape)).standard_normal(shape).astype(dtype)


def run(given: Given, device: str, outputs: int = 1) -> list[Array]:
    op, inputs, attributes = given
    model = build_model(op, inputs, attributes, opset=1, domain=MICROSOFT, outputs=outputs)
    feed = {f"x{at}": x for at, x in enumerate(inputs) if x is not None}
    with vkml.InferenceSession(model.SerializeToString(), devices=device) as session:
        return [np.asarray(each) for each in session.run(None, feed)]


def by_onnxruntime(given: Given, outputs: int = 1) -> list[Array]:
    op, inputs, attributes = given
    model = build_model(op, inputs, attributes, opset=1, domain=MICROSOFT, outputs=outputs)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    feed = {f"x{at}": x for at, x in enumerate(inputs) if x is not None}
    return [np.asarray(each) for each in session.run(None, feed)]


def compare(found: Array, wanted: Array) -> None:
    assert found.shape == wanted.shape and found.dtype == wanted.dtype, (found.dtype, wanted.dtype)
    if found.dtype.kind == "f":
        rtol = 2e-3 if found.dtype == np.float16 else 2e-5
        np.testing.assert_allclose(found, wanted, rtol=rtol, atol=rtol / 2)
    else:
        np.testing.assert_array_equal(found, wanted)


def octets(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).integers(0, 256, shape).astype(np.uint8)


AGAINST_ONNXRUNTIME: dict[str, Given] = {
    "squared distances": ("CDist", [normal(7, 5), normal(4, 5, seed=1)], {"metric": "sqeuclidean"}),
    "distances": ("CDist", [normal(3, 9), normal(8, 9, seed=1)], {"metric": "euclidean"}),
    "distances of doubles": (
        "CDist",
        [normal(3, 9, dtype=np.float64), normal(8, 9, seed=1, dtype=np.float64)],
        {"metric": "euclidean"},
    ),
    "maxima channels-last": (
        "NhwcMaxPool",
        [octets(2, 7, 6, 5)],
        {"kernel_shape": (3, 2), "strides": (2, 1)},
    ),
    "padded maxima channels-last": (
        "NhwcMaxPool",
        [octets(1, 6, 6, 3).astype(np.int8)],
        {"kernel_shape": (2, 2), "pads": (1, 0, 1, 1), "dilations": (2, 1), "ceil_mode": 1},
    ),
    "a gated normalisation": ("GatedRMSNorm", [normal(2, 3, 8), normal(8), normal(2, 3, 8, seed=1)], {}),
    "a gated normalisation of groups": (
        "GatedRMSNorm",
        [normal(4, 12), normal(4), normal(4, 12, seed=1)],
        {"activation": "sigmoid", "epsilon": 1e-3},
    ),
    "branches": ("BranchwiseRMSNorm", [normal(2, 3, 8)], {"epsilon": 1e-3}),
    "flat branches": ("BranchwiseRMSNorm", [normal(5, 12), normal(12)], {"num_branches": 3}),
    "branches that share a scale": ("BranchwiseRMSNorm", [normal(5, 12), normal(4)], {"num_branches": 3}),
    "branches with scales": ("BranchwiseRMSNorm", [normal(5, 3, 4), normal(3, 4)], {}),
    "a gated sum": ("GatedAdd", [normal(3, 4), normal(3, 4, seed=1), normal(3, 1)], {}),
    "words of 16 bits": (
        "MatMulInteger16",
        [normal(3, 4).astype(np.int16), (normal(4, 5) * 300).astype(np.int16)],
        {},
    ),
    "NF4": (
        "MatMulBnb4",
        [normal(3, 32), octets(32 * 24 // 2), np.abs(normal(32 * 24 // 16))],
        {"K": 32, "N": 24, "block_size": 16, "quant_type": 1},
    ),
    "FP4, blocks over several rows": (
        "MatMulBnb4",
        [normal(2, 3, 24), octets(24 * 8 // 2), np.abs(normal(24 * 8 // 64))],
        {"K": 24, "N": 8, "block_size": 64, "quant_type": 0},
    ),
    "repeated pairs": (
        "NGramRepeatBlock",
        [np.array([[3, 1, 4, 1, 5, 3, 1], [0, 0, 0, 0, 0, 0, 0]]), normal(2, 7)],
        {"ngram_size": 2},
    ),
    "repeated triples": (
        "NGramRepeatBlock",
        [np.array([[3, 1, 4, 2, 3, 1], [1, 2, 3, 1, 2, 3]]), normal(2, 6)],
        {"ngram_size": 3},
    ),
    "fewer words than a run": ("NGramRepeatBlock", [np.array([[3, 1]]), normal(1, 6)], {"ngram_size": 4}),
}


@pytest.mark.parametrize("name", AGAINST_ONNXRUNTIME)
def test_against_onnxruntime(name: str, either_device_name: str) -> None:
    given = AGAINST_ONNXRUNTIME[name]
    [found], [wanted] = run(given, either_device_name), by_onnxruntime(given)
    compare(found, wanted)


def sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def gelu(x: Array) -> Array:
    return np.asarray(0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))


def swiglu(gate: Array, up: Array, alpha: float = 1, beta: float = 0, limit: float = math.inf) -> Array:
    gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
    return np.asarray(gate * sigmoid(alpha * gate) * (up + beta)).astype(gate.dtype)


def softmax(x: Array, axis: int) -> Array:
    flat = x.reshape(math.prod(x.shape[:axis]), -1)
    powers = np.exp(flat - flat.max(1, keepdims=True))
    return np.asarray(powers / powers.sum(1, keepdims=True)).reshape(x.shape)


def mean(x: Array, scale: float, zero: int, result: float, result_zero: int, axes: tuple[int, ...]) -> Array:
    numbers = (x.astype(np.float32) - zero) * scale
    steps = np.rint(numbers.mean(axes, keepdims=True) / result) + result_zero
    return np.clip(steps, 0, 255).astype(np.uint8)


A, B, C = normal(3, 4), normal(4, 6), normal(6)
G, H = normal(2, 3, 8) * 3, normal(2, 3, 8, seed=1) * 3
X, BIAS = normal(2, 3, 4, 5), normal(2, 1, 1, 5)
BY_FORMULA: dict[str, tuple[Given, Callable[[], Array]]] = {
    "a product's Gelu": (("GemmFastGelu", [A, B], {}), lambda: gelu(A @ B)),
    "a biased product's Gelu": (("GemmFastGelu", [A, B, C], {}), lambda: gelu(A @ B + C)),
    "SwiGLU": (("SwiGLU", [G, H], {}), lambda: swiglu(G, H)),
    "SwiGLU of halves, clamped": (
        ("SwiGLU", [G], {"limit": 1.5, "activation_alpha": 1.702, "activation_beta": 1.0}),
        lambda: swiglu(G[..., :4], G[..., 4:], 1.702, 1.0, 1.5),
    ),
    "SwiGLU of float16": (
        ("SwiGLU", [G.astype(np.float16), H.astype(np.float16)], {}),
        lambda: swiglu(G.astype(np.float16).astype(np.float32), H.astype(np.float16)).astype(np.float16),
    ),
    "a gate that is projected": (
        ("GatedAdd", [A, A[::-1].copy(), B.T[:3].copy(), normal(4, 1)], {}),
        lambda: A + A[::-1] * sigmoid(B.T[:3] @ normal(4, 1)),
    ),
    "a biased Softmax": (
        ("BiasSoftmax", [X, BIAS], {"axis": 3, "is_inner_broadcast": 0}),
        lambda: softmax(X + BIAS, 3),
    ),
    "a biased Softmax over two axes": (
        ("BiasSoftmax", [X, X[:, :1].copy()], {"axis": 2, "is_inner_broadcast": 1}),
        lambda: softmax(X + X[:, :1], 2),
    ),
    "a quantised mean": (
        (
            "QLinearReduceMean",
            [octets(2, 5, 4), np.array(0.1, np.float32), np.array(7, np.uint8), np.array(0.05, np.float32),
             np.array(100, np.uint8)],
            {"axes": (1, -1), "keepdims": 1},
        ),
        lambda: mean(octets(2, 5, 4), 0.1, 7, 0.05, 100, (1, 2)),
    ),
    "a quantised mean without zero points": (
        (
            "QLinearReduceMean",
            [octets(2, 5, 4), np.array(0.1, np.float32), None, np.array(0.2, np.float32)],
            {"axes": (0,), "keepdims": 0},
        ),
        lambda: mean(octets(2, 5, 4), 0.1, 0, 0.2, 0, (0,))[0],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BY_FORMULA)
def test_by_formula(name: str, either_device_name: str) -> None:
    given, formula = BY_FORMULA[name]
    [found] = run(given, either_device_name)
    compare(found, formula())


@pytest.mark.parametrize(("step", "dtype"), [(None, np.int64), (3, np.int32), (-0.5, np.float32)])
@pytest.mark.parametrize("shape", [(), (1,)])
def test_ranges(step: float | None, dtype: Any, shape: tuple[int, ...]) -> None:
    first, end = (2, 9) if step is None or step > 0 else (9, 2)
    ends = [np.full(shape, each, dtype) for each in (first, end, *([] if step is None else [step]))]
    [found], [wanted] = run(("Range", ends, {}), "cpu"), by_onnxruntime(("Range", ends, {}))
    compare(found, wanted)


def test_elements_without_repetition() -> None:
    given: Given = ("Unique", [np.float32([2, 1, 1, 3, 4, 3])], {})
    for found, wanted in zip(run(given, "cpu", 3), by_onnxruntime(given, 3), strict=True):
        compare(found, wanted)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (("CDist", [A, A], {"metric": "cityblock"}), NotImplemented, "'cityblock'"),
        (("NGramRepeatBlock", [np.array([[1]]), A[:1]], {"ngram_size": 0}), InvalidGraph, "1 at least"),
        (("GatedRMSNorm", [A, C[:4], A], {"activation": "relu"}), InvalidGraph, "none of silu"),
        (("GatedRMSNorm", [A, C, A], {}), ShapeError, "a scale of"),
        (("BranchwiseRMSNorm", [A], {"num_branches": 3}), ShapeError, "no 3 branches"),
        (
            ("MatMulBnb4", [A, octets(8), C], {"K": 4, "N": 4, "block_size": 16, "quant_type": 2}),
            InvalidGraph,
            "quant_type",
        ),
    ],
)
def test_what_is_refused(given: Given, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        run(given, "cpu")
