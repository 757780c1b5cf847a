"""Series of Chebyshev polynomials as scalar forms, interpolated when a form is first made."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

from vkml.ir import DType, dtypes
from vkml.ir.scalar import Scalar, constant

_NODES = 41


@functools.lru_cache(maxsize=32)
def _coefficients(
    function: Callable[[float], float], low: float, high: float, dtype: DType
) -> tuple[float, ...]:
    """Those of the polynomials, without those that the type does not see."""
    turns = range(1, 2 * _NODES, 2)  # of π / 2 over the number of nodes
    values = [function((low + high) / 2 + (high - low) / 2 * _cosine(turn)) for turn in turns]
    found = [
        math.fsum(value * _cosine(turn * power) for turn, value in zip(turns, values, strict=True))
        * (2 if power else 1)
        / _NODES
        for power in range(_NODES)
    ]
    least = max(map(abs, found)) * (1e-18 if dtype == dtypes.FLOAT64 else 1e-10)
    return tuple(found[: max(at for at, factor in enumerate(found) if abs(factor) > least) + 1])


def _cosine(turn: int) -> float:
    """Of so many of π / 2 over the number of nodes, all digits of it, as recurrences would not have them."""
    turn %= 4 * _NODES
    turn = min(turn, 4 * _NODES - turn)
    if turn > _NODES:
        return -_cosine(2 * _NODES - turn)
    angle = math.pi / 2 / _NODES
    return math.cos(turn * angle) if 2 * turn < _NODES else math.sin((_NODES - turn) * angle)


def series(function: Callable[[float], float], low: float, high: float, x: Scalar) -> Scalar:
    """What a function is at x, by Clenshaw's recurrence.

    Args:
        function: computed by the host, with the digits of float64.
        low: the least x.
        high: the greatest.
        x: a form; what comes of it elsewhere is to be selected away.
    """
    first, *rest = _coefficients(function, low, high, x.dtype)
    at = (x * 2 - (low + high)) / (high - low)
    one = two = constant(0.0, x.dtype)
    for coefficient in reversed(rest):
        one, two = at * 2 * one - two + coefficient, one
    return at * one - two + first
