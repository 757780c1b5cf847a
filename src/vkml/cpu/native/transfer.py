"""Loads and stores of elements of every type: vectors of neighbours, of elements apart, single ones."""

from __future__ import annotations

from collections.abc import Sequence

from vkml.cpu.native.assembler import Mem, Operand
from vkml.cpu.native.element import ITEM_BYTES
from vkml.cpu.native.vectors import VectorCode

_EXTENSIONS = {"float16": "cvtph2ps", "bfloat16": "pmovzxwd", "int8": "pmovsxbd", "uint8": "pmovzxbd",
               "int16": "pmovsxwd", "uint16": "pmovzxwd", "bool": "pmovzxbd"}  # fmt: skip
SPARE = 2
"""Registers that stores of other types than those of 4 and 8 bytes need."""


def load_elements(code: VectorCode, register: int, source: Mem, dtype: str, mask: int | None = None) -> None:
    """A vector of neighbours; with a mask only its lanes are read, the others are zero."""
    size = ITEM_BYTES[dtype]
    if size >= 4:
        code.load(register, source, mask, lane=size)
    else:
        _extend(code, register, source, dtype, mask)


def _extend(code: VectorCode, register: int, source: Operand, dtype: str, mask: int | None = None) -> None:
    """Elements of 1 or 2 bytes in lanes of 4."""
    code.unary(_EXTENSIONS[dtype], register, source, mask=mask or 0, zeroes=mask is not None)
    if dtype == "bfloat16":
        code.shift("pslld", register, register, 16)
    elif dtype == "bool":
        # A caller's true may be any number but zero, as in NumPy.
        code.vector("paddd", register, register, code.bits(0x7FFFFFFF))
        code.shift("psrad", register, register, 31)


def broadcast_element(code: VectorCode, register: int, source: Mem, dtype: str) -> None:
    """One element in all lanes."""
    size = ITEM_BYTES[dtype]
    if size == 8:
        code.unary("pbroadcastq", register, source)
    elif size == 4:
        code.broadcast(register, source)
    else:
        code.unary("pbroadcastw" if size == 2 else "pbroadcastb", register, source, bits=256)
        _extend(code, register, register, dtype)


def collect_elements(code: VectorCode, register: int, source: Mem, step: int, dtype: str, spare: int) -> None:
    """Elements of 1 or 2 bytes that are `step` bytes apart."""
    size = ITEM_BYTES[dtype]
    in_register = min(code.width, 16 // size)
    for start in range(0, code.width, in_register):
        part = spare if start else register
        code.zero(part)
        for lane in range(in_register):
            code.insert_element(part, source.plus((start + lane) * step), lane, size)
        if start:
            code.immediate("insertf128", register, register, spare, 1, bits=256)
    _extend(code, register, register, dtype)


def store_elements(
    code: VectorCode, target: Mem, register: int, dtype: str, spare: Sequence[int], mask: int | None = None
) -> None:
    """A vector of neighbours; with a mask only its lanes are written. The register stays."""
    size = ITEM_BYTES[dtype]
    if size >= 4:
        code.store(target, register, mask, lane=size)
        return
    if dtype == "float16":
        code.store_half(target, register, mask=mask or 0)
        return
    low, high = spare
    low = _lowered(code, register, dtype, low, high)
    if code.has_avx512:
        code.store_truncated(target, low, size, mask=mask or 0)
        return
    words, narrow = spare[0], code.is_wide
    if not narrow:
        code.extract_upper(high, low, bits=256)
    code.vector(
        "packusdw" if dtype in ("uint16", "bfloat16") else "packssdw", words, low, low if narrow else high,
        bits=128,
    )  # fmt: skip
    if size == 1:
        code.vector("packsswb" if dtype == "int8" else "packuswb", words, words, words, bits=128)
    if size * code.width == 16:
        code.store_vector(target, words, bits=128)
    else:
        code.store_low(target, words, size * code.width)


def store_element(code: VectorCode, target: Mem, register: int, dtype: str, spare: Sequence[int]) -> None:
    """The element in the lowest lane. The register stays."""
    if dtype == "float16":
        code.to_half(spare[0], register)
        register = spare[0]
    elif ITEM_BYTES[dtype] < 4:
        register = _lowered(code, register, dtype, *spare)
    code.store_low(target, register, ITEM_BYTES[dtype])


def _lowered(code: VectorCode, register: int, dtype: str, spare: int, other: int) -> int:
    """A register whose lanes have what is to be stored in their low bytes, and zeros or the sign above."""
    if dtype == "bool":
        code.shift("psrld", spare, register, 31)
        return spare
    if dtype != "bfloat16":
        return register
    # Half of the last place is added, less a little where the upper half is even; NaN is set apart.
    code.shift("psrld", spare, register, 16)
    code.vector("pand", spare, spare, code.bits(1))
    code.vector("paddd", spare, spare, code.bits(0x7FFF))
    code.vector("paddd", spare, spare, register)
    code.shift("psrld", spare, spare, 16)
    if code.has_avx512:
        code.compare(_MASK, register, register, _UNORDERED)
        code.mask_to_vector(other, _MASK)
    else:
        code.compare(other, register, register, _UNORDERED)
    code.shift("psrld", other, other, 17)
    code.vector("por", spare, spare, other)
    return spare


_MASK = 5
"""The mask register that may change here (AVX-512)."""
_UNORDERED = 3
