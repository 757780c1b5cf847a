"""What element types can hold, as `torch.finfo` and `torch.iinfo` say it."""

from __future__ import annotations

from typing import Any

from vkml.ir import DType, dtypes


class finfo:
    """What floats of a type can be, or the parts of complex numbers.

    Args:
        type: of floats or complex numbers; the default type where left out.

    Attributes:
        bits: of an element.
        eps: the difference between 1 and the next number.
        max: the greatest number.
        min: the least one.
        smallest_normal: the smallest above 0 of full precision.
        tiny: the same.
        resolution: the power of ten of the last certain digit.
        dtype: the type, that of the parts of complex numbers.
    """

    def __init__(self, type: DType | None = None) -> None:
        from vkml.tensors.promotion import get_default_dtype

        kind = type or get_default_dtype()
        if not isinstance(kind, DType) or not kind.is_inexact:
            raise TypeError(f"finfo is of floating-point types, not of {type!r}")
        self.dtype = dtypes.real_of(kind)
        found: Any = dtypes.finfo(self.dtype)
        self.bits = self.dtype.bits
        self.eps, self.max, self.min = float(found.eps), float(found.max), float(found.min)
        self.smallest_normal = self.tiny = float(found.smallest_normal)
        self.resolution = float(found.resolution)

    def __repr__(self) -> str:
        return f"finfo(eps={self.eps}, max={self.max}, min={self.min}, dtype={self.dtype.numpy_name})"


class iinfo:
    """What integers of a type can be.

    Args:
        type: of integers.

    Attributes:
        bits: of an element.
        max: the greatest number.
        min: the least one.
        dtype: the type.
    """

    def __init__(self, type: DType) -> None:
        if not isinstance(type, DType) or not type.is_integer:
            raise TypeError(f"iinfo is of integer types, not of {type!r}")
        self.dtype, self.bits = type, type.bits
        self.min, self.max = dtypes.integer_bounds(type)

    def __repr__(self) -> str:
        return f"iinfo(max={self.max}, min={self.min}, dtype={self.dtype.numpy_name})"
