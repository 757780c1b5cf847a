"""The launch that copies an array of the host to a device's memory."""

from __future__ import annotations

import functools
import struct

from vkml.kernels.spec import KernelSpec, KernelText
from vkml.kernels.writer import template

_LINE_BYTES = 128
"""What a bus carries at a time."""
MOST_BYTES = (1 << 31) - _LINE_BYTES
"""Of an array: the kernel counts bytes in 32 bits."""
_THREADS = 128
_VECTORS = 2
"""16-byte vectors of a thread: a batch of 200 KB is then spread over 50 workgroups."""
_PUSH = struct.Struct("<2Q2i")
_SOURCE = struct.Struct("<QI4x")
SOURCE_BYTES = _SOURCE.size


@functools.cache
def read_kernel(vectors: int = _VECTORS) -> KernelSpec:
    """See host_read.slang.

    Args:
        vectors: of a thread.
    """
    fields = (("Source*", "source"), ("uint4*", "target"), ("int", "bytes"), ("int", "across"))
    definitions = (f"#define THREADS {_THREADS}", f"#define VECTORS {vectors}")
    text = KernelText((), fields, definitions, (template("host_read"),), uses_math=False)
    return KernelSpec("an array of the host", text, (), _PUSH.size)


def read_launch(
    source: int, target: int, size: int, max_groups: int, vectors: int = _VECTORS
) -> tuple[bytes, tuple[int, int]]:
    """Its push constants and its grid.

    Args:
        source: address of what `read_source` makes.
        target: address, a multiple of 16.
        size: of the array in bytes, at most `MOST_BYTES`.
        max_groups: workgroups that a grid dimension may have.
        vectors: see `read_kernel`.
    """
    groups = -(-size // (16 * _THREADS * vectors))
    across = min(groups, max_groups)
    return _PUSH.pack(source, target, size, across), (across, -(-groups // across))


def read_source(address: int) -> bytes:
    """What it reads of where the array is.

    Args:
        address: of the array's first byte, on the device.
    """
    return _SOURCE.pack(address // _LINE_BYTES * _LINE_BYTES, address % _LINE_BYTES)
