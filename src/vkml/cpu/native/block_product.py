"""Products with a constant matrix of few bits a number, which are unpacked in registers.

Index space: (row, column). A panel is one vector of columns: words of 32 bits, each with neighbours along k
of one column, [panel][word][lane], and a scale (and zero point) for each block of k, [panel][block][lane]. So
weights are read once for each group of rows, front to back, and never lie in memory as floats.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from vkml.cpu.native import transfer
from vkml.cpu.native.assembler import (
    R8,
    R9,
    R10,
    R11,
    R12,
    R13,
    R15,
    RAX,
    RBX,
    RCX,
    RDI,
    RDX,
    RSI,
    Label,
    Mem,
)
from vkml.cpu.native.element import ITEM_BYTES
from vkml.cpu.native.executable import InstructionSet
from vkml.cpu.native.expression import Epilogue
from vkml.cpu.native.kept_kernels import kept_kernel
from vkml.cpu.native.kernel import Kernel, Launch
from vkml.cpu.native.tail import finish_vector
from vkml.cpu.native.tiles import MASK, lanes_of
from vkml.cpu.native.vectors import VectorCode
from vkml.dataclasses import dataclass

Array = np.ndarray[Any, Any]
WORD_BITS = 32
BITS = (2, 4, 8)
"""That numbers may have."""
SECONDS_PER_BYTE = 1 / 25e9
SECONDS_PER_FLOP = 1 / 80e9
CHUNK_SECONDS = 4e-6
"""Of a chunk at least, where threads share the work."""
STRIP = 4
"""Panels that each of several groups of rows meets in a chunk: 128 rows times 4096 x 4096 took 24 ms on one
core of a Zen 5, 35 where rows were read again for each panel."""
_CHAINS = 4
"""Of multiply-adds that do not wait for one another, where there are registers for them."""
_UNIT = 32
"""Numbers of k that are written out one after the other."""


@dataclass(frozen=True)
class BlockFormat:
    """How a matrix is quantised.

    Attributes:
        bits: of a number; see `BITS`.
        block: numbers along k that share a scale: whole words.
        scale: the type of scales, a float's.
        zero: the type of zero points, "int8" or a float's; "" where there are none. They count from the
            middle of what the bits hold.
    """

    bits: int
    block: int
    scale: str
    zero: str = ""

    @property
    def per_word(self) -> int:
        return WORD_BITS // self.bits


@dataclass(frozen=True)
class BlockShape:
    """All that the code depends on; steps in bytes."""

    instructions: InstructionSet
    form: BlockFormat
    inner: int
    group: int
    """Rows that are worked on at once, a chunk says how often; 0 where all rows are the last ones."""
    left: int
    """Rows behind the last group."""
    row_step: int
    k_step: int
    tail_lanes: int
    """Columns of the last panel; 0: all."""
    steps: tuple[int, ...]
    """Bytes from row to row of each leaf and result."""
    epilogue: Epilogue


def middles(bits: int) -> int:
    """A word whose numbers are the middle of what bits count to."""
    return sum(1 << at for at in range(bits - 1, WORD_BITS, bits))


def pack_codes(codes: Array, bits: int, inner: int, lanes: int) -> Array:
    """Rows of bytes, one a column, whose lowest bits are first along k, as words [panel, word, lane].

    Numbers become signed: what is the middle of unsigned ones is 0.
    """
    words = -(-inner * bits // WORD_BITS)
    whole = codes.view("<u4")[:, :words] ^ np.uint32(middles(bits))
    return np.asarray(pack_columns(whole, lanes)).view(np.int32)


def pack_columns(values: Array, lanes: int) -> Array:
    """[columns, n] → [panel, n, lane], the last panel filled up with zeros."""
    columns, count = values.shape
    panels = -(-columns // lanes)
    if columns % lanes:
        values = np.concatenate([values, np.zeros((panels * lanes - columns, count), values.dtype)])
    return np.ascontiguousarray(values.reshape(panels, lanes, count).transpose(0, 2, 1))


def most_rows(instructions: InstructionSet) -> int:
    """Of a group.

    A core of a Zen 5 with AVX-512 did 205 GFLOP/s (4096 x 1024) with 8 to 14 rows, whose products of a block
    are added up before they are scaled, 190 with 20 to 24 and scaled weights; with AVX2 83 with 5 rows, 100
    with 10 and scaled weights.
    """
    return 12 if instructions is InstructionSet.AVX512 else 10


def block_product(
    instructions: InstructionSet,
    *,
    form: BlockFormat,
    rows: int,
    inner: int,
    columns: int,
    a: tuple[int, int],
    epilogue: Epilogue,
    threads: int,
) -> Launch:
    """A [rows, inner] times a matrix of few bits [inner, columns], then an epilogue.

    Args:
        instructions: the set that code may use.
        form: of the matrix.
        rows: of A.
        inner: columns of A, rows of the matrix.
        columns: of the matrix.
        a: element strides of A.
        epilogue: over (row, column); leaves walk columns by 0 or 1, results by 1.
        threads: that will share the work.

    Returns:
        A launch of A, the codes (`pack_codes`), the scales and the zero points, where there are any (both as
        `pack_columns` makes them), the leaves, the results.
    """
    return grouped_launch(
        instructions,
        _kernel,
        form=form,
        rows=rows,
        group=most_rows(instructions),
        inner=inner,
        columns=columns,
        steps=(4 * a[0], 4 * a[1]),
        epilogue=epilogue,
        threads=threads,
        seconds_per_flop=SECONDS_PER_FLOP,
    )


def grouped_launch(
    instructions: InstructionSet,
    make: Callable[[BlockShape], Kernel],
    *,
    form: BlockFormat,
    rows: int,
    group: int,
    inner: int,
    columns: int,
    steps: tuple[int, int],
    epilogue: Epilogue,
    threads: int,
    seconds_per_flop: float,
) -> Launch:
    """The launch of a kernel that takes panels of the matrix for groups of rows.

    Args:
        instructions: the set that code may use.
        make: the kernel, of all that its code depends on.
        form: of the matrix.
        rows: of A.
        group: rows that are worked on at once.
        inner: columns of A, rows of the matrix.
        columns: of the matrix.
        steps: bytes from row to row of A, and from number to number.
        epilogue: see `block_product`.
        threads: that will share the work.
        seconds_per_flop: of a product or a sum.
    """
    lanes = lanes_of(instructions)
    groups, left = divmod(rows, group)
    panels, blocks, words = -(-columns // lanes), -(-inner // form.block), -(-inner // form.per_word)
    scales = blocks * lanes * ITEM_BYTES[form.scale]
    zeros = blocks * lanes * ITEM_BYTES[form.zero] if form.zero else 0
    panel_bytes = 4 * words * lanes + scales + zeros
    seconds = panels * max(
        panel_bytes * SECONDS_PER_BYTE, 2.0 * max(rows, 4) * inner * lanes * seconds_per_flop
    )
    most = max(8 * threads if threads > 1 else 1, panels // STRIP if rows > group else 1)
    strips = max(1, min(panels, most, int(seconds / CHUNK_SECONDS)))
    starts = np.arange(strips) * panels // strips
    counts = np.append(starts[1:], panels) - starts
    accesses = (*epilogue.leaves, *epilogue.results)
    made = [0 * starts, starts * 4 * words * lanes, starts * scales, *([starts * zeros] if zeros else [])]
    made += [starts * lanes * access.strides[1] * access.itemsize for access in accesses]
    table = np.stack([*made, counts, starts + counts == panels, np.full(strips, groups)], 1)
    shape = BlockShape(
        instructions,
        form,
        inner,
        group if groups else 0,
        left,
        *steps,
        columns % lanes,
        tuple(access.itemsize * access.strides[0] for access in accesses),
        replace(
            epilogue,
            leaves=tuple(replace(access, strides=access.strides[-1:]) for access in epilogue.leaves),
            results=tuple(replace(access, strides=access.strides[-1:]) for access in epilogue.results),
        ),
    )
    return Launch(make(shape), np.ascontiguousarray(table, np.int64), seconds + 1e-7)


class RowGroups:
    """Groups of rows, the panels of a strip for each; sums in registers.

    R8 points to the first row of a group, R9 to a panel's words, R10 to its scales, R11 to its zero points.
    """

    def __init__(self, shape: BlockShape) -> None:
        self.shape = shape
        self.code = code = VectorCode(shape.instructions)
        accesses = (*shape.epilogue.leaves, *shape.epilogue.results)
        self.accesses = accesses
        self.operands = 3 + bool(shape.form.zero)
        """Before the leaves."""
        # Addresses in scratch memory: A's and the others' of a group, the latter's of a panel; counts.
        self.line, self.place = 0, 8 * (1 + len(accesses))
        self.group_count = self.place + 8 * len(accesses)
        self.panel_count = self.group_count + 8
        self.spill = -(-(self.panel_count + 8) // 64) * 64
        self.panels_column = 8 * (self.operands + len(accesses))
        # The last registers are what all rows share.
        self.free = code.registers - 5
        self.word, self.value, self.zero, self.scale, self.factor = range(self.free, code.registers)

    def panel(self, rows: int) -> list[int]:
        """Adds up a vector of columns for all k; the registers of the sums, one a row."""
        raise NotImplementedError

    def kernel(self, label: str) -> Kernel:
        """The whole kernel, by what `panel` writes."""
        code, shape = self.code, self.shape
        code.mov(RAX, Mem(RDI))
        code.add(RAX, Mem(RSI))
        code.mov(Mem(RDX, self.line), RAX)
        for at in range(len(self.accesses)):
            code.mov(RAX, Mem(RDI, 8 * (self.operands + at)))
            code.add(RAX, Mem(RSI, 8 * (self.operands + at)))
            code.mov(Mem(RDX, self.line + 8 * (1 + at)), RAX)
        if shape.tail_lanes and code.has_avx512:
            code.set_mask(MASK, shape.tail_lanes)
        if shape.group:
            code.mov(RAX, Mem(RSI, self.panels_column + 16))
            code.mov(Mem(RDX, self.group_count), RAX)
            again = code.here()
            self._group(shape.group)
            self._advance(self.line, shape.group * shape.row_step)
            for at, step in enumerate(shape.steps):
                self._advance(self.line + 8 * (1 + at), shape.group * step)
            self._count_down(self.group_count, again)
        if shape.left:
            self._group(shape.left)
        code.ret()
        return Kernel(label, code.finish(), self.spill + max(shape.group, shape.left) * code.bytes)

    def _advance(self, place: int, step: int) -> None:
        if step:
            self.code.mov(RAX, Mem(RDX, place))
            self.code.add_immediate(RAX, step)
            self.code.mov(Mem(RDX, place), RAX)

    def _count_down(self, place: int, again: Label) -> None:
        self.code.mov(RAX, Mem(RDX, place))
        self.code.decrement(RAX)
        self.code.mov(Mem(RDX, place), RAX)
        self.code.jump_if("nz", again)

    def _group(self, rows: int) -> None:
        """The panels of the strip for some rows."""
        code, shape = self.code, self.shape
        for operand, register in ((1, R9), (2, R10), (3, R11))[: self.operands - 1]:
            code.mov(register, Mem(RDI, 8 * operand))
            code.add(register, Mem(RSI, 8 * operand))
        for at in range(len(self.accesses)):
            code.mov(RAX, Mem(RDX, self.line + 8 * (1 + at)))
            code.mov(Mem(RDX, self.place + 8 * at), RAX)
        code.mov(RAX, Mem(RSI, self.panels_column))
        code.mov(Mem(RDX, self.panel_count), RAX)
        panel = code.here()
        code.mov(R8, Mem(RDX, self.line))
        for row, total in enumerate(self.panel(rows)):
            code.store(Mem(RDX, self.spill + row * code.bytes), total)
        if shape.tail_lanes:
            narrow, done = code.label(), code.label()
            code.mov(RAX, Mem(RDX, self.panel_count))
            code.sub(RAX, Mem(RSI, self.panels_column + 8))
            code.jump_if("z", narrow)
            self._finish(rows, None)
            code.jump(done)
            code.place(narrow)
            self._finish(rows, shape.tail_lanes)
            code.place(done)
        else:
            self._finish(rows, None)
        self._count_down(self.panel_count, panel)

    def _finish(self, rows: int, lanes: int | None) -> None:
        """The epilogue of a vector of columns; R13 counts rows, R12 walks their sums."""
        code, shape = self.code, self.shape
        top, mask = code.registers, None
        if lanes is not None:
            mask = MASK
            if not code.has_avx512:
                top -= 1
                mask = top
                code.set_mask(mask, lanes)

        def place(operand: int) -> Mem:
            code.mov(R15, Mem(RDX, self.place + 8 * operand))
            return Mem(R15)

        code.move_immediate(R13, rows)
        code.lea(R12, Mem(RDX, self.spill))
        again = code.here()
        code.load(0, Mem(R12))
        finish_vector(code, shape.epilogue, 0, list(range(1, top)), place, mask, lanes)
        for at, step in enumerate(shape.steps):
            self._advance(self.place + 8 * at, step)
        code.add_immediate(R12, code.bytes)
        code.decrement(R13)
        code.jump_if("nz", again)
        for at, (step, access) in enumerate(zip(shape.steps, self.accesses, strict=True)):
            across = code.width * access.itemsize if access.strides[-1] else 0
            self._advance(self.place + 8 * at, across - rows * step)


@kept_kernel(256)
def _kernel(shape: BlockShape) -> Kernel:
    return _FloatCode(shape).kernel("block_product")


class _FloatCode(RowGroups):
    """Products of floats.

    Where rows are few, products of a block are added up before they are scaled; where they are many, weights
    are scaled first, once for all rows, and there is one sum a row.
    """

    def __init__(self, shape: BlockShape) -> None:
        super().__init__(shape)
        # With AVX-512 A's floats are operands in memory; the fifth register has the numbers that bits mean.
        self.has_table = self.code.has_avx512 and shape.form.bits < 8

    def panel(self, rows: int) -> list[int]:
        code, shape = self.code, self.shape
        totals = list(range(rows))
        chains = min(_CHAINS, self.free // rows - 1)
        if self.has_table:
            numbers = (np.arange(16) + (1 << shape.form.bits - 1)) % (1 << shape.form.bits)
            table = (numbers - (1 << shape.form.bits - 1)).astype(np.float32)
            code.load(self.factor, code.data(table.tobytes()))
        for register in totals:
            code.zero(register)
        full, left = divmod(shape.inner, shape.form.block)
        if full > 1:
            with code.loop(RCX, full):
                self._block(totals, chains, shape.form.block)
        elif full:
            self._block(totals, chains, shape.form.block)
        if left:
            self._block(totals, chains, left)
        return totals

    def _block(self, totals: list[int], chains: int, count: int) -> None:
        """One block of k, or the first numbers of it."""
        code, form, rows = self.code, self.shape.form, len(totals)
        if form.zero:
            transfer.load_elements(code, self.zero, Mem(R11), form.zero)
            if form.zero == "int8":
                code.unary("cvtdq2ps", self.zero, self.zero)
            code.add_immediate(R11, code.width * ITEM_BYTES[form.zero])
        transfer.load_elements(code, self.scale, Mem(R10), form.scale)
        code.add_immediate(R10, code.width * ITEM_BYTES[form.scale])
        if not chains:
            self._numbers(count, lambda at: totals, is_scaled=True)
            return
        sums = [[rows * (1 + chain) + row for row in range(rows)] for chain in range(chains)]
        for chain in sums:
            for register in chain:
                code.zero(register)
        self._numbers(count, lambda at: sums[at % chains], is_scaled=False)
        for row, total in enumerate(totals):
            for chain in sums[1:]:
                code.add_vector(sums[0][row], sums[0][row], chain[row])
            code.multiply_add(total, sums[0][row], self.scale)

    def _numbers(self, count: int, sums: Callable[[int], list[int]], *, is_scaled: bool) -> None:
        """Adds products of so many k to the sums for each."""
        unit = max(_UNIT // (2 if len(sums(0)) > 8 else 1), self.shape.form.per_word)
        times, left = divmod(count, unit)
        if times > 1:
            with self.code.loop(RBX, times):
                self._unit(unit, sums, is_scaled)
        elif times:
            self._unit(unit, sums, is_scaled)
        if left:
            self._unit(left, sums, is_scaled)

    def _unit(self, count: int, sums: Callable[[int], list[int]], is_scaled: bool) -> None:
        code, shape = self.code, self.shape
        per_word = shape.form.per_word
        for at in range(count):
            if at % per_word == 0:
                code.load(self.word, Mem(R9, at // per_word * code.bytes))
            self._unpack(at % per_word)
            if shape.form.zero:
                code.sub_vector(self.value, self.value, self.zero)
            if is_scaled:
                code.mul_vector(self.value, self.value, self.scale)
            for row, total in enumerate(sums(at)):
                place = Mem(R8, row * shape.row_step + at * shape.k_step)
                if code.has_avx512:
                    code.multiply_add(total, self.value, replace(place, is_broadcast=True))
                else:
                    code.broadcast(self.factor, place)
                    code.multiply_add(total, self.value, self.factor)
        code.add_immediate(R9, -(-count // per_word) * code.bytes)
        code.add_immediate(R8, count * shape.k_step)

    def _unpack(self, at: int) -> None:
        """The numbers at a place of the words as floats."""
        code, bits = self.code, self.shape.form.bits
        if self.has_table:
            # The lowest four bits of each lane choose; those of two bits have the others' every way.
            source = self.word
            if at:
                code.shift("psrld", self.value, self.word, bits * at)
                source = self.value
            code.vector("permps", self.value, source, self.factor)
            return
        source, above = self.word, WORD_BITS - bits * (at + 1)
        if above:
            code.shift("pslld", self.value, self.word, above)
            source = self.value
        code.shift("psrad", self.value, source, WORD_BITS - bits)
        code.unary("cvtdq2ps", self.value, self.value)
