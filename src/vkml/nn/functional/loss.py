"""Losses of elements: differences, and probabilities of two classes or of distributions."""

from __future__ import annotations

import math
import warnings

from vkml.ir import scalar
from vkml.ir.scalar import Scalar
from vkml.nn.functional.arguments import require_floats
from vkml.nn.functional.reduction import reduced, require_shape, weighted, written
from vkml.tensors import Tensor
from vkml.tensors import operations as op


def _warn_of_shapes(name: str, input: Tensor, target: Tensor) -> None:
    """Says that shapes are broadcast, which is seldom what is meant: [n, 1] and [n] become [n, n]."""
    if target.shape != input.shape:
        warnings.warn(
            f"{name}: the target has the shape {list(target.shape)}, the input {list(input.shape)}: they are "
            "broadcast with each other, which may not be what is meant",
            stacklevel=4,
        )


def _difference_loss(loss: Tensor, input: Tensor, weight: Tensor | None, reduction: str) -> Tensor:
    if weight is None:
        return reduced(loss, reduction)
    if weight.shape != input.shape:
        raise ValueError(
            f"Weights and input must have the same size, not {list(weight.shape)} and {list(input.shape)}"
        )
    found = op.mul(loss, weight)
    return op.div(op.sum(found), op.sum(weight)) if reduction == "mean" else reduced(found, reduction)


def mse_loss(
    input: Tensor, target: Tensor, *, reduction: str = "mean", weight: Tensor | None = None
) -> Tensor:
    """The squared difference.

    Args:
        input: of any shape.
        target: of its shape, or one that is broadcast with it.
        reduction: "mean", "sum" or "none".
        weight: of the input's shape; the mean is weighted by it.
    """
    _warn_of_shapes("mse_loss", input, target)
    off = op.sub(input, target)
    return _difference_loss(op.mul(off, off), input, weight, reduction)


def l1_loss(
    input: Tensor, target: Tensor, *, reduction: str = "mean", weight: Tensor | None = None
) -> Tensor:
    """The size of the difference; arguments as for `mse_loss`."""
    _warn_of_shapes("l1_loss", input, target)
    return _difference_loss(op.abs(op.sub(input, target)), input, weight, reduction)


def smooth_l1_loss(input: Tensor, target: Tensor, *, reduction: str = "mean", beta: float = 1.0) -> Tensor:
    """The size of the difference less β / 2; below β its square over 2 β (Girshick, 2015).

    Args:
        input: of any shape.
        target: of its shape, or one that is broadcast with it.
        reduction: "mean", "sum" or "none".
        beta: β, at least 0.

    Raises:
        RuntimeError: β is negative.
    """
    if beta < 0:
        raise RuntimeError(f"smooth_l1_loss does not support negative values for beta, {beta} is one")
    if beta == 0:
        return l1_loss(input, target, reduction=reduction)
    _warn_of_shapes("smooth_l1_loss", input, target)

    def form(x: Scalar, y: Scalar) -> Scalar:
        size = scalar.absolute(x - y)
        return scalar.where(size < beta, size * size * (0.5 / beta), size - 0.5 * beta)

    return reduced(written(form, input, target), reduction)


def huber_loss(
    input: Tensor, target: Tensor, reduction: str = "mean", delta: float = 1.0, weight: Tensor | None = None
) -> Tensor:
    """Half the squared difference up to δ, and from there on straight (Huber, 1964).

    Args:
        input: of any shape.
        target: of its shape, or one that is broadcast with it.
        reduction: "mean", "sum" or "none".
        delta: δ, above 0.
        weight: of the input's shape: factors.

    Raises:
        RuntimeError: δ is not positive.
        ValueError: the weight has another shape than the input.
    """
    if delta <= 0:
        raise RuntimeError(f"huber_loss does not support non-positive values for delta, {delta} is one")
    if weight is not None and weight.shape != input.shape:
        raise ValueError("Weights and input must have the same size.")
    _warn_of_shapes("huber_loss", input, target)

    def form(x: Scalar, y: Scalar) -> Scalar:
        size = scalar.absolute(x - y)
        return scalar.where(size < delta, size * size * 0.5, (size - 0.5 * delta) * delta)

    return reduced(weighted(written(form, input, target), weight), reduction)


def binary_cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None = None, *, reduction: str = "mean"
) -> Tensor:
    """-(t log x + (1 - t) log(1 - x)), no logarithm being less than -100.

    Args:
        input: probabilities.
        target: of its shape, from [0, 1].
        weight: factors, broadcast.
        reduction: "mean", "sum" or "none".

    Raises:
        ValueError: the shapes differ.
    """
    require_floats(input, "binary_cross_entropy")
    require_shape(target, input.shape, "binary_cross_entropy")

    def form(x: Scalar, t: Scalar) -> Scalar:
        one = scalar.constant(1.0, x.dtype)
        found = scalar.maximum(scalar.unary("log", x), -100.0)
        rest = scalar.maximum(scalar.unary("log", one - x), -100.0)
        return (t - 1.0) * rest - t * found

    return reduced(weighted(written(form, input, target), weight), reduction)


def binary_cross_entropy_with_logits(
    input: Tensor, target: Tensor, weight: Tensor | None = None, *, reduction: str = "mean",
    pos_weight: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """-(t log σ(x) + (1 - t) log(1 - σ(x))), without overflow.

    Args:
        input: logits.
        target: of their shape, from [0, 1].
        weight: factors, broadcast.
        reduction: "mean", "sum" or "none".
        pos_weight: factors of the first summand, broadcast.

    Raises:
        ValueError: the shapes differ.
    """
    require_floats(input, "binary_cross_entropy_with_logits")
    require_shape(target, input.shape, "binary_cross_entropy_with_logits")

    def softplus(x: Scalar) -> Scalar:
        return scalar.unary("log1p", scalar.unary("exp", -scalar.absolute(x))) + scalar.maximum(x, 0.0)

    def form(x: Scalar, t: Scalar) -> Scalar:
        return softplus(x) - x * t

    if pos_weight is None:
        loss = written(form, input, target)
    else:
        loss = written(_with_factor, input, target, pos_weight)
    return reduced(weighted(loss, weight), reduction)


def _with_factor(x: Scalar, t: Scalar, factor: Scalar) -> Scalar:
    # log σ(x) is -softplus(-x), and softplus(x) is x more.
    behind = scalar.unary("log1p", scalar.unary("exp", -scalar.absolute(x))) + scalar.maximum(-x, 0.0)
    return (1.0 - t) * x + ((factor - 1.0) * t + 1.0) * behind


def kl_div(input: Tensor, target: Tensor, *, reduction: str = "mean", log_target: bool = False) -> Tensor:
    """t (log t - x): with logarithms of probabilities x the Kullback-Leibler divergence of them from t.

    Args:
        input: logarithms of probabilities, [batch, ...].
        target: probabilities, or their logarithms.
        reduction: "mean", "sum", "none", or "batchmean", the divergence: the sum over the batch's size.
        log_target: whether the target is logarithms.
    """
    require_floats(input, "kl_div")

    def of_logarithms(x: Scalar, t: Scalar) -> Scalar:
        return scalar.unary("exp", t) * (t - x)

    def of_probabilities(x: Scalar, t: Scalar) -> Scalar:
        # Where t is 0 so is t log t.
        product = scalar.where(scalar.compare("equal", t, 0.0), 0.0, t * scalar.unary("log", t))
        return product - t * x

    loss = written(of_logarithms if log_target else of_probabilities, input, target)
    if reduction == "batchmean":
        return op.div(op.sum(loss), input.shape[0] if input.ndim else 1)
    return reduced(loss, reduction)


def poisson_nll_loss(
    input: Tensor, target: Tensor, log_input: bool = True, full: bool = False, *, eps: float = 1e-8,
    reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """The negative logarithm of a Poisson distribution's probability.

    Args:
        input: the expected count, or its logarithm.
        target: the count.
        log_input: whether the input is a logarithm.
        full: whether log t! counts, by Stirling's formula where t is above 1.
        eps: what is added before the logarithm is taken.
        reduction: "mean", "sum" or "none".
    """
    require_floats(input, "poisson_nll_loss")

    def form(x: Scalar, t: Scalar) -> Scalar:
        found = scalar.unary("exp", x) - t * x if log_input else x - t * scalar.unary("log", x + eps)
        if not full:
            return found
        safe = scalar.maximum(t, 1.0)  # of what is not selected no logarithm is taken
        more = t * scalar.unary("log", safe) - t + scalar.unary("log", safe * (2 * math.pi)) * 0.5
        return found + scalar.where(t <= 1.0, 0.0, more)

    return reduced(written(form, input, target), reduction)


def gaussian_nll_loss(
    input: Tensor, target: Tensor, var: Tensor | float, full: bool = False, eps: float = 1e-6,
    reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """The negative logarithm of a normal distribution's density (Nix and Weigend, 1994).

    Args:
        input: means.
        target: samples.
        var: variances: a number, or of the input's shape, its last axis left out or one axis of size 1.
        full: whether the constant counts.
        eps: variances below it are as if they were it, but for gradients.
        reduction: "mean", "sum" or "none".

    Raises:
        ValueError: variances have another shape, or a number is negative.
    """
    require_floats(input, "gaussian_nll_loss")
    if not isinstance(var, Tensor):
        if var < 0:
            raise ValueError("var has negative entry/entries")
        spread: Tensor = op.add(op.mul(input.detach(), 0.0), float(var))
    elif var.shape == input.shape:
        spread = var
    elif tuple(input.shape[:-1]) == tuple(var.shape):
        spread = op.unsqueeze(var, -1)
    elif (
        var.ndim == input.ndim and sum(b for a, b in zip(input.shape, var.shape, strict=True) if a != b) == 1
    ):
        spread = var
    else:
        raise ValueError(f"var is of incorrect size: {list(var.shape)} for an input {list(input.shape)}")
    # Limited, and gradients as if it were not.
    limited = op.add(spread, op.sub(op.clamp(spread.detach(), min=eps), spread.detach()))
    off = op.sub(input, target)
    loss = op.mul(op.add(op.log(limited), op.div(op.mul(off, off), limited)), 0.5)
    if full:
        loss = op.add(loss, 0.5 * math.log(2 * math.pi))
    return reduced(loss, reduction)


def soft_margin_loss(input: Tensor, target: Tensor, *, reduction: str = "mean") -> Tensor:
    """log(1 + e^(-t x)), t being 1 or -1.

    Args:
        input: of any shape.
        target: of its shape.
        reduction: "mean", "sum" or "none".

    Raises:
        RuntimeError: the shapes differ.
    """
    require_floats(input, "soft_margin_loss")
    require_shape(target, input.shape, "soft_margin_loss", RuntimeError)

    def form(x: Scalar, t: Scalar) -> Scalar:
        grown = -(t * x)
        return scalar.unary("log1p", scalar.unary("exp", -scalar.absolute(grown))) + scalar.maximum(
            grown, 0.0
        )

    return reduced(written(form, input, target), reduction)
