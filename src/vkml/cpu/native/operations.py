"""Operations that steps of an expression may be, and the code of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from vkml.cpu.native import circular, mathematics
from vkml.cpu.native.assembler import Mem, Operand
from vkml.cpu.native.vectors import VectorCode

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


PREDICATES = {"equal": 0x00, "less": 0x11, "less_equal": 0x12, "not_equal": 0x04, "greater_equal": 0x1D,
               "greater": 0x1E, "is_nan": 0x03}  # fmt: skip
"""Quiet predicates of vcmpps; those but not_equal and is_nan are false for NaN."""
LIMITS = {"min": "limit_above", "max": "limit_below"}
"""What an extreme of a value and a number is, which needs no test for NaN."""
_MASK = mathematics.MASK


def _register(operand: Operand) -> int:
    assert isinstance(operand, int)
    return operand


def _plain(name: str) -> Operation:
    def emit_plain(code: VectorCode, target: int, inputs: Inputs, spare: Registers) -> None:
        code.vector(name, target, _register(inputs[0]), inputs[1])

    commutes = name in ("addps", "mulps", "pand", "por", "pxor")
    cost = 4 if name == "divps" else 1
    return Operation(emit_plain, 2, takes_memory=True, is_commutative=commutes, cost=cost)


def _with_bits(name: str, bits: int) -> Operation:
    def emit_bits(code: VectorCode, target: int, inputs: Inputs, spare: Registers) -> None:
        code.vector(name, target, _register(inputs[0]), code.bits(bits))

    return Operation(emit_bits, 1)


def _rounding(mode: int) -> Operation:
    # The fourth bit: inexact results raise nothing.
    def emit_rounding(code: VectorCode, target: int, inputs: Inputs, spare: Registers) -> None:
        code.unary_immediate("roundps", target, inputs[0], mode | 8)

    return Operation(emit_rounding, 1)


def _function(
    emitter: Callable[[VectorCode, int, int, Sequence[int]], None], cost: int, spare: int = mathematics.SPARE
) -> Operation:
    def emit_function(code: VectorCode, target: int, inputs: Inputs, spare: Registers) -> None:
        emitter(code, target, _register(inputs[0]), spare)

    return Operation(emit_function, 1, (spare, spare), cost=cost)


def _square_root(code: VectorCode, target: int, inputs: Inputs, spare: Registers) -> None:
    code.unary("sqrtps", target, inputs[0])


def _half(code: VectorCode, target: int, inputs: Inputs, spare: Registers) -> None:
    code.to_half(target, _register(inputs[0]), bits=0)
    code.unary("cvtph2ps", target, target)


def _reciprocal(code: VectorCode, target: int, inputs: Inputs, spare: Registers) -> None:
    code.load(spare[0], code.constant(1.0))
    code.vector("divps", target, spare[0], inputs[0])


def _relu(code: VectorCode, target: int, inputs: Inputs, spare: Registers) -> None:
    code.zero(spare[0])
    code.vector("maxps", target, spare[0], inputs[0])


def _extreme(name: str) -> Operation:
    def emit_extreme(code: VectorCode, target: int, inputs: Inputs, spare: Registers) -> None:
        first, second = _register(inputs[0]), _register(inputs[1])
        if target == first:
            first, second = second, first
        # Right where only the second is NaN; where the first is, it is the result.
        mask = _MASK if code.has_avx512 else spare[0]
        if first != second:
            code.compare(mask, first, first, PREDICATES["is_nan"])
        code.vector(name, target, first, second)
        if first != second:
            code.blend(target, target, first, mask)

    return Operation(emit_extreme, 2, (1, 0))


def _limit(name: str) -> Operation:
    def emit_limit(code: VectorCode, target: int, inputs: Inputs, spare: Registers) -> None:
        limit = inputs[1]
        if isinstance(limit, Mem):
            code.load(spare[0], limit)
            limit = spare[0]
        # Of a comparison with NaN the second operand is the result.
        code.vector(name, target, limit, inputs[0])

    return Operation(emit_limit, 2, (1, 1), takes_memory=True)


def _sign(code: VectorCode, target: int, inputs: Inputs, spare: Registers) -> None:
    source = _register(inputs[0])
    # Equal or unordered: zero and NaN stay as they are.
    code.zero(spare[0])
    mask = _MASK if code.has_avx512 else spare[0]
    code.compare(mask, source, spare[0], 0x08)
    code.vector("andps", spare[1], source, code.bits(0x80000000))
    code.vector("orps", spare[1], spare[1], code.bits(0x3F800000))
    code.blend(target, spare[1], source, mask)


def _compare(code: VectorCode, target: int, first: int, second: Operand, predicate: int) -> None:
    if code.has_avx512:
        code.compare(_MASK, first, second, predicate)
        code.mask_to_vector(target, _MASK)
    else:
        code.compare(target, first, second, predicate)


def _comparison(predicate: int) -> Operation:
    def emit_comparison(code: VectorCode, target: int, inputs: Inputs, spare: Registers) -> None:
        _compare(code, target, _register(inputs[0]), inputs[1], predicate)

    return Operation(emit_comparison, 2, takes_memory=True, is_commutative=predicate in (0, 4))


def _is_nan(code: VectorCode, target: int, inputs: Inputs, spare: Registers) -> None:
    _compare(code, target, _register(inputs[0]), inputs[0], PREDICATES["is_nan"])


def _select(code: VectorCode, target: int, inputs: Inputs, spare: Registers) -> None:
    condition, chosen, other = (_register(entry) for entry in inputs)
    if code.has_avx512:
        code.vector_to_mask(_MASK, condition)
        condition = _MASK
    code.blend(target, other, chosen, condition)


def _select_by(predicate: int) -> Operation:
    def emit_select(code: VectorCode, target: int, inputs: Inputs, spare: Registers) -> None:
        first, *second, chosen, other = (_register(entry) for entry in inputs)
        mask = _MASK if code.has_avx512 else spare[0]
        code.compare(mask, first, second[0] if second else first, predicate)
        code.blend(target, other, chosen, mask)

    return Operation(emit_select, 3 if predicate == PREDICATES["is_nan"] else 4, (1, 0))


def _multiply_add(code: VectorCode, target: int, inputs: Inputs, spare: Registers) -> None:
    """Of the forms, which overwrite one input, the one that fits the target."""
    first, second, third = _register(inputs[0]), _register(inputs[1]), inputs[2]
    if target == third:
        code.vector("fmadd231ps", target, first, second)
    elif target == second:
        code.vector("fmadd213ps", target, first, third)
    else:
        code.copy(target, first)
        code.vector("fmadd213ps", target, second, third)


OPERATIONS: Mapping[str, Operation] = {
    "constant": Operation(lambda code, target, inputs, spare: None, 0, cost=0),
    "add": _plain("addps"),
    "sub": _plain("subps"),
    "mul": _plain("mulps"),
    "div": _plain("divps"),
    "min": _extreme("minps"),
    "max": _extreme("maxps"),
    "limit_above": _limit("minps"),
    "limit_below": _limit("maxps"),
    "neg": _with_bits("xorps", 0x80000000),
    "abs": _with_bits("andps", 0x7FFFFFFF),
    "sqrt": Operation(_square_root, 1, cost=6),
    "reciprocal": Operation(_reciprocal, 1, (1, 1), cost=5),
    "relu": Operation(_relu, 1, (1, 1)),
    "round": _rounding(0),
    "floor": _rounding(1),
    "ceil": _rounding(2),
    "truncate": _rounding(3),
    "half": Operation(_half, 1, cost=2),
    "sign": Operation(_sign, 1, (2, 2)),
    "exp": _function(mathematics.exp, 18),
    "log": _function(mathematics.log, 22),
    "tanh": _function(mathematics.tanh, 26),
    "sigmoid": _function(mathematics.sigmoid, 24),
    "erf": _function(mathematics.erf, 36),
    "expm1": _function(mathematics.expm1, 22),
    "log1p": _function(mathematics.log1p, 30, mathematics.SPARE + 2),
    "sin": _function(circular.sin, 28, circular.SPARE),
    "cos": _function(circular.cos, 28, circular.SPARE),
    **{name: _comparison(predicate) for name, predicate in PREDICATES.items() if name != "is_nan"},
    "is_nan": Operation(_is_nan, 1),
    "and": _plain("pand"),
    "or": _plain("por"),
    "xor": _plain("pxor"),
    "not": _with_bits("pxor", 0xFFFFFFFF),
    "select": Operation(_select, 3),
    **{f"select_{name}": _select_by(predicate) for name, predicate in PREDICATES.items()},
    "fma": Operation(_multiply_add, 3, takes_memory=True),
}
"""What steps may be.

min, max and relu give NaN where an input is NaN; limit_above and limit_below are min and max whose
second input is not NaN. round goes to even; half rounds to a number that float16 has. Comparisons with NaN
are false, except not_equal. select takes condition, value if true, value if false. fma is a b + c with
one rounding.
"""
