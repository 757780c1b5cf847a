"""What others get wrong in an operator, or ONNX leaves open, each with its reason."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.fuzz.disturbances import EXACT, JITTERED, LINEAR
from tests.fuzz.known import (
    images,
    indices,
    norms,
    pointwise,
    products,
    quantization,
    reductions,
    strings,
    windows,
)
from tests.fuzz.known.conditions import ONNX, ORT, Freedom, is_double, is_half, is_whole, overflows_half
from tests.fuzz.tensors import Array
from vkml.ir import Node, dtypes

__all__ = ["FREEDOMS", "ONNX", "ORT", "freedom"]

FLAGS = frozenset(
    """
    align_corners allowzero antialias ceil_mode center_point_box count_include_pad detect_negative
    detect_positive exclude_outside exclusive fmod input_forget keepdims largest layout linear_before_reset
    noop_with_empty_axes reverse saturate select_last_index sorted storage_order training_mode transA transB
    upper
    """.split()  # noqa: SIM905
)
"""Attributes of which ONNX knows 0 and 1."""


def _is_bfloat16_formula(node: Node, inputs: list[Array | None], result: Array) -> Any:
    has_factor = node.op in ("LeakyRelu", "ThresholdedRelu")
    return result.dtype == dtypes.BFLOAT16.storage and (has_factor or node.op not in EXACT)


def _has_odd_flag(node: Node, inputs: list[Array | None], result: Array) -> Any:
    return any(node.attributes.get(key) not in (None, 0, 1) for key in FLAGS)


FREEDOMS: tuple[Freedom, ...] = (
    Freedom(
        "ReduceMean ReduceL2 ReduceLogSum ReduceLogSumExp GridSample Resize Upsample",
        is_whole,
        "how integers are rounded: ONNX does not say",
    ),
    Freedom("*", _is_bfloat16_formula, "onnx's evaluator rounds every step and factor to bfloat16", ONNX),
    Freedom("*", overflows_half, "onnxruntime knows float16 as float32 between nodes", ORT),
    Freedom(" ".join(LINEAR | JITTERED), is_half, "onnx's evaluator adds float16 in float16", ONNX),
    Freedom(
        "AffineGrid Erf Gelu GridSample", is_double, "onnx's evaluator computes float64 in float32", ONNX
    ),
    Freedom("*", _has_odd_flag, "a flag neither 0 nor 1: vkml takes it for 1, others cut it off or for 0"),
    *windows.FREEDOMS,
    *images.FREEDOMS,
    *pointwise.FREEDOMS,
    *norms.FREEDOMS,
    *reductions.FREEDOMS,
    *strings.FREEDOMS,
    *indices.FREEDOMS,
    *products.FREEDOMS,
    *quantization.FREEDOMS,
)


def freedom(node: Node, inputs: list[Array | None], result: Array, source: str) -> Any:
    """A mask, or one bool for all, of elements not to be compared with what a runtime says of them."""
    found: Any = np.False_
    for entry in FREEDOMS:
        fits = entry.ops == "*" or (node.op in entry.ops.split() and not node.domain)
        if fits and entry.of in ("", source):
            found = found | np.asarray(entry.where(node, inputs, result))
    return found
