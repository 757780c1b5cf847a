"""Devices as programs name them: their names, with their parts."""

from __future__ import annotations

import functools
from typing import Any

from vkml.errors import InvalidDevice


class device(str):
    """The name of a device, as `torch.device`: text, of which `type` and `index` are the parts.

    Args:
        type: ``"cpu"``, ``"meta"``, ``"vulkan"`` or ``"vulkan:1"``; or a device.
        index: of ``"vulkan"``, which.

    Attributes:
        type: the name without a number.
        index: the number; None without one.

    Raises:
        InvalidDevice: there are none of such a name; a RuntimeError, too.

    Example:
        >>> import vkml
        >>> place = vkml.device("vulkan", 1)
        >>> place == "vulkan:1", place.type, place.index
        (True, 'vulkan', 1)
    """

    type: str

    def __new__(cls, type: str, index: int | None = None) -> device:
        name = type if index is None else f"{type}:{index}"
        kind, _, number = name.partition(":")
        if kind not in ("cpu", "meta", "vulkan") or (number and not number.isdecimal()) or name[-1:] == ":":
            raise InvalidDevice(
                f"there is no device {name!r}: use 'cpu', or 'vulkan' with a number, as in 'vulkan:0'; "
                "vkml.devices() has those of this machine"
            )
        made = super().__new__(cls, name)
        made.type = kind
        made.index = int(number) if number else None  # type: ignore[assignment]  # text has another `index`
        return made

    def __repr__(self) -> str:
        return f"device(type={self.type!r}" + (f", index={self.index})" if self.index is not None else ")")

    def __reduce__(self) -> Any:
        return device, (str(self),)


@functools.lru_cache(maxsize=64)
def device_named(name: str) -> device:
    """One object for all tensors of a device."""
    return device(name)
