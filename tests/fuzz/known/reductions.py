"""What is known of reductions."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.fuzz.known.conditions import ORT, Freedom, has_nan, is_half
from tests.fuzz.tensors import Array
from tests.fuzz.trusted import REFERENCE_LIMIT
from vkml.ir import Node


def _is_large_with_nan(node: Node, inputs: list[Array | None], result: Array) -> Any:
    data = inputs[0]
    return data is not None and data.size > REFERENCE_LIMIT and has_nan(node, inputs, result)


def _reduces_nothing(node: Node, inputs: list[Array | None], result: Array) -> Any:
    data = inputs[0]
    return data is not None and data.ndim > 0 and data.shape[node.attributes["axis"]] == 0


def overflows_whole(node: Node, inputs: list[Array | None], result: Array) -> Any:
    """Sums of integers that leave their type."""
    if result.dtype.kind not in "iu" or inputs[0] is None:
        return False
    size = np.abs(inputs[0].astype(np.float64))
    total = np.prod(np.maximum(size, 1)) if node.op == "ReduceProd" else np.sum(size * np.maximum(size, 1))
    return total >= np.iinfo(result.dtype).max


def _leaves_the_exponents_of_doubles(node: Node, inputs: list[Array | None], result: Array) -> Any:
    """Where halves are so large that exp of them is infinite in float64, or so small that it is 0."""
    return is_half(node, inputs, result) & ~(np.abs(result.astype(np.float64)) < 700)


FREEDOMS = (
    Freedom(
        "ReduceLogSumExp",
        _leaves_the_exponents_of_doubles,
        "onnxruntime has no kernel for float16 and runs ONNX's function body, log(sum(exp)) in float64",
        ORT,
    ),
    Freedom(
        "ReduceSum ReduceMean ReduceL1 ReduceL2 ReduceSumSquare ReduceProd",
        overflows_whole,
        "integers that overflow: ONNX does not say; vkml wraps around, onnxruntime does not always",
    ),
    Freedom(
        "ReduceMax ReduceMin",
        _is_large_with_nan,
        "onnxruntime loses NaN where it reduces in blocks; too large for onnx's evaluator to say so",
        ORT,
    ),
    Freedom("ArgMax ArgMin", _reduces_nothing, "onnxruntime leaves 0 of an axis of no places", ORT),
)
