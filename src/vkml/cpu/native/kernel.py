"""A kernel and its launch as descriptions: machine code, the chunks it is called for, the operands it takes.

How a kernel is called: RDI points to the addresses of its operands (8 bytes each, in the launch's order), RSI
to the chunk's row of the launch's table (8-byte integers whose meaning is the kernel's own, byte offsets
mostly), RDX to scratch memory of the calling thread. It may change every register but RSP, and returns.
Chunks of a launch run in any order and on any thread.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from vkml.dataclasses import dataclass
from vkml.ir.lazy import lazy

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Kernel:
    """Position-independent machine code."""

    label: str
    code: bytes
    scratch_bytes: int = 0
    """Of memory of its own that a thread needs while a chunk runs; 64-byte aligned."""


@dataclass(frozen=True, eq=False)
class Launch:
    """A kernel and the chunks to call it for."""

    kernel: Kernel
    table: Array
    """[chunks, columns] of int64."""
    seconds: float
    """Estimated time of all chunks on one core."""

    @lazy
    def address(self) -> int:
        """Of the table's first row."""
        return int(self.table.ctypes.data)

    def __post_init__(self) -> None:
        assert self.table.dtype == np.int64 and self.table.ndim == 2 and self.table.flags.c_contiguous
