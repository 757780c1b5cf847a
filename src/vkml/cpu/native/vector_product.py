"""Products of a few rows with a matrix that is read in place, once, at the speed of memory."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from vkml.cpu.native.assembler import R8, R9, R10, R11, R12, R13, R14, R15, RAX, RBX, RCX, RDI, RDX, RSI, Mem
from vkml.cpu.native.executable import InstructionSet
from vkml.cpu.native.expression import Epilogue
from vkml.cpu.native.kernel import Kernel, Launch
from vkml.cpu.native.tail import finish_vector
from vkml.cpu.native.tiles import MASK, lanes_of
from vkml.cpu.native.vectors import VectorCode

MOST_ROWS = 4
LEAST_BYTES = 1 << 20
"""Smaller matrices are packed, if they are constant: `product` is faster then."""
SECONDS_PER_BYTE = 1 / 12e9
STRIP = 1024
"""Columns of a chunk at most: four rows of sums then stay in the first-level cache."""


@dataclass(frozen=True)
class _Shape:
    """All that the code depends on; steps in bytes."""

    instructions: InstructionSet
    rows: int
    inner: int
    strip: int
    """Columns of every chunk but the last."""
    last: int
    row_step: int
    k_step: int
    matrix_step: int
    """From one row of the matrix (or column, where these are its neighbours) to the next."""
    is_transposed: bool
    steps: tuple[int, ...]
    """Bytes from row to row of each leaf and result."""
    epilogue: Epilogue


def fits(*, m: int, k: int, n: int, b_strides: Sequence[int], is_constant: bool) -> bool:
    """Whether a product is worth doing here."""
    is_thin = m <= MOST_ROWS and (b_strides[1] == 1 or n == 1 or b_strides[0] == 1)
    return is_thin and 4 * k * n >= (LEAST_BYTES if is_constant else 4096) and k >= 16


def vector_product(
    instructions: InstructionSet,
    *,
    rows: int,
    inner: int,
    columns: int,
    a: tuple[int, int],
    b: tuple[int, int],
    epilogue: Epilogue,
    threads: int,
) -> Launch:
    """A [rows, inner] times B [inner, columns], then an epilogue.

    Args:
        instructions: the set that code may use.
        rows: at most `MOST_ROWS`.
        inner: columns of A, rows of B.
        columns: of B.
        a: element strides of A.
        b: element strides of B, one of which is 1; B may begin at any address.
        epilogue: over (row, column), float32; leaves walk columns by 0 or 1, results by 1.
        threads: that will share the work.

    Returns:
        A launch of A, B, the leaves, the results.
    """
    lanes = lanes_of(instructions)
    is_transposed = b[0] == 1 and (b[1] != 1 or columns == 1)
    strip = min(STRIP, -(-columns // (2 * threads)))
    strip = max(lanes, -(-strip // lanes) * lanes)
    starts = np.arange(0, columns, strip)
    last = columns - int(starts[-1])
    accesses = (*epilogue.leaves, *epilogue.results)
    made = [np.zeros_like(starts), starts * (b[1] if is_transposed else 1)]
    made += [starts * access.strides[1] for access in accesses]
    table = np.stack([*(4 * part for part in made), starts == starts[-1]], 1)
    shape = _Shape(
        instructions,
        rows,
        inner,
        strip,
        last,
        4 * a[0],
        4 * a[1],
        4 * (b[1] if is_transposed else b[0]),
        is_transposed,
        tuple(4 * access.strides[0] for access in accesses),
        replace(
            epilogue,
            leaves=tuple(replace(access, strides=access.strides[-1:]) for access in epilogue.leaves),
            results=tuple(replace(access, strides=access.strides[-1:]) for access in epilogue.results),
        ),
    )
    seconds = 4.0 * inner * columns * SECONDS_PER_BYTE
    return Launch(_kernel(shape), np.ascontiguousarray(table, np.int64), seconds + 1e-7)


@functools.lru_cache(maxsize=256)
def _kernel(shape: _Shape) -> Kernel:
    return _Code(shape).kernel()


class _Code:
    """Sums of a strip lie in scratch memory, row after row; the epilogue reads them from there."""

    def __init__(self, shape: _Shape) -> None:
        self.shape = shape
        self.code = VectorCode(shape.instructions)
        width = self.code.width
        self.sum_bytes = -(-max(shape.strip, shape.last) // width) * self.code.bytes

    def kernel(self) -> Kernel:
        code, shape = self.code, self.shape
        operands = 2 + len(shape.steps)
        code.mov(R8, Mem(RDI))
        code.mov(R9, Mem(RDI, 8))
        code.add(R9, Mem(RSI, 8))
        if shape.last != shape.strip:
            narrow = code.label()
            code.mov(RAX, Mem(RSI, 8 * operands))
            code.test(RAX, RAX)
            code.jump_if("nz", narrow)
            self._strip(shape.strip)
            code.place(narrow)
        self._strip(shape.last)
        return Kernel("vector_product", code.finish(), shape.rows * self.sum_bytes)

    def _strip(self, columns: int) -> None:
        vectors, rest = divmod(columns, self.code.width)
        self.mask: int | None = None
        self.top = self.code.registers
        if rest:
            if not self.code.has_avx512:
                self.top -= 1
            self.mask = MASK if self.code.has_avx512 else self.top
            self.code.set_mask(self.mask, rest)
        if self.shape.is_transposed:
            self._dots(columns)
        else:
            self._streams(vectors)
        self._finish(vectors)
        self.code.ret()

    def _streams(self, vectors: int) -> None:
        """Several rows of the matrix at a time pass over the strip: as many streams of memory."""
        code, shape = self.code, self.shape
        self._clear(vectors)
        at_once = min(8 if code.has_avx512 else 4, shape.inner)
        if shape.rows > 1:
            at_once = min(4 if code.has_avx512 else 2, shape.inner)
        times, left = divmod(shape.inner, at_once)
        code.mov(R10, R9)
        code.mov(R11, R8)
        if times:
            code.move_immediate(R12, times)
            again = code.here()
            self._ranks(at_once, vectors)
            code.decrement(R12)
            code.jump_if("nz", again)
        if left:
            self._ranks(left, vectors)

    def _clear(self, vectors: int) -> None:
        code = self.code
        code.zero(0)
        code.mov(R13, RDX)
        with code.loop(RCX, self.shape.rows * (self.sum_bytes // code.bytes)):
            code.store(Mem(R13), 0)
            code.add_immediate(R13, code.bytes)

    def _ranks(self, count: int, vectors: int) -> None:
        """Adds `count` rows of the matrix, each times a float of every row of A."""
        code, shape = self.code, self.shape
        factors = [[row * count + k for k in range(count)] for row in range(shape.rows)]
        sums = [shape.rows * count + row for row in range(shape.rows)]
        value = sums[-1] + 1
        for row in range(shape.rows):
            for k in range(count):
                code.broadcast(factors[row][k], Mem(R11, row * shape.row_step + k * shape.k_step))
        # Pointers to the rows of the matrix would take too many registers: offsets from two of them.
        code.mov(R13, R10)
        code.mov(R14, RDX)

        def add(mask: int | None) -> None:
            for row, register in enumerate(sums):
                code.load(register, Mem(R14, row * self.sum_bytes))
            for k in range(count):
                place = Mem(R13, k * shape.matrix_step)
                if shape.rows == 1 and mask is None:
                    code.multiply_add(sums[0], factors[0][k], place)
                    continue
                code.load(value, place, mask)
                for row, register in enumerate(sums):
                    code.multiply_add(register, factors[row][k], value)
            for row, register in enumerate(sums):
                code.store(Mem(R14, row * self.sum_bytes), register)

        if vectors:
            with code.loop(RCX, vectors):
                add(None)
                code.add_immediate(R13, code.bytes)
                code.add_immediate(R14, code.bytes)
        if self.mask is not None:
            add(self.mask)
        code.add_immediate(R10, count * shape.matrix_step)
        code.add_immediate(R11, count * shape.k_step)

    def _dots(self, columns: int) -> None:
        """Each column of the matrix lies in one piece: lanes along k, a few columns at a time."""
        code, shape = self.code, self.shape
        # Besides the sums a vector of A and one of the matrix need registers.
        at_once = min(4, (self.top - 2) // shape.rows)
        times, left = divmod(columns, at_once)
        code.mov(R10, R9)
        code.mov(R14, RDX)
        if times:
            code.move_immediate(R12, times)
            again = code.here()
            self._dot(at_once)
            code.decrement(R12)
            code.jump_if("nz", again)
        for _ in range(left):
            self._dot(1)

    def _dot(self, count: int) -> None:
        code, shape = self.code, self.shape
        full, rest = divmod(shape.inner, code.width)
        sums = [[row * count + c for c in range(count)] for row in range(shape.rows)]
        value, single = shape.rows * count, shape.rows * count + 1
        for registers in sums:
            for register in registers:
                code.zero(register)
        code.mov(R11, R8)
        code.mov(R13, R10)

        def add(width: int) -> None:
            for row, registers in enumerate(sums):
                if width:
                    code.load(value, Mem(R11, row * shape.row_step))
                else:
                    code.load_float(value, Mem(R11, row * shape.row_step))
                for c, register in enumerate(registers):
                    if width:
                        code.multiply_add(register, value, Mem(R13, c * shape.matrix_step))
                    else:
                        code.load_float(single, Mem(R13, c * shape.matrix_step))
                        code.multiply_add(register, value, single)

        if shape.k_step != 4:
            # A's floats are not neighbours: every one by itself.
            with code.loop(RCX, shape.inner):
                add(0)
                code.add_immediate(R11, shape.k_step)
                code.add_immediate(R13, 4)
        else:
            if full:
                with code.loop(RCX, full):
                    add(1)
                    code.add_immediate(R11, code.bytes)
                    code.add_immediate(R13, code.bytes)
            if rest:
                with code.loop(RCX, rest):
                    add(0)
                    code.add_immediate(R11, 4)
                    code.add_immediate(R13, 4)
        for row, registers in enumerate(sums):
            for c, register in enumerate(registers):
                code.reduce_lanes("addps", register, value)
                code.store_float(Mem(R14, row * self.sum_bytes + 4 * c), register)
        code.add_immediate(R10, count * shape.matrix_step)
        code.add_immediate(R14, 4 * count)

    def _finish(self, vectors: int) -> None:
        """The epilogue over the sums; RBX is the byte offset of the vector in the strip."""
        code, shape = self.code, self.shape
        accesses = (*shape.epilogue.leaves, *shape.epilogue.results)
        free = list(range(1, self.top))
        for row in range(shape.rows):

            def work(mask: int | None, row: int = row) -> None:
                code.load(0, Mem(RDX, row * self.sum_bytes, RBX))

                def place(operand: int) -> Mem:
                    code.mov(R15, Mem(RDI, 8 * (2 + operand)))
                    code.add(R15, Mem(RSI, 8 * (2 + operand)))
                    step = row * shape.steps[operand]
                    if accesses[operand].strides[-1]:
                        return Mem(R15, step, RBX)
                    return Mem(R15, step)

                finish_vector(code, shape.epilogue, 0, free, place, mask)

            code.move_immediate(RBX, 0)
            if vectors:
                with code.loop(RCX, vectors):
                    work(None)
                    code.add_immediate(RBX, code.bytes)
            if self.mask is not None:
                work(self.mask)
