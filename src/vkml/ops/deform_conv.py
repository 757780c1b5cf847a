"""DeformConv: convolution whose windows read at places that are moved by offsets."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from vkml.errors import ShapeError
from vkml.ir import scalar
from vkml.ir.dtypes import FLOATS
from vkml.ir.gradients import Emitter, T, converted, reshaped, sliced, widened
from vkml.ir.graph import Node
from vkml.ir.operator import Array, Operator, operator
from vkml.ir.types import Known, TensorType
from vkml.ir.windows import Windows
from vkml.ops.checks import optional, present, require_dtype, require_rank, require_same_dtype, required
from vkml.ops.limits import check_size
from vkml.ops.sampling_gradients import corners_of, read_corners, taps_at
from vkml.ops.stepwise import evaluate_steps
from vkml.ops.windows import WINDOW_ATTRIBUTES, explicit_pads, spatial_attribute


@operator()
class DeformConv(Operator):
    """Convolution of X [N, C, *spatial] whose taps are moved by offsets and weighted by a mask.

    Inputs: X, W [M, C / group, *kernel], offset [N, offset_group · taps · axes, *output], B [M] or none,
    mask [N, offset_group · taps, *output] or none. Elements between others are interpolated linearly, outside
    are zeros (X. Zhu, H. Hu, S. Lin and J. Dai, "Deformable ConvNets v2", 2018).
    """

    inputs = (3, 5)
    attributes = {
        "dilations": None, "group": 1, "kernel_shape": None, "offset_group": 1, "pads": None, "strides": None,
    }  # fmt: skip
    attribute_types = WINDOW_ATTRIBUTES

    def _windows(self, node: Node, spatial: Sequence[int], kernel: Sequence[int]) -> Windows:
        rank = len(spatial)
        stated = node.attributes["kernel_shape"]
        if stated is not None and tuple(stated) != tuple(kernel):
            raise ShapeError(f"{node.label}: kernel_shape {list(stated)}, the weight has {list(kernel)}")
        strides = spatial_attribute(node, "strides", rank, 1, 1)
        dilations = spatial_attribute(node, "dilations", rank, 1, 1)
        begins, ends = explicit_pads(node, rank)
        output = tuple(
            (size + begin + end - (k - 1) * dilation - 1) // stride + 1
            for size, begin, end, k, dilation, stride in zip(
                spatial, begins, ends, kernel, dilations, strides, strict=True
            )
        )
        return Windows(tuple(spatial), tuple(kernel), strides, dilations, begins, ends, output)

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x, weight, offset = (required(node, inputs, at) for at in range(3))
        bias, mask = optional(inputs, 3), optional(inputs, 4)
        require_dtype(node, x, FLOATS, "the input")
        require_rank(node, x, 3)
        for found, what in ((weight, "the weight"), (offset, "the offset"), (bias, "B"), (mask, "the mask")):
            if found is not None:
                require_same_dtype(node, x, found, what)
        batch, channels, *spatial = x.dims
        require_rank(node, weight, x.rank, x.rank, "the weight")
        group, offsets = int(node.attributes["group"]), int(node.attributes["offset_group"])
        filters, each, *kernel = weight.dims
        if group < 1 or each * group != channels or filters % group:
            raise ShapeError(
                f"{node.label}: a weight {list(weight.dims)} for {channels} channels in {group} groups"
            )
        if offsets < 1 or channels % offsets:
            raise ShapeError(f"{node.label}: {channels} channels do not divide into {offsets} offset groups")
        windows = self._windows(node, spatial, kernel)
        if any(size < 1 for size in windows.output):
            raise ShapeError(f"{node.label}: windows larger than the input {list(x.dims)}")
        taps = offsets * math.prod(kernel)
        for value, wanted, what in (
            (offset, (batch, taps * len(spatial), *windows.output), "offset"),
            (mask, (batch, taps, *windows.output), "mask"),
            (bias, (filters,), "B"),
        ):
            if value is not None and value.dims != wanted:
                raise ShapeError(f"{node.label}: {what} has shape {list(value.dims)}, not {list(wanted)}")
        return [check_size(node, x.dtype, (batch, filters, *windows.output))]

    def multiply_adds(
        self, node: Node, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]
    ) -> int:
        return outputs[0].elements * math.prod(present(inputs, 1).dims[1:])

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        return evaluate_steps(node, inputs)

    def steps(self, build: Emitter[T], node: Node, inputs: Sequence[T | None]) -> Sequence[T] | None:
        x, weight, offset = (present(inputs, at) for at in range(3))
        bias, mask = optional(inputs, 3), optional(inputs, 4)
        type_ = build.type_of(x)
        if type_.is_open or 0 in type_.dims:
            return None if type_.is_open else [self._empty(build, node, x, weight, bias)]
        batch, channels, *spatial = type_.dims
        filters, each, *kernel = build.type_of(weight).dims
        windows = self._windows(node, spatial, kernel)
        rank, taps, places = len(spatial), math.prod(kernel), math.prod(windows.output)
        offsets, group = int(node.attributes["offset_group"]), int(node.attributes["group"])
        rows = batch * offsets
        moves = reshaped(build, widened(build, offset), [rows, taps, rank, places])
        dtype = build.type_of(moves).dtype
        lanes = [
            reshaped(build, sliced(build, moves, 2, axis, axis + 1), [rows, taps * places])
            for axis in range(rank)
        ]
        lanes += [build.constant(base.reshape(1, taps * places), dtype) for base in _places(windows)]
        of_axes = [
            taps_at(
                scalar.argument(axis, dtype) + scalar.argument(rank + axis, dtype),
                size,
                "linear",
                "zeros",
                True,
            )
            for axis, size in enumerate(spatial)
        ]
        images = reshaped(build, x, [rows, channels // offsets, math.prod(spatial)])
        read = read_corners(build, images, lanes, corners_of(of_axes, spatial, dtype))
        if mask is not None:
            share = reshaped(build, widened(build, mask), [rows, 1, taps * places])
            read = build.apply("Mul", read, share)
        columns = reshaped(build, read, [batch, group, each * taps, places])
        filtering = reshaped(build, widened(build, weight), [group, filters // group, each * taps])
        made = build.apply("MatMul", filtering, columns)
        made = reshaped(build, made, [batch, filters, *windows.output])
        if bias is not None:
            made = build.apply("Add", made, reshaped(build, widened(build, bias), [filters, *[1] * rank]))
        return [converted(build, made, type_.dtype)]

    def _empty(self, build: Emitter[T], node: Node, x: T, weight: T, bias: T | None) -> T:
        """The result for an input without elements: the bias, or zeros."""
        type_, of_weight = build.type_of(x), build.type_of(weight).dims
        output = self._windows(node, type_.dims[2:], of_weight[2:]).output
        nothing = build.constant(np.zeros((type_.dims[0], of_weight[0], *output)), type_.dtype)
        if bias is None:
            return nothing
        return build.apply("Add", nothing, reshaped(build, bias, [of_weight[0], *[1] * len(output)]))


def _places(windows: Windows) -> list[Array]:
    """Of each axis, where each tap [taps] of each window [places] lies without offsets."""
    found = []
    rank = len(windows.kernel)
    for axis in range(rank):
        tap = np.arange(windows.kernel[axis]) * windows.dilations[axis]
        first = np.arange(windows.output[axis]) * windows.strides[axis] - windows.pads_begin[axis]
        along = [1] * (2 * rank)
        along[axis] = len(tap)
        begin = [1] * (2 * rank)
        begin[rank + axis] = len(first)
        whole = tap.reshape(along) + first.reshape(begin)
        found.append(np.broadcast_to(whole, (*windows.kernel, *windows.output)))
    return found
