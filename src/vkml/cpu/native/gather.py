"""Gather: blocks of neighbouring bytes picked by indices, each of which is checked."""

from __future__ import annotations

import functools

import numpy as np

from vkml.cpu.native.assembler import R8, R9, R10, R11, R12, R13, RAX, RBX, RCX, RDI, RSI, Mem
from vkml.cpu.native.executable import InstructionSet
from vkml.cpu.native.kernel import Kernel, Launch
from vkml.cpu.native.vectors import VectorCode

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
    error_code: int,
    threads: int,
) -> Launch:
    """result[o, i] = data[o, indices[i]], blocks of bytes; negative indices count from the end.

    For an index outside the axis the code is written to the status word, and the block is left as it is.

    Args:
        instructions: the set that code may use.
        outer: leading size of data and result.
        size: of the axis that is indexed.
        count: of the indices.
        block_bytes: of a block, a multiple of 4.
        is_wide: whether indices are int64, else int32.
        error_code: what a bad index is reported by.
        threads: that will share the work.

    Returns:
        A launch of data [outer, size, block], indices [count], result [outer, count, block], the status word.
    """
    each = SECONDS_PER_INDEX + block_bytes * SECONDS_PER_BYTE
    span = int(max(1, min(count, CHUNK_SECONDS / each, -(-count * outer // threads))))
    starts = np.arange(0, count, span)
    o, i = (axis.reshape(-1) for axis in np.meshgrid(np.arange(outer), starts, indexing="ij"))
    width = 8 if is_wide else 4
    table = np.stack(
        [o * size * block_bytes, i * width, (o * count + i) * block_bytes, np.minimum(span, count - i)], 1
    )
    kernel = _kernel(instructions, size, block_bytes, is_wide, error_code)
    return Launch(kernel, np.ascontiguousarray(table, np.int64), outer * count * each + 1e-7)


@functools.lru_cache(maxsize=256)
def _kernel(
    instructions: InstructionSet, size: int, block_bytes: int, is_wide: bool, error_code: int
) -> Kernel:
    code = VectorCode(instructions)
    data, index, result, status = R8, R9, R10, R11
    for operand, register in enumerate((data, index, result)):
        code.mov(register, Mem(RDI, 8 * operand))
        code.add(register, Mem(RSI, 8 * operand))
    code.mov(status, Mem(RDI, 24))
    code.mov(RSI, Mem(RSI, 24))
    code.move_immediate(R12, size)
    again, inside, wrong, following = code.here(), code.label(), code.label(), code.label()
    if is_wide:
        code.mov(RAX, Mem(index))
    else:
        # The sign of 32 bits extended to 64.
        code.mov32(RAX, Mem(index))
        code.shift_left(RAX, 32)
        code.shift_right_signed(RAX, 32)
    code.test(RAX, RAX)
    code.jump_if("ns", inside)
    code.add(RAX, R12)
    code.place(inside)
    # Unsigned, so that what is still negative is too large.
    code.cmp(RAX, R12)
    code.jump_if("ae", wrong)
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
    code.decrement(RSI)
    code.jump_if("nz", again)
    code.ret()
    return Kernel("gather", code.finish())


def _copy(code: VectorCode, block_bytes: int) -> None:
    """Copies a block from RAX to R10; changes R13, RBX, RCX and vector register 0."""
    vectors, rest = divmod(block_bytes, code.bytes)
    done = 0
    if vectors > 8:
        code.mov(R13, R10)
        with code.loop(RCX, vectors):
            code.load(0, Mem(RAX))
            code.store(Mem(R13), 0)
            code.add_immediate(RAX, code.bytes)
            code.add_immediate(R13, code.bytes)
        target = R13
    else:
        target = R10
        for _ in range(vectors):
            code.load(0, Mem(RAX, done))
            code.store(Mem(target, done), 0)
            done += code.bytes
    if rest and vectors:
        # The last vector overlaps what is there already.
        back = done + rest - code.bytes
        code.load(0, Mem(RAX, back))
        code.store(Mem(target, back), 0)
        return
    for at in range(done, done + rest, 4):
        code.mov32(RBX, Mem(RAX, at))
        code.mov32(Mem(target, at), RBX)
