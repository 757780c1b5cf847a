"""Kernels that are written once: kept in the process, and on disk for processes to come.

To write a kernel takes a fraction of a millisecond up to several, to read it 0.1. It lies with others in one
of 256 entries of bounded size, beside GPUs' kernels in the cache folder, which nobody else may write;
contents are verified. New ones are added as the process ends, for to store one takes as long as to write it.
What two processes add to an entry at the same time, one of them loses.
"""

from __future__ import annotations

import atexit
import dataclasses
import functools
import hashlib
import struct
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import ParamSpec, cast

from vkml.cpu.native.kernel import Kernel
from vkml.forks import renew_in_child
from vkml.vulkan import cache

_FORMAT = "native-1"
_HEADER = struct.Struct("<QI")
"""Bytes of scratch memory, and of the label."""
_RECORD = struct.Struct("<32sI")
"""A kernel's key, and the bytes that follow."""
_ENTRY_BYTES = 1 << 17
"""Of kernels in one entry; the oldest make room."""
_NEW_BYTES = 8 << 20
"""Of kernels that wait for the end of the process."""

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
            place = place_on_disk(write, arguments, named)
            if place is None:
                return write(*arguments, **named)
            entry, key = place
            found = _kernels(entry).get(key)
            if found is not None:
                return _unpacked(found)
            made = write(*arguments, **named)
            _new.add(entry, key, _packed(made))
            return made

        return cast(Callable[P, Kernel], kept)

    return decorate


def place_on_disk(
    write: Callable[..., Kernel], arguments: tuple[object, ...], named: dict[str, object]
) -> tuple[str, bytes] | None:
    """In which entry a kernel is, that of the sources that wrote it, and its key there.

    None where an argument is of no type that can be spelt out, or the sources cannot be read.
    """
    sources = _sources()
    if sources is None:
        return None
    try:
        spelt = _spelt((write.__module__, write.__qualname__, arguments, tuple(sorted(named.items()))))
    except TypeError:
        return None
    key = hashlib.sha256(spelt.encode())
    return f"native/{sources[:32]}/{key.hexdigest()[:2]}", key.digest()


def _kernels(entry: str) -> dict[bytes, bytes]:
    """The kernels of an entry by their keys, the oldest first."""
    content = cache.read(entry) or b""
    found: dict[bytes, bytes] = {}
    at = 0
    while at < len(content):
        key, size = _RECORD.unpack_from(content, at)
        at += _RECORD.size
        found[key] = content[at : at + size]
        at += size
    return found


class _New:
    """Kernels that this process has written and that are not on disk yet."""

    def __init__(self) -> None:
        self._kernels: dict[tuple[Path | None, str], dict[bytes, bytes]] = {}
        """By cache folder and entry."""
        self._bytes = 0

    def add(self, entry: str, key: bytes, kernel: bytes) -> None:
        """One more, unless there are very many."""
        if self._bytes + len(kernel) <= _NEW_BYTES:
            self._bytes += len(kernel)
            self._kernels.setdefault((cache.folder(), entry), {})[key] = kernel

    def forget(self) -> None:
        """In a forked child: they are its parent's."""
        self._kernels, self._bytes = {}, 0

    def save(self) -> None:
        """Adds them to their entries; those for a folder that is not the cache's any more are let go."""
        kernels, folder = self._kernels, cache.folder()
        self.forget()
        for (place, entry), new in kernels.items():
            if place == folder:
                cache.write(entry, _joined({**_kernels(entry), **new}))


_new = _New()
renew_in_child(_new.forget)
atexit.register(_new.save)


def save_new_kernels() -> None:
    """Adds the kernels that this process has written to those on disk; it happens by itself at the end."""
    _new.save()


def _joined(kernels: dict[bytes, bytes]) -> bytes:
    """An entry with these kernels, but for the first where they are too many."""
    records = [_RECORD.pack(key, len(each)) + each for key, each in kernels.items()]
    size, first = sum(map(len, records)), 0
    while size > _ENTRY_BYTES:
        size -= len(records[first])
        first += 1
    return b"".join(records[first:])


@functools.cache
def _sources() -> str | None:
    """A digest of all modules that kernels are written by."""
    digest = hashlib.sha256(_FORMAT.encode())
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
