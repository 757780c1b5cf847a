"""Tensors of strings as NumPy and Python hold them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from vkml.ir.operator import Array


def text_list(array: Array) -> list[str]:
    """The elements of a tensor of strings, in order."""
    return [item.decode() if isinstance(item, bytes) else str(item) for item in array.reshape(-1).tolist()]


def texts(array: Array) -> Array:
    """A tensor of strings whose elements are Python's: a caller may have given bytes."""
    return of_texts(text_list(array), array.shape)


def of_texts(items: list[str], shape: tuple[int, ...]) -> Array:
    """A tensor of strings of a shape."""
    made = np.empty(len(items), np.object_)
    made[:] = items
    return made.reshape(shape)


def each_character(text: str, change: Callable[[str], str]) -> str:
    """A text whose characters are changed one by one; those that would become several stay as they are.

    So do C's functions, whose results models were made with: Python's make SS of ß.
    """
    return "".join([made if len(made := change(item)) == 1 else item for item in text])
