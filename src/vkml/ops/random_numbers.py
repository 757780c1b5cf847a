"""Distributions as scalar forms of a generator's words, which operators and random tensors draw by."""

from __future__ import annotations

import math

import numpy as np

from vkml.ir import scalar
from vkml.ir.dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, INT32, UINT32, DType
from vkml.ir.scalar import Scalar, argument, convert

_DIGITS = {FLOAT16: 11, BFLOAT16: 8}
"""Binary digits of floats of 16 bits; a uniform number of more could be rounded to 1."""


def wide_type(dtype: DType) -> DType:
    """The type in which numbers of a type are drawn."""
    return FLOAT64 if dtype == FLOAT64 else FLOAT32


def words_each(dtype: DType) -> int:
    """The words of which a uniform number of a type is made."""
    return 2 if dtype == FLOAT64 else 1


def uniform_form(dtype: DType) -> Scalar:
    """A number of [0, 1), of `words_each` words."""
    if dtype == FLOAT64:
        return _double(argument(0, UINT32), argument(1, UINT32))
    return _fraction(argument(0, UINT32), _DIGITS.get(dtype, 24))


def normal_forms(dtype: DType) -> tuple[Scalar, Scalar]:
    """Two numbers of twice `words_each` words, by the method of G. Box and M. Muller (1958)."""
    given = [argument(at, UINT32) for at in range(2 * words_each(dtype))]
    if dtype == FLOAT64:
        radius, turn = 1.0 - _double(given[0], given[1]), _double(given[2], given[3])
    else:
        radius, turn = _positive(given[0]), _fraction(given[1], 24)
    length = scalar.unary("sqrt", scalar.unary("log", radius) * -2.0)
    angle = turn * (2 * math.pi)
    return length * scalar.unary("cos", angle), length * scalar.unary("sin", angle)


def exponential_form(dtype: DType) -> Scalar:
    """A number of the exponential distribution of rate 1, of `words_each` words, above 0."""
    given = [argument(at, UINT32) for at in range(words_each(dtype))]
    fraction = 1.0 - _double(given[0], given[1]) if dtype == FLOAT64 else _positive(given[0])
    # Never 0: it may be divided by.
    return scalar.maximum(-scalar.unary("log", fraction), float(np.finfo(wide_type(dtype).storage).eps) / 2)


def _fraction(word: Scalar, digits: int) -> Scalar:
    """So many digits of a word as a number of [0, 1)."""
    return convert(convert(_shifted(word, 32 - digits), INT32), FLOAT32) * 2.0**-digits


def _positive(word: Scalar) -> Scalar:
    """A word as a number of (0, 1], as exact as float32 is near 0: logarithms are taken of it."""
    low = convert(convert((word & 0xFF), INT32), FLOAT32)
    return _fraction(word, 24) + (low + 1.0) * 2.0**-32


def _double(first: Scalar, second: Scalar) -> Scalar:
    """53 digits of two words as a number of [0, 1)."""
    high, low = (
        convert(convert(_shifted(word, shift), INT32), FLOAT64) for word, shift in ((first, 5), (second, 6))
    )
    return (high * 2.0**26 + low) * 2.0**-53


def _shifted(word: Scalar, bits: int) -> Scalar:
    return scalar.binary("right_shift", word, bits)
