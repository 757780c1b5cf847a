"""The largest tensor an operator may promise, so that a hostile model cannot ask for absurd memory."""

from __future__ import annotations

import math
from collections.abc import Sequence

from vkml.errors import ShapeError
from vkml.ir.dtypes import DType
from vkml.ir.graph import Node
from vkml.ir.size import Size, plain
from vkml.ir.types import TensorType, static

LARGEST_TENSOR = 2**40
"""Bytes. Above every device's memory today, far below where byte offsets in 64-bit arithmetic wrap."""


LARGEST_PADDING = 2**28
"""Elements that padding may always make; above that, only in proportion to what is read and written."""


def check_padding(node: Node, elements: int, padded: int) -> None:
    """Raises `ShapeError` where padding alone makes a tensor absurdly large.

    A huge stride can hide huge pads from the output's size.

    Args:
        node: The node that pads, for the message.
        elements: Elements of the input and the output together.
        padded: Elements of the padded input.
    """
    if isinstance(elements, Size) or isinstance(padded, Size):
        return  # pads are numbers, or sizes themselves
    if padded > max(LARGEST_PADDING, 4096 * elements):
        raise ShapeError(
            f"{node.label}: padding makes {padded} elements, input and output together have {elements}"
        )


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
    sizes = tuple(plain(size) for size in shape)
    if any(size < 0 for size in sizes):
        raise ShapeError(f"{node.label}: the output would have a negative size: {list(sizes)}")
    if any(isinstance(size, Size) for size in sizes):
        return static(dtype, sizes)  # how large it may be is seen when memory is asked for
    # A size of zero must not hide a huge one: later steps (slicing, padding) may multiply it back.
    bytes_needed = dtype.bytes_for(math.prod(max(size, 1) for size in sizes))
    if bytes_needed > LARGEST_TENSOR:
        raise ShapeError(
            f"{node.label}: an output of shape {list(sizes)} ({dtype.name}) takes {bytes_needed} bytes; "
            f"vkml allows {LARGEST_TENSOR} for one tensor"
        )
    return static(dtype, sizes)
