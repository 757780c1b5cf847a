"""Products of a few rows with a matrix that is read in place, once, at the speed of memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from vkml.cpu.native.assembler import R8, R9, R10, R11, R12, R13, R14, R15, RAX, RBX, RCX, RDI, RDX, RSI, Mem
from vkml.cpu.native.executable import InstructionSet
from vkml.cpu.native.expression import IDENTITY, Access, Epilogue
from vkml.cpu.native.kept_kernels import kept_kernel
from vkml.cpu.native.kernel import Kernel, Launch
from vkml.cpu.native.tail import finish_vector
from vkml.cpu.native.tiles import MASK, lanes_of
from vkml.cpu.native.vectors import VectorCode
from vkml.dataclasses import dataclass

MOST_ROWS = 4
LEAST_BYTES = 1 << 20
"""Smaller matrices are packed, if they are constant: `product` is faster then."""
SECONDS_PER_BYTE = 1 / 25e9
SUM_FLOATS = 4096
"""Of all rows of a chunk: half the first-level cache."""
PIECE_BYTES = 512 * 1024
"""Of the matrix that a chunk reads at least, where k is split."""
SUM_ROOM = 320
"""Bytes between the sums of two rows, lest stores to one seem to meet loads of another 4096 bytes away."""
LEVEL = 2
"""Of the caches that the rows to come are asked into: in the first they drive out sums and one another."""


@dataclass(frozen=True)
class _Shape:
    """All that the code depends on; steps in bytes."""

    instructions: InstructionSet
    rows: int
    unit: int
    """Places of k that are worked on at once."""
    left: int
    """Places of k that remain in the last chunk along k."""
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


def pieces_of_inner(*, rows: int, inner: int, columns: int, b: tuple[int, int], threads: int) -> int:
    """Into how many parts k is best split; if several, `partial_products` and `sum_of_parts` do the work.

    Long contiguous runs of the matrix stream best: 4096 x 4096 floats went at 36 GB/s in strips of 1024
    columns, at 57 in parts of k with all columns (two cores of a Zen 4).
    """
    is_transposed = b[0] == 1 and (b[1] != 1 or columns == 1)
    chunks = -(-columns // 4) if is_transposed else _strips(rows, columns)
    if chunks >= 2 * threads or threads == 1:
        return 1
    most = 4 * inner * columns // PIECE_BYTES
    return max(1, min(-(-4 * threads // chunks), most, inner // 64))


def _strips(rows: int, columns: int) -> int:
    return -(-columns * rows // SUM_FLOATS)


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
        b: element strides of B, one of which is 1 (any where there is one column); B may lie at any address.
        epilogue: over (row, column), float32; leaves walk columns by 0 or 1, results by 1.
        threads: that will share the work.

    Returns:
        A launch of A, B, the leaves, the results.
    """
    shares = 2 * threads if threads > 1 else 1
    strips = max(_strips(rows, columns), min(shares, inner * columns // 4096, -(-columns // 64)), 1)
    return _launch(instructions, rows, inner, columns, a, b, epilogue, strips, 1, 0)


def partial_products(
    instructions: InstructionSet,
    *,
    rows: int,
    inner: int,
    columns: int,
    a: tuple[int, int],
    b: tuple[int, int],
    pieces: int,
) -> Launch:
    """Sums over parts of k: the first of two launches where `pieces_of_inner` is more than one.

    Args:
        instructions: the set that code may use.
        rows: at most `MOST_ROWS`.
        inner: columns of A, rows of B.
        columns: of B.
        a: element strides of A.
        b: element strides of B, as for `vector_product`.
        pieces: parts of k.

    Returns:
        A launch of A, B, the sums [pieces, rows, columns], float32 and contiguous.
    """
    whole = Epilogue(IDENTITY, (), (Access((columns, 1)),))
    strips = _strips(rows, columns)
    return _launch(instructions, rows, inner, columns, a, b, whole, strips, pieces, rows * columns)


def _launch(
    instructions: InstructionSet,
    rows: int,
    inner: int,
    columns: int,
    a: tuple[int, int],
    b: tuple[int, int],
    epilogue: Epilogue,
    strips: int,
    pieces: int,
    piece_step: int,
) -> Launch:
    lanes = lanes_of(instructions)
    is_transposed = b[0] == 1 and (b[1] != 1 or columns == 1)
    strip = -(-columns // (strips * lanes)) * lanes
    starts = np.arange(0, columns, strip)
    unit = _unit(instructions, rows, inner, a[1], is_transposed)
    piece = -(-inner // (pieces * unit)) * unit
    begins = np.arange(pieces) * piece
    ends = np.clip(begins + piece, 0, inner)
    grid_k, grid_c = (
        axis.reshape(-1) for axis in np.meshgrid(range(pieces), range(len(starts)), indexing="ij")
    )
    from_k, from_c = np.minimum(begins, inner)[grid_k], starts[grid_c]
    accesses = (*epilogue.leaves, *epilogue.results)
    made = [from_k * a[1], from_k * b[0] + from_c * b[1]]
    made += [from_c * access.strides[1] + grid_k * piece_step for access in accesses]
    counts = np.maximum(ends - begins, 0)[grid_k]
    table = np.stack(
        [*(4 * part for part in made), from_c == starts[-1], counts // unit, counts % unit != 0], 1
    )
    shape = _Shape(
        instructions,
        rows,
        unit,
        inner % unit,
        strip,
        columns - int(starts[-1]),
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


def _unit(instructions: InstructionSet, rows: int, inner: int, step: int, is_transposed: bool) -> int:
    """Places of k that the loop takes at once."""
    if is_transposed:
        return lanes_of(instructions) if step == 1 else 1
    # Registers for a float of each row of A at each place, for the sums, the matrix and a mask.
    registers = 32 if instructions is InstructionSet.AVX512 else 15
    return min(8, (registers - rows - 1) // rows, inner)


@kept_kernel(256)
def _kernel(shape: _Shape) -> Kernel:
    return _Code(shape).kernel()


class _Code:
    """Sums of a strip lie in scratch memory, row after row; the epilogue reads them from there."""

    def __init__(self, shape: _Shape) -> None:
        self.shape = shape
        self.code = VectorCode(shape.instructions)
        width = self.code.width
        self.sum_bytes = -(-max(shape.strip, shape.last) // width) * self.code.bytes + SUM_ROOM
        self.flags = 8 * (2 + len(shape.steps))
        """Where a row of the table says: last strip, units of k, whether places of k remain."""

    def kernel(self) -> Kernel:
        code, shape = self.code, self.shape
        code.mov(R8, Mem(RDI))
        code.add(R8, Mem(RSI))
        code.mov(R9, Mem(RDI, 8))
        code.add(R9, Mem(RSI, 8))
        if shape.last != shape.strip:
            narrow = code.label()
            code.mov(RAX, Mem(RSI, self.flags))
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
        code = self.code
        self._clear()
        code.mov(R10, R9)
        code.mov(R11, R8)
        with self._units():
            self._ranks(self.shape.unit, vectors)
        if self.shape.left:
            with self._rest():
                self._ranks(self.shape.left, vectors)

    @contextmanager
    def _units(self) -> Iterator[None]:
        """Repeats what is inside for every unit of k, which may be none; R12 counts."""
        code = self.code
        end = code.label()
        code.mov(R12, Mem(RSI, self.flags + 8))
        code.test(R12, R12)
        code.jump_if("z", end)
        with code.loop(R12):
            yield
        code.place(end)

    @contextmanager
    def _rest(self) -> Iterator[None]:
        """What is inside is for the places of k that remain, where any do."""
        code = self.code
        end = code.label()
        code.mov(RAX, Mem(RSI, self.flags + 16))
        code.test(RAX, RAX)
        code.jump_if("z", end)
        yield
        code.place(end)

    def _clear(self) -> None:
        code = self.code
        code.zero(0)
        code.mov(R13, RDX)
        with code.loop(RCX, self.shape.rows * self.sum_bytes // code.bytes):
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
                if mask is None:
                    # The rows to come, right behind: the processor's own prefetching ends with each page.
                    code.prefetch(place.plus(count * shape.matrix_step), LEVEL)
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
        top = self.top
        self.rest_mask: int | None = None
        if shape.left:
            if not code.has_avx512:
                top -= 1
            self.rest_mask = MASK + 1 if code.has_avx512 else top
            code.set_mask(self.rest_mask, shape.left)
        # Besides the sums a vector of A and one of the matrix need registers.
        at_once = min(4, (top - 2) // shape.rows)
        times, left = divmod(columns, at_once)
        code.mov(R10, R9)
        code.mov(R14, RDX)
        if times:
            with code.loop(RBX, times):
                self._dot(at_once)
        for _ in range(left):
            self._dot(1)

    def _dot(self, count: int) -> None:
        code, shape = self.code, self.shape
        sums = [[row * count + c for c in range(count)] for row in range(shape.rows)]
        value, other = shape.rows * count, shape.rows * count + 1
        for registers in sums:
            for register in registers:
                code.zero(register)
        code.mov(R11, R8)
        code.mov(R13, R10)
        # A's floats that are no neighbours are taken one by one.
        is_single = shape.unit == 1
        with self._units():
            for c in range(count):
                code.prefetch(Mem(R13, (count + c) * shape.matrix_step), LEVEL)
            for row, registers in enumerate(sums):
                source = Mem(R11, row * shape.row_step)
                if is_single:
                    code.load_float(value, source)
                else:
                    code.load(value, source)
                for c, register in enumerate(registers):
                    place = Mem(R13, c * shape.matrix_step)
                    if is_single:
                        code.load_float(other, place)
                        code.multiply_add(register, value, other)
                    else:
                        code.multiply_add(register, value, place)
            code.add_immediate(R11, shape.unit * shape.k_step)
            code.add_immediate(R13, shape.unit * 4)
        if self.rest_mask is not None:
            with self._rest():
                for row, registers in enumerate(sums):
                    code.load(value, Mem(R11, row * shape.row_step), self.rest_mask)
                    for c, register in enumerate(registers):
                        code.load(other, Mem(R13, c * shape.matrix_step), self.rest_mask)
                        code.multiply_add(register, value, other)
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
