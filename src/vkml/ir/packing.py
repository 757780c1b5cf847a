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
        return packed(array.reshape(-1).view(np.uint8), dtype.bits)
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


def packed(codes: Array, bits: int) -> Array:
    """Numbers along the last axis in bytes: of each the lowest `bits` bits, the first in the lowest."""
    lanes = 8 // bits
    room = -codes.shape[-1] % lanes
    if room:
        codes = np.concatenate([codes, np.zeros((*codes.shape[:-1], room), np.uint8)], -1)
    made = np.zeros((*codes.shape[:-1], codes.shape[-1] // lanes), np.uint8)
    for at in range(lanes):
        made |= (codes[..., at::lanes] & np.uint8((1 << bits) - 1)) << np.uint8(at * bits)
    return made


def unpacked(packed: Array, bits: int, count: int) -> Array:
    """The first `count` numbers of `bits` bits along the last axis of bytes, lowest bits first, as bytes."""
    lanes = 8 // bits
    made = np.empty((*packed.shape[:-1], lanes * packed.shape[-1]), np.uint8)
    for at in range(lanes):  # neighbours in an axis of their own take six times as long
        np.bitwise_and(packed >> np.uint8(at * bits), np.uint8((1 << bits) - 1), out=made[..., at::lanes])
    return made[..., :count]
