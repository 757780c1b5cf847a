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


def load_few(code: VectorCode, register: int, source: Mem, dtype: str, count: int) -> None:
    """The first neighbours of 1 or 2 bytes, zeros in the other lanes; reads nothing more (AVX2)."""
    size = ITEM_BYTES[dtype]
    code.zero(register)
    for lane in range(count):
        code.insert_element(register, source.plus(lane * size), lane, size)
    _extend(code, register, register, dtype)


def store_few(
    code: VectorCode, target: Mem, register: int, dtype: str, spare: Sequence[int], count: int
) -> None:
    """The first elements of 1 or 2 bytes; writes nothing more (AVX2)."""
    size = ITEM_BYTES[dtype]
    if dtype == "float16":
        packed = spare[0]
        code.to_half(packed, register, bits=0)
    else:
        packed = _packed(code, register, dtype, spare)
    for lane in range(count):
        code.store_low(target.plus(lane * size), packed, size, position=lane)


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
    if code.has_avx512:
        code.store_truncated(target, _lowered(code, register, dtype, *spare), size, mask=mask or 0)
        return
    packed = _packed(code, register, dtype, spare)
    if size * code.width == 16:
        code.store_vector(target, packed, bits=128)
    else:
        code.store_low(target, packed, size * code.width)


def _packed(code: VectorCode, register: int, dtype: str, spare: Sequence[int]) -> int:
    """A register with the elements side by side (AVX2); not of float16."""
    packed, other = spare
    low = upper = _lowered(code, register, dtype, packed, other)
    if not code.is_wide:
        code.extract_upper(other, low, bits=256)
        upper = other
    is_unsigned = dtype in ("uint16", "bfloat16")
    code.vector("packusdw" if is_unsigned else "packssdw", packed, low, upper, bits=128)
    if ITEM_BYTES[dtype] == 1:
        code.vector("packsswb" if dtype == "int8" else "packuswb", packed, packed, packed, bits=128)
    return packed


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
    # Half of the last place is added, less a little where the upper half is even; NaN becomes 0x7FC0.
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
    code.vector("pandn", spare, other, spare)
    code.vector("pand", other, other, code.bits(0x7FC0))
    code.vector("por", spare, spare, other)
    return spare


_MASK = 5
"""The mask register that may change here (AVX-512)."""
_UNORDERED = 3
