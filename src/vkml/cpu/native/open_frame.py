"""The frame of kernels for open sizes: a chunk finds its share of the rows, and walks them axis by axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
from vkml.cpu.native.open_launch import ROWS, SPAN, Open, Parameters, Word
from vkml.cpu.native.vectors import VectorCode
from vkml.dataclasses import dataclass
from vkml.ir.size import is_same

POINTERS = (R8, R9, R10, R11, R12, R13, R14, R15, RBX, RBP)
"""Registers that point to the operands of a row."""


@dataclass(frozen=True)
class Axis:
    """An axis over which rows are walked.

    Attributes:
        extent: how many rows follow one another along it.
        steps: bytes from row to row, for each operand.
        carries: bytes from behind the last row along the next axis to the first of the next row along this
            one, for each operand; none of the last axis.
    """

    extent: Word
    steps: tuple[Word, ...]
    carries: tuple[Word, ...] = ()


def axes_of(
    extents: Sequence[int], steps: Sequence[Sequence[int]], parameters: Parameters
) -> tuple[Axis, ...]:
    """Axes, at least one.

    Args:
        extents: of each axis.
        steps: bytes, for each operand along each axis.
        parameters: receives what is open.
    """
    if not extents:
        extents, steps = (1,), [(0,) for _ in steps]
    made = []
    for at, extent in enumerate(extents):
        own = [each[at] for each in steps]
        carries: Sequence[int] = ()
        if at + 1 < len(extents):
            carries = [each[at] - extents[at + 1] * each[at + 1] for each in steps]
        # The first axis ends with the chunk: nobody asks for its extent.
        word = parameters.word(extent) if at else 0
        made.append(Axis(word, parameters.words(own), parameters.words(carries)))
    return tuple(made)


def merged(extents: Sequence[int], steps: Sequence[Sequence[int]]) -> tuple[list[int], list[list[int]]]:
    """Axes that all operands walk as one, joined; those of one row left out.

    Args:
        extents: of each axis.
        steps: for each operand along each axis.
    """
    sizes: list[int] = []
    walks: list[list[int]] = [[] for _ in steps]
    for axis, extent in enumerate(extents):
        if extent == 1:
            continue
        own = [each[axis] for each in steps]
        if sizes and all(is_same(walk[-1], extent * step) for walk, step in zip(walks, own, strict=True)):
            sizes[-1] *= extent
            for walk, step in zip(walks, own, strict=True):
                walk[-1] = step
        else:
            sizes.append(extent)
            for walk, step in zip(walks, own, strict=True):
                walk.append(step)
    return sizes, walks


class OpenFrame:
    """Writes a kernel: `work` is emitted for a row, to whose operands `POINTERS` point.

    The work may change every other register but RSP; it reads words with `word`, and finds the scratch memory
    of the thread with `scratch`.

    Args:
        code: receives the code.
        axes: of the rows.
        operands: whose addresses come first.
        slots: 8-byte places on the stack that the work has for itself, see `slot`.
    """

    def __init__(self, code: VectorCode, axes: Sequence[Axis], operands: int, slots: int = 0) -> None:
        if operands > len(POINTERS):
            raise ValueError(f"{operands} operands; an open kernel takes {len(POINTERS)}")
        self.code, self.axes, self.operands = code, axes, operands
        self._slots = slots
        self._size = 8 * (3 + len(axes) + slots)

    def slot(self, number: int) -> Mem:
        """A place on the stack that is the work's."""
        return Mem(RSP, 8 * (3 + len(self.axes) + number))

    def left(self, axis: int) -> Mem:
        """How many rows are left along an axis but the first, this one included."""
        return Mem(RSP, 8 * (3 + axis))

    def scratch(self, target: int) -> None:
        """The address of the thread's scratch memory into a register."""
        self.code.mov(target, Mem(RSP, 0))

    def word(self, target: int, value: Word) -> None:
        """A number into a register."""
        if isinstance(value, Open):
            self.code.mov(target, Mem(RSP, 8))
            self.code.mov(target, self._place(target, value))
        else:
            self.code.move_immediate(target, value)

    def add(self, target: int, value: Word, spare: int) -> None:
        """Adds a number to a register; `spare` may change."""
        if isinstance(value, Open):
            self.code.mov(spare, Mem(RSP, 8))
            self.code.add(target, self._place(spare, value))
        elif value:
            self.code.add_immediate(target, value)

    def multiplied(self, target: int, source: int, value: Word) -> None:
        """target = source * a number; the registers differ."""
        if isinstance(value, Open):
            self.code.mov(target, Mem(RSP, 8))
            self.code.mov(target, self._place(target, value))
            self.code.multiply(target, source)
        else:
            self.code.multiply_immediate(target, source, value)

    def _place(self, base: int, value: Open) -> Mem:
        return Mem(base, 8 * (self.operands + value.position))

    def emit(self, work: Callable[[], None], prepare: Callable[[], None] | None = None) -> None:
        """Emits the kernel up to its end.

        Args:
            work: emits what is done with a row.
            prepare: emits what is done once a chunk; it must leave `POINTERS` as they are.
        """
        code = self.code
        end, fits = code.label(), code.label()
        code.sub_immediate(RSP, self._size)
        code.mov(Mem(RSP, 0), RDX)
        code.mov(Mem(RSP, 8), RDI)
        code.mov(RAX, Mem(RSI))
        code.multiply(RAX, self._place(RDI, SPAN))
        code.mov(RCX, self._place(RDI, ROWS))
        code.sub(RCX, RAX)
        code.cmp_immediate(RCX, 0)
        code.jump_if("le", end)
        code.mov(RDX, self._place(RDI, SPAN))
        code.cmp(RCX, RDX)
        code.jump_if("le", fits)
        code.mov(RCX, RDX)
        code.place(fits)
        code.mov(Mem(RSP, 16), RCX)
        for operand in range(self.operands):
            code.mov(POINTERS[operand], Mem(RDI, 8 * operand))
        self._find_first()
        if prepare is not None:
            prepare()
        row = code.here()
        work()
        code.mov(RAX, Mem(RSP, 16))
        code.decrement(RAX)
        code.mov(Mem(RSP, 16), RAX)
        code.jump_if("z", end)
        self._advance(self.axes[-1].steps)
        for axis in range(len(self.axes) - 1, 0, -1):
            code.mov(RAX, self.left(axis))
            code.decrement(RAX)
            code.mov(self.left(axis), RAX)
            code.jump_if("nz", row)
            self.word(RAX, self.axes[axis].extent)
            code.mov(self.left(axis), RAX)
            self._advance(self.axes[axis - 1].carries)
        code.jump(row)
        code.place(end)
        code.add_immediate(RSP, self._size)
        code.ret()

    def _find_first(self) -> None:
        """Where the chunk's first row, whose number is in RAX, stands along each axis."""
        code = self.code
        for axis in range(len(self.axes) - 1, 0, -1):
            self.word(RCX, self.axes[axis].extent)
            code.move_immediate(RDX, 0)
            code.divide(RCX)
            code.sub(RCX, RDX)
            code.mov(self.left(axis), RCX)
            self._move(self.axes[axis].steps, RDX)
        self._move(self.axes[0].steps, RAX)

    def _move(self, steps: Sequence[Word], count: int) -> None:
        for pointer, step in zip(POINTERS, steps, strict=False):
            if step:
                self.multiplied(RSI, count, step)
                self.code.add(pointer, RSI)

    def _advance(self, steps: Sequence[Word]) -> None:
        for pointer, step in zip(POINTERS, steps, strict=False):
            self.add(pointer, step, RCX)
