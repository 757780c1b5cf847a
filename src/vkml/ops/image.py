"""Resampling of images and volumes: Resize and its ancestor Upsample."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from vkml.dataclasses import dataclass
from vkml.errors import InvalidGraph, ShapeError
from vkml.ir.dtypes import FLOAT32, FLOATS, INT64, NUMBERS
from vkml.ir.gradients import Emitter, T
from vkml.ir.graph import Node
from vkml.ir.lowering import Lowering, Table, V, given
from vkml.ir.operator import FLOAT, INTS, Array, AttributeType, Operator, operator
from vkml.ir.size import TooOpen, scaled
from vkml.ir.types import Known, TensorType
from vkml.ops.checks import (
    contiguous,
    has_unknown_value,
    integers,
    normalise_axes,
    optional,
    present,
    require_dtype,
    required,
    unknown_shape,
)
from vkml.ops.limits import check_size
from vkml.ops.resample import box_mask, resampled, transposed_table
from vkml.ops.upgrading import attributes_to_inputs, renew

COORDINATE_MODES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_half_pixel_for_nn",
    "tf_crop_and_resize",
)
NEAREST_MODES = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil", "simple")
"""ONNX's, and `simple`: what opset 10 and Upsample do, ceil when shrinking and floor when growing."""
POLICIES = ("stretch", "not_larger", "not_smaller")


@dataclass(frozen=True)
class ResizeAxis:
    """How one axis is resampled."""

    input: int
    output: int
    scale: float
    length: float
    """The output's length before it was rounded: ONNX's length_resized, scale · input."""
    start: float = 0.0
    """Begin and end of the cropped range in units of the axis (tf_crop_and_resize)."""
    end: float = 1.0


@dataclass(frozen=True)
class ResizeGeometry:
    """A resampling, axis by axis; it is separable in every mode."""

    axes: tuple[ResizeAxis, ...]
    mode: str
    """nearest, linear or cubic."""
    coordinates: str
    nearest: str
    antialias: bool
    exclude_outside: bool
    cubic_coefficient: float
    extrapolation: float | None
    """The value of places outside the input; None where the edge is repeated instead."""

    @property
    def output(self) -> tuple[int, ...]:
        return tuple(axis.output for axis in self.axes)

    def resamples(self, axis: ResizeAxis) -> bool:
        """Whether the axis changes at all."""
        return axis.scale != 1 or axis.input != axis.output or self.coordinates == "tf_crop_and_resize"


def resize_geometry(
    node: Node, x_shape: Sequence[int], roi: Array | None, scales: Array | None, sizes: Array | None
) -> ResizeGeometry:
    """Resolves a Resize node's attributes and inputs, each None or empty where absent.

    Raises:
        InvalidGraph: An attribute has an unknown value, or not exactly one of scales and sizes is given.
        ShapeError: Lengths do not fit the axes, or a scale or size is not positive.
    """
    _check_attributes(node)
    attributes, rank = node.attributes, len(x_shape)
    stated = attributes["axes"]
    chosen = tuple(range(rank)) if stated is None else normalise_axes(node, stated, rank)
    has_scales, has_sizes = scales is not None and scales.size > 0, sizes is not None and sizes.size > 0
    if has_scales == has_sizes:
        raise InvalidGraph(f"{node.label}: exactly one of scales and sizes must be given")
    axes = [ResizeAxis(size, size, 1.0, size) for size in x_shape]
    crops = attributes["coordinate_transformation_mode"] == "tf_crop_and_resize"
    if crops:
        if roi is None or roi.size != 2 * len(chosen):
            raise ShapeError(f"{node.label}: roi must hold {2 * len(chosen)} numbers for tf_crop_and_resize")
        if not np.isfinite(roi.astype(np.float64)).all():
            raise ShapeError(f"{node.label}: roi holds numbers that are not finite")
    resized = _sizes_from_scales if has_scales else _sizes_from_sizes
    given = scales if has_scales else sizes
    assert given is not None
    if given.size != len(chosen):
        raise ShapeError(f"{node.label}: {given.size} scales or sizes are given for {len(chosen)} axes")
    bounds = [(0.0, 1.0)] * len(chosen)
    if crops and roi is not None:
        flat = roi.reshape(-1).astype(np.float64)
        bounds = [(float(flat[i]), float(flat[i + len(chosen)])) for i in range(len(chosen))]
    targets = resized(node, [x_shape[axis] for axis in chosen], given.reshape(-1), bounds)
    for axis, (size, scale, length), (start, end) in zip(chosen, targets, bounds, strict=True):
        if x_shape[axis] == 0 and size > 0:
            raise ShapeError(f"{node.label}: axis {axis} is empty and cannot be resized to {size}")
        axes[axis] = ResizeAxis(x_shape[axis], size, scale, length, start, end)
    return ResizeGeometry(
        tuple(axes),
        attributes["mode"],
        attributes["coordinate_transformation_mode"],
        attributes["nearest_mode"],
        bool(attributes["antialias"]),
        bool(attributes["exclude_outside"]),
        float(attributes["cubic_coeff_a"]),
        float(attributes["extrapolation_value"]) if crops else None,
    )


def _check_attributes(node: Node) -> None:
    for key, allowed in (
        ("mode", ("nearest", "linear", "cubic")),
        ("coordinate_transformation_mode", COORDINATE_MODES),
        ("nearest_mode", NEAREST_MODES),
        ("keep_aspect_ratio_policy", POLICIES),
    ):
        if node.attributes[key] not in allowed:
            raise InvalidGraph(
                f"{node.label}: {key} {node.attributes[key]!r} is not one of {', '.join(allowed)}"
            )


def _sizes_from_scales(
    node: Node, inputs: Sequence[int], scales: Array, bounds: Sequence[tuple[float, float]]
) -> list[tuple[int, float, float]]:
    """Size, scale and length of each axis."""
    found = []
    for size, scale, (start, end) in zip(inputs, scales, bounds, strict=True):
        if not (math.isfinite(scale) and scale > 0):
            raise ShapeError(f"{node.label}: scale {scale} must be positive and finite")
        # In float32, as models' scales are stored: floor(8 · 0.375) must not depend on a wider type.
        extent = np.float32(size) * np.float32(scale) * np.float32(end - start)
        if not math.isfinite(extent) or extent < 0:
            raise ShapeError(
                f"{node.label}: scale {scale} over {start} … {end} of an axis of {size} gives no size"
            )
        found.append((math.floor(extent), float(np.float32(scale)), float(extent)))
    return found


def _open_output(
    node: Node, dims: Sequence[int], scales: Array | None, sizes: Array | None
) -> tuple[int, ...]:
    """The sizes of an output some of whose input's are open.

    Raises:
        TooOpen: they are no expressions of these.
    """
    stated = node.attributes["axes"]
    axes = range(len(dims)) if stated is None else normalise_axes(node, stated, len(dims))
    found: list[Any] = list(dims)
    if scales is not None and scales.size:
        for axis, scale in zip(axes, scales.reshape(-1).tolist(), strict=True):
            found[axis] = scaled(dims[axis], scale)
        return tuple(found)
    if node.attributes["keep_aspect_ratio_policy"] != "stretch" or sizes is None:
        raise TooOpen(f"{node.label}: what keeps a ratio of open sizes is no expression of them")
    for axis, size in zip(axes, integers(sizes), strict=True):
        found[axis] = size
    return tuple(found)


def _sizes_from_sizes(
    node: Node, inputs: Sequence[int], sizes: Array, bounds: Sequence[tuple[float, float]]
) -> list[tuple[int, float, float]]:
    """Size, scale and length of each axis."""
    wanted = integers(sizes)
    if any(size < 0 for size in wanted):
        raise ShapeError(f"{node.label}: sizes {list(wanted)} must not be negative")
    ratios = [
        np.float32(size) / np.float32(full) if full else np.float32(1)
        for size, full in zip(wanted, inputs, strict=True)
    ]
    policy = node.attributes["keep_aspect_ratio_policy"]
    if policy == "stretch" or not ratios:
        return [(size, float(ratio), size) for size, ratio in zip(wanted, ratios, strict=True)]
    scale = min(ratios) if policy == "not_larger" else max(ratios)
    lengths = [scale * np.float32(full) for full in inputs]
    return [(math.floor(length + np.float32(0.5)), float(scale), float(length)) for length in lengths]


def source_coordinates(geometry: ResizeGeometry, axis: ResizeAxis) -> Array:
    """Where in the input each output place of an axis lies, as float32 [output].

    float32 throughout, as other runtimes compute it: in nearest mode a tie decides which pixel is read.
    """
    place = np.arange(axis.output, dtype=np.float32)
    scale, half, one = np.float32(axis.scale), np.float32(0.5), np.float32(1)
    last = np.float32(axis.input - 1)
    mode = geometry.coordinates
    if mode == "asymmetric":
        return np.asarray(place / scale)
    if mode == "align_corners":
        # By the length before rounding, as ONNX defines it: the last corner is met only where that is whole.
        return place * last / np.float32(axis.length - 1) if axis.output > 1 else np.zeros_like(place)
    if mode == "tf_half_pixel_for_nn":
        return np.asarray((place + half) / scale)
    if mode == "pytorch_half_pixel" and axis.output <= 1:
        return np.zeros_like(place)
    if mode == "tf_crop_and_resize":
        start, end = np.float32(axis.start), np.float32(axis.end)
        if axis.output > 1:
            return np.asarray(start * last + place * (end - start) * last / np.float32(axis.output - 1))
        return np.full_like(place, half * (start + end) * last)
    source = (place + half) / scale
    if mode == "half_pixel_symmetric":
        adjustment = np.float32(axis.output) / (scale * np.float32(axis.input))
        source = np.float32(axis.input) * half * (one - adjustment) + source
    return np.asarray(source - half)


def nearest_places(geometry: ResizeGeometry, axis: ResizeAxis) -> Array:
    """The input place that each output place of an axis copies, int64 [output]."""
    source = source_coordinates(geometry, axis)
    mode = geometry.nearest
    if mode == "simple":
        mode = "ceil" if axis.scale < 1 else "floor"
    half = np.float32(0.5)
    if mode == "round_prefer_floor":
        found = np.ceil(source - half)
    elif mode == "round_prefer_ceil":
        found = np.floor(source + half)
    else:
        found = np.floor(source) if mode == "floor" else np.ceil(source)
    return found.astype(np.int64).clip(0, max(axis.input - 1, 0))


def axis_taps(geometry: ResizeGeometry, axis: ResizeAxis) -> tuple[Array, Array]:
    """Which input places an output place of an axis sums, and their weights (linear and cubic modes).

    Returns:
        int64 [output, taps], already inside the input, and float32 [output, taps].
    """
    if not axis.output:
        return np.zeros((0, 1), np.int64), np.zeros((0, 1), np.float32)  # of a scale that no window may reach
    source = source_coordinates(geometry, axis).astype(np.float64)
    last = axis.input - 1
    radius = 1 if geometry.mode == "linear" else 2
    shrink = min(axis.scale, 1.0) if geometry.antialias else 1.0
    reach = math.ceil(radius / shrink)
    base = np.floor(source).astype(np.int64)
    places = base[:, None] + np.arange(1 - reach, reach + 1)
    distance = np.abs(places - source[:, None]) * shrink
    if geometry.mode == "linear":
        weights = np.maximum(1 - distance, 0)
    else:
        a = geometry.cubic_coefficient
        near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
        far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
        weights = np.where(distance <= 1, near, np.where(distance < 2, far, 0))
    if geometry.exclude_outside:
        weights = np.where((places >= 0) & (places <= last), weights, 0)
    if geometry.exclude_outside or geometry.antialias:
        total = weights.sum(axis=1, keepdims=True)
        weights = np.divide(weights, total, out=weights, where=total != 0)
    return places.clip(0, max(last, 0)), weights.astype(np.float32)


def resample(x: Array, geometry: ResizeGeometry) -> Array:
    """The resampled tensor, in the input's type (float16 and integers are summed in float32)."""
    result = x
    computes = geometry.mode != "nearest"
    if computes:
        result = x.astype(np.float64 if x.dtype in (np.float64, np.int64, np.uint64) else np.float32)
    outside = np.zeros((1,) * x.ndim, dtype=bool)
    for number, axis in enumerate(geometry.axes):
        if not geometry.resamples(axis):
            continue
        lanes = [1] * x.ndim
        lanes[number] = axis.output
        if geometry.extrapolation is not None:
            source = source_coordinates(geometry, axis)
            outside = outside | ((source < 0) | (source > axis.input - 1)).reshape(lanes)
        if not computes:
            result = result.take(nearest_places(geometry, axis), axis=number)
            continue
        places, weights = axis_taps(geometry, axis)
        total = np.zeros(
            (*result.shape[:number], axis.output, *result.shape[number + 1 :]), dtype=result.dtype
        )
        for tap in range(places.shape[1]):
            if weights[:, tap].any():
                total += result.take(places[:, tap], axis=number) * weights[:, tap].reshape(lanes)
        result = total
    if geometry.extrapolation is not None and outside.any():
        result = np.where(outside, np.asarray(geometry.extrapolation, dtype=result.dtype), result)
    if computes and x.dtype.kind in "iu":
        bounds = np.iinfo(x.dtype)
        rounded = np.rint(result) if geometry.antialias else np.trunc(result)
        result = rounded.clip(bounds.min, bounds.max)
    return contiguous(result.astype(x.dtype, copy=False))


def _table(geometry: ResizeGeometry, axis: ResizeAxis) -> Table | None:
    """Places and weights along an axis; None where it stays as it is."""
    if not geometry.resamples(axis):
        return None
    if geometry.mode != "nearest":
        return axis_taps(geometry, axis)
    places = nearest_places(geometry, axis)[:, None]
    return places, np.ones(places.shape, np.float32)


def _insides(geometry: ResizeGeometry) -> list[Array | None]:
    """Along each axis that is resampled, which places read inside of the input."""
    found: list[Array | None] = []
    for axis in geometry.axes:
        source = source_coordinates(geometry, axis)
        is_read = geometry.resamples(axis)
        found.append((source >= 0) & (source <= axis.input - 1) if is_read else None)
    return found


def _resized_back(build: Emitter[T], cotangent: T, geometry: ResizeGeometry) -> T:
    """What the elements of a resized tensor get of its cotangent."""
    if geometry.extrapolation is not None:
        mask = box_mask(build, _insides(geometry))
        if mask is not None:
            zero = build.constant(0, build.type_of(cotangent).dtype)
            cotangent = build.apply("Where", mask, cotangent, zero)
    tables = []
    for axis in geometry.axes:
        table = _table(geometry, axis)
        tables.append(None if table is None else transposed_table(*table, axis.input))
    return resampled(build, cotangent, tables)


@operator()
class Resize(Operator):
    """Resamples a tensor along some axes by nearest, linear or cubic interpolation."""

    inputs = (1, 4)
    attributes = {
        "antialias": 0,
        "axes": None,
        "coordinate_transformation_mode": "half_pixel",
        "cubic_coeff_a": -0.75,
        "exclude_outside": 0,
        "extrapolation_value": 0.0,
        "keep_aspect_ratio_policy": "stretch",
        "mode": "nearest",
        "nearest_mode": "round_prefer_floor",
    }
    value_inputs = (1, 2, 3)
    is_anchor = True
    attribute_types = {"axes": INTS}

    def upgrade(self, node: Node) -> Node | Sequence[Node]:
        return _from_opset_10(node) if node.version < 11 else node

    def keeps_layout(self, node: Node) -> bool:
        return True

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x = required(node, inputs, 0)
        if node.attributes["mode"] != "nearest":
            require_dtype(node, x, NUMBERS, "the input of an interpolation")
        parts: list[Known | None] = [optional(inputs, index) for index in (1, 2, 3)]
        for part, what in zip(parts[:2], ("roi", "scales"), strict=True):
            if part is not None:
                require_dtype(node, part, FLOATS, what)
        if parts[2] is not None:
            require_dtype(node, parts[2], (INT64,), "sizes")
        needed = (
            (1, 2, 3) if node.attributes["coordinate_transformation_mode"] == "tf_crop_and_resize" else (2, 3)
        )
        if has_unknown_value(inputs, needed):
            return [unknown_shape(x.dtype, x.rank)]
        values = [None if part is None else part.value for part in parts]
        if x.type.is_open and node.attributes["coordinate_transformation_mode"] != "tf_crop_and_resize":
            return [check_size(node, x.dtype, _open_output(node, x.dims, *values[1:]))]
        geometry = resize_geometry(node, x.dims, *values)
        return [check_size(node, x.dtype, geometry.output)]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x = present(inputs, 0)
        roi, scales, sizes = (optional(inputs, index) for index in (1, 2, 3))
        return [resample(x, resize_geometry(node, x.shape, roi, scales, sizes))]

    def lower(self, build: Lowering[V], node: Node, inputs: Sequence[V | None]) -> Sequence[V | None] | None:
        x = given(inputs, 0)
        stated = [None if view is None else build.contents(view) for view in inputs[1:]]
        roi, scales, sizes = (*stated, None, None, None)[:3]
        geometry = resize_geometry(node, x.shape, roi, scales, sizes)
        if geometry.extrapolation is not None or (geometry.mode != "nearest" and not x.dtype.is_float):
            return None
        return build.resize(x, [_table(geometry, axis) for axis in geometry.axes])

    def steps(self, build: Emitter[T], node: Node, inputs: Sequence[T | None]) -> Sequence[T] | None:
        x = present(inputs, 0)
        type_ = build.type_of(x)
        stated = [None if value is None else build.elements_of(value) for value in inputs[1:]]
        if type_.is_open or not type_.dtype.is_float:
            return None
        geometry = resize_geometry(node, type_.dims, *[*stated, None, None, None][:3])
        if geometry.extrapolation is None or not type_.elements:
            return None
        made = resampled(build, x, [_table(geometry, axis) for axis in geometry.axes])
        mask = box_mask(build, _insides(geometry))
        if mask is not None:
            other = build.constant(geometry.extrapolation, type_.dtype)
            made = build.apply("Where", mask, made, other)
        return [made]

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        x, cotangent = build.type_of(present(inputs, 0)), present(cotangents, 0)
        stated = [None if value is None else build.elements_of(value) for value in inputs]
        geometry = resize_geometry(node, x.dims, *[*stated[1:], None, None, None][:3])
        return [_resized_back(build, cotangent, geometry)]


def _from_opset_10(node: Node) -> Node:
    """Resize-10 and Upsample-9: inputs X and scales, coordinates without a half-pixel shift."""
    attributes = {
        "coordinate_transformation_mode": "asymmetric",
        "mode": {"bilinear": "linear"}.get(
            node.attributes.get("mode", ""), node.attributes.get("mode", "nearest")
        ),
        "nearest_mode": "simple",
    }
    return renew(node, op="Resize", inputs=(node.inputs[0], "", *node.inputs[1:]), attributes=attributes)


@operator()
class Upsample(Operator):
    """The name Resize had before opset 10."""

    inputs = (1, 2)
    attributes = {"mode": "nearest"}
    attribute_types = {"height_scale": FLOAT, "scales": AttributeType.FLOATS, "width_scale": FLOAT}

    def upgrade(self, node: Node) -> Node | Sequence[Node]:
        if node.version >= 9:
            return _from_opset_10(node)
        if node.version < 7:
            # Opset 1 knows [N, C, H, W] only.
            scales = (1.0, 1.0, node.attributes.get("height_scale"), node.attributes.get("width_scale"))
            if None in scales:
                raise InvalidGraph(f"{node.label}: height_scale and width_scale are needed")
            node = renew(node, drop=("height_scale", "width_scale"), attributes={"scales": scales})
        made = attributes_to_inputs(node, [("scales", 1, FLOAT32)])
        return [*made[:-1], _from_opset_10(made[-1])]
