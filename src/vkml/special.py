"""Special functions, as in `torch.special`: those of `vkml` under its names, and some besides."""

from __future__ import annotations

import math

from vkml.tensors import Tensor
from vkml.tensors.bessel import i0, i0e, i1, i1e
from vkml.tensors.creation import as_tensor
from vkml.tensors.error_functions import erfc, erfcx, log_ndtr, ndtr
from vkml.tensors.gamma import digamma, lgamma, polygamma
from vkml.tensors.operations import (
    add,
    eq,
    erf,
    erfinv,
    exp2,
    expm1,
    log1p,
    log_softmax,
    logical_and,
    logit,
    logsumexp,
    mul,
    neg,
    round,
    sigmoid,
    sinc,
    softmax,
    sub,
    where,
    xlogy,
)

__all__ = [
    "digamma", "entr", "erf", "erfc", "erfcx", "erfinv", "exp2", "expit", "expm1", "gammaln", "i0", "i0e",
    "i1", "i1e", "log1p", "log_ndtr", "log_softmax", "logit", "logsumexp", "multigammaln", "ndtr", "ndtri",
    "polygamma", "psi", "round", "sinc", "softmax", "xlog1py", "xlogy",
]  # fmt: skip

expit, gammaln, psi = sigmoid, lgamma, digamma


def entr(input: Tensor) -> Tensor:
    """-x log x; 0 at 0, -∞ below.

    Args:
        input: real numbers of any shape.
    """
    return where(input < 0, -math.inf, neg(xlogy(input, where(input < 0, 1.0, input))))


def ndtri(input: Tensor) -> Tensor:
    """The inverse of `ndtr`.

    Args:
        input: probabilities of any shape.
    """
    return mul(erfinv(sub(mul(input, 2), 1)), math.sqrt(2))


def xlog1py(input: Tensor, other: Tensor | float) -> Tensor:
    """x log(1 + y); 0 where x is.

    Args:
        input: x, real numbers of any shape.
        other: y, which broadcasts with it.
    """
    if not isinstance(other, Tensor):
        other = as_tensor(other, dtype=input.dtype, device=input.device)
    is_zero = logical_and(eq(input, 0), eq(other, other))  # not of NaN
    return where(is_zero, 0.0, mul(input, log1p(other)))


def multigammaln(a: Tensor, p: int) -> Tensor:
    """The logarithm of the multivariate gamma function of p dimensions.

    Args:
        a: above (p - 1) / 2, of any shape.
        p: dimensions, at least 1.

    Raises:
        RuntimeError: there are no dimensions.
    """
    if p < 1:
        raise RuntimeError(f"p has to be greater than or equal to 1, it is {p}")
    found = gammaln(a)
    for at in range(1, p):
        found = add(found, gammaln(sub(a, at / 2)))
    return add(found, p * (p - 1) / 4 * math.log(math.pi))
