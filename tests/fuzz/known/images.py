"""What is known of resizing, sampling and cropping."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from tests.fuzz.known.conditions import ONNX, ORT, Freedom, floats
from tests.fuzz.tensors import Array
from vkml.ir import Node


def _is_complex(node: Node, inputs: list[Array | None], result: Array) -> Any:
    return result.dtype.kind == "c"


def _is_text(node: Node, inputs: list[Array | None], result: Array) -> Any:
    return result.dtype == object


def _may_overflow(node: Node, inputs: list[Array | None], result: Array) -> Any:
    return any(
        array.size and not np.abs(array).max() < float(ml_dtypes.finfo(array.dtype).max) / 16
        for array in floats(inputs)
    )


def _is_single_half_pixel(node: Node, inputs: list[Array | None], result: Array) -> Any:
    """Whether an axis of the result has one place, which ONNX's text puts at 0 then."""
    is_pytorch = node.attributes["coordinate_transformation_mode"] == "pytorch_half_pixel"
    return is_pytorch and 1 in result.shape


def _has_a_size_at_a_jump(node: Node, inputs: list[Array | None], result: Array) -> Any:
    """Whether a size times its scale is a whole number in float32 and just none in float64."""
    data, scales = inputs[0], inputs[2] if len(inputs) > 2 else None
    if data is None or scales is None or not scales.size:
        return False
    axes = node.attributes["axes"] or range(data.ndim)
    sizes = np.array([data.shape[axis] for axis in axes])
    single = sizes.astype(np.float32) * scales.astype(np.float32)
    return bool((np.floor(single) != np.floor(sizes * scales.astype(np.float64))).any())


def _is_of_old_rois(node: Node, inputs: list[Array | None], result: Array) -> Any:
    return node.attributes["coordinate_transformation_mode"] == "output_half_pixel"


def _keeps_all_sizes(node: Node, inputs: list[Array | None], result: Array) -> Any:
    """Whether scales other than 1 leave every size as it is."""
    data = inputs[0]
    return data is not None and data.shape == result.shape


def _lies_at_a_jump(node: Node, inputs: list[Array | None], result: Array) -> Any:
    """Places whose coordinates lie where the nearest place changes, as closely as float32 tells."""
    data, given = inputs[0], inputs[2] if len(inputs) > 2 else None
    if data is None or node.attributes["mode"] != "nearest" or result.ndim != data.ndim:
        return False
    if not data.size or not result.size:
        return False
    scales = [out / size for size, out in zip(data.shape, result.shape, strict=True)]
    if given is not None and given.size:
        for axis, scale in zip(node.attributes["axes"] or range(data.ndim), given, strict=True):
            scales[axis] = float(scale)
    mode = node.attributes["coordinate_transformation_mode"]
    shift = 0.5 if "half_pixel" in mode else 0.0
    mask = np.zeros(result.shape, bool)
    for axis, scale in enumerate(scales):
        size, out = data.shape[axis], result.shape[axis]
        if mode == "align_corners":
            scale = max(out - 1, 1) / max(size - 1, 1)
        if scale != 1:
            place = (np.arange(out) + shift) / scale - shift
            if mode == "half_pixel_symmetric":
                place += size / 2 * (1 - out / (scale * size))
            jump = place + 0.5 * node.attributes["nearest_mode"].startswith("round")
            lanes = [1] * data.ndim
            lanes[axis] = out
            mask |= (np.abs(jump - np.rint(jump)) < 1e-6 * (size + 1)).reshape(lanes)
    return mask


def _keeps_ratio(node: Node, inputs: list[Array | None], result: Array) -> Any:
    return node.attributes["keep_aspect_ratio_policy"] != "stretch"


def _has_single_size(node: Node, inputs: list[Array | None], result: Array) -> Any:
    return bool(node.attributes["align_corners"]) and 1 in result.shape[1:-1]


def _crops(node: Node, inputs: list[Array | None], result: Array) -> Any:
    return node.attributes["coordinate_transformation_mode"] == "tf_crop_and_resize"


def _is_cubic_to_the_border(node: Node, inputs: list[Array | None], result: Array) -> Any:
    return node.attributes["mode"] == "cubic" and node.attributes["padding_mode"] == "border"


FREEDOMS = (
    Freedom(
        "Resize Upsample GridSample RoiAlign", _may_overflow, "infinity times a weight of 0: who multiplies?"
    ),
    Freedom("Resize", _keeps_ratio, "onnx's evaluator reads the place before at the end of an axis", ONNX),
    Freedom("Resize Upsample", _keeps_all_sizes, "onnxruntime copies, whatever the scales", ORT),
    Freedom("AffineGrid", _has_single_size, "the corner of a single place: no two runtimes agree"),
    Freedom("Resize", _crops, "onnx's text crops before it scales, others do not"),
    Freedom("RoiAlign", _is_of_old_rois, "onnx's evaluator knows half pixels only, whatever the opset", ONNX),
    Freedom(
        "Resize", _lies_at_a_jump, "coordinates are float32 with vkml, float64 with onnx's evaluator", ONNX
    ),
    Freedom("Resize", _is_single_half_pixel, "onnx's evaluator has -0.5 where its text has 0", ONNX),
    Freedom(
        "Resize", _has_a_size_at_a_jump, "sizes are float32 with vkml and onnxruntime, float64 there", ONNX
    ),
    Freedom("Resize", _is_complex, "onnx's evaluator drops the imaginary part", ONNX),
    Freedom(
        "GridSample",
        _is_cubic_to_the_border,
        "onnx's evaluator moves the place to the border, PyTorch and onnxruntime each element that is read",
        ONNX,
    ),
    Freedom("CenterCropPad Pad", _is_text, "onnx's evaluator pads texts with numbers", ONNX),
)
