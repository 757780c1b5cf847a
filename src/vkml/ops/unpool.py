"""Inverses of sliding windows: Col2Im and MaxUnpool."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from vkml.dataclasses import dataclass
from vkml.errors import IndexOutOfRange, ShapeError
from vkml.ir.dtypes import FLOATS, INT64
from vkml.ir.gradients import Emitter, T, padded, reshaped, transposed
from vkml.ir.graph import Node
from vkml.ir.lowering import Table
from vkml.ir.operator import REQUIRED, Array, Operator, operator
from vkml.ir.types import Known, TensorType
from vkml.ops.checks import (
    array_values,
    has_unknown_value,
    input_values,
    integers,
    optional,
    present,
    require_dtype,
    require_rank,
    required,
    unknown_shape,
)
from vkml.ops.index_gradients import not_negative
from vkml.ops.limits import check_size
from vkml.ops.resample import resampled, transposed_table, window_table
from vkml.ops.windows import WINDOW_ATTRIBUTES, explicit_pads, spatial_attribute


@dataclass(frozen=True)
class Col2ImGeometry:
    """Columns [batch, channels · block, positions] that are added up into images of size `image`."""

    channels: int
    image: tuple[int, ...]
    block: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads_begin: tuple[int, ...]
    pads_end: tuple[int, ...]
    counts: tuple[int, ...]
    """Blocks along each axis."""


def col2im_geometry(
    node: Node, x_shape: Sequence[int], image: Sequence[int], block: Sequence[int]
) -> Col2ImGeometry:
    """Resolves Col2Im's attributes and checks that the columns fit the image."""
    rank = len(image)
    if rank == 0 or len(block) != rank or any(size < 1 for size in (*image, *block)):
        raise ShapeError(
            f"{node.label}: image {list(image)} and block {list(block)} must be positive and equally long"
        )
    strides = spatial_attribute(node, "strides", rank, 1, 1)
    dilations = spatial_attribute(node, "dilations", rank, 1, 1)
    begins, ends = explicit_pads(node, rank)
    counts = tuple(
        max((size + b + e - (k - 1) * d - 1) // s + 1, 0)
        for size, b, e, k, d, s in zip(image, begins, ends, block, dilations, strides, strict=True)
    )
    taps = math.prod(block)
    if len(x_shape) != 3 or x_shape[1] % taps or x_shape[2] != math.prod(counts):
        raise ShapeError(
            f"{node.label}: columns of shape {list(x_shape)} must be [N, C · {taps}, {math.prod(counts)}] "
            f"for image {list(image)} and block {list(block)}"
        )
    return Col2ImGeometry(
        x_shape[1] // taps, tuple(image), tuple(block), strides, dilations, begins, ends, counts
    )


@operator()
class Col2Im(Operator):
    """Adds columns of blocks up into images: what im2col took apart."""

    inputs = (3, 3)
    attributes = {"dilations": None, "pads": None, "strides": None}
    value_inputs = (1, 2)
    attribute_types = WINDOW_ATTRIBUTES

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x, image_input = required(node, inputs, 0), required(node, inputs, 1)
        required(node, inputs, 2)
        require_dtype(node, x, FLOATS, "the input")
        if has_unknown_value(inputs, (1, 2)):
            return [unknown_shape(x.dtype, 2 + image_input.type.elements)]
        image = input_values(node, inputs, 1, "image_shape") or ()
        block = input_values(node, inputs, 2, "block_shape") or ()
        geometry = col2im_geometry(node, x.dims, image, block)
        return [check_size(node, x.dtype, (x.dims[0], geometry.channels, *image))]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x = present(inputs, 0)
        image, block = array_values(inputs, 1, 2)
        geometry = col2im_geometry(node, x.shape, image or (), block or ())
        batch, channels = x.shape[0], geometry.channels
        padded = [
            size + b + e
            for size, b, e in zip(geometry.image, geometry.pads_begin, geometry.pads_end, strict=True)
        ]
        wide = np.float64 if x.dtype == np.float64 else np.float32
        whole = np.zeros((batch, channels, *padded), dtype=wide)
        parts = x.reshape(batch, channels, math.prod(geometry.block), *geometry.counts)
        for tap, place in enumerate(np.ndindex(*geometry.block)):
            target: tuple[Any, ...] = (
                slice(None),
                slice(None),
                *(
                    slice(p * d, p * d + (count - 1) * s + 1, s)
                    for p, d, s, count in zip(
                        place, geometry.dilations, geometry.strides, geometry.counts, strict=True
                    )
                ),
            )
            if parts.size:
                whole[target] += parts[:, :, tap]
        kept: tuple[Any, ...] = (
            slice(None),
            slice(None),
            *(slice(b, b + size) for b, size in zip(geometry.pads_begin, geometry.image, strict=True)),
        )
        return [np.ascontiguousarray(whole[kept]).astype(x.dtype, copy=False)]

    def steps(self, build: Emitter[T], node: Node, inputs: Sequence[T | None]) -> Sequence[T] | None:
        x = present(inputs, 0)
        type_ = build.type_of(x)
        image, block = (build.elements_of(present(inputs, at)) for at in (1, 2))
        if type_.is_open or image is None or block is None or object in (image.dtype, block.dtype):
            return None
        geometry = col2im_geometry(node, type_.dims, integers(image), integers(block))
        if not type_.elements:
            return [
                build.constant(np.zeros((type_.dims[0], geometry.channels, *geometry.image)), type_.dtype)
            ]
        rank = len(geometry.image)
        apart = reshaped(build, x, [type_.dims[0], geometry.channels, *geometry.block, *geometry.counts])
        # Beside each other: the blocks along an axis, and the taps of each.
        order = [axis for at in range(rank) for axis in (2 + rank + at, 2 + at)]
        lines = transposed(build, apart, [0, 1, *order])
        sizes = [count * k for count, k in zip(geometry.counts, geometry.block, strict=True)]
        columns = reshaped(build, lines, [type_.dims[0], geometry.channels, *sizes])
        tables: list[Table | None] = [None, None]
        for axis, size in enumerate(geometry.image):
            places, weights = window_table(
                size,
                geometry.block[axis],
                geometry.strides[axis],
                geometry.dilations[axis],
                geometry.pads_begin[axis],
                geometry.counts[axis],
            )
            tables.append(transposed_table(places.reshape(-1, 1), weights.reshape(-1, 1), size))
        return [resampled(build, columns, tables)]

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        x = build.type_of(present(inputs, 0))
        image, block = (build.elements_of(present(inputs, at)) for at in (1, 2))
        assert image is not None and block is not None, "these decide the shape"
        geometry = col2im_geometry(node, x.dims, integers(image), integers(block))
        return [_unrolled(build, present(cotangents, 0), geometry, x.dims)]


def _unrolled(build: Emitter[T], image: T, geometry: Col2ImGeometry, dims: Sequence[int]) -> T:
    """Blocks of an image as columns, of shape `dims`."""
    batch, rank = dims[0], len(geometry.image)
    whole = padded(build, image, [0, 0, *geometry.pads_begin], [0, 0, *geometry.pads_end])
    axes = build.constant(range(2, 2 + rank), INT64)
    strides = build.constant(geometry.strides, INT64)
    parts = []
    for place in np.ndindex(*geometry.block):
        starts = [p * d for p, d in zip(place, geometry.dilations, strict=True)]
        ends = [
            start + (count - 1) * stride + 1
            for start, count, stride in zip(starts, geometry.counts, geometry.strides, strict=True)
        ]
        bounds = [build.constant(entries, INT64) for entries in (starts, ends)]
        part = build.apply("Slice", whole, *bounds, axes, strides)
        parts.append(reshaped(build, part, [batch, geometry.channels, 1, math.prod(geometry.counts)]))
    columns = build.apply("Concat", *parts, axis=2)
    return reshaped(build, columns, dims)


def unpooled_shape(node: Node, x_shape: Sequence[int]) -> tuple[int, ...]:
    """The shape of the tensor that MaxPool made `x_shape` of, as far as its attributes tell."""
    kernel = tuple(int(k) for k in node.attributes["kernel_shape"])
    rank = len(x_shape) - 2
    if len(kernel) != rank:
        raise ShapeError(
            f"{node.label}: kernel_shape {list(kernel)} does not fit an input of shape {list(x_shape)}"
        )
    strides = spatial_attribute(node, "strides", rank, 1, 1)
    begins, ends = explicit_pads(node, rank)
    spatial = [
        (size - 1) * s - b - e + k
        for size, s, b, e, k in zip(x_shape[2:], strides, begins, ends, kernel, strict=True)
    ]
    return (x_shape[0], x_shape[1], *spatial)


@operator()
class MaxUnpool(Operator):
    """Puts each element back where MaxPool's indices say it came from; zeros elsewhere."""

    inputs = (2, 3)
    attributes = {"kernel_shape": REQUIRED, "pads": None, "strides": None}
    value_inputs = (2,)
    attribute_types = WINDOW_ATTRIBUTES

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x, indices = required(node, inputs, 0), required(node, inputs, 1)
        require_dtype(node, x, FLOATS, "the input")
        require_dtype(node, indices, (INT64,), "indices")
        require_rank(node, x, 3)
        if indices.dims != x.dims:
            raise ShapeError(
                f"{node.label}: indices of shape {list(indices.dims)} differ from {list(x.dims)}"
            )
        inferred = unpooled_shape(node, x.dims)
        if has_unknown_value(inputs, (2,)):
            return [unknown_shape(x.dtype, x.rank)]
        stated = input_values(node, inputs, 2, "output_shape")
        if stated is not None:
            self._check_stated(node, inferred, stated)
        return [check_size(node, x.dtype, inferred if stated is None else stated)]

    def _check_stated(self, node: Node, inferred: Sequence[int], stated: Sequence[int]) -> None:
        if len(stated) != len(inferred) or any(a < b for a, b in zip(stated, inferred, strict=True)):
            raise ShapeError(f"{node.label}: output_shape {list(stated)} is smaller than {list(inferred)}")

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x, indices, stated = present(inputs, 0), present(inputs, 1), optional(inputs, 2)
        shape = unpooled_shape(node, x.shape)
        whole = np.zeros(math.prod(shape), dtype=x.dtype)
        wrong = (indices < 0) | (indices >= whole.size)
        if wrong.any():
            found = int(indices.reshape(-1)[int(np.argmax(wrong))])
            raise IndexOutOfRange(
                f"{node.label}: index {found} is outside the {whole.size} elements of {list(shape)}"
            )
        whole[indices.reshape(-1)] = x.reshape(-1)
        result = whole.reshape(shape)
        if stated is None:
            return [result]
        wanted = tuple(int(size) for size in stated)
        self._check_stated(node, shape, wanted)
        return [np.pad(result, [(0, large - small) for small, large in zip(shape, wanted, strict=True)])]

    def steps(self, build: Emitter[T], node: Node, inputs: Sequence[T | None]) -> Sequence[T] | None:
        x, indices, stated = present(inputs, 0), present(inputs, 1), optional(inputs, 2)
        type_ = build.type_of(x)
        wanted = None if stated is None else build.elements_of(stated)
        if type_.is_open or (wanted is not None and wanted.dtype == object):
            return None
        shape = unpooled_shape(node, type_.dims)
        size, count = math.prod(shape), type_.elements
        places = not_negative(build, reshaped(build, indices, [count]), size)
        nothing = build.constant(np.zeros(size), type_.dtype)
        flat = build.apply("ScatterElements", nothing, places, reshaped(build, x, [count]), axis=0)
        whole = reshaped(build, flat, shape)
        if wanted is None:
            return [whole]
        ends = [large - small for small, large in zip(shape, integers(wanted), strict=True)]
        return [padded(build, whole, [0] * len(ends), ends)]

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        x, indices = build.type_of(present(inputs, 0)), present(inputs, 1)
        shape, cotangent = unpooled_shape(node, x.dims), present(cotangents, 0)
        # A stated shape is larger: zeros stand behind what the indices are of.
        ends = [small - large for small, large in zip(shape, build.type_of(cotangent).dims, strict=True)]
        whole = reshaped(build, padded(build, cotangent, [0] * len(ends), ends), [math.prod(shape)])
        found = build.apply("GatherElements", whole, reshaped(build, indices, [x.elements]))
        return [reshaped(build, found, x.dims)]
