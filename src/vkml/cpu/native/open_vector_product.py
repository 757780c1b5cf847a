"""Products of a few rows with matrices that are read in place, for open sizes: attention of one new token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise

from vkml.cpu.native.assembler import (
    R8,
    R9,
    R14,
    R15,
    RAX,
    RBP,
    RBX,
    RCX,
    RDI,
    RDX,
    RSI,
    Mem,
)
from vkml.cpu.native.executable import InstructionSet
from vkml.cpu.native.expression import Epilogue
from vkml.cpu.native.kept_kernels import kept_kernel
from vkml.cpu.native.kernel import Kernel
from vkml.cpu.native.open_frame import POINTERS, Axis, OpenFrame, axes_of
from vkml.cpu.native.open_launch import Open, OpenLaunch, Parameters, Word
from vkml.cpu.native.tail import finish_vector, fits_in
from vkml.cpu.native.tiles import MASK, lanes_of
from vkml.cpu.native.vectors import VectorCode
from vkml.dataclasses import dataclass
from vkml.ir.size import Size

MOST_ROWS = 4
_MOST_OPERANDS = 4
"""Leaves and results: the other registers are taken."""
_SECONDS = 4 / 25e9
"""Of each element of a matrix, from memory."""


@dataclass(frozen=True)
class _Shape:
    """All that the code depends on; steps in bytes."""

    instructions: InstructionSet
    rows: int
    inner: Word
    last: Word
    """Columns of the last block."""
    axes: tuple[Axis, ...]
    a: tuple[Word, Word]
    """From row to row, and from place to place of k."""
    b: tuple[Word, Word]
    """From place to place of k, and from column to column."""
    steps: tuple[Word, ...]
    """From row to row of each leaf and result."""
    epilogue: Epilogue

    @property
    def is_transposed(self) -> bool:
        """Whether lanes lie along k, as each column of the matrix is in one piece."""
        return self.b[1] != 4


def open_vector_product(
    instructions: InstructionSet,
    *,
    batch: int,
    rows: int,
    inner: int,
    columns: int,
    a: tuple[int, int, int],
    b: tuple[int, int, int],
    epilogue: Epilogue,
) -> OpenLaunch | None:
    """A [batch, rows, inner] times B [batch, inner, columns], then an epilogue.

    None where it cannot be done here: neither B's rows nor its columns are in one piece, or the operands are
    too many.

    Args:
        instructions: the set that code may use.
        batch: products.
        rows: known, at most `MOST_ROWS`.
        inner: columns of A, rows of B, at least one.
        columns: of B.
        a: element strides of A.
        b: element strides of B, which may lie at any address.
        epilogue: over (batch, row, column), float32; leaves walk columns by 0 or 1, results by 1.

    Returns:
        A launch of A, B, the leaves, the results.
    """
    if isinstance(rows, Size) or rows > MOST_ROWS:
        return None
    accesses = (*epilogue.leaves, *epilogue.results)
    is_transposed = not _is_one(b[2])
    if is_transposed and not (_is_one(b[1]) and _is_one(a[2])):
        return None
    if len(accesses) > _MOST_OPERANDS or (is_transposed and rows > 1 and isinstance(a[1], Size)):
        return None
    lanes = lanes_of(instructions)
    block = lanes if is_transposed else lanes * _vectors(instructions, rows)
    blocks = -(-columns // block)
    along_batch = [4 * step for step in (a[0], b[0], *(access.strides[0] for access in accesses))]
    along_columns = [0, 4 * block * b[2], *(4 * block * access.strides[2] for access in accesses)]
    parameters = Parameters()
    axes = axes_of([batch, blocks], list(zip(along_batch, along_columns, strict=True)), parameters)
    shape = _Shape(
        instructions,
        rows,
        parameters.word(inner),
        parameters.word(columns - (blocks - 1) * block),
        axes,
        (parameters.word(4 * a[1]), parameters.word(4 * a[2])),
        (parameters.word(4 * b[1]), parameters.word(4 * b[2])),
        tuple(parameters.word(4 * access.strides[1]) for access in accesses),
        replace(
            epilogue,
            leaves=tuple(replace(access, strides=access.strides[-1:]) for access in epilogue.leaves),
            results=tuple(replace(access, strides=access.strides[-1:]) for access in epilogue.results),
        ),
    )
    kernel = _kernel(shape)
    work = batch * inner * columns
    return OpenLaunch(kernel, batch * blocks, tuple(parameters.sizes), work, _SECONDS, kernel.scratch_bytes)


def _is_one(step: int) -> bool:
    return not isinstance(step, Size) and step == 1


def _vectors(instructions: InstructionSet, rows: int) -> int:
    """Vectors of a block, so that sums, vectors of B and a float of A have registers."""
    return 4 if instructions is InstructionSet.AVX512 or rows <= 2 else 2


@kept_kernel(256)
def _kernel(shape: _Shape) -> Kernel:
    return (_Dots(shape) if shape.is_transposed else _Streams(shape)).kernel()


class _Code:
    """What both ways have in common: blocks of columns, and the epilogue of a vector.

    A and B begin at R8 and R9, leaves and results at the registers behind.
    """

    def __init__(self, shape: _Shape) -> None:
        self.shape = shape
        self.code = VectorCode(shape.instructions)
        self.mask = MASK if self.code.has_avx512 else self.code.registers - 1
        self.top = self.code.registers - (0 if self.code.has_avx512 else 1)
        self.accesses = (*shape.epilogue.leaves, *shape.epilogue.results)
        self.frame = OpenFrame(self.code, shape.axes, 2 + len(self.accesses), slots=2)

    def if_last(self, register: int, full: int) -> None:
        """The columns of this block into a register; changes it alone."""
        code, done = self.code, self.code.label()
        last_axis = len(self.shape.axes) - 1
        code.mov(register, self.frame.left(last_axis))
        code.cmp_immediate(register, 1)
        code.move_immediate(register, full)
        code.jump_if("ne", done)
        self.frame.word(register, self.shape.last)
        code.place(done)

    def finish(self, value: int, row: int, free: Sequence[int], displacement: int, mask: int | None) -> None:
        """The epilogue of a vector, RBX bytes and some into the block; changes RAX and RSI."""
        code, shape = self.code, self.shape

        def place(operand: int) -> Mem:
            pointer, step = POINTERS[2 + operand], shape.steps[operand]
            is_repeated = self.accesses[operand].strides[-1] == 0
            shift = 0
            if isinstance(step, Open) and row:
                self.frame.word(RSI, step)
                code.multiply_immediate(RSI, RSI, row)
                code.add(RSI, pointer)
                pointer = RSI
            elif not isinstance(step, Open):
                shift = row * step
            return Mem(pointer, shift) if is_repeated else Mem(pointer, shift + displacement, RBX)

        finish_vector(code, shape.epilogue, value, free, place, mask)


class _Streams(_Code):
    """Lanes along the columns: each row of B is met once by all rows of A."""

    def kernel(self) -> Kernel:
        vectors = _vectors(self.shape.instructions, self.shape.rows)
        full = vectors * self.code.width

        def block() -> None:
            code = self.code
            partial, done = code.label(), code.label()
            self.if_last(RDX, full)
            code.move_immediate(RBX, 0)
            code.cmp_immediate(RDX, full)
            code.jump_if("ne", partial)
            self._sums(vectors, None)
            code.jump(done)
            code.place(partial)
            # Vector by vector.
            code.mov(self.frame.slot(0), RDX)
            again, is_whole = code.here(), code.label()
            code.mov(RAX, self.frame.slot(0))
            code.cmp_immediate(RAX, code.width)
            code.jump_if("le", is_whole)
            code.move_immediate(RAX, code.width)
            code.place(is_whole)
            code.set_mask_of(self.mask, RAX, RCX)
            self._sums(1, self.mask)
            code.add_immediate(RBX, code.bytes)
            code.mov(RAX, self.frame.slot(0))
            code.sub_immediate(RAX, code.width)
            code.mov(self.frame.slot(0), RAX)
            code.jump_if("g", again)
            code.place(done)

        self.frame.emit(block)
        return Kernel("vector_product", self.code.finish(), self.shape.rows * vectors * self.code.bytes)

    def _sums(self, vectors: int, mask: int | None) -> None:
        """Sums of some vectors, RBX bytes into the block, and what becomes of them."""
        code, shape, frame = self.code, self.shape, self.frame
        rows = shape.rows
        sums = [[row * vectors + v for v in range(vectors)] for row in range(rows)]
        values = list(range(rows * vectors, rows * vectors + vectors))
        single = values[-1] + 1
        for registers in sums:
            for register in registers:
                code.zero(register)
        row_step, a_step = shape.a
        b_step = shape.b[0]
        code.mov(R14, R8)
        code.lea(R15, Mem(R9, 0, RBX))
        is_open_row = isinstance(row_step, Open) and rows > 1
        if is_open_row:
            frame.word(RDX, row_step)
            code.lea(RSI, Mem(RDX, 0, RDX, 2))
        for register, step in ((RAX, a_step), (RDI, b_step)):
            if isinstance(step, Open):
                frame.word(register, step)
        frame.word(RCX, shape.inner)
        with code.loop(RCX):
            for v, value in enumerate(values):
                code.load(value, Mem(R15, v * code.bytes), mask)
            for row, registers in enumerate(sums):
                if is_open_row:
                    place = (Mem(R14), Mem(R14, 0, RDX), Mem(R14, 0, RDX, 2), Mem(R14, 0, RSI))[row]
                else:
                    assert isinstance(row_step, int) or rows == 1
                    place = Mem(R14, row * row_step if isinstance(row_step, int) else 0)
                code.broadcast(single, place)
                for register, value in zip(registers, values, strict=True):
                    code.multiply_add(register, single, value)
            for pointer, register, step in ((R14, RAX, a_step), (R15, RDI, b_step)):
                if isinstance(step, Open):
                    code.add(pointer, register)
                elif step:
                    code.add_immediate(pointer, step)
        free = list(range(rows * vectors, self.top))
        is_direct = fits_in(code, shape.epilogue, len(free))
        if not is_direct:
            frame.scratch(RDX)
            for registers in sums:
                for register in registers:
                    code.store(Mem(RDX, register * code.bytes), register)
            free = list(range(1, self.top))
        for row, registers in enumerate(sums):
            for v, register in enumerate(registers):
                if not is_direct:
                    code.load(0, Mem(RDX, register * code.bytes))
                    register = 0
                self.finish(register, row, free, v * code.bytes, mask)


class _Dots(_Code):
    """Lanes along k: a few columns at a time, whose sums lie in scratch memory until a vector is full."""

    def kernel(self) -> Kernel:
        code, shape = self.code, self.shape
        is_known = not isinstance(shape.inner, Open)
        self.k_rest: Word = shape.inner % code.width if isinstance(shape.inner, int) else shape.inner
        # The mask of k's rest stays in a register of its own.
        self.k_mask = MASK + 1
        if not code.has_avx512:
            self.top -= 1
            self.k_mask = self.top
        has_rest = not is_known or self.k_rest != 0
        at_once = 4 if code.has_avx512 or shape.rows <= 2 else 2

        def prepare() -> None:
            if is_known:
                assert isinstance(self.k_rest, int) and isinstance(shape.inner, int)
                if self.k_rest:
                    code.set_mask(self.k_mask, self.k_rest)
                code.move_immediate(RCX, 4 * (shape.inner - self.k_rest))
            else:
                self.frame.word(RAX, shape.inner)
                code.mov(RDX, RAX)
                code.and_immediate(RAX, code.width - 1)
                code.sub(RDX, RAX)
                code.set_mask_of(self.k_mask, RAX, RCX)
                code.mov(RCX, RDX)
                code.shift_left(RCX, 2)
            code.mov(self.frame.slot(0), RCX)

        def block() -> None:
            self.if_last(RDI, code.width)
            code.mov(self.frame.slot(1), RDI)
            self.frame.scratch(RDX)
            code.mov(R15, R9)
            self.frame.word(RSI, shape.b[1])
            singles, done = code.label(), code.label()
            again = code.here()
            code.cmp_immediate(RDI, at_once)
            code.jump_if("l", singles)
            self._columns(at_once, has_rest)
            code.sub_immediate(RDI, at_once)
            code.jump(again)
            code.place(singles)
            code.test(RDI, RDI)
            code.jump_if("z", done)
            self._columns(1, has_rest)
            code.decrement(RDI)
            code.jump(singles)
            code.place(done)
            code.mov(RAX, self.frame.slot(1))
            code.set_mask_of(self.mask, RAX, RCX)
            self.frame.scratch(RDX)
            code.move_immediate(RBX, 0)
            for row in range(shape.rows):
                code.load(0, Mem(RDX, row * code.bytes))
                self.finish(0, row, list(range(1, self.top)), 0, self.mask)

        self.frame.emit(block, prepare)
        return Kernel("vector_product", code.finish(), shape.rows * code.bytes)

    def _columns(self, count: int, has_rest: bool) -> None:
        """Sums of some columns from R15 on, RSI bytes apart, to RDX; both move on. Keeps RDI."""
        code, shape = self.code, self.shape
        rows = shape.rows
        row_step = shape.a[0]
        assert isinstance(row_step, int) or rows == 1
        pointers = (R15, R14, RBX, RBP)[:count]
        for before, pointer in pairwise(pointers):
            code.lea(pointer, Mem(before, 0, RSI))
        sums = [[row * count + c for c in range(count)] for row in range(rows)]
        values = list(range(rows * count, rows * count + count))
        single = values[-1] + 1
        for registers in sums:
            for register in registers:
                code.zero(register)

        def add(mask: int | None) -> None:
            for value, pointer in zip(values, pointers, strict=True):
                code.load(value, Mem(pointer, 0, RCX), mask)
            for row, registers in enumerate(sums):
                code.load(single, Mem(R8, row * row_step if isinstance(row_step, int) else 0, RCX), mask)
                for register, value in zip(registers, values, strict=True):
                    code.multiply_add(register, single, value)

        code.move_immediate(RCX, 0)
        with self._whole_vectors():
            add(None)
            code.add_immediate(RCX, code.bytes)
        if has_rest:
            add(self.k_mask)
        for row, registers in enumerate(sums):
            for c, register in enumerate(registers):
                code.reduce_lanes("addps", register, single)
                code.store_float(Mem(RDX, row * code.bytes + 4 * c), register)
        code.lea(R15, Mem(pointers[-1], 0, RSI))
        code.add_immediate(RDX, 4 * count)

    @contextmanager
    def _whole_vectors(self) -> Iterator[None]:
        """Repeats what is inside while RCX is below k's whole vectors, which may be none."""
        code = self.code
        end = code.label()
        start = code.here()
        code.cmp(RCX, self.frame.slot(0))
        code.jump_if("ge", end)
        yield
        code.jump(start)
        code.place(end)
