"""Transposing copies: blocks of vectors that are turned in registers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from vkml.cpu.native import transfer
from vkml.cpu.native.assembler import R8, R9, R10, R11, R12, R13, R14, R15, RAX, RBX, RCX, RDI, RSI, Mem
from vkml.cpu.native.element import computed_in, lane_bytes
from vkml.cpu.native.elementwise import lanes
from vkml.cpu.native.executable import InstructionSet
from vkml.cpu.native.kept_kernels import kept_kernel
from vkml.cpu.native.kernel import Kernel, Launch
from vkml.cpu.native.vectors import VectorCode

_CACHE_BYTES = 1 << 22
_BYTES_PER_SECOND_IN_CACHE, _BYTES_PER_SECOND = 30e9, 8e9
_SIDE = 512
"""Chunks are squares of rows of so many bytes: 4096 x 4096 floats go at 12.5 and 10 GB/s (AVX-512, AVX2; one
core of a Zen 4), by whole rows of the result at 7.6 and 5.3."""


def transposition(
    instructions: InstructionSet,
    axes: Sequence[tuple[int, tuple[int, ...]]],
    *,
    itemsize: int,
    threads: int,
) -> Launch | None:
    """A copy between operands that are contiguous along different axes; None if they are not.

    Args:
        instructions: what may be used.
        axes: extents, each with the strides of the source and of the result.
        itemsize: bytes of an element.
        threads: how many are to share the work.
    """
    rows = [axis for axis in axes if axis[1][0] == 1 and axis[1][1] != 1]
    columns = [axis for axis in axes if axis[1][1] == 1 and axis[1][0] not in (0, 1)]
    if not rows or not columns or any(axis[1] == (1, 1) for axis in axes):
        return None
    # A block's vectors are read along p and written along q.
    p, q = max(rows), max(columns)
    others = [axis for axis in axes if axis is not p and axis is not q]
    width = lanes(instructions, is_wide=itemsize == 8)
    kernel = _transposition_kernel(
        instructions,
        itemsize=itemsize,
        source_step=q[1][0],
        result_step=p[1][1],
        p_tail=p[0] % width,
        q_tail=q[0] % width,
    )
    elements = math.prod(extent for extent, _ in axes)
    moved = 2 * itemsize * elements
    seconds = moved / (_BYTES_PER_SECOND_IN_CACHE if moved < _CACHE_BYTES else _BYTES_PER_SECOND)
    outer = math.prod(extent for extent, _ in others)
    p_blocks, q_blocks = -(-p[0] // width), -(-q[0] // width)
    side = _SIDE // max(itemsize, 4) // width
    wanted = max(1, min(side * side, p_blocks * q_blocks * outer // (4 * threads)))
    # Results are written along q, which is therefore the longer side of what is no square.
    q_piece = min(q_blocks, wanted, max(side, wanted // p_blocks))
    p_piece = max(1, min(p_blocks, wanted // q_piece))
    rows_of_table = []
    for p_start in range(0, p_blocks, p_piece):
        p_count = min(p_piece, p_blocks - p_start)
        p_has_tail = p_start + p_count == p_blocks and p[0] % width > 0
        for q_start in range(0, q_blocks, q_piece):
            q_count = min(q_piece, q_blocks - q_start)
            q_has_tail = q_start + q_count == q_blocks and q[0] % width > 0
            source = p_start * width + q_start * width * q[1][0]
            result = p_start * width * p[1][1] + q_start * width
            rows_of_table.append(
                (
                    itemsize * source,
                    itemsize * result,
                    p_count - p_has_tail,
                    p_has_tail,
                    q_count - q_has_tail,
                    q_has_tail,
                )
            )
    table = np.array(rows_of_table, np.int64)
    starts = np.zeros((1, 6), np.int64)
    for extent, steps in others:
        step = np.array([itemsize * steps[0], itemsize * steps[1], 0, 0, 0, 0], np.int64)
        starts = (starts[:, None] + np.arange(extent)[:, None] * step).reshape(-1, 6)
    return Launch(kernel, np.ascontiguousarray((starts[:, None] + table).reshape(-1, 6)), seconds)


@kept_kernel(256)
def _transposition_kernel(
    instructions: InstructionSet,
    *,
    itemsize: int,
    source_step: int,
    result_step: int,
    p_tail: int,
    q_tail: int,
) -> Kernel:
    """A kernel over chunks of blocks.

    Its row of the table is: byte offsets of source and result; how many whole blocks along p, whether there
    is a rest; the same along q.
    """
    return Transposition(instructions, itemsize, source_step, result_step, p_tail, q_tail).kernel()


class Transposition:
    """Writes the kernel, or blocks for another."""

    def __init__(
        self,
        instructions: InstructionSet,
        itemsize: int,
        source_step: int,
        result_step: int,
        p_tail: int,
        q_tail: int,
    ) -> None:
        self.code = VectorCode(instructions, is_wide=itemsize == 8)
        self.itemsize = itemsize
        self.dtype = f"uint{8 * itemsize}"
        self.lane = lane_bytes(computed_in(self.dtype))
        self.source_bytes, self.result_bytes = itemsize * source_step, itemsize * result_step
        self.p_tail, self.q_tail = p_tail, q_tail
        self.p_mask, self.q_mask = (1, 2) if self.code.has_avx512 else (15, 15)

    def kernel(self) -> Kernel:
        code = self.code
        for mask, tail in ((self.p_mask, self.p_tail), (self.q_mask, self.q_tail)):
            if tail and code.has_avx512:
                code.set_mask(mask, tail, lane=self.lane)
        code.mov(R8, Mem(RDI, 0))
        code.add(R8, Mem(RSI, 0))
        code.mov(R9, Mem(RDI, 8))
        code.add(R9, Mem(RSI, 8))
        code.mov(R12, Mem(RSI, 16))
        code.mov(R13, Mem(RSI, 24))
        code.mov(R14, Mem(RSI, 32))
        code.mov(R15, Mem(RSI, 40))
        code.move_immediate(R10, self.source_bytes)
        code.move_immediate(R11, self.result_bytes)
        width = code.width
        with _counted(self.code, R12):
            self._along_q(width)
            code.add_immediate(R8, self.itemsize * width)
            code.move_immediate(RAX, width * self.result_bytes)
            code.add(R9, RAX)
        if self.p_tail:
            end = code.label()
            code.test(R13, R13)
            code.jump_if("z", end)
            self._along_q(self.p_tail)
            code.place(end)
        code.ret()
        return Kernel("transposition", code.finish())

    def _along_q(self, p_count: int) -> None:
        """Blocks of one row of blocks; keeps R8 and R9."""
        code = self.code
        width = code.width
        code.mov(RSI, R8)
        code.mov(RDI, R9)
        code.mov(RBX, R14)
        with _counted(code, RBX):
            self.block(p_count, width)
            code.move_immediate(RAX, width * self.source_bytes)
            code.add(RSI, RAX)
            code.add_immediate(RDI, self.itemsize * width)
        if self.q_tail:
            end = code.label()
            code.test(R15, R15)
            code.jump_if("z", end)
            self.block(p_count, self.q_tail)
            code.place(end)

    def block(self, p_count: int, q_count: int) -> None:
        """Reads q_count vectors of p_count lanes at RSI, writes p_count vectors of q_count lanes at RDI."""
        code = self.code
        width = code.width
        p_mask = self.p_mask if p_count < width else None
        q_mask = self.q_mask if q_count < width else None
        registers = list(range(code.registers - (0 if code.has_avx512 else 1)))[::-1]
        has_masks = code.has_avx512 or self.itemsize >= 4
        if not code.has_avx512 and p_mask is not None:
            code.set_mask(p_mask, p_count, lane=self.lane)
        values: list[int | None] = [None] * width
        code.mov(RCX, RSI)
        for row in range(q_count):
            register = registers.pop()
            if has_masks or p_mask is None:
                transfer.load_elements(code, register, Mem(RCX), self.dtype, p_mask)
            else:
                transfer.load_few(code, register, Mem(RCX), self.dtype, p_count)
            if row < q_count - 1:
                code.add(RCX, R10)
            values[row] = register
        turned = self._turn(values, registers, p_count)
        code.mov(RCX, RDI)
        for row in range(p_count):
            register_or_none = turned[row]
            assert register_or_none is not None
            spare = registers[-transfer.SPARE :]
            is_short = q_mask is not None and (not code.has_avx512 or q_count.bit_count() < 3)
            if is_short and self.itemsize >= 4:
                code.store_lanes(Mem(RCX), register_or_none, q_count, spare[0], lane=self.lane)
            elif has_masks or q_mask is None:
                transfer.store_elements(code, Mem(RCX), register_or_none, self.dtype, spare, q_mask)
            else:
                transfer.store_few(code, Mem(RCX), register_or_none, self.dtype, spare, q_count)
            if row < p_count - 1:
                code.add(RCX, R11)

    def _turn(self, values: list[int | None], registers: list[int], wanted: int) -> list[int | None]:
        """Transposes a square of which some rows are absent; only the first `wanted` rows are worked out."""
        width = self.code.width
        goals = [self._final_place(row) for row in range(wanted)]
        distance = 1
        # A stage mixes rows whose numbers differ in one bit; after it only higher bits are to be mixed.
        while distance < width:
            settled = 2 * distance - 1
            needed = {row for row in range(width) if any((row ^ goal) & settled == 0 for goal in goals)}
            following: list[int | None] = [None] * width
            for low in (row for row in range(width) if not row & distance):
                high = low + distance
                first, second = values[low], values[high]
                if first is None and second is None:
                    continue
                upper: int | None = None
                if high in needed:
                    upper = registers.pop()
                    self._mix(distance, upper, first, second, True)
                if low in needed:
                    # The source's register is free afterwards.
                    lower = registers.pop()
                    self._mix(distance, lower, first, second, False)
                    following[low] = lower
                following[high] = upper
                registers += [entry for entry in (first, second) if entry is not None]
            values = following
            distance *= 2
        return [values[self._final_place(row)] for row in range(width)]

    def _mix(self, distance: int, target: int, first: int | None, second: int | None, is_upper: bool) -> None:
        """The lower or upper row of an exchange; an absent row's lanes are never stored."""
        code = self.code
        one = first if first is not None else second
        two = second if second is not None else first
        assert one is not None and two is not None
        if distance == 1:
            kind = "pd" if self.lane == 8 else "ps"
            code.vector(f"unpckh{kind}" if is_upper else f"unpckl{kind}", target, one, two)
        elif distance == 2 and self.lane == 4:
            code.immediate("shufps", target, one, two, 0xEE if is_upper else 0x44)
        elif code.has_avx512:
            code.immediate("shuff32x4", target, one, two, 0xDD if is_upper else 0x88, bits=512)
        else:
            code.immediate("perm2f128", target, one, two, 0x31 if is_upper else 0x20, bits=256)

    def _final_place(self, row: int) -> int:
        """Where the stages leave a row: of 4-byte elements with the two lowest bits exchanged."""
        return row if self.lane == 8 else row & ~3 | (row & 1) << 1 | row >> 1 & 1


@contextmanager
def _counted(code: VectorCode, counter: int) -> Iterator[None]:
    """Repeats what is inside as often as a register says, which may be zero."""
    end = code.label()
    code.test(counter, counter)
    code.jump_if("z", end)
    with code.loop(counter):
        yield
    code.place(end)
