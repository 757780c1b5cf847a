"""Runs launches on arrays that lie in guarded memory."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import cffi
import numpy as np
import pytest

from vkml.cpu.native.executable import InstructionSet, instruction_set
from vkml.cpu.native.kernel import Launch
from vkml.cpu.native.replay import Recording
from vkml.cpu.pool import shared_pool

Array = np.ndarray[Any, Any]
_PAGE = mmap.PAGESIZE
_ffi = cffi.FFI()
_ffi.cdef("int mprotect(void *address, size_t length, int protection);")

instruction_sets = pytest.mark.parametrize(
    "instructions", list(InstructionSet), ids=lambda entry: entry.value
)
"""Runs a test with each instruction set; the test calls `require` first."""


def require(instructions: InstructionSet) -> None:
    """Skips the test where the processor lacks the instructions."""
    if instruction_set() is None:
        pytest.skip("no machine code here")
    if instructions is InstructionSet.AVX512 and instruction_set() is not InstructionSet.AVX512:
        pytest.skip("no AVX-512")


class Guarded:
    """Memory for one array between two pages that nobody may touch, its other bytes filled with NaN.

    The array ends right before the second page (or begins right after the first), so that a vector that reads
    or writes too far ends the process.
    """

    def __init__(self, size: int, dtype: Any, *, at_start: bool = False) -> None:
        self.dtype = np.dtype(dtype)
        nbytes = size * self.dtype.itemsize
        inner = -(-max(nbytes, 1) // _PAGE) * _PAGE
        self._memory = mmap.mmap(-1, inner + 2 * _PAGE)
        self.bytes = np.frombuffer(self._memory, np.uint8)[_PAGE : _PAGE + inner]
        self.bytes[:] = 0xFF
        start = 0 if at_start else inner - nbytes
        self.used = slice(start, start + nbytes)
        self.array: Array = self.bytes[self.used].view(self.dtype)
        library = _ffi.dlopen(None)
        for page in (self.bytes.ctypes.data - _PAGE, self.bytes.ctypes.data + inner):
            assert library.mprotect(_ffi.cast("void *", page), _PAGE, 0) == 0

    def check(self) -> None:
        """Fails if bytes outside the array have changed."""
        assert (self.bytes[: self.used.start] == 0xFF).all(), "bytes before an array have changed"
        assert (self.bytes[self.used.stop :] == 0xFF).all(), "bytes behind an array have changed"


def guarded(values: Array, *, at_start: bool = False) -> tuple[Guarded, Array]:
    """A copy of a C-ordered array in guarded memory."""
    memory = Guarded(values.size, values.dtype, at_start=at_start)
    array = memory.array.reshape(values.shape)
    array[...] = values
    return memory, array


def run(launch: Launch, operands: Sequence[Array], *, serial: bool = True, parallel: bool = True) -> None:
    """Runs a launch on arrays or views (their first elements' addresses), on one thread, then on all."""
    addresses = [operand.__array_interface__["data"][0] for operand in operands]
    for seconds in [0.0] * serial + [1.0] * parallel:
        Recording([[(replace(launch, seconds=seconds), addresses)]], shared_pool()).run()
