"""Operations of float32 and float64, and the code of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from vkml.cpu.native import circular, mathematics
from vkml.cpu.native.assembler import Mem, Operand
from vkml.cpu.native.lanes import lane_by_lane
from vkml.cpu.native.mathematics import MASK
from vkml.cpu.native.operation import (
    Inputs,
    Operation,
    Registers,
    choice,
    emit_truth,
    plain,
    plain_unary,
    register,
    with_bits,
)
from vkml.cpu.native.vectors import VectorCode
from vkml.dataclasses import dataclass

PREDICATES = {"equal": 0x00, "less": 0x11, "less_equal": 0x12, "not_equal": 0x04, "greater_equal": 0x1D,
               "greater": 0x1E, "isnan": 0x03}  # fmt: skip
"""Quiet predicates of vcmpps; those but not_equal and isnan are false for NaN."""


@dataclass(frozen=True)
class _Type:
    """What the instructions of a float type end in, its lanes' bytes, and its bits of sign and of 1."""

    name: str
    suffix: str
    lane: int
    sign: int
    one: int


_SINGLE = _Type("float32", "ps", 4, 1 << 31, 0x3F800000)
_DOUBLE = _Type("float64", "pd", 8, 1 << 63, 0x3FF0000000000000)


def _rounding(kind: _Type, mode: int) -> Operation:
    # The fourth bit: inexact results raise nothing.
    def emit(code: VectorCode, target: int, inputs: Inputs, spare: Registers) -> None:
        code.unary_immediate(f"round{kind.suffix}", target, inputs[0], mode | 8)

    return Operation(emit, 1)


def _function(
    emitter: Callable[[VectorCode, int, int, Sequence[int]], None], cost: int, spare: int = mathematics.SPARE
) -> Operation:
    def emit(code: VectorCode, target: int, inputs: Inputs, spare: Registers) -> None:
        emitter(code, target, register(inputs[0]), spare)

    return Operation(emit, 1, (spare, spare), cost=cost)


def _emit_half(code: VectorCode, target: int, inputs: Inputs, spare: Registers) -> None:
    code.to_half(target, register(inputs[0]), bits=0)
    code.unary("cvtph2ps", target, target)


def _reciprocal(kind: _Type) -> Operation:
    def emit(code: VectorCode, target: int, inputs: Inputs, spare: Registers) -> None:
        code.load(spare[0], code.constant(1.0, kind.name), lane=kind.lane)
        code.vector(f"div{kind.suffix}", target, spare[0], inputs[0])

    return Operation(emit, 1, (1, 1), cost=5)


def _relu(kind: _Type) -> Operation:
    def emit(code: VectorCode, target: int, inputs: Inputs, spare: Registers) -> None:
        code.zero(spare[0])
        code.vector(f"max{kind.suffix}", target, spare[0], inputs[0])

    return Operation(emit, 1, (1, 1))


def _extreme(kind: _Type, name: str) -> Operation:
    def emit(code: VectorCode, target: int, inputs: Inputs, spare: Registers) -> None:
        first, second = register(inputs[0]), register(inputs[1])
        if target == first:
            first, second = second, first
        # Right where only the second is NaN; where the first is, it is the result.
        mask = MASK if code.has_avx512 else spare[0]
        if first != second:
            code.compare(mask, first, first, PREDICATES["isnan"], lane=kind.lane)
        code.vector(name + kind.suffix, target, first, second)
        if first != second:
            code.blend(target, target, first, mask, lane=kind.lane)

    return Operation(emit, 2, (1, 0))


def _limit(kind: _Type, name: str) -> Operation:
    def emit(code: VectorCode, target: int, inputs: Inputs, spare: Registers) -> None:
        limit = inputs[1]
        if isinstance(limit, Mem):
            code.load(spare[0], limit, lane=kind.lane)
            limit = spare[0]
        # Of a comparison with NaN the second operand is the result.
        code.vector(name + kind.suffix, target, limit, inputs[0])

    return Operation(emit, 2, (1, 1), takes_memory=True)


def _sign(kind: _Type) -> Operation:
    def emit(code: VectorCode, target: int, inputs: Inputs, spare: Registers) -> None:
        source = register(inputs[0])
        # Equal or unordered: zero and NaN stay as they are.
        code.zero(spare[0])
        mask = MASK if code.has_avx512 else spare[0]
        code.compare(mask, source, spare[0], 0x08, lane=kind.lane)
        code.vector(f"and{kind.suffix}", spare[1], source, code.bits(kind.sign, lane=kind.lane))
        code.vector(f"or{kind.suffix}", spare[1], spare[1], code.bits(kind.one, lane=kind.lane))
        code.blend(target, spare[1], source, mask, lane=kind.lane)
        # -0 becomes 0, as NumPy has it.
        code.vector(f"add{kind.suffix}", target, target, code.constant(0.0, kind.name))

    return Operation(emit, 1, (2, 2))


def _compare(
    code: VectorCode, kind: _Type, target: int, first: int, second: Operand, predicate: int, spare: Registers
) -> None:
    vector = spare[0] if spare else target
    mask = MASK if code.has_avx512 else vector
    code.compare(mask, first, second, predicate, lane=kind.lane)
    emit_truth(code, target, mask, kind.lane, spare[-1] if spare else 0)


def _comparison(kind: _Type, predicate: int) -> Operation:
    def emit(code: VectorCode, target: int, inputs: Inputs, spare: Registers) -> None:
        _compare(code, kind, target, register(inputs[0]), inputs[1], predicate, spare)

    spare = (2 if kind.lane == 8 else 0, 0)
    return Operation(emit, 2, spare, takes_memory=True, is_commutative=predicate in (0, 4))


def _is_nan(kind: _Type) -> Operation:
    def emit(code: VectorCode, target: int, inputs: Inputs, spare: Registers) -> None:
        source = register(inputs[0])
        _compare(code, kind, target, source, source, PREDICATES["isnan"], spare)

    return Operation(emit, 1, (2 if kind.lane == 8 else 0, 0))


def _choice_by(kind: _Type, predicate: int) -> Operation:
    def emit(code: VectorCode, target: int, inputs: Inputs, spare: Registers) -> None:
        first, *second, chosen, other = map(register, inputs)
        mask = MASK if code.has_avx512 else spare[0]
        code.compare(mask, first, second[0] if second else first, predicate, lane=kind.lane)
        code.blend(target, other, chosen, mask, lane=kind.lane)

    return Operation(emit, 3 if predicate == PREDICATES["isnan"] else 4, (1, 0))


def _multiply_add(kind: _Type) -> Operation:
    def emit(code: VectorCode, target: int, inputs: Inputs, spare: Registers) -> None:
        """Of the forms, which overwrite one input, the one that fits the target."""
        first, second, third = register(inputs[0]), register(inputs[1]), inputs[2]
        if target == third:
            code.vector(f"fmadd231{kind.suffix}", target, first, second)
        elif target == second:
            code.vector(f"fmadd213{kind.suffix}", target, first, third)
        else:
            code.copy(target, first)
            code.vector(f"fmadd213{kind.suffix}", target, second, third)

    return Operation(emit, 3, takes_memory=True)


def _remainder(kind: _Type) -> Operation:
    def emit(code: VectorCode, target: int, inputs: Inputs, spare: Registers) -> None:
        first, second = register(inputs[0]), register(inputs[1])
        with lane_by_lane(code, target, (first, second), kind.lane) as (result, dividend, divisor):
            code.exact_remainder(result, dividend, divisor, kind.lane)

    return Operation(emit, 2, cost=400)


def _of(kind: _Type) -> dict[tuple[str, str], Operation]:
    found = {
        "add": plain(f"add{kind.suffix}", commutes=True),
        "subtract": plain(f"sub{kind.suffix}"),
        "multiply": plain(f"mul{kind.suffix}", commutes=True),
        "divide": plain(f"div{kind.suffix}", cost=4),
        "minimum": _extreme(kind, "min"),
        "maximum": _extreme(kind, "max"),
        "limit_above": _limit(kind, "min"),
        "limit_below": _limit(kind, "max"),
        "greater_of": plain(f"max{kind.suffix}"),
        "less_of": plain(f"min{kind.suffix}"),
        "negative": with_bits(f"xor{kind.suffix}", kind.sign, kind.lane),
        "absolute": with_bits(f"and{kind.suffix}", ~kind.sign, kind.lane),
        "sqrt": plain_unary(f"sqrt{kind.suffix}", cost=6),
        "reciprocal": _reciprocal(kind),
        "relu": _relu(kind),
        "rint": _rounding(kind, 0),
        "floor": _rounding(kind, 1),
        "ceil": _rounding(kind, 2),
        "trunc": _rounding(kind, 3),
        "sign": _sign(kind),
        "fmod": _remainder(kind),
        "isnan": _is_nan(kind),
        "fma": _multiply_add(kind),
        "where": choice(kind.lane),
        **{name: _comparison(kind, number) for name, number in PREDICATES.items() if name != "isnan"},
        **{f"where_{name}": _choice_by(kind, number) for name, number in PREDICATES.items()},
    }
    return {(name, kind.name): operation for name, operation in found.items()}


OPERATIONS: Mapping[tuple[str, str], Operation] = {
    **_of(_SINGLE),
    **_of(_DOUBLE),
    **{
        (name, "float32"): operation
        for name, operation in {
            "round_to_half": Operation(_emit_half, 1, cost=2),
            "exp": _function(mathematics.exp, 18),
            "log": _function(mathematics.log, 22),
            "tanh": _function(mathematics.tanh, 26),
            "sigmoid": _function(mathematics.sigmoid, 24),
            "erf": _function(mathematics.erf, 36),
            "expm1": _function(mathematics.expm1, 22),
            "log1p": _function(mathematics.log1p, 30, mathematics.SPARE + 2),
            "sin": _function(circular.sin, 28, circular.SPARE),
            "cos": _function(circular.cos, 28, circular.SPARE),
        }.items()
    },
}
"""By name and type.

minimum, maximum and relu give NaN where an input is NaN; limit_above and limit_below are minimum and maximum
whose second input is not NaN. greater_of is the first input where it is the greater, else the second; less_of
the first where it is the less. rint goes to even; round_to_half to a number that float16 has. Comparisons
with NaN are false, except not_equal. where takes condition, value if true, value if false; where_less and the
like take what is compared for the condition. fma is a b + c with one rounding, fmod exact.
"""
