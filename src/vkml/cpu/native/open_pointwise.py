"""Pointwise launches for open sizes: the same loops over columns, in rows that a frame walks."""

from __future__ import annotations

import math
from collections.abc import Sequence

from vkml.cpu.native.assembler import RAX, RCX, RDX, Mem
from vkml.cpu.native.elementwise import Elementwise, Walk, cycles, is_wide, lanes
from vkml.cpu.native.executable import InstructionSet
from vkml.cpu.native.expression import IDENTITY, Access, Expression
from vkml.cpu.native.kept_kernels import kept_kernel
from vkml.cpu.native.kernel import Kernel
from vkml.cpu.native.open_frame import POINTERS, Axis, OpenFrame, axes_of
from vkml.cpu.native.open_launch import Open, OpenLaunch, Parameters, Word
from vkml.cpu.native.pointwise import merged_axes
from vkml.ir.size import Size

_BLOCK = 4096
"""Columns that a row has at most, where their number is open or large: a microsecond's work."""
_FAR = 1 << 30
"""Stands for an open step between neighbours: too large for vectors."""
_CYCLES_PER_SECOND = 3e9
_BYTES_PER_SECOND = 30e9


def open_pointwise(
    instructions: InstructionSet,
    *,
    shape: tuple[int, ...],
    leaves: tuple[Access, ...],
    expression: Expression,
    results: tuple[Access, ...],
    threads: int,
) -> OpenLaunch | None:
    """As `pointwise.pointwise`, for any values of sizes that are open in its arguments.

    Where neighbours lie an open number of elements apart, it goes element by element. None where operands are
    too many.
    """
    operands = (*leaves, *results)
    if len(operands) > len(POINTERS):
        return None
    axes = merged_axes(shape, [access.strides for access in operands], first_result=len(leaves))
    *outer, (columns, column_steps) = axes
    names = [access.dtype for access in operands]
    if expression == IDENTITY and len(results) == 1 and len(set(names)) == 1:
        # What is no 0 or 1 of bool stays what it is.
        names = [f"uint{8 * operands[0].itemsize}"] * 2
    sizes = [access.itemsize for access in operands]
    extents = [extent for extent, _ in outer]
    steps = [[walk[at] * size for _, walk in outer] for at, size in enumerate(sizes)]
    parameters = Parameters()
    last: Word | None = None
    if isinstance(columns, Size) or columns > _BLOCK:
        # A further axis of blocks; one more before them, so that the frame counts them.
        blocks = -(-columns // _BLOCK)
        extents = [*(extents or [1]), blocks]
        steps = [
            [*(own or [0]), _BLOCK * step * size]
            for own, step, size in zip(steps, column_steps, sizes, strict=True)
        ]
        last = parameters.word(columns - (blocks - 1) * _BLOCK)
    walks = tuple(
        Walk((int(any(each != 0 for each in own)), _FAR if isinstance(step, Size) else step), name)
        for own, step, name in zip(steps, column_steps, names, strict=True)
    )
    apart = tuple(
        parameters.word(step * size) if isinstance(step, Size) else 0
        for step, size in zip(column_steps, sizes, strict=True)
    )
    frame = axes_of(extents, steps, parameters)
    kernel = _kernel(
        instructions,
        frame,
        None if last is not None else int(columns),
        last,
        walks[: len(leaves)],
        expression,
        walks[len(leaves) :],
        apart,
    )
    width = lanes(instructions, is_wide=is_wide(expression, walks))
    moved = sum(size for size, walk in zip(sizes, walks, strict=True) if any(walk.strides))
    seconds = max(cycles(expression, walks) / width / _CYCLES_PER_SECOND, moved / _BYTES_PER_SECOND)
    return OpenLaunch(kernel, math.prod(extents), tuple(parameters.sizes), math.prod(shape), seconds)


@kept_kernel(1024)
def _kernel(
    instructions: InstructionSet,
    axes: tuple[Axis, ...],
    columns: int | None,
    last: Word | None,
    leaves: tuple[Walk, ...],
    expression: Expression,
    results: tuple[Walk, ...],
    apart: tuple[Word, ...],
) -> Kernel:
    return _OpenElementwise(instructions, axes, columns, last, leaves, expression, results, apart).kernel()


class _OpenElementwise(Elementwise):
    """The loops over columns in a frame.

    Args:
        columns: of every row; None: `_BLOCK` of all blocks but the last.
        last: columns of the last block.
        apart: bytes between neighbours, for operands where these are open.
    """

    def __init__(
        self,
        instructions: InstructionSet,
        axes: Sequence[Axis],
        columns: int | None,
        last: Word | None,
        leaves: tuple[Walk, ...],
        expression: Expression,
        results: tuple[Walk, ...],
        apart: tuple[Word, ...],
    ) -> None:
        super().__init__(instructions, () if columns is None else (columns,), leaves, expression, results)
        self.frame = OpenFrame(self.code, axes, len(self.operands))
        self.last, self.apart = last, apart

    def kernel(self) -> Kernel:
        self.frame.emit(self._row, self._prepare)
        return Kernel("pointwise", self.code.finish())

    def _prepare(self) -> None:
        code = self.code
        if self.has_masks and self.last is not None:
            self.frame.word(RAX, self.last)
            code.and_immediate(RAX, code.width - 1)
            code.set_mask_of(self.tail, RAX, RCX, lane=self.operands[0].itemsize)
        elif self.has_masks and self.columns is not None and self.columns % code.width:
            code.set_mask(self.tail, self.columns % code.width, lane=self.operands[0].itemsize)
        self.load_kept()

    def _row(self) -> None:
        code = self.code
        if self.last is not None:
            is_known = code.label()
            code.move_immediate(RDX, _BLOCK)
            code.mov(RAX, self.frame.left(len(self.frame.axes) - 1))
            code.cmp_immediate(RAX, 1)
            code.jump_if("ne", is_known)
            self.frame.word(RDX, self.last)
            code.place(is_known)
        self._columns()

    def _place(self, operand: int, column: int, moving: int | None) -> Mem:
        step = self.apart[operand]
        if not isinstance(step, Open):
            return super()._place(operand, column, moving)
        assert moving is not None and not column, "vectors of what lies an open number of elements apart"
        self.frame.multiplied(RAX, moving, step)
        self.code.add(RAX, POINTERS[operand])
        return Mem(RAX)
