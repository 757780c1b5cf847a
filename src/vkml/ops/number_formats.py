"""Conversion of numbers to float8 and smaller floats where ONNX's rules are not those of ml_dtypes."""

from __future__ import annotations

import numpy as np

from vkml.ir import dtypes
from vkml.ir.dtypes import DType
from vkml.ir.operator import Array

SATURATING = frozenset({dtypes.FLOAT8E4M3FN, dtypes.FLOAT8E4M3FNUZ, dtypes.FLOAT8E5M2, dtypes.FLOAT8E5M2FNUZ})
"""Types with NaN or infinity, which Cast's `saturate` keeps numbers from becoming."""

_LEAST, _GREATEST, _NAN = 0, 254, 255
"""Codes of float8e8m0: 2⁻¹²⁷, 2¹²⁷ and NaN."""


def limited(values: Array, dtype: DType) -> Array:
    """Numbers that `dtype` would turn into infinity or NaN as the finite ones that are nearest; NaN stays.

    Args:
        values: floats, integers or bools.
        dtype: one of `SATURATING`.
    """
    wide = values if values.dtype.kind == "f" else values.astype(np.float64)
    info = dtypes.finfo(dtype)
    greatest = wide.dtype.type(info.max)
    return np.asarray(np.clip(wide, -greatest, greatest))


def powers_of_two(values: Array, *, saturate: bool, round_mode: str) -> Array:
    """Numbers as float8e8m0: powers of two with exponents from -127 to 127, without sign.

    Args:
        values: floats, integers or bools; their sign is ignored.
        saturate: whether what lies outside becomes the nearest power instead of NaN.
        round_mode: 'up', 'down' or 'nearest'.
    """
    fraction, exponent = np.frexp(np.abs(values.astype(np.float64)))
    # |values| = fraction * 2^exponent with fraction in [0.5, 1): the power below is 2^(exponent - 1).
    is_above = {"up": fraction > 0.5, "down": np.zeros(values.shape, np.bool_), "nearest": fraction >= 0.75}[
        round_mode
    ]
    power = np.where(values == 0, -(2**20), exponent - 1 + is_above)
    code = np.where(np.isinf(fraction), 2**20, power) + 127
    if not saturate:
        code = np.where((code < _LEAST) | (code > _GREATEST), _NAN, code)
    code = np.clip(code, _LEAST, _GREATEST) if saturate else code
    code = np.where(np.isnan(fraction), _NAN, code)
    return code.astype(np.uint8).view(dtypes.FLOAT8E8M0.storage)
