"""Sums over parts of k added up, then an epilogue: the second launch of a product that is split along k."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from vkml.cpu.native.assembler import R8, R15, RAX, RBX, RCX, RDI, RSI, Mem
from vkml.cpu.native.executable import InstructionSet
from vkml.cpu.native.expression import Epilogue
from vkml.cpu.native.kept_kernels import kept_kernel
from vkml.cpu.native.kernel import Kernel, Launch
from vkml.cpu.native.tail import finish_vector
from vkml.cpu.native.tiles import MASK, lanes_of
from vkml.cpu.native.vectors import VectorCode
from vkml.dataclasses import dataclass

CHUNK_BYTES = 64 * 1024
"""Of sums that a chunk reads at least."""
SECONDS_PER_BYTE = 1 / 20e9


@dataclass(frozen=True)
class _Shape:
    """All that the code depends on."""

    instructions: InstructionSet
    pieces: int
    piece_step: int
    """Bytes."""
    strip: int
    """Columns of every chunk of a row but the last."""
    last: int
    epilogue: Epilogue


def sum_of_parts(
    instructions: InstructionSet, *, pieces: int, rows: int, columns: int, epilogue: Epilogue, threads: int
) -> Launch:
    """Sums over the first axis of [pieces, rows, columns], float32 and contiguous; then an epilogue.

    Args:
        instructions: the set that code may use.
        pieces: to be added.
        rows: of the result.
        columns: of the result.
        epilogue: over (row, column), float32; leaves walk columns by 0 or 1, results by 1.
        threads: that will share the work.

    Returns:
        A launch of the sums, the leaves, the results.
    """
    lanes = lanes_of(instructions)
    strips = min(-(-2 * threads // rows), max(1, 4 * pieces * columns // CHUNK_BYTES))
    strip = -(-columns // (strips * lanes)) * lanes
    starts = np.arange(0, columns, strip)
    row, column = (axis.reshape(-1) for axis in np.meshgrid(range(rows), starts, indexing="ij"))
    accesses = (*epilogue.leaves, *epilogue.results)
    made = [row * columns + column]
    made += [row * access.strides[0] + column * access.strides[1] for access in accesses]
    table = np.stack([*(4 * part for part in made), column == starts[-1]], 1)
    shape = _Shape(
        instructions,
        pieces,
        4 * rows * columns,
        strip,
        columns - int(starts[-1]),
        replace(
            epilogue,
            leaves=tuple(replace(access, strides=access.strides[-1:]) for access in epilogue.leaves),
            results=tuple(replace(access, strides=access.strides[-1:]) for access in epilogue.results),
        ),
    )
    seconds = 4.0 * pieces * rows * columns * SECONDS_PER_BYTE
    return Launch(_kernel(shape), np.ascontiguousarray(table, np.int64), seconds + 1e-7)


@kept_kernel(256)
def _kernel(shape: _Shape) -> Kernel:
    code = VectorCode(shape.instructions)
    operands = 1 + len(shape.epilogue.leaves) + len(shape.epilogue.results)
    code.mov(R8, Mem(RDI))
    code.add(R8, Mem(RSI))
    if shape.last != shape.strip:
        narrow = code.label()
        code.mov(RAX, Mem(RSI, 8 * operands))
        code.test(RAX, RAX)
        code.jump_if("nz", narrow)
        _emit_strip(code, shape, shape.strip)
        code.place(narrow)
    _emit_strip(code, shape, shape.last)
    return Kernel("sum_of_parts", code.finish())


def _emit_strip(code: VectorCode, shape: _Shape, columns: int) -> None:
    vectors, rest = divmod(columns, code.width)
    top, mask = code.registers, None
    if rest:
        top -= 0 if code.has_avx512 else 1
        mask = MASK if code.has_avx512 else top
        code.set_mask(mask, rest)
    code.move_immediate(RBX, 0)
    if vectors:
        with code.loop(RCX, vectors):
            _emit_vector(code, shape, top, None)
            code.add_immediate(RBX, code.bytes)
    if mask is not None:
        _emit_vector(code, shape, top, mask)
    code.ret()


def _emit_vector(code: VectorCode, shape: _Shape, top: int, mask: int | None) -> None:
    """One vector of columns; RBX is its byte offset in the strip."""
    code.load(0, Mem(R8, 0, RBX), mask)
    for piece in range(1, shape.pieces):
        source = Mem(R8, piece * shape.piece_step, RBX)
        if mask is None:
            code.add_vector(0, 0, source)
        else:
            code.load(1, source, mask)
            code.add_vector(0, 0, 1)
    accesses = (*shape.epilogue.leaves, *shape.epilogue.results)

    def place(operand: int) -> Mem:
        code.mov(R15, Mem(RDI, 8 * (1 + operand)))
        code.add(R15, Mem(RSI, 8 * (1 + operand)))
        return Mem(R15, 0, RBX) if accesses[operand].strides[-1] else Mem(R15)

    finish_vector(code, shape.epilogue, 0, list(range(1, top)), place, mask)
