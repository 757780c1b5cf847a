"""MaxRoiPool: maxima over the bins of regions of interest."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from vkml.errors import IndexOutOfRange, InvalidGraph, ShapeError
from vkml.ir.dtypes import FLOATS, INT64
from vkml.ir.gradients import Emitter, T, reshaped
from vkml.ir.graph import Node
from vkml.ir.operator import INTS, REQUIRED, Array, Operator, operator
from vkml.ir.types import Known, TensorType
from vkml.ops.checks import present, require_dtype, require_rank, require_same_dtype, required
from vkml.ops.limits import check_size
from vkml.ops.pointwise import widened
from vkml.ops.stepwise import evaluate_steps


class _OfRegions(Operator):
    """Takes images [N, C, H, W] and regions [R, 5]: number of the image, x and y of two corners."""

    inputs = (2, 2)
    attributes = {"pooled_shape": REQUIRED, "spatial_scale": 1.0}
    attribute_types = {"pooled_shape": INTS}

    def _dims(self, node: Node, inputs: Sequence[Known | None]) -> tuple[int, ...]:
        x, regions = required(node, inputs, 0), required(node, inputs, 1)
        require_dtype(node, x, FLOATS, "the input")
        require_same_dtype(node, x, regions, "rois")
        require_rank(node, x, 4, 4)
        pooled = tuple(node.attributes["pooled_shape"])
        if len(pooled) != 2 or min(pooled) < 1:
            raise InvalidGraph(f"{node.label}: pooled_shape {list(pooled)} must be two positive numbers")
        if regions.rank != 2 or regions.dims[1] != 5:
            raise ShapeError(f"{node.label}: rois have shape {list(regions.dims)}, not [R, 5]")
        return (regions.dims[0], x.dims[1], *pooled)


@operator()
class MaxRoiPool(_OfRegions):
    """The greatest element in each bin of each region; 0 in empty bins (R. Girshick, "Fast R-CNN", 2015)."""

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        return [check_size(node, required(node, inputs, 0).dtype, self._dims(node, inputs))]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        return evaluate_steps(node, inputs)

    def steps(self, build: Emitter[T], node: Node, inputs: Sequence[T | None]) -> Sequence[T] | None:
        x, regions = present(inputs, 0), present(inputs, 1)
        type_ = build.type_of(x)
        if type_.is_open:
            return None
        zero = build.constant(0, type_.dtype)
        places = build.apply("MaxRoiPlaces", x, regions, domain="vkml", **node.attributes)
        if not type_.elements:
            return [build.constant(np.zeros(build.type_of(places).dims), type_.dtype)]
        is_there = build.apply("GreaterOrEqual", places, build.constant(0, INT64))
        read = build.apply("Where", is_there, places, build.constant(0, INT64))
        found = build.apply("Gather", reshaped(build, x, [type_.elements]), read)
        return [build.apply("Where", is_there, found, zero)]


@operator("MaxRoiPlaces")
class MaxRoiPlaces(_OfRegions):
    """Where MaxRoiPool reads, in the flattened input; -1 in empty bins. vkml makes it, no file does."""

    domain = "vkml"

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        return [check_size(node, INT64, self._dims(node, inputs))]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x, regions = widened(present(inputs, 0)), widened(present(inputs, 1))
        batch, channels, height, width = x.shape
        pooled = tuple(node.attributes["pooled_shape"])
        found = np.full((len(regions), channels, *pooled), -1, np.int64)
        for number, (image, *corners) in enumerate(regions.tolist()):
            if not 0 <= image < batch:
                raise IndexOutOfRange(
                    f"{node.label}: image {image} of region {number} is outside 0 … {batch - 1}"
                )
            if not all(math.isfinite(corner) for corner in corners):
                raise ShapeError(f"{node.label}: region {number} has corners that are not finite")
            scale = node.attributes["spatial_scale"]
            left, top, right, bottom = (_rounded(corner * scale) for corner in corners)
            rows = _bins(top, bottom, pooled[0], height)
            columns = _bins(left, right, pooled[1], width)
            for i, (top_row, end_row) in enumerate(rows):
                for j, (first, end) in enumerate(columns):
                    if top_row >= end_row or first >= end:
                        continue
                    part = x[int(image), :, top_row:end_row, first:end].reshape(channels, -1)
                    row, column = np.divmod(part.argmax(1), end - first)
                    plane = (int(image) * channels + np.arange(channels)) * height + top_row + row
                    found[number, :, i, j] = plane * width + first + column
        return [found]

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        return [None, None]  # places are whole numbers


def _rounded(x: float) -> int:
    """The nearest whole number, halves away from zero."""
    return int(math.copysign(math.floor(abs(x) + 0.5), x))


def _bins(first: int, last: int, count: int, size: int) -> list[tuple[int, int]]:
    """Begin and end of each bin of a region along an axis, inside of it."""
    extent = max(last - first + 1, 1) / count
    edges = ((math.floor(n * extent) + first, math.ceil((n + 1) * extent) + first) for n in range(count))
    return [(min(max(begin, 0), size), min(max(end, 0), size)) for begin, end in edges]
