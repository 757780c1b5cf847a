"""Sampling at coordinates that are data: GridSample, AffineGrid, RoiAlign."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from vkml.dataclasses import dataclass
from vkml.errors import IndexOutOfRange, InvalidGraph, NotDifferentiable, ShapeError
from vkml.ir.dtypes import FLOAT64, FLOATS, INT64, NUMBERS
from vkml.ir.gradients import Emitter, T, converted, reshaped, transposed
from vkml.ir.gradients import widened as widened_value
from vkml.ir.graph import Node
from vkml.ir.lowering import Lowering, V, all_given
from vkml.ir.operator import Array, Operator, operator
from vkml.ir.types import Known, TensorType
from vkml.ops.checks import (
    array_values,
    integers,
    list_value,
    present,
    require_dtype,
    require_rank,
    required,
    unknown_shape,
)
from vkml.ops.limits import check_size
from vkml.ops.pointwise import widened
from vkml.ops.sampling_gradients import grid_sample_gradient, grid_sampled
from vkml.ops.upgrading import renew

_OLD_MODES = {"bilinear": "linear", "bicubic": "cubic"}
CUBIC_COEFFICIENT = -0.75


@operator()
class GridSample(Operator):
    """Values of X [N, C, *spatial] at normalised coordinates, grid [N, *output, axes] with x first."""

    inputs = (2, 2)
    attributes = {"align_corners": 0, "mode": "linear", "padding_mode": "zeros"}

    def upgrade(self, node: Node) -> Node:
        mode = node.attributes.get("mode", "linear")
        return renew(node, attributes={"mode": _OLD_MODES.get(mode, mode)}) if node.version < 20 else node

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x, grid = required(node, inputs, 0), required(node, inputs, 1)
        require_dtype(node, x, NUMBERS, "the input")
        require_dtype(node, grid, FLOATS, "the grid")
        require_rank(node, x, 3)
        for key, allowed in (
            ("mode", ("linear", "nearest", "cubic")),
            ("padding_mode", ("zeros", "border", "reflection")),
        ):
            if node.attributes[key] not in allowed:
                raise InvalidGraph(
                    f"{node.label}: {key} {node.attributes[key]!r} is not one of {', '.join(allowed)}"
                )
        if grid.rank != x.rank or grid.dims[0] != x.dims[0] or grid.dims[-1] != x.rank - 2:
            raise ShapeError(
                f"{node.label}: a grid of shape {list(grid.dims)} does not address "
                f"an input of shape {list(x.dims)}"
            )
        if 0 in x.dims[2:] and grid.type.elements:
            raise ShapeError(f"{node.label}: an input of shape {list(x.dims)} has nothing to sample")
        return [check_size(node, x.dtype, (*x.dims[:2], *grid.dims[1:-1]))]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x, grid = present(inputs, 0), present(inputs, 1)
        batch, channels, *spatial = x.shape
        output = (batch, channels, *grid.shape[1:-1])
        source = widened(x).reshape(batch, channels, math.prod(spatial))
        if source.dtype.kind != "f":
            source = source.astype(np.float64)
        # One row a spatial axis, in the tensor's order: the grid has x, the last axis, first.
        places = (
            widened(grid).reshape(batch, math.prod(grid.shape[1:-1]), len(spatial)).transpose(2, 0, 1)[::-1]
        )
        aligned, padding = bool(node.attributes["align_corners"]), node.attributes["padding_mode"]
        with np.errstate(all="ignore"):
            taps = [
                _axis_taps(
                    _denormalised(place, size, aligned), size, node.attributes["mode"], padding, aligned
                )
                for place, size in zip(places, spatial, strict=True)
            ]
        total = np.zeros((batch, channels, places.shape[2]), dtype=source.dtype)
        for corner in itertools.product(*taps):
            flat = np.zeros(places.shape[1:], dtype=np.int64)
            weight = np.ones(places.shape[1:], dtype=source.dtype)
            inside = np.ones(places.shape[1:], dtype=np.bool_)
            for (index, factor, is_there), size in zip(corner, spatial, strict=True):
                flat = flat * size + index
                weight = weight * factor
                inside = inside & is_there
            # Not a weight of 0, by which an infinity at the edge would become NaN.
            found = np.where(inside[:, None], np.take_along_axis(source, flat[:, None], axis=2), 0)
            total += found * weight[:, None]
        return [total.astype(x.dtype).reshape(output)]

    def steps(self, build: Emitter[T], node: Node, inputs: Sequence[T | None]) -> Sequence[T] | None:
        x, grid = present(inputs, 0), present(inputs, 1)
        types = build.type_of(x), build.type_of(grid)
        if any(type_.is_open or 0 in type_.dims for type_ in types) or not types[0].dtype.is_float:
            return None
        mode, padding, aligned = (node.attributes[key] for key in ("mode", "padding_mode", "align_corners"))
        return [grid_sampled(build, x, grid, mode, padding, bool(aligned))]

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        mode, padding, aligned = (node.attributes[key] for key in ("mode", "padding_mode", "align_corners"))
        x, grid, cotangent = present(inputs, 0), present(inputs, 1), present(cotangents, 0)
        return grid_sample_gradient(build, x, grid, cotangent, mode, padding, bool(aligned), needed)


def _denormalised(place: Array, size: int, aligned: bool) -> Array:
    """-1 … 1 as places of the axis: centres of the corner elements where aligned, else their outer edges."""
    found = (place + 1) / 2 * (size - 1) if aligned else ((place + 1) * size - 1) / 2
    # Bounded, so that later integer arithmetic cannot wrap; what is not a number lies outside.
    return np.asarray(np.nan_to_num(found, nan=-1e6).clip(-1e6, 1e6 + size))


def _reflected(place: Array, low: float, high: float) -> Array:
    """Places folded back into low … high."""
    span = high - low
    if span <= 0:
        return np.full_like(place, low)
    distance = np.abs(place - low)
    folded = np.mod(distance, 2 * span)
    return low + np.minimum(folded, 2 * span - folded)


def _axis_taps(
    place: Array, size: int, mode: str, padding: str, aligned: bool
) -> list[tuple[Array, Array, Array]]:
    """Along one axis: the input places that are read, their weights, and whether anything is there."""
    low, high = (0.0, size - 1.0) if aligned else (-0.5, size - 0.5)
    if mode == "nearest":
        place = np.rint(place)
    if mode != "cubic":
        if padding == "border":
            place = place.clip(0, size - 1)
        elif padding == "reflection":
            place = _reflected(place, low, high)
    base = np.floor(place)
    fraction = place - base
    if mode == "nearest":
        weights = [np.ones_like(place)]
        offsets = [0]
    elif mode == "linear":
        weights, offsets = [1 - fraction, fraction], [0, 1]
    else:
        weights, offsets = [_cubic(np.abs(fraction - offset)) for offset in range(-1, 3)], [-1, 0, 1, 2]
    taps = []
    for offset, weight in zip(offsets, weights, strict=True):
        index = base + offset
        inside = (index >= 0) & (index < size) if padding == "zeros" else np.ones(index.shape, np.bool_)
        if padding == "reflection":
            index = _reflected(index, low, high)
        taps.append((index.clip(0, max(size - 1, 0)).astype(np.int64), weight, inside))
    return taps


def _cubic(distance: Array) -> Array:
    a = CUBIC_COEFFICIENT
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    return np.where(distance <= 1, near, far)


def _homogeneous_points(spatial: Sequence[int], aligned: bool, dtype: np.dtype[Any]) -> Array:
    """The places of a regular grid, [places, axes + 1]: x, the last axis, first, and a one behind."""
    lines = []
    for size in spatial:
        steps = np.arange(size, dtype=dtype)
        if aligned:
            lines.append(steps * 2 / max(size - 1, 1) - 1 if size > 1 else np.zeros_like(steps))
        else:
            lines.append((steps * 2 + 1) / size - 1)
    grid = np.meshgrid(*lines, indexing="ij")
    points = np.stack([*grid[::-1], np.ones(spatial, dtype=dtype)], axis=-1)
    return points.reshape(-1, len(spatial) + 1)


@operator()
class AffineGrid(Operator):
    """Coordinates for GridSample: a regular grid of a given size under one affine map a sample."""

    inputs = (2, 2)
    attributes = {"align_corners": 0}
    value_inputs = (1,)

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        theta, size = required(node, inputs, 0), required(node, inputs, 1)
        require_dtype(node, theta, FLOATS, "theta")
        wanted = list_value(node, size, "size")
        if wanted is None:
            return [unknown_shape(theta.dtype, size.type.elements)]
        spatial = len(wanted) - 2
        if spatial not in (2, 3) or theta.dims != (wanted[0], spatial, spatial + 1):
            raise ShapeError(
                f"{node.label}: theta of shape {list(theta.dims)} does not map "
                f"a tensor of size {list(wanted)}"
            )
        return [check_size(node, theta.dtype, (wanted[0], *wanted[2:], spatial))]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        theta, wanted = present(inputs, 0), array_values(inputs, 1)[0] or ()
        wide, spatial = widened(theta), wanted[2:]
        points = _homogeneous_points(spatial, bool(node.attributes["align_corners"]), wide.dtype)
        result = points @ wide.transpose(0, 2, 1)
        return [result.reshape(wanted[0], *spatial, len(spatial)).astype(theta.dtype, copy=False)]

    def steps(self, build: Emitter[T], node: Node, inputs: Sequence[T | None]) -> Sequence[T] | None:
        theta, stated = present(inputs, 0), build.elements_of(present(inputs, 1))
        if stated is None or stated.dtype == object:
            return None
        batch, _, *spatial = integers(stated)
        wide = widened_value(build, theta)
        dtype = build.type_of(wide).dtype
        points = _homogeneous_points(spatial, bool(node.attributes["align_corners"]), dtype.storage)
        found = build.apply("MatMul", build.constant(points, dtype), transposed(build, wide, [0, 2, 1]))
        found = reshaped(build, found, [batch, *spatial, len(spatial)])
        return [converted(build, found, build.type_of(theta).dtype)]

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        theta, wanted = build.type_of(present(inputs, 0)), build.elements_of(present(inputs, 1))
        assert wanted is not None, "the size decides the shape"
        batch, _, *spatial = integers(wanted)
        cotangent = widened_value(build, present(cotangents, 0))
        dtype = build.type_of(cotangent).dtype
        points = _homogeneous_points(spatial, bool(node.attributes["align_corners"]), dtype.storage)
        flat = reshaped(build, cotangent, [batch, len(points), len(spatial)])
        found = build.apply("MatMul", transposed(build, flat, [0, 2, 1]), build.constant(points, dtype))
        return [converted(build, found, theta.dtype)]


@dataclass(frozen=True)
class RoiAlignGeometry:
    """Regions of [batch, channels, height, width] averaged into `output` bins each."""

    rois: int
    channels: int
    height: int
    width: int
    output: tuple[int, int]


def roi_align_geometry(
    node: Node, x: Sequence[int], rois: Sequence[int], batch: Sequence[int]
) -> RoiAlignGeometry:
    """Checks RoiAlign's shapes: X [N, C, H, W], rois [R, 4], batch_indices [R]."""
    if len(x) != 4 or len(rois) != 2 or rois[1] != 4 or tuple(batch) != (rois[0],):
        raise ShapeError(
            f"{node.label}: input {list(x)}, rois {list(rois)} and batch_indices {list(batch)} must be "
            "[N, C, H, W], [R, 4] and [R]"
        )
    output = (int(node.attributes["output_height"]), int(node.attributes["output_width"]))
    if min(output) < 1 or node.attributes["sampling_ratio"] < 0:
        raise InvalidGraph(
            f"{node.label}: output {list(output)} must be positive, sampling_ratio not negative"
        )
    return RoiAlignGeometry(rois[0], x[1], x[2], x[3], output)


@operator()
class RoiAlign(Operator):
    """Average or maximum of bilinear samples in each bin of each region of interest."""

    inputs = (3, 3)
    attributes = {
        "coordinate_transformation_mode": "half_pixel",
        "mode": "avg",
        "output_height": 1,
        "output_width": 1,
        "sampling_ratio": 0,
        "spatial_scale": 1.0,
    }

    def upgrade(self, node: Node) -> Node:
        if node.version >= 16:
            return node
        return renew(node, attributes={"coordinate_transformation_mode": "output_half_pixel"})

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x, rois, batch = (required(node, inputs, index) for index in range(3))
        for found, what in ((x, "the input"), (rois, "rois")):
            require_dtype(node, found, FLOATS, what)
        require_dtype(node, batch, (INT64,), "batch_indices")
        if node.attributes["mode"] not in ("avg", "max"):
            raise InvalidGraph(f"{node.label}: mode {node.attributes['mode']!r} is neither avg nor max")
        geometry = roi_align_geometry(node, x.dims, rois.dims, batch.dims)
        if 0 in x.dims[2:] and geometry.rois and geometry.channels:
            raise ShapeError(f"{node.label}: an input of shape {list(x.dims)} has nothing to sample")
        return [check_size(node, x.dtype, (geometry.rois, geometry.channels, *geometry.output))]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x, rois, batch = (present(inputs, index) for index in range(3))
        geometry = roi_align_geometry(node, x.shape, rois.shape, batch.shape)
        if not geometry.channels:
            return [np.zeros((len(rois), 0, *geometry.output), x.dtype)]
        wrong = np.flatnonzero((batch < 0) | (batch >= x.shape[0]))
        if wrong.size:
            raise IndexOutOfRange(
                f"{node.label}: batch index {int(batch[wrong[0]])} of region {int(wrong[0])} "
                f"is outside 0 … {x.shape[0] - 1}"
            )
        wide, boxes = widened(x), widened(rois).astype(np.float64) * node.attributes["spatial_scale"]
        result = np.zeros((geometry.rois, geometry.channels, *geometry.output), dtype=wide.dtype)
        for index in range(geometry.rois):
            result[index] = _align_region(node, wide[batch[index]], boxes[index], geometry)
        return [result.astype(x.dtype, copy=False)]

    def lower(self, build: Lowering[V], node: Node, inputs: Sequence[V | None]) -> Sequence[V | None] | None:
        given = node.attributes
        return build.roi_align(
            *all_given(inputs),
            scale=given["spatial_scale"],
            ratio=int(given["sampling_ratio"]),
            is_max=given["mode"] == "max",
            is_half_pixel=given["coordinate_transformation_mode"] == "half_pixel",
        )

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        if needed[1]:
            raise NotDifferentiable("RoiAlign has no gradient by the regions, as in torchvision")
        if node.attributes["mode"] != "avg":
            raise NotDifferentiable("RoiAlign's gradient is known for mode 'avg' only")
        x, rois, batch = (present(inputs, at) for at in range(3))
        cotangent = present(cotangents, 0)
        dims = build.type_of(x).dims
        found = build.apply(
            "RoiAlignGradient", cotangent, rois, batch, domain="vkml", image=dims, **node.attributes
        )
        return [found]


def region_samples(
    node: Node, box: Array, geometry: RoiAlignGeometry
) -> list[tuple[Array, Array, Array, Array, int]]:
    """Along height and width: lower and upper neighbour of each sample of a region, weight of the upper,
    whether the sample counts, and how many samples a bin has.
    """
    is_half_pixel = node.attributes["coordinate_transformation_mode"] == "half_pixel"
    axes, counts = [], []
    for axis, (size, bins) in enumerate(zip((geometry.height, geometry.width), geometry.output, strict=True)):
        start, end = (float(edge) - 0.5 * is_half_pixel for edge in (box[1 - axis], box[3 - axis]))
        extent = end - start if is_half_pixel else max(end - start, 1.0)
        if not math.isfinite(extent) or abs(extent) > 2**20:
            raise ShapeError(f"{node.label}: a region from {start} to {end} cannot be sampled")
        samples = int(node.attributes["sampling_ratio"]) or max(math.ceil(extent / bins), 0)
        counts.append(bins * samples)
        check_size(node, FLOAT64, (geometry.channels, *counts))
        places = start + (np.arange(bins * samples) + 0.5) * extent / max(bins * samples, 1)
        axes.append((*_bilinear_taps(places, size), samples))
    return axes


def _align_region(node: Node, plane: Array, box: Array, geometry: RoiAlignGeometry) -> Array:
    """One region of one sample [C, H, W] → [C, *output]."""
    axes = region_samples(node, box, geometry)
    (low_y, high_y, part_y, in_y, rows), (low_x, high_x, part_x, in_x, columns) = axes
    inside = in_y[:, None] & in_x[None, :]
    corners = [
        np.where(inside, plane[:, ys[:, None], xs[None, :]], 0) * (wy[:, None] * wx).astype(plane.dtype)
        for ys, wy in ((low_y, 1 - part_y), (high_y, part_y))
        for xs, wx in ((low_x, 1 - part_x), (high_x, part_x))
    ]
    shape = (geometry.channels, geometry.output[0], rows, geometry.output[1], columns)
    if rows * columns == 0:
        return np.zeros((geometry.channels, *geometry.output), dtype=plane.dtype)
    if node.attributes["mode"] == "avg":
        return np.asarray(np.add.reduce(corners).reshape(shape).mean(axis=(2, 4)))
    # The maximum is taken over weighted corners, not over samples, as in the reference values.
    return np.asarray(np.maximum.reduce(corners).reshape(shape).max(axis=(2, 4)))


def _bilinear_taps(places: Array, size: int) -> tuple[Array, Array, Array, Array]:
    """Lower and upper neighbour, weight of the upper, and whether the place counts at all."""
    inside = (places >= -1) & (places <= size)
    bounded = places.clip(0, max(size - 1, 0))
    low = np.floor(bounded).astype(np.int64)
    return low, np.minimum(low + 1, max(size - 1, 0)), bounded - low, inside
