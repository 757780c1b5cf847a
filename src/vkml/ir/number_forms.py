"""Rounding to floats of 16 bits and fewer as scalar forms: numbers of float32 that the narrow type has."""

from __future__ import annotations

import math

from vkml.ir import scalar
from vkml.ir.dtypes import (
    BFLOAT16,
    FLOAT4E2M1,
    FLOAT8E4M3FNUZ,
    FLOAT8E5M2,
    FLOAT8E5M2FNUZ,
    FLOAT8S,
    FLOAT32,
    UINT32,
    DType,
    finfo,
)
from vkml.ir.scalar import Scalar, compare, constant, test, view, where

ROUNDED = (BFLOAT16, *FLOAT8S, FLOAT4E2M1)
"""Types that `rounded` knows."""
_SIGN, _SIZE, _QUIET = 0x80000000, 0x7FFFFFFF, 0x7FC00000
_FRACTION = 23
"""Bits of a float32 behind the point."""


def rounded(x: Scalar, dtype: DType, *, saturate: bool = True) -> Scalar:
    """The number of a type that is nearest to a float32, of two the even one, as float32.

    Args:
        x: a float32.
        dtype: one of `ROUNDED`.
        saturate: whether float8 keeps to its finite numbers; else what is beyond them becomes infinity, or
            NaN where the type has none. bfloat16 always has infinity, float4 never.
    """
    info = finfo(dtype)
    bits = view(x, UINT32)
    sign, size = bits & _SIGN, bits & _SIZE
    # Half of the last place that stays, less one bit where that is even: a carry goes into the exponent.
    dropped = _FRACTION - int(info.nmant)
    odd = scalar.binary("right_shift", size, dropped) & 1
    near = (size + ((1 << (dropped - 1)) - 1) + odd) & (_SIZE & ~((1 << dropped) - 1))
    if dtype == BFLOAT16:
        return view(sign | where(test("isnan", x), _QUIET, near), FLOAT32)
    magnitude = view(size, FLOAT32)
    # Numbers below the normal ones are multiples of the least; beside 2²³ of it float32 has no others.
    least = float(info.smallest_subnormal) * 2.0**_FRACTION
    is_small = magnitude < float(info.smallest_normal)
    found = where(is_small, (magnitude + least) - least, view(near, FLOAT32))
    greatest = float(info.max)
    beyond = math.inf if dtype == FLOAT8E5M2 else math.nan
    found = where(found > greatest, greatest if saturate or dtype == FLOAT4E2M1 else beyond, found)
    made = view(view(found, UINT32) | sign, FLOAT32)
    if dtype in (FLOAT8E4M3FNUZ, FLOAT8E5M2FNUZ):
        made = where(compare("equal", found, 0.0), 0.0, made)  # of the code of -0 they have made NaN
    if dtype == FLOAT4E2M1:
        return where(test("isnan", x), view(sign ^ _SIGN, FLOAT32), made)
    return where(test("isnan", x), x, made)


def power_of_two(x: Scalar, *, saturate: bool, round_mode: str) -> Scalar:
    """A number of float8e8m0, a power of two from 2⁻¹²⁷ to 2¹²⁷ without sign, for a float32.

    Args:
        x: its sign is ignored.
        saturate: whether what lies outside becomes the nearest power instead of NaN.
        round_mode: 'up', 'down' or 'nearest'.
    """
    size = view(x, UINT32) & _SIZE
    one = 1 << _FRACTION
    # What is added carries into the exponent where the fraction is to be rounded up.
    more = {"up": one - 1, "down": 0, "nearest": one >> 1}[round_mode]
    power = scalar.binary("right_shift", size + more, _FRACTION)
    # Below the normal numbers there is one power, 2⁻¹²⁷: half a normal one, which is the code 0.
    if round_mode == "up":
        power = where(size <= one >> 1, 0, power)
    elif round_mode == "nearest":
        power = where(size < (one >> 1) + (one >> 2), 0, power)
    limit, nothing = constant(254, UINT32), constant(_QUIET, UINT32)
    code = where(power > limit, limit, power)
    made = where(compare("equal", code, 0), one >> 1, scalar.binary("left_shift", code, _FRACTION))
    is_nan = size > (255 << _FRACTION)
    if not saturate:
        below = {
            "up": size <= one >> 2,
            "down": size < one >> 1,
            "nearest": size < (one >> 2) + (one >> 3),
        }[round_mode]
        is_nan = is_nan | (power > limit) | below
    return view(where(is_nan, nothing, made), FLOAT32)
