"""Convolutions: Conv and ConvInteger."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from vkml.dataclasses import dataclass
from vkml.errors import InvalidGraph, ShapeError
from vkml.ir.dtypes import FLOAT32, FLOAT64, FLOATS, INT8, INT32, INT64, UINT8
from vkml.ir.gradients import Emitter, T, converted, reshaped
from vkml.ir.graph import Node
from vkml.ir.lowering import CannotLower, Lowering, V, given
from vkml.ir.operator import Array, Operator, operator
from vkml.ir.types import Known, TensorType
from vkml.ir.windows import Windows
from vkml.ops.checks import optional, present, require_dtype, require_same_dtype, required
from vkml.ops.conv_gradients import bias_gradient, image_gradient, weight_gradient
from vkml.ops.limits import check_size
from vkml.ops.pointwise import widened
from vkml.ops.windows import (
    WINDOW_ATTRIBUTES,
    check_window_padding,
    pad_for_windows,
    resolve_windows,
    tap_views,
    window_view,
)

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


def check_kernel_shape(node: Node, weight: Sequence[int]) -> tuple[int, ...]:
    """The kernel of a weight [., ., *kernel], which a stated kernel_shape must repeat."""
    kernel = tuple(weight[2:])
    stated = node.attributes["kernel_shape"]
    if stated is not None and tuple(stated) != kernel:
        raise ShapeError(
            f"{node.label}: kernel_shape {list(stated)} differs from the weight's {list(weight)}"
        )
    return kernel


def check_ranks(node: Node, x: Sequence[int], weight: Sequence[int]) -> None:
    """Raises where input and weight are not both of one rank of 3 or more, or `group` is not positive."""
    if len(x) < 3 or len(weight) != len(x):
        raise ShapeError(
            f"{node.label}: input and weight must have the same rank of 3 or more, "
            f"their shapes are {list(x)} and {list(weight)}"
        )
    if node.attributes["group"] < 1:
        raise InvalidGraph(f"{node.label}: group is {node.attributes['group']}; it must be positive")


def check_bias(node: Node, bias: Known | None, filters: int) -> None:
    """Raises `ShapeError` where a bias does not have one entry a filter."""
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
    check_ranks(node, x_shape, w_shape)
    kernel = check_kernel_shape(node, w_shape)
    group = int(node.attributes["group"])
    channels, filters = x_shape[1], w_shape[0]
    if w_shape[1] * group != channels:
        axes = ",".join({3: "NCW", 4: "NCHW", 5: "NCDHW"}.get(len(x_shape), ["shape"]))
        raise ShapeError(
            f"{node.label}: weight expects {w_shape[1] * group} input channels "
            f"({w_shape[1]} in each of {group} groups), input has {channels} "
            f"({axes} = {','.join(map(str, x_shape))})"
        )
    if filters % group:
        raise ShapeError(f"{node.label}: {filters} filters do not divide into {group} groups")
    windows = resolve_windows(node, x_shape[2:], kernel)
    check_window_padding(node, windows, x_shape[0] * channels, x_shape[0] * filters)
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
        place: tuple[Any, ...] = (slice(None), slice(None), *tap)
        factor = taps[place].reshape(geometry.channels, multiplier, *trailing)
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
            part: tuple[Any, ...] = (sample, *(slice(None),) * (1 + rank), slice(start, start + rows))
            columns = windows[part].reshape(group, inner * geometry.taps, -1)
            product = np.matmul(filters, columns)
            block = result[sample, :, start : start + rows]
            block[...] = product.reshape(block.shape)


def with_bias(result: Array, bias: Array | None) -> Array:
    """`result` [N, M, *spatial] plus a bias [M], in place."""
    if bias is not None:
        result += widened(bias).reshape(-1, *(1,) * (result.ndim - 2))
    return result


def _windows(node: Node, inputs: Sequence[TensorType | None]) -> Windows | None:
    x, weight = inputs[:2]
    if x is None or weight is None or not (x.is_static and weight.is_static):
        return None
    return conv_geometry(node, x.dims, weight.dims)


@operator()
class Conv(Operator):
    """Convolution over any number of spatial axes."""

    inputs = (2, 3)
    always_saved = (0, 1), ()
    attributes = {
        "auto_pad": "NOTSET",
        "dilations": None,
        "group": 1,
        "kernel_shape": None,
        "pads": None,
        "strides": None,
    }
    is_anchor = True
    is_linked = True
    is_spatial = True
    attribute_types = WINDOW_ATTRIBUTES

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x, weight = required(node, inputs, 0), required(node, inputs, 1)
        bias: Known | None = optional(inputs, 2)
        require_dtype(node, x, FLOATS, "the input")
        require_same_dtype(node, x, weight, "the weight")
        if bias is not None:
            require_same_dtype(node, x, bias, "the bias")
        geometry = conv_geometry(node, x.dims, weight.dims)
        check_bias(node, bias, geometry.filters)
        return [check_size(node, x.dtype, geometry.output_shape)]

    def windows(self, node: Node, inputs: Sequence[TensorType | None]) -> Windows | None:
        return _windows(node, inputs)

    def multiply_adds(
        self, node: Node, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]
    ) -> int:
        return outputs[0].elements * math.prod(present(inputs, 1).dims[1:])

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x, weight = present(inputs, 0), present(inputs, 1)
        geometry = conv_geometry(node, x.shape, weight.shape)
        result = with_bias(convolve(widened(x), widened(weight), geometry), optional(inputs, 2))
        return [result.astype(x.dtype, copy=False)]

    def always_lowers(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> bool:
        return outputs[0].dtype == FLOAT32 and outputs[0].rank <= 5

    def lower(self, build: Lowering[V], node: Node, inputs: Sequence[V | None]) -> Sequence[V | None] | None:
        x, weight = given(inputs, 0), given(inputs, 1)
        geometry = conv_geometry(node, x.shape, weight.shape)
        if len(geometry.kernel) > 3:
            return None
        windows = geometry.over(3)
        return build.conv(
            build.reshape(x, (*x.shape[:2], *windows.spatial)),
            build.reshape(weight, (*weight.shape[:2], *windows.kernel)),
            optional(inputs, 2),
            windows,
            group=geometry.group,
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
        x, weight, cotangent = present(inputs, 0), present(inputs, 1), present(cotangents, 0)
        geometry = conv_geometry(node, build.type_of(x).dims, build.type_of(weight).dims)
        by_bias = len(inputs) > 2 and needed[2]
        return [
            image_gradient(build, cotangent, weight, geometry, geometry.group) if needed[0] else None,
            weight_gradient(build, x, cotangent, geometry, geometry.group) if needed[1] else None,
            bias_gradient(build, cotangent) if by_bias else None,
        ]


@operator()
class ConvInteger(Operator):
    """Convolution of 8-bit integers less their zero points, in int32; padding is the zero point."""

    inputs = (2, 4)
    attributes = {**Conv.attributes, "fill": 0}
    attribute_types = WINDOW_ATTRIBUTES
    internal_attributes = frozenset({"fill"})
    """What is padded with, where zero points have been taken out."""
    is_anchor = True
    is_spatial = True

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

    def multiply_adds(
        self, node: Node, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]
    ) -> int:
        return outputs[0].elements * math.prod(present(inputs, 1).dims[1:])

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        # float64 holds every sum of 8-bit products exactly; NumPy has no fast integer product.
        x, weight = present(inputs, 0).astype(np.float64), present(inputs, 1).astype(np.float64)
        x_zero, w_zero = optional(inputs, 2), optional(inputs, 3)
        if x_zero is not None:
            x -= float(x_zero.reshape(()))
        if w_zero is not None:
            weight -= w_zero.astype(np.float64).reshape(-1, *(1,) * (weight.ndim - 1))
        geometry = conv_geometry(node, x.shape, weight.shape)
        return [convolve(x, weight, geometry, node.attributes["fill"]).astype(np.int64).astype(np.int32)]

    def windows(self, node: Node, inputs: Sequence[TensorType | None]) -> Windows | None:
        return _windows(node, inputs)

    def halo_fill(self, node: Node) -> float:
        return float(node.attributes["fill"])

    def lower(self, build: Lowering[V], node: Node, inputs: Sequence[V | None]) -> Sequence[V | None] | None:
        if any(zero is not None for zero in inputs[2:]):
            raise CannotLower("zero points of convolutions of bytes have no kernel, but where w is constant")
        x, weight = given(inputs, 0), given(inputs, 1)
        geometry = conv_geometry(node, x.shape, weight.shape)
        if len(geometry.kernel) > 3:
            return None
        windows = geometry.over(3)
        return build.byte_conv(
            build.reshape(x, (*x.shape[:2], *windows.spatial)),
            build.reshape(weight, (*weight.shape[:2], *windows.kernel)),
            windows,
            group=geometry.group,
            fill=node.attributes["fill"],
        )

    def steps(self, build: Emitter[T], node: Node, inputs: Sequence[T | None]) -> Sequence[T] | None:
        x, weight = present(inputs, 0), present(inputs, 1)
        return [integer_conv_steps(build, node, x, weight, optional(inputs, 2), optional(inputs, 3))]


_EXACT_IN_FLOAT32 = 2**24


def integer_conv_steps(
    build: Emitter[T], node: Node, x: T, weight: T, x_zero: T | None, w_zero: T | None
) -> T:
    """A convolution of 8-bit integers less their zero points, in int32.

    With known filters one of the bytes, less what the input's zero point adds to it; otherwise one of floats
    that are exact.
    """
    fill = node.attributes.get("fill", 0)
    known = _known_filters(build, weight, w_zero)
    if known is not None and not fill and (x_zero is not None or w_zero is not None):
        return _by_bytes(build, node, x, known, x_zero)
    dims = build.type_of(weight).dims
    # The greatest sum of products decides; float64's numbers hold any.
    wide = FLOAT32 if math.prod(dims[1:]) * 255 * 255 < _EXACT_IN_FLOAT32 else FLOAT64

    def counted(x: T, zero: T | None, shape: Sequence[int]) -> T:
        steps = converted(build, x, wide)
        if zero is None:
            return steps
        return build.apply("Sub", steps, reshaped(build, converted(build, zero, wide), shape))

    attributes = {key: node.attributes[key] for key in Conv.attributes}
    if fill:
        zero = build.constant(fill, build.type_of(x).dtype)
        x, attributes = _padded(build, node, x, dims, zero)
    ones = [1] * (len(dims) - 1)
    of_weight = [] if w_zero is None else [build.type_of(w_zero).elements, *ones]
    made = build.apply("Conv", counted(x, x_zero, []), counted(weight, w_zero, of_weight), **attributes)
    # Sums wrap as int32 does.
    return converted(build, converted(build, made, INT64) if wide == FLOAT64 else made, INT32)


def _known_filters(build: Emitter[T], weight: T, zero: T | None) -> Array | None:
    """Known filters of several channels less their zero points, where those are bytes."""
    elements = build.elements_of(weight)
    taken = None if zero is None else build.elements_of(zero)
    if elements is None or elements.shape[1] == 1 or (zero is not None and taken is None):
        return None
    steps = elements.astype(np.int16)
    if taken is not None:
        steps = steps - taken.astype(np.int16).reshape(-1, *(1,) * (steps.ndim - 1))
    fitting = (dtype for dtype in (np.int8, np.uint8) if (steps.astype(dtype) == steps).all())
    found = next(fitting, None)
    return None if found is None else steps.astype(found)


def _by_bytes(build: Emitter[T], node: Node, x: T, filters: Array, x_zero: T | None) -> T:
    attributes = {key: node.attributes[key] for key in Conv.attributes}
    weight = build.constant(filters, INT8 if filters.dtype == np.int8 else UINT8)
    if x_zero is None:
        return build.apply("ConvInteger", x, weight, **attributes)
    zero = build.elements_of(x_zero)
    if zero is not None:
        attributes["fill"] = int(zero.reshape(()))
    else:
        x, attributes = _padded(build, node, x, filters.shape, reshaped(build, x_zero, []))
    sums = filters.sum(tuple(range(1, filters.ndim)), dtype=np.int32).reshape(-1, *(1,) * (filters.ndim - 2))
    product = build.apply("ConvInteger", x, weight, **attributes)
    added = reshaped(build, converted(build, x_zero, INT32), [])
    return build.apply("Sub", product, build.apply("Mul", build.constant(sums, INT32), added))


def _padded(
    build: Emitter[T], node: Node, x: T, filters: Sequence[int], value: T
) -> tuple[T, dict[str, Any]]:
    """The input with its padding round it, and the convolution's attributes without."""
    geometry = conv_geometry(node, build.type_of(x).dims, tuple(filters))
    attributes = {key: node.attributes[key] for key in Conv.attributes}
    ends = (*geometry.pads_begin, *geometry.pads_end)
    attributes.update(pads=(0,) * len(ends), auto_pad="NOTSET")
    if not any(ends):
        return x, attributes
    pads = [0, 0, *geometry.pads_begin, 0, 0, *geometry.pads_end]
    return build.apply("Pad", x, build.constant(pads, INT64), value), attributes
