"""ConvTranspose: the gradient of Conv with respect to its input."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from vkml.dataclasses import dataclass
from vkml.errors import ShapeError
from vkml.ir.dtypes import FLOATS
from vkml.ir.gradients import Emitter, T
from vkml.ir.graph import Node
from vkml.ir.lowering import CannotLower, Lowering, V, given
from vkml.ir.operator import INTS, Array, Operator, operator
from vkml.ir.types import Known, TensorType
from vkml.ir.windows import Windows
from vkml.ops.checks import optional, present, require_dtype, require_rank, require_same_dtype, required
from vkml.ops.conv import Conv, check_bias, check_kernel_shape, check_ranks, with_bias
from vkml.ops.conv_gradients import bias_gradient, convolved, image_gradient, is_dense, weight_gradient
from vkml.ops.limits import check_size
from vkml.ops.pointwise import widened
from vkml.ops.windows import WINDOW_ATTRIBUTES, auto_pad_mode, explicit_pads, spatial_attribute

LEAST_DENSE_SUM = 32
"""Products of an output, from which on a transposed convolution is made of dense ones; an estimate."""


@dataclass(frozen=True)
class ConvTransposeGeometry:
    """A transposed convolution: each input element adds its scaled kernel to the output."""

    batch: int
    channels: int
    filters: int
    group: int
    spatial: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads_begin: tuple[int, ...]
    """What is cut from the front of the full output."""
    pads_end: tuple[int, ...]
    output: tuple[int, ...]

    @property
    def output_shape(self) -> tuple[int, ...]:
        return (self.batch, self.filters, *self.output)

    @property
    def windows(self) -> Windows:
        """Of the convolution that this one transposes, which slides over the output."""
        return Windows(
            self.output,
            self.kernel,
            self.strides,
            self.dilations,
            self.pads_begin,
            self.pads_end,
            self.spatial,
        )

    @property
    def is_worth_steps(self) -> bool:
        """Whether dense convolutions, one for each place between the strides, are worth their interleaving.

        An output sums up a stride's share of the taps for each channel: where these are few, one thread
        does so sooner than a second pass moves what the first one made.
        """
        taps = math.prod(-(-k // stride) for k, stride in zip(self.kernel, self.strides, strict=True))
        return is_dense(self.windows) and taps * (self.channels // self.group) >= LEAST_DENSE_SUM


def conv_transpose_geometry(
    node: Node, x_shape: Sequence[int], w_shape: Sequence[int]
) -> ConvTransposeGeometry:
    """Resolves a ConvTranspose node's attributes against the shapes of its input and weight.

    Args:
        node: The ConvTranspose node.
        x_shape: [N, C, *spatial].
        w_shape: [C, M / group, *kernel].

    Raises:
        ShapeError: Channels, groups, kernel or output sizes do not fit.
    """
    check_ranks(node, x_shape, w_shape)
    kernel = check_kernel_shape(node, w_shape)
    rank, group, channels = len(kernel), int(node.attributes["group"]), x_shape[1]
    if w_shape[0] != channels:
        raise ShapeError(f"{node.label}: weight expects {w_shape[0]} input channels, input has {channels}")
    if channels % group:
        raise ShapeError(f"{node.label}: {channels} input channels do not divide into {group} groups")
    if any(k < 1 for k in kernel):
        raise ShapeError(f"{node.label}: kernel {list(kernel)} must be positive")
    strides = spatial_attribute(node, "strides", rank, 1, 1)
    dilations = spatial_attribute(node, "dilations", rank, 1, 1)
    extra = spatial_attribute(node, "output_padding", rank, 0, 0)
    mode = auto_pad_mode(node)
    full = [
        (size - 1) * stride + (k - 1) * dilation + 1
        for size, stride, k, dilation in zip(x_shape[2:], strides, kernel, dilations, strict=True)
    ]
    stated = node.attributes["output_shape"]
    if stated is not None and len(stated) == rank + 2:
        stated = stated[2:]
    if stated is not None or mode in ("SAME_UPPER", "SAME_LOWER"):
        if stated is None:
            output = [size * stride for size, stride in zip(x_shape[2:], strides, strict=True)]
        elif len(stated) == rank:
            output = [int(size) for size in stated]
        else:
            raise ShapeError(f"{node.label}: output_shape {list(stated)} needs {rank} entries")
        begins, ends = [], []
        for size, whole, add in zip(output, full, extra, strict=True):
            total = max(whole + add - size, 0)
            small, large = total // 2, total - total // 2
            begins.append(small if mode == "SAME_UPPER" else large)
            ends.append(large if mode == "SAME_UPPER" else small)
    else:
        pads = explicit_pads(node, rank) if mode == "NOTSET" else ((0,) * rank, (0,) * rank)
        begins, ends = list(pads[0]), list(pads[1])
        output = [whole + add - b - e for whole, add, b, e in zip(full, extra, begins, ends, strict=True)]
    if any(size < 0 for size in output):
        raise ShapeError(f"{node.label}: pads {begins} and {ends} cut more than the full output {full} has")
    return ConvTransposeGeometry(
        x_shape[0],
        channels,
        w_shape[1] * group,
        group,
        tuple(x_shape[2:]),
        kernel,
        strides,
        dilations,
        tuple(begins),
        tuple(ends),
        tuple(output),
    )


@operator()
class ConvTranspose(Operator):
    """Transposed convolution (the gradient of Conv with respect to its input)."""

    inputs = (2, 3)
    is_stepwise = True
    always_saved = (0, 1), ()
    attributes = {**Conv.attributes, "output_padding": None, "output_shape": None}
    attribute_types = {**WINDOW_ATTRIBUTES, "output_padding": INTS, "output_shape": INTS}

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x, weight = required(node, inputs, 0), required(node, inputs, 1)
        bias: Known | None = optional(inputs, 2)
        require_dtype(node, x, FLOATS, "the input")
        require_rank(node, x, 3)
        require_same_dtype(node, x, weight, "the weight")
        if bias is not None:
            require_same_dtype(node, x, bias, "the bias")
        geometry = conv_transpose_geometry(node, x.dims, weight.dims)
        check_bias(node, bias, geometry.filters)
        return [check_size(node, x.dtype, geometry.output_shape)]

    def multiply_adds(
        self, node: Node, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]
    ) -> int:
        return present(inputs, 0).elements * math.prod(present(inputs, 1).dims[1:])

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x, weight = widened(present(inputs, 0)), widened(present(inputs, 1))
        geometry = conv_transpose_geometry(node, x.shape, weight.shape)
        result = _transpose_convolve(x, weight, geometry)
        return [with_bias(result, optional(inputs, 2)).astype(present(inputs, 0).dtype, copy=False)]

    def lower(self, build: Lowering[V], node: Node, inputs: Sequence[V | None]) -> Sequence[V | None] | None:
        x, weight = given(inputs, 0), given(inputs, 1)
        geometry = conv_transpose_geometry(node, x.shape, weight.shape)
        missing = 3 - len(geometry.kernel)
        if missing < 0:
            return None
        if geometry.is_worth_steps:
            raise CannotLower("dense convolutions are faster")
        ones = (1,) * missing
        return build.conv_transpose(
            build.reshape(x, (*x.shape[:2], *ones, *x.shape[2:])),
            build.reshape(weight, (*weight.shape[:2], *ones, *weight.shape[2:])),
            optional(inputs, 2),
            strides=(*ones, *geometry.strides),
            pads=(*(0,) * missing, *geometry.pads_begin),
            dilations=(*ones, *geometry.dilations),
            group=geometry.group,
        )

    def steps(self, build: Emitter[T], node: Node, inputs: Sequence[T | None]) -> Sequence[T | None] | None:
        x, weight, bias = present(inputs, 0), present(inputs, 1), optional(inputs, 2)
        geometry = conv_transpose_geometry(node, build.type_of(x).dims, build.type_of(weight).dims)
        if not is_dense(geometry.windows):
            return None
        return [image_gradient(build, x, weight, geometry.windows, geometry.group, bias)]

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        x, weight, cotangent = present(inputs, 0), present(inputs, 1), present(cotangents, 0)
        geometry = conv_transpose_geometry(node, build.type_of(x).dims, build.type_of(weight).dims)
        by_bias = len(inputs) > 2 and needed[2]
        windows = geometry.windows
        return [
            convolved(build, cotangent, weight, windows, geometry.group) if needed[0] else None,
            weight_gradient(build, cotangent, x, windows, geometry.group) if needed[1] else None,
            bias_gradient(build, cotangent) if by_bias else None,
        ]


def _transpose_convolve(x: Array, weight: Array, geometry: ConvTransposeGeometry) -> Array:
    """One matrix product a group gives every tap's contribution; each tap is then added at its stride."""
    group, per_group = geometry.group, geometry.filters // geometry.group
    taps = math.prod(geometry.kernel)
    reach = [
        (size - 1) * stride + (k - 1) * dilation + 1 if size else 0
        for size, stride, k, dilation in zip(
            geometry.spatial, geometry.strides, geometry.kernel, geometry.dilations, strict=True
        )
    ]
    # Long enough for the full output and for what output_padding or output_shape adds behind it.
    extent = [max(r, b + o) for r, b, o in zip(reach, geometry.pads_begin, geometry.output, strict=True)]
    whole = np.zeros((geometry.batch, geometry.filters, *extent), dtype=np.result_type(x, weight))
    factors = weight.reshape(group, geometry.channels // group, per_group * taps).transpose(0, 2, 1)
    for sample in range(geometry.batch if x.size else 0):
        columns = x[sample].reshape(group, geometry.channels // group, -1)
        parts = np.matmul(factors, columns).reshape(geometry.filters, taps, *geometry.spatial)
        for index in range(taps):
            place = np.unravel_index(index, geometry.kernel)
            slices = tuple(
                slice(int(p) * d, int(p) * d + (size - 1) * s + 1, s)
                for p, d, size, s in zip(
                    place, geometry.dilations, geometry.spatial, geometry.strides, strict=True
                )
            )
            lane: tuple[Any, ...] = (sample, slice(None), *slices)
            whole[lane] += parts[:, index]
    cut = (slice(b, b + o) for b, o in zip(geometry.pads_begin, geometry.output, strict=True))
    kept: tuple[Any, ...] = (slice(None), slice(None), *cut)
    return np.ascontiguousarray(whole[kept])
