"""What a caller passes for an array or for sizes, whose own code may raise anything."""

from __future__ import annotations

import operator
from typing import Any, Literal

import numpy as np

from vkml.errors import InvalidArgument, OutOfMemory

Array = np.ndarray[Any, Any]


def as_array(given: Any, what: str, order: Literal["C", "K"] = "K") -> Array:
    """An array of what stands for one, without a copy where it is one.

    Args:
        given: an array or an array-like, as jax's, h5py's or torch's.
        what: it is, for errors.
        order: "C" for elements one behind the other in C order.

    Raises:
        InvalidArgument: it does not become an array.
        OutOfMemory: it is too large to become one.
    """
    try:
        return np.asarray(given, order=order)
    except MemoryError as error:
        raise OutOfMemory(f"cpu: {what} cannot be made an array: {error}") from error
    except Exception as error:  # an array-like's own code may raise anything
        raise InvalidArgument(f"{what} cannot be made an array: {error}") from error


def as_integer(given: Any, what: str) -> int:
    """A whole number of what stands for one.

    Raises:
        InvalidArgument: it is none.
    """
    try:
        return operator.index(given)
    except Exception as error:
        raise InvalidArgument(f"{what} is a whole number, not {type(given).__name__}") from error


def as_sizes(given: Any, what: str) -> tuple[int, ...]:
    """The sizes of a shape.

    Raises:
        InvalidArgument: they are no whole numbers, or there are negative ones.
    """
    try:
        sizes = tuple([operator.index(size) for size in given])
    except Exception as error:
        raise InvalidArgument(
            f"{what} is a sequence of whole numbers, not {type(given).__name__}: {error}"
        ) from error
    if any(size < 0 for size in sizes):
        raise InvalidArgument(f"{what} has no negative sizes, got {list(sizes)}")
    return sizes
