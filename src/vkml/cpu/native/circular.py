"""Code for the sine and the cosine over vectors, at every size of the angle.

The emitters are called like those of `mathematics`, with one spare register more.
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Sequence

import numpy as np

from vkml.cpu.native.assembler import RAX, RBX, RCX, RDX, RSP, Mem
from vkml.cpu.native.mathematics import MASK, TO_NEAREST, VALUE_BITS, polynomial
from vkml.cpu.native.vectors import VectorCode

SPARE = 4
_HALF_PI = (1.57079637050628662109375, -4.37113900018624283e-8, -1.71512451e-15)
_SIN = (-0.00019507808610796928, 0.008332106284797192, -0.16666653752326965)
"""(sin r - r) / r³ in r² for |r| ≤ 0.79; relative error of sin 4.2e-9."""
_COS = (2.4431061319774017e-05, -0.0013887302484363317, 0.04166664555668831)
"""(cos r - 1 + r² / 2) / r⁴ in r²; relative error of cos 1.3e-10."""
_LARGE_EXPONENT = 16
"""From 2¹⁶ on angles are reduced by integers: three floats hold too few digits of π / 2 for them."""


def sin(code: VectorCode, target: int, source: int, spare: Sequence[int]) -> None:
    """The sine, at every size of the angle."""
    _circular(code, target, source, spare, 0)


def cos(code: VectorCode, target: int, source: int, spare: Sequence[int]) -> None:
    """The cosine; as the sine."""
    _circular(code, target, source, spare, 1)


def _circular(code: VectorCode, target: int, source: int, spare: Sequence[int], shift: int) -> None:
    """The sine of the angle's size and `shift` quarter turns; a sine takes the angle's sign then."""
    angle, quarter, square, value = spare[:4]
    size = square
    code.load(size, code.bits(VALUE_BITS))
    code.vector("andps", size, size, source)
    code.vector("mulps", quarter, size, code.constant(2 / math.pi))
    code.unary_immediate("roundps", quarter, quarter, TO_NEAREST)
    code.load(angle, code.constant(-_HALF_PI[0]))
    code.vector("fmadd213ps", angle, quarter, size)
    for part in _HALF_PI[1:]:
        code.vector("fnmadd231ps", angle, quarter, code.constant(part))
    code.unary("cvtps2dq", quarter, quarter)
    mask = MASK if code.has_avx512 else value
    code.compare(mask, size, code.constant(2.0**_LARGE_EXPONENT), 0x1D)
    code.mask_bits(RAX, mask)
    code.test(RAX, RAX)
    small = code.label()
    code.jump_if("z", small)
    _reduce_large(code, angle, quarter, size, value)
    code.place(small)
    if shift:
        code.vector("psubd", quarter, quarter, code.bits(-shift))
    code.vector("mulps", square, angle, angle)
    polynomial(code, value, square, _SIN)
    code.vector("mulps", value, value, square)
    code.vector("fmadd213ps", value, angle, angle)
    polynomial(code, angle, square, (*_COS, -0.5, 1.0))
    # Odd quarters take the cosine, the second and third the other sign.
    code.shift("pslld", square, quarter, 31)
    if code.has_avx512:
        code.vector_to_mask(MASK, square)
        code.blend(value, value, angle, MASK)
    else:
        code.blend(value, value, angle, square)
    code.shift("psrld", quarter, quarter, 1)
    code.shift("pslld", quarter, quarter, 31)
    if not shift:
        code.vector("xorps", value, value, quarter)
        code.load(quarter, code.bits(~VALUE_BITS))
        code.vector("andps", quarter, quarter, source)
    code.vector("xorps", target, value, quarter)


def _reduce_large(code: VectorCode, angle: int, quarter: int, source: int, spare: int) -> None:
    """Lane by lane: for x ≥ 2¹⁶ the nearest quarter turn, and the angle from there."""
    lanes = code.width
    saved = (RBX, RCX, RDX)
    for register in saved:
        code.push(register)
    code.sub_immediate(RSP, 3 * code.bytes)
    for position, register in enumerate((angle, quarter, source)):
        code.store(Mem(RSP, position * code.bytes), register)
    code.move_immediate(RBX, 0)
    start, following = code.here(), code.label()
    code.mov32(RAX, Mem(RSP, 2 * code.bytes, RBX, 4))
    code.mov(RCX, RAX)
    code.shift_right(RCX, 23)
    code.and_immediate(RCX, 255)
    code.sub_immediate(RCX, 127 + _LARGE_EXPONENT)
    code.cmp_immediate(RCX, 127 - _LARGE_EXPONENT)
    # Small angles wrapped round to great numbers; the exponent behind the last is of infinity and NaN.
    code.jump_if("a", following)
    code.shift_left(RCX, 4)
    code.lea(RDX, code.data(_turns()))
    code.add(RCX, RDX)
    code.mov(RDX, RAX)
    code.and_immediate(RDX, (1 << 23) - 1)
    code.add_immediate(RDX, 1 << 23)
    # The fraction of a full turn in 64 bits.
    code.mov(RAX, Mem(RCX, 8))
    code.multiply(RAX, RDX)
    code.shift_right(RAX, 32)
    code.multiply(RDX, Mem(RCX, 0))
    code.add(RDX, RAX)
    code.move_immediate(RAX, 1 << 61)
    code.add(RAX, RDX)
    code.shift_right(RAX, 62)
    code.mov32(Mem(RSP, code.bytes, RBX, 4), RAX)
    code.shift_left(RAX, 62)
    code.sub(RDX, RAX)
    code.integer_to_double(spare, RDX)
    code.multiply_double(spare, spare, code.data(struct.pack("<d", 2 * math.pi / 2**64)))
    code.double_to_float(spare, spare)
    code.store_float(Mem(RSP, 0, RBX, 4), spare)
    code.place(following)
    code.add_immediate(RBX, 1)
    code.cmp_immediate(RBX, lanes)
    code.jump_if("ne", start)
    for position, register in enumerate((angle, quarter)):
        code.load(register, Mem(RSP, position * code.bytes))
    code.add_immediate(RSP, 3 * code.bytes)
    for register in reversed(saved):
        code.pop(register)


@functools.cache
def _turns() -> bytes:
    """For each exponent e from 16 to 127: 2ᵉ⁻²³ / 2π modulo 1 in 96 bits, the upper 64 and the lower 32."""
    # The reciprocal of 2π, to 264 bits: the digits of π by Machin's formula.
    scale = 1 << 300

    def inverse_tangent(number: int) -> int:
        """arctan(1 / number) times the scale."""
        total, power, position = 0, scale // number, 0
        while power:
            total += (-power if position % 2 else power) // (2 * position + 1)
            power //= number * number
            position += 1
        return total

    pi = 4 * (4 * inverse_tangent(5) - inverse_tangent(239))
    turns = scale * scale // (2 * pi)
    words = []
    for exponent in range(_LARGE_EXPONENT, 128):
        moved = turns << exponent >> 23
        fraction = (moved % scale) >> 204
        words += [fraction >> 32, fraction & 0xFFFFFFFF]
    return np.array(words, np.uint64).tobytes()
