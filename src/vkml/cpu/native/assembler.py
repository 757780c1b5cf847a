"""An assembler for x86-64 with AVX2 and AVX-512: instructions in, bytes of machine code out."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from vkml.cpu.native.encodings import (
    CONDITIONS,
    IMMEDIATE,
    SHIFTS,
    UNARY,
    UNARY_IMMEDIATE,
    VECTOR,
    Vector,
)
from vkml.dataclasses import dataclass

RAX, RCX, RDX, RBX, RSP, RBP, RSI, RDI, R8, R9, R10, R11, R12, R13, R14, R15 = range(16)
"""General registers by number."""


@dataclass(frozen=True)
class Label:
    """A place in the code, known by number until it is placed."""

    number: int


@dataclass(frozen=True)
class Mem:
    """A memory operand: [base + index * scale + displacement], or a labelled place in the code."""

    base: int = -1
    displacement: int = 0
    index: int = -1
    scale: int = 1
    label: Label | None = None
    is_broadcast: bool = False
    """One float read and repeated in every lane (AVX-512 arithmetic only)."""

    def plus(self, displacement: int) -> Mem:
        """The operand that many bytes further on."""
        return replace(self, displacement=self.displacement + displacement)


Operand = int | Mem


class Assembler:
    """Collects instructions; `finish` resolves labels.

    Vector registers are numbers from 0: 16 with AVX2, 32 with AVX-512. Operands in Intel's order,
    destination first. The last operand of a vector instruction may be memory.

    Args:
        has_avx512: whether vectors have 64 bytes (and instructions their EVEX form) or 32.
        is_wide: whether lanes of 64 bits fill a vector; those of 32 bits then fill half of one.

    Attributes:
        lanes: of a vector.
    """

    def __init__(self, has_avx512: bool, *, is_wide: bool = False) -> None:
        self.has_avx512 = has_avx512
        self.full_bits = 512 if has_avx512 else 256
        self.lanes = self.full_bits // (64 if is_wide else 32)
        self._code = bytearray()
        self._places: list[int] = []
        self._fixups: list[tuple[int, Label, int]] = []
        """Position of a 32-bit relative address, its label, and the bytes of the instruction behind it."""
        self._pool: dict[bytes, Label] = {}

    # -- labels and data ------------------------------------------------------------------------------------

    def label(self) -> Label:
        """A label to be placed."""
        self._places.append(-1)
        return Label(len(self._places) - 1)

    def place(self, label: Label) -> Label:
        """Puts the label here."""
        self._places[label.number] = len(self._code)
        return label

    def here(self) -> Label:
        """A label at this place."""
        return self.place(self.label())

    def data(self, content: bytes) -> Mem:
        """Bytes that are to lie behind the code, 64-byte aligned; the same bytes are kept once."""
        if content not in self._pool:
            self._pool[content] = self.label()
        return Mem(label=self._pool[content])

    def finish(self) -> bytes:
        """The machine code with its data; runs at any address that is a multiple of 64."""
        for content, label in self._pool.items():
            self._code += b"\xcc" * (-len(self._code) % 64)
            self.place(label)
            self._code += content
        self._pool.clear()
        for position, label, behind in self._fixups:
            target = self._places[label.number]
            if target < 0:
                raise ValueError(f"label {label.number} was never placed")
            struct.pack_into("<i", self._code, position, target - (position + 4 + behind))
        self._fixups.clear()
        return bytes(self._code)

    # -- general registers ----------------------------------------------------------------------------------

    def mov(self, target: Operand, source: Operand) -> None:
        """A 64-bit move between registers, or to or from memory."""
        if isinstance(target, Mem):
            assert not isinstance(source, Mem)
            self._general(0x89, source, target)
        else:
            self._general(0x8B, target, source)

    def mov32(self, target: Operand, source: Operand) -> None:
        """A 32-bit move; a register's upper half becomes zero."""
        if isinstance(target, Mem):
            assert not isinstance(source, Mem)
            self._general(0x89, source, target, wide=0)
        else:
            self._general(0x8B, target, source, wide=0)

    def move_immediate(self, target: int, value: int) -> None:
        """A constant into a register."""
        if 0 <= value < 1 << 32:
            if target >= 8:
                self._code.append(0x41)
            self._code += bytes([0xB8 | target & 7]) + struct.pack("<I", value)
        elif -(1 << 31) <= value < 0:
            self._general(0xC7, 0, target, immediate=struct.pack("<i", value))
        else:
            self._code += bytes([0x48 | target >> 3, 0xB8 | target & 7])
            self._code += struct.pack("<Q", value & 0xFFFFFFFFFFFFFFFF)

    def lea(self, target: int, source: Mem) -> None:
        """The address of a memory operand."""
        self._general(0x8D, target, source)

    def add(self, target: int, source: Operand) -> None:
        self._general(0x03, target, source)

    def sub(self, target: int, source: Operand) -> None:
        self._general(0x2B, target, source)

    def xor(self, target: int, source: Operand) -> None:
        self._general(0x33, target, source)

    def logical_and(self, target: int, source: Operand) -> None:
        self._general(0x23, target, source)

    def cmp(self, first: int, second: Operand) -> None:
        self._general(0x3B, first, second)

    def test(self, first: int, second: int) -> None:
        self._general(0x85, first, second)

    def multiply(self, target: int, source: Operand) -> None:
        """target *= source, signed."""
        self._general(0xAF, target, source, escape=True)

    def multiply_immediate(self, target: int, source: Operand, value: int) -> None:
        """target = source * value."""
        self._general(0x69, target, source, immediate=struct.pack("<i", value))

    def add_immediate(self, target: int, value: int) -> None:
        self._arithmetic_immediate(0, target, value)

    def sub_immediate(self, target: int, value: int) -> None:
        self._arithmetic_immediate(5, target, value)

    def and_immediate(self, target: int, value: int) -> None:
        self._arithmetic_immediate(4, target, value)

    def cmp_immediate(self, first: int, value: int) -> None:
        self._arithmetic_immediate(7, first, value)

    def shift_left(self, target: int, count: int) -> None:
        self._general(0xC1, 4, target, immediate=bytes([count]))

    def shift_right(self, target: int, count: int) -> None:
        self._general(0xC1, 5, target, immediate=bytes([count]))

    def shift_right_signed(self, target: int, count: int) -> None:
        self._general(0xC1, 7, target, immediate=bytes([count]))

    def decrement(self, target: int) -> None:
        self._general(0xFF, 1, target)

    def negate(self, target: int) -> None:
        self._general(0xF7, 3, target)

    def divide(self, divisor: int) -> None:
        """RAX, RDX = the unsigned 128-bit number RDX:RAX divided by a register: quotient, remainder."""
        self._general(0xF7, 6, divisor)

    def divide_signed(self, divisor: int) -> None:
        """RAX, RDX = RAX divided by a register: quotient, remainder; the most negative number by -1 traps."""
        self._code += b"\x48\x99"
        self._general(0xF7, 7, divisor)

    def extend_sign(self, target: int) -> None:
        """The lower 32 bits of a register to 64 (movsxd)."""
        self._general(0x63, target, target)

    def test_immediate(self, first: int, value: int) -> None:
        self._general(0xF7, 0, first, immediate=struct.pack("<i", value))

    def exact_remainder(self, target: Mem, dividend: Mem, divisor: Mem, size: int) -> None:
        """target = what is left of one float of 4 or 8 bytes by another, with the dividend's sign (fprem).

        Changes RAX; uses two places of the old floating-point stack.
        """
        opcode = {4: 0xD9, 8: 0xDD}[size]
        self._general(opcode, 0, divisor, wide=0)
        self._general(opcode, 0, dividend, wide=0)
        again = self.here()
        # A turn lowers the exponent by up to 63; the third bit of the status' upper byte says: not yet done.
        self._code += b"\xd9\xf8" + b"\xdf\xe0" + b"\xf6\xc4\x04"
        self.jump_if("nz", again)
        self._general(opcode, 3, target, wide=0)
        self._code += b"\xdd\xd8"

    def _arithmetic_immediate(self, which: int, target: int, value: int) -> None:
        if -128 <= value < 128:
            self._general(0x83, which, target, immediate=struct.pack("<b", value))
        else:
            self._general(0x81, which, target, immediate=struct.pack("<i", value))

    def push(self, register: int) -> None:
        self._code += bytes([0x41] if register >= 8 else []) + bytes([0x50 | register & 7])

    def pop(self, register: int) -> None:
        self._code += bytes([0x41] if register >= 8 else []) + bytes([0x58 | register & 7])

    def call(self, target: Operand) -> None:
        """Calls the address in a register or in memory."""
        self._general(0xFF, 2, target, wide=0)

    def ret(self) -> None:
        self._code.append(0xC3)

    def jump(self, label: Label) -> None:
        self._code.append(0xE9)
        self._relative(label)

    def jump_if(self, condition: str, label: Label) -> None:
        """Jumps where the last comparison says so; see `CONDITIONS`."""
        self._code += bytes([0x0F, 0x80 | CONDITIONS[condition]])
        self._relative(label)

    def exchange_add(self, target: Mem, register: int) -> None:
        """Atomically: target += register, which receives the old value (64-bit)."""
        self._code.append(0xF0)
        self._general(0xC1, register, target, escape=True)

    def atomic_add_immediate(self, target: Mem, value: int) -> None:
        """Atomically: target += value (64-bit, value in one signed byte); sets the flags."""
        self._code.append(0xF0)
        self._general(0x83, 0, target, immediate=struct.pack("<b", value))

    def pause(self) -> None:
        self._code += b"\xf3\x90"

    def cpuid(self) -> None:
        self._code += b"\x0f\xa2"

    def read_extended_control(self) -> None:
        """EDX:EAX = the extended control register that ECX names (xgetbv)."""
        self._code += b"\x0f\x01\xd0"

    def system_call(self) -> None:
        self._code += b"\x0f\x05"

    def zero_upper(self) -> None:
        """Clears the upper halves of vector registers (before code that uses the older encodings)."""
        self._code += b"\xc5\xf8\x77"

    def prefetch(self, source: Mem, level: int = 1) -> None:
        """Asks for the cache line, into this level of the caches and those below (prefetcht0, t1, t2)."""
        self._general(0x18, level, source, wide=0, escape=True)

    @contextmanager
    def loop(self, counter: int, count: int | None = None) -> Iterator[None]:
        """Repeats what is inside, counting a register down to zero: from `count`, else from what it holds."""
        if count is not None:
            self.move_immediate(counter, count)
        start = self.here()
        yield
        self.decrement(counter)
        self.jump_if("nz", start)

    # -- vector registers -----------------------------------------------------------------------------------

    def vector(
        self,
        name: str,
        target: int,
        first: int,
        second: Operand,
        *,
        mask: int = 0,
        zeroes: bool = False,
        bits: int = 0,
    ) -> None:
        """An instruction of three operands (`addps`, `fmadd231ps`, …).

        Args:
            name: as in Intel's manual, without the v; integer forms without their size (`pand`).
            target: register.
            first: register.
            second: register or memory.
            mask: a mask register (AVX-512), 0 for none.
            zeroes: whether lanes that the mask leaves out become zero.
            bits: 128, 256, 512; 0 for as many lanes as vectors have, of this instruction's size.
        """
        self._emit_vector(VECTOR[name], target, first, second, mask, zeroes, bits)

    def unary(
        self, name: str, target: int, source: Operand, *, mask: int = 0, zeroes: bool = False, bits: int = 0
    ) -> None:
        """An instruction of two operands (`sqrtps`, `movups` as a load, `broadcastss`, …)."""
        self._emit_vector(UNARY[name], target, 0, source, mask, zeroes, bits)

    def immediate(
        self, name: str, target: int, first: int, second: Operand, value: int, *, mask: int = 0, bits: int = 0
    ) -> None:
        """An instruction of three operands and a number (`shufps`, …)."""
        self._emit_vector(IMMEDIATE[name], target, first, second, mask, False, bits, bytes([value]))

    def unary_immediate(self, name: str, target: int, source: Operand, value: int, *, bits: int = 0) -> None:
        """An instruction of two operands and a number (`permilps`, `roundps`, …)."""
        self._emit_vector(UNARY_IMMEDIATE[name], target, 0, source, 0, False, bits, bytes([value]))

    def shift(self, name: str, target: int, source: int, count: int, *, bits: int = 0) -> None:
        """Shifts lanes by a number: by the names of `SHIFTS`."""
        code, extension = SHIFTS[name]
        self._emit_vector(code, extension, target, source, 0, False, bits, bytes([count]))

    def store_vector(self, target: Mem, source: int, *, mask: int = 0, bits: int = 0, lane: int = 4) -> None:
        """Stores a vector of lanes of 4 or 8 bytes to any address (movups, movupd)."""
        code = Vector(0, 1, 0x11) if lane == 4 else Vector(1, 1, 0x11, 1, 0, 8)
        self._emit_vector(code, source, 0, target, mask, False, bits)

    def store_float(self, target: Mem, source: int) -> None:
        """Stores the lowest lane (movss)."""
        self._emit_vector(Vector(2, 1, 0x11, 0, 4), source, 0, target, 0, False, 128)

    def load_float(self, target: int, source: Mem) -> None:
        """Loads one float into the lowest lane, zero into the others (movss)."""
        self._emit_vector(Vector(2, 1, 0x10, 0, 4), target, 0, source, 0, False, 128)

    def store_half(self, target: Mem, source: int, *, mask: int = 0) -> None:
        """Stores a vector as float16, rounded to nearest even (cvtps2ph)."""
        self._emit_vector(Vector(1, 3, 0x1D, 0, -2), source, 0, target, mask, False, 0, b"\x00")

    def compare(self, target: int, first: int, second: Operand, predicate: int, *, lane: int = 4) -> None:
        """Compares floats (cmpps, cmppd): target is a mask register with AVX-512, a vector with AVX2."""
        code = Vector(0, 1, 0xC2) if lane == 4 else Vector(1, 1, 0xC2, 1, 0, 8)
        self._emit_vector(code, target, first, second, 0, False, 0, bytes([predicate]))

    def compare_integers(
        self,
        target: int,
        first: int,
        second: Operand,
        predicate: int,
        *,
        lane: int = 4,
        is_signed: bool = True,
    ) -> None:
        """Compares lanes into a mask register (pcmpd, AVX-512): 0 =, 1 <, 2 ≤, 4 ≠, 5 ≥, 6 >."""
        code = Vector(1, 3, 0x1F if is_signed else 0x1E, int(lane == 8), 0, lane)
        self._emit_vector(code, target, first, second, 0, False, 0, bytes([predicate]))

    def blend(self, target: int, if_clear: int, if_set: Operand, mask: int, *, lane: int = 4) -> None:
        """Chooses by lane: `mask` is a mask register with AVX-512, a vector (its sign bits) with AVX2."""
        if self.has_avx512:
            self.vector("blendmps" if lane == 4 else "blendmpd", target, if_clear, if_set, mask=mask)
        else:
            code = Vector(1, 3, 0x4A if lane == 4 else 0x4B, 0, 0, lane)
            self._emit_vector(code, target, if_clear, if_set, 0, False, 0, bytes([mask << 4]))

    def to_half(self, target: int, source: int, *, bits: int = 128) -> None:
        """Lanes as float16, rounded to nearest even, in a register: of `bits` (0: all) of the source."""
        self._emit_vector(Vector(1, 3, 0x1D), source, 0, target, 0, False, bits, b"\x00")

    def store_low(self, target: Mem, source: int, size: int, *, position: int = 0) -> None:
        """Stores the lowest 1, 2, 4 or 8 bytes of a register (vpextrb, vpextrw, vmovss, vmovq).

        Elements of 1 and 2 bytes may be at another position of the lowest 16 bytes.
        """
        assert size < 4 or not position
        if size == 4:
            self.store_float(target, source)
        elif size == 8:
            self._emit_vector(Vector(1, 1, 0xD6, 2, 8), source, 0, target, 0, False, 128)
        else:
            code = Vector(1, 3, {1: 0x14, 2: 0x15}[size], 0, size)
            self._emit_vector(code, source, 0, target, 0, False, 128, bytes([position]))

    def store_truncated(self, target: Mem, source: int, size: int, *, mask: int = 0) -> None:
        """Stores the lowest 1 or 2 bytes of every 32-bit lane (vpmovdb, vpmovdw, AVX-512)."""
        code = {1: Vector(2, 2, 0x31, 0, -4), 2: Vector(2, 2, 0x33, 0, -2)}[size]
        self._emit_vector(code, source, 0, target, mask, False, 0)

    def truncate_lanes(self, target: int, source: int) -> None:
        """The lower halves of 64-bit lanes as 32-bit lanes (vpmovqd, AVX-512)."""
        self._emit_vector(Vector(2, 2, 0x35, 0, -2, 8), source, 0, target, 0, False, 0)

    def insert_element(self, target: int, source: Mem, position: int, size: int) -> None:
        """Loads 1 or 2 bytes into a place of the lowest 16 bytes (vpinsrb, vpinsrw); the others stay."""
        code = {1: Vector(1, 3, 0x20, 0, 1), 2: Vector(1, 1, 0xC4, 0, 2)}[size]
        self._emit_vector(code, target, target, source, 0, False, 128, bytes([position]))

    def gather(self, target: int, base: Mem, index: int, mask: int, *, lane: int = 4) -> None:
        """Loads lanes of 4 or 8 bytes of a mask from base + index in bytes, and clears the mask.

        The index is a vector register of 32-bit lanes whose number is not 4 or 20; the mask is a vector with
        AVX2, of lanes of the size loaded.
        """
        source = replace(base, index=index & 15)
        wide = int(lane == 8)
        if self.has_avx512:
            code = Vector(1, 2, 0x92, wide, lane, lane)
            self._emit_vector(code, target, index & 16, source, mask, False, 0)
        else:
            self._emit_vector(Vector(1, 2, 0x92, wide, 0, lane), target, mask, source, 0, False, 0)

    def mask_bits(self, target: int, mask: int) -> None:
        """A mask register in a general one (kmovw); with AVX2 the sign bits of a vector (vmovmskps)."""
        if self.has_avx512:
            # Registers from 8 on differ in the prefix.
            self._code += bytes([0xC5, 0xF8 if target < 8 else 0x78, 0x93, 0xC0 | (target & 7) << 3 | mask])
        else:
            self._emit_vector(Vector(0, 1, 0x50), target, 0, mask, 0, False, 0)

    def integer_to_double(self, target: int, source: int) -> None:
        """The lowest lane as a double from a signed 64-bit general register (vcvtsi2sd)."""
        self._emit_vector(Vector(3, 1, 0x2A, 1, 8), target, target, source, 0, False, 128)

    def multiply_double(self, target: int, first: int, second: Operand) -> None:
        """Product of doubles in the lowest lane (vmulsd)."""
        self._emit_vector(Vector(3, 1, 0x59, 2, 8), target, first, second, 0, False, 128)

    def double_to_float(self, target: int, source: int) -> None:
        """The double in the lowest lane rounded to a float (vcvtsd2ss)."""
        self._emit_vector(Vector(3, 1, 0x5A, 2, 8), target, source, source, 0, False, 128)

    def mask_to_vector(self, target: int, mask: int) -> None:
        """Lanes of all ones where the mask register is set, zeros elsewhere (vpmovm2d, AVX-512)."""
        self._emit_vector(Vector(2, 2, 0x38), target, 0, mask, 0, False, 0)

    def vector_to_mask(self, mask: int, source: int) -> None:
        """The sign bits of the lanes into a mask register (vpmovd2m, AVX-512)."""
        self._emit_vector(Vector(2, 2, 0x39), mask, 0, source, 0, False, 0)

    def load_masked(self, target: int, source: Mem, mask: int, *, lane: int = 4) -> None:
        """Loads the lanes of a mask, zero elsewhere; reads nothing of the others."""
        if self.has_avx512:
            self.unary("movups" if lane == 4 else "movupd", target, source, mask=mask, zeroes=True)
        else:
            self._emit_vector(Vector(1, 2, 0x2C, 0, 0, lane), target, mask, source, 0, False, 0)

    def store_masked(self, target: Mem, source: int, mask: int, *, lane: int = 4) -> None:
        """Stores the lanes of a mask; writes nothing else."""
        if self.has_avx512:
            self.store_vector(target, source, mask=mask, lane=lane)
        else:
            self._emit_vector(Vector(1, 2, 0x2E, 0, 0, lane), source, mask, target, 0, False, 0)

    def extract_upper(self, target: int, source: int, *, bits: int) -> None:
        """The upper half of a vector of that many bits (256 or 512)."""
        if bits == 512:
            self._emit_vector(Vector(1, 3, 0x1B, 1), source, 0, target, 0, False, 512, b"\x01")
        else:
            self._emit_vector(Vector(1, 3, 0x19), source, 0, target, 0, False, 256, b"\x01")

    def move_mask(self, target: int, source: int) -> None:
        """A mask register from the low 16 bits of a general register (kmovw)."""
        self._code += bytes([0xC5 if source < 8 else 0xC4])
        self._code += bytes([0xF8]) if source < 8 else bytes([0xC1, 0x78])
        self._code += bytes([0x92, 0xC0 | target << 3 | source & 7])

    def combine_masks(self, name: str, target: int, first: int, second: int) -> None:
        """`and`, `or`, `xor`, `xnor`, `andn` (not first, and second) of mask registers."""
        opcode = {"and": 0x41, "andn": 0x42, "or": 0x45, "xnor": 0x46, "xor": 0x47}[name]
        self._code += bytes([0xC5, 0x84 | (~first & 15) << 3, opcode, 0xC0 | target << 3 | second])

    def invert_mask(self, target: int, source: int) -> None:
        """Every bit of a mask register turned."""
        self._code += bytes([0xC5, 0xF8, 0x44, 0xC0 | target << 3 | source])

    # -- encoding -------------------------------------------------------------------------------------------

    def _relative(self, label: Label, behind: int = 0) -> None:
        self._fixups.append((len(self._code), label, behind))
        self._code += b"\0\0\0\0"

    def _general(
        self, opcode: int, register: int, operand: Operand, *, wide: int = 1, escape: bool = False,
        immediate: bytes = b"",
    ) -> None:  # fmt: skip
        base, index = _extensions(operand)
        rex = 0x40 | wide << 3 | (register >> 3) << 2 | (index >> 3 & 1) << 1 | (base >> 3 & 1)
        if rex != 0x40:
            # An atomic prefix must stay in front of REX: it was appended just before.
            self._code.append(rex)
        if escape:
            self._code.append(0x0F)
        self._code.append(opcode)
        self._operand(register, operand, 1, len(immediate))
        self._code += immediate

    def _emit_vector(
        self, code: Vector, register: int, second: int, operand: Operand, mask: int, zeroes: bool, bits: int,
        immediate: bytes = b"",
    ) -> None:  # fmt: skip
        bits = bits or min(8 * code.lane * self.lanes, self.full_bits)
        wide = int(code.wide == 1 or (code.wide == 2 and self.has_avx512))
        base, index = _extensions(operand)
        length = {128: 0, 256: 1, 512: 2}[bits]
        if not self.has_avx512:
            assert not mask and bits < 512
            r, x, b = ~register >> 3 & 1, ~index >> 3 & 1, ~base >> 3 & 1
            self._code += bytes(
                [
                    0xC4,
                    r << 7 | x << 6 | b << 5 | code.map,
                    wide << 7 | (~second & 15) << 3 | length << 2 | code.prefix,
                ]
            )
            unit = 1
        else:
            is_broadcast = isinstance(operand, Mem) and operand.is_broadcast
            # For a register operand the X bit is the fifth bit of its number.
            x = ~index >> 3 & 1 if isinstance(operand, Mem) else ~operand >> 4 & 1
            r, b, upper = ~register >> 3 & 1, ~base >> 3 & 1, ~register >> 4 & 1
            self._code += bytes(
                [
                    0x62,
                    r << 7 | x << 6 | b << 5 | upper << 4 | code.map,
                    wide << 7 | (~second & 15) << 3 | 4 | code.prefix,
                    zeroes << 7 | length << 5 | is_broadcast << 4 | (~second >> 4 & 1) << 3 | mask,
                ]
            )
            whole = bits // 8
            unit = 4 if is_broadcast else whole // -code.unit if code.unit < 0 else code.unit or whole
        self._code.append(code.opcode)
        self._operand(register, operand, unit, len(immediate))
        self._code += immediate

    def _operand(self, register: int, operand: Operand, unit: int, behind: int) -> None:
        field = (register & 7) << 3
        if not isinstance(operand, Mem):
            self._code.append(0xC0 | field | operand & 7)
            return
        if operand.label is not None:
            # Displacements from a labelled place are added by the fixup's own bytes being biased.
            assert operand.displacement == 0 and operand.index < 0
            self._code.append(field | 5)
            self._relative(operand.label, behind)
            return
        displacement, base = operand.displacement, operand.base
        if displacement == 0 and base & 7 != 5:
            mode, content = 0, b""
        elif displacement % unit == 0 and -128 <= displacement // unit < 128:
            mode, content = 1, struct.pack("<b", displacement // unit)
        else:
            mode, content = 2, struct.pack("<i", displacement)
        if operand.index >= 0:
            assert operand.index != RSP
            scale = {1: 0, 2: 1, 4: 2, 8: 3}[operand.scale]
            self._code += bytes([mode << 6 | field | 4, scale << 6 | (operand.index & 7) << 3 | base & 7])
        elif base & 7 == 4:
            self._code += bytes([mode << 6 | field | 4, 0x24])
        else:
            self._code.append(mode << 6 | field | base & 7)
        self._code += content


def _extensions(operand: Operand) -> tuple[int, int]:
    """Numbers of the base (or register) and index whose upper bits go into a prefix."""
    if not isinstance(operand, Mem):
        return operand, 0
    return max(operand.base, 0), max(operand.index, 0)
