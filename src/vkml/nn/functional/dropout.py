"""Dropout: random zeros in training, the rest scaled so that means stay."""

from __future__ import annotations

import math
from collections.abc import Sequence

from vkml.nn.functional.activation import SELU_LOWEST
from vkml.nn.functional.arguments import finished, require_floats
from vkml.nn.functional.randoms import uniform
from vkml.tensors import Tensor
from vkml.tensors import operations as op
from vkml.tracing.value import next_serial


def _check(p: float) -> None:
    if not 0 <= p <= 1:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")


def _kept(x: Tensor, p: float, shape: Sequence[int]) -> Tensor:
    """Which elements stay."""
    return op.ge(uniform(x, shape), p)


def _dropped(x: Tensor, p: float, training: bool, inplace: bool, shape: Sequence[int], name: str) -> Tensor:
    _check(p)
    require_floats(x, name)
    if not training or p == 0:
        return x
    if p == 1:
        return finished(x, next_serial(), op.mul(x, 0.0), inplace)
    # Selected and not multiplied: what is not finite is dropped, too.
    return finished(x, next_serial(), op.where(_kept(x, p, shape), op.mul(x, 1 / (1 - p)), 0.0), inplace)


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Elements that are 0 with a probability, or else divided by that of the others (Hinton et al., 2012).

    Args:
        input: floats of any shape.
        p: the probability.
        training: whether anything is dropped.
        inplace: whether the result is written over the input.

    Raises:
        ValueError: the probability lies outside [0, 1].
    """
    return _dropped(input, p, training, inplace, input.shape, "dropout")


def _of_channels(x: Tensor, rank: int, name: str, *, is_single: bool) -> Sequence[int]:
    """One for each channel; of an input without a batch, where that is told by its axes."""
    if x.ndim == rank + 1 and is_single:
        return (x.shape[0], *(1,) * rank)
    if x.ndim < 2:
        raise RuntimeError(f"{name} takes an input of 2 axes or more, not of the shape {list(x.shape)}")
    return (*x.shape[:2], *(1,) * (x.ndim - 2))


def dropout1d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Whole channels of [batch, channels, length], or without a batch, that are 0; see `dropout`.

    Args:
        input: floats [batch, channels, length] or [channels, length].
        p: the probability.
        training: whether anything is dropped.
        inplace: whether the result is written over the input.
    """
    _check(p)
    if input.ndim not in (2, 3):
        raise RuntimeError(f"dropout1d: Expected 2D or 3D input, but received a {input.ndim}D input")
    shape = _of_channels(input, 1, "dropout1d", is_single=True)
    return _dropped(input, p, training, inplace, shape, "dropout1d")


def dropout2d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Whole channels of [batch, channels, ...] that are 0; see `dropout`.

    Args:
        input: floats [batch, channels, ...].
        p: the probability.
        training: whether anything is dropped.
        inplace: whether the result is written over the input.
    """
    _check(p)
    shape = _of_channels(input, 2, "dropout2d", is_single=False)
    return _dropped(input, p, training, inplace, shape, "dropout2d")


def dropout3d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Whole channels of [batch, channels, *three axes], or without a batch, that are 0; see `dropout`.

    Args:
        input: floats [batch, channels, *three axes], or without a batch.
        p: the probability.
        training: whether anything is dropped.
        inplace: whether the result is written over the input.
    """
    _check(p)
    shape = _of_channels(input, 3, "dropout3d", is_single=True)
    return _dropped(input, p, training, inplace, shape, "dropout3d")


def _alpha_dropped(x: Tensor, p: float, training: bool, inplace: bool, shape: Sequence[int]) -> Tensor:
    _check(p)
    require_floats(x, "alpha_dropout")
    if not training or p == 0:
        return x
    if p == 1:
        return finished(x, next_serial(), op.mul(x, 0.0), inplace)
    # Scaled and shifted so that mean 0 and variance 1 stay.
    scale = 1 / math.sqrt((SELU_LOWEST**2 * p + 1) * (1 - p))
    shift = -scale * SELU_LOWEST * p
    start = next_serial()
    kept = op.where(_kept(x, p, shape), op.mul(x, scale), SELU_LOWEST * scale)
    return finished(x, start, op.add(kept, shift), inplace)


def alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
    """Elements that are what `selu` is at -∞ with a probability (Klambauer et al., 2017).

    Mean 0 and variance 1 stay.

    Args:
        input: floats of any shape.
        p: the probability.
        training: whether anything is dropped.
        inplace: whether the result is written over the input.

    Raises:
        ValueError: the probability lies outside [0, 1].
    """
    return _alpha_dropped(input, p, training, inplace, input.shape)


def feature_alpha_dropout(
    input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False
) -> Tensor:
    """`alpha_dropout` of whole channels of [batch, channels, ...].

    Args:
        input: floats [batch, channels, ...].
        p: the probability.
        training: whether anything is dropped.
        inplace: whether the result is written over the input.
    """
    _check(p)
    shape = _of_channels(input, 3, "feature_alpha_dropout", is_single=False)
    return _alpha_dropped(input, p, training, inplace, shape)
