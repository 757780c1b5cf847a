"""What is known of orders, indices and axes."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.fuzz.known.conditions import ONNX, Freedom, floats, has_nan
from tests.fuzz.tensors import Array
from vkml.ir import Node


def _is_any_float(node: Node, inputs: list[Array | None], result: Array) -> Any:
    return result.dtype.kind in "fc" or (result.dtype.kind == "V" and "float" in result.dtype.name)


def _has_fractional_indices(node: Node, inputs: list[Array | None], result: Array) -> Any:
    return any((array != np.trunc(array)).any() for array in floats(inputs[:1]))


def _names_axes_in_disorder(node: Node, inputs: list[Array | None], result: Array) -> Any:
    axes = inputs[1] if len(inputs) > 1 else None
    return node.version < 13 and axes is not None and bool((axes < 0).any() or (np.diff(axes) < 0).any())


def _is_unsorted_or_backwards(node: Node, inputs: list[Array | None], result: Array) -> Any:
    return (node.attributes["axis"] or 0) < 0 or not node.attributes["sorted"]


FREEDOMS = (
    Freedom("ScatterElements ScatterND", has_nan, "the least and greatest with NaN: ONNX does not say"),
    Freedom(
        "Unique TopK ArgMax ArgMin Hardmax NonMaxSuppression",
        has_nan,
        "the order of NaN: ONNX does not say",
    ),
    Freedom(
        "Squeeze Unsqueeze",
        _names_axes_in_disorder,
        "onnx's evaluator takes axis after axis, each of the tensor that it has by then",
        ONNX,
    ),
    Freedom("OneHot", _has_fractional_indices, "onnx's evaluator wraps them before it cuts them off", ONNX),
    Freedom("OneHot", _is_any_float, "others compute (on - off) * mask + off"),
    Freedom("Unique", _is_unsorted_or_backwards, "onnx's evaluator sorts all the same, and turns axes", ONNX),
)
