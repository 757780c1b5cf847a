"""The frame of kernels that compute tiles of rows by vectors of columns: lines, tiles, tails, epilogues.

Index space: (batch…, y, x, column). A chunk is some lines, or a part of one, of one panel of columns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from vkml.cpu.native.assembler import R8, R9, R12, R13, R15, RAX, RDI, RDX, RSI, Label, Mem
from vkml.cpu.native.executable import InstructionSet
from vkml.cpu.native.expression import Access, Epilogue
from vkml.cpu.native.kernel import Kernel
from vkml.cpu.native.tail import finish_vector, fits_in
from vkml.cpu.native.vectors import VectorCode
from vkml.dataclasses import dataclass

Array = np.ndarray[Any, Any]
CHUNK_SECONDS = 60e-6
"""Of a chunk, where there is enough work."""
LEAST_CHUNK_SECONDS = 4e-6
BLOCK_BYTES = 192 * 1024
"""Of A that a chunk reads: its tiles read it once for each panel, from the second-level cache."""
MASK = 1
"""The mask register of the last lanes."""


@dataclass(frozen=True)
class TileShape:
    """All that the code depends on; strides in bytes."""

    instructions: InstructionSet
    rows: int
    """Of a tile."""
    tail_rows: int
    vectors: int
    """Of a panel."""
    tail_vectors: int
    """Of the last panel where it is narrower, else 0."""
    tail_lanes: int
    """Of the last panel's last vector; 0: all."""
    has_full_panels: bool
    taps: tuple[int, ...]
    """Offsets in A."""
    steps: tuple[tuple[int, int], ...]
    """(y, x) steps of A, then of each leaf and result."""
    epilogue: Epilogue


def lanes_of(instructions: InstructionSet) -> int:
    """Floats in a vector."""
    return 16 if instructions is InstructionSet.AVX512 else 8


def tile_shape(
    instructions: InstructionSet,
    *,
    tile_rows: int,
    width: int,
    columns: int,
    panel: int,
    taps: tuple[int, ...],
    operands: Sequence[tuple[int, ...]],
    epilogue: Epilogue,
) -> TileShape:
    """What the code needs to know.

    Args:
        instructions: the set that code may use.
        tile_rows: rows of a tile.
        width: places of a line.
        columns: of the result.
        panel: columns of a panel.
        taps: element offsets in A.
        operands: element strides along (y, x) of A, then of each leaf and result.
        epilogue: of a vector.
    """
    lanes = lanes_of(instructions)
    panels = -(-columns // panel)
    last = columns - (panels - 1) * panel
    is_narrow = last < panel
    return TileShape(
        instructions,
        min(tile_rows, width),
        width % min(tile_rows, width),
        panel // lanes,
        -(-last // lanes) if is_narrow else 0,
        last % lanes,
        panels > 1 or not is_narrow,
        tuple(4 * tap for tap in taps),
        tuple((size * y, size * x) for size, (y, x) in zip(_sizes(epilogue), operands, strict=True)),
        replace(epilogue, leaves=_last_strides(epilogue.leaves), results=_last_strides(epilogue.results)),
    )


def _sizes(epilogue: Epilogue) -> list[int]:
    """Bytes of an element of A, of each leaf and result."""
    return [4, *(access.itemsize for access in (*epilogue.leaves, *epilogue.results))]


def _last_strides(accesses: Sequence[Access]) -> tuple[Access, ...]:
    """Without the strides that the code of a vector does not depend on: equal code is then found equal."""
    return tuple(replace(access, strides=access.strides[-1:]) for access in accesses)


def chunk_table(
    shape: TileShape,
    *,
    batch: tuple[int, ...],
    height: int,
    width: int,
    columns: int,
    panel: int,
    operands: Sequence[tuple[int, ...]],
    panel_floats: int,
    b: tuple[int, ...],
    row_seconds: float,
    row_bytes: int,
    threads: int,
    seconds: float = 0.0,
) -> Array:
    """A row a chunk: byte offsets of A, B, leaves, results; lines, tiles of a line, rows left, panel's kind.

    Args:
        shape: of the tiles.
        batch: leading axes.
        height: lines.
        width: places of a line.
        columns: of the result.
        panel: columns of a panel.
        operands: element strides of A, leaves and results along (batch…, y, x, column).
        panel_floats: elements of packed B from one panel to the next.
        b: element strides of packed B along the batch axes.
        row_seconds: estimated time of one row of one panel.
        row_bytes: of A that a row reads and the next does not.
        threads: that will share the work.
        seconds: estimated time of the whole launch, where this is a part of it.
    """
    rank, panels = len(batch), -(-columns // panel)
    total = seconds or row_seconds * panels * height * width * math.prod(batch)
    # With half as many, 112² pixels of 16 → 96 and 56² of 24 → 144 channels came to 15 and 9 chunks, which
    # two threads shared unevenly (187 and 188 GFLOP/s; so 194 and 201).
    goal = max(min(CHUNK_SECONDS, total / (8 * threads)), LEAST_CHUNK_SECONDS)
    rows = max(1.0, min(goal / row_seconds, BLOCK_BYTES / row_bytes))
    if height > 1 and rows >= width:
        lines, span = min(height, max(1, round(rows / width))), width
    else:
        lines = 1
        pieces = max(1, math.ceil(width / max(rows, shape.rows)))
        span = math.ceil(math.ceil(width / pieces) / shape.rows) * shape.rows
    starts_y, starts_x = np.arange(0, height, lines), np.arange(0, width, span)
    counts_y, counts_x = np.minimum(lines, height - starts_y), np.minimum(span, width - starts_x)
    axes = [np.arange(size) for size in (*batch, panels, len(starts_y), len(starts_x))]
    grid = list(np.meshgrid(*axes, indexing="ij"))
    a_bytes, b_bytes = height * width * row_bytes, 4 * panels * panel_floats
    blocks = len(starts_y) * len(starts_x)
    if a_bytes > 2 * BLOCK_BYTES and b_bytes * blocks < a_bytes * panels:
        # A is too large to stay in the cache while all panels pass: a block meets all panels first. With
        # even larger weights, all blocks meet one panel.
        grid = [np.moveaxis(axis, rank, -1) for axis in grid]
    *batches, p, y, x = (axis.reshape(-1) for axis in grid)

    def offsets(size: int, strides: Sequence[int]) -> Array:
        found = starts_y[y] * strides[rank] + starts_x[x] * strides[rank + 1] + p * panel * strides[rank + 2]
        return np.asarray(
            size * sum((at * step for at, step in zip(batches, strides, strict=False)), start=found)
        )

    packed = sum((at * step for at, step in zip(batches, b, strict=True)), start=p * panel_floats)
    first, *others = map(offsets, _sizes(shape.epilogue), operands)
    made = [first, 4 * packed, *others]
    made += [counts_y[y], counts_x[x] // shape.rows, counts_x[x] % shape.rows]
    made.append((p == panels - 1) & (shape.tail_vectors > 0))
    return np.ascontiguousarray(np.stack(made, 1), np.int64)


class TileCode:
    """Writes the kernel of a shape; a subclass says how a tile is added up.

    Pointers of operands live in the thread's scratch memory.
    """

    label = "tiles"

    def __init__(self, shape: TileShape) -> None:
        self.shape = shape
        self.code = VectorCode(shape.instructions)
        self.operands = len(shape.steps)
        """A, the leaves, the results; B's address stays in R9."""
        self._line = 0
        self._place = 8 * self.operands
        self._lines = 16 * self.operands
        self._tiles = self._lines + 8
        self._tile_count = self._lines + 16
        self._has_rest = self._lines + 24
        self._spill = -(-(self._lines + 32) // 64) * 64

    def kernel(self) -> Kernel:
        code, shape = self.code, self.shape
        self._begin()
        narrow = code.label()
        if shape.tail_vectors:
            if shape.has_full_panels:
                code.mov(RAX, Mem(RSI, 8 * (self.operands + 4)))
                code.test(RAX, RAX)
                code.jump_if("nz", narrow)
                self._panel(shape.vectors, None)
            code.place(narrow)
            self._panel(shape.tail_vectors, shape.tail_lanes or None)
        else:
            self._panel(shape.vectors, None)
        return Kernel(self.label, code.finish(), self._scratch_bytes(shape.rows))

    def _begin(self) -> None:
        """B's address to R9, those of other operands and the first numbers of the chunk to scratch memory."""
        code, columns = self.code, self.operands + 1
        code.mov(R9, Mem(RDI, 8))
        code.add(R9, Mem(RSI, 8))
        for operand in range(self.operands):
            at = 8 * (operand + (operand > 0))
            code.mov(RAX, Mem(RDI, at))
            code.add(RAX, Mem(RSI, at))
            code.mov(Mem(RDX, self._line + 8 * operand), RAX)
        for column, place in enumerate((self._lines, self._tile_count, self._has_rest)):
            code.mov(RAX, Mem(RSI, 8 * (columns + column)))
            code.mov(Mem(RDX, place), RAX)

    def _scratch_bytes(self, rows: int) -> int:
        """That a thread needs for tiles of at most so many rows."""
        code, vectors = self.code, self.shape.vectors
        free = code.registers - rows * vectors - (0 if code.has_avx512 else 1)
        is_direct = fits_in(code, self.shape.epilogue, free)
        return self._spill + (0 if is_direct else max(rows, 1) * vectors * code.bytes)

    def _panel(self, vectors: int, lanes: int | None, lines: int = 1, rows: int = 0) -> None:
        """All lines and tiles of a chunk, then the return.

        Args:
            vectors: of the panel.
            lanes: of its last vector; None: all.
            lines: of a tile.
            rows: of each line of a tile; 0: as the shape says, with what is left of a line.
        """
        code, shape = self.code, self.shape
        tail_rows = 0 if rows else shape.tail_rows
        rows = rows or shape.rows
        if lanes is not None and code.has_avx512:
            code.set_mask(MASK, lanes)
        line = code.here()
        for operand in range(self.operands):
            code.mov(RAX, Mem(RDX, self._line + 8 * operand))
            code.mov(Mem(RDX, self._place + 8 * operand), RAX)
        code.mov(RAX, Mem(RDX, self._tile_count))
        code.mov(Mem(RDX, self._tiles), RAX)
        rest, done = code.label(), code.label()
        code.test(RAX, RAX)
        code.jump_if("z", rest)
        tile = code.here()
        self._tile(lines, rows, vectors, lanes)
        for operand, (_, step) in enumerate(shape.steps):
            self._advance(self._place + 8 * operand, rows * step)
        self._count_down(self._tiles, tile)
        code.place(rest)
        if tail_rows:
            code.mov(RAX, Mem(RDX, self._has_rest))
            code.test(RAX, RAX)
            code.jump_if("z", done)
            self._tile(lines, tail_rows, vectors, lanes)
        code.place(done)
        for operand, (step, _) in enumerate(shape.steps):
            self._advance(self._line + 8 * operand, lines * step)
        self._count_down(self._lines, line)
        code.ret()

    def _advance(self, place: int, step: int) -> None:
        if step:
            self.code.mov(RAX, Mem(RDX, place))
            self.code.add_immediate(RAX, step)
            self.code.mov(Mem(RDX, place), RAX)

    def _count_down(self, place: int, again: Label) -> None:
        code = self.code
        code.mov(RAX, Mem(RDX, place))
        code.decrement(RAX)
        code.mov(Mem(RDX, place), RAX)
        code.jump_if("nz", again)

    def _tile(self, lines: int, rows: int, vectors: int, lanes: int | None) -> None:
        code, (step_y, step_x) = self.code, self.shape.steps[0]
        sums = [[row * vectors + v for v in range(vectors)] for row in range(lines * rows)]
        for register in range(lines * rows * vectors):
            code.zero(register)
        code.mov(R8, Mem(RDX, self._place))
        places = [line * step_y + row * step_x for line in range(lines) for row in range(rows)]
        self.accumulate(sums, places, lanes)
        self._finish(sums, rows, lanes)

    def accumulate(self, sums: list[list[int]], places: Sequence[int], lanes: int | None) -> None:
        """Adds up a tile in registers, a list of vectors a row.

        R8 points to A's first row, R9 to B's panel. May change RAX, RCX, R10 to R15 and all other vector
        registers.

        Args:
            sums: registers.
            places: how many bytes behind R8 each row of A begins.
            lanes: of the last vector, None for all; with AVX-512 `MASK` selects them.
        """
        raise NotImplementedError

    def _finish(self, sums: list[list[int]], rows: int, lanes: int | None) -> None:
        """The epilogue of a tile, so many rows a line: in registers, or through scratch memory."""
        code, shape = self.code, self.shape
        vectors = len(sums[0])
        used = len(sums) * vectors
        top = code.registers
        if lanes is not None and not code.has_avx512:
            top -= 1
        if fits_in(code, shape.epilogue, top - used):
            if top < code.registers and lanes is not None:
                code.set_mask(top, lanes)
            free = list(range(used, top))
            for at, registers in enumerate(sums):
                for v, register in enumerate(registers):
                    self._vector(register, free, divmod(at, rows), v, lanes if v == vectors - 1 else None)
            return
        for registers in sums:
            for register in registers:
                code.store(Mem(RDX, self._spill + register * code.bytes), register)
        if top < code.registers and lanes is not None:
            code.set_mask(top, lanes)
        # Rows of a line in a loop: R13 counts them, R12 walks the spilled tile, operands move on by a step.
        code.lea(R12, Mem(RDX, self._spill))
        free = list(range(1, top))
        lines = len(sums) // rows
        for line in range(lines):
            code.move_immediate(R13, rows)
            again = code.here()
            for v in range(vectors):
                code.load(0, Mem(R12, v * code.bytes))
                self._vector(0, free, (line, 0), v, lanes if v == vectors - 1 else None)
            self._advance_results(rows=1)
            code.add_immediate(R12, vectors * code.bytes)
            code.decrement(R13)
            code.jump_if("nz", again)
            self._advance_results(rows=-rows)

    def _advance_results(self, rows: int) -> None:
        for operand, (_, step) in list(enumerate(self.shape.steps))[1:]:
            self._advance(self._place + 8 * operand, rows * step)

    def _vector(self, value: int, free: list[int], at: tuple[int, int], v: int, lanes: int | None) -> None:
        """Ends a vector of so many lanes, None for all, for which there is a mask; `at`: line, row in it."""
        code, shape = self.code, self.shape
        accesses = (*shape.epilogue.leaves, *shape.epilogue.results)
        mask = None if lanes is None else MASK if code.has_avx512 else code.registers - 1

        def place(operand: int) -> Mem:
            code.mov(R15, Mem(RDX, self._place + 8 * (operand + 1)))
            (step_y, step_x), access = shape.steps[operand + 1], accesses[operand]
            column = v * code.width * access.itemsize if access.strides[-1] else 0
            return Mem(R15, at[0] * step_y + at[1] * step_x + column)

        finish_vector(code, shape.epilogue, value, free, place, mask, lanes)
