"""Recurrent layers: products of a state with packed weights and the gates' arithmetic, step after step.

A chunk is a direction, some sequences of the batch (rows) and all or some units. One with all units does
all steps: nobody else has the state that it needs. Chunks with some units do one stage of one step. Vectors
lie along units; weights are packed [panel][k][gate][lane], a panel being a vector of units. They are read
from the first panel to the last at one step and from the last to the first at the next: what does not fit
the cache as a whole is found there for the most part (256 units of an LSTM are a megabyte, as many as the
second-level cache has). Sums lie in scratch memory until the expression of the stage reads them.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

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
from vkml.cpu.native.executable import InstructionSet
from vkml.cpu.native.expression import Expression, emit
from vkml.cpu.native.kept_kernels import kept_kernel
from vkml.cpu.native.kernel import Kernel, Launch
from vkml.cpu.native.tiles import MASK, lanes_of
from vkml.cpu.native.vectors import VectorCode
from vkml.dataclasses import dataclass

Array = np.ndarray[Any, Any]
SUM = -1
"""In the place of an operand's number: the sums of a gate."""
MOST_ROWS = 8
LEAST_SUMS = 8
"""Independent sums that hide the latency of multiply-adds, of which two begin in each of four cycles."""
SECONDS_PER_FLOP = 1 / 50e9


@dataclass(frozen=True)
class RecurrentOperand:
    """How an operand lies in memory: strides in elements of 4 bytes."""

    direction: int = 0
    row: int = 0
    step: int = 0
    unit: int = 0
    """0: one element for all units; of packed weights, from one unit's to the next."""
    gate: int = 0


@dataclass(frozen=True)
class RecurrentStage:
    """Operands by their numbers."""

    gates: int
    source: int
    """The state that the weights are multiplied by, from its first unit on."""
    weights: int
    expression: Expression
    leaves: tuple[tuple[int, int], ...]
    """Operand and gate, or `SUM` and which of the stage's sums."""
    results: tuple[int, ...]


@dataclass(frozen=True)
class _Shape:
    """All that the code depends on; strides in bytes."""

    instructions: InstructionSet
    hidden: int
    rows: int
    tail_rows: int
    stages: tuple[RecurrentStage, ...]
    row_steps: tuple[int, ...]
    gate_steps: tuple[int, ...]
    is_vector: tuple[bool, ...]
    moving: tuple[int, ...]
    """Operands that move on from step to step."""
    swapped: tuple[int, int]
    """Operands that change places from step to step."""
    sources: tuple[int, ...]
    """Operands that are the first of `swapped`, seen from its first unit on."""


def rows_at_once(instructions: InstructionSet, stages: Sequence[RecurrentStage], batch: int) -> int:
    """Sequences that a chunk works on, as evenly as they can be shared out."""
    gates = max(stage.gates for stage in stages)
    registers = 32 if instructions is InstructionSet.AVX512 else 15
    most = max(1, min(MOST_ROWS, (registers - gates - 1) // gates))
    tiles = max(1, -(-batch // most))
    return max(1, -(-batch // tiles))


def pack(weights: Array, lanes: int) -> Array:
    """[directions, gates, hidden, k] as [direction][panel][k][gate][lane], zeros behind the last unit."""
    directions, gates, hidden, inner = weights.shape
    panels = -(-hidden // lanes)
    whole = np.zeros((directions, gates, panels * lanes, inner), np.float32)
    whole[:, :, :hidden] = weights
    return whole.reshape(directions, gates, panels, lanes, inner).transpose(0, 2, 4, 1, 3)


def recurrent(
    instructions: InstructionSet,
    *,
    operands: Sequence[tuple[int, ...]],
    stages: Sequence[RecurrentStage],
    swapped: tuple[int, int],
    sources: Sequence[int],
    is_reversed: Sequence[bool],
    batch: int,
    hidden: int,
    first: int,
    steps: int,
    all_steps: int,
    parts: int,
) -> Launch:
    """Some steps of a recurrent layer.

    Args:
        instructions: the set that code may use.
        operands: fields of each `RecurrentOperand` of the launch, in its order.
        stages: of a step.
        swapped: the operands that state 0 is read from and written to; they change places at each step.
        sources: further operands at the first one's address.
        is_reversed: for each direction, whether step 0 is the last in memory.
        batch: sequences.
        hidden: units.
        first: step that is done.
        steps: how many are done; one where there are several parts.
        all_steps: of the layer.
        parts: into which the units are split; with several, one stage.
    """
    assert parts == 1 or (steps == len(stages) == 1)
    layouts = [RecurrentOperand(*fields) for fields in operands]
    lanes, rows = lanes_of(instructions), rows_at_once(instructions, stages, batch)
    panels, full = -(-hidden // lanes), hidden // lanes
    moving = tuple(number for number, operand in enumerate(layouts) if operand.step)
    table = []
    bounds = [panels * part // parts for part in range(parts + 1)]
    for direction, (low, high) in itertools.product(range(len(is_reversed)), itertools.pairwise(bounds)):
        at, sign = (all_steps - 1 - first, -1) if is_reversed[direction] else (first, 1)
        for row in range(0, batch, rows):
            offsets = [
                4 * (direction * o.direction + row * o.row + at * o.step + low * lanes * o.unit)
                for o in layouts
            ]
            increments = [4 * sign * layouts[number].step for number in moving]
            counts = (steps, min(high, full) - low, high > full, batch - row < rows)
            table.append((*offsets, *increments, *counts))
    shape = _Shape(
        instructions,
        hidden,
        rows,
        batch % rows,
        tuple(stages),
        tuple(4 * operand.row for operand in layouts),
        tuple(4 * operand.gate for operand in layouts),
        tuple(operand.unit != 0 for operand in layouts),
        moving,
        swapped,
        tuple(sources),
    )
    flops = 2.0 * steps * len(is_reversed) * batch * hidden * hidden * sum(s.gates for s in stages)
    return Launch(_kernel(shape), np.array(table, np.int64), flops * SECONDS_PER_FLOP + 1e-7)


@kept_kernel(256)
def _kernel(shape: _Shape) -> Kernel:
    return _Code(shape).kernel()


class _Code:
    """RBP counts steps, R12 panels, R13 rows, RCX places of k; RBX is the offset of a panel's units in bytes.

    R8 and R9 walk along the source and the weights, R14 along the sums, R15 is any address. R10 and R11 say
    how RBX and R9 go on from panel to panel. Pointers to the operands at this step lie in scratch memory,
    behind them those to the row at hand, then the sums.
    """

    def __init__(self, shape: _Shape) -> None:
        self.shape = shape
        self.code = VectorCode(shape.instructions)
        self.count = len(shape.row_steps)
        self.lanes = shape.hidden % self.code.width
        self.top = self.code.registers
        if self.lanes and not self.code.has_avx512:
            self.top -= 1
        self.mask = MASK if self.code.has_avx512 else self.top
        self.parity = 16 * self.count
        """Where scratch memory says whether the step has an odd number."""
        self.sums_at = -(-(self.parity + 8) // 64) * 64
        self.flags = 8 * (self.count + len(shape.moving))
        """Where a row of the table says: steps, whole panels, whether the last one is meant, too, and whether
        there are fewer rows."""

    def kernel(self) -> Kernel:
        code, shape = self.code, self.shape
        for number in range(self.count):
            code.mov(RAX, Mem(RDI, 8 * number))
            code.add(RAX, Mem(RSI, 8 * number))
            code.mov(Mem(RDX, 8 * number), RAX)
        if self.lanes:
            code.set_mask(self.mask, self.lanes)
        if shape.tail_rows:
            few = code.label()
            self._jump_where(self.flags + 24, "nz", few)
            self._steps(shape.rows)
            code.place(few)
            self._steps(shape.tail_rows)
        else:
            self._steps(shape.rows)
        sums = shape.rows * max(stage.gates for stage in shape.stages) * code.bytes
        return Kernel("recurrent", code.finish(), self.sums_at + sums)

    def _jump_where(self, flag: int, condition: str, label: Any) -> None:
        self.code.mov(RAX, Mem(RSI, flag))
        self.code.test(RAX, RAX)
        self.code.jump_if(condition, label)

    def _steps(self, rows: int) -> None:
        code, shape = self.code, self.shape
        code.move_immediate(RAX, 0)
        code.mov(Mem(RDX, self.parity), RAX)
        code.mov(RBP, Mem(RSI, self.flags))
        with code.loop(RBP):
            for stage in shape.stages:
                self._stage(stage, rows)
            for at, number in enumerate(shape.moving):
                code.mov(RAX, Mem(RDX, 8 * number))
                code.add(RAX, Mem(RSI, 8 * (self.count + at)))
                code.mov(Mem(RDX, 8 * number), RAX)
            code.move_immediate(RAX, 1)
            code.xor(RAX, Mem(RDX, self.parity))
            code.mov(Mem(RDX, self.parity), RAX)
            first, second = (Mem(RDX, 8 * number) for number in shape.swapped)
            code.mov(RAX, first)
            code.mov(RCX, second)
            code.mov(first, RCX)
            code.mov(second, RAX)
            for number in shape.sources:
                code.mov(Mem(RDX, 8 * number), RCX)
        code.ret()

    def _stage(self, stage: RecurrentStage, rows: int) -> None:
        code = self.code
        panel_bytes = self.shape.hidden * stage.gates * code.bytes
        if self.shape.hidden >= code.width:
            end, upwards = code.label(), code.label()
            code.mov(R12, Mem(RSI, self.flags + 8))
            code.test(R12, R12)
            code.jump_if("z", end)
            code.mov(R9, Mem(RDX, 8 * stage.weights))
            code.move_immediate(RBX, 0)
            code.move_immediate(R10, code.bytes)
            code.move_immediate(R11, 0)
            code.mov(RAX, Mem(RDX, self.parity))
            code.test(RAX, RAX)
            code.jump_if("z", upwards)
            self._last_panel(panel_bytes, -1)
            code.move_immediate(R10, -code.bytes)
            code.move_immediate(R11, -2 * panel_bytes)
            code.place(upwards)
            with code.loop(R12):
                self._panel(stage, rows, None)
                code.add(RBX, R10)
                code.add(R9, R11)
            code.place(end)
        if self.lanes:
            end = code.label()
            self._jump_where(self.flags + 16, "z", end)
            code.mov(R9, Mem(RDX, 8 * stage.weights))
            code.mov(R12, Mem(RSI, self.flags + 8))
            self._last_panel(panel_bytes, 0)
            self._panel(stage, rows, self.mask)
            code.place(end)

    def _last_panel(self, panel_bytes: int, beyond: int) -> None:
        """Sets RBX and R9, the weights' address, to the last whole panel (-1) or the one behind it (0)."""
        code = self.code
        code.lea(RBX, Mem(R12, beyond))
        code.multiply_immediate(RAX, RBX, panel_bytes)
        code.add(R9, RAX)
        code.multiply_immediate(RBX, RBX, code.bytes)

    def _panel(self, stage: RecurrentStage, rows: int, mask: int | None) -> None:
        code = self.code
        code.mov(R8, Mem(RDX, 8 * stage.source))
        self._sums(stage, rows)
        self._finish(stage, rows, mask)

    def _sums(self, stage: RecurrentStage, rows: int) -> None:
        """The products of one panel, stored row after row, a vector for each gate."""
        code, gates = self.code, stage.gates
        # Places of k take turns among several sets of sums where one set is too few.
        free = self.top - 1 - (gates if rows > 1 else 0)
        sets = max(1, min(-(-LEAST_SUMS // (rows * gates)), free // (rows * gates)))
        registers = [
            [range((s * rows + row) * gates, (s * rows + row + 1) * gates) for row in range(rows)]
            for s in range(sets)
        ]
        for register in range(sets * rows * gates):
            code.zero(register)
        unroll = sets * max(1, 4 // sets)
        times, rest = divmod(self.shape.hidden, unroll)
        if times:
            with code.loop(RCX, times):
                self._products(stage, registers, rows, unroll)
        if rest:
            self._products(stage, registers, rows, rest)
        for row in range(rows):
            for gate in range(gates):
                total = registers[0][row][gate]
                for other in registers[1:]:
                    code.add_vector(total, total, other[row][gate])
                code.store(Mem(RDX, self.sums_at + (row * gates + gate) * code.bytes), total)

    def _products(
        self, stage: RecurrentStage, registers: Sequence[Sequence[Sequence[int]]], rows: int, count: int
    ) -> None:
        """Adds `count` places of k; R8 and R9 move on."""
        code, gates = self.code, stage.gates
        factor = len(registers) * rows * gates
        held = range(factor + 1, factor + 1 + gates)
        for k in range(count):
            sums = registers[k % len(registers)]
            places = [Mem(R9, (k * gates + gate) * code.bytes) for gate in range(gates)]
            if rows > 1:
                for register, place in zip(held, places, strict=True):
                    code.load(register, place)
            for row in range(rows):
                code.broadcast(factor, Mem(R8, row * self.shape.row_steps[stage.source] + 4 * k))
                for gate in range(gates):
                    code.multiply_add(sums[row][gate], factor, held[gate] if rows > 1 else places[gate])
        code.add_immediate(R8, 4 * count)
        code.add_immediate(R9, count * gates * code.bytes)

    def _finish(self, stage: RecurrentStage, rows: int, mask: int | None) -> None:
        """The expression of the stage for each row."""
        code, shape = self.code, self.shape
        used = sorted({number for number, _ in stage.leaves if number != SUM} | {*stage.results})
        pointers = 8 * self.count if rows > 1 else 0
        code.lea(R14, Mem(RDX, self.sums_at))
        if rows > 1:
            for number in used:
                code.mov(RAX, Mem(RDX, 8 * number))
                code.mov(Mem(RDX, pointers + 8 * number), RAX)
            code.move_immediate(R13, rows)
            start = code.here()

        def place(number: int, gate: int) -> Mem:
            code.mov(R15, Mem(RDX, pointers + 8 * number))
            return Mem(R15, gate * shape.gate_steps[number], RBX if shape.is_vector[number] else -1)

        def load(operand: int, target: int) -> None:
            number, gate = stage.leaves[operand]
            if number == SUM:
                code.load(target, Mem(R14, gate * code.bytes))
            elif shape.is_vector[number]:
                code.load(target, place(number, gate), mask)
            else:
                code.broadcast(target, place(number, gate))

        made = emit(code, stage.expression, bound={}, load=load, free=range(self.top))
        for number, register in zip(stage.results, made, strict=True):
            code.store(place(number, 0), register, mask)
        if rows > 1:
            for number in used:
                if shape.row_steps[number]:
                    code.mov(RAX, Mem(RDX, pointers + 8 * number))
                    code.add_immediate(RAX, shape.row_steps[number])
                    code.mov(Mem(RDX, pointers + 8 * number), RAX)
            code.add_immediate(R14, stage.gates * code.bytes)
            code.decrement(R13)
            code.jump_if("nz", start)
