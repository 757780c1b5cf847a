"""Tensors of types below 8 bits at a session's border: outside an element a byte, inside packed."""

from __future__ import annotations

from typing import Any

import numpy as np

from vkml.errors import InvalidArgument
from vkml.ir import TensorType, Value
from vkml.ir.dtypes import DType
from vkml.ir.packing import pack, signed, unpack

Array = np.ndarray[Any, Any]


def bounds(dtype: DType) -> tuple[int, int]:
    """Least and greatest number outside: an integer's own, a float's code as an unsigned integer."""
    if dtype.kind == "i":
        return -(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1
    return 0, (1 << dtype.bits) - 1


def check_range(value: Value, array: Array) -> None:
    """`InvalidArgument` for numbers that the type does not have: packing would drop their high bits."""
    dtype = value.type.dtype
    least, most = bounds(dtype)
    if array.size and not (least <= array.min() and array.max() <= most):
        raise InvalidArgument(
            f"input '{value.name}' is {dtype.name}, an element of which is {describe(dtype)}; there are "
            f"numbers from {array.min()} to {array.max()}"
        )


def describe(dtype: DType) -> str:
    """What an element is outside: ``an int8 from -8 to 7``."""
    least, most = bounds(dtype)
    what = "the code as " if dtype.is_float else ""
    article = "an" if dtype.unpacked.name.startswith("i") else "a"
    return f"{what}{article} {dtype.unpacked.name} from {least} to {most}"


def packed(dtype: DType, array: Array) -> Array:
    """A checked array as programs take it: flat and packed where the type is."""
    return pack(array, dtype.bits) if dtype.is_packed else array


def unpacked(type_: TensorType, array: Array) -> Array:
    """What a program made, in the tensor's shape; of packed elements int8 or uint8 numbers, or codes."""
    if not type_.dtype.is_packed:
        return array
    elements = unpack(array, type_.elements, type_.dtype.bits).reshape(type_.dims)
    return signed(elements, type_.dtype.bits) if type_.dtype.kind == "i" else elements
