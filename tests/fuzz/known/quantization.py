"""What is known of quantised numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.fuzz.known.conditions import ONNX, Freedom, always, has_nan, has_special
from tests.fuzz.tensors import Array
from vkml.ir import Node


def _is_beyond_int32(node: Node, inputs: list[Array | None], result: Array) -> Any:
    assert inputs[0] is not None and inputs[1] is not None
    with np.errstate(all="ignore"):
        return bool(
            (
                np.abs(inputs[0].astype(np.float64))
                > 2**31 * inputs[1].astype(np.float64).min(initial=np.inf)
            ).any()
        )


def _has_no_range(node: Node, inputs: list[Array | None], result: Array) -> Any:
    return inputs[0] is not None and not inputs[0].any()


FREEDOMS = (
    Freedom("DynamicQuantizeLinear", _has_no_range, "onnx's evaluator makes the scale of zeros 1/255", ONNX),
    Freedom(
        "QLinearConv QLinearMatMul",
        always,
        "onnx's evaluator adds the zero point before it rounds: halves become other numbers",
        ONNX,
    ),
    Freedom("QuantizeLinear", has_nan, "ONNX does not say what integer NaN is; vkml makes it the least"),
    Freedom("DynamicQuantizeLinear", has_special, "ONNX knows no range of infinities and NaN"),
    Freedom("QuantizeLinear", _is_beyond_int32, "onnx's evaluator wraps round before it saturates", ONNX),
)
