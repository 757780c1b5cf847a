"""Code of pointwise kernels: loops over strided operands round an expression."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vkml.cpu.native import transfer
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
    RSP,
    Mem,
)
from vkml.cpu.native.element import ITEM_BYTES
from vkml.cpu.native.executable import InstructionSet
from vkml.cpu.native.expression import Expression, emit, registers_needed
from vkml.cpu.native.kept_kernels import kept_kernel
from vkml.cpu.native.kernel import Kernel
from vkml.cpu.native.vectors import VectorCode
from vkml.dataclasses import dataclass

POINTERS = (R8, R9, R10, R11, R12, R13, R14, R15, RBX, RBP, RSI, RDI)
"""Registers that point to the operands; the last two also point to the arguments until all is read."""
MOST_VECTORS_UNROLLED = 8
"""Vectors of a row that are written out one after another; longer rows loop."""
_TAIL = 1
"""The mask register of the last lanes (AVX-512)."""
_GATHERED = 6
"""The mask register that gathers use up (AVX-512)."""


@dataclass(frozen=True)
class Walk:
    """How an operand is walked by the loops of a kernel.

    Attributes:
        strides: elements, for each axis of the chunk, the columns last.
        dtype: of the elements, one of `ITEM_BYTES`.
    """

    strides: tuple[int, ...]
    dtype: str

    @property
    def itemsize(self) -> int:
        return ITEM_BYTES[self.dtype]

    @property
    def is_collected(self) -> bool:
        """Whether vectors are put together from single elements, for which there is no gather instruction."""
        return self.itemsize < 4 and self.strides[-1] not in (0, 1)


@kept_kernel(1024)
def elementwise_kernel(
    instructions: InstructionSet,
    *,
    extents: tuple[int, ...],
    leaves: tuple[Walk, ...],
    expression: Expression,
    results: tuple[Walk, ...],
) -> Kernel:
    """A kernel over chunks of several axes, the last of which is the columns.

    Its row of the table is: the byte offset of every operand, the extent of the first axis, and, where that
    is the columns, what `tail_mask` says of the last vector.

    Args:
        instructions: what may be used.
        extents: of the chunk's axes after the first.
        leaves: the expression's operands.
        expression: of an element.
        results: where its outputs go.
    """
    return Elementwise(instructions, extents, leaves, expression, results).kernel()


def is_wide(expression: Expression, operands: Sequence[Walk]) -> bool:
    """Whether vectors have lanes of 64 bits, and therefore half as many."""
    return expression.is_wide or any(walk.itemsize == 8 for walk in operands)


def lanes(instructions: InstructionSet, *, is_wide: bool) -> int:
    """Elements of a vector."""
    return (8 if instructions is InstructionSet.AVX512 else 4) * (1 if is_wide else 2)


def tail_mask(instructions: InstructionSet, width: int, count: int, itemsize: int) -> int:
    """The table's word for the lanes of the last vector of that many columns.

    Args:
        instructions: what may be used.
        width: lanes of a vector.
        count: of columns.
        itemsize: bytes of the elements, where that matters.
    """
    rest = count % width
    return (1 << rest) - 1 if instructions is InstructionSet.AVX512 else 4 * 8 - itemsize * rest


class Elementwise:
    """Writes the kernel."""

    def __init__(
        self,
        instructions: InstructionSet,
        extents: tuple[int, ...],
        leaves: tuple[Walk, ...],
        expression: Expression,
        results: tuple[Walk, ...],
    ) -> None:
        self.code = VectorCode(instructions, is_wide=is_wide(expression, (*leaves, *results)))
        self.extents, self.leaves, self.expression, self.results = extents, leaves, expression, results
        self.operands = (*leaves, *results)
        self.levels = len(extents)
        """Loops round the one over columns."""
        if len(self.operands) > len(POINTERS):
            raise ValueError(f"{len(self.operands)} operands; a pointwise kernel takes {len(POINTERS)}")
        # AVX2's masks are for elements of 4 and 8 bytes, one for each.
        sizes = {walk.itemsize for walk in self.operands}
        is_plain = sizes in ({4}, {8})
        self.has_vectors = all(walk.strides[-1] == 1 for walk in results) and all(
            abs(walk.strides[-1]) < 1 << 24 for walk in leaves
        )
        self.has_masks = (
            self.has_vectors
            and (self.code.has_avx512 or is_plain)
            and not any(walk.is_collected for walk in leaves)
        )
        self.columns = extents[-1] if extents else None
        self._assign_registers()

    def _assign_registers(self) -> None:
        code = self.code
        left = list(range(code.registers))
        needs_spare = any(walk.itemsize < 4 for walk in self.results)
        self.spare = [left.pop() for _ in range(transfer.SPARE)] if needs_spare else []
        self.tail = _TAIL
        if self.has_masks and not code.has_avx512 and (self.columns is None or self.columns % code.width):
            self.tail = left.pop()
        self.index = self.gathered = 0
        if self.has_vectors and any(walk.strides[-1] not in (0, 1) for walk in self.leaves):
            self.index, self.gathered = left.pop(), _GATHERED
            if not code.has_avx512:
                self.gathered = left.pop()
        needed = registers_needed(self.expression, 0, has_avx512=code.has_avx512)
        self.part: int | None = None
        """A register for stores of a known number of lanes."""
        rest = (self.columns or 0) % code.width
        if 0 < rest.bit_count() < (3 if code.has_avx512 else 4) and len(left) > needed:
            self.part = left.pop()
        self.hoisted: dict[int, int] = {}
        """Leaves that are the same for all columns of a row, and their registers."""
        self.held: dict[int, list[int]] = {}
        """Leaves that are the same for all rows, and the registers of their vectors."""
        if not self.has_vectors:
            self.free = left
            return
        for operand, walk in enumerate(self.leaves):
            if walk.strides[-1] == 0 and len(left) > needed:
                self.hoisted[operand] = left.pop()
        if self.is_unrolled:
            assert self.columns is not None
            vectors = -(-self.columns // code.width)
            for operand, walk in enumerate(self.leaves):
                if walk.strides[-1] == 1 and not any(walk.strides[:-1]) and len(left) >= needed + vectors:
                    self.held[operand] = [left.pop() for _ in range(vectors)]
        self.free = left

    @property
    def is_unrolled(self) -> bool:
        """Whether the columns are known, few, and without a scalar rest."""
        limit = MOST_VECTORS_UNROLLED * self.code.width
        return (
            self.columns is not None
            and self.columns <= limit
            and self.has_vectors
            and (self.has_masks or self.columns % self.code.width == 0)
        )

    def kernel(self) -> Kernel:
        code = self.code
        if self.levels > 1:
            code.sub_immediate(RSP, 8 * self.levels)
        self._arguments()
        self.load_kept()
        self._level(0)
        if self.levels > 1:
            code.add_immediate(RSP, 8 * self.levels)
        code.ret()
        return Kernel("pointwise", code.finish())

    def load_kept(self) -> None:
        """Loads what is the same for all rows."""
        for operand, register in self.hoisted.items():
            if not any(self.leaves[operand].strides[:-1]):
                self._broadcast(operand, register, Mem(POINTERS[operand]))
        for operand, registers in self.held.items():
            for vector, register in enumerate(registers):
                lanes = min(self.code.width, (self.columns or 0) - vector * self.code.width)
                self._load(operand, register, vector * self.code.width, None, lanes < self.code.width)

    # -- loops ----------------------------------------------------------------------------------------------

    def _arguments(self) -> None:
        code = self.code
        count = len(self.operands)
        code.mov(RDX, Mem(RSI, 8 * count))
        if self.levels > 1:
            code.mov(Mem(RSP, 0), RDX)
        if self.columns is None and self.has_masks:
            code.mov(RAX, Mem(RSI, 8 * count + 8))
            if code.has_avx512:
                code.move_mask(_TAIL, RAX)
            else:
                code.window_mask(self.tail, RAX, RCX)
        elif self.columns is not None and self.has_masks and self.columns % code.width:
            code.set_mask(self.tail, self.columns % code.width, lane=self.operands[0].itemsize)
        for position, pointer in enumerate(POINTERS[:count]):
            target = pointer if pointer not in (RSI, RDI) else RAX
            code.mov(target, Mem(RDI, 8 * position))
            code.add(target, Mem(RSI, 8 * position))
            if pointer == RSI:
                code.mov(RCX, RAX)
            elif pointer == RDI:
                code.mov(RDI, RAX)
        if count > POINTERS.index(RSI):
            code.mov(RSI, RCX)

    def _level(self, level: int) -> None:
        code = self.code
        if level == self.levels:
            self._columns()
            return
        # The innermost loop round the columns counts in RDX, the others on the stack.
        is_last = level == self.levels - 1
        if level:
            code.move_immediate(RDX if is_last else RAX, self.extents[level - 1])
            if not is_last:
                code.mov(Mem(RSP, 8 * level), RAX)
        start = code.here()
        self._level(level + 1)
        for pointer, walk in zip(POINTERS, self.operands, strict=False):
            step = walk.strides[level]
            if not is_last:
                step -= self.extents[level] * walk.strides[level + 1]
            self._advance(pointer, step * walk.itemsize)
        if is_last:
            code.decrement(RDX)
        else:
            code.mov(RAX, Mem(RSP, 8 * level))
            code.decrement(RAX)
            code.mov(Mem(RSP, 8 * level), RAX)
        code.jump_if("nz", start)

    def _advance(self, pointer: int, step: int) -> None:
        if not step:
            return
        if -(1 << 31) <= step < 1 << 31:
            self.code.add_immediate(pointer, step)
        else:
            self.code.move_immediate(RAX, step)
            self.code.add(pointer, RAX)

    def _columns(self) -> None:
        code = self.code
        for operand, register in self.hoisted.items():
            if any(self.leaves[operand].strides[:-1]):
                self._broadcast(operand, register, Mem(POINTERS[operand]))
        if self.is_unrolled:
            assert self.columns is not None
            for column in range(0, self.columns, code.width):
                self._block(column, None, column + code.width > self.columns)
            return
        code.move_immediate(RCX, 0)
        if self.has_vectors:
            unroll = self._unroll()
            done = 0
            for blocks in (unroll, 1) if unroll > 1 else (1,):
                done = self._vector_loop(blocks, done)
        if not self.has_vectors or not self.has_masks:
            self._scalar_loop()
        elif self.columns is None or self.columns % code.width:
            end = code.label()
            if self.columns is None:
                code.cmp(RCX, RDX)
                code.jump_if("e", end)
            self._block(0, RCX, True)
            code.place(end)

    def _unroll(self) -> int:
        # About 30 instructions fill the time of the loop's own three.
        cost = sum(step.form.cost for step in self.expression.steps) + len(self.operands)
        return 4 if cost <= 10 else 2 if cost <= 24 else 1

    def _vector_loop(self, blocks: int, done: int) -> int:
        """While so many vectors are left; takes and gives the columns done where their number is known."""
        code = self.code
        size = blocks * code.width
        end = code.label()
        if self.columns is not None:
            if self.columns - done < size:
                return done
            done = self.columns - (self.columns - done) % size
        else:
            code.lea(RAX, Mem(RCX, size))
            code.cmp(RAX, RDX)
            code.jump_if("g", end)
        start = code.here()
        for block in range(blocks):
            self._block(block * code.width, RCX, False)
        code.add_immediate(RCX, size)
        if self.columns is not None:
            code.cmp_immediate(RCX, done)
            code.jump_if("l", start)
        else:
            code.lea(RAX, Mem(RCX, size))
            code.cmp(RAX, RDX)
            code.jump_if("le", start)
        code.place(end)
        return done

    def _scalar_loop(self) -> None:
        code = self.code
        done = code.label()
        start = code.here()
        if self.columns is None:
            code.cmp(RCX, RDX)
        else:
            code.cmp_immediate(RCX, self.columns)
        code.jump_if("ge", done)
        self._element()
        code.add_immediate(RCX, 1)
        code.jump(start)
        code.place(done)

    # -- elements -------------------------------------------------------------------------------------------

    def _block(self, column: int, moving: int | None, is_tail: bool) -> None:
        """A vector of columns, from `column` (plus a register) on."""
        kept = dict(self.hoisted)
        for operand, registers in self.held.items():
            kept[operand] = registers[column // self.code.width]
        outputs = emit(
            self.code,
            self.expression,
            bound={},
            load=lambda operand, register: self._load(operand, register, column, moving, is_tail),
            free=self.free,
            kept=kept,
        )
        for position, register in enumerate(outputs):
            self._store(position, register, column, moving, is_tail)

    def _place(self, operand: int, column: int, moving: int | None) -> Mem:
        """The operand's element of a column; may go through RAX."""
        walk = self.operands[operand]
        pointer = POINTERS[operand]
        step = walk.strides[-1] * walk.itemsize
        if moving is None or not step:
            return Mem(pointer, column * step)
        if walk.strides[-1] == 1:
            return Mem(pointer, column * step, moving, walk.itemsize)
        code = self.code
        if -(1 << 31) <= step < 1 << 31:
            code.multiply_immediate(RAX, moving, step)
        else:
            code.move_immediate(RAX, step)
            code.multiply(RAX, moving)
        code.add(RAX, pointer)
        return Mem(RAX, column * step)

    def _load(self, operand: int, register: int, column: int, moving: int | None, is_tail: bool) -> None:
        code, walk = self.code, self.leaves[operand]
        source = self._place(operand, column, moving)
        if walk.strides[-1] == 0:
            self._broadcast(operand, register, source)
        elif walk.strides[-1] == 1:
            transfer.load_elements(code, register, source, walk.dtype, self.tail if is_tail else None)
        elif walk.is_collected:
            step = walk.strides[-1] * walk.itemsize
            transfer.collect_elements(code, register, source, step, walk.dtype, self.index)
        else:
            self._gather(register, walk, source, is_tail)

    def _gather(self, register: int, walk: Walk, source: Mem, is_tail: bool) -> None:
        code = self.code
        offsets = np.arange(code.width) * walk.strides[-1] * walk.itemsize
        code.load(self.index, code.data(offsets.astype(np.int32).tobytes()))
        if code.has_avx512:
            if is_tail:
                code.combine_masks("and", self.gathered, self.tail, self.tail)
            else:
                code.combine_masks("xnor", self.gathered, self.gathered, self.gathered)
            code.zero(register)
        else:
            code.zero(register)
            if is_tail:
                code.copy(self.gathered, self.tail)
            else:
                code.vector("pcmpeqd", self.gathered, self.gathered, self.gathered, bits=code.full_bits)
        code.gather(register, source, self.index, self.gathered, lane=walk.itemsize)

    def _broadcast(self, operand: int, register: int, source: Mem) -> None:
        transfer.broadcast_element(self.code, register, source, self.leaves[operand].dtype)

    def _store(self, position: int, register: int, column: int, moving: int | None, is_tail: bool) -> None:
        code, walk = self.code, self.results[position]
        target = self._place(len(self.leaves) + position, column, moving)
        if walk.itemsize >= 4 and is_tail and self.part is not None and self.columns is not None:
            rest = self.columns % code.width
            code.store_lanes(target, register, rest, self.part, lane=walk.itemsize)
        else:
            mask = self.tail if is_tail else None
            transfer.store_elements(code, target, register, walk.dtype, self.spare, mask)

    def _element(self) -> None:
        """One column, in the lowest lane (and repeated in the others)."""
        code = self.code
        outputs = emit(
            code,
            self.expression,
            bound={},
            load=lambda operand, register: self._broadcast(operand, register, self._place(operand, 0, RCX)),
            free=self.free,
            kept=self.hoisted,
        )
        for position, register in enumerate(outputs):
            target = self._place(len(self.leaves) + position, 0, RCX)
            transfer.store_element(code, target, register, self.results[position].dtype, self.spare)


def cycles(expression: Expression, operands: Sequence[Walk]) -> float:
    """Estimated cycles of one vector."""
    steps = sum(step.form.cost for step in expression.steps)
    moves = sum(1 if walk.strides[-1] in (0, 1) else 16 for walk in operands)
    return max(0.7 * steps, moves)
