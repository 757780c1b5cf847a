"""The frame of kernels over rows of neighbouring floats: chunks, passes over vectors, sums over a row."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from vkml.cpu.native.assembler import (
    R8,
    R9,
    R10,
    R11,
    R12,
    R13,
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
    Operand,
)
from vkml.cpu.native.executable import InstructionSet
from vkml.cpu.native.expression import Access, Epilogue, TooFewRegisters
from vkml.cpu.native.kernel import Array, Kernel, Launch
from vkml.cpu.native.open_frame import Axis, OpenFrame, axes_of, merged
from vkml.cpu.native.open_launch import Open, OpenLaunch, Parameters, Word
from vkml.cpu.native.tail import finish_vector
from vkml.cpu.native.tiles import CHUNK_SECONDS, LEAST_CHUNK_SECONDS, MASK, lanes_of
from vkml.cpu.native.vectors import VectorCode
from vkml.dataclasses import dataclass

_END, _WHOLE, _GOAL = range(3)
"""Slots of the frame: bytes of the columns, of those in whole steps, and where the next turns end."""
POINTERS = (R8, R9, R10, R11, R12, R13, R14, R15, RBX, RBP)
"""Registers that point to the operands' rows."""
BLOCK = 32
"""Turns after which sums are put aside, and times after which that sum is: a million equal numbers in one
running sum for each lane are wrong by 2e-4, so by 3e-7."""


@dataclass(frozen=True)
class RowShape:
    """All that the code of rows depends on."""

    instructions: InstructionSet
    kind: str
    columns: Word
    epsilon: float
    factors: tuple[int, ...]
    """Column strides (0 or 1) of the scale and the bias, as many as there are."""
    steps: tuple[int, ...]
    """Bytes from row to row of x, the factors, the leaves, the results; 0 where there are axes."""
    epilogue: Epilogue
    axes: tuple[Axis, ...] = ()
    """How rows are walked where sizes are open."""

    @property
    def has_one_column(self) -> bool:
        return self.columns == 1


@functools.lru_cache(maxsize=256)
def row_launch(
    instructions: InstructionSet,
    kind: str,
    *,
    shape: tuple[int, ...],
    inputs: tuple[tuple[int, ...], ...],
    epilogue: Epilogue,
    threads: int,
    seconds_per_vector: float,
    make: Callable[[RowShape], Kernel],
    epsilon: float = 0.0,
) -> Launch:
    """A launch of one kernel over rows of neighbouring floats.

    Args:
        instructions: the set that code may use.
        kind: says what is done with a row.
        shape: leading axes and columns.
        inputs: element strides of x, 1 along the columns, and of what else is read over `shape`.
        epilogue: over the leading axes and the columns of the result.
        threads: that will share the work.
        seconds_per_vector: estimated, with AVX-512; with AVX2 half of it.
        make: the kernel of a shape.
        epsilon: a number that the code depends on.
    """
    *lead, columns = shape
    operands = [*inputs, *(access.strides for access in (*epilogue.leaves, *epilogue.results))]
    if len(operands) > len(POINTERS):
        raise TooFewRegisters(f"{len(operands)} operands")
    while len(lead) > 1 and all(strides[-3] == lead[-1] * strides[-2] for strides in operands):
        lead[-2:] = [lead[-2] * lead[-1]]
        operands = [(*strides[:-3], *strides[-2:]) for strides in operands]
    if not lead:
        lead, operands = [1], [(0, *strides) for strides in operands]
    rows = lead[-1]
    lanes = lanes_of(instructions)
    each = (-(-columns // lanes) + 2) * seconds_per_vector * (lanes / 16)
    total = each * math.prod(lead)
    goal = max(min(CHUNK_SECONDS, total / (4 * threads)), LEAST_CHUNK_SECONDS)
    span = int(max(1, min(rows, goal / each)))
    if len(lead) == 1:
        # Every thread gets as many chunks.
        span = -(-rows // (-(-rows // span // threads) * threads))
    starts = np.arange(0, rows, span)
    grid = np.meshgrid(*(np.arange(size) for size in lead[:-1]), starts, indexing="ij")
    places = [axis.reshape(-1) for axis in grid]
    columns_made: list[Array] = [
        np.asarray(4 * sum((at * step for at, step in zip(places, strides, strict=False)), start=np.int64(0)))
        for strides in operands
    ]
    columns_made.append(np.minimum(span, rows - places[-1]))
    table = np.ascontiguousarray(np.stack(np.broadcast_arrays(*columns_made), 1), np.int64)
    description = RowShape(
        instructions,
        kind,
        columns,
        epsilon,
        tuple(strides[-1] for strides in inputs[1:]),
        tuple(4 * strides[-2] for strides in operands),
        replace(epilogue, leaves=_last(epilogue.leaves), results=_last(epilogue.results)),
    )
    return Launch(make(description), table, total + 1e-7)


def open_row_launch(
    instructions: InstructionSet,
    kind: str,
    *,
    shape: tuple[int, ...],
    inputs: tuple[tuple[int, ...], ...],
    epilogue: Epilogue,
    seconds_per_vector: float,
    make: Callable[[RowShape], Kernel],
    epsilon: float = 0.0,
    scratch_bytes: int = 0,
) -> OpenLaunch | None:
    """As `row_launch`, for any values of sizes that are open; None where operands are too many.

    Args:
        scratch_bytes: of memory of its own that a thread needs.
    """
    *lead, columns = shape
    operands = [*inputs, *(access.strides for access in (*epilogue.leaves, *epilogue.results))]
    if len(operands) > len(POINTERS):
        return None
    extents, steps = merged(lead, [[4 * step for step in strides[:-1]] for strides in operands])
    parameters = Parameters()
    description = RowShape(
        instructions,
        kind,
        parameters.word(columns),
        epsilon,
        tuple(strides[-1] for strides in inputs[1:]),
        (0,) * len(operands),
        replace(epilogue, leaves=_last(epilogue.leaves), results=_last(epilogue.results)),
        axes_of(extents, steps, parameters),
    )
    lanes = lanes_of(instructions)
    work = math.prod(lead) * (-(-columns // lanes) + 2)
    seconds = seconds_per_vector * (lanes / 16)
    rows = math.prod(lead)
    return OpenLaunch(make(description), rows, tuple(parameters.sizes), work, seconds, scratch_bytes)


def _last(accesses: Sequence[Access]) -> tuple[Access, ...]:
    return tuple(replace(access, strides=access.strides[-1:]) for access in accesses)


class RowCode:
    """Writes the kernel: a loop over rows; a subclass says what is done with one, in passes over its vectors.

    Attributes:
        rows: what the code depends on.
        code: receives the code.
        full: vectors of a row.
        rest: floats behind them.
        mask: selects these, None where there are none.
        top: the number of the first vector register that is not free, as it holds the mask.
    """

    def __init__(self, rows: RowShape) -> None:
        self.rows = rows
        self.code = VectorCode(rows.instructions)
        is_open = isinstance(rows.columns, Open)
        self.full, self.rest = (
            (0, 0) if isinstance(rows.columns, Open) else divmod(rows.columns, self.code.width)
        )
        self.mask: int | None = None
        self.top = self.code.registers
        self.frame: OpenFrame | None = None
        if rows.axes:
            self.frame = OpenFrame(self.code, rows.axes, len(rows.steps), slots=3)
        if self.rest or is_open:
            if not self.code.has_avx512:
                self.top -= 1
            self.mask = MASK if self.code.has_avx512 else self.top

    def kernel(self) -> Kernel:
        code, rows = self.code, self.rows
        if self.frame is not None:
            frame = self.frame

            def row_in_frame() -> None:
                frame.scratch(RDX)
                self.row()

            frame.emit(row_in_frame, self._prepare)
            return Kernel(rows.kind, code.finish())
        if self.mask is not None:
            code.set_mask(self.mask, self.rest)
        for operand in range(len(rows.steps)):
            code.mov(POINTERS[operand], Mem(RDI, 8 * operand))
            code.add(POINTERS[operand], Mem(RSI, 8 * operand))
        code.mov(RSI, Mem(RSI, 8 * len(rows.steps)))
        row = code.here()
        self.row()
        for operand, step in enumerate(rows.steps):
            if step:
                code.add_immediate(POINTERS[operand], step)
        code.decrement(RSI)
        code.jump_if("nz", row)
        code.ret()
        return Kernel(rows.kind, code.finish(), self.scratch_bytes())

    def _prepare(self) -> None:
        """The mask, and the columns' bytes on the stack, for all rows of a chunk."""
        code, columns = self.code, self.rows.columns
        if not isinstance(columns, Open):
            if self.mask is not None:
                code.set_mask(self.mask, self.rest)
            return
        assert self.frame is not None and self.mask is not None
        self.frame.word(RAX, columns)
        code.mov(RCX, RAX)
        code.shift_left(RCX, 2)
        code.mov(self.frame.slot(_END), RCX)
        code.and_immediate(RAX, code.width - 1)
        code.set_mask_of(self.mask, RAX, RCX)

    def row(self) -> None:
        """Writes what is done with a row: POINTERS point to it, RSI must stay as it is."""
        raise NotImplementedError

    def scratch_bytes(self) -> int:
        """Of memory that RDX points to."""
        return 0

    def each(
        self,
        work: Callable[[int, int | None], None],
        unroll: int = 1,
        put_aside: Sequence[Callable[[], None]] = (),
    ) -> None:
        """Emits work(displacement, mask) for every vector of a row; RCX is the byte offset to be added.

        The code of `put_aside` runs after every `BLOCK` turns of a long row (the first), or `BLOCK` times
        as many (the second). Changes RAX and RDI.
        """
        code = self.code
        code.move_immediate(RCX, 0)
        step = unroll * code.bytes
        if isinstance(self.rows.columns, Open):
            self._each_open(work, unroll, put_aside)
            return
        times, left = divmod(self.full, unroll)

        def turns(depth: int, limit: Callable[[], None]) -> None:
            """The loop whose turns end in the putting aside of that depth, -1 for none, up to a limit."""
            again = code.here()
            if depth < 0:
                for number in range(unroll):
                    work(number * code.bytes, None)
                code.add_immediate(RCX, step)
            else:
                register = (RAX, RDI)[depth]
                code.lea(register, Mem(RCX, BLOCK ** (depth + 1) * step))
                turns(depth - 1, lambda: code.cmp(RCX, register))
                put_aside[depth]()
            limit()
            code.jump_if("ne", again)

        done = 0
        for depth in range(len(put_aside) - 1, -2, -1):
            size = BLOCK ** (depth + 1)
            if times - done >= size:
                done = times // size * size
                turns(depth, functools.partial(code.cmp_immediate, RCX, done * step))
        for number in range(left):
            work(number * code.bytes, None)
        if self.rest:
            work(left * code.bytes, self.mask)

    def _each_open(
        self,
        work: Callable[[int, int | None], None],
        unroll: int,
        put_aside: Sequence[Callable[[], None]],
    ) -> None:
        """As `each`, for a number of columns that is known when the code runs; RCX is 0."""
        code, frame = self.code, self.frame
        assert frame is not None
        step = unroll * code.bytes
        end, whole, goal = frame.slot(_END), frame.slot(_WHOLE), frame.slot(_GOAL)

        def limit(size: int) -> None:
            """Where the last whole step of so many bytes ends."""
            code.mov(RAX, end)
            code.and_immediate(RAX, -size)
            code.mov(whole, RAX)

        finished = code.label()
        limit(step)
        code.cmp(RCX, whole)
        code.jump_if("e", finished)
        if put_aside:
            code.lea(RDI, Mem(RCX, BLOCK * BLOCK * step))
            outer, fits = code.here(), code.label()
            code.lea(RAX, Mem(RCX, BLOCK * step))
            code.cmp(RAX, whole)
            code.jump_if("le", fits)
            code.mov(RAX, whole)
            code.place(fits)
            code.mov(goal, RAX)
            self._turns(work, unroll, goal)
            put_aside[0]()
            is_early = code.label()
            code.cmp(RCX, RDI)
            code.jump_if("l", is_early)
            put_aside[1]()
            code.lea(RDI, Mem(RCX, BLOCK * BLOCK * step))
            code.place(is_early)
            code.cmp(RCX, whole)
            code.jump_if("l", outer)
        else:
            self._turns(work, unroll, whole)
        code.place(finished)
        if unroll > 1:
            has_none = code.label()
            limit(code.bytes)
            code.cmp(RCX, whole)
            code.jump_if("e", has_none)
            self._turns(work, 1, whole)
            code.place(has_none)
        has_no_rest = code.label()
        code.cmp(RCX, end)
        code.jump_if("e", has_no_rest)
        work(0, self.mask)
        code.place(has_no_rest)

    def _turns(self, work: Callable[[int, int | None], None], unroll: int, goal: Mem) -> None:
        code = self.code
        again = code.here()
        for number in range(unroll):
            work(number * code.bytes, None)
        code.add_immediate(RCX, unroll * code.bytes)
        code.cmp(RCX, goal)
        code.jump_if("ne", again)

    def row_of(self, operand: int, displacement: int) -> Mem:
        """A vector of an operand's row."""
        return Mem(POINTERS[operand], displacement, RCX)

    def masked(self, target: int, source: Mem, mask: int | None, neutral: float) -> None:
        """Loads a vector; lanes that are not there get a number. Changes the last free register."""
        code = self.code
        if mask is None:
            code.load(target, source)
            return
        spare = self.top - 1
        code.load(target, source, mask)
        code.load(spare, code.constant(neutral))
        code.blend(target, spare, target, mask)

    def store(self, value: int, displacement: int, mask: int | None, free: Sequence[int]) -> None:
        """Applies the epilogue to a vector of the row and stores it."""
        epilogue = self.rows.epilogue
        accesses = (*epilogue.leaves, *epilogue.results)
        first = len(self.rows.steps) - len(accesses)

        def place(operand: int) -> Mem:
            if accesses[operand].strides[-1] == 0 and not self.rows.has_one_column:
                return Mem(POINTERS[first + operand])
            return self.row_of(first + operand, displacement)

        finish_vector(self.code, epilogue, value, free, place, mask)

    def sum(self, target: int, add: Callable[[int, int, int | None], None]) -> None:
        """Adds up a row and its lanes: add(register, displacement, mask) adds a vector to one of four sums.

        Changes registers 2 to 5, 8, 9 and those that `add` changes.
        """
        code = self.code
        sums, block, total = (2, 3, 4, 5), 8, 9
        for register in (*sums, block, total):
            code.zero(register)
        turn = itertools.count()
        put_aside = self.put_aside(sums, block, total)
        self.each(lambda displacement, mask: add(sums[next(turn) % 4], displacement, mask), 4, put_aside)
        for part in put_aside:
            part()
        code.copy(target, total)
        code.reduce_lanes("addps", target, 2)

    def put_aside(self, sums: Sequence[int], block: int, total: int) -> list[Callable[[], None]]:
        """Code that adds sums to that of a block, and a block's to the whole, and begins anew."""
        code = self.code

        def sums_to_block() -> None:
            # In pairs.
            left = list(sums)
            while len(left) > 1:
                first, second = left.pop(0), left.pop(0)
                code.add_vector(first, first, second)
                left.append(first)
            code.add_vector(block, block, left[0])
            for register in sums:
                code.zero(register)

        def block_to_total() -> None:
            code.add_vector(total, total, block)
            code.zero(block)

        return [sums_to_block, block_to_total]

    def plain(self, register: int, displacement: int, mask: int | None) -> None:
        """Adds a vector of the row to a register; with a mask through register 6."""
        code = self.code
        source: Operand = self.row_of(0, displacement)
        if mask is not None:
            assert isinstance(source, Mem)
            code.load(6, source, mask)
            source = 6
        code.add_vector(register, register, source)
