"""The largest tensor an operator may promise, so that a hostile model cannot ask for absurd memory."""

from __future__ import annotations

import math
from collections.abc import Sequence

from vkml.errors import ShapeError
from vkml.ir.dtypes import DType
from vkml.ir.graph import Node
from vkml.ir.types import TensorType, static

LARGEST_TENSOR = 2**40
"""Bytes. Above every device's memory today, far below where byte offsets in 64-bit arithmetic wrap."""


def check_size(node: Node, dtype: DType, shape: Sequence[int]) -> TensorType:
    """The static type of `shape`, once its size is known to be reasonable.

    Args:
        node: The node that would create the tensor, for the message.
        dtype: Element type of the tensor.
        shape: Its sizes, arbitrary Python or NumPy integers.

    Returns:
        The tensor's type.

    Raises:
        ShapeError: A size is negative or the tensor would take more than `LARGEST_TENSOR` bytes.
    """
    sizes = tuple(int(size) for size in shape)
    if any(size < 0 for size in sizes):
        raise ShapeError(f"{node.label}: the output would have a negative size: {list(sizes)}")
    # A size of zero must not hide a huge one: later steps (slicing, padding) may multiply it back.
    bytes_needed = dtype.bytes_for(math.prod(max(size, 1) for size in sizes))
    if bytes_needed > LARGEST_TENSOR:
        raise ShapeError(
            f"{node.label}: an output of shape {list(sizes)} ({dtype.name}) takes {bytes_needed} bytes; "
            f"vkml allows {LARGEST_TENSOR} for one tensor"
        )
    return static(dtype, sizes)
