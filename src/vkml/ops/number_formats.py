"""Encoding and decoding of the element types that NumPy lacks: bfloat16, float8, float4, small integers."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vkml.ir import dtypes
from vkml.ir.dtypes import DType
from vkml.ir.operator import Array
from vkml.ir.packing import pack, signed, unpack


@dataclass(frozen=True)
class MiniFloat:
    """A float of 8 bits or fewer: sign, exponent, mantissa, and what its topmost codes mean."""

    exponent_bits: int
    mantissa_bits: int
    bias: int
    specials: str
    """'ieee': top exponent is infinity or NaN; 'fn': all-ones is NaN; 'fnuz': -0 is NaN; 'none': neither."""

    @property
    def sign_bit(self) -> int:
        return 1 << (self.exponent_bits + self.mantissa_bits)

    @property
    def nan_code(self) -> int:
        """The code that NaN becomes: the quiet one; -0 for types without NaN, as ml_dtypes has it."""
        quiet = self.sign_bit - (1 << self.mantissa_bits) // 2
        return {"ieee": quiet, "fn": self.sign_bit - 1, "fnuz": self.sign_bit, "none": self.sign_bit}[
            self.specials
        ]


MINI_FLOATS = {
    dtypes.FLOAT8E4M3FN: MiniFloat(4, 3, 7, "fn"),
    dtypes.FLOAT8E4M3FNUZ: MiniFloat(4, 3, 8, "fnuz"),
    dtypes.FLOAT8E5M2: MiniFloat(5, 2, 15, "ieee"),
    dtypes.FLOAT8E5M2FNUZ: MiniFloat(5, 2, 16, "fnuz"),
    dtypes.FLOAT4E2M1: MiniFloat(2, 1, 1, "none"),
}

CONVERTIBLE = (
    *MINI_FLOATS,
    dtypes.BFLOAT16,
    dtypes.FLOAT8E8M0,
    *(dtype for dtype in dtypes.ALL if dtype.is_integer and dtype.bits < 8),
)
"""The element types that `encode` and `decode` know; the native ones need neither."""


def decode(array: Array, dtype: DType, shape: Sequence[int] | None = None) -> Array:
    """The values behind raw bits: float32 for floats, int8 or uint8 for integers below 8 bits.

    Args:
        array: in the storage type; flat and packed for types below 8 bits.
        dtype: what the bits mean.
        shape: the tensor's shape, needed for packed types only.
    """
    if dtype.bits < 8:
        count = array.size * (8 // dtype.bits) if shape is None else math.prod(shape)
        array = unpack(array, count, dtype.bits).reshape((count,) if shape is None else tuple(shape))
    if dtype == dtypes.BFLOAT16:
        return np.left_shift(array.astype(np.uint32), 16).view(np.float32)
    if dtype.kind == "i":
        return signed(array, dtype.bits)
    if dtype.kind == "u":
        return array
    if dtype == dtypes.FLOAT8E8M0:
        return np.take(_powers_of_two(), array)
    return np.take(_decoded(MINI_FLOATS[dtype]), array)


def encode(values: Array, dtype: DType, *, saturate: bool = True, round_mode: str = "up") -> Array:
    """Raw bits of numbers rounded to `dtype`; flat and packed for types below 8 bits.

    Args:
        values: floats, integers or bools.
        dtype: one of `CONVERTIBLE`.
        saturate: whether what is too large becomes the largest finite number instead of infinity or NaN.
        round_mode: 'up', 'down' or 'nearest', for float8e8m0 only.
    """
    with np.errstate(all="ignore"):
        if dtype == dtypes.BFLOAT16:
            return _encode_bfloat16(values.astype(np.float32))
        if dtype.is_integer:
            return pack(values.astype(np.int64).astype(np.uint8), dtype.bits)
        wide = values.astype(np.float64)
        if dtype == dtypes.FLOAT8E8M0:
            return _encode_scale(wide, saturate, round_mode)
        bits = _encode_mini(wide, MINI_FLOATS[dtype], saturate)
    return pack(bits, dtype.bits) if dtype.bits < 8 else bits


def _encode_bfloat16(values: Array) -> Array:
    bits = np.asarray(values, order="C").view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    # A NaN must not round to infinity: keep its sign, set the quiet bit.
    return np.where(np.isnan(values), (bits >> 16) | 0x40, rounded).astype(np.uint16)


def _encode_mini(values: Array, form: MiniFloat, saturate: bool) -> Array:
    finite = _positive_finite(form)
    size = np.abs(values)
    _, exponent = np.frexp(size)
    # The spacing of representable numbers around each value; subnormals share the smallest.
    quantum = np.ldexp(1.0, np.maximum(exponent - 1, 1 - form.bias) - form.mantissa_bits)
    rounded = np.rint(size / quantum) * quantum
    code = np.searchsorted(finite, np.minimum(rounded, finite[-1])).astype(np.uint8)
    if not saturate and form.specials != "none":
        overflow = form.nan_code if form.specials != "ieee" else form.sign_bit - (1 << form.mantissa_bits)
        code = np.where(rounded > finite[-1], overflow, code)
    code = np.where(np.isnan(values), form.nan_code, code)
    negative = np.signbit(values)
    if form.specials == "fnuz":
        # There is no -0, and the sign bit alone is NaN.
        negative = negative & (code != 0)
    return np.where(negative, code | form.sign_bit, code).astype(np.uint8)


def _encode_scale(values: Array, saturate: bool, round_mode: str) -> Array:
    """float8e8m0: a power of two with exponent -127 to 127; code 255 is NaN."""
    fraction, exponent = np.frexp(np.abs(values))
    # |values| = fraction * 2^exponent with fraction in [0.5, 1): the power below is 2^(exponent - 1).
    is_above = {"up": fraction > 0.5, "down": np.zeros(values.shape, np.bool_), "nearest": fraction >= 0.75}[
        round_mode
    ]
    power = np.where(values == 0, -(2**20), exponent - 1 + is_above)
    power = np.where(np.isinf(values), 2**20, power)
    code = np.clip(power, -127, 127) + 127
    if not saturate:
        code = np.where((power < -127) | (power > 127), 255, code)
    return np.where(np.isnan(values), 255, code).astype(np.uint8)


@functools.cache
def _decoded(form: MiniFloat) -> Array:
    """The float32 value of every code."""
    codes = np.arange(2 * form.sign_bit)
    size = codes & (form.sign_bit - 1)
    exponent, mantissa = size >> form.mantissa_bits, size & ((1 << form.mantissa_bits) - 1)
    scale = np.ldexp(1.0, np.maximum(exponent, 1) - form.bias - form.mantissa_bits)
    values = (mantissa + np.where(exponent > 0, 1 << form.mantissa_bits, 0)) * scale
    if form.specials == "ieee":
        top = exponent == (1 << form.exponent_bits) - 1
        values = np.where(top, np.where(mantissa == 0, np.inf, np.nan), values)
    elif form.specials == "fn":
        values = np.where(size == form.sign_bit - 1, np.nan, values)
    values = np.where(codes >= form.sign_bit, -values, values)
    if form.specials == "fnuz":
        values = np.where(codes == form.sign_bit, np.nan, values)
    return np.asarray(values, np.float32)


@functools.cache
def _positive_finite(form: MiniFloat) -> Array:
    """The finite values of non-negative codes, ascending with the code."""
    values = _decoded(form)[: form.sign_bit].astype(np.float64)
    finite: Array = values[np.isfinite(values)]
    return finite


@functools.cache
def _powers_of_two() -> Array:
    exponents: Any = np.arange(256) - 127
    return np.where(exponents == 128, np.nan, np.ldexp(1.0, np.minimum(exponents, 127))).astype(np.float32)
