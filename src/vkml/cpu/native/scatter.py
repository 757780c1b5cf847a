"""Scatter: rows written, or combined with what is there, where indices say, each of which is checked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from vkml.cpu.native.assembler import R8, R9, R10, R11, R12, R13, R14, RAX, RBX, RCX, RDI, RSI, Mem
from vkml.cpu.native.executable import InstructionSet
from vkml.cpu.native.gather import load_index
from vkml.cpu.native.kept_kernels import kept_kernel
from vkml.cpu.native.kernel import Array, Kernel, Launch
from vkml.cpu.native.operations import operation
from vkml.cpu.native.tiles import MASK, lanes_of
from vkml.cpu.native.vectors import VectorCode

COMBINED_BY = {"add": "add", "mul": "multiply", "max": "maximum", "min": "minimum"}
_SECONDS_PER_INDEX, _SECONDS_PER_VECTOR = 4e-9, 0.5e-9
_PARTS = 4
"""Of columns, for each thread: none has less than a vector."""


def scatter(
    instructions: InstructionSet,
    *,
    outer: tuple[int, ...],
    count: int,
    columns: int,
    sizes: tuple[int, ...],
    steps: tuple[int, ...],
    indices: tuple[int, ...],
    updates: tuple[int, ...],
    result: tuple[int, ...],
    words: int,
    is_wide: bool,
    reduction: str,
    error_code: int,
    threads: int,
) -> Launch:
    """result[o, indices[o, i], c] = updates[o, i, c], or combined with what is there, in the order of i.

    An index is a tuple of as many numbers as there are sizes; negative ones count from the end. For one that
    is outside the code is written to the status word, and nothing else.

    Args:
        instructions: the set that code may use.
        outer: leading sizes, places of which are written by nobody else.
        count: of the indices at each place.
        columns: elements of a row, neighbours in updates and result.
        sizes: of the axes that are indexed.
        steps: element strides of the result along these.
        indices: strides of the indices along the leading axes and from tuple to tuple, in numbers.
        updates: element strides along the leading axes and from row to row.
        result: element strides along the leading axes.
        words: of 32 bits that an element has; 1 where there is a reduction, which is of float32.
        is_wide: whether indices are int64, else int32.
        reduction: "none" or a key of `COMBINED_BY`.
        error_code: what a bad index is reported by.
        threads: that will share the work.

    Returns:
        A launch of indices, updates, the result twice, the status word.
    """
    lanes = columns * words
    width = lanes_of(instructions)
    places = math.prod(outer)
    vectors = -(-lanes // width)
    # Columns are shared where places are too few: of equal indices one thread does all.
    part = width * -(-vectors // max(1, min(vectors, _PARTS * threads // max(places, 1))))
    starts = [*(np.arange(size) for size in outer), np.arange(0, lanes, part)]
    *at, first = (axis.reshape(-1) for axis in np.meshgrid(*starts, indexing="ij"))
    each, number = 4 * words, 8 if is_wide else 4

    def offsets(strides: Sequence[int], size: int) -> Array:
        return np.asarray(size * sum(p * step for p, step in zip(at, strides, strict=False)), np.int64)

    fixed = [count, number * indices[-1], each * updates[-1]]
    fixed += [entry for size, step in zip(sizes, steps, strict=True) for entry in (size, each * step)]
    ends = np.minimum(part, lanes - first)
    columns_made: list[Any] = [
        offsets(indices, number),
        offsets(updates, each) + 4 * first,
        offsets(result, each) + 4 * first,
        ends // width,
        ends % width > 0,
        *fixed,
    ]
    table = np.stack(np.broadcast_arrays(*columns_made), 1)
    seconds = len(table) * count * (_SECONDS_PER_INDEX + min(vectors, part // width) * _SECONDS_PER_VECTOR)
    kernel = _kernel(instructions, len(sizes), lanes % width, is_wide, reduction, error_code)
    return Launch(kernel, np.ascontiguousarray(table, np.int64), seconds + 1e-7)


_WHOLE, _HAS_REST, _COUNT, _INDEX_STEP, _UPDATE_STEP, _AXES = range(3, 9)
"""Columns of the table behind the offsets; the last one's begin those of the axes, a size and a step each."""


@kept_kernel(256)
def _kernel(
    instructions: InstructionSet, axes: int, rest: int, is_wide: bool, reduction: str, error_code: int
) -> Kernel:
    code = VectorCode(instructions)
    if rest:
        mask = MASK if code.has_avx512 else code.registers - 1
        code.set_mask(mask, rest)
    index, update, result, status, count, target = R8, R9, R10, R11, R13, R14
    for operand, register in enumerate((index, update, result)):
        code.mov(register, Mem(RDI, 8 * operand))
        code.add(register, Mem(RSI, 8 * operand))
    code.mov(status, Mem(RDI, 32))
    code.mov(count, Mem(RSI, 8 * _COUNT))
    again, wrong, following = code.here(), code.label(), code.label()
    code.mov(target, result)
    for axis in range(axes):
        code.mov(R12, Mem(RSI, 8 * (_AXES + 2 * axis)))
        load_index(code, index, is_wide, wrong, axis * (8 if is_wide else 4))
        code.multiply(RAX, Mem(RSI, 8 * (_AXES + 2 * axis + 1)))
        code.add(target, RAX)
    _combine_row(code, update, target, rest, reduction)
    code.jump(following)
    code.place(wrong)
    code.move_immediate(RBX, error_code)
    code.mov32(Mem(status), RBX)
    code.place(following)
    code.add(index, Mem(RSI, 8 * _INDEX_STEP))
    code.add(update, Mem(RSI, 8 * _UPDATE_STEP))
    code.decrement(count)
    code.jump_if("nz", again)
    code.ret()
    return Kernel("scatter", code.finish())


def _combine_row(code: VectorCode, update: int, target: int, rest: int, reduction: str) -> None:
    """Changes RAX, RCX and vector registers."""
    spare = list(range(2, code.registers - 1))

    def vector(mask: int | None) -> None:
        code.load(0, Mem(update, 0, RCX), mask)
        if reduction != "none":
            code.load(1, Mem(target, 0, RCX), mask)
            # As NumPy has it: what is there comes first.
            operation(COMBINED_BY[reduction]).emit(code, 0, [1, 0], spare)
        code.store(Mem(target, 0, RCX), 0, mask)

    code.move_immediate(RCX, 0)
    code.mov(RAX, Mem(RSI, 8 * _WHOLE))
    ends = code.label()
    code.test(RAX, RAX)
    code.jump_if("z", ends)
    again = code.here()
    vector(None)
    code.add_immediate(RCX, code.bytes)
    code.decrement(RAX)
    code.jump_if("nz", again)
    code.place(ends)
    if rest:
        has_none = code.label()
        code.mov(RAX, Mem(RSI, 8 * _HAS_REST))
        code.test(RAX, RAX)
        code.jump_if("z", has_none)
        vector(MASK if code.has_avx512 else code.registers - 1)
        code.place(has_none)
