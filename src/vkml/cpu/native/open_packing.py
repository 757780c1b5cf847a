"""Matrices whose columns are in one piece, packed in panels of one vector, for open sizes."""

from __future__ import annotations

from vkml.cpu.native.assembler import (
    R8,
    R9,
    R10,
    R11,
    R12,
    R13,
    R14,
    RAX,
    RBX,
    RCX,
    RDI,
    RDX,
    RSI,
    Mem,
)
from vkml.cpu.native.executable import InstructionSet
from vkml.cpu.native.kept_kernels import kept_kernel
from vkml.cpu.native.kernel import Kernel
from vkml.cpu.native.open_frame import Axis, OpenFrame, axes_of
from vkml.cpu.native.open_launch import Open, OpenLaunch, Parameters, Word
from vkml.cpu.native.tiles import lanes_of
from vkml.cpu.native.transposition import Transposition
from vkml.dataclasses import dataclass

_SECONDS = 8 / 20e9
"""Of each element."""


@dataclass(frozen=True)
class _Shape:
    """All that the code depends on."""

    instructions: InstructionSet
    inner: Word
    last: Word
    """Columns of the last panel."""
    column_step: Word
    """Bytes from column to column."""
    axes: tuple[Axis, ...]


def open_packing(
    instructions: InstructionSet,
    *,
    batch: int,
    inner: int,
    columns: int,
    strides: tuple[int, int],
) -> OpenLaunch:
    """[batch, columns, inner], floats of a column side by side, as [batch, panel, inner, lane].

    Lanes beyond the last column keep what was in memory.

    Args:
        instructions: the set that code may use.
        batch: matrices.
        inner: floats of a column.
        columns: of a matrix.
        strides: elements, along the batch and from column to column.

    Returns:
        A launch of the matrices and the panels.
    """
    lanes = lanes_of(instructions)
    panels = -(-columns // lanes)
    parameters = Parameters()
    steps = [
        [4 * strides[0], 4 * lanes * strides[1]],
        [4 * lanes * panels * inner, 4 * lanes * inner],
    ]
    shape = _Shape(
        instructions,
        parameters.word(inner),
        parameters.word(columns - (panels - 1) * lanes),
        parameters.word(4 * strides[1]),
        axes_of([batch, panels], steps, parameters),
    )
    work = batch * inner * columns
    return OpenLaunch(_kernel(shape), batch * panels, tuple(parameters.sizes), work, _SECONDS)


@kept_kernel(256)
def _kernel(shape: _Shape) -> Kernel:
    return _Code(shape).kernel()


class _Code:
    """Panels of whole vectors are turned block by block, the last one float by float."""

    def __init__(self, shape: _Shape) -> None:
        self.shape = shape
        tail = 0 if isinstance(shape.inner, Open) else shape.inner % lanes_of(shape.instructions)
        self.blocks = Transposition(shape.instructions, 4, 0, 0, tail, 0)
        self.code = self.blocks.code
        self.frame = OpenFrame(self.code, shape.axes, 2)

    def kernel(self) -> Kernel:
        code, shape = self.code, self.shape
        width, tail = code.width, self.blocks.p_tail

        def prepare() -> None:
            if tail and code.has_avx512:
                code.set_mask(self.blocks.p_mask, tail)
            self.frame.word(R10, shape.column_step)
            code.move_immediate(R11, code.bytes)

        def panel() -> None:
            few, done, has_none = code.label(), code.label(), code.label()
            code.move_immediate(R12, width)
            code.mov(RAX, self.frame.left(1))
            code.cmp_immediate(RAX, 1)
            is_full = code.label()
            code.jump_if("ne", is_full)
            self.frame.word(R12, shape.last)
            code.cmp_immediate(R12, width)
            code.jump_if("ne", few)
            code.place(is_full)
            code.mov(RSI, R8)
            code.mov(RDI, R9)
            self.frame.word(RBX, shape.inner)
            code.shift_right(RBX, width.bit_length() - 1)
            code.test(RBX, RBX)
            code.jump_if("z", has_none)
            with code.loop(RBX):
                self.blocks.block(width, width)
                code.add_immediate(RSI, code.bytes)
                code.add_immediate(RDI, width * code.bytes)
            code.place(has_none)
            if tail:
                self.blocks.block(tail, width)
            elif isinstance(shape.inner, Open):
                self.frame.word(RDX, shape.inner)
                code.and_immediate(RDX, width - 1)
                self._floats()
            code.jump(done)
            code.place(few)
            code.mov(RSI, R8)
            code.mov(RDI, R9)
            self.frame.word(RDX, shape.inner)
            self._floats()
            code.place(done)

        self.frame.emit(panel, prepare)
        return Kernel("packing", code.finish())

    def _floats(self) -> None:
        """RDX floats, perhaps none, of R12 columns from RSI on to RDI."""
        code = self.code
        end = code.label()
        code.test(RDX, RDX)
        code.jump_if("z", end)
        with code.loop(R12):
            code.mov(R13, RSI)
            code.mov(R14, RDI)
            code.mov(RCX, RDX)
            with code.loop(RCX):
                code.mov32(RAX, Mem(R13))
                code.mov32(Mem(R14), RAX)
                code.add_immediate(R13, 4)
                code.add_immediate(R14, code.bytes)
            code.add(RSI, R10)
            code.add_immediate(RDI, 4)
        code.place(end)
