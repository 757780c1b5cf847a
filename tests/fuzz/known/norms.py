"""What is known of normalisations and Softmax."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from tests.fuzz.known.conditions import ONNX, ORT, Freedom, always, is_double, is_half, is_large
from tests.fuzz.tensors import HALVES, Array
from vkml.ir import Node


def _is_flattened(node: Node, inputs: list[Array | None], result: Array) -> Any:
    return bool(node.attributes["is_flattened"])


def _spoils_running_sum(node: Node, inputs: list[Array | None], result: Array) -> Any:
    """Places whose own squares count for little beside the largest, of which a difference keeps an error."""
    data = inputs[0]
    if data is None or not data.size:
        return False
    share = abs(node.attributes["alpha"]) / node.attributes["size"]
    with np.errstate(all="ignore"):
        squares = share * np.square(data.astype(np.float64))
        return squares.max() / 2 > abs(node.attributes["bias"]) + squares


def _squares_large_halves(node: Node, inputs: list[Array | None], result: Array) -> Any:
    """Whether a variance is taken of float16 of which squares, or their sum, may overflow."""
    data = inputs[0]
    if not node.attributes["training_mode"] or data is None or data.dtype != np.float16:
        return False
    return bool(np.sum(np.square(data.astype(np.float64))) > 60000)


def _has_negative_for_1_norm(node: Node, inputs: list[Array | None], result: Array) -> Any:
    return node.attributes["p"] == 1 and inputs[0] is not None and bool((inputs[0] < 0).any())


def _comes_from_half(node: Node, inputs: list[Array | None], result: Array) -> Any:
    return inputs[0] is not None and inputs[0].dtype in HALVES


def _vanishes_in_exponentials(node: Node, inputs: list[Array | None], result: Array) -> Any:
    return result < np.log(float(ml_dtypes.finfo(result.dtype).tiny))


def _has_no_deviation(node: Node, inputs: list[Array | None], result: Array) -> Any:
    return result == 0


def _infers_of_old(node: Node, inputs: list[Array | None], result: Array) -> Any:
    return node.version < 14 and not node.attributes["training_mode"]


def _scales_by_another_type(node: Node, inputs: list[Array | None], result: Array) -> Any:
    data, scale = inputs[:2]
    return data is not None and scale is not None and data.dtype != scale.dtype


def _is_offset(node: Node, inputs: list[Array | None], result: Array) -> Any:
    """Whether numbers that are normalised hardly differ, next to their size."""
    data = inputs[0]
    if data is None or not data.size:
        return False
    with np.errstate(all="ignore"):
        wide = data.astype(np.float64)
        if node.op == "GroupNormalization":
            wide = wide.reshape(len(wide), node.attributes["num_groups"], -1)
            axes: tuple[int, ...] = (2,)
        else:
            axes = tuple(axis % data.ndim for axis in node.attributes["axes"])
        return bool((np.abs(wide).max(axis=axes) > 10 * wide.std(axis=axes)).any())


FREEDOMS = (
    Freedom(
        "GroupNormalization LayerNormalization RMSNormalization", is_double, "stash_type: float32 on the way"
    ),
    Freedom("Softmax LogSoftmax Hardmax", _is_flattened, "onnx's evaluator knows the newest form only", ONNX),
    Freedom("LRN", is_large, "onnxruntime keeps a running sum, which one large square spoils for good", ORT),
    Freedom(
        "LRN", _spoils_running_sum, "onnxruntime keeps a running sum, of large squares and of small", ORT
    ),
    Freedom("MeanVarianceNormalization", is_half, "onnxruntime adds 1e-9 in float16, which is 0 there", ORT),
    Freedom(
        "MeanVarianceNormalization GroupNormalization",
        _is_offset,
        "others subtract the square of the mean from the mean square, as ONNX's function bodies do",
    ),
    Freedom(
        "BatchNormalization", _squares_large_halves, "onnxruntime adds squares of float16 in float16", ORT
    ),
    Freedom("LogSoftmax", _vanishes_in_exponentials, "onnx's evaluator takes the logarithm of 0", ONNX),
    Freedom("MeanVarianceNormalization", _has_no_deviation, "onnxruntime divides by 0 without 1e-9", ORT),
    Freedom(
        "RMSNormalization",
        _scales_by_another_type,
        "the result is of the scale's type; onnx's evaluator gives the input's",
        ONNX,
    ),
    Freedom(
        "BatchNormalization",
        _infers_of_old,
        "onnx's evaluator trains before opset 14",
        ONNX,
    ),
    Freedom("LpNormalization", _has_negative_for_1_norm, "onnx's evaluator takes no absolute values", ONNX),
    Freedom("LayerNormalization", _comes_from_half, "onnx's evaluator rounds what it stashes to half", ONNX),
    Freedom("LRN", always, "onnx's evaluator counts channels by the size of the batch", ONNX),
)
