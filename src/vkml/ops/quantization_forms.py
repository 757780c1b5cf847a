"""What quantising and dequantising do to one element, as scalar forms."""

from __future__ import annotations

from vkml.ir import scalar
from vkml.ir.dtypes import BFLOAT16, FLOAT16, FLOAT32, INT32, DType, integer_bounds
from vkml.ir.number_forms import rounded
from vkml.ir.scalar import Scalar, convert


def quantized_form(
    x: Scalar,
    scale: Scalar,
    zero: Scalar | None,
    target: DType,
    *,
    precision: DType = FLOAT32,
    saturate: bool = True,
) -> Scalar:
    """An element divided by its scale, rounded, plus its zero point, as the nearest number of `target`.

    Args:
        x: a float or an integer.
        scale: a float.
        zero: of the type `target`; None for 0.
        target: an integer type or a small float.
        precision: of the division, a float type.
        saturate: whether a float8 keeps to its finite numbers.
    """
    quotient = _as(_as(convert(x, FLOAT32), precision) / _as(scale, precision), precision)
    if not target.is_integer:
        return rounded(quotient if zero is None else quotient + zero, target, saturate=saturate)
    least, most = integer_bounds(target)
    steps = scalar.unary("rint", quotient)
    steps = steps + (0.0 if zero is None else convert(zero, FLOAT32))
    # So that NaN, which is not greater, becomes the least.
    steps = scalar.where(steps > float(least), steps, float(least))
    steps = scalar.where(steps < float(most), steps, float(most))
    return convert(convert(steps, INT32), target)


def dequantized_form(x: Scalar, scale: Scalar, zero: Scalar | None, target: DType) -> Scalar:
    """An element less its zero point, times its scale.

    Args:
        x: of any quantised type.
        scale: a float.
        zero: of the type of `x`; None for 0.
        target: a float type.
    """
    if x.dtype.is_float:
        steps = x if zero is None else x - zero
    else:
        steps = convert(x, INT32)
        steps = convert(steps if zero is None else steps - convert(zero, INT32), FLOAT32)
    return _as(steps * scale, target)


def _as(x: Scalar, dtype: DType) -> Scalar:
    """A float32 rounded to what a float type has."""
    if dtype == FLOAT16:
        return scalar.round_to_half(x)
    return rounded(x, BFLOAT16) if dtype == BFLOAT16 else x
