"""The error function's complement and what is made of it, with all digits where it is small, as scalar forms.

erfc x = e to the power of -x², times `erfcx`, which is a series of Chebyshev polynomials: 1 + 2x times it, by
(x - 15/4) / (x + 15/4), is smooth up to infinity (M. M. Shepherd, J. G. Laframboise, "Chebyshev approximation
of (1 + 2x) exp(x²) erfc x in 0 ≤ x < ∞", 1981).
"""

from __future__ import annotations

import functools
import math

from vkml.ir.scalar import Scalar, minimum, unary, where
from vkml.tensors.series import series
from vkml.tensors.special import Unary, of_one

_MIDDLE = 3.75
_NEAR = 0.5
"""Up to here 1 - erf x has all digits."""
_FARTHEST = 40.0
"""From here on e to the power of x² is infinite, its inverse 0, in float64, too."""


def _smooth(at: float) -> float:
    """(1 + 2x) erfcx x for x = 15/4 (1 + at) / (1 - at); from 1 on by a continued fraction (DLMF 7.9.1)."""
    x = _MIDDLE * (1 + at) / (1 - at)
    if x < 1:
        return (1 + 2 * x) * math.exp(x * x) * math.erfc(x)
    fraction = x
    for n in range(400, 0, -1):
        fraction = x + (n / 2) / fraction
    return (1 + 2 * x) / (fraction * math.sqrt(math.pi))


def _right(x: Scalar) -> Scalar:
    """`erfcx` of numbers that are not negative."""
    return series(_smooth, -1.0, 1.0, 1 - 2 * _MIDDLE / (x + _MIDDLE)) / (1 + 2 * x)


def _exponential_of_square(x: Scalar, sign: float) -> Scalar:
    """e to the power of ±x², in two factors: the square of the first part of x is exact, which x² is not."""
    first = unary("floor", x * 16) * (1 / 16)
    rest = x - first
    return unary("exp", first * first * sign) * unary("exp", rest * (first * 2 + rest) * sign)


@functools.lru_cache(maxsize=8)
def _erfcx(x: Scalar) -> Scalar:
    size = where(x < 0, -x, x)
    grown = _exponential_of_square(minimum(size, _FARTHEST), 1.0)
    return where(x < 0, 2 * grown - _right(size), _right(size))


@functools.lru_cache(maxsize=8)
def _erfc(x: Scalar) -> Scalar:
    return where(x < _NEAR, 1 - unary("erf", x), _tail(x, 1.0))


def _tail(x: Scalar, factor: float) -> Scalar:
    """erfc of the root of a factor times a number that is not negative."""
    far = where(x < 0, 0.0, minimum(x, _FARTHEST))
    return _exponential_of_square(far, -factor) * _right(far * math.sqrt(factor))


@functools.lru_cache(maxsize=8)
def _ndtr(x: Scalar) -> Scalar:
    return where(x > -1, _middle(x), _tail(-x, 0.5) * 0.5)


def _middle(x: Scalar) -> Scalar:
    return unary("erf", x * math.sqrt(0.5)) * 0.5 + 0.5


@functools.lru_cache(maxsize=8)
def _log_ndtr(x: Scalar) -> Scalar:
    left = unary("log", _right(where(x > -1, 0.0, x * -math.sqrt(0.5))) * 0.5) - x * x * 0.5
    right = where(x > 1, unary("log1p", _tail(x, 0.5) * -0.5), unary("log", _middle(x)))
    return where(x > -1, right, left)


erfc: Unary = of_one("erfc", _erfc, "1 - erf x, with all digits where that is small.")
erfcx: Unary = of_one("erfcx", _erfcx, "`erfc` times e to the power of x².")
ndtr: Unary = of_one(
    "ndtr", _ndtr, "How likely a normally distributed number of mean 0 and deviation 1 is at most x."
)
log_ndtr: Unary = of_one("log_ndtr", _log_ndtr, "The logarithm of `ndtr`.")
