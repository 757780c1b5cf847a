"""Sliding windows: convolutions, pools, Col2Im."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from onnx import TensorProto

from tests.fuzz.graphs import GraphBuilder, Skip, Value, codes_of
from tests.fuzz.recipes.quantization import quantization
from tests.fuzz.recipes.registry import recipe
from tests.fuzz.tensors import FLOATS, Fill


def image(build: GraphBuilder, op: str, least: int = 3) -> Value:
    """[N, C, *spatial] with one to three spatial axes, two of them mostly."""
    codes = codes_of(op, build.opset, 0)
    if build.chance(0.6):
        found = build.having(codes, least, 5, lambda value: value.elements > 0)
        if found is not None:
            return found
    rank = build.pick(1, 2, 2, 2, 2, 2, 3)
    side = build.pick(3, 5, 7, 8, 12) if rank < 3 else 4
    spatial = [build.integer(1, side) if build.chance(0.3) else side for _ in range(rank)]
    channels = build.pick(1, 2, 3, 4, 8, 16, 17)
    shape = (
        build.integer(1, 2),
        channels if channels * math.prod(spatial) < build.most_elements else 1,
        *spatial,
    )
    return build.new(build.code(codes), shape, constant=0.1)


def geometry(build: GraphBuilder, spatial: tuple[int, ...], is_pool: bool = False) -> dict[str, Any]:
    """kernel_shape and, some of them absent, strides, dilations, pads or auto_pad."""
    rank = len(spatial)
    kernel = [build.pick(3, 3, 1, 2, min(size, 4)) for size in spatial]
    if build.chance(0.95):
        kernel = [min(entry, max(size, 1)) for entry, size in zip(kernel, spatial, strict=True)]
    found: dict[str, Any] = {"kernel_shape": kernel}
    if build.chance(0.6):
        found["strides"] = [build.pick(1, 1, 2, 3) for _ in range(rank)]
    if build.chance(0.25):
        found["dilations"] = [build.pick(1, 2) for _ in range(rank)]
    if build.chance(0.2):
        found["auto_pad"] = build.pick("SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET")
    elif build.chance(0.7):
        most = [k - 1 if is_pool else k for k in kernel]
        found["pads"] = [build.integer(0, most[axis % rank]) for axis in range(2 * rank)]
        if build.chance(0.5):
            found["pads"] = [(k - 1) // 2 for k in kernel] * 2
    return found


@recipe("Conv", "ConvInteger")
def conv(build: GraphBuilder, op: str) -> None:
    data = image(build, op)
    _, channels, *spatial = data.dims
    group = build.pick(1, 1, 1, channels, 2 if channels % 2 == 0 else 1)
    filters = group * build.pick(1, 1, 2, 3, max(1, 8 // group), max(1, 16 // group))
    attributes = geometry(build, tuple(spatial))
    code = data.code if op == "Conv" else build.code(codes_of(op, build.opset, 1))
    shape = (filters, channels // group, *attributes["kernel_shape"])
    fill = Fill("ordinary") if build.chance(0.7) else Fill()
    weight = build.new(code, shape, fill, constant=0.85)
    more: list[Value | None] = []
    if op == "Conv":
        more = [build.take([code], shape=(filters,), reuse=0.2)] if build.chance(0.5) else []
    elif build.chance(0.6):
        more = [build.new(data.code, ()), build.new(code, ()) if build.chance(0.5) else None]
    if build.chance(0.4):
        del attributes["kernel_shape"]
    build.node(op, [data, weight, *more], {**attributes, "group": group if group > 1 else None})


@recipe("QLinearConv")
def quantized_conv(build: GraphBuilder, op: str) -> None:
    data = image(build, op)
    _, channels, *spatial = data.dims
    group = build.pick(1, 1, channels)
    filters = group * build.pick(1, 2, 3)
    attributes = geometry(build, tuple(spatial))
    code = build.code(codes_of(op, build.opset, 3))
    weight = build.new(code, (filters, channels // group, *attributes["kernel_shape"]), constant=0.85)
    lanes = () if build.chance(0.5) else (filters,)
    operands = [data, *quantization(build, data.code), weight, *quantization(build, code, lanes)]
    bias = (
        [build.new(int(TensorProto.INT32), (filters,), Fill("range", -999, 999))] if build.chance(0.5) else []
    )
    result = quantization(build, build.code(codes_of(op, build.opset, 7)), scale=Fill("range", 20, 200))
    build.node(op, [*operands, *result, *bias], {**attributes, "group": group if group > 1 else None})


@recipe("ConvTranspose")
def conv_transpose(build: GraphBuilder, op: str) -> None:
    data = image(build, op)
    _, channels, *spatial = data.dims
    group = build.pick(1, 1, 1, channels, 2 if channels % 2 == 0 else 1)
    filters = build.pick(1, 2, 3, 4)
    attributes = geometry(build, tuple(spatial))
    kernel = attributes["kernel_shape"]
    weight = build.new(data.code, (channels, filters, *kernel), Fill("ordinary"), constant=0.8)
    bias = [build.take([data.code], shape=(filters * group,), reuse=0.2)] if build.chance(0.5) else []
    strides = attributes.get("strides", [1] * len(spatial))
    if build.chance(0.25):
        attributes["output_padding"] = [build.integer(0, stride - 1) for stride in strides]
    if build.chance(0.12):
        attributes["output_shape"] = [size * stride for size, stride in zip(spatial, strides, strict=True)]
        attributes.pop("pads", None)
    if build.chance(0.4):
        del attributes["kernel_shape"]
    build.node(op, [data, weight, *bias], {**attributes, "group": group if group > 1 else None})


@recipe("MaxPool", "AveragePool", "LpPool")
def pool(build: GraphBuilder, op: str) -> None:
    data = image(build, op)
    attributes = geometry(build, data.dims[2:], is_pool=True)
    if op != "MaxPool" and build.opset < 19:
        attributes.pop("dilations", None)
    if build.chance(0.3):
        attributes["ceil_mode"] = 1
    if op == "AveragePool" and build.chance(0.5):
        attributes["count_include_pad"] = build.integer(0, 1)
    if op == "LpPool":
        attributes["p"] = build.pick(None, 1, 2, 3)
    indexed = op == "MaxPool" and build.opset >= 8 and build.chance(0.2)
    if indexed and build.chance(0.3):
        attributes["storage_order"] = 1
    build.node(op, [data], attributes, 2 if indexed else 1)


@recipe("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def global_pool(build: GraphBuilder, op: str) -> None:
    build.node(op, [image(build, op)], {"p": build.pick(None, 1, 3) if op == "GlobalLpPool" else None})


@recipe("MaxUnpool")
def max_unpool(build: GraphBuilder, op: str) -> None:
    data = image(build, "MaxPool")
    if data.code not in FLOATS:
        raise Skip("floats only")
    kernel = [2] * (data.rank - 2)
    if min(data.dims[2:]) < 2:
        raise Skip("too small")
    attributes = {"kernel_shape": kernel, "strides": kernel}
    pooled, places = build.node("MaxPool", [data], attributes, 2)
    shape = build.constant(np.array(data.dims, np.int64)) if build.chance(0.4) else None
    build.node(op, [pooled, places, shape], attributes)


@recipe("Col2Im")
def col2im(build: GraphBuilder, op: str) -> None:
    spatial = [build.integer(2, 6) for _ in range(build.pick(1, 2, 2, 3))]
    block = [build.integer(1, min(3, size)) for size in spatial]
    strides = [build.integer(1, 2) for _ in spatial]
    pads = [build.integer(0, 1) for _ in range(2 * len(spatial))]
    counts = [
        (size + pads[axis] + pads[axis + len(spatial)] - block[axis]) // strides[axis] + 1
        for axis, size in enumerate(spatial)
    ]
    code = build.code(FLOATS)
    shape = (build.integer(1, 2), build.integer(1, 3) * math.prod(block), math.prod(counts))
    data = build.take([code], shape=shape)
    sizes = [build.constant(np.array(sizes, np.int64)) for sizes in (spatial, block)]
    attributes = {"strides": strides if max(strides) > 1 else None, "pads": pads if any(pads) else None}
    build.node(op, [data, *sizes], attributes)
