"""The device "meta": values there have a type and a shape, and no elements."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from vkml.ir import DType
from vkml.tracing.value import Traced, tensor_type

if TYPE_CHECKING:
    from vkml.vulkan import Device

META = cast("Device", SimpleNamespace(info=SimpleNamespace(name="meta")))
"""No device of the machine's: what is applied to its values is typed, and can never be computed."""


def is_meta(device: Any) -> bool:
    """Whether a device, or its name, is this one."""
    return device is META or device == META.info.name


def absent(dtype: DType, dims: tuple[int, ...]) -> Traced:
    """A value of a type and a shape that has no elements."""
    return Traced(tensor_type(dtype, dims), META, None)
