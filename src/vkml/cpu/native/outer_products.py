"""The inner loop of products: sums of outer products, of one word a row with vectors of a packed panel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from vkml.cpu.native.assembler import R10, R11, RCX, Mem
from vkml.cpu.native.vectors import VectorCode

UNROLL = 4


Add = Callable[[VectorCode, Sequence[Sequence[int]], int, Sequence[int], int, int, int], None]
"""Adds the products of some k: code, sums, how many k; rows, steps and bits as for `add_outer_products`."""


def add_outer_products(
    code: VectorCode,
    add: Add,
    sums: Sequence[Sequence[int]],
    *,
    inner: int,
    rows: Sequence[int],
    k_step: int,
    panel_step: int,
    last_bits: int = 0,
) -> None:
    """Adds over k to a tile in registers; R10 (A's rows) and R11 (the panel) move on, RCX counts.

    Args:
        code: receives the code.
        add: what is multiplied; says how many registers behind the sums it uses.
        sums: registers from 0 on, a list of vectors a row.
        inner: length of k.
        rows: bytes from R10 to each row of A.
        k_step: bytes from float to float of a row.
        panel_step: bytes of the panel for each k.
        last_bits: 256 where half of the last vector (AVX-512) is enough, else 0.
    """
    unroll = UNROLL if inner >= 2 * UNROLL else inner
    times, rest = divmod(inner, unroll)
    if times > 1:
        with code.loop(RCX, times):
            add(code, sums, unroll, rows, k_step, panel_step, last_bits)
            code.add_immediate(R10, unroll * k_step)
            code.add_immediate(R11, unroll * panel_step)
    else:
        rest = inner
    if rest:
        add(code, sums, rest, rows, k_step, panel_step, last_bits)
        code.add_immediate(R10, rest * k_step)
        code.add_immediate(R11, rest * panel_step)


def _products(
    code: VectorCode,
    sums: Sequence[Sequence[int]],
    count: int,
    rows: Sequence[int],
    k_step: int,
    panel_step: int,
    last_bits: int,
    *,
    instruction: str,
    commutes: bool,
) -> None:
    """Products by one instruction for each vector; where it commutes, its last operand may be in memory."""
    vectors = len(sums[0])
    used = len(sums) * vectors
    panel, single = range(used, used + vectors), used + vectors
    bits = [0] * (vectors - 1) + [last_bits]
    for k in range(count):
        for v in range(vectors):
            code.unary("movups", panel[v], Mem(R11, k * panel_step + v * code.bytes), bits=bits[v])
        for row, registers in zip(rows, sums, strict=True):
            place = Mem(R10, row + k * k_step)
            if vectors == 1 and commutes and code.has_avx512:
                source = Mem(place.base, place.displacement, is_broadcast=True)
                code.vector(instruction, registers[0], panel[0], source, bits=last_bits)
                continue
            code.broadcast(single, place)
            for v, register in enumerate(registers):
                code.vector(instruction, register, single, panel[v], bits=bits[v])


float_products: Add = partial(_products, instruction="fmadd231ps", commutes=True)
"""Products of floats, rounded once with their sum; as many more registers as a row has, and one."""

byte_dots: Add = partial(_products, instruction="pdpbusd", commutes=False)
"""Four unsigned bytes times four signed ones, added to int32; as many registers as for floats."""

PAIR_REGISTERS = 5
"""That `byte_pairs` uses behind the sums."""


def byte_pairs(
    code: VectorCode,
    sums: Sequence[Sequence[int]],
    count: int,
    rows: Sequence[int],
    k_step: int,
    panel_step: int,
    last_bits: int,
) -> None:
    """As `byte_dots`, by products of 16 bits: of the even bytes, then of the odd ones.

    pmaddubsw would add two products in 16 bits, where they do not fit.
    """
    vectors = len(sums[0])
    used = len(sums) * vectors
    even, odd, left, single, product = range(used, used + PAIR_REGISTERS)
    for k in range(count):
        for v in range(vectors):
            code.unary("movups", odd, Mem(R11, k * panel_step + v * code.bytes))
            code.shift("psllw", even, odd, 8)
            code.shift("psraw", even, even, 8)
            code.shift("psraw", odd, odd, 8)
            for row, registers in zip(rows, sums, strict=True):
                code.broadcast(single, Mem(R10, row + k * k_step))
                code.vector("pand", left, single, code.bits(0x00FF00FF))
                code.vector("pmaddwd", product, left, even)
                code.vector("paddd", registers[v], registers[v], product)
                code.shift("psrlw", single, single, 8)
                code.vector("pmaddwd", product, single, odd)
                code.vector("paddd", registers[v], registers[v], product)
