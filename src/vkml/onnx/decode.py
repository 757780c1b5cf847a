"""Values of the element types that NumPy does not have: bfloat16, float8, and types below 8 bits."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from vkml.errors import InvalidArgument
from vkml.ir import dtypes
from vkml.ir.dtypes import DType
from vkml.ir.packing import signed, unpack

Array = np.ndarray[Any, Any]


def decode(array: Array, dtype: DType, shape: Sequence[int]) -> Array:
    """The values that `array`, in the storage of `dtype`, stands for.

    Args:
        array: Storage as `vkml.ir.Constant` holds it: of `shape`, or flat and packed for types below 8 bits.
        dtype: The ONNX element type.
        shape: The tensor's shape.

    Returns:
        An array of `shape`: float32 for bfloat16, float8 and float4; int8 for int4 and int2; uint8 for uint4
        and uint2; `array` itself for the types that NumPy has.

    Example:
        >>> decode(np.array([0x3FC0], np.uint16), dtypes.BFLOAT16, (1,))
        array([1.5], dtype=float32)
    """
    if dtype.bits < 8:
        codes = unpack(array, math.prod(shape), dtype.bits).reshape(tuple(shape))
        if dtype.is_float:
            return _table(dtype)[codes]
        return signed(codes, dtype.bits) if dtype.kind == "i" else codes
    if dtype == dtypes.BFLOAT16:
        return (array.astype(np.uint32) << np.uint32(16)).view(np.float32).reshape(tuple(shape))
    if dtype.is_native:
        return array
    return _table(dtype)[array]


_FORMATS = {
    # name: (exponent bits, mantissa bits, exponent bias, special values)
    "float8e4m3fn": (4, 3, 7, "one nan"),
    "float8e4m3fnuz": (4, 3, 8, "negative zero is nan"),
    "float8e5m2": (5, 2, 15, "ieee"),
    "float8e5m2fnuz": (5, 2, 16, "negative zero is nan"),
    "float4e2m1": (2, 1, 1, "none"),
}


@functools.cache
def _table(dtype: DType) -> Array:
    """The value of each code of a small float type, from the definition of its format."""
    if dtype == dtypes.FLOAT8E8M0:
        # A power of two without sign; the highest code is NaN. (OCP Microscaling Formats, section 5.4.1.)
        values = [math.ldexp(1.0, code - 127) for code in range(255)] + [math.nan]
    elif dtype.name in _FORMATS:
        values = [_value(code, *_FORMATS[dtype.name]) for code in range(1 << dtype.bits)]
    else:
        raise InvalidArgument(f"{dtype.name} is no small float type")
    table = np.array(values, np.float32)
    table.flags.writeable = False
    return table


def _value(code: int, exponent_bits: int, mantissa_bits: int, bias: int, special: str) -> float:
    sign = -1.0 if code >> (exponent_bits + mantissa_bits) else 1.0
    exponent = code >> mantissa_bits & (1 << exponent_bits) - 1
    mantissa = code & (1 << mantissa_bits) - 1
    is_top = exponent == (1 << exponent_bits) - 1
    if special == "ieee" and is_top:
        return math.nan if mantissa else sign * math.inf
    if special == "one nan" and is_top and mantissa == (1 << mantissa_bits) - 1:
        return math.nan
    if special == "negative zero is nan" and sign < 0 and exponent == 0 and mantissa == 0:
        return math.nan
    if exponent == 0:
        return sign * math.ldexp(mantissa, 1 - bias - mantissa_bits)
    return sign * math.ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits)
