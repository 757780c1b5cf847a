"""Numbers as small integers or floats, times a scale: QuantizeLinear, DequantizeLinear and their like."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum

import numpy as np

from vkml.errors import InvalidGraph, NotDifferentiable, ShapeError
from vkml.ir import dtypes, scalar
from vkml.ir.dtypes import (
    BFLOAT16,
    FLOAT4E2M1,
    FLOAT8E8M0,
    FLOAT8S,
    FLOAT16,
    FLOAT32,
    INT2,
    INT4,
    INT8,
    INT16,
    INT32,
    UINT2,
    UINT4,
    UINT8,
    UINT16,
    DType,
    integer_bounds,
)
from vkml.ir.gradients import (
    Emitter,
    T,
    converted,
    expanded,
    expression,
    padded,
    reshaped,
    sliced,
    sum_to,
    summed,
)
from vkml.ir.graph import Node
from vkml.ir.operator import Array, Operator, operator
from vkml.ir.scalar import Scalar
from vkml.ir.types import Known, TensorType, static
from vkml.ops.checks import normalise_axis, optional, present, require_dtype, required
from vkml.ops.limits import check_size
from vkml.ops.number_formats import SATURATING, limited
from vkml.ops.quantization_forms import dequantized_form, quantized_form

REAL = (FLOAT16, BFLOAT16, FLOAT32)
"""What is quantised, and what scales are of."""
QUANTIZED = (UINT2, INT2, UINT4, INT4, UINT8, INT8, UINT16, INT16, *FLOAT8S, FLOAT4E2M1)


class Granularity(Enum):
    """How many elements share a scale."""

    TENSOR = "all"
    AXIS = "those at one place along an axis"
    BLOCK = "some that are neighbours along an axis"


def granularity(node: Node, dims: Sequence[int], scale: Sequence[int]) -> Granularity:
    """How a scale of a shape belongs to elements of a shape.

    Args:
        node: gives `axis` and `block_size`.
        dims: of the elements.
        scale: its shape.

    Raises:
        ShapeError: the scale's shape is none of those that ONNX knows for it.
    """
    block = node.attributes["block_size"]
    if not block:
        if len(scale) == 0 or (len(scale) == 1 and scale[0] == 1):
            return Granularity.TENSOR
        if len(scale) == 1 and scale[0] == dims[normalise_axis(node, node.attributes["axis"], len(dims))]:
            return Granularity.AXIS
        wanted = "a number, or one for each place along the axis"
    elif block < 0:
        raise InvalidGraph(f"{node.label}: block_size is {block}; it must not be negative")
    else:
        axis = normalise_axis(node, node.attributes["axis"], len(dims))
        blocks = tuple(-(-size // block) if at == axis else size for at, size in enumerate(dims))
        if tuple(scale) == blocks:
            return Granularity.BLOCK
        wanted = f"{list(blocks)} for blocks of {block}"
    raise ShapeError(
        f"{node.label}: a scale of shape {list(scale)} does not belong to {list(dims)} with "
        f"axis={node.attributes['axis']}; {wanted} is needed"
    )


def aligned_shape(node: Node, dims: Sequence[int], scale: Sequence[int]) -> tuple[int, ...]:
    """The shape in which a scale of a tensor or an axis broadcasts with the elements."""
    if granularity(node, dims, scale) == Granularity.TENSOR:
        return ()
    axis = normalise_axis(node, node.attributes["axis"], len(dims))
    return (scale[0], *(1,) * (len(dims) - axis - 1))


def spread(node: Node, values: Array, dims: Sequence[int]) -> Array:
    """Scales or zero points as an array that broadcasts with elements of the shape `dims`."""
    if granularity(node, dims, values.shape) != Granularity.BLOCK:
        return values.reshape(aligned_shape(node, dims, values.shape))
    axis = normalise_axis(node, node.attributes["axis"], len(dims))
    repeated = np.repeat(values, node.attributes["block_size"], axis)
    return np.take(repeated, range(dims[axis]), axis)


def quantized(values: Array, zero: Array | None, target: DType, *, saturate: bool = True) -> Array:
    """Quotients by the scale, rounded to even, plus a zero point, the nearest that `target` has.

    NaN becomes the least integer, as comparisons by vector instructions have it.

    Args:
        values: floats that broadcast with `zero`.
        zero: of the type `target`, None for 0.
        target: one of `QUANTIZED`.
        saturate: whether a float8 that has infinity or NaN keeps to its finite numbers.
    """
    with np.errstate(all="ignore"):
        if target.is_integer:
            least, most = integer_bounds(target)
            steps = np.rint(values)
            if zero is not None:
                steps = steps + zero.astype(np.float64)  # exact for all that is not clipped
            kept = np.fmin(np.fmax(steps, least), most)
            return np.asarray(kept.astype(np.int32).astype(target.storage))
        wide = values.astype(np.float32)
        if zero is not None:
            wide = wide + zero.astype(np.float32)
        wide = limited(wide, target) if saturate and target in SATURATING else wide
        return np.asarray(wide.astype(target.storage))


def _check_scale(node: Node, x: Known, scale: Known, zero: Known | None, dtype: DType) -> None:
    granularity(node, x.dims, scale.dims)
    if zero is None:
        return
    if zero.dtype != dtype:
        raise InvalidGraph(
            f"{node.label}: the zero point has element type {zero.dtype.name}, what is quantised {dtype.name}"
        )
    if zero.dims != scale.dims and (zero.type.elements, scale.type.elements) != (1, 1):
        raise ShapeError(
            f"{node.label}: the zero point has shape {list(zero.dims)}, the scale {list(scale.dims)}"
        )


def _stated(node: Node, key: str) -> DType | None:
    code = node.attributes[key]
    return dtypes.from_code(int(code)) if code else None


@operator()
class QuantizeLinear(Operator):
    """``saturate(round(x / scale) + zero_point)``, with a scale for all, a place on an axis, or a block."""

    inputs = (2, 3)
    attributes = {"axis": 1, "block_size": 0, "output_dtype": 0, "precision": 0, "saturate": 1}

    def target(self, node: Node, zero: DType | None) -> DType:
        """The element type quantised to."""
        return _stated(node, "output_dtype") or zero or UINT8

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x, scale = required(node, inputs, 0), required(node, inputs, 1)
        zero: Known | None = optional(inputs, 2)
        require_dtype(node, x, (*REAL, INT32), "the input")
        require_dtype(node, scale, (*REAL, INT32, FLOAT8E8M0), "the scale")
        target = self.target(node, None if zero is None else zero.dtype)
        if target not in QUANTIZED:
            raise InvalidGraph(f"{node.label}: {target.name} is none of the types that are quantised to")
        precision = _stated(node, "precision")
        if precision is not None and precision not in REAL:
            raise InvalidGraph(f"{node.label}: the precision must be a float type, not {precision.name}")
        _check_scale(node, x, scale, zero, target)
        return [check_size(node, target, x.dims)]

    def precision(self, node: Node, x: DType, scale: DType) -> DType:
        """The type in which elements are divided by the scale."""
        return _stated(node, "precision") or next((kind for kind in (scale, x) if kind in REAL), FLOAT32)

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x, scale, zero = present(inputs, 0), present(inputs, 1), optional(inputs, 2)
        target = self.target(node, None if zero is None else dtypes.from_numpy(zero.dtype))
        precision = self.precision(node, dtypes.from_numpy(x.dtype), dtypes.from_numpy(scale.dtype)).storage
        with np.errstate(all="ignore"):
            quotient = x.astype(precision) / spread(node, scale, x.shape).astype(precision)
        zeros = None if zero is None else spread(node, zero, x.shape)
        saturate = bool(node.attributes["saturate"])
        return [quantized(quotient.astype(np.float32), zeros, target, saturate=saturate)]

    def steps(self, build: Emitter[T], node: Node, inputs: Sequence[T | None]) -> Sequence[T] | None:
        x, scale = (build.type_of(present(inputs, at)).dtype for at in (0, 1))
        zero: T | None = optional(inputs, 2)
        target = self.target(node, None if zero is None else build.type_of(zero).dtype)
        precision, saturate = self.precision(node, x, scale), bool(node.attributes["saturate"])

        def form(x: Scalar, scale: Scalar, zero: Scalar | None = None) -> Scalar:
            return quantized_form(x, scale, zero, target, precision=precision, saturate=saturate)

        return [_by_elements(build, node, inputs, form, target)]

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        raise NotDifferentiable("what is quantised changes in steps")


@operator()
class DequantizeLinear(Operator):
    """``(x - zero_point) * scale``, with a scale for all, a place on an axis, or a block."""

    inputs = (2, 3)
    attributes = {"axis": 1, "block_size": 0, "output_dtype": 0}

    def target(self, node: Node, scale: DType) -> DType:
        """The element type of the result."""
        return _stated(node, "output_dtype") or scale

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x, scale = required(node, inputs, 0), required(node, inputs, 1)
        zero: Known | None = optional(inputs, 2)
        require_dtype(node, x, (*QUANTIZED, INT32), "the input")
        require_dtype(node, scale, (*REAL, FLOAT8E8M0), "the scale")
        target = self.target(node, scale.dtype)
        if target not in REAL:
            raise InvalidGraph(
                f"{node.label}: numbers are dequantised to float16, bfloat16 or float, not {target.name}: "
                "output_dtype, or else the scale's type, says to which"
            )
        _check_scale(node, x, scale, zero, x.dtype)
        return [check_size(node, target, x.dims)]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x, scale, zero = present(inputs, 0), present(inputs, 1), optional(inputs, 2)
        target = self.target(node, dtypes.from_numpy(scale.dtype))
        zeros = None if zero is None else spread(node, zero, x.shape)
        return [dequantized(x, spread(node, scale, x.shape), zeros, target)]

    def steps(self, build: Emitter[T], node: Node, inputs: Sequence[T | None]) -> Sequence[T] | None:
        target = self.target(node, build.type_of(present(inputs, 1)).dtype)

        def form(x: Scalar, scale: Scalar, zero: Scalar | None = None) -> Scalar:
            return dequantized_form(x, scale, zero, target)

        return [_by_elements(build, node, inputs, form, target)]

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        x, scale, cotangent = present(inputs, 0), present(inputs, 1), present(cotangents, 0)
        kind, of_scale, result = build.type_of(x), build.type_of(scale), build.type_of(cotangent).dtype
        stated = {key: node.attributes[key] for key in ("axis", "block_size")}
        by_x = by_scale = None
        if needed[0]:  # a float8
            ones = expanded(build, build.constant(1, kind.dtype), kind.dims)
            slope = build.apply("DequantizeLinear", ones, scale, **stated, output_dtype=result.code)
            by_x = converted(build, build.apply("Mul", cotangent, slope), kind.dtype)
        if needed[1]:
            ones = build.constant(np.ones(of_scale.dims), result)
            zero: T | None = optional(inputs, 2)
            steps = build.apply("DequantizeLinear", x, ones, zero, **stated, output_dtype=result.code)
            by_element = build.apply("Mul", cotangent, steps)
            by_scale = converted(build, _gathered(build, node, by_element, of_scale.dims), of_scale.dtype)
        return [by_x, by_scale, None][: len(inputs)]


def _by_elements(
    build: Emitter[T], node: Node, inputs: Sequence[T | None], form: Callable[..., Scalar], target: DType
) -> T:
    """A form of an element, its scale and its zero point, if there is one, applied to all elements."""
    x, *shared = [value for value in inputs if value is not None]
    dims, scale = build.type_of(x).dims, build.type_of(shared[0]).dims
    if granularity(node, dims, scale) != Granularity.BLOCK:
        values = [x, *(reshaped(build, each, aligned_shape(node, dims, scale)) for each in shared)]
    else:
        axis, block = normalise_axis(node, node.attributes["axis"], len(dims)), node.attributes["block_size"]
        whole = scale[axis] * block
        if whole != dims[axis]:  # the last block is not full
            x = padded(
                build,
                x,
                [0] * len(dims),
                [whole - dims[axis] if at == axis else 0 for at in range(len(dims))],
            )

        def split(size: int) -> list[int]:
            return [*dims[:axis], scale[axis], size, *dims[axis + 1 :]]

        values = [reshaped(build, x, split(block)), *(reshaped(build, each, split(1)) for each in shared)]
    elements = [scalar.argument(at, build.type_of(each).dtype) for at, each in enumerate(values)]
    made = expression(build, form(*elements), values, target)
    if build.type_of(made).dims != dims:
        made = reshaped(build, made, [whole if at == axis else size for at, size in enumerate(dims)])
        made = sliced(build, made, axis, 0, dims[axis])
    return made


def _gathered(build: Emitter[T], node: Node, x: T, scale: Sequence[int]) -> T:
    """Sums over the elements that share an element of a scale, whose shape is given."""
    dims = build.type_of(x).dims
    if granularity(node, dims, scale) != Granularity.BLOCK:
        return reshaped(build, sum_to(build, x, aligned_shape(node, dims, scale)), scale)
    axis, block = normalise_axis(node, node.attributes["axis"], len(dims)), node.attributes["block_size"]
    ends = [scale[axis] * block - dims[axis] if at == axis else 0 for at in range(len(dims))]
    whole = padded(build, x, [0] * len(dims), ends)
    split = reshaped(build, whole, (*dims[:axis], scale[axis], block, *dims[axis + 1 :]))
    return summed(build, split, [axis + 1])


@operator()
class DynamicQuantizeLinear(Operator):
    """Quantises to uint8 by the range of the elements, which has 0 in it: elements, scale, zero point."""

    inputs = (1, 1)
    outputs = (3, 3)

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x = required(node, inputs, 0)
        require_dtype(node, x, (FLOAT32,), "the input")
        return [check_size(node, UINT8, x.dims), static(FLOAT32, ()), static(UINT8, ())]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x = present(inputs, 0)
        scale, zero = dynamic_range(x)
        with np.errstate(all="ignore"):
            return [quantized(x / scale, zero, UINT8), scale, zero]


def dynamic_range(x: Array) -> tuple[Array, Array]:
    """Scale and zero point with which uint8 spans the elements of a float32 tensor, and 0."""
    with np.errstate(all="ignore"):
        least, most = x.min(initial=np.float32(0)), x.max(initial=np.float32(0))
        scale = np.float32(1) if least == most else (most - least) / np.float32(255)
        zero = quantized(np.asarray(-least / scale), None, UINT8)
    return np.asarray(scale, np.float32), zero


def dequantized(x: Array, scale: Array, zero: Array | None, target: DType) -> Array:
    """``(x - zero) * scale``, a float32 product rounded to `target`.

    Args:
        x: of any quantised type.
        scale: broadcasts with it.
        zero: of x's type; None for 0.
        target: a float type.
    """
    if not dtypes.from_numpy(x.dtype).is_integer:
        steps = x.astype(np.float32) if zero is None else x.astype(np.float32) - zero.astype(np.float32)
    elif zero is None:
        steps = x.astype(np.int32).astype(np.float32)
    else:
        steps = np.subtract(x.astype(np.int32), zero.astype(np.int32)).astype(np.float32)
    with np.errstate(all="ignore"):
        return np.asarray((steps * scale.astype(np.float32)).astype(target.storage))
