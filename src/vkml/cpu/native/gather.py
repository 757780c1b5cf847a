"""Gather: blocks of neighbouring bytes picked by indices, each of which is checked."""

from __future__ import annotations

import numpy as np

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
    Label,
    Mem,
)
from vkml.cpu.native.executable import InstructionSet
from vkml.cpu.native.kept_kernels import kept_kernel
from vkml.cpu.native.kernel import Kernel, Launch
from vkml.cpu.native.open_frame import POINTERS, Axis, OpenFrame, axes_of
from vkml.cpu.native.open_launch import OpenLaunch, Parameters, Word
from vkml.cpu.native.vectors import VectorCode
from vkml.ir.size import Size

SECONDS_PER_BYTE = 0.1e-9
SECONDS_PER_INDEX = 4e-9
CHUNK_SECONDS = 30e-6


def gather(
    instructions: InstructionSet,
    *,
    outer: int,
    size: int,
    count: int,
    block_bytes: int,
    is_wide: bool,
    is_aligned: bool,
    error_code: int,
    threads: int,
) -> Launch:
    """result[o, i] = data[o, indices[i]], blocks of bytes; negative indices count from the end.

    Aligned, each place of the leading axes has indices of its own: result[o, i] = data[o, indices[o, i]].

    For an index outside the axis the code is written to the status word, and the block is left as it is.

    Args:
        instructions: the set that code may use.
        outer: leading size of data and result.
        size: of the axis that is indexed.
        count: of the indices, or of those of one place of the leading axes.
        block_bytes: of a block.
        is_wide: whether indices are int64, else int32.
        is_aligned: whether the leading axes are the indices', too.
        error_code: what a bad index is reported by.
        threads: that will share the work.

    Returns:
        A launch of data [outer, size, block], indices [count] or [outer, count], result [outer, count,
        block], the status word.
    """
    each = SECONDS_PER_INDEX + block_bytes * SECONDS_PER_BYTE
    blocks = int(max(1, min(CHUNK_SECONDS / each, -(-count * outer // threads))))
    # Some indices of one place of the leading axes, or all of some places.
    span, group = min(count, blocks), max(1, blocks // count)
    starts = (np.arange(0, outer, group), np.arange(0, count, span))
    o, i = (axis.reshape(-1) for axis in np.meshgrid(*starts, indexing="ij"))
    width = 8 if is_wide else 4
    table = np.stack(
        [
            o * size * block_bytes,
            (o * count * is_aligned + i) * width,
            (o * count + i) * block_bytes,
            np.minimum(span, count - i),
            np.minimum(group, outer - o),
        ],
        1,
    )
    kernel = _kernel(instructions, size, block_bytes, is_wide, is_aligned, error_code)
    return Launch(kernel, np.ascontiguousarray(table, np.int64), outer * count * each + 1e-7)


def open_gather(
    instructions: InstructionSet,
    *,
    outer: int,
    size: int,
    count: int,
    block_bytes: int,
    is_wide: bool,
    is_aligned: bool,
    error_code: int,
    threads: int,
) -> OpenLaunch | None:
    """As `gather`, for any values of sizes that are open in its arguments; not of a block's."""
    if isinstance(block_bytes, Size):
        return None
    width = 8 if is_wide else 4
    parameters = Parameters()
    index_steps = [count * width if is_aligned else 0, width]
    steps = [[size * block_bytes, 0], index_steps, [count * block_bytes, block_bytes], [0, 0]]
    axes = axes_of([outer, count], steps, parameters)
    kernel = _open_kernel(instructions, axes, parameters.word(size), block_bytes, is_wide, error_code)
    each = SECONDS_PER_INDEX + block_bytes * SECONDS_PER_BYTE
    return OpenLaunch(kernel, outer * count, tuple(parameters.sizes), outer * count, each)


@kept_kernel(256)
def _open_kernel(
    instructions: InstructionSet,
    axes: tuple[Axis, ...],
    size: Word,
    block_bytes: int,
    is_wide: bool,
    error_code: int,
) -> Kernel:
    code = VectorCode(instructions)
    data, index, _, status = POINTERS[:4]
    frame = OpenFrame(code, axes, 4)

    def place() -> None:
        frame.word(R12, size)
        wrong, following = code.label(), code.label()
        load_index(code, index, is_wide, wrong)
        code.multiply_immediate(RAX, RAX, block_bytes)
        code.add(RAX, data)
        _copy(code, block_bytes)
        code.jump(following)
        code.place(wrong)
        code.move_immediate(RBX, error_code)
        code.mov32(Mem(status), RBX)
        code.place(following)

    frame.emit(place)
    return Kernel("gather", code.finish())


def load_index(code: VectorCode, index: int, is_wide: bool, wrong: Label, at: int = 0) -> None:
    """The index that a register points to into RAX, counted from the start; jumps if it is not below R12.

    Args:
        code: receives the code.
        index: the register.
        is_wide: whether indices are int64, else int32.
        wrong: where to jump.
        at: bytes from where the register points.
    """
    inside = code.label()
    if is_wide:
        code.mov(RAX, Mem(index, at))
    else:
        # The sign of 32 bits extended to 64.
        code.mov32(RAX, Mem(index, at))
        code.shift_left(RAX, 32)
        code.shift_right_signed(RAX, 32)
    code.test(RAX, RAX)
    code.jump_if("ns", inside)
    code.add(RAX, R12)
    code.place(inside)
    # Unsigned, so that what is still negative is too large.
    code.cmp(RAX, R12)
    code.jump_if("ae", wrong)


@kept_kernel(256)
def _kernel(
    instructions: InstructionSet,
    size: int,
    block_bytes: int,
    is_wide: bool,
    is_aligned: bool,
    error_code: int,
) -> Kernel:
    code = VectorCode(instructions)
    data, index, result, status = R8, R9, R10, R11
    for operand, register in enumerate((data, index, result)):
        code.mov(register, Mem(RDI, 8 * operand))
        code.add(register, Mem(RSI, 8 * operand))
    code.mov(status, Mem(RDI, 24))
    code.mov(RDX, Mem(RSI, 32))
    code.move_immediate(R12, size)
    place = code.here()
    code.mov(RDI, Mem(RSI, 24))
    code.mov(R14, index)
    again, wrong, following = code.here(), code.label(), code.label()
    load_index(code, index, is_wide, wrong)
    code.multiply_immediate(RAX, RAX, block_bytes)
    code.add(RAX, data)
    _copy(code, block_bytes)
    code.jump(following)
    code.place(wrong)
    code.move_immediate(RBX, error_code)
    code.mov32(Mem(status), RBX)
    code.place(following)
    code.add_immediate(index, 8 if is_wide else 4)
    code.add_immediate(result, block_bytes)
    code.decrement(RDI)
    code.jump_if("nz", again)
    if not is_aligned:
        # The same indices at the next place of the leading axes.
        code.mov(index, R14)
    code.move_immediate(RAX, size * block_bytes)
    code.add(data, RAX)
    code.decrement(RDX)
    code.jump_if("nz", place)
    code.ret()
    return Kernel("gather", code.finish())


def _copy(code: VectorCode, block_bytes: int) -> None:
    """Copies a block from RAX to R10; changes RAX, R13, RBX, RCX and vector register 0."""
    vectors, rest = divmod(block_bytes, code.bytes)
    if vectors > 8:
        code.mov(R13, R10)
        with code.loop(RCX, vectors):
            code.load(0, Mem(RAX))
            code.store(Mem(R13), 0)
            code.add_immediate(RAX, code.bytes)
            code.add_immediate(R13, code.bytes)
        if rest:
            # The last vector overlaps what is there already.
            code.load(0, Mem(RAX, rest - code.bytes))
            code.store(Mem(R13, rest - code.bytes), 0)
        return
    size = next(size for size in (64, 32, 16, 8, 4, 2, 1) if size <= min(block_bytes, code.bytes))
    for at in range(0, block_bytes - size + 1, size):
        _move(code, Mem(R10, at), Mem(RAX, at), size)
    if block_bytes % size and size == 2:
        _move(code, Mem(R10, 2), Mem(RAX, 2), 1)
    elif block_bytes % size:
        _move(code, Mem(R10, block_bytes - size), Mem(RAX, block_bytes - size), size)


def _move(code: VectorCode, target: Mem, source: Mem, size: int) -> None:
    if size >= 16:
        code.unary("movups", 0, source, bits=8 * size)
        code.store_vector(target, 0, bits=8 * size)
    elif size == 8:
        code.mov(RBX, source)
        code.mov(target, RBX)
    elif size == 4:
        code.mov32(RBX, source)
        code.mov32(target, RBX)
    else:
        code.unary("pbroadcastw" if size == 2 else "pbroadcastb", 0, source, bits=128)
        code.store_low(target, 0, size)
