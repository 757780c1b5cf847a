"""Element types of operands in memory, and the arithmetic types that code computes them in.

All are named like NumPy's types. float16 and bfloat16 are computed in float32, integers of 8 and 16 bits in
int32; a truth value is a lane of 32 bits, all set or none.
"""

from __future__ import annotations

from collections.abc import Mapping

from vkml.ir import dtypes

ITEM_BYTES: Mapping[str, int] = {
    dtype.numpy_name: dtype.itemsize for dtype in (*dtypes.NUMBERS, dtypes.BFLOAT16, dtypes.BOOL)
}
"""Element types that code loads and stores."""
_NARROW = {"float16": "float32", "bfloat16": "float32", "int8": "int32", "int16": "int32", "uint8": "int32",
           "uint16": "int32"}  # fmt: skip


def computed_in(dtype: str) -> str:
    """The arithmetic type of an element type."""
    return _NARROW.get(dtype, dtype)


def lane_bytes(dtype: str) -> int:
    """Bytes of a lane of an arithmetic type."""
    return 8 if ITEM_BYTES[dtype] == 8 else 4
