"""The gamma function's logarithm and its derivatives as scalar forms.

The logarithm is a series of Chebyshev polynomials where it has roots; all are their asymptotic expansions
where their argument is large, to where recurrences lead from smaller ones.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from vkml.ir import scalar
from vkml.ir.gradients import expression
from vkml.ir.scalar import Scalar, absolute, compare, constant, unary, where
from vkml.tensors.operands import floating, wrap
from vkml.tensors.series import series
from vkml.tensors.special import Unary, of_one
from vkml.tracing import EMITTER

if TYPE_CHECKING:
    from vkml.tensors.tensor import Tensor

_LARGE = 8.0
"""From here on the expansions of Stirling and of the digamma function have all digits of float64."""
_STEPS = 6
"""By how many smaller arguments are moved up to there: from 2.5 on."""
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510, 43867 / 798,
              -174611 / 330, 854513 / 138, -236364091 / 2730)  # fmt: skip
"""B₂, B₄, …"""
_OF_LOGARITHM = _BERNOULLI[:8]
"""As many as the logarithm and its first derivative need from `_LARGE` on."""
_STEPS_OF_ZETA = 10
"""By how many its argument is moved up, and how many Bernoulli numbers it needs there."""


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
    factors = tuple([b / ((2 * k) * (2 * k - 1)) for k, b in enumerate(_OF_LOGARITHM, 1)])
    # (log z - 1) first: the product alone would overflow before the difference does.
    large = (unary("log", z) - 1) * (z - 0.5) - 0.5 + 0.5 * math.log(2 * math.pi)
    large = large + inverse * _expansion(inverse, factors)
    product = y
    for step in range(1, _STEPS):
        product = product * (y + step)
    found = where(is_small, large - unary("log", where(is_small, product, 1.0)), large)
    found = where(y < 2.5, (y - 2) * series(_near_two, -0.5, 0.5, y - 2), found)
    found = where(y < 1.5, (y - 1) * series(_near_one, -0.5, 0.5, y - 1), found)
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
    factors = tuple([b / (2 * k) for k, b in enumerate(_OF_LOGARITHM, 1)])
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


def _power(x: Scalar, exponent: int) -> Scalar:
    """By multiplications, whose derivative is one of these, too."""
    found: Scalar | None = None
    while exponent:
        if exponent & 1:
            found = x if found is None else found * x
        exponent >>= 1
        x = x * x if exponent else x
    assert found is not None
    return found


def _zeta(s: int, q: Scalar) -> Scalar:
    """Hurwitz's zeta function, Σ (q + k)⁻ˢ from k = 0 on, of q ≥ 1/2: Euler, Maclaurin (DLMF 25.11.28)."""
    found = _power(1 / q, s)
    for step in range(1, _STEPS_OF_ZETA):
        found = found + _power(1 / (q + step), s)
    inverse = 1 / (q + _STEPS_OF_ZETA)
    factors = []
    rising = float(s)  # s (s + 1) … (s + 2 k - 2) / (2 k)!
    for k, b in enumerate(_BERNOULLI, 1):
        rising /= (2 * k) * (2 * k - 1)
        factors.append(b * rising)
        rising *= (s + 2 * k - 1) * (s + 2 * k)
    less = inverse * 0.5 + inverse * inverse * _expansion(inverse, tuple(factors)) + 1 / (s - 1)
    return found + less * _power(inverse, s - 1)


def _derivative_of_cotangent(order: int) -> list[float]:
    """Coefficients, by powers of the cotangent of πx, of its derivative of an order by x."""
    found = [0.0, 1.0]
    for _ in range(order):
        slopes = [power * factor for power, factor in enumerate(found)][1:]
        found = [0.0] * (len(slopes) + 2)
        for power, factor in enumerate(slopes):  # the cotangent's own derivative is -π (1 + its square)
            found[power] -= math.pi * factor
            found[power + 2] -= math.pi * factor
    return found


@functools.lru_cache(maxsize=32)
def _polygamma(order: int, x: Scalar) -> Scalar:
    if not order:
        return _digamma(x)
    is_left = x < 0.5
    y = where(is_left, 1 - x, x)
    found = _zeta(order + 1, y) * math.factorial(order) * (-1.0) ** (order + 1)
    turn = _turn(x)
    cotangent = unary("cos", turn) / unary("sin", turn)
    mirrored = constant(0.0, x.dtype)
    for factor in reversed(_derivative_of_cotangent(order)):
        mirrored = mirrored * cotangent + factor
    found = where(is_left, (-1.0) ** order * found - math.pi * mirrored, found)
    is_pole = (x <= 0) & compare("equal", x, unary("floor", x))
    found = where(is_pole, (-1.0) ** (order + 1) * math.inf, found)
    return where(compare("equal", x, -math.inf), math.nan, found)


lgamma: Unary = of_one("lgamma", _lgamma, "log |Γ(x)|.")
digamma: Unary = of_one("digamma", _digamma, "The derivative of `lgamma`.")


def polygamma(n: int, input: Tensor) -> Tensor:
    """The derivative of `digamma` of an order; `digamma` itself for 0.

    Args:
        n: the order, at least 0.
        input: real numbers of any shape; integers become floats of the default type.

    Raises:
        RuntimeError: the order is below 0.
    """
    if n < 0:
        raise RuntimeError(f"polygamma(n, x) does not support negative n, not {n}")
    value = floating(input)
    made = _polygamma(n, scalar.argument(0, value.type.dtype))
    return wrap(expression(EMITTER, made, [value], value.type.dtype))
