"""Products of rows that are quantised on the way with a constant matrix of few bits, as products of bytes.

A row's numbers of each block of k become int8, by a scale of their own; four at a time meet as many of a
column's in one instruction (AVX-512 VNNI). A block of a quantised row lies as its bytes, filled up to a
multiple of `STEP`, and a header of `HEADER` bytes: the scale, what sums begin with (int32: less the codes'
middle times the sum of the bytes), and the sum of the bytes (float32), which zero points take.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from vkml.cpu.native import transfer
from vkml.cpu.native.assembler import R8, R9, R10, R11, R12, R13, RBX, RCX, RDI, RSI, Mem
from vkml.cpu.native.block_product import (
    WORD_BITS,
    BlockFormat,
    BlockShape,
    RowGroups,
    grouped_launch,
    middles,
)
from vkml.cpu.native.element import ITEM_BYTES
from vkml.cpu.native.executable import InstructionSet
from vkml.cpu.native.expression import Epilogue
from vkml.cpu.native.kept_kernels import kept_kernel
from vkml.cpu.native.kernel import Array, Kernel, Launch
from vkml.cpu.native.tiles import MASK
from vkml.cpu.native.vectors import VectorCode
from vkml.dataclasses import dataclass

STEP = 16
"""Bytes of a quantised row that are written at a time: a vector of numbers."""
HEADER = 16
LARGEST_BLOCK = 256
"""Numbers, which are written out one after the other."""
MOST_ROWS = 12
"""Of a group: each has two registers."""
SECONDS_PER_FLOP = 1 / 500e9
"""A core of a Zen 5 does 270e9 with one row, 620e9 with sixteen and more (products of floats: 127e9, 136e9
to 205e9), 2048 x 2048 of 4 bits in blocks of 32."""
SECONDS_PER_NUMBER = 0.2e-9
"""Of what quantises rows."""
_ROWS_AT_A_TIME = 4
_TINY = 1e-30
"""The greatest magnitude of a block counts as no less: zeros have an inverse, too."""


def padded_row(inner: int, block: int) -> int:
    """Bytes of a quantised row, an odd number of cache lines: rows are read together."""
    full, left = divmod(inner, block)
    size = full * (block + HEADER) + (-(-left // STEP) * STEP + HEADER if left else 0)
    return (-(-size // 64) | 1) * 64


@dataclass(frozen=True)
class _Rows:
    """All that the code which quantises rows depends on."""

    bits: int
    block: int
    inner: int
    row_step: int
    """Bytes from one row to the next."""


def quantize_rows(
    instructions: InstructionSet,
    *,
    bits: int,
    block: int,
    rows: int,
    inner: int,
    row_step: int,
    threads: int,
) -> Launch:
    """Rows of float32 as bytes in blocks, for `block_dots`.

    Args:
        instructions: the set that code may use, AVX-512.
        bits: of the matrix's numbers, which the bytes' order goes by.
        block: numbers with a scale, a multiple of `STEP`.
        rows: how many there are.
        inner: numbers of each.
        row_step: elements from one row to the next.
        threads: that will share the work.

    Returns:
        A launch of the rows and of as many rows of `padded_row` bytes.
    """
    assert instructions is InstructionSet.AVX512, "a mask register, truncating stores"
    pieces = min(rows, max(1, 2 * threads if rows * inner > 1 << 14 else 1))
    starts = np.arange(pieces) * rows // pieces
    counts = np.append(starts[1:], rows) - starts
    table = np.stack([starts * 4 * row_step, starts * padded_row(inner, block), counts], 1)
    kernel = _quantizing(_Rows(bits, block, inner, 4 * row_step))
    return Launch(kernel, np.ascontiguousarray(table, np.int64), rows * inner * SECONDS_PER_NUMBER + 1e-7)


def byte_order(bits: int) -> Array:
    """Which of `STEP` numbers lies at each place: bytes of a word are those that a mask finds in one."""
    parts, group = 8 // bits, WORD_BITS // bits
    order = [
        start + parts * lane + part
        for start in range(0, STEP, group)
        for part in range(parts)
        for lane in range(4)
    ]
    return np.array(order, np.int32)


@kept_kernel(64)
def _quantizing(shape: _Rows) -> Kernel:
    code = VectorCode(InstructionSet.AVX512)
    most, spoiled, value, order, magnitude, nothing, scale, total, spare = range(9)
    for operand, register in enumerate((R12, R13)):
        code.mov(register, Mem(RDI, 8 * operand))
        code.add(register, Mem(RSI, 8 * operand))
    code.mov(RBX, Mem(RSI, 16))
    code.load(order, code.data(byte_order(shape.bits).tobytes()))
    code.load(magnitude, code.bits(0x7FFFFFFF))
    code.zero(nothing)
    full, left = divmod(shape.inner, shape.block)
    if left % STEP:
        code.set_mask(MASK, left % STEP)

    def block(count: int) -> None:
        vectors = -(-count // STEP)

        def load(at: int) -> None:
            is_partial = at == vectors - 1 and count % STEP
            code.load(value, Mem(R8, 64 * at), MASK if is_partial else None)

        code.zero(most)
        code.zero(spoiled)
        for at in range(vectors):
            load(at)
            code.multiply_add(spoiled, value, nothing)  # NaN of NaN and infinities, which maxima may lose
            code.vector("pand", value, value, magnitude)
            code.vector("maxps", most, most, value)
        code.reduce_lanes("maxps", most, spare)
        code.reduce_lanes("addps", spoiled, spare)
        code.vector("addps", most, most, spoiled)
        code.vector("mulps", scale, most, code.constant(1 / 127))
        code.store_float(Mem(R9, STEP * vectors), scale)
        code.vector("maxps", most, most, code.constant(_TINY))
        code.load(scale, code.constant(127.0))
        code.vector("divps", scale, scale, most)
        code.zero(total)
        for at in range(vectors):
            load(at)
            code.mul_vector(value, value, scale)
            code.unary("cvtps2dq", value, value)
            code.vector("permps", spare, order, value)
            code.store_truncated(Mem(R9, STEP * at), spare, 1)
            code.unary("cvtdq2ps", value, value)
            code.add_vector(total, total, value)
        code.reduce_lanes("addps", total, spare)
        code.store_float(Mem(R9, STEP * vectors + 8), total)
        code.vector("mulps", total, total, code.constant(-float(1 << shape.bits - 1)))
        code.unary("cvtps2dq", total, total)
        code.store_float(Mem(R9, STEP * vectors + 4), total)
        code.add_immediate(R8, 4 * count)
        code.add_immediate(R9, STEP * vectors + HEADER)

    with code.loop(RBX):
        code.mov(R8, R12)
        code.mov(R9, R13)
        if full:
            with code.loop(RCX, full):
                block(shape.block)
        if left:
            block(left)
        code.add_immediate(R12, shape.row_step)
        code.add_immediate(R13, padded_row(shape.inner, shape.block))
    code.ret()
    return Kernel("quantize_rows", code.finish(), 0)


def block_dots(
    instructions: InstructionSet,
    *,
    form: BlockFormat,
    rows: int,
    inner: int,
    columns: int,
    epilogue: Epilogue,
    threads: int,
) -> Launch:
    """Quantised rows times a matrix of few bits, then an epilogue.

    Args:
        instructions: the set that code may use, AVX-512 with VNNI.
        form: of the matrix.
        rows: how many there are.
        inner: numbers of each, rows of the matrix.
        columns: of the matrix.
        epilogue: as for `block_product`.
        threads: that will share the work.

    Returns:
        A launch as `block_product`'s, of what `quantize_rows` makes.
    """
    assert instructions is InstructionSet.AVX512, "registers of both kinds of sums, operands in memory"
    return grouped_launch(
        instructions,
        _kernel,
        form=form,
        rows=rows,
        group=MOST_ROWS,
        inner=inner,
        columns=columns,
        steps=(padded_row(inner, form.block), 1),
        epilogue=epilogue,
        threads=threads,
        seconds_per_flop=SECONDS_PER_FLOP,
    )


@kept_kernel(256)
def _kernel(shape: BlockShape) -> Kernel:
    return _DotCode(shape).kernel("block_dots")


class _DotCode(RowGroups):
    """Groups of rows, each with a sum of a block's products, which are integers, and one of all blocks."""

    def panel(self, rows: int) -> list[int]:
        code, shape = self.code, self.shape
        totals = list(range(rows))
        # Codes are signed in memory, as for products of floats, and unsigned in their instruction.
        self.middles = self.free - 1
        code.load(self.middles, code.bits(middles(shape.form.bits)))
        if shape.form.bits < 8:
            code.load(self.factor, code.bits(sum(((1 << shape.form.bits) - 1) << 8 * at for at in range(4))))
        for register in totals:
            code.zero(register)
        full, left = divmod(shape.inner, shape.form.block)
        if full:
            with code.loop(RCX, full):
                self._block(totals, shape.form.block)
        if left:
            self._block(totals, left)
        return totals

    def _block(self, totals: list[int], count: int) -> None:
        code, form, step = self.code, self.shape.form, self.shape.row_step
        size = -(-count // STEP) * STEP
        sums = [len(totals) + row for row in totals]
        for row, register in enumerate(sums):
            code.broadcast(register, Mem(R8, row * step + size + 4))
        words = -(-count // form.per_word)
        parts = 8 // form.bits
        for word in range(words):
            code.vector("pxor", self.word, self.middles, Mem(R9, word * code.bytes))
            for part in range(parts):
                value = self.word
                if parts > 1:
                    source = self.word
                    if part:
                        code.shift("psrld", self.value, self.word, form.bits * part)
                        source = self.value
                    code.vector("pand", self.value, source, self.factor)
                    value = self.value
                for row, register in enumerate(sums):
                    four = Mem(R8, row * step + word * form.per_word + 4 * part)
                    code.vector("pdpbusd", register, value, replace(four, is_broadcast=True))
        code.add_immediate(R9, words * code.bytes)
        transfer.load_elements(code, self.scale, Mem(R10), form.scale)
        code.add_immediate(R10, code.width * ITEM_BYTES[form.scale])
        if form.zero:
            transfer.load_elements(code, self.zero, Mem(R11), form.zero)
            if form.zero == "int8":
                code.unary("cvtdq2ps", self.zero, self.zero)
            code.add_immediate(R11, code.width * ITEM_BYTES[form.zero])
        for row, register in enumerate(sums):
            header = Mem(R8, row * step + size)
            code.unary("cvtdq2ps", register, register)
            if form.zero:
                total = replace(header.plus(8), is_broadcast=True)
                code.vector("fnmadd231ps", register, self.zero, total)
            code.vector("mulps", register, register, replace(header, is_broadcast=True))
            code.multiply_add(totals[row], register, self.scale)
        code.add_immediate(R8, size + HEADER)
