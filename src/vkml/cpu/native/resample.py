"""Lines that are weighted sums of other lines: one axis of an image resized, lanes along another."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from vkml.cpu.native.assembler import R8, R9, R10, R11, R12, R13, R14, RAX, RCX, RDI, RSI, Mem
from vkml.cpu.native.executable import InstructionSet
from vkml.cpu.native.kept_kernels import kept_kernel
from vkml.cpu.native.kernel import Array, Kernel, Launch
from vkml.cpu.native.tiles import CHUNK_SECONDS, LEAST_CHUNK_SECONDS, MASK, lanes_of
from vkml.cpu.native.vectors import VectorCode

MOST_TAPS = 64
"""Lines of a sum: the code has no loop over them."""
_VECTORS = 4
"""Added up at a time, so that a line's offset and weight are read once for so many."""
_SECONDS_PER_TAP, _SECONDS_PER_LINE = 0.25e-9, 3e-9


def table_of(places: Array, weights: Array, step: int) -> Array:
    """What `resample` reads of its table: for each line the byte offsets of what it sums up, then weights.

    Args:
        places: [lines, taps] along the axis.
        weights: float32 of that shape.
        step: bytes from place to place.

    Returns:
        int64 [lines, words], of which each of the last holds two weights.
    """
    taps = places.shape[1]
    padded = np.zeros((len(places), taps + taps % 2), np.float32)
    padded[:, :taps] = weights
    return np.ascontiguousarray(np.concatenate([places.astype(np.int64) * step, padded.view(np.int64)], 1))


def resample(
    instructions: InstructionSet,
    *,
    outer: tuple[int, ...],
    lines: int,
    columns: int,
    taps: int,
    x: tuple[int, ...],
    result: tuple[int, ...],
    threads: int,
) -> Launch:
    """result[o…, j, c] = sum over t of x[o…, places[j, t], c] · weights[j, t], each step rounded once.

    Args:
        instructions: the set that code may use.
        outer: leading sizes.
        lines: of the result, for each place of the leading axes.
        columns: neighbours in x and in the result.
        taps: summed up for a line; at most `MOST_TAPS`.
        x: element strides along the leading axes.
        result: element strides along the leading axes and the lines.
        threads: that will share the work.

    Returns:
        A launch of x, the table (see `table_of`), the result; x and the result are float32.
    """
    if not outer:
        outer, x, result = (1,), (0,), (0, *result)
    each = _SECONDS_PER_LINE + taps * -(-columns // lanes_of(instructions)) * _SECONDS_PER_TAP
    total = each * lines * math.prod(outer)
    goal = max(min(CHUNK_SECONDS, total / (4 * threads)), LEAST_CHUNK_SECONDS)
    # Some lines of one place of the last leading axis, or all of some places.
    span = int(max(1, min(lines, goal / each)))
    group = int(max(1, min(outer[-1], goal / each // lines)))
    starts = [*(np.arange(size) for size in outer[:-1]), np.arange(0, outer[-1], group)]
    *places, first = (
        axis.reshape(-1) for axis in np.meshgrid(*starts, np.arange(0, lines, span), indexing="ij")
    )
    words = taps + -(-taps // 2)

    def offsets(strides: Sequence[int]) -> Array:
        return np.asarray(4 * sum(at * step for at, step in zip(places, strides, strict=False)), np.int64)

    table = np.stack(
        np.broadcast_arrays(
            offsets(x),
            8 * words * first,
            offsets(result) + 4 * result[-1] * first,
            np.minimum(span, lines - first),
            np.minimum(group, outer[-1] - places[-1]),
        ),
        1,
    )
    kernel = _kernel(instructions, columns, taps, 4 * x[-1], 4 * result[-2], 4 * result[-1])
    return Launch(kernel, np.ascontiguousarray(table, np.int64), total + 1e-7)


@kept_kernel(256)
def _kernel(
    instructions: InstructionSet, columns: int, taps: int, x_step: int, result_step: int, line_step: int
) -> Kernel:
    """A kernel whose row of the table is: offsets of x, table and result; lines; places of the last axis."""
    code = VectorCode(instructions)
    full, rest = divmod(columns, code.width)
    mask = None
    if rest:
        mask = MASK if code.has_avx512 else code.registers - 1
        code.set_mask(mask, rest)
    code.mov(R8, Mem(RDI))
    code.add(R8, Mem(RSI))
    code.mov(R14, Mem(RDI, 8))
    code.add(R14, Mem(RSI, 8))
    code.mov(R11, Mem(RDI, 16))
    code.add(R11, Mem(RSI, 16))
    code.mov(R13, Mem(RSI, 32))
    place = code.here()
    code.mov(R9, R14)
    code.mov(R10, R11)
    code.mov(R12, Mem(RSI, 24))
    line = code.here()
    turns, left = divmod(full, _VECTORS)
    code.move_immediate(RCX, 0)
    if turns:
        again = code.here()
        _sums(code, taps, _VECTORS, None)
        code.add_immediate(RCX, _VECTORS * code.bytes)
        if turns > 1:
            code.cmp_immediate(RCX, turns * _VECTORS * code.bytes)
            code.jump_if("ne", again)
    if left or mask is not None:
        _sums(code, taps, left + (mask is not None), mask)
    code.add_immediate(R9, 8 * (taps + -(-taps // 2)))
    code.add_immediate(R10, line_step)
    code.decrement(R12)
    code.jump_if("nz", line)
    code.add_immediate(R8, x_step)
    code.add_immediate(R11, result_step)
    code.decrement(R13)
    code.jump_if("nz", place)
    code.ret()
    return Kernel("resample", code.finish())


def _sums(code: VectorCode, taps: int, vectors: int, mask: int | None) -> None:
    """Some vectors of a line, RCX bytes into it; the mask is the last one's."""
    weight, spare = _VECTORS + 1, _VECTORS + 2
    for tap in range(taps):
        code.mov(RAX, Mem(R9, 8 * tap))
        code.add(RAX, R8)
        code.broadcast(weight, Mem(R9, 8 * taps + 4 * tap))
        for v in range(vectors):
            source = Mem(RAX, v * code.bytes, RCX)
            if mask is not None and v == vectors - 1:
                code.load(spare, source, mask)
                (code.multiply_add if tap else code.mul_vector)(v, weight, spare)
            else:
                (code.multiply_add if tap else code.mul_vector)(v, weight, source)
    for v in range(vectors):
        code.store(Mem(R10, v * code.bytes, RCX), v, mask if v == vectors - 1 else None)
