"""Elements of fewer than 8 bits: several share a byte, the first in its lowest bits, as ONNX stores them."""

from __future__ import annotations

from typing import Any

import numpy as np

from vkml.errors import InvalidArgument

Array = np.ndarray[Any, Any]


def pack(elements: Array, bits: int = 4) -> Array:
    """Elements of `bits` bits (one a byte, higher bits ignored) packed into bytes; flat."""
    lanes = 8 // bits
    flat = elements.reshape(-1).astype(np.uint8) & np.uint8((1 << bits) - 1)
    padded = np.concatenate([flat, np.zeros(-flat.size % lanes, np.uint8)]).reshape(-1, lanes)
    return np.asarray(np.bitwise_or.reduce(padded << _places(bits), axis=1), np.uint8)


def unpack(packed: Array, count: int, bits: int = 4) -> Array:
    """`count` elements of `bits` bits, one a byte, from as many bytes as they take; flat."""
    needed = (count * bits + 7) // 8
    if packed.size != needed:
        raise InvalidArgument(f"{count} {bits}-bit elements take {needed} bytes, there are {packed.size}")
    lanes = packed.reshape(-1, 1).view(np.uint8) >> _places(bits)
    return np.asarray(lanes.reshape(-1)[:count] & np.uint8((1 << bits) - 1))


def signed(elements: Array, bits: int) -> Array:
    """Elements of `bits` bits, one a byte, as the int8 numbers that their two's complement means."""
    shift = np.uint8(8 - bits)
    return np.asarray((elements << shift).view(np.int8) >> shift.astype(np.int8))


def _places(bits: int) -> Array:
    """How far each element of a byte is shifted."""
    return np.arange(0, 8, bits, dtype=np.uint8)
