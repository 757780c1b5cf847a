"""Indices that functions refuse, seen by the host before anything runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from vkml.errors import IndexOutOfRange
from vkml.tensors.capture import captures

if TYPE_CHECKING:
    from vkml.tensors.tensor import Tensor


def require_from_front(index: Tensor, function: str) -> None:
    """Refuses negative indices, which kernels, as ONNX has them, would count from the end.

    They are looked at where the host has them: in an array that a tensor was made of, and in those that are
    arguments of a capture at each of its runs. What a plan computes is not.

    Args:
        index: of integers.
        function: that is called, for the error.

    Raises:
        IndexOutOfRange: one is negative.
    """
    value = index.value
    if value.data is None:
        return
    refuse_negative(value.data, function)
    latest = captures.latest
    if latest is not None:
        latest.indices.append((value, function))


def refuse_negative(data: Any, function: str) -> None:
    """Raises where there is a negative element in an array of the host."""
    if not isinstance(data, np.ndarray) or data.dtype == object or data.min(initial=0) >= 0:
        return
    place = np.unravel_index(int(np.argmax(data < 0)), data.shape)
    raise IndexOutOfRange(
        f"{function}: index {int(data[place])} at {list(map(int, place))} is negative; indices count from "
        "the front"
    )
