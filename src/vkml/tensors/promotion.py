"""Element types of results, by PyTorch's rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from vkml.ir import DType, dtypes
from vkml.ir.size import Size

if TYPE_CHECKING:
    from vkml.tensors.tensor import Tensor

_default = dtypes.FLOAT32


def get_default_dtype() -> DType:
    """The element type of numbers with a fraction where none is stated."""
    return _default


def set_default_dtype(dtype: DType) -> None:
    """Changes the element type of numbers with a fraction where none is stated.

    Args:
        dtype: float32, float64, float16 or bfloat16.

    Raises:
        TypeError: it is no floating-point type.
    """
    global _default
    if not isinstance(dtype, DType) or not dtype.is_float:
        raise TypeError(f"only floating-point types can be the default, not {dtype!r}")
    _default = dtype


def category(dtype: DType) -> int:
    """0 for bool, 1 for integers, 2 for floats, 3 for complex numbers."""
    return 0 if dtype == dtypes.BOOL else 1 if dtype.is_integer else 3 if dtype.is_complex else 2


def promote_types(one: DType, other: DType) -> DType:
    """The smallest type that holds the values of both, as `torch.promote_types`.

    Args:
        one: a type.
        other: another.
    """
    if one == other:
        return one
    if one.is_complex or other.is_complex:
        return _complex_of(*sorted((one, other), key=category))
    if category(one) != category(other):
        return max(one, other, key=category)
    if one.is_float:
        # Half of a kind each: neither holds the other's.
        return max((one, other), key=lambda d: d.bits) if one.bits != other.bits else dtypes.FLOAT32
    return dtypes.from_numpy(np.promote_types(one.storage, other.storage))


def _complex_of(lower: DType, higher: DType) -> DType:
    """The complex type that holds the values of another, complex type and those of any."""
    return dtypes.COMPLEX128 if lower in (dtypes.FLOAT64, dtypes.COMPLEX128) else higher


def default_complex() -> DType:
    """The type of complex numbers where none is stated: that of parts of the default type."""
    return dtypes.complex_of(_default)


def checked(dtype: DType | None) -> DType | None:
    """An element type, or None for none.

    Raises:
        TypeError: it is something else.
    """
    if dtype is None or isinstance(dtype, DType):
        return dtype
    raise TypeError(f"a dtype is one of vkml's, as vkml.float32 is, not {dtype!r}")


def number_type(value: bool | int | float | complex) -> DType:
    """The type that a number of the program has by itself."""
    if isinstance(value, bool | np.bool_):
        return dtypes.BOOL
    if isinstance(value, int | np.integer | Size):
        return dtypes.INT64
    return default_complex() if isinstance(value, complex | np.complexfloating) else _default


def result_type(*operands: Any) -> DType:
    """The type in which tensors and numbers are computed with each other, as `torch.result_type`.

    Tensors with axes decide; single elements and numbers of the program only where they are of a higher
    category.

    Args:
        *operands: tensors, arrays and numbers.
    """
    levels: list[DType | None] = [None, None, None]
    for operand in operands:
        type_ = getattr(operand, "tensor_type", None)
        if type_ is not None:
            dtype, shape = type_.dtype, type_.shape
        elif isinstance(operand, np.ndarray):
            dtype, shape = dtypes.from_numpy(operand.dtype), operand.shape
        else:
            dtype, shape = number_type(operand), None
        level = 2 if shape is None else 0 if shape else 1
        before = levels[level]
        levels[level] = dtype if before is None else promote_types(before, dtype)
    found: DType | None = None
    for dtype in levels:
        if dtype is not None and (found is None or category(dtype) > category(found)):
            # Complex beside floats with axes: of parts of their type.
            found = dtypes.complex_of(found) if dtype.is_complex and found and found.is_float else dtype
    assert found is not None
    return found


def common_type(tensors: Sequence[Tensor]) -> DType:
    """The type of tensors that are joined."""
    return result_type(*tensors)
