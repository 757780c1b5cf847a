"""Products of matrices for open sizes: tiles of rows whose number is found when the code runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from vkml.cpu.native.assembler import (
    R8,
    R9,
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
from vkml.cpu.native.product import SECONDS_PER_FLOP
from vkml.cpu.native.tail import finish_vector, fits_in
from vkml.cpu.native.tiles import MASK, lanes_of
from vkml.cpu.native.vectors import VectorCode
from vkml.dataclasses import dataclass
from vkml.ir.size import Size

_MOST_OPERANDS = 4
"""Leaves and results: the other registers are taken."""
_MOST_OPEN_ROWS = 8
"""Of a tile whose rows lie an open number of bytes apart: three pointers reach them."""
_REACHED = {0: (0, 0), 1: (0, 1), 2: (0, 2), 4: (0, 4), 3: (1, 0), 5: (1, 2), 7: (1, 4), 6: (2, 0)}
"""Row of a tile → which of the pointers to rows 0, 3 and 6, and how many steps behind it."""


@dataclass(frozen=True)
class _Shape:
    """All that the code depends on; steps in bytes."""

    instructions: InstructionSet
    rows: int
    """Of a tile."""
    last_rows: Word
    """Of the last tile of each panel."""
    vectors: int
    """Of a panel."""
    tail_vectors: int
    """Of the last panel."""
    tail_lanes: Word
    """Of the last panel's last vector."""
    is_packed: bool
    """Whether whole vectors of the last panel of B may be read."""
    inner: Word
    axes: tuple[Axis, ...]
    a: tuple[Word, Word]
    """From row to row, and from place to place of k."""
    b_step: Word
    """From place to place of k."""
    steps: tuple[Word, ...]
    """From row to row of each leaf and result."""
    epilogue: Epilogue


def open_product(
    instructions: InstructionSet,
    *,
    batch: int,
    rows: int,
    columns: int,
    inner: int,
    a: tuple[int, int, int],
    b: tuple[int, int, int],
    panel: int,
    is_packed: bool,
    epilogue: Epilogue,
) -> OpenLaunch | None:
    """A [batch, rows, inner] times B [batch, inner, columns], then an epilogue, for any sizes.

    None where leaves and results are too many, or the panels of an open number of columns are wider than a
    vector.

    Args:
        instructions: the set that code may use.
        batch: products.
        rows: of A.
        columns: of B.
        inner: columns of A, rows of B, at least one.
        a: element strides of A.
        b: element strides of B along the batch, from panel to panel, and along k; the columns of a panel are
            neighbours.
        panel: columns of a panel.
        is_packed: whether the last panel is as wide as others in memory.
        epilogue: over (batch, row, column), float32; leaves walk columns by 0 or 1, results by 1.

    Returns:
        A launch of A, B, the leaves, the results.
    """
    accesses = (*epilogue.leaves, *epilogue.results)
    lanes = lanes_of(instructions)
    vectors = panel // lanes
    if len(accesses) > _MOST_OPERANDS or (isinstance(columns, Size) and vectors > 1):
        return None
    panels = -(-columns // panel)
    last = columns - (panels - 1) * panel
    tail_vectors = 1 if isinstance(last, Size) else -(-last // lanes)
    tile = rows_of_tile(instructions, vectors, isinstance(a[1], Size))
    blocks = -(-rows // tile)
    parameters = Parameters()
    along = [
        [4 * a[0], 0, 4 * tile * a[1]],
        [4 * b[0], 4 * b[1], 0],
        *([4 * s.strides[0], 4 * panel * s.strides[2], 4 * tile * s.strides[1]] for s in accesses),
    ]
    shape = _Shape(
        instructions,
        tile,
        parameters.word(rows - (blocks - 1) * tile),
        vectors,
        tail_vectors,
        parameters.word(last - (tail_vectors - 1) * lanes),
        is_packed,
        parameters.word(inner),
        axes_of([batch, panels, blocks], along, parameters),
        (parameters.word(4 * a[1]), parameters.word(4 * a[2])),
        parameters.word(4 * b[2]),
        tuple(parameters.word(4 * access.strides[1]) for access in accesses),
        replace(
            epilogue,
            leaves=tuple(replace(access, strides=access.strides[-1:]) for access in epilogue.leaves),
            results=tuple(replace(access, strides=access.strides[-1:]) for access in epilogue.results),
        ),
    )
    kernel = _kernel(shape)
    return OpenLaunch(
        kernel,
        batch * panels * blocks,
        tuple(parameters.sizes),
        batch * rows * columns * inner,
        2 * SECONDS_PER_FLOP,
        kernel.scratch_bytes,
    )


def rows_of_tile(instructions: InstructionSet, vectors: int, is_open: bool) -> int:
    """Rows of a tile: the sums, the vectors of B, a float of A and a mask have registers."""
    registers = 32 if instructions is InstructionSet.AVX512 else 15
    most = min((registers - vectors - 1) // vectors, 16)
    return min(most, _MOST_OPEN_ROWS) if is_open else most


@kept_kernel(256)
def _kernel(shape: _Shape) -> Kernel:
    return _Code(shape).kernel()


class _Code:
    """A tile for each row of the frame; what is left of a panel's rows goes by powers of two.

    A and B begin at R8 and R9, leaves and results at the registers behind.
    """

    def __init__(self, shape: _Shape) -> None:
        self.shape = shape
        self.code = VectorCode(shape.instructions)
        self.mask = MASK if self.code.has_avx512 else self.code.registers - 1
        self.top = self.code.registers - (0 if self.code.has_avx512 else 1)
        self.accesses = (*shape.epilogue.leaves, *shape.epilogue.results)
        self.count = 2 + len(self.accesses)
        self.frame = OpenFrame(self.code, shape.axes, self.count, slots=1 + self.count)

    def kernel(self) -> Kernel:
        code, shape = self.code, self.shape
        has_mask = isinstance(shape.tail_lanes, Open) or shape.tail_lanes < code.width

        def prepare() -> None:
            if not has_mask:
                return
            if isinstance(shape.tail_lanes, Open):
                self.frame.word(RAX, shape.tail_lanes)
                code.set_mask_of(self.mask, RAX, RCX)
            else:
                code.set_mask(self.mask, shape.tail_lanes)

        def tile() -> None:
            is_last, done = code.label(), code.label()
            code.mov(RAX, self.frame.left(1))
            code.cmp_immediate(RAX, 1)
            code.jump_if("e", is_last)
            self._panel(shape.vectors, False)
            code.jump(done)
            code.place(is_last)
            self._panel(shape.tail_vectors, has_mask)
            code.place(done)

        self.frame.emit(tile, prepare)
        return Kernel("product", code.finish(), shape.rows * shape.vectors * code.bytes)

    def _panel(self, vectors: int, has_mask: bool) -> None:
        """The rows of a block against one panel."""
        code, shape = self.code, self.shape
        partial, done = code.label(), code.label()
        code.mov(RAX, self.frame.left(2))
        code.cmp_immediate(RAX, 1)
        code.jump_if("e", partial)
        whole = code.here()
        self._tile(shape.rows, vectors, has_mask)
        code.jump(done)
        code.place(partial)
        self.frame.word(RAX, shape.last_rows)
        code.cmp_immediate(RAX, shape.rows)
        code.jump_if("e", whole)
        code.mov(self.frame.slot(0), RAX)
        for number, pointer in enumerate(POINTERS[: self.count]):
            code.mov(self.frame.slot(1 + number), pointer)
        size = 1 << (shape.rows - 1).bit_length() - 1 if shape.rows > 1 else 0
        while size:
            has_none = code.label()
            code.mov(RAX, self.frame.slot(0))
            code.and_immediate(RAX, size)
            code.jump_if("z", has_none)
            self._tile(size, vectors, has_mask)
            steps = (shape.a[0], 0, *shape.steps)
            for pointer, step in zip(POINTERS, steps, strict=False):
                if isinstance(step, Open):
                    self.frame.multiplied(RSI, self._number(RCX, size), step)
                    code.add(pointer, RSI)
                elif step:
                    code.add_immediate(pointer, size * step)
            code.place(has_none)
            size //= 2
        for number, pointer in enumerate(POINTERS[: self.count]):
            code.mov(pointer, self.frame.slot(1 + number))
        code.place(done)

    def _number(self, register: int, value: int) -> int:
        self.code.move_immediate(register, value)
        return register

    def _tile(self, rows: int, vectors: int, has_mask: bool) -> None:
        code, shape, frame = self.code, self.shape, self.frame
        sums = [[row * vectors + v for v in range(vectors)] for row in range(rows)]
        values = list(range(rows * vectors, rows * vectors + vectors))
        single = values[-1] + 1
        for register in range(rows * vectors):
            code.zero(register)
        row_step, k_step = shape.a
        is_open_row = isinstance(row_step, Open) and rows > 1
        pointers = (RBX, RBP, RSI)[: 1 + (rows > 3) + (rows > 6)] if is_open_row else (RBX,)
        code.mov(RBX, R8)
        code.mov(R15, R9)
        if is_open_row:
            frame.word(RAX, row_step)
            for before, pointer in pairwise(pointers):
                code.lea(pointer, Mem(before, 0, RAX, 2))
                code.add(pointer, RAX)
        if isinstance(shape.b_step, Open):
            frame.word(RDX, shape.b_step)
        if isinstance(k_step, Open):
            frame.word(RDI, k_step)
        masks = [None] * (vectors - 1) + [self.mask if has_mask and not shape.is_packed else None]
        frame.word(RCX, shape.inner)
        with code.loop(RCX):
            for v, value in enumerate(values):
                code.load(value, Mem(R15, v * code.bytes), masks[v])
            for row, registers in enumerate(sums):
                place = self._place_of_a(row, pointers, is_open_row)
                if vectors == 1 and code.has_avx512:
                    source = replace(place, is_broadcast=True)
                    code.vector("fmadd231ps", registers[0], values[0], source)
                    continue
                code.broadcast(single, place)
                for register, value in zip(registers, values, strict=True):
                    code.multiply_add(register, single, value)
            for pointer in pointers:
                self._add(pointer, k_step, RDI)
            self._add(R15, shape.b_step, RDX)
        self._finish(sums, has_mask)

    def _place_of_a(self, row: int, pointers: Sequence[int], is_open: bool) -> Mem:
        step = self.shape.a[0]
        if not is_open:
            return Mem(RBX, row * step if isinstance(step, int) else 0)
        which, steps = _REACHED[row]
        return Mem(pointers[which], 0, RAX, steps) if steps else Mem(pointers[which])

    def _add(self, pointer: int, step: Word, register: int) -> None:
        if isinstance(step, Open):
            self.code.add(pointer, register)
        elif step:
            self.code.add_immediate(pointer, step)

    def _finish(self, sums: Sequence[Sequence[int]], has_mask: bool) -> None:
        """The epilogue of a tile: in registers, or through scratch memory where it needs too many."""
        code, shape = self.code, self.shape
        used = len(sums) * len(sums[0])
        free = list(range(used, self.top))
        is_direct = fits_in(code, shape.epilogue, len(free))
        if not is_direct:
            self.frame.scratch(RDX)
            for register in range(used):
                code.store(Mem(RDX, register * code.bytes), register)
            free = list(range(1, self.top))
        for row, registers in enumerate(sums):
            for v, register in enumerate(registers):
                if not is_direct:
                    code.load(0, Mem(RDX, register * code.bytes))
                is_masked = has_mask and v == len(registers) - 1
                value = register if is_direct else 0
                self._vector(value, free, row, v * code.bytes, self.mask if is_masked else None)

    def _vector(self, value: int, free: Sequence[int], row: int, shift: int, mask: int | None) -> None:
        code, shape = self.code, self.shape

        def place(operand: int) -> Mem:
            pointer, step = POINTERS[2 + operand], shape.steps[operand]
            own = 0 if self.accesses[operand].strides[-1] == 0 else shift
            if not isinstance(step, Open):
                return Mem(pointer, row * step + own)
            if not row:
                return Mem(pointer, own)
            self.frame.word(RSI, step)
            code.multiply_immediate(RSI, RSI, row)
            code.add(RSI, pointer)
            return Mem(RSI, own)

        finish_vector(code, shape.epilogue, value, free, place, mask)
