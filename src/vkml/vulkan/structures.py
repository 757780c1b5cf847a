"""Vulkan structures and constants as Python likes them, over the generated bindings."""

from __future__ import annotations

import itertools
import weakref
from typing import Any

from vkml.vulkan import _bindings

ffi: Any = _bindings.ffi
NULL: Any = ffi.NULL


class _Constants:
    """Vulkan's integer constants as attributes: `constants.VK_SUCCESS`."""

    def __getattr__(self, name: str) -> int:
        value: int = ffi.integer_const(name)
        setattr(self, name, value)  # the next access does not come here
        return value


constants = _Constants()

# Structures do not own what their pointers point to; this keeps it alive as long as the structure.
_kept: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()


def structure(kind: str, **members: Any) -> Any:
    """A new structure with `sType` set; strings and structures among the members live as long as it does.

    Args:
        kind: the structure's C name.
        members: values; a str becomes a C string, a list of str an array of them, another list an array
            of whatever the member points to.
    """
    made = ffi.new(f"{kind} *")
    if kind in _bindings.STRUCTURE_TYPES:
        made.sType = _bindings.STRUCTURE_TYPES[kind]
    kept: list[Any] = []
    for name, value in members.items():
        if isinstance(value, str):
            value = ffi.new("char[]", value.encode())
        elif isinstance(value, list):
            if value and isinstance(value[0], str):
                strings = [ffi.new("char[]", text.encode()) for text in value]
                kept.extend(strings)
                value = ffi.new("char *[]", strings)
            else:
                kept.extend(value)  # an array holds copies, whose own pointers must stay valid
                item = ffi.typeof(made).item.fields
                member = next(field.type for key, field in item if key == name)
                copies = [one[0] if _is_structure_pointer(one) else one for one in value]
                value = ffi.new(f"{member.item.cname}[]", copies)
        setattr(made, name, value)
        kept.append(value)
    _kept[made] = kept
    return made


def chain(*structures: Any) -> Any:
    """Links structures through `pNext` in this order; returns the first, which keeps the others alive."""
    for one, following in itertools.pairwise(structures):
        one.pNext = following
        _kept[one].append(following)
    return structures[0]


def text(array: Any) -> str:
    """A zero-terminated C string as str."""
    raw: bytes = ffi.string(array)
    return raw.decode("utf-8", "replace")


def api_version(number: int) -> tuple[int, int, int]:
    """Major, minor and patch of an encoded version."""
    return (number >> 22) & 0x7F, (number >> 12) & 0x3FF, number & 0xFFF


def encode_version(major: int, minor: int, patch: int = 0) -> int:
    """The encoding of a version."""
    return major << 22 | minor << 12 | patch


def _is_structure_pointer(value: Any) -> bool:
    if not isinstance(value, ffi.CData):
        return False
    kind = ffi.typeof(value)
    return bool(kind.kind == "pointer" and kind.item.kind == "struct" and kind.item.fields is not None)


def handle_number(handle: Any) -> int:
    """A handle, pointer or function as an integer."""
    return handle if isinstance(handle, int) else int(ffi.cast("uintptr_t", handle))
