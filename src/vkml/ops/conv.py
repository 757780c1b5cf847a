"""Convolutions: Conv, ConvTranspose, ConvInteger."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vkml.errors import InvalidGraph, ShapeError
from vkml.ir.dtypes import FLOAT16, FLOAT32, FLOAT64, INT8, INT32, UINT8
from vkml.ir.graph import Node
from vkml.ir.operator import Array, Operator, operator
from vkml.ir.types import Known, TensorType
from vkml.ops.checks import optional, present, require_dtype, require_rank, require_same_dtype, required
from vkml.ops.limits import check_size
from vkml.ops.pointwise import widened
from vkml.ops.windows import (
    Windows,
    auto_pad_mode,
    explicit_pads,
    pad_for_windows,
    resolve_windows,
    spatial_attribute,
    tap_views,
    window_view,
)

CONV_DTYPES = (FLOAT32, FLOAT16, FLOAT64)

COLUMN_ELEMENTS = 2**23
"""Elements of the unrolled input that one BLAS call of `Conv.evaluate` reads: 32 MiB of float32."""


@dataclass(frozen=True)
class ConvGeometry(Windows):
    """A convolution of [batch, channels, *spatial] with `filters` filters in `group` groups."""

    batch: int
    channels: int
    filters: int
    group: int

    @property
    def output_shape(self) -> tuple[int, ...]:
        return (self.batch, self.filters, *self.output)

    @property
    def is_depthwise(self) -> bool:
        """Whether each filter reads one channel."""
        return self.channels == self.group and self.group > 1


def _check_kernel_shape(node: Node, weight: Sequence[int]) -> tuple[int, ...]:
    kernel = tuple(weight[2:])
    stated = node.attributes["kernel_shape"]
    if stated is not None and tuple(stated) != kernel:
        raise ShapeError(
            f"{node.label}: kernel_shape {list(stated)} differs from the weight's {list(weight)}"
        )
    return kernel


def _check_ranks(node: Node, x: Sequence[int], weight: Sequence[int]) -> None:
    if len(x) < 3 or len(weight) != len(x):
        raise ShapeError(
            f"{node.label}: input and weight must have the same rank of 3 or more, "
            f"their shapes are {list(x)} and {list(weight)}"
        )
    if node.attributes["group"] < 1:
        raise InvalidGraph(f"{node.label}: group is {node.attributes['group']}; it must be positive")


def _check_bias(node: Node, bias: Known | None, filters: int) -> None:
    if bias is not None and bias.dims != (filters,):
        raise ShapeError(f"{node.label}: the bias must have shape [{filters}], it has {list(bias.dims)}")


def conv_geometry(node: Node, x_shape: Sequence[int], w_shape: Sequence[int]) -> ConvGeometry:
    """Resolves a Conv node's attributes against the shapes of its input and weight.

    Args:
        node: The Conv node.
        x_shape: [N, C, *spatial].
        w_shape: [M, C / group, *kernel].

    Raises:
        ShapeError: Channels, groups, kernel or window sizes do not fit.
    """
    _check_ranks(node, x_shape, w_shape)
    kernel = _check_kernel_shape(node, w_shape)
    group = int(node.attributes["group"])
    channels, filters = x_shape[1], w_shape[0]
    if w_shape[1] * group != channels:
        axes = ",".join(
            "NCDHW"[: len(x_shape)] if len(x_shape) == 5 else ("N", "C", "H", "W")[: len(x_shape)]
        )
        raise ShapeError(
            f"{node.label}: weight expects {w_shape[1] * group} input channels ({w_shape[1]} in each of {group} groups), "
            f"input has {channels} ({axes} = {','.join(map(str, x_shape))})"
        )
    if filters % group:
        raise ShapeError(f"{node.label}: {filters} filters do not divide into {group} groups")
    windows = resolve_windows(node, x_shape[2:], kernel)
    return ConvGeometry(
        windows.spatial,
        windows.kernel,
        windows.strides,
        windows.dilations,
        windows.pads_begin,
        windows.pads_end,
        windows.output,
        x_shape[0],
        channels,
        filters,
        group,
    )


def convolve(x: Array, weight: Array, geometry: ConvGeometry, fill: float = 0) -> Array:
    """The convolution itself, on float arrays, without bias."""
    result = np.empty(geometry.output_shape, dtype=np.result_type(x, weight))
    if result.size == 0:
        return result
    if geometry.channels == 0:
        result[...] = 0
        return result
    padded = pad_for_windows(x, geometry, fill)
    if geometry.is_depthwise:
        _convolve_depthwise(padded, weight, geometry, result)
    else:
        _convolve_columns(padded, weight, geometry, result)
    return result


def _convolve_depthwise(padded: Array, weight: Array, geometry: ConvGeometry, result: Array) -> None:
    """One multiply-add over the whole output a tap: no unrolled copy, and rows stay contiguous."""
    multiplier = geometry.filters // geometry.group
    lanes = result.reshape(geometry.batch, geometry.channels, multiplier, *geometry.output)
    taps = weight.reshape(geometry.channels, multiplier, *geometry.kernel)
    trailing = (1,) * len(geometry.output)
    lanes[...] = 0
    for tap, view in tap_views(padded, geometry):
        factor = taps[(slice(None), slice(None), *tap)].reshape(geometry.channels, multiplier, *trailing)
        lanes += view[:, :, None] * factor


def _convolve_columns(padded: Array, weight: Array, geometry: ConvGeometry, result: Array) -> None:
    """Windows unrolled into columns, some output rows at a time, and one matrix product a group."""
    group, rank = geometry.group, len(geometry.kernel)
    inner = geometry.channels // group
    filters = weight.reshape(group, geometry.filters // group, inner * geometry.taps)
    windows = window_view(padded, geometry)
    # [N, C, *output, *kernel] → [N, C, *kernel, *output]: the product's inner index in front of its columns.
    windows = windows.transpose(0, 1, *range(2 + rank, 2 + 2 * rank), *range(2, 2 + rank))
    row = geometry.channels * geometry.taps * math.prod(geometry.output[1:])
    rows = max(1, min(geometry.output[0], COLUMN_ELEMENTS // max(row, 1)))
    for sample in range(geometry.batch):
        for start in range(0, geometry.output[0], rows):
            part = windows[(sample, *(slice(None),) * (1 + rank), slice(start, start + rows))]
            columns = part.reshape(group, inner * geometry.taps, -1)
            product = np.matmul(filters, columns)
            block = result[sample, :, start : start + rows]
            block[...] = product.reshape(block.shape)


def _with_bias(result: Array, bias: Array | None) -> Array:
    if bias is not None:
        result += widened(bias).reshape(-1, *(1,) * (result.ndim - 2))
    return result


@operator()
class Conv(Operator):
    """Convolution over any number of spatial axes."""

    inputs = (2, 3)
    attributes = {
        "auto_pad": "NOTSET",
        "dilations": None,
        "group": 1,
        "kernel_shape": None,
        "pads": None,
        "strides": None,
    }

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x, weight = required(node, inputs, 0), required(node, inputs, 1)
        bias: Known | None = optional(inputs, 2)
        require_dtype(node, x, CONV_DTYPES, "the input")
        require_same_dtype(node, x, weight, "the weight")
        if bias is not None:
            require_same_dtype(node, x, bias, "the bias")
        geometry = conv_geometry(node, x.dims, weight.dims)
        _check_bias(node, bias, geometry.filters)
        return [check_size(node, x.dtype, geometry.output_shape)]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x, weight = present(inputs, 0), present(inputs, 1)
        geometry = conv_geometry(node, x.shape, weight.shape)
        result = _with_bias(convolve(widened(x), widened(weight), geometry), optional(inputs, 2))
        return [result.astype(x.dtype, copy=False)]

    def lower(self, build: Any, node: Node, inputs: Sequence[Any]) -> Sequence[Any] | None:
        x, weight = inputs[:2]
        geometry = conv_geometry(node, x.shape, weight.shape)
        spatial = len(geometry.kernel)
        if spatial > 3:
            return None
        lead = (1,) * (3 - spatial)
        taps = weight.reshape((*weight.shape[:2], *lead, *weight.shape[2:]))
        return build.conv(  # type: ignore[no-any-return]
            build.reshape(x, (*x.shape[:2], *lead, *x.shape[2:])),
            build.contiguous(taps),
            inputs[2] if len(inputs) > 2 else None,
            strides=(*lead, *geometry.strides),
            pads=(*(0,) * (3 - spatial), *geometry.pads_begin),
            dilations=(*lead, *geometry.dilations),
            group=geometry.group,
        )


@operator()
class ConvInteger(Operator):
    """Convolution of 8-bit integers less their zero points, in int32; padding is the zero point."""

    inputs = (2, 4)
    attributes = Conv.attributes

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x, weight = required(node, inputs, 0), required(node, inputs, 1)
        require_dtype(node, x, (INT8, UINT8), "the input")
        require_dtype(node, weight, (INT8, UINT8), "the weight")
        geometry = conv_geometry(node, x.dims, weight.dims)
        for index, operand, what, lanes in (
            (2, x, "x_zero_point", 1),
            (3, weight, "w_zero_point", geometry.filters),
        ):
            zero: Known | None = optional(inputs, index)
            if zero is None:
                continue
            require_same_dtype(node, operand, zero, what)
            if zero.rank > 1 or zero.type.elements not in (1, lanes):
                raise ShapeError(
                    f"{node.label}: {what} must hold 1 or {lanes} elements, its shape is {list(zero.dims)}"
                )
        return [check_size(node, INT32, geometry.output_shape)]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        # float64 holds every sum of 8-bit products exactly; NumPy has no fast integer product.
        x, weight = present(inputs, 0).astype(np.float64), present(inputs, 1).astype(np.float64)
        x_zero, w_zero = optional(inputs, 2), optional(inputs, 3)
        if x_zero is not None:
            x -= float(x_zero.reshape(()))
        if w_zero is not None:
            weight -= w_zero.astype(np.float64).reshape(-1, *(1,) * (weight.ndim - 1))
        geometry = conv_geometry(node, x.shape, weight.shape)
        return [convolve(x, weight, geometry).astype(np.int64).astype(np.int32)]


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
    """What is cut from the front of the full output; negative where the output has more in front."""
    pads_end: tuple[int, ...]
    output: tuple[int, ...]

    @property
    def output_shape(self) -> tuple[int, ...]:
        return (self.batch, self.filters, *self.output)


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
    _check_ranks(node, x_shape, w_shape)
    kernel = _check_kernel_shape(node, w_shape)
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
            ends.append(total - begins[-1])
            del large
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
    attributes = {**Conv.attributes, "output_padding": None, "output_shape": None}

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x, weight = required(node, inputs, 0), required(node, inputs, 1)
        bias: Known | None = optional(inputs, 2)
        require_dtype(node, x, CONV_DTYPES, "the input")
        require_rank(node, x, 3)
        require_same_dtype(node, x, weight, "the weight")
        if bias is not None:
            require_same_dtype(node, x, bias, "the bias")
        geometry = conv_transpose_geometry(node, x.dims, weight.dims)
        _check_bias(node, bias, geometry.filters)
        return [check_size(node, x.dtype, geometry.output_shape)]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x, weight = widened(present(inputs, 0)), widened(present(inputs, 1))
        geometry = conv_transpose_geometry(node, x.shape, weight.shape)
        result = _transpose_convolve(x, weight, geometry)
        return [_with_bias(result, optional(inputs, 2)).astype(present(inputs, 0).dtype, copy=False)]


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
            whole[(sample, slice(None), *slices)] += parts[:, index]
    cut = tuple(slice(b, b + o) for b, o in zip(geometry.pads_begin, geometry.output, strict=True))
    return np.ascontiguousarray(whole[(slice(None), slice(None), *cut)])
