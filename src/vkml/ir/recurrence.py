"""What a recurrent cell computes at each step: products of states with weights, then scalars of each unit."""

from __future__ import annotations

from enum import Enum

from vkml.dataclasses import dataclass
from vkml.ir import scalar
from vkml.ir.dtypes import INT32, DType
from vkml.ir.scalar import Scalar

OUTPUT = -1
"""Stands among a stage's results for the cell's output of the step."""


class OperandKind(Enum):
    """What an argument of a stage's scalars is."""

    SUM = "sum"  # a gate's recurrent weights times the stage's source
    INPUT = "input"  # a gate's part of the input's product, known before the first step
    VECTOR = "vector"  # one number a unit: a bias, a peephole
    STATE = "state"  # as the last stage that wrote it left it
    STEP = "step"  # the number of the time step, int32
    LENGTH = "length"  # steps of this sequence of the batch, int32


@dataclass(frozen=True)
class Operand:
    """An argument of a stage's scalars."""

    kind: OperandKind
    index: int = 0
    """Which gate, vector or state."""


@dataclass(frozen=True)
class Stage:
    """Sums over all units of a state, then scalars for each unit.

    A stage begins when the one before is done.
    """

    source: int
    """The state that is multiplied by weights."""
    gates: tuple[int, ...]
    """Whose recurrent weights it is multiplied by."""
    operands: tuple[Operand, ...]
    results: tuple[tuple[int, Scalar], ...]
    """States, or `OUTPUT`, and what they become; argument n of a scalar is operand n."""

    def of(self, kind: OperandKind) -> tuple[int, ...]:
        """The indices of all operands of a kind, in order."""
        return tuple(sorted(operand.index for operand in self.operands if operand.kind is kind))


@dataclass(frozen=True)
class Cell:
    """The stages of one step. State 0 is the one that sums are made of at the step's start."""

    gates: int
    carried: int
    """States that one step leaves to the next: the first ones. State 0 is written by the last stage only."""
    states: int
    """All, with those that live within a step."""
    stages: tuple[Stage, ...]


class StageWriter:
    """Collects the operands of a stage.

    Args:
        dtype: that numbers are computed in.
        source: the state that is multiplied.
        has_lengths: whether sequences of a batch differ in length.
    """

    def __init__(self, dtype: DType, source: int, *, has_lengths: bool) -> None:
        self.dtype, self.source, self.has_lengths = scalar.arithmetic_type(dtype), source, has_lengths
        self._operands: list[Operand] = []
        self._results: list[tuple[int, Scalar]] = []

    def operand(self, kind: OperandKind, index: int = 0) -> Scalar:
        wanted = Operand(kind, index)
        if wanted not in self._operands:
            self._operands.append(wanted)
        is_count = kind in (OperandKind.STEP, OperandKind.LENGTH)
        return scalar.argument(self._operands.index(wanted), INT32 if is_count else self.dtype)

    def sum(self, gate: int) -> Scalar:
        return self.operand(OperandKind.SUM, gate)

    def input(self, gate: int) -> Scalar:
        return self.operand(OperandKind.INPUT, gate)

    def vector(self, index: int) -> Scalar:
        return self.operand(OperandKind.VECTOR, index)

    def state(self, index: int) -> Scalar:
        return self.operand(OperandKind.STATE, index)

    def keep(self, state: int, value: Scalar) -> None:
        """A state that lives within the step."""
        self._results.append((state, value))

    def carry(self, state: int, value: Scalar) -> None:
        """A state of the next step; a sequence that has ended keeps its last one."""
        self._results.append(
            (state, self._if_running(value, self.state(state)) if self.has_lengths else value)
        )

    def output(self, value: Scalar) -> None:
        """The output of the step; 0 behind a sequence's end."""
        zero = scalar.constant(0.0, self.dtype)
        self._results.append((OUTPUT, self._if_running(value, zero) if self.has_lengths else value))

    def _if_running(self, value: Scalar, otherwise: Scalar) -> Scalar:
        is_running = self.operand(OperandKind.STEP) < self.operand(OperandKind.LENGTH)
        return scalar.where(is_running, value, otherwise)

    def finish(self) -> Stage:
        gates = sorted(entry.index for entry in self._operands if entry.kind is OperandKind.SUM)
        return Stage(self.source, tuple(gates), tuple(self._operands), tuple(self._results))
