"""Kernels that are written once: kept in the process, and on disk for processes to come.

To write a kernel takes a fraction of a millisecond up to several, to read it 0.05. Entries lie in the cache
folder beside those of GPUs' kernels, which nobody else may write and whose contents are verified.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import struct
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import ParamSpec, cast

from vkml.cpu.native.kernel import Kernel
from vkml.vulkan import cache

_FORMAT = "native-1"
_HEADER = struct.Struct("<QI")
"""Bytes of scratch memory, and of the label."""

P = ParamSpec("P")


def kept_kernel(most: int) -> Callable[[Callable[P, Kernel]], Callable[P, Kernel]]:
    """Decorator of a function that writes a kernel, which must hang on nothing but its arguments.

    Args:
        most: kernels that the process keeps.
    """

    def decorate(write: Callable[P, Kernel]) -> Callable[P, Kernel]:
        @functools.lru_cache(maxsize=most)
        @functools.wraps(write)
        def kept(*arguments: P.args, **named: P.kwargs) -> Kernel:
            name = entry_name(write, arguments, named)
            content = None if name is None else cache.read(name)
            if content is not None:
                return _unpacked(content)
            made = write(*arguments, **named)
            if name is not None:
                cache.write(name, _packed(made))
            return made

        return cast(Callable[P, Kernel], kept)

    return decorate


def entry_name(
    write: Callable[..., Kernel], arguments: tuple[object, ...], named: dict[str, object]
) -> str | None:
    """What a kernel is called on disk: by what wrote it, sources included, and for which arguments.

    None where an argument is of no type that can be spelt out, or the sources cannot be read.
    """
    sources = _sources()
    if sources is None:
        return None
    try:
        spelt = _spelt((write.__module__, write.__qualname__, arguments, tuple(sorted(named.items()))))
    except TypeError:
        return None
    key = hashlib.sha256(f"{_FORMAT}\0{sources}\0{spelt}".encode()).hexdigest()
    return f"native/{key[:2]}/{key}"


@functools.cache
def _sources() -> str | None:
    """A digest of all modules that kernels are written by."""
    digest = hashlib.sha256()
    try:
        for path in sorted(Path(__file__).parent.glob("*.py")):
            content = path.read_bytes()
            digest.update(f"{path.name} {len(content)}\n".encode())
            digest.update(content)
    except OSError:  # out of an archive
        return None
    return digest.hexdigest()


def _spelt(value: object) -> str:
    """A value spelt such that others are spelt otherwise; `TypeError` where there is no telling."""
    if value is None or isinstance(value, bool | str | bytes):
        return repr(value)
    if isinstance(value, Enum):
        return f"{type(value).__qualname__}.{value.name}"
    if type(value) is int:
        return str(value)
    if type(value) is float:
        return value.hex()
    if type(value) is tuple:
        return f"({','.join(map(_spelt, value))})"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [_spelt(getattr(value, field.name)) for field in dataclasses.fields(value)]
        return f"{type(value).__module__}.{type(value).__qualname__}({','.join(fields)})"
    raise TypeError(f"{type(value).__name__} is not spelt out")


def _packed(kernel: Kernel) -> bytes:
    label = kernel.label.encode()
    return _HEADER.pack(kernel.scratch_bytes, len(label)) + label + kernel.code


def _unpacked(content: bytes) -> Kernel:
    scratch_bytes, length = _HEADER.unpack_from(content)
    code = _HEADER.size + length
    return Kernel(content[_HEADER.size : code].decode(), content[code:], scratch_bytes)
