"""Running sums of lines, lanes along their columns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vkml.cpu.native.assembler import R8, R9, R10, R11, R12, RAX, RDI, RSI, Mem
from vkml.cpu.native.executable import InstructionSet
from vkml.cpu.native.kept_kernels import kept_kernel
from vkml.cpu.native.kernel import Array, Kernel, Launch
from vkml.cpu.native.tiles import MASK, lanes_of
from vkml.cpu.native.vectors import VectorCode

_ADD = {"float32": "addpd", "int32": "paddd", "int64": "paddq"}
SUMMED = tuple(_ADD)
"""Types of elements; floats are added up as float64, for long sums lose digits one after the other."""
_SECONDS_PER_VECTOR = 1.5e-9


def running_sum(
    instructions: InstructionSet,
    *,
    outer: tuple[int, ...],
    lines: int,
    columns: int,
    x: tuple[int, ...],
    result: tuple[int, ...],
    dtype: str,
    is_exclusive: bool,
    threads: int,
) -> Launch:
    """result[o, j, c] = the sum of x[o, i, c] for all i up to j, or below j.

    Args:
        instructions: the set that code may use.
        outer: leading sizes.
        lines: along the axis; steps below 0 go backwards, from the last line.
        columns: neighbours in x and in the result.
        x: element strides along the leading axes and the lines.
        result: likewise.
        dtype: of the elements, one of `SUMMED`.
        is_exclusive: whether a line's own elements are left out.
        threads: that will share the work, by parts of a vector's width.

    Returns:
        A launch of x and the result.
    """
    size = np.dtype(dtype).itemsize
    width = 4 * lanes_of(instructions) // 8 if dtype != "int32" else lanes_of(instructions)
    starts = [*(np.arange(each) for each in outer), np.arange(0, columns, width)]
    *at, first = (axis.reshape(-1) for axis in np.meshgrid(*starts, indexing="ij"))

    def offsets(strides: Sequence[int]) -> Array:
        far = -strides[-1] * (lines - 1) * (strides[-1] < 0)
        places = sum(p * step for p, step in zip(at, strides, strict=False))
        return np.asarray(size * (places + far + first), np.int64)

    ends = [size * x[-1], size * result[-1], lines]
    parts = np.broadcast_arrays(offsets(x), offsets(result), columns - first < width, *ends)
    kernel = _kernel(instructions, columns % width, dtype, is_exclusive)
    seconds = len(first) * lines * _SECONDS_PER_VECTOR + 1e-7
    return Launch(kernel, np.ascontiguousarray(np.stack(parts, 1), np.int64), seconds)


@kept_kernel(256)
def _kernel(instructions: InstructionSet, rest: int, dtype: str, is_exclusive: bool) -> Kernel:
    """A kernel whose row of the table is: offsets, whether it is the narrow part, steps in bytes, lines."""
    code = VectorCode(instructions)
    bits = code.bytes * 8
    if dtype == "float32":
        bits //= 2  # as many as there are sums of twice the size
    mask = MASK if code.has_avx512 else code.registers - 1
    lanes = rest * (2 if dtype == "int64" else 1)
    if rest:
        code.set_mask(mask, lanes)
    for operand, register in enumerate((R8, R9)):
        code.mov(register, Mem(RDI, 8 * operand))
        code.add(register, Mem(RSI, 8 * operand))
    for column, register in ((3, R10), (4, R11), (5, R12)):
        code.mov(register, Mem(RSI, 8 * column))
    code.zero(0)
    narrow = code.label()
    if rest:
        code.mov(RAX, Mem(RSI, 16))
        code.test(RAX, RAX)
        code.jump_if("nz", narrow)
    for is_narrow in (False, True)[: 1 + (rest > 0)]:
        if is_narrow:
            code.place(narrow)
        again = code.here()
        if is_narrow:
            code.load(1, Mem(R8), mask)
        else:
            code.unary("movups", 1, Mem(R8), bits=bits)
        if dtype == "float32":
            code.unary("cvtps2pd", 1, 1)
        if not is_exclusive:
            code.vector(_ADD[dtype], 0, 0, 1)
        made = 0
        if dtype == "float32":
            code.unary("cvtpd2ps", 2, 0)
            made = 2
        if is_narrow:
            code.store(Mem(R9), made, mask)
        else:
            code.store_vector(Mem(R9), made, bits=bits)
        if is_exclusive:
            code.vector(_ADD[dtype], 0, 0, 1)
        code.add(R8, R10)
        code.add(R9, R11)
        code.decrement(R12)
        code.jump_if("nz", again)
        code.ret()
    return Kernel("running_sum", code.finish())
