"""Parts of updates as scalar forms: one operator each, whose numbers keep all of their digits.

Parameters of 16 bits are computed in float32 and rounded once, where a result is stored; a rate or a share of
16 bits would have three digits. Each form reads a parameter, or what goes with it, first: operators that read
nothing else would be launches of their own, since they could run before there is a gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vkml.ir.gradients import pointwise_of_arguments
from vkml.ir.scalar import Scalar, arithmetic_type, unary
from vkml.tensors import Tensor
from vkml.tensors.operands import value_as
from vkml.tracing import EMITTER


def elementwise(form: Callable[..., Scalar], first: Tensor, *others: Any) -> Tensor:
    """A form of elements, in the type of the first operand.

    Args:
        form: a function of a module's.
        first: a tensor of the result's shape.
        others: tensors that broadcast to that, and numbers.
    """
    wide = arithmetic_type(first.dtype)
    values = [
        other.value if isinstance(other, Tensor) and other.dtype == first.dtype else value_as(other, wide)
        for other in others
    ]
    return Tensor(pointwise_of_arguments(EMITTER, form, first.value, *values))


def descend(param: Tensor, step: Tensor, rate: Any) -> None:
    """Takes a step times a rate from a parameter."""
    param._become(elementwise(_less, param, step, rate))


def plus(x: Tensor, y: Tensor, factor: Any) -> Tensor:
    """x + y · factor."""
    return elementwise(_plus, x, y, factor)


def mean_with(mean: Tensor, fresh: Tensor, beta: Any) -> Tensor:
    """A running mean with one more in it, of which 1 - β counts."""
    return elementwise(_weighted, mean, fresh, beta, 1 - beta)


def kept_mean(mean: Tensor, fresh: Tensor, beta: Any) -> Tensor:
    """`mean_with` in the place of the mean."""
    return mean.copy_(mean_with(mean, fresh, beta))


def kept_square(mean: Tensor, fresh: Tensor, beta: Any) -> Tensor:
    """As `kept_mean`, of the square."""
    return mean.copy_(elementwise(_weighted_square, mean, fresh, beta, 1 - beta))


def kept_momentum(kept: Tensor, fresh: Tensor, momentum: Any, share: Any) -> Tensor:
    """kept · momentum + fresh · share, in its place."""
    return kept.copy_(elementwise(_weighted, kept, fresh, momentum, share))


def adam_step(
    param: Tensor, mean: Tensor, square: Tensor, one: Any, two: Any, eps: Any, rate: Any, keep: Any
) -> None:
    """param · keep - mean / one / (√(square / two) + eps) · rate, in the parameter's place."""
    param._become(elementwise(_adam, param, mean, square, one, two, eps, rate, keep))


def _less(x: Scalar, step: Scalar, rate: Scalar) -> Scalar:
    return x - step * rate


def _plus(x: Scalar, y: Scalar, factor: Scalar) -> Scalar:
    return x + y * factor


def _weighted(x: Scalar, y: Scalar, of_x: Scalar, of_y: Scalar) -> Scalar:
    return x * of_x + y * of_y


def _weighted_square(x: Scalar, y: Scalar, of_x: Scalar, of_y: Scalar) -> Scalar:
    return x * of_x + y * y * of_y


def _adam(
    x: Scalar, mean: Scalar, square: Scalar, one: Scalar, two: Scalar, eps: Scalar, rate: Scalar, keep: Scalar
) -> Scalar:
    return x * keep - mean / one / (unary("sqrt", square / two) + eps) * rate
