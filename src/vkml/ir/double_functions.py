"""Functions of float64 written out in simpler scalars, for devices that have them of float32 alone.

Errors are the largest found over a million numbers of all sizes, in units in the last place, where `fma`
rounds twice, as it does in NumPy's evaluation of forms.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from vkml.ir import scalar
from vkml.ir.dtypes import FLOAT64, INT64, UINT64
from vkml.ir.scalar import Scalar, fma, make, maximum, minimum, ordered, unary, view, where
from vkml.ir.scalar_functions import Expansion, polynomial

_LN_2_HIGH = float.fromhex("0x1.62e42fee00000p-1")
"""The first bits of log 2, so few that products with exponents are exact;"""
_LN_2_LOW = float.fromhex("0x1.a39ef35793c76p-33")
"""and what is left."""
_INTEGERS = 2.0**52
"""In the lowest bits of a number from here on an integer is a float64."""
_EXP = [1 / math.factorial(power) for power in range(13, -1, -1)]
"""eˣ for |x| ≤ log(2) / 2; what is left out is 4e-18."""
_LOG = [2 / (2 * power + 3) for power in range(10, -1, -1)]
"""(log m - 2 s) / s³ in s² for s = (m - 1) / (m + 1) and √½ ≤ m ≤ √2, but for 2e-18 of log m."""


def without_double_functions(results: Sequence[Scalar]) -> list[Scalar]:
    """The same scalars, made of operations that there are of float64 everywhere, as far as is known here."""
    if not any(part.dtype == FLOAT64 for part in ordered(results)):
        return list(results)
    found: dict[Scalar, Scalar] = {}
    for part in ordered(results):
        inputs = tuple(found[entry] for entry in part.inputs)
        same = part if inputs == part.inputs else make(part.operation, part.dtype, inputs, part.value)
        write = _FUNCTIONS.get(part.operation) if inputs and inputs[0].dtype == FLOAT64 else None
        made = None if write is None else write(*inputs)
        found[part] = same if made is None else made
    return [found[result] for result in results]


def _exponential(x: Scalar) -> Scalar:
    """1.2 units."""
    power = minimum(maximum(unary("rint", x * math.log2(math.e)), -1100.0), 1100.0)
    rest = fma(power, -_LN_2_LOW, fma(power, -_LN_2_HIGH, x))
    # Numbers next to 0 are less than any power of two that is normal: two factors.
    half = unary("rint", power * 0.5)
    made = polynomial(rest, _EXP) * _power_of_two(half) * _power_of_two(power - half)
    return where(x < -746.0, 0.0, where(x > 710.0, math.inf, made))


def _power_of_two(exponent: Scalar) -> Scalar:
    bits = scalar.binary("left_shift", view(exponent + (_INTEGERS + 1023), INT64), 52)
    return view(bits, FLOAT64)


def _logarithm(x: Scalar) -> Scalar:
    """0.9 units."""
    is_tiny = x < 2.0**-1022
    bits = view(where(is_tiny, x * 2.0**54, x), INT64)
    # x = 2ᵏ m with √½ ≤ m < √2; the exponent field of `moved` is that of 2ᵏ.
    moved = bits + (0x3FF0000000000000 - 0x3FE6A09E667F3BCD)
    field = moved & 0x7FF0000000000000
    rest = view(bits - field + 0x3FF0000000000000, FLOAT64) - 1
    biased = scalar.binary("right_shift", view(moved, UINT64), 52) | 0x4330000000000000
    power = view(biased, FLOAT64) - where(
        is_tiny, _INTEGERS + 1077, scalar.constant(_INTEGERS + 1023, FLOAT64)
    )
    s = rest / (rest + 2)
    # log m = 2 s + s R = f - s (f - R) for m = 1 + f, of which only the second part is rounded.
    square = s * s
    small = s * (rest - square * polynomial(square, _LOG))
    made = fma(power, _LN_2_HIGH, rest - (small - power * _LN_2_LOW))
    made = where(scalar.compare("equal", x, 0.0), -math.inf, where(x < 0, math.nan, made))
    return where(x < math.inf, made, x)


def _exponential_less_one(x: Scalar) -> Scalar:
    """2.1 units."""
    near = fma(x * x, polynomial(x, [1 / math.factorial(power) for power in range(19, 1, -1)]), x)
    is_near = scalar.absolute(x) < math.log(2)
    # That of -0 is -0, where the sum has lost the sign.
    near = where(scalar.compare("equal", x, 0.0), x, near)
    return where(is_near, near, _exponential(x) - 1)


def _logarithm_of_one_plus(x: Scalar) -> Scalar:
    """1.3 units."""
    whole = 1 + x
    # What the sum has rounded off changes the logarithm by as much of itself.
    made = _logarithm(whole) + (x - (whole - 1)) / whole
    made = where(scalar.compare("equal", whole, 1.0), x, made)
    return where((whole > 0) & (whole < math.inf), made, _logarithm(whole))


def _sigmoid(x: Scalar) -> Scalar:
    """2.2 units."""
    grown = _exponential(-scalar.absolute(x))
    return where(x < 0, grown, scalar.constant(1, FLOAT64)) / (1 + grown)


def _hyperbolic(x: Scalar, of_size: Scalar) -> Scalar:
    """An odd function known for |x|; 0 keeps its sign."""
    return where(scalar.compare("equal", x, 0.0), x, where(x < 0, -of_size, of_size))


def _tanh(x: Scalar) -> Scalar:
    """2.4 units."""
    size = scalar.absolute(x)
    grown = _exponential_less_one(2 * minimum(size, 20.0))
    return _hyperbolic(x, grown / (grown + 2))


def _sinh(x: Scalar) -> Scalar:
    """2.9 units."""
    size = scalar.absolute(x)
    grown = _exponential_less_one(minimum(size, 20.0))
    large = _exponential(size * 0.5)
    return _hyperbolic(x, where(size > 20.0, large * 0.5 * large, (grown + grown / (grown + 1)) * 0.5))


def _cosh(x: Scalar) -> Scalar:
    """2.9 units."""
    size = scalar.absolute(x)
    half, large = _exponential(minimum(size, 20.0)) * 0.5, _exponential(size * 0.5)
    return where(size > 20.0, large * 0.5 * large, half + 0.25 / half)


def _arctanh(x: Scalar) -> Scalar:
    """2.3 units."""
    size = scalar.absolute(x)
    return _hyperbolic(x, _logarithm_of_one_plus(2 * size / (1 - size)) * 0.5)


_FUNCTIONS: Mapping[str, Expansion] = {
    "arctanh": _arctanh,
    "cosh": _cosh,
    "exp": _exponential,
    "expm1": _exponential_less_one,
    "log": _logarithm,
    "log1p": _logarithm_of_one_plus,
    "sigmoid": _sigmoid,
    "sinh": _sinh,
    "tanh": _tanh,
}
