"""Tensors within nested lists, tuples and mappings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vkml.tensors.tensor import Tensor


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors of nested lists, tuples and mappings, in order."""
    found: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    mapped(note, value)
    return found


def mapped(change: Callable[[Tensor], Any], value: Any) -> Any:
    """The same nested lists, tuples and mappings with something else in the place of each tensor."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(mapped(change, item) for item in value))
    if isinstance(value, list | tuple):
        return type(value)([mapped(change, item) for item in value])
    if isinstance(value, dict):
        return type(value)({key: mapped(change, item) for key, item in value.items()})
    return value
