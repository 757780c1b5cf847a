"""Memory that holds machine code, and what the processor can execute."""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import sys
from collections.abc import Sequence
from enum import Enum
from typing import Any

from vkml.cpu.functions import ffi
from vkml.cpu.mapping import map_memory
from vkml.cpu.native.assembler import R8, R9, RAX, RBX, RCX, RDI, RDX, Assembler, Mem

_READ, _EXECUTE = 1, 4
ALIGNMENT = 64


class InstructionSet(Enum):
    """What vector instructions code may use."""

    AVX2 = "avx2"
    """16 registers of 8 floats; with FMA and F16C."""
    AVX512 = "avx512"
    """32 registers of 16 floats and masks; F, BW, DQ and VL."""


class Executable:
    """Machine code in memory of its own, which cannot be written any more.

    Args:
        parts: pieces of position-independent code.

    Attributes:
        addresses: where each piece begins.
    """

    def __init__(self, parts: Sequence[bytes]) -> None:
        offsets, size = [], 0
        for part in parts:
            offsets.append(size)
            size += -(-len(part) // ALIGNMENT) * ALIGNMENT
        self._memory = map_memory(max(size, 1))
        for offset, part in zip(offsets, parts, strict=True):
            self._memory[offset : offset + len(part)] = part
        start = int(ffi.cast("uintptr_t", ffi.from_buffer(self._memory)))
        if _protect()(start, max(size, 1), _READ | _EXECUTE):
            raise OSError(f"the system does not let memory be made executable (errno {ctypes.get_errno()})")
        self.addresses = [start + offset for offset in offsets]

    def function(self, part: int, signature: str) -> Any:
        """A piece as a callable of a C signature; alive as long as this object."""
        return ffi.cast(signature, self.addresses[part])


@functools.cache
def _protect() -> Any:
    function = ctypes.CDLL(None, use_errno=True).mprotect
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return function


@functools.cache
def instruction_set() -> InstructionSet | None:
    """The best set that the processor and the system offer; None: no machine code here, NumPy does the work.

    The environment variable VKML_NATIVE chooses less: ``0`` none, ``avx2`` no AVX-512.
    """
    wanted = os.environ.get("VKML_NATIVE", "").lower()
    if wanted in ("0", "off", "no") or not _is_supported_platform():
        return None
    try:
        found = _best_instruction_set()
    except OSError:
        return None
    return InstructionSet.AVX2 if found is not None and wanted == "avx2" else found


def _is_supported_platform() -> bool:
    # The System V calling convention, and processes of 64 bits.
    is_intel = platform.machine().lower() in ("x86_64", "amd64")
    return is_intel and sys.platform.startswith(("linux", "darwin", "freebsd")) and sys.maxsize > 2**32


def _best_instruction_set() -> InstructionSet | None:
    if _cpuid(0, 0)[0] < 7:
        return None
    basic, extended = _cpuid(1, 0)[2], _cpuid(7, 0)[1]
    has_fma, has_saved_state, has_avx, has_half = (basic >> bit & 1 for bit in (12, 27, 28, 29))
    if not (has_fma and has_saved_state and has_avx and has_half and extended >> 5 & 1):
        return None
    state = _extended_control()
    if state & 0x6 != 0x6:
        return None
    has_avx512 = all(extended >> bit & 1 for bit in (16, 17, 30, 31)) and state & 0xE6 == 0xE6
    return InstructionSet.AVX512 if has_avx512 else InstructionSet.AVX2


@functools.cache
def has_byte_dots(instructions: InstructionSet) -> bool:
    """Whether the set's vectors add up products of unsigned and signed bytes four at a time (VNNI)."""
    if instruction_set() is None or _cpuid(0, 0)[0] < 7:
        return False
    if instructions is InstructionSet.AVX512:
        return bool(_cpuid(7, 0)[2] >> 11 & 1)
    return bool(_cpuid(7, 0)[0] >= 1 and _cpuid(7, 1)[0] >> 4 & 1)


def _cpuid(leaf: int, subleaf: int) -> tuple[int, int, int, int]:
    code = Assembler(False)
    code.push(RBX)
    code.mov(R8, RDI)
    code.move_immediate(RAX, leaf)
    code.move_immediate(RCX, subleaf)
    code.cpuid()
    for position, register in enumerate((RAX, RBX, RCX, RDX)):
        code.mov32(Mem(R8, 4 * position), register)
    code.pop(RBX)
    code.ret()
    result = ffi.new("uint32_t[4]")
    executable = Executable([code.finish()])
    executable.function(0, "void(*)(uint32_t *)")(result)
    return tuple(result)


def _extended_control() -> int:
    code = Assembler(False)
    code.mov(R9, RDI)
    code.move_immediate(RCX, 0)
    code.read_extended_control()
    code.mov32(Mem(R9), RAX)
    code.ret()
    result = ffi.new("uint32_t[1]")
    executable = Executable([code.finish()])
    executable.function(0, "void(*)(uint32_t *)")(result)
    return int(result[0])
