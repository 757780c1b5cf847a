"""Bessel's modified functions of the first kind, of orders 0 and 1, as scalar forms.

Each, over its exponential growth, is a series of Chebyshev polynomials: in x where that is small, in 1 / x
where it is large.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

from vkml.ir.scalar import Scalar, absolute, compare, unary, where
from vkml.tensors.series import series
from vkml.tensors.special import Unary, of_one

_LARGE = 8.0
_ASYMPTOTIC = 500.0
"""From here on the asymptotic expansion has all digits of float64 in a dozen terms."""


def _scaled(order: int, x: float) -> float:
    """e⁻ˣ times the function over (x / 2)ⁿ, by its power series, whose terms are positive (DLMF 10.25.2)."""
    square = x * x / 4
    term = math.exp(-x) / math.factorial(order)
    terms: list[float] = []
    k = 0
    while term > 0 and (not terms or term > terms[0] * 1e-20 or k < x):
        terms.append(term)
        k += 1
        term *= square / (k * (k + order))
    return math.fsum(terms)


def _far(order: int, inverse: float) -> float:
    """e⁻ˣ times the function times √x, by 1 / x (DLMF 10.40.1)."""
    if inverse > 1 / _ASYMPTOTIC:
        x = 1 / inverse
        return _scaled(order, x) * (x / 2) ** order * math.sqrt(x)
    terms, term = [1.0], 1.0
    for k in range(1, 12):
        term *= -(4 * order * order - (2 * k - 1) ** 2) / (8 * k) * inverse
        terms.append(term)
    return math.fsum(terms) / math.sqrt(2 * math.pi)


def _of_order(order: int) -> tuple[Callable[[float], float], Callable[[float], float]]:
    return functools.partial(_scaled, order), functools.partial(_far, order)


_ORDERS = _of_order(0), _of_order(1)


def _without_growth(order: int, x: Scalar) -> Scalar:
    """Over e to the power of |x|."""
    near_by, far_by = _ORDERS[order]
    size = absolute(x)
    is_near = size <= _LARGE
    near = series(near_by, 0.0, _LARGE, where(is_near, size, 0.0))
    large = where(is_near, _LARGE, size)
    far = series(far_by, 0.0, 1 / _LARGE, 1 / large) / unary("sqrt", large)
    if order:
        near, far = near * (x * 0.5), where(x < 0, -far, far)
    return where(is_near, near, far)


def _whole(order: int, x: Scalar) -> Scalar:
    half = unary("exp", absolute(x) * 0.5)  # eˣ alone overflows before the product does
    found = half * _without_growth(order, x) * half
    return where(compare("equal", absolute(x), math.inf), x if order else absolute(x), found)


@functools.lru_cache(maxsize=8)
def _i0(x: Scalar) -> Scalar:
    return _whole(0, x)


@functools.lru_cache(maxsize=8)
def _i0e(x: Scalar) -> Scalar:
    return _without_growth(0, x)


@functools.lru_cache(maxsize=8)
def _i1(x: Scalar) -> Scalar:
    return _whole(1, x)


@functools.lru_cache(maxsize=8)
def _i1e(x: Scalar) -> Scalar:
    return _without_growth(1, x)


i0: Unary = of_one("i0", _i0, "Bessel's modified function of the first kind and of order 0.")
i0e: Unary = of_one("i0e", _i0e, "`i0` times e to the power of -|x|.")
i1: Unary = of_one("i1", _i1, "Bessel's modified function of the first kind and of order 1.")
i1e: Unary = of_one("i1e", _i1e, "`i1` times e to the power of -|x|.")
