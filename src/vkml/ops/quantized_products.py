"""Products of quantised numbers with a quantised result: QLinearMatMul, QLinearConv."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from vkml.errors import InvalidGraph, ShapeError
from vkml.ir import dtypes, scalar
from vkml.ir.dtypes import BFLOAT16, FLOAT8S, FLOAT16, FLOAT32, INT8, INT32, UINT8, DType
from vkml.ir.gradients import Emitter, T, converted, expression, reshaped
from vkml.ir.graph import Node
from vkml.ir.operator import Array, Operator, operator
from vkml.ir.types import Known, TensorType
from vkml.ops.checks import optional, present, require_dtype, required
from vkml.ops.conv import Conv, check_bias, conv_geometry, convolve, integer_conv_steps
from vkml.ops.limits import check_size
from vkml.ops.matmul import integer_product, integer_product_steps, matmul_geometry, zero_along
from vkml.ops.quantization import quantized
from vkml.ops.quantization_forms import quantized_form
from vkml.ops.windows import WINDOW_ATTRIBUTES

_BYTES = (INT8, UINT8)
_SCALES = (FLOAT32, FLOAT16, BFLOAT16)


def _check_operand(
    node: Node, inputs: Sequence[Known | None], at: int, what: str, allowed: Sequence[DType]
) -> Known:
    """The quantised operand at a position, behind which its scale and zero point stand."""
    x, scale, zero = (required(node, inputs, at + more) for more in range(3))
    require_dtype(node, x, allowed, what)
    require_dtype(node, scale, _SCALES, f"the scale of {what}")
    if zero.dtype != x.dtype:
        raise InvalidGraph(
            f"{node.label}: the zero point of {what} has element type {zero.dtype.name}, "
            f"{what} {x.dtype.name}"
        )
    return x


def _result_type(node: Node, inputs: Sequence[Known | None], allowed: Sequence[DType]) -> DType:
    scale, zero = required(node, inputs, 6), required(node, inputs, 7)
    require_dtype(node, scale, _SCALES, "the result's scale")
    require_dtype(node, zero, allowed, "the result's zero point")
    for found, what in ((scale, "scale"), (zero, "zero point")):
        if found.type.elements != 1:
            raise ShapeError(
                f"{node.label}: the result's {what} must be a number, its shape is {list(found.dims)}"
            )
    return zero.dtype


def _scaled(sums: Array, scales: Array, inputs: Sequence[Array | None]) -> Array:
    """Sums of products, times the product of their factors' scales, as numbers of the result's scale."""
    y_scale, y_zero = present(inputs, 6), present(inputs, 7)
    with np.errstate(all="ignore"):
        factor = scales / y_scale.astype(np.float32).reshape(())
        scaled = sums.astype(np.float32) * factor
    return quantized(scaled, y_zero.reshape(()), dtypes.from_numpy(y_zero.dtype))


def _of_scales(build: Emitter[T], op: str, left: T, right: T) -> T:
    """Mul or Div of scales of float32; a constant where both are, which would be computed in each run."""
    known = [build.elements_of(left), build.elements_of(right)]
    if known[0] is None or known[1] is None:
        return build.apply(op, left, right)
    with np.errstate(all="ignore"):
        found = known[0] * known[1] if op == "Mul" else known[0] / known[1]
    return build.constant(np.asarray(found, np.float32), FLOAT32)


def _scale_of(build: Emitter[T], scale: T, shape: Sequence[int]) -> T:
    """A scale of a shape, in float32."""
    known = build.elements_of(scale)
    if known is None:
        return reshaped(build, converted(build, scale, FLOAT32), shape)
    return build.constant(known.astype(np.float32).reshape(tuple(shape)), FLOAT32)


def _scaled_steps(build: Emitter[T], sums: T, scales: T, inputs: Sequence[T | None]) -> T:
    """`_scaled` in operators; `scales` broadcast with the sums."""
    y_scale, y_zero = present(inputs, 6), present(inputs, 7)
    target = build.type_of(y_zero).dtype
    values = [
        converted(build, sums, FLOAT32),
        _of_scales(build, "Div", scales, _scale_of(build, y_scale, [])),
        reshaped(build, y_zero, []),
    ]
    x, factor, zero = (scalar.argument(at, build.type_of(each).dtype) for at, each in enumerate(values))
    one = scalar.constant(1, FLOAT32)
    return expression(build, quantized_form(x * factor, one, zero, target), values, target)


@operator()
class QLinearMatMul(Operator):
    """Matrix product of quantised numbers, quantised.

    Scales and zero points are numbers, or one a row of A (a column of B): as a vector, or of the operand's
    shape with the axis that is summed over being 1.
    """

    inputs = (8, 8)

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        a = _check_operand(node, inputs, 0, "A", (*_BYTES, *FLOAT8S))
        b = _check_operand(node, inputs, 3, "B", (*_BYTES, *FLOAT8S))
        if a.dtype.is_integer != b.dtype.is_integer:
            raise InvalidGraph(
                f"{node.label}: A holds {a.dtype.name}, B {b.dtype.name}: both integers or both floats"
            )
        target = _result_type(node, inputs, (*_BYTES, *FLOAT8S))
        geometry = matmul_geometry(node, a.dims, b.dims)
        for at, operand, what in (
            (1, a, "a_scale"),
            (2, a, "a_zero_point"),
            (4, b, "b_scale"),
            (5, b, "b_zero_point"),
        ):
            zero_along(node, required(node, inputs, at).dims, operand.dims, -1 if at < 3 else -2, what)
        return [check_size(node, target, geometry.output)]

    def multiply_adds(
        self, node: Node, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]
    ) -> int:
        return outputs[0].elements * present(inputs, 0).dims[-1]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        a, b = present(inputs, 0), present(inputs, 3)
        geometry = matmul_geometry(node, a.shape, b.shape)
        left, right = (a[None] if a.ndim == 1 else a), (b[:, None] if b.ndim == 1 else b)

        def aligned(at: int) -> Array:
            operand, inner = (a, -1) if at < 3 else (b, -2)
            found = present(inputs, at)
            return found.reshape(zero_along(node, found.shape, operand.shape, inner, "it"))

        if dtypes.from_numpy(a.dtype).is_integer:
            sums = integer_product(left, right, aligned(2), aligned(5))
        else:
            sums = np.matmul(
                left.astype(np.float32) - aligned(2).astype(np.float32),
                right.astype(np.float32) - aligned(5).astype(np.float32),
            )
        # A vector's scale is a number: the matrix that it is has the scales' shape.
        scales = aligned(1).astype(np.float32) * aligned(4).astype(np.float32)
        return [_scaled(sums, scales, inputs).reshape(geometry.output)]

    def steps(self, build: Emitter[T], node: Node, inputs: Sequence[T | None]) -> Sequence[T] | None:
        a, b = present(inputs, 0), present(inputs, 3)
        dims = {0: build.type_of(a).dims, 3: build.type_of(b).dims}

        def aligned(at: int) -> T:
            """A scale or a zero point, as it broadcasts with its operand, or with the product."""
            first, inner = (0, -1) if at < 3 else (3, -2)
            found = present(inputs, at)
            shape = zero_along(node, build.type_of(found).dims, dims[first], inner, "it")
            return _scale_of(build, found, shape)

        if build.type_of(a).dtype.is_integer:
            sums = integer_product_steps(build, node, a, b, inputs[2], inputs[5])
        else:
            left, right = (
                build.apply("Sub", converted(build, x, FLOAT32), aligned(at)) for x, at in ((a, 2), (b, 5))
            )
            sums = build.apply("MatMul", left, right)
        output = build.type_of(sums).dims
        # A vector is a matrix of one row or column while scales have that shape.
        matrix = (
            *output[: len(output) - (len(dims[0]) > 1) - (len(dims[3]) > 1)],
            dims[0][-2] if len(dims[0]) > 1 else 1,
            dims[3][-1] if len(dims[3]) > 1 else 1,
        )
        scales = _of_scales(build, "Mul", aligned(1), aligned(4))
        return [reshaped(build, _scaled_steps(build, reshaped(build, sums, matrix), scales, inputs), output)]


@operator()
class QLinearConv(Operator):
    """Convolution of 8-bit numbers, quantised; a bias has the products' scale, padding is the zero point."""

    inputs = (8, 9)
    attributes = Conv.attributes
    attribute_types = WINDOW_ATTRIBUTES

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x, weight = _check_operand(node, inputs, 0, "x", _BYTES), _check_operand(node, inputs, 3, "w", _BYTES)
        target = _result_type(node, inputs, _BYTES)
        geometry = conv_geometry(node, x.dims, weight.dims)
        for at, what, lanes in (
            (1, "x_scale", 1),
            (2, "x_zero_point", 1),
            (4, "w_scale", geometry.filters),
            (5, "w_zero_point", geometry.filters),
        ):
            found = required(node, inputs, at)
            if found.rank > 1 or found.type.elements not in (1, lanes):
                counts = "1 element" if lanes == 1 else f"1 or {lanes} elements"
                raise ShapeError(f"{node.label}: {what} must hold {counts}, its shape is {list(found.dims)}")
        bias: Known | None = optional(inputs, 8)
        if bias is not None:
            require_dtype(node, bias, (INT32,), "the bias")
            check_bias(node, bias, geometry.filters)
        return [check_size(node, target, geometry.output_shape)]

    def multiply_adds(
        self, node: Node, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]
    ) -> int:
        return outputs[0].elements * math.prod(present(inputs, 3).dims[1:])

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x, weight, bias = present(inputs, 0), present(inputs, 3), optional(inputs, 8)
        geometry = conv_geometry(node, x.shape, weight.shape)
        trailing = (1,) * len(geometry.kernel)
        # float64 holds every sum of 8-bit products exactly; NumPy has no fast integer product.
        steps = x.astype(np.float64) - float(present(inputs, 2).reshape(()))
        w_zero = present(inputs, 5).astype(np.float64).reshape(-1, 1, *trailing)
        sums = convolve(steps, weight.astype(np.float64) - w_zero, geometry)
        if bias is not None:
            sums += bias.reshape(-1, *trailing)
        x_scale, w_scale = (present(inputs, at).astype(np.float32) for at in (1, 4))
        scales = x_scale.reshape(()) * w_scale.reshape(-1, *trailing)
        return [_scaled(sums.astype(np.int64).astype(np.int32), scales, inputs)]

    def steps(self, build: Emitter[T], node: Node, inputs: Sequence[T | None]) -> Sequence[T] | None:
        x, weight, bias = present(inputs, 0), present(inputs, 3), optional(inputs, 8)
        sums = integer_conv_steps(build, node, x, weight, inputs[2], inputs[5])
        ones = [1] * (len(build.type_of(weight).dims) - 2)
        if bias is not None:
            sums = build.apply("Add", sums, reshaped(build, bias, [-1, *ones]))
        of_x, of_weight = _scale_of(build, present(inputs, 1), []), present(inputs, 4)
        filters = build.type_of(of_weight).elements
        scales = _of_scales(build, "Mul", of_x, _scale_of(build, of_weight, [filters, *ones]))
        return [_scaled_steps(build, sums, scales, inputs)]
