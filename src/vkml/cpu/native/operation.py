"""What an operation of an expression is: how it becomes code, and what it needs for that."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vkml.cpu.native.assembler import Operand
from vkml.cpu.native.mathematics import MASK
from vkml.cpu.native.vectors import VectorCode
from vkml.dataclasses import dataclass

Inputs = Sequence[Operand]
Registers = Sequence[int]
Emitter = Callable[[VectorCode, int, Inputs, Registers], None]


@dataclass(frozen=True)
class Operation:
    """How an operation becomes code.

    Attributes:
        emit: called with the code, the target register, the inputs and the spare registers; the target may be
            one of the inputs.
        arity: number of inputs.
        spare: registers needed besides inputs and target, with AVX2 and AVX-512.
        takes_memory: whether the last input may be a memory operand.
        is_commutative: whether the last two inputs may be exchanged.
        cost: instructions, roughly, or as many as would take its time.
    """

    emit: Emitter
    arity: int
    spare: tuple[int, int] = (0, 0)
    takes_memory: bool = False
    is_commutative: bool = False
    cost: int = 1


def register(operand: Operand) -> int:
    """An input that is in a register."""
    assert isinstance(operand, int)
    return operand


def plain(name: str, *, commutes: bool = False, cost: int = 1) -> Operation:
    """An instruction of two inputs."""

    def emit(code: VectorCode, target: int, inputs: Inputs, spare: Registers) -> None:
        code.vector(name, target, register(inputs[0]), inputs[1])

    return Operation(emit, 2, takes_memory=True, is_commutative=commutes, cost=cost)


def plain_unary(name: str, cost: int = 1) -> Operation:
    """An instruction of one input."""

    def emit(code: VectorCode, target: int, inputs: Inputs, spare: Registers) -> None:
        code.unary(name, target, inputs[0])

    return Operation(emit, 1, cost=cost)


def with_bits(name: str, bits: int, lane: int = 4) -> Operation:
    """An instruction whose second input is a pattern of bits."""

    def emit(code: VectorCode, target: int, inputs: Inputs, spare: Registers) -> None:
        code.vector(name, target, register(inputs[0]), code.bits(bits, lane=lane))

    return Operation(emit, 1)


def emit_truth(code: VectorCode, target: int, mask: int, lane: int, spare: int) -> None:
    """A mask of lanes of 4 or 8 bytes as a truth value; with AVX2 `spare` may change."""
    if code.has_avx512:
        code.mask_to_vector(target, mask)
    elif lane == 4:
        code.copy(target, mask)
    else:
        code.extract_upper(spare, mask, bits=256)
        code.immediate("shufps", target, mask, spare, 0x88, bits=128)


def emit_choice(
    code: VectorCode, target: int, condition: int, chosen: int, other: int, lane: int, spare: int
) -> None:
    """The lanes of `chosen` where a truth value is true; with AVX2 and 8 bytes `spare` may change."""
    if code.has_avx512:
        code.vector_to_mask(MASK, condition)
        condition = MASK
    elif lane == 8:
        code.unary("pmovsxdq", spare, condition)
        condition = spare
    code.blend(target, other, chosen, condition, lane=lane)


def choice(lane: int) -> Operation:
    """Condition, value where it is true, value where it is false."""

    def emit(code: VectorCode, target: int, inputs: Inputs, spare: Registers) -> None:
        condition, chosen, other = map(register, inputs)
        emit_choice(code, target, condition, chosen, other, lane, spare[0] if spare else 0)

    return Operation(emit, 3, (int(lane == 8), 0))
