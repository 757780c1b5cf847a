"""Runs launches on arrays that lie in guarded memory."""

from __future__ import annotations

import functools
import mmap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import cffi
import numpy as np
import pytest

from vkml.cpu.native.executable import InstructionSet, instruction_set
from vkml.cpu.native.expression import Access, Epilogue
from vkml.cpu.native.kernel import Launch
from vkml.cpu.native.open_launch import OpenLaunch
from vkml.cpu.native.replay import Recording
from vkml.cpu.pool import shared_pool
from vkml.ir.size import Sizes, concrete
from vkml.ir.size_terms import Symbol

Array = np.ndarray[Any, Any]
_PAGE = mmap.PAGESIZE
_ffi = cffi.FFI()
_ffi.cdef("int mprotect(void *address, size_t length, int protection);")


@functools.cache
def _library() -> Any:
    """The C library, opened once: cffi keeps all that was ever opened."""
    return _ffi.dlopen(None)


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
        for page in (self.bytes.ctypes.data - _PAGE, self.bytes.ctypes.data + inner):
            assert _library().mprotect(_ffi.cast("void *", page), _PAGE, 0) == 0

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


@dataclass(frozen=True, eq=False)
class BoundLaunch(Launch):
    """A launch for open sizes, with the words that follow its operands' addresses."""

    words: tuple[int, ...] = ()


def bound(launch: OpenLaunch, values: Mapping[Symbol, int], chunks: int) -> BoundLaunch:
    """A launch for values of the open sizes, in so many chunks."""
    rows = concrete(launch.rows, values)
    cut = launch.cut(rows, concrete(launch.work, values), concrete(launch.scratch_bytes, values), 1)
    words = (-(-rows // chunks), rows, *(concrete(size, values) for size in launch.parameters))
    return BoundLaunch(cut.kernel, np.arange(chunks, dtype=np.int64)[:, None].copy(), 0.0, words)


def forms(
    known: Callable[..., Launch],
    opened: Callable[..., OpenLaunch | None],
    instructions: InstructionSet,
    *,
    keeps_columns: bool = False,
    opens_columns: bool = False,
    **arguments: Any,
) -> Iterator[Launch]:
    """The launch for known sizes, and that for open ones, all its sizes open, cut in several ways.

    Known stay: steps along the last axis mostly, steps of 0, and how many rows a few are.

    Args:
        known: makes the first.
        opened: makes the others, from the same arguments.
        instructions: for both.
        keeps_columns: whether the last size of a shape stays known.
        opens_columns: whether in one way steps along the last axis of leaves and results are open, too.
        arguments: the rest.
    """
    yield known(instructions, **arguments)
    sizes = Sizes()

    def open_size(value: int) -> int:
        return sizes.symbol(f"s{len(sizes.examples)}", value, least=0)  # type: ignore[return-value]

    def open_steps(steps: tuple[int, ...]) -> tuple[int, ...]:
        return (*(open_size(step) if step > 0 else step for step in steps[:-1]), *steps[-1:])

    def open_access(access: Access, is_far: bool = False) -> Access:
        strides = open_steps(access.strides)
        if is_far and strides and strides[-1] > 1:
            strides = (*strides[:-1], open_size(strides[-1]))
        return replace(access, strides=strides)

    def open_argument(name: str, value: Any, is_far: bool) -> Any:
        if name == "shape":
            last = len(value) - keeps_columns
            return tuple(open_size(size) if axis < last else size for axis, size in enumerate(value))
        if name in ("batch", "columns", "inner", "outer", "size", "count"):
            return open_size(value)
        if name in ("strides", "scale", "bias", "a", "b") and value is not None:
            return open_steps(value)
        if name in ("leaves", "results"):
            return tuple(open_access(each, is_far) for each in value)
        if isinstance(value, Epilogue):
            leaves, results = (tuple(map(open_access, each)) for each in (value.leaves, value.results))
            return replace(value, leaves=leaves, results=results)
        return value

    for is_far, chunks in ((False, 1), (opens_columns, 3)):
        with sizes.deciding():
            given = {name: open_argument(name, each, is_far) for name, each in arguments.items()}
            made = opened(instructions=instructions, **given)
        if made is not None:
            yield bound(made, sizes.examples, chunks)


def run(launch: Launch, operands: Sequence[Array], *, serial: bool = True, parallel: bool = True) -> None:
    """Runs a launch on arrays or views (their first elements' addresses), on one thread, then on all."""
    addresses = [operand.__array_interface__["data"][0] for operand in operands]
    if isinstance(launch, BoundLaunch):
        addresses += launch.words
    for seconds in [0.0] * serial + [1.0] * parallel:
        Recording([[(replace(launch, seconds=seconds), addresses)]], shared_pool()).run()
