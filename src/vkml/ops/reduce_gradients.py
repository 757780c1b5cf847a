"""Gradients of reductions, by name."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Protocol

from vkml.ir import scalar
from vkml.ir.dtypes import FLOAT32, FLOAT64, INT64
from vkml.ir.gradients import (
    Emitter,
    T,
    conjugate,
    expanded,
    pointwise,
    reciprocal,
    reshaped,
    summed,
    transposed,
    widened,
)
from vkml.ir.scalar import Scalar, compare, where


class Gradient(Protocol):
    """Writes the gradient of a reduction."""

    def __call__(self, build: Emitter[T], x: T, result: T, cotangent: T, axes: Sequence[int]) -> T:
        """The cotangent of `x`.

        Args:
            build: the emitter.
            x: what is reduced.
            result: of the reduction; reduced axes have the size 1.
            cotangent: of the result, of its shape.
            axes: that are reduced, ascending.
        """


def _of_sum(build: Emitter[T], x: T, result: T, cotangent: T, axes: Sequence[int]) -> T:
    return expanded(build, cotangent, build.type_of(x).dims)


def _of_mean(build: Emitter[T], x: T, result: T, cotangent: T, axes: Sequence[int]) -> T:
    type_ = build.type_of(x)
    count = max(1, math.prod(type_.dims[axis] for axis in axes))
    share = reciprocal(build, count, type_.dtype)
    part = pointwise(build, lambda cotangent, share: cotangent * share, cotangent, share)
    return expanded(build, part, type_.dims)


def _of_extreme(build: Emitter[T], x: T, result: T, cotangent: T, axes: Sequence[int]) -> T:
    """Equal elements take equal parts."""

    def is_result(x: Scalar, result: Scalar) -> Scalar:
        return where(compare("equal", x, result), scalar.constant(1.0, x.dtype), 0.0)

    count = summed(build, pointwise(build, is_result, x, result), axes, keep=True)
    return pointwise(
        build,
        lambda x, result, share: is_result(x, result) * share,
        x,
        result,
        build.apply("Div", cotangent, count),
    )


def _of_product(build: Emitter[T], x: T, result: T, cotangent: T, axes: Sequence[int]) -> T:
    """The product of all other elements, which no zero among them makes a quotient by 0."""
    dims = build.type_of(x).dims
    kept = [axis for axis in range(len(dims)) if axis not in axes]
    order = [*kept, *axes]
    turned = transposed(build, conjugate(build, x), order)
    shape = build.type_of(turned).dims
    line = reshaped(build, turned, [math.prod(shape[: len(kept)]), math.prod(shape[len(kept) :])])
    along = build.constant(1, INT64)
    others = build.apply(
        "Mul",
        build.apply("CumProd", line, along, exclusive=1),
        build.apply("CumProd", line, along, exclusive=1, reverse=1),
    )
    back = sorted(range(len(order)), key=order.__getitem__)
    return build.apply("Mul", transposed(build, reshaped(build, others, shape), back), cotangent)


def _of_l1(build: Emitter[T], x: T, result: T, cotangent: T, axes: Sequence[int]) -> T:
    return pointwise(build, lambda x, cotangent: scalar.unary("sign", x) * cotangent, x, cotangent)


def _of_l2(build: Emitter[T], x: T, result: T, cotangent: T, axes: Sequence[int]) -> T:
    def form(x: Scalar, result: Scalar, cotangent: Scalar) -> Scalar:
        return where(compare("equal", result, 0.0), 0.0, x * (cotangent / result))

    return pointwise(build, form, x, result, cotangent)


def _of_square_sum(build: Emitter[T], x: T, result: T, cotangent: T, axes: Sequence[int]) -> T:
    return pointwise(build, lambda x, cotangent: 2 * x * cotangent, x, cotangent)


def _of_log_sum(build: Emitter[T], x: T, result: T, cotangent: T, axes: Sequence[int]) -> T:
    total = summed(build, widened(build, x), axes, keep=True)
    dtype = build.type_of(x).dtype
    share = pointwise(build, lambda cotangent, total: cotangent / total, cotangent, total, dtype=dtype)
    return expanded(build, share, build.type_of(x).dims)


def _of_log_sum_exp(build: Emitter[T], x: T, result: T, cotangent: T, axes: Sequence[int]) -> T:
    dtype = build.type_of(x).dtype
    if dtype not in (FLOAT32, FLOAT64):
        # What 16 bits have rounded off the logarithm would count as many times in its exponential.
        along = build.constant(list(axes), INT64)
        result = build.apply("ReduceLogSumExp", widened(build, x), along, noop_with_empty_axes=1)

    def form(x: Scalar, result: Scalar, cotangent: Scalar) -> Scalar:
        return scalar.unary("exp", x - result) * cotangent

    return pointwise(build, form, x, result, cotangent, dtype=dtype)


GRADIENTS: Mapping[str, Gradient] = {
    "ReduceSum": _of_sum,
    "ReduceMean": _of_mean,
    "ReduceMax": _of_extreme,
    "ReduceMin": _of_extreme,
    "ReduceProd": _of_product,
    "ReduceL1": _of_l1,
    "ReduceL2": _of_l2,
    "ReduceSumSquare": _of_square_sum,
    "ReduceLogSum": _of_log_sum,
    "ReduceLogSumExp": _of_log_sum_exp,
}
