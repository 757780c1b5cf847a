"""The gamma function's logarithm and its derivative, and Bessel's functions of order 0, as scalar forms.

Each is a series of Chebyshev polynomials where its argument is small, interpolated when a form is first made
from what the host computes, and its asymptotic expansion where it is large.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np
from numpy.polynomial import Chebyshev

from vkml.ir import DType, dtypes
from vkml.ir.scalar import Scalar, absolute, compare, constant, unary, where
from vkml.tensors.special import Unary, of_one

_DEGREE = 40
_LARGE = 8.0
"""From here on the expansions of Stirling and of the digamma function have all digits of float64."""
_STEPS = 6
"""By how many smaller arguments are moved up to there: from 2.5 on."""
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510)
"""B₂, B₄, …"""


@functools.lru_cache(maxsize=16)
def _series(function: Callable[[float], float], low: float, high: float, dtype: DType) -> tuple[float, ...]:
    """Coefficients of Chebyshev polynomials, without those that the type does not see."""
    found = Chebyshev.interpolate(np.vectorize(function), _DEGREE, (low, high)).coef
    least = np.abs(found).max() * (1e-18 if dtype == dtypes.FLOAT64 else 1e-10)
    last = int(np.flatnonzero(np.abs(found) > least)[-1])
    return tuple([float(x) for x in found[: last + 1]])


def _sum_of(function: Callable[[float], float], low: float, high: float, x: Scalar) -> Scalar:
    """A series at x, by Clenshaw's recurrence."""
    first, *rest = _series(function, low, high, x.dtype)
    at = (x * 2 - (low + high)) / (high - low)
    one = two = constant(0.0, x.dtype)
    for coefficient in reversed(rest):
        one, two = at * 2 * one - two + coefficient, one
    return at * one - two + first


def _near(root: float) -> Callable[[float], float]:
    """The logarithm of the gamma function over the distance from where it is 0."""

    def function(apart: float) -> float:
        apart = root + apart - root  # as the sum is rounded
        return math.lgamma(root + apart) / apart if apart else _SLOPES[root]

    return function


_SLOPES = {1.0: -0.5772156649015329, 2.0: 1 - 0.5772156649015329}
_near_one, _near_two = _near(1.0), _near(2.0)


def _expansion(inverse: Scalar, factors: tuple[float, ...]) -> Scalar:
    """A polynomial of the square of an inverse."""
    square = inverse * inverse
    found = constant(factors[-1], inverse.dtype)
    for factor in reversed(factors[:-1]):
        found = found * square + factor
    return found


def _turn(x: Scalar) -> Scalar:
    """π times the distance from the nearest whole number."""
    return (x - unary("floor", x + 0.5)) * math.pi


@functools.lru_cache(maxsize=8)
def _lgamma(x: Scalar) -> Scalar:
    is_left = x < 0.5
    y = where(is_left, 1 - x, x)
    is_small = y < _LARGE
    z = where(is_small, y + _STEPS, y)
    inverse = 1 / z
    factors = tuple([b / ((2 * k) * (2 * k - 1)) for k, b in enumerate(_BERNOULLI, 1)])
    # (log z - 1) first: the product alone would overflow before the difference does.
    large = (unary("log", z) - 1) * (z - 0.5) - 0.5 + 0.5 * math.log(2 * math.pi)
    large = large + inverse * _expansion(inverse, factors)
    product = y
    for step in range(1, _STEPS):
        product = product * (y + step)
    found = where(is_small, large - unary("log", where(is_small, product, 1.0)), large)
    found = where(y < 2.5, (y - 2) * _sum_of(_near_two, -0.5, 0.5, y - 2), found)
    found = where(y < 1.5, (y - 1) * _sum_of(_near_one, -0.5, 0.5, y - 1), found)
    sine = unary("sin", _turn(x))
    found = where(is_left, unary("log", math.pi / absolute(sine)) - found, found)
    return where(compare("equal", absolute(x), math.inf), math.inf, found)


@functools.lru_cache(maxsize=8)
def _digamma(x: Scalar) -> Scalar:
    is_left = x < 0.5
    y = where(is_left, 1 - x, x)
    # From 0.5 on: two steps more than the logarithm's, which has series there.
    steps = _STEPS + 2
    is_small = y < _LARGE
    z = where(is_small, y + steps, y)
    inverse = 1 / z
    factors = tuple([b / (2 * k) for k, b in enumerate(_BERNOULLI, 1)])
    found = unary("log", z) - inverse * 0.5 - inverse * inverse * _expansion(inverse, factors)
    below = 1 / y
    for step in range(1, steps):
        below = below + 1 / (y + step)
    found = where(is_small, found - below, found)
    turn = _turn(x)
    found = where(is_left, found - math.pi * unary("cos", turn) / unary("sin", turn), found)
    is_whole = compare("equal", x, unary("floor", x))
    found = where((x < 0) & is_whole, math.nan, found)
    return where(compare("equal", x, 0.0), -1 / x, found)


def _bessel(x: float) -> float:
    return float(np.i0(x)) * math.exp(-x)


def _bessel_far(inverse: float) -> float:
    """e⁻ˣ I₀(x) √x, by 1 / x; 1 / √2π at 0."""
    if inverse < 1 / 500:
        terms, term = 1.0, 1.0
        for k in range(1, 12):
            term *= (2 * k - 1) ** 2 / (8 * k) * inverse
            terms += term
        return terms / math.sqrt(2 * math.pi)
    return _bessel(1 / inverse) * math.sqrt(1 / inverse)


@functools.lru_cache(maxsize=8)
def _i0e(x: Scalar) -> Scalar:
    size = absolute(x)
    is_near = size <= _LARGE
    near = _sum_of(_bessel, 0.0, _LARGE, where(is_near, size, 0.0))
    large = where(is_near, _LARGE, size)
    return where(is_near, near, _sum_of(_bessel_far, 0.0, 1 / _LARGE, 1 / large) / unary("sqrt", large))


@functools.lru_cache(maxsize=8)
def _i0(x: Scalar) -> Scalar:
    half = unary("exp", absolute(x) * 0.5)  # eˣ alone overflows before the product does
    return where(compare("equal", absolute(x), math.inf), math.inf, half * _i0e(x) * half)


lgamma: Unary = of_one("lgamma", _lgamma, "log |Γ(x)|.")
digamma: Unary = of_one("digamma", _digamma, "The derivative of `lgamma`.")
i0: Unary = of_one("i0", _i0, "Bessel's modified function of the first kind and of order 0.")
i0e: Unary = of_one("i0e", _i0e, "`i0` times e to the power of -|x|.")
