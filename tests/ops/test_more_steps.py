"""Quantised numbers, features, losses and optimizers in steps, and what they evaluate to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.ops.checking import run_operator
from vkml.ir import Node, dtypes, find
from vkml.ir.operator import normalise_attributes
from vkml.ops.stepwise import evaluate_steps

RANDOM = np.random.default_rng(45)
FLOAT8, INT4, BFLOAT16 = (each.storage for each in (dtypes.FLOAT8E4M3FN, dtypes.INT4, dtypes.BFLOAT16))
ML, TRAINING = "ai.onnx.ml", "ai.onnx.preview.training"


def normal(*shape: int, dtype: Any = np.float32) -> Any:
    return RANDOM.standard_normal(shape).astype(dtype)


def counts(dtype: Any, *shape: int) -> Any:
    return RANDOM.integers(np.iinfo(dtype).min, np.iinfo(dtype).max + 1, shape).astype(dtype)


SPECIAL = np.array([np.nan, np.inf, -np.inf, 1e9, -1e9, 0.5, 1.5, 2.5], np.float32)
ONE = np.float32(1)
A, B = counts(np.uint8, 2, 3, 5), counts(np.int8, 5, 4)
X, W, BIAS = counts(np.uint8, 1, 2, 6, 6), counts(np.int8, 3, 2, 3, 3), counts(np.int32, 3) // 10**6
OF_RESULT = [np.float32(0.7), np.uint8(7)]
VECTORS = [normal(3), normal(3), np.abs(normal(3))]

Entry = tuple[str, str, list[Any], dict[str, Any], int]
CASES: list[Entry] = [
    ("QuantizeLinear", "", [SPECIAL, ONE, np.array(0, INT4)], {}, 1),
    ("QuantizeLinear", "", [SPECIAL, ONE, np.array(0.5, FLOAT8)], {"saturate": 0}, 1),
    ("QuantizeLinear", "", [normal(64, dtype=BFLOAT16), np.array(0.3, BFLOAT16), np.int8(3)], {}, 1),
    (
        "QuantizeLinear",
        "",
        [normal(3, 7), normal(3, 3), counts(np.int16, 3, 3)],
        {"axis": 1, "block_size": 3},
        1,
    ),
    ("DequantizeLinear", "", [counts(np.int8, 4, 6), normal(2, 6), None], {"axis": 0, "block_size": 2}, 1),
    ("DequantizeLinear", "", [normal(8, dtype=FLOAT8), np.float16(0.1)], {}, 1),
    ("MatMulInteger", "", [A, B, np.uint8(9), counts(np.int8, 4)], {}, 1),
    ("MatMulInteger", "", [A[0, 0], B, None, np.int8(-5)], {}, 1),
    ("ConvInteger", "", [X, W, np.uint8(200), counts(np.int8, 3)], {"pads": (1, 1, 1, 1)}, 1),
    ("ConvInteger", "", [counts(np.uint8, 1, 40, 3, 3), counts(np.uint8, 1, 40, 3, 3)], {}, 1),
    ("QLinearMatMul", "", [A, ONE, np.uint8(9), B, normal(4), counts(np.int8, 4), *OF_RESULT], {}, 1),
    ("QLinearMatMul", "", [A[0, 0], ONE, np.uint8(9), B[:, 0], ONE, np.int8(3), *OF_RESULT], {}, 1),
    (
        "QLinearConv",
        "",
        [X, ONE, np.uint8(9), W, normal(3), np.zeros(3, np.int8), np.float32(50), np.int8(7), BIAS],
        {"strides": (2, 2)},
        1,
    ),
    (
        "SoftmaxCrossEntropyLoss",
        "",
        [normal(4, 3, 2), counts(np.uint8, 4, 2) % 3, np.abs(normal(3))],
        {"ignore_index": 1},
        2,
    ),
    ("ArrayFeatureExtractor", ML, [normal(3, 4), np.array([[3, 0]])], {}, 1),
    ("Binarizer", ML, [np.array([-3, 0, 1, 2])], {"threshold": 0.5}, 1),
    (
        "Scaler",
        ML,
        [
            counts(np.int32, 2, 3),
        ],
        {"offset": (1.5, 2.0, -1.0), "scale": (2.0, 0.5, 1.0)},
        1,
    ),
    *(
        ("Normalizer", ML, [np.array([[1, -5, 2], [0, 0, 0]], np.float32)], {"norm": n}, 1)
        for n in ("MAX", "L1", "L2")
    ),
    ("Imputer", ML, [SPECIAL], {"imputed_value_floats": (7.0,), "replaced_value_float": float("nan")}, 1),
    (
        "Imputer",
        ML,
        [np.array([[1, 2], [2, 3]])],
        {"imputed_value_int64s": (7, 8), "replaced_value_int64": 2},
        1,
    ),
    ("Adagrad", TRAINING, [np.float32(0.1), np.array(3), *VECTORS], {"decay_factor": 0.1}, 2),
    *(
        (
            "Adam",
            TRAINING,
            [np.float32(0.1), np.array(n), *VECTORS[:2], normal(3), VECTORS[2]],
            {"norm_coefficient": 0.01},
            3,
        )
        for n in (0, 1, 500)
    ),
    *(
        (
            "Momentum",
            TRAINING,
            [np.float32(0.1), np.array(n), *VECTORS],
            {"alpha": 0.9, "beta": 0.5, "mode": m, "norm_coefficient": 0.1},
            2,
        )
        for n, m in ((0, "standard"), (4, "nesterov"))
    ),
]


@pytest.mark.parametrize(("op", "domain", "inputs", "attributes", "outputs"), CASES)
def test_steps(op: str, domain: str, inputs: list[Any], attributes: dict[str, Any], outputs: int) -> None:
    inputs = [None if array is None else np.asarray(array) for array in inputs]
    if op == "SoftmaxCrossEntropyLoss":
        inputs[1] = inputs[1].astype(np.int64)
    opset = 1 if domain else 25
    expected = run_operator(op, inputs, attributes, opset=opset, outputs=outputs, domain=domain)
    names = tuple("" if array is None else f"x{at}" for at, array in enumerate(inputs))
    node = Node(op, names, tuple(f"y{at}" for at in range(outputs)), attributes, "checked", domain, opset)
    node = replace(node, attributes=normalise_attributes(node, find(node)))
    for mine, theirs in zip(evaluate_steps(node, inputs), expected, strict=True):
        assert mine.dtype == theirs.dtype and mine.shape == theirs.shape
        if dtypes.from_numpy(mine.dtype).is_float:
            mine, theirs = mine.astype(np.float32), theirs.astype(np.float32)
            np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)
        else:
            np.testing.assert_array_equal(mine, theirs)
