"""Depthwise convolutions: every channel with a window of its own; lanes lie along channels.

Bytes are multiplied as floats, which hold their sums exactly: a window of uint8 and int8 stays below 2^24 up
to 514 taps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

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
    Mem,
)
from vkml.cpu.native.depthwise_registers import Registers
from vkml.cpu.native.element import ITEM_BYTES
from vkml.cpu.native.executable import InstructionSet
from vkml.cpu.native.expression import Access, Epilogue, TooFewRegisters, emit, registers_needed
from vkml.cpu.native.kept_kernels import kept_kernel
from vkml.cpu.native.kernel import Kernel, Launch
from vkml.cpu.native.tail import load_lanes, spare_registers, store_lanes
from vkml.cpu.native.tiles import CHUNK_SECONDS, MASK, lanes_of
from vkml.cpu.native.vectors import VectorCode
from vkml.dataclasses import dataclass

Array = np.ndarray[Any, Any]
SECONDS_PER_VECTOR = 0.33e-9
"""Of a multiply-add, with its share of loads, epilogue and loops: 3×3 windows reach 80 GFLOP/s."""
LEAST_CHUNK_SECONDS = 2.5e-6
MOST_WRITTEN_OUT = 700
"""Multiply-adds of a tile: each is an instruction, which takes 4 µs to write."""
MOST_BYTE_TAPS = 2**24 // (255 * 128)
"""Of windows over bytes, whose sums float32 holds."""
POINTERS = (R10, R11, R12, R13, R14, R15, RDI)
"""Registers that point to the first operands of the epilogue; further pointers stay in memory."""


def pack_depthwise(instructions: InstructionSet, weight: Array) -> Array:
    """[channels, 1, …] → [taps, channels, filled up to whole vectors with zeros]."""
    lanes = lanes_of(instructions)
    channels = weight.shape[0]
    packed = np.zeros((math.prod(weight.shape[1:]), -(-channels // lanes) * lanes), np.float32)
    packed[:, :channels] = weight.reshape(channels, -1).T
    return packed


@dataclass(frozen=True)
class _Shape:
    """All that the code depends on; strides and offsets in bytes."""

    instructions: InstructionSet
    places: int
    """Of a tile."""
    rest: int
    """Places of a line's last, narrower tile, or 0."""
    tail_lanes: int
    """Channels of the last, partial vector, or 0."""
    has_full_vectors: bool
    taps: tuple[int, ...]
    tap_step: int
    """From the weights of one tap to those of the next."""
    steps: tuple[tuple[int, int], ...]
    """(y, x) steps of A, the leaves, the results."""
    epilogue: Epilogue
    dtype: str
    """Of A."""


def depthwise(
    instructions: InstructionSet,
    *,
    batch: tuple[int, ...],
    height: int,
    width: int,
    channels: int,
    taps: tuple[int, ...],
    a: tuple[int, ...],
    epilogue: Epilogue,
    threads: int,
    dtype: str = "float32",
) -> Launch:
    """Sums of a window's places times the channel's weights, then an epilogue.

    Args:
        instructions: the set that code may use.
        batch: leading axes.
        height: of the result.
        width: of the result.
        channels: neighbours in A and in the results.
        taps: element offsets of the window's places in A; all places exist.
        a: element strides of A: batch…, y, x.
        epilogue: over (batch…, y, x, channel), of float32, or of int32 where A is bytes.
        threads: that will share the work.
        dtype: of A: float32 or uint8, and then weights are whole numbers of int8.

    Returns:
        A launch of A, the weights (see `pack_depthwise`), the leaves, the results.

    Raises:
        TooFewRegisters: the epilogue is too large.
    """
    lanes = lanes_of(instructions)
    vectors = -(-channels // lanes)
    assert dtype == "float32" or len(taps) <= MOST_BYTE_TAPS
    accesses = (*epilogue.leaves, *epilogue.results)
    operands = [(*a, 1), *(access.strides for access in accesses)]
    sizes = [ITEM_BYTES[dtype], *(access.itemsize for access in accesses)]
    places = _tile_places(instructions, width, len(taps), epilogue)
    shape = _Shape(
        instructions,
        places,
        width % places,
        channels % lanes,
        channels >= lanes,
        tuple(sizes[0] * tap for tap in taps),
        4 * lanes * vectors,
        tuple(
            (size * strides[-3], size * strides[-2]) for size, strides in zip(sizes, operands, strict=True)
        ),
        replace(epilogue, leaves=_last(epilogue.leaves), results=_last(epilogue.results)),
        dtype,
    )
    images = math.prod(batch)
    each = len(taps) * SECONDS_PER_VECTOR * lanes / 16
    total = images * height * width * vectors * each
    goal = max(min(CHUNK_SECONDS, total / (4 * threads)), LEAST_CHUNK_SECONDS)
    lines, span, group = _chunk(images, height, width, vectors, places, goal / each, threads, 16 // lanes)
    axes = [
        np.arange(0, size, step)
        for size, step in (*((size, 1) for size in batch), (height, lines), (width, span), (vectors, group))
    ]
    *at, y, x, v = (axis.reshape(-1) for axis in np.meshgrid(*axes, indexing="ij"))
    places_n = np.minimum(span, width - x)
    vectors_n = np.minimum(group, vectors - v)
    is_last = v + vectors_n == vectors
    has_tail = is_last & (shape.tail_lanes > 0)

    def offsets(size: int, strides: Sequence[int]) -> Array:
        places = zip((*at, y, x, v * lanes), strides, strict=True)
        return np.asarray(size * sum(place * step for place, step in places))

    table = np.stack(
        [
            offsets(sizes[0], operands[0]),
            4 * lanes * v,
            *(offsets(size, strides) for size, strides in zip(sizes[1:], operands[1:], strict=True)),
            np.minimum(lines, height - y),
            vectors_n - has_tail,
            has_tail,
            places_n // places,
            places_n % places,
        ],
        1,
    )
    return Launch(_kernel(shape), np.ascontiguousarray(table, np.int64), total + 1e-7)


def _last(accesses: Sequence[Access]) -> tuple[Access, ...]:
    return tuple(replace(access, strides=access.strides[-1:]) for access in accesses)


def _chunk(
    images: int, height: int, width: int, vectors: int, places: int, goal: float, threads: int, unit: int
) -> tuple[int, int, int]:
    """Lines, places of a line and vectors of channels of a chunk that has about `goal` vectors of results.

    Channels are divided by multiples of `unit` vectors, a cache line.
    """
    pieces = math.ceil(images * height * width * vectors / goal)
    if pieces <= 1:
        return height, width, vectors
    parts = -(-pieces // threads) * threads // images or 1
    best, least = (1, width, vectors), math.inf
    for lines, group in (
        (max(1, height // parts), vectors),
        (height, max(unit, vectors // parts // unit * unit)),
    ):
        chunks = images * -(-height // lines) * -(-vectors // group)
        # What the busiest thread gets; chunks of at least half the size wanted.
        share = -(-chunks // threads) * lines * group
        if share < least and lines * group * width >= goal / 2:
            best, least = (lines, width, group), share
    lines, _, group = best
    if lines == 1 and group == vectors and width * vectors > 2 * goal:
        # Long lines.
        group = max(unit, vectors // 8)
        return 1, min(width, math.ceil(goal / group / places) * places), group
    return best


def _tile_places(instructions: InstructionSet, width: int, taps: int, epilogue: Epilogue) -> int:
    """Places of a tile: as many as registers allow, so that what is loaded serves several of them."""
    has_avx512 = instructions is InstructionSet.AVX512
    most = 14 if has_avx512 else 8
    registers = 32 if has_avx512 else 15
    # Besides sums: what the epilogue needs, at least a weight and two values.
    needed = registers_needed(epilogue.expression, 1, has_avx512=has_avx512) + spare_registers(epilogue)
    free = registers - max(3, needed)
    if free < 1:
        raise TooFewRegisters("the epilogue of a depthwise convolution")
    most = max(1, min(most, free, max(4, MOST_WRITTEN_OUT // taps), width))
    return -(-width // -(-width // most))


@kept_kernel(512)
def _kernel(shape: _Shape) -> Kernel:
    return _DepthwiseCode(shape).kernel()


class _DepthwiseCode:
    """Writes the kernel: lines of vectors of channels of tiles of places.

    R8 points to A, R9 to the weights, RSI to the chunk's row; RBP counts lines, RBX vectors, RCX tiles.
    """

    def __init__(self, shape: _Shape) -> None:
        self.shape = shape
        self.code = VectorCode(shape.instructions)
        self.accesses = (*shape.epilogue.leaves, *shape.epilogue.results)
        count = len(self.accesses)
        # Places in scratch memory: pointers to a line, to a tile of it, and those that have no register.
        self.line = 0
        self.tile = 8 * (count + 2)
        self.rest = 16 * (count + 2)
        self.columns = 8 * (count + 2)

    def kernel(self) -> Kernel:
        code, shape = self.code, self.shape
        pointers = range(len(self.accesses) + 2)
        for number in pointers:
            code.mov(RAX, Mem(RDI, 8 * number))
            code.add(RAX, Mem(RSI, 8 * number))
            code.mov(Mem(RDX, self.line + 8 * number), RAX)
        code.mov(RBP, Mem(RSI, self.columns))
        if shape.tail_lanes and code.has_avx512:
            code.set_mask(MASK, shape.tail_lanes)
        line = code.here()
        for number in pointers:
            code.mov(RAX, Mem(RDX, self.line + 8 * number))
            code.mov(Mem(RDX, self.tile + 8 * number), RAX)
        rest, done = code.label(), code.label()
        code.mov(RCX, Mem(RSI, self.columns + 24))
        code.test(RCX, RCX)
        code.jump_if("z", rest)
        tile = code.here()
        self._vectors(shape.places)
        for number, step in self._steps(1):
            self._advance(self.tile + 8 * number, shape.places * step)
        code.decrement(RCX)
        code.jump_if("nz", tile)
        code.place(rest)
        if shape.rest:
            code.mov(RAX, Mem(RSI, self.columns + 32))
            code.test(RAX, RAX)
            code.jump_if("z", done)
            self._vectors(shape.rest)
        code.place(done)
        for number, step in self._steps(0):
            self._advance(self.line + 8 * number, step)
        code.decrement(RBP)
        code.jump_if("nz", line)
        code.ret()
        return Kernel("depthwise", code.finish(), self.rest + 8 * len(self.accesses))

    def _steps(self, axis: int) -> list[tuple[int, int]]:
        """Numbers of pointers (A, the weights, operands) and their steps along y or x."""
        steps = [entry[axis] for entry in self.shape.steps]
        return list(enumerate([steps[0], 0, *steps[1:]]))

    def _advance(self, place: int, step: int) -> None:
        if step:
            self.code.mov(RAX, Mem(RDX, place))
            self.code.add_immediate(RAX, step)
            self.code.mov(Mem(RDX, place), RAX)

    def _vectors(self, places: int) -> None:
        """All vectors of channels of a tile."""
        code, shape = self.code, self.shape
        code.mov(R8, Mem(RDX, self.tile))
        code.mov(R9, Mem(RDX, self.tile + 8))
        for number in range(len(self.accesses)):
            register = POINTERS[number] if number < len(POINTERS) else RAX
            code.mov(register, Mem(RDX, self.tile + 8 * (number + 2)))
            if number >= len(POINTERS):
                code.mov(Mem(RDX, self.rest + 8 * number), RAX)
        no_full, done = code.label(), code.label()
        if shape.has_full_vectors:
            code.mov(RBX, Mem(RSI, self.columns + 8))
            code.test(RBX, RBX)
            code.jump_if("z", no_full)
            registers = self._registers(False)
            self._load_constants(registers)
            vector = code.here()
            self._load_kept(registers, None)
            self._tile(places, registers, None)
            code.add_immediate(R8, code.width * ITEM_BYTES[shape.dtype])
            code.add_immediate(R9, code.bytes)
            for number, access in enumerate(self.accesses):
                if access.strides[-1] and number < len(POINTERS):
                    code.add_immediate(POINTERS[number], code.width * access.itemsize)
                elif access.strides[-1]:
                    self._advance(self.rest + 8 * number, code.width * access.itemsize)
            code.decrement(RBX)
            code.jump_if("nz", vector)
        code.place(no_full)
        if shape.tail_lanes:
            code.mov(RAX, Mem(RSI, self.columns + 16))
            code.test(RAX, RAX)
            code.jump_if("z", done)
            registers = self._registers(True)
            if not code.has_avx512:
                code.set_mask(registers.mask, shape.tail_lanes)
            self._load_constants(registers)
            self._load_kept(registers, registers.mask)
            self._tile(places, registers, registers.mask)
        code.place(done)

    def _registers(self, is_partial: bool) -> Registers:
        shape, epilogue = self.shape, self.shape.epilogue
        return Registers(
            self.code,
            places=shape.places,
            taps=len(shape.taps),
            epilogue=epilogue,
            steps=[step for _, step in shape.steps[1 : 1 + len(epilogue.leaves)]],
            is_partial=is_partial,
        )

    def _load_constants(self, registers: Registers) -> None:
        for number, register in registers.constants.items():
            self.code.load(register, self.code.constant(float.fromhex(number)))

    def _load_kept(self, registers: Registers, mask: int | None) -> None:
        """What is the same at all places of a vector of channels."""
        for operand, register in registers.kept.items():
            self._load(operand, register, 0, mask)
        for tap, register in registers.weights.items():
            self.code.load(register, Mem(R9, tap * self.shape.tap_step))

    def _tile(self, places: int, registers: Registers, mask: int | None) -> None:
        code, shape = self.code, self.shape
        uses: dict[int, list[tuple[int, int]]] = {}
        for tap, offset in enumerate(shape.taps):
            for place in range(places):
                uses.setdefault(offset + place * shape.steps[0][1], []).append((place, tap))
        order = [(offset, uses[offset]) for offset in sorted(uses)]
        weights = registers.weight_plan([tap for _, entries in order for _, tap in entries])
        begun: set[int] = set()
        for turn, (offset, entries) in enumerate(order):
            source = Mem(R8, offset)
            value: int | Mem = source
            if shape.dtype != "float32":
                value = registers.values[turn % 2]
                load_lanes(code, value, source, shape.dtype, mask, shape.tail_lanes)
                code.unary("cvtdq2ps", value, value)
            elif mask is not None or len(entries) > 1:
                value = registers.values[turn % 2]
                code.load(value, source, mask)
            for place, tap in entries:
                weight, is_loaded = next(weights)
                in_memory = Mem(R9, tap * shape.tap_step)
                operand = value
                if weight is None:
                    # Not worth a register: the weight is the operand in memory.
                    if isinstance(value, Mem):
                        code.load(registers.values[turn % 2], value)
                        value = registers.values[turn % 2]
                    weight, operand = value, in_memory
                elif not is_loaded:
                    code.load(weight, in_memory)
                if place in begun:
                    code.multiply_add(place, weight, operand)
                else:
                    begun.add(place)
                    code.mul_vector(place, weight, operand)
        self._finish(places, registers, mask)

    def _finish(self, places: int, registers: Registers, mask: int | None) -> None:
        code, epilogue, shape = self.code, self.shape.epilogue, self.shape
        # Those that narrow results need; computing has the others.
        kept = len(registers.spare) - spare_registers(epilogue)
        for place in range(places):
            if shape.dtype != "float32":
                code.unary("cvttps2dq", place, place)
            made = emit(
                code,
                epilogue.expression,
                bound={0: place},
                load=lambda operand, target, place=place: self._load(operand, target, place, mask),  # type: ignore[misc]
                free=[*registers.spare[:kept], *range(place)],
                kept=registers.kept,
                constants=registers.constants,
            )
            for number, (register, access) in enumerate(zip(made, epilogue.results, strict=True)):
                target = self._place(len(epilogue.leaves) + number, place)
                store_lanes(
                    code, target, register, access.dtype, registers.spare[kept:], mask, shape.tail_lanes
                )

    def _load(self, operand: int, target: int, place: int, mask: int | None) -> None:
        source, access = self._place(operand - 1, place), self.accesses[operand - 1]
        if access.strides[-1] == 0:
            transfer.broadcast_element(self.code, target, source, access.dtype)
        else:
            load_lanes(self.code, target, source, access.dtype, mask, self.shape.tail_lanes)

    def _place(self, number: int, place: int) -> Mem:
        """An operand of the epilogue at a place of the tile; may go through RAX."""
        step = place * self.shape.steps[number + 1][1]
        if number < len(POINTERS):
            return Mem(POINTERS[number], step)
        self.code.mov(RAX, Mem(RDX, self.rest + 8 * number))
        return Mem(RAX, step)
