"""Rows of neighbouring floats: softmax, normalisation, reduction; lanes lie along the row."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from vkml.cpu.native import mathematics
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
from vkml.cpu.native.expression import Access, Epilogue, TooFewRegisters, emit
from vkml.cpu.native.kernel import Array, Kernel, Launch
from vkml.cpu.native.operations import OPERATIONS
from vkml.cpu.native.tail import finish_vector
from vkml.cpu.native.tiles import CHUNK_SECONDS, LEAST_CHUNK_SECONDS, MASK, lanes_of
from vkml.cpu.native.vectors import VectorCode

POINTERS = (R8, R9, R10, R11, R12, R13, R14, R15, RBX, RBP)
"""Registers that point to the operands' rows."""
LEAST_CUT = 1 << 16
"""Elements, 3 µs of work, of a part of a row at least: the second launch takes about 1 µs."""
_BLOCK = 32
"""Turns after which sums are put aside, and times after which that sum is: a million equal numbers in one
running sum for each lane are wrong by 2e-4, so by 3e-7."""
_SECONDS_PER_VECTOR = {"softmax": 5.6e-9, "log_softmax": 5.6e-9, "layer_norm": 2.6e-9, "rms_norm": 1.8e-9}
"""With AVX-512 on a Zen 4; half with AVX2. Reductions: 0.8 ns."""


@dataclass(frozen=True)
class _Rows:
    """All that the code of rows depends on."""

    instructions: InstructionSet
    kind: str
    columns: int
    epsilon: float
    factors: tuple[int, ...]
    """Column strides (0 or 1) of the scale and the bias, as many as there are."""
    is_centred: bool
    steps: tuple[int, ...]
    """Bytes from row to row of x, the factors, the leaves, the results."""
    epilogue: Epilogue


def softmax(
    instructions: InstructionSet,
    *,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    is_logarithm: bool,
    epilogue: Epilogue,
    threads: int,
) -> Launch:
    """Softmax (or its logarithm) of rows, then an epilogue.

    Args:
        instructions: the set that code may use.
        shape: leading axes and columns.
        strides: elements, of x; 1 along the columns.
        is_logarithm: whether the logarithm is wanted.
        epilogue: over `shape`, float32.
        threads: that will share the work.

    Returns:
        A launch of x, the leaves, the results.
    """
    kind = "log_softmax" if is_logarithm else "softmax"
    return _launch(instructions, kind, shape, [strides], epilogue, threads)


def normalise(
    instructions: InstructionSet,
    *,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    is_centred: bool,
    epsilon: float,
    scale: tuple[int, ...] | None,
    bias: tuple[int, ...] | None,
    epilogue: Epilogue,
    threads: int,
) -> Launch:
    """Rows of mean 0 and variance 1 (not centred: of mean square 1), scaled and shifted, then an epilogue.

    Args:
        instructions: the set that code may use.
        shape: leading axes and columns.
        strides: elements, of x; 1 along the columns.
        is_centred: whether the mean is taken away.
        epsilon: added to the variance.
        scale: element strides of the factor, None for none; 0 or 1 along the columns.
        bias: likewise of the addend, which needs a factor.
        epilogue: over `shape`, float32.
        threads: that will share the work.

    Returns:
        A launch of x, the scale, the bias, the leaves, the results.
    """
    kind = "layer_norm" if is_centred else "rms_norm"
    given = [strides, *(entry for entry in (scale, bias) if entry is not None)]
    if bias is not None and scale is None:
        raise ValueError("a bias without a scale")
    return _launch(instructions, kind, shape, given, epilogue, threads, epsilon, is_centred)


def reduce_rows(
    instructions: InstructionSet,
    *,
    kind: str,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    epilogue: Epilogue,
    threads: int,
) -> Launch:
    """Rows folded to one number each, then an epilogue of that number.

    Args:
        instructions: the set that code may use.
        kind: "sum", "sum_square", "l1", "max", "min" or "prod".
        shape: leading axes and columns.
        strides: elements, of x; 1 along the columns.
        epilogue: over the leading axes and one column, float32.
        threads: that will share the work.

    Returns:
        A launch of x, the leaves, the results.
    """
    return _launch(instructions, kind, shape, [strides], epilogue, threads)


def cut_of_rows(rows: int, columns: int, threads: int) -> int:
    """Columns of the parts into which long rows, if they are few, are cut so that threads share them; 0: none.

    The parts are reduced first, then what came of them: squares and absolute values as sums.
    """
    parts = min(-(-4 * threads // max(rows, 1)), rows * columns // LEAST_CUT)
    return columns // parts // 64 * 64 if rows < 4 * threads and threads > 1 and parts > 1 else 0


def _launch(
    instructions: InstructionSet,
    kind: str,
    shape: tuple[int, ...],
    inputs: Sequence[tuple[int, ...]],
    epilogue: Epilogue,
    threads: int,
    epsilon: float = 0.0,
    is_centred: bool = False,
) -> Launch:
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
    each = (-(-columns // lanes) + 2) * _SECONDS_PER_VECTOR.get(kind, 0.8e-9) * (lanes / 16)
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
    description = _Rows(
        instructions,
        kind,
        columns,
        epsilon,
        tuple(strides[-1] for strides in inputs[1:]),
        is_centred,
        tuple(4 * strides[-2] for strides in operands),
        replace(epilogue, leaves=_last(epilogue.leaves), results=_last(epilogue.results)),
    )
    return Launch(_kernel(description), table, total + 1e-7)


def _last(accesses: Sequence[Access]) -> tuple[Access, ...]:
    return tuple(replace(access, strides=access.strides[-1:]) for access in accesses)


@functools.lru_cache(maxsize=512)
def _kernel(rows: _Rows) -> Kernel:
    return _RowCode(rows).kernel()


class _RowCode:
    """Writes the kernel: a loop over rows, in it passes over the row's vectors."""

    def __init__(self, rows: _Rows) -> None:
        self.rows = rows
        self.code = VectorCode(rows.instructions)
        self.full, self.rest = divmod(rows.columns, self.code.width)
        self.mask: int | None = None
        self.top = self.code.registers
        if self.rest:
            if not self.code.has_avx512:
                self.top -= 1
            self.mask = MASK if self.code.has_avx512 else self.top

    def kernel(self) -> Kernel:
        code, rows = self.code, self.rows
        if self.mask is not None:
            code.set_mask(self.mask, self.rest)
        for operand in range(len(rows.steps)):
            code.mov(POINTERS[operand], Mem(RDI, 8 * operand))
            code.add(POINTERS[operand], Mem(RSI, 8 * operand))
        code.mov(RSI, Mem(RSI, 8 * len(rows.steps)))
        row = code.here()
        if rows.kind in ("softmax", "log_softmax"):
            self._softmax(rows.kind == "log_softmax")
        elif rows.kind in ("layer_norm", "rms_norm"):
            self._normalise()
        else:
            self._reduce()
        for operand, step in enumerate(rows.steps):
            if step:
                code.add_immediate(POINTERS[operand], step)
        code.decrement(RSI)
        code.jump_if("nz", row)
        code.ret()
        scratch = (self.full + 1) * code.bytes if rows.kind == "softmax" else 0
        return Kernel(rows.kind, code.finish(), scratch)

    def _each(
        self,
        work: Callable[[int, int | None], None],
        unroll: int = 1,
        put_aside: Sequence[Callable[[], None]] = (),
    ) -> None:
        """Emits work(displacement, mask) for every vector of a row; RCX is the byte offset to be added.

        The code of `put_aside` runs after every `_BLOCK` turns of a long row (the first), or `_BLOCK` times
        as many (the second). Changes RAX and RDI.
        """
        code = self.code
        code.move_immediate(RCX, 0)
        step = unroll * code.bytes
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
                code.lea(register, Mem(RCX, _BLOCK ** (depth + 1) * step))
                turns(depth - 1, lambda: code.cmp(RCX, register))
                put_aside[depth]()
            limit()
            code.jump_if("ne", again)

        done = 0
        for depth in range(len(put_aside) - 1, -2, -1):
            size = _BLOCK ** (depth + 1)
            if times - done >= size:
                done = times // size * size
                turns(depth, functools.partial(code.cmp_immediate, RCX, done * step))
        for number in range(left):
            work(number * code.bytes, None)
        if self.rest:
            work(left * code.bytes, self.mask)

    def _row_of(self, operand: int, displacement: int) -> Mem:
        return Mem(POINTERS[operand], displacement, RCX)

    def _masked(self, target: int, source: Mem, mask: int | None, neutral: float) -> None:
        """Loads a vector; lanes that are not there get a number."""
        code = self.code
        if mask is None or neutral == 0.0:
            code.load(target, source, mask)
            return
        code.load(target, source, mask)
        if code.has_avx512:
            spare = self.top - 1
            code.load(spare, code.constant(neutral))
            code.blend(target, spare, target, mask)
        else:
            spare = self.top - 1
            code.load(spare, code.constant(neutral))
            code.blend(target, spare, target, mask)

    def _store(self, value: int, displacement: int, mask: int | None, free: Sequence[int]) -> None:
        """Applies the epilogue to a vector of the row and stores it."""
        epilogue = self.rows.epilogue
        accesses = (*epilogue.leaves, *epilogue.results)
        first = len(self.rows.steps) - len(accesses)

        def place(operand: int) -> Mem:
            if accesses[operand].strides[-1] == 0 and self.rows.columns > 1:
                return Mem(POINTERS[first + operand])
            return self._row_of(first + operand, displacement)

        finish_vector(self.code, epilogue, value, free, place, mask)

    def _softmax(self, is_logarithm: bool) -> None:
        code = self.code
        greatest, total, spare = 0, 1, 2
        code.load(greatest, code.constant(-np.inf))

        def widen(displacement: int, mask: int | None) -> None:
            self._masked(3, self._row_of(0, displacement), mask, -np.inf)
            # NaN comes back by the exponentials.
            code.vector("maxps", greatest, greatest, 3)

        self._each(widen, 4)
        code.reduce_lanes("maxps", greatest, spare)
        sums, block = (7, 8), 9
        for register in (total, block, *sums):
            code.zero(register)
        turn = itertools.count()
        put_aside = self._put_aside(sums, block, total)

        def raise_up(displacement: int, mask: int | None) -> None:
            code.load(3, self._row_of(0, displacement), mask)
            code.sub_vector(3, 3, greatest)
            mathematics.exp(code, 3, 3, list(range(4, 4 + mathematics.SPARE)))
            if mask is not None:
                code.zero(4)
                code.blend(3, 4, 3, mask)
            if not is_logarithm:
                code.store(Mem(RDX, displacement, RCX), 3)
            register = sums[next(turn) % 2]
            code.add_vector(register, register, 3)

        self._each(raise_up, 2, put_aside)
        for part in put_aside:
            part()
        code.reduce_lanes("addps", total, spare)
        free = list(range(3, self.top))
        if is_logarithm:
            mathematics.log(code, total, total, list(range(3, 3 + mathematics.SPARE)))

            def finish(displacement: int, mask: int | None) -> None:
                code.load(2, self._row_of(0, displacement), mask)
                code.sub_vector(2, 2, greatest)
                code.sub_vector(2, 2, total)
                self._store(2, displacement, mask, free)
        else:
            code.load(2, code.constant(1.0))
            code.vector("divps", total, 2, total)

            def finish(displacement: int, mask: int | None) -> None:
                code.mul_vector(2, total, Mem(RDX, displacement, RCX))
                self._store(2, displacement, mask, free)

        self._each(finish, 2)

    def _normalise(self) -> None:
        code, rows = self.code, self.rows
        mean, inverse = 0, 1
        code.zero(mean)
        if rows.is_centred:
            self._sum(mean, self._plain)
            code.mul_vector(mean, mean, code.constant(1.0 / rows.columns))

        def square(register: int, displacement: int, mask: int | None) -> None:
            code.load(6, self._row_of(0, displacement), mask)
            if rows.is_centred:
                code.sub_vector(6, 6, mean)
                if mask is not None:
                    code.zero(7)
                    code.blend(6, 7, 6, mask)
            code.multiply_add(register, 6, 6)

        self._sum(inverse, square)
        code.mul_vector(inverse, inverse, code.constant(1.0 / rows.columns))
        code.add_vector(inverse, inverse, code.constant(rows.epsilon))
        code.unary("sqrtps", inverse, inverse)
        code.load(2, code.constant(1.0))
        code.vector("divps", inverse, 2, inverse)
        free = list(range(3, self.top))

        def finish(displacement: int, mask: int | None) -> None:
            code.load(2, self._row_of(0, displacement), mask)
            if rows.is_centred:
                code.sub_vector(2, 2, mean)
            code.mul_vector(2, 2, inverse)
            factors = [self._factor(1 + number, displacement, mask) for number in range(len(rows.factors))]
            if len(factors) == 2:
                code.vector("fmadd213ps", 2, *factors)
            elif factors:
                code.mul_vector(2, 2, factors[0])
            self._store(2, displacement, mask, free)

        self._each(finish, 2)

    def _factor(self, operand: int, displacement: int, mask: int | None) -> int:
        """The scale in register 3 or the bias in register 4."""
        code, rows = self.code, self.rows
        if rows.factors[operand - 1] or rows.columns == 1:
            code.load(2 + operand, self._row_of(operand, displacement), mask)
        else:
            code.broadcast(2 + operand, Mem(POINTERS[operand]))
        return 2 + operand

    def _sum(self, target: int, add: Callable[[int, int, int | None], None]) -> None:
        """Adds up a row and its lanes: add(register, displacement, mask) adds a vector to one of four sums.

        Changes registers 2 to 5, 8, 9 and those that `add` changes.
        """
        code = self.code
        sums, block, total = (2, 3, 4, 5), 8, 9
        for register in (*sums, block, total):
            code.zero(register)
        turn = itertools.count()
        put_aside = self._put_aside(sums, block, total)
        self._each(lambda displacement, mask: add(sums[next(turn) % 4], displacement, mask), 4, put_aside)
        for part in put_aside:
            part()
        code.copy(target, total)
        code.reduce_lanes("addps", target, 2)

    def _put_aside(self, sums: Sequence[int], block: int, total: int) -> list[Callable[[], None]]:
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

    def _plain(self, register: int, displacement: int, mask: int | None) -> None:
        """Adds a vector of the row to a register; with a mask through register 6."""
        code = self.code
        source: Operand = self._row_of(0, displacement)
        if mask is not None:
            assert isinstance(source, Mem)
            code.load(6, source, mask)
            source = 6
        code.add_vector(register, register, source)

    def _reduce(self) -> None:
        code, rows = self.code, self.rows
        kind = rows.kind
        if kind in ("sum", "sum_square", "l1"):

            def add(register: int, displacement: int, mask: int | None) -> None:
                code.load(6, self._row_of(0, displacement), mask)
                if kind == "sum_square":
                    code.multiply_add(register, 6, 6)
                else:
                    code.vector("andps", 6, 6, code.bits(0x7FFFFFFF))
                    code.add_vector(register, register, 6)

            self._sum(0, self._plain if kind == "sum" else add)
        else:
            operation = {"max": "max", "min": "min", "prod": "mul"}[kind]
            start = {"max": -np.inf, "min": np.inf, "prod": 1.0}[kind]
            spare = list(range(8, self.top - 1))
            code.load(0, code.constant(start))

            def fold(displacement: int, mask: int | None) -> None:
                self._masked(6, self._row_of(0, displacement), mask, start)
                OPERATIONS[operation].emit(code, 0, [0, 6], spare)

            self._each(fold, 2)
            self._fold_lanes(operation, spare)
        # The number is in every lane; one is stored.
        first = len(rows.steps) - len(rows.epilogue.leaves) - len(rows.epilogue.results)

        def single(operand: int) -> Mem:
            return Mem(POINTERS[first + operand])

        made = emit(
            code,
            rows.epilogue.expression,
            bound={0: 0},
            load=lambda operand, target: code.broadcast(target, single(operand - 1)),
            free=list(range(1, self.top)),
        )
        for number, register in enumerate(made):
            code.store_float(single(len(rows.epilogue.leaves) + number), register)

    def _fold_lanes(self, operation: str, spare: Sequence[int]) -> None:
        """As `VectorCode.reduce_lanes` for register 0, by an operation that passes NaN on."""
        code = self.code
        if code.has_avx512:
            code.immediate("shuff32x4", 6, 0, 0, 0x4E)
            OPERATIONS[operation].emit(code, 0, [0, 6], spare)
            code.immediate("shuff32x4", 6, 0, 0, 0xB1)
        else:
            code.immediate("perm2f128", 6, 0, 0, 0x01)
        OPERATIONS[operation].emit(code, 0, [0, 6], spare)
        for pattern in (0x4E, 0xB1):
            code.unary_immediate("permilps", 6, 0, pattern)
            OPERATIONS[operation].emit(code, 0, [0, 6], spare)
