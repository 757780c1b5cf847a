"""Resampling of images: Resize, Upsample, grids, regions."""

from __future__ import annotations

import io
import math

import numpy as np
from PIL import Image

from tests.fuzz.graphs import GraphBuilder, Skip, Value, codes_of
from tests.fuzz.recipes.registry import data_input, recipe
from tests.fuzz.recipes.windows import image
from tests.fuzz.tensors import FLOAT, FLOATS, INT64, Fill, indices

COORDINATES = (
    *("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel", "half_pixel_symmetric"),
    *("tf_crop_and_resize", None, None),
)
SCALES = (2.0, 1.0, 0.5, 1.5, 3.0, 0.6, 0.8, 1.3)


@recipe("Resize")
def resize(build: GraphBuilder, op: str) -> None:
    data = image(build, op) if build.chance(0.8) else data_input(build, op, 1, 5)
    if not data.elements:
        raise Skip("nothing to resize")
    mode = build.pick(None, "nearest", "linear", "linear", "cubic")
    if mode == "cubic" and data.rank != 4:
        mode = "linear"
    resized = [axis for axis in range(data.rank) if axis >= 2 or build.chance(0.1)]
    if build.opset < 11:
        scales = [build.pick(*SCALES) if axis in resized else 1.0 for axis in range(data.rank)]
        build.node(
            op, [data, build.constant(np.array(scales, np.float32))], {"mode": build.pick(None, "linear")}
        )
        return
    attributes = {"mode": mode}
    coordinates = build.pick(*COORDINATES)
    if coordinates == "half_pixel_symmetric" and build.opset < 19:
        coordinates = None
    attributes["coordinate_transformation_mode"] = coordinates
    if mode in (None, "nearest"):
        attributes["nearest_mode"] = build.pick(
            None, "floor", "ceil", "round_prefer_floor", "round_prefer_ceil"
        )
    if mode == "cubic":
        attributes |= {"cubic_coeff_a": build.pick(None, -0.5), "exclude_outside": build.pick(None, 1)}
    axes = list(range(data.rank))
    if build.opset >= 18:
        attributes["antialias"] = 1 if mode in ("linear", "cubic") and build.chance(0.2) else None
        if build.chance(0.25):
            axes = resized or [data.rank - 1]
            attributes["axes"] = axes
    roi: Value | None = None
    if coordinates == "tf_crop_and_resize":
        edges = [0.0] * len(axes) + [1.0] * len(axes)
        if build.chance(0.7):
            edges = [build.pick(0.0, 0.1, 0.25) for _ in axes] + [build.pick(1.0, 0.8, 1.2) for _ in axes]
        roi = build.constant(np.array(edges, np.float32))
        attributes["extrapolation_value"] = build.pick(None, 7.0)
    if build.chance(0.5):
        scales = [build.pick(*SCALES) if axis in resized or build.chance(0.05) else 1.0 for axis in axes]
        build.node(op, [data, roi or empty(build), build.decided(np.array(scales, np.float32))], attributes)
        return
    sizes = [
        max(1, math.floor(data.dims[axis] * build.pick(*SCALES))) if axis in resized else data.dims[axis]
        for axis in axes
    ]
    if build.opset >= 18 and build.chance(0.15):
        attributes["keep_aspect_ratio_policy"] = build.pick("not_larger", "not_smaller")
    build.node(
        op, [data, roi or empty(build), empty(build), build.decided(np.array(sizes, np.int64))], attributes
    )


def empty(build: GraphBuilder) -> Value | None:
    """An input that is not there; before opset 13 some of them had to be, and empty."""
    return None if build.opset >= 13 else build.constant(np.zeros(0, np.float32))


@recipe("Upsample")
def upsample(build: GraphBuilder, op: str) -> None:
    data = image(build, op)
    scales = [1.0, 1.0, *(build.pick(2.0, 1.0, 1.5, 3.0) for _ in data.dims[2:])]
    build.node(
        op,
        [data, build.constant(np.array(scales, np.float32))],
        {"mode": build.pick(None, "nearest", "linear")},
    )


@recipe("GridSample")
def grid_sample(build: GraphBuilder, op: str) -> None:
    data = image(build, op)
    if build.opset < 20 and data.rank != 4:
        raise Skip("two spatial axes only")
    modes = ("linear", "nearest", "cubic") if build.opset >= 20 else ("bilinear", "nearest", "bicubic")
    mode = build.pick(None, *modes)
    if data.rank != 4 and mode and "cubic" in mode:
        mode = None
    sizes = [build.integer(1, 5) for _ in data.dims[2:]]
    code = data.code if data.code in FLOATS and build.chance(0.7) else FLOAT
    fill = Fill("unit") if build.chance(0.8) else Fill("ordinary")
    grid = build.new(code, (data.dims[0], *sizes, len(sizes)), fill)
    padding = build.pick(None, "zeros", "border", "reflection")
    build.node(
        op, [data, grid], {"mode": mode, "padding_mode": padding, "align_corners": build.pick(None, 0, 1)}
    )


@recipe("AffineGrid")
def affine_grid(build: GraphBuilder, op: str) -> None:
    rank = build.pick(2, 2, 3)
    batch = build.integer(1, 2)
    theta = build.new(build.code(codes_of(op, build.opset, 0)), (batch, rank, rank + 1), Fill("ordinary"))
    sizes = [batch, build.integer(1, 3), *(build.integer(1, 5) for _ in range(rank))]
    build.node(
        op, [theta, build.decided(np.array(sizes, np.int64))], {"align_corners": build.pick(None, 0, 1)}
    )


@recipe("RoiAlign")
def roi_align(build: GraphBuilder, op: str) -> None:
    data = image(build, op)
    if data.rank != 4 or data.code not in FLOATS:
        raise Skip("images of two axes only")
    count = build.integer(1, 3)
    height, width = data.dims[2:]
    corners = build.rng.uniform(0, 1, (count, 4)) * [width, height, width, height]
    corners = np.concatenate(
        [np.minimum(corners[:, :2], corners[:, 2:]), np.maximum(corners[:, :2], corners[:, 2:])], 1
    )
    rois = build.decided(corners, data.code)
    attributes = {
        "output_height": build.pick(None, 2, 3), "output_width": build.pick(None, 2, 3),
        "sampling_ratio": build.pick(None, 0, 1, 2), "spatial_scale": build.pick(None, 0.5),
        "mode": build.pick(None, "avg", "max"),
        "coordinate_transformation_mode": build.pick(None, "half_pixel", "output_half_pixel"),
    }  # fmt: skip
    build.node(op, [data, rois, build.new(INT64, (count,), indices(0, data.dims[0]))], attributes)


@recipe("DeformConv")
def deform_conv(build: GraphBuilder, op: str) -> None:
    data = image(build, op)
    if data.code not in FLOATS or data.rank != 4:
        raise Skip("onnx's evaluator knows images of two axes only")
    batch, channels, *spatial = data.dims
    kernel = [min(build.integer(1, 3), size) for size in spatial]
    strides, pads = [build.pick(1, 2) for _ in spatial], [build.integer(0, 1) for _ in (*spatial, *spatial)]
    output = [
        (size + pads[axis] + pads[2 + axis] - k) // stride + 1
        for axis, (size, k, stride) in enumerate(zip(spatial, kernel, strides, strict=True))
    ]
    groups = build.pick(1, 1, channels)
    filters = groups * build.integer(1, 3)
    taps = math.prod(kernel) * groups
    fill = Fill("ordinary")
    weight = build.new(data.code, (filters, channels // groups, *kernel), fill, constant=0.8)
    offset = build.new(data.code, (batch, 2 * taps, *output), Fill("unit"))
    bias = build.new(data.code, (filters,), fill) if build.chance(0.5) else None
    mask = build.new(data.code, (batch, taps, *output), Fill("unit")) if build.chance(0.5) else None
    attributes = {"strides": strides, "pads": pads, "group": groups, "offset_group": groups}
    build.node(op, [data, weight, offset, bias, mask], attributes)


@recipe("MaxRoiPool")
def max_roi_pool(build: GraphBuilder, op: str) -> None:
    data = image(build, op)
    if data.rank != 4 or data.code not in FLOATS:
        raise Skip("images of two axes only")
    count = build.integer(1, 3)
    corners = build.rng.integers(0, 8, (count, 4))
    images = build.rng.integers(0, data.dims[0], (count, 1))
    rois = build.decided(np.concatenate([images, corners], 1), data.code)
    attributes = {"pooled_shape": [build.integer(1, 3), build.integer(1, 3)]}
    build.node(op, [data, rois], {**attributes, "spatial_scale": build.pick(None, 0.5)})


@recipe("ImageDecoder")
def decoder(build: GraphBuilder, op: str) -> None:
    pixels = build.rng.integers(0, 256, (build.integer(1, 4), build.integer(1, 5), 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, build.pick("PNG", "BMP", "PPM"))
    data = build.constant(np.frombuffer(file.getvalue(), np.uint8))
    build.node(op, [data], {"pixel_format": build.pick("RGB", "BGR", "Grayscale")})
