"""What is known of convolutions and pools."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.fuzz.known.conditions import ONNX, Freedom, always, has_nan
from tests.fuzz.tensors import Array, is_computed_float
from vkml.ir import Node


def _pads_outwards(node: Node, inputs: list[Array | None], result: Array) -> Any:
    """Whether padding to the same size would have to take something away: windows shorter than strides."""
    if not str(node.attributes["auto_pad"]).startswith("SAME") or inputs[0] is None:
        return False
    kernel = node.attributes["kernel_shape"] or (inputs[1].shape[2:] if inputs[1] is not None else ())
    strides = node.attributes["strides"] or (1,) * len(kernel)
    return any(size < stride for size, stride in zip(kernel, strides, strict=True))


def _pads_for_dilations(node: Node, inputs: list[Array | None], result: Array) -> Any:
    dilations = node.attributes["dilations"] or ()
    return str(node.attributes["auto_pad"]).startswith("SAME") and max(dilations, default=1) > 1


def _is_valid_with_dilations(node: Node, inputs: list[Array | None], result: Array) -> Any:
    return node.attributes["auto_pad"] == "VALID" and max(node.attributes["dilations"] or (), default=1) > 1


def _is_index(node: Node, inputs: list[Array | None], result: Array) -> Any:
    return result.dtype == np.int64


def _overhangs(node: Node, inputs: list[Array | None], result: Array) -> Any:
    """Whether windows are counted upwards and already the first one is larger than its axis."""
    kernel, data = node.attributes["kernel_shape"], inputs[0]
    if node.attributes["ceil_mode"] != 1 or data is None:
        return False
    rank = len(kernel)
    pads, dilations = (
        node.attributes["pads"] or (0,) * 2 * rank,
        node.attributes.get("dilations") or (1,) * rank,
    )
    spans = [(size - 1) * step + 1 for size, step in zip(kernel, dilations, strict=True)]
    sizes = [data.shape[2 + axis] + pads[axis] + pads[rank + axis] for axis in range(rank)]
    return any(span > size for span, size in zip(spans, sizes, strict=True))


def _ends_outside(node: Node, inputs: list[Array | None], result: Array) -> Any:
    """Whether windows are counted upwards and the last one reaches beyond its axis."""
    kernel, data = node.attributes["kernel_shape"], inputs[0]
    if node.attributes["ceil_mode"] != 1 or data is None:
        return False
    rank = len(kernel)
    pads, strides = node.attributes["pads"] or (0,) * 2 * rank, node.attributes["strides"] or (1,) * rank
    dilations = node.attributes["dilations"] or (1,) * rank
    ends = [
        (result.shape[2 + axis] - 1) * strides[axis] + (kernel[axis] - 1) * dilations[axis] + 1
        for axis in range(rank)
    ]
    return any(end > data.shape[2 + axis] + pads[axis] + pads[rank + axis] for axis, end in enumerate(ends))


def _pads_to_a_stated_size(node: Node, inputs: list[Array | None], result: Array) -> Any:
    """Whether a transposed convolution's size needs pads; if these are split among both sides, below zero."""
    data, weight, sizes = inputs[0], inputs[1], node.attributes["output_shape"]
    if not sizes or data is None or weight is None:
        return False
    rank = data.ndim - 2
    ones = (1,) * rank
    strides, dilations = node.attributes["strides"] or ones, node.attributes["dilations"] or ones
    more = node.attributes["output_padding"] or (0,) * rank
    totals = [
        strides[axis] * (data.shape[2 + axis] - 1)
        + more[axis]
        + (weight.shape[2 + axis] - 1) * dilations[axis]
        + 1
        - sizes[axis - rank]
        for axis in range(rank)
    ]
    return min(totals) < 0 if str(node.attributes["auto_pad"]).startswith("SAME") else max(totals) > 0


def _is_least(node: Node, inputs: list[Array | None], result: Array) -> Any:
    if is_computed_float(result):
        return np.isneginf(result)
    return result == np.iinfo(result.dtype).min if result.dtype.kind == "i" else False


def _strides_from_lower_pads(node: Node, inputs: list[Array | None], result: Array) -> Any:
    steps = (*(node.attributes["strides"] or ()), *(node.attributes["dilations"] or ()))
    return node.attributes["auto_pad"] == "SAME_LOWER" and any(step != 1 for step in steps)


def _is_of_opset_1_with_pads(node: Node, inputs: list[Array | None], result: Array) -> Any:
    is_same = str(node.attributes["auto_pad"]).startswith("SAME")
    return node.version < 7 and (is_same or any(node.attributes["pads"] or ()))


def _pads_and_counts_up(node: Node, inputs: list[Array | None], result: Array) -> Any:
    return node.attributes["ceil_mode"] == 1 and any(node.attributes["pads"] or ())


def _counts_valid_up(node: Node, inputs: list[Array | None], result: Array) -> Any:
    return node.attributes["ceil_mode"] == 1 and node.attributes["auto_pad"] == "VALID"


def _misreads_pads(node: Node, inputs: list[Array | None], result: Array) -> Any:
    """Whether paddings, begin, begin, end, end, are others if read as begin, end, begin, end; or not read."""
    pads = node.attributes["pads"] or ()
    return pads[1] != pads[2] if len(pads) == 4 else any(pads)


def _has_groups(node: Node, inputs: list[Array | None], result: Array) -> Any:
    return node.attributes["group"] > 1


FREEDOMS = (
    Freedom("MaxPool GlobalMaxPool", has_nan, "ONNX does not say; vkml hands NaN on, as in ReduceMax"),
    Freedom(
        "Conv ConvInteger ConvTranspose MaxPool AveragePool LpPool",
        _pads_outwards,
        "a window below its stride, and padding to the same size: no two runtimes agree",
    ),
    Freedom(
        "MaxPool AveragePool LpPool",
        _pads_for_dilations,
        "padding to the same size: others forget the dilations",
    ),
    Freedom("MaxPool AveragePool LpPool", _overhangs, "onnx's evaluator makes nothing of such windows", ONNX),
    Freedom(
        "ConvTranspose",
        _pads_to_a_stated_size,
        "onnx's evaluator pads where it is to pad alike only; what is missing it adds on both sides, "
        "vkml and onnxruntime at the end",
        ONNX,
    ),
    Freedom(
        "MaxPool GlobalMaxPool",
        _is_least,
        "onnxruntime begins with the least finite number, onnx's evaluator has 0 of padding only",
    ),
    Freedom(
        "MaxPool",
        _strides_from_lower_pads,
        "onnx's evaluator rounds the size down and puts the odd place at the end",
        ONNX,
    ),
    Freedom(
        "AveragePool",
        _is_of_opset_1_with_pads,
        "opset 1 leaves padding out of the mean; onnx's evaluator counts it",
        ONNX,
    ),
    Freedom("MaxPool", _pads_and_counts_up, "onnx's evaluator counts padding twice when it rounds up", ONNX),
    Freedom("AveragePool", _ends_outside, "onnx's evaluator adds half of what is missing at the front", ONNX),
    Freedom("LpPool", _ends_outside, "onnx's evaluator takes a part's mean times the whole window", ONNX),
    Freedom(
        "MaxPool AveragePool LpPool",
        _counts_valid_up,
        "ONNX's formula for VALID, which it deprecates, counts down; vkml and onnxruntime as they are told",
        ONNX,
    ),
    Freedom(
        "MaxPool AveragePool LpPool",
        _is_valid_with_dilations,
        "onnx's evaluator forgets the dilations in the size of the result",
        ONNX,
    ),
    Freedom("MaxPool", _misreads_pads, "onnx's evaluator takes pads for pairs, and for images only", ONNX),
    Freedom("MaxPool", _is_index, "onnx's evaluator counts places within each plane", ONNX),
    Freedom("GlobalMaxPool", always, "onnx's evaluator reduces the last two axes only", ONNX),
    Freedom("ConvTranspose", _has_groups, "onnx's evaluator sums over groups", ONNX),
)
