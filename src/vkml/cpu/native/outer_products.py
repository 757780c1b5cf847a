"""The inner loop of products: sums of outer products, of one float a row with vectors of a packed panel."""

from __future__ import annotations

from collections.abc import Sequence

from vkml.cpu.native.assembler import R10, R11, RCX, Mem
from vkml.cpu.native.vectors import VectorCode

UNROLL = 4


def add_outer_products(
    code: VectorCode,
    sums: Sequence[Sequence[int]],
    *,
    inner: int,
    row_step: int,
    k_step: int,
    panel_step: int,
    last_bits: int = 0,
) -> None:
    """Adds over k to a tile in registers; R10 (A's first row) and R11 (the panel) move on, RCX counts.

    Args:
        code: receives the code; uses as many registers behind the sums as a row has, and one more.
        sums: registers from 0 on, a list of vectors a row.
        inner: length of k.
        row_step: bytes from row to row of A.
        k_step: bytes from float to float of a row.
        panel_step: bytes of the panel for each k.
        last_bits: 256 where half of the last vector (AVX-512) is enough, else 0.
    """
    unroll = UNROLL if inner >= 2 * UNROLL else inner
    times, rest = divmod(inner, unroll)
    if times > 1:
        with code.loop(RCX, times):
            _add(code, sums, unroll, row_step, k_step, panel_step, last_bits)
            code.add_immediate(R10, unroll * k_step)
            code.add_immediate(R11, unroll * panel_step)
    else:
        rest = inner
    if rest:
        _add(code, sums, rest, row_step, k_step, panel_step, last_bits)
        code.add_immediate(R10, rest * k_step)
        code.add_immediate(R11, rest * panel_step)


def _add(
    code: VectorCode,
    sums: Sequence[Sequence[int]],
    count: int,
    row_step: int,
    k_step: int,
    panel_step: int,
    last_bits: int,
) -> None:
    vectors = len(sums[0])
    used = len(sums) * vectors
    panel, single = range(used, used + vectors), used + vectors
    bits = [0] * (vectors - 1) + [last_bits]
    for k in range(count):
        for v in range(vectors):
            code.unary("movups", panel[v], Mem(R11, k * panel_step + v * code.bytes), bits=bits[v])
        for row, registers in enumerate(sums):
            place = Mem(R10, row * row_step + k * k_step)
            if vectors == 1 and code.has_avx512:
                source = Mem(place.base, place.displacement, is_broadcast=True)
                code.vector("fmadd231ps", registers[0], panel[0], source, bits=last_bits)
                continue
            code.broadcast(single, place)
            for v, register in enumerate(registers):
                code.vector("fmadd231ps", register, single, panel[v], bits=bits[v])
