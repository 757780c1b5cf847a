"""Functions of one element written out in simpler scalars, for back ends that lack them.

Errors are the largest found over every 509th float32, in units in the last place, where the simpler functions
have those of `cpu/native/mathematics.py`. Special cases are those of NumPy. Coefficients: least squares at
Chebyshev nodes, reweighted until the relative error is level; that error stands beside them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from vkml.ir import scalar
from vkml.ir.dtypes import BOOL, FLOAT32, FLOAT64, INT32, INT64, UINT64
from vkml.ir.scalar import Scalar, convert, fma, maximum, minimum, unary, view, where

Expansion = Callable[..., "Scalar | None"]

_ARCSIN = (0.03756523378447549, 0.014402584195749968, 0.03181761702103936, 0.04451571962969146,
           0.07500510921158404, 0.16666659871821451)  # fmt: skip
"""(arcsin x - x) / x³ in x² for |x| ≤ 1/2; 2.8e-10."""
_ARCTAN = (-0.06083441625005374, 0.10595996698955959, -0.1424384803645664, 0.19998489395671487,
           -0.33333315504481925)  # fmt: skip
"""(arctan x - x) / x³ in x² for |x| ≤ √2 - 1; 6.6e-10."""
_LOG2 = (0.2829090176793634, 0.319904912233937, 0.41220927622160564, 0.5770779420815091, 0.9617966941144345,
         2.8853900817778495)  # fmt: skip
"""log2 m / s in s² for s = (m - 1) / (m + 1) and √½ ≤ m ≤ √2; 2.7e-14."""
_EXP2 = (1.5201918170389515e-05, 0.0001546929148232845, 0.0013333922580135143, 0.009618027252551205,
         0.055504103534255264, 0.24022651198166786, 0.693147180728456, 0.999999999961681)  # fmt: skip
"""2ˣ for |x| ≤ 1/2; 4.0e-11."""
_SMALL = 2.0**-12
"""Up to here x is the float32 nearest to odd functions of slope 1."""


def expansion(of: Scalar) -> Scalar | None:
    """The same value made of simpler scalars; None where nothing simpler is known."""
    x = of.inputs[0] if of.inputs else of
    if x.dtype == BOOL:
        write = _OF_BOOLS.get(of.operation)
    elif x.dtype.is_integer:
        write = _OF_INTEGERS.get(of.operation)
    else:
        write = _OF_FLOATS.get(of.operation) or (
            _OF_SINGLES.get(of.operation) if x.dtype == FLOAT32 else None
        )
    return write(*of.inputs) if write is not None else None


def polynomial(x: Scalar, coefficients: Sequence[float]) -> Scalar:
    """Horner's rule, the highest power first."""
    value = scalar.constant(coefficients[0], x.dtype)
    for coefficient in coefficients[1:]:
        value = fma(value, x, coefficient)
    return value


def _odd(x: Scalar, of_size: Scalar) -> Scalar:
    """An odd function of slope 1 at 0, known for |x|."""
    return where(scalar.absolute(x) < _SMALL, x, where(x < 0, -of_size, of_size))


# -- integers --------------------------------------------------------------------------------------------


def _integer_fmod(x: Scalar, y: Scalar) -> Scalar:
    return where(scalar.compare("equal", y, 0), 0, x - x / y * y)


def _integer_mod(x: Scalar, y: Scalar) -> Scalar:
    rest = scalar.binary("fmod", x, y)
    if x.dtype.kind == "u":
        return rest
    is_other = ((rest ^ y) < 0) & scalar.compare("not_equal", rest, 0)
    return where(is_other, rest + y, rest)


def _integer_sign(x: Scalar) -> Scalar:
    return minimum(x, 1) if x.dtype.kind == "u" else minimum(maximum(x, -1), 1)


def _unsigned_absolute(x: Scalar) -> Scalar | None:
    return x if x.dtype.kind == "u" else None


def _relu(x: Scalar) -> Scalar:
    return x if x.dtype.kind == "u" else maximum(x, 0)


_OF_INTEGERS: Mapping[str, Expansion] = {
    "absolute": _unsigned_absolute,
    "fmod": _integer_fmod,
    "mod": _integer_mod,
    "relu": _relu,
    "sign": _integer_sign,
}
_OF_BOOLS: Mapping[str, Expansion] = {
    "equal": lambda x, y: ~(x ^ y),
    "not_equal": lambda x, y: x ^ y,
    "less": lambda x, y: ~x & y,
    "less_equal": lambda x, y: ~x | y,
    "greater": lambda x, y: x & ~y,
    "greater_equal": lambda x, y: x | ~y,
    "minimum": lambda x, y: x & y,
    "maximum": lambda x, y: x | y,
}


# -- floats ----------------------------------------------------------------------------------------------


def _mod(x: Scalar, y: Scalar) -> Scalar:
    """The remainder with the divisor's sign, also where it is 0."""
    rest = scalar.binary("fmod", x, y)
    zero = where(y < 0, scalar.constant(-0.0, x.dtype), 0.0)
    moved = where((rest < 0) ^ (y < 0), rest + y, rest)
    return where(scalar.compare("equal", rest, 0.0), zero, moved)


def _is(number: float) -> Expansion:
    return lambda x: scalar.compare("equal", x, number)


_OF_FLOATS: Mapping[str, Expansion] = {"mod": _mod, "isposinf": _is(math.inf), "isneginf": _is(-math.inf)}


def _tan(x: Scalar) -> Scalar:
    """3.2 units."""
    return unary("sin", x) / unary("cos", x)


def _arcsin_of_size(size: Scalar) -> tuple[Scalar, Scalar]:
    """Whether |x| > 1/2, and then arcsin √((1 - |x|) / 2), else arcsin |x|; NaN beyond 1."""
    is_large = size > 0.5
    square = where(is_large, fma(size, -0.5, 0.5), size * size)
    root = where(is_large, unary("sqrt", square), size)
    return is_large, fma(polynomial(square, _ARCSIN) * square, root, root)


def _arcsin(x: Scalar) -> Scalar:
    is_large, part = _arcsin_of_size(scalar.absolute(x))
    return _odd(x, where(is_large, fma(part, -2.0, math.pi / 2), part))


def _arccos(x: Scalar) -> Scalar:
    is_large, part = _arcsin_of_size(scalar.absolute(x))
    # π / 2 in two parts, of which the second is what rounding takes from the first.
    low = math.pi / 2 - scalar.constant(math.pi / 2, FLOAT32).value
    near = math.pi / 2 - (where(x < 0, -part, part) - low)
    twice = part + part
    return where(is_large, where(x < 0, math.pi - (twice - 2 * low), twice), near)


def _arctan(x: Scalar) -> Scalar:
    size = scalar.absolute(x)
    is_large, is_middle = size > 1 + math.sqrt(2), size > math.sqrt(2) - 1
    numerator = where(is_large, -1.0, where(is_middle, size - 1, size))
    denominator = where(is_large, size, where(is_middle, size + 1, 1.0))
    near = numerator / denominator
    square = near * near
    none = scalar.constant(0.0, FLOAT32)
    start = where(is_large, math.pi / 2, where(is_middle, math.pi / 4, none))
    return _odd(x, start + fma(polynomial(square, _ARCTAN) * square, near, near))


def _half_exponential(size: Scalar) -> Scalar:
    """Half of e^size, which itself may be too large."""
    root = unary("exp", size * 0.5)
    return root * 0.5 * root


def _sinh(x: Scalar) -> Scalar:
    size = scalar.absolute(x)
    grown = unary("expm1", minimum(size, 20))
    return _odd(x, where(size > 20, _half_exponential(size), (grown + grown / (grown + 1)) * 0.5))


def _cosh(x: Scalar) -> Scalar:
    size = scalar.absolute(x)
    half = unary("exp", minimum(size, 20)) * 0.5
    return where(size > 20, _half_exponential(size), half + 0.25 / half)


_LN_2 = math.log(2)


def _arcsinh(x: Scalar) -> Scalar:
    size = scalar.absolute(x)
    near = minimum(size, 4096)
    square = near * near
    value = unary("log1p", near + square / (1 + unary("sqrt", square + 1)))
    return _odd(x, where(size > 4096, unary("log", size) + _LN_2, value))


def _arccosh(x: Scalar) -> Scalar:
    above = minimum(x, 4096) - 1
    near = unary("log1p", above + unary("sqrt", above * above + 2 * above))
    return where(x < 1, math.nan, where(x > 4096, unary("log", x) + _LN_2, near))


def _arctanh(x: Scalar) -> Scalar:
    size = scalar.absolute(x)
    return _odd(x, unary("log1p", 2 * size / (1 - size)) * 0.5)


def _power(x: Scalar, y: Scalar) -> Scalar:
    """2^(y log2 |x|) in float64, whose rounding to float32 is the only error to be seen; then the sign."""
    size = convert(scalar.absolute(x), FLOAT64)
    value = convert(_exp2(convert(y, FLOAT64), size), FLOAT32)
    is_integral = scalar.compare("equal", unary("floor", y), y)
    half = y * 0.5
    is_odd = is_integral & scalar.compare("not_equal", unary("floor", half), half)
    value = where(is_odd & (view(x, INT32) < 0), -value, value)
    value = where((x < 0) & ~is_integral & (x > -math.inf), math.nan, value)
    return where(scalar.compare("equal", y, 0.0) | scalar.compare("equal", x, 1.0), 1.0, value)


def _exp2(exponent: Scalar, size: Scalar) -> Scalar:
    """size^exponent for a float32 ≥ 0, infinity and NaN among them, and an exponent other than 0."""
    bits = view(size, INT64)
    # size = 2ᵏ m with √½ ≤ m < √2; the exponent field of `moved` is that of 2ᵏ.
    root_half = 0x3FE6A09E667F3BCD
    moved = bits + (0x3FF0000000000000 - root_half)
    field = scalar.constant(0x7FF0000000000000, INT64)
    power = view(bits - (moved & field) + 0x3FF0000000000000, FLOAT64)
    # In the lowest bits of 2⁵² an integer is a float64.
    shifted = scalar.binary("right_shift", view(moved, UINT64), 52)
    biased = shifted | scalar.constant(0x4330000000000000, UINT64)
    whole = view(biased, FLOAT64) - (2.0**52 + 1023)
    s = (power - 1) / (power + 1)
    logarithm = whole + s * polynomial(s * s, _LOG2)
    logarithm = where(scalar.compare("equal", size, 0.0), -math.inf, logarithm)
    logarithm = where(size < math.inf, logarithm, size)
    # Beyond ±2⁶⁰ exponents give 0, 1 or infinity like this one; infinity times log 1 would be NaN.
    limited = minimum(maximum(exponent, -(2.0**60)), 2.0**60)
    product = minimum(maximum(limited * logarithm, -200.0), 200.0)
    nearest = unary("rint", product)
    scale = scalar.binary("left_shift", view(nearest + (2.0**52 + 1023), INT64), 52)
    return polynomial(product - nearest, _EXP2) * view(scale, FLOAT64)


_OF_SINGLES: Mapping[str, Expansion] = {
    "arccos": _arccos,
    "arccosh": _arccosh,
    "arcsin": _arcsin,
    "arcsinh": _arcsinh,
    "arctan": _arctan,
    "arctanh": _arctanh,
    "cosh": _cosh,
    "power": _power,
    "sinh": _sinh,
    "tan": _tan,
}
