"""Arrays as files and devices hold them: flat bytes, in which elements of fewer than 8 bits share some.

The first of the elements that share a byte is in its lowest bits, as ONNX has it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from vkml.errors import InvalidArgument
from vkml.ir.dtypes import DType

Array = np.ndarray[Any, Any]


def to_bytes(array: Array, dtype: DType) -> Array:
    """The bytes of an array, flat, least significant first; a copy only where the array lies otherwise.

    Args:
        array: in the storage of `dtype`.
        dtype: any but string.
    """
    if dtype.is_packed:
        return _pack(array.reshape(-1).view(np.uint8), dtype.bits)
    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return np.asarray(little.reshape(-1).view(np.uint8))


def from_bytes(raw: Array, dtype: DType, shape: Sequence[int]) -> Array:
    """The array that `to_bytes` was given; one that shares the bytes where none holds several elements.

    Raises:
        InvalidArgument: there are more bytes or fewer than the elements take.
    """
    count = math.prod(shape)
    if raw.size != dtype.bytes_for(count):
        raise InvalidArgument(
            f"{count} elements of {dtype.name} take {dtype.bytes_for(count)} bytes, there are {raw.size}"
        )
    flat = unpacked(raw, dtype.bits, count) if dtype.is_packed else raw
    return flat.view(dtype.storage).reshape(tuple(shape))


def _pack(codes: Array, bits: int) -> Array:
    lanes = 8 // bits
    padded = np.zeros((-(-codes.size // lanes), lanes), np.uint8)
    padded.reshape(-1)[: codes.size] = codes
    padded &= np.uint8((1 << bits) - 1)
    padded <<= _places(bits)
    return np.asarray(np.bitwise_or.reduce(padded, axis=1), np.uint8)


def unpacked(packed: Array, bits: int, count: int) -> Array:
    """The first `count` numbers of `bits` bits along the last axis of bytes, lowest bits first, as bytes."""
    lanes = packed[..., None] >> _places(bits)
    lanes &= np.uint8((1 << bits) - 1)
    return lanes.reshape(*packed.shape[:-1], -1)[..., :count]


def _places(bits: int) -> Array:
    """How far each element of a byte is shifted."""
    return np.arange(0, 8, bits, dtype=np.uint8)
