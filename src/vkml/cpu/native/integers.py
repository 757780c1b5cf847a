"""Operations of integers and truth values, and the code of each."""

from __future__ import annotations

from collections.abc import Mapping

from vkml.cpu.native.assembler import RAX, RCX, RDX, Mem
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

COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
_PREDICATES = {"equal": 0, "less": 1, "less_equal": 2, "not_equal": 4, "greater_equal": 5, "greater": 6}
"""Of vpcmpd."""
_ONES = -1


@dataclass(frozen=True)
class _Type:
    """An integer type of 32 or 64 bits."""

    name: str
    lane: int
    is_signed: bool

    @property
    def suffix(self) -> str:
        """What instructions end in that move lanes of this size."""
        return "d" if self.lane == 4 else "q"

    @property
    def logic(self) -> str:
        """What bitwise instructions end in; those for 32 bits have no ending."""
        return "" if self.lane == 4 else "q"

    @property
    def sign(self) -> int:
        return 1 << (8 * self.lane - 1)


def emit_comparison(
    code: VectorCode, kind: _Type, name: str, first: int, second: int | Mem, spare: Registers
) -> tuple[int, bool]:
    """Compares into a mask; returns it, and whether it says the contrary (AVX2).

    With AVX2 the mask is the first spare register, and two are needed.
    """
    if code.has_avx512:
        predicate = _PREDICATES[name]
        code.compare_integers(MASK, first, second, predicate, lane=kind.lane, is_signed=kind.is_signed)
        return MASK, False
    if name in ("equal", "not_equal"):
        code.vector(f"pcmpeq{kind.suffix}", spare[0], first, second)
        return spare[0], name == "not_equal"
    assert isinstance(second, int)
    if not kind.is_signed:
        # Moved by half their range, numbers without a sign are ordered like those with one.
        for number, entry in zip(spare, (first, second), strict=False):
            code.vector(f"pxor{kind.logic}", number, entry, code.bits(kind.sign, lane=kind.lane))
        first, second = spare[0], spare[1]
    if name in ("less", "greater_equal"):
        first, second = second, first
    code.vector(f"pcmpgt{kind.suffix}", spare[0], first, second)
    return spare[0], name.endswith("_equal")


def _comparison(kind: _Type, name: str) -> Operation:
    def emit(code: VectorCode, target: int, inputs: Inputs, spare: Registers) -> None:
        mask, is_contrary = emit_comparison(code, kind, name, register(inputs[0]), inputs[1], spare)
        if is_contrary:
            code.vector(f"pxor{kind.logic}", mask, mask, code.bits(_ONES, lane=kind.lane))
        emit_truth(code, target, mask, kind.lane, spare[-1] if spare else 0)

    is_symmetric = name in ("equal", "not_equal")
    return Operation(emit, 2, (2, 0), takes_memory=is_symmetric, is_commutative=is_symmetric)


def _choice_by(kind: _Type, name: str) -> Operation:
    def emit(code: VectorCode, target: int, inputs: Inputs, spare: Registers) -> None:
        first, second, chosen, other = map(register, inputs)
        mask, is_contrary = emit_comparison(code, kind, name, first, second, spare)
        if is_contrary:
            chosen, other = other, chosen
        code.blend(target, other, chosen, mask, lane=kind.lane)

    return Operation(emit, 4, (2, 0))


def _extreme(kind: _Type, name: str) -> Operation:
    instruction = f"p{name}{'s' if kind.is_signed else 'u'}{kind.suffix}"
    if kind.lane == 4:
        return plain(instruction, commutes=True)

    def emit(code: VectorCode, target: int, inputs: Inputs, spare: Registers) -> None:
        first, second = register(inputs[0]), register(inputs[1])
        if code.has_avx512:
            code.vector(instruction, target, first, second)
            return
        mask, _ = emit_comparison(code, kind, "greater", first, second, spare)
        larger, smaller = first, second
        if name == "min":
            larger, smaller = second, first
        code.blend(target, smaller, larger, mask, lane=8)

    return Operation(emit, 2, (2, 0))


def _negative(kind: _Type) -> Operation:
    def emit(code: VectorCode, target: int, inputs: Inputs, spare: Registers) -> None:
        code.zero(spare[0])
        code.vector(f"psub{kind.suffix}", target, spare[0], inputs[0])

    return Operation(emit, 1, (1, 1))


def _emit_absolute_64(code: VectorCode, target: int, inputs: Inputs, spare: Registers) -> None:
    if code.has_avx512:
        code.unary("pabsq", target, inputs[0])
        return
    code.zero(spare[0])
    code.vector("pcmpgtq", spare[0], spare[0], inputs[0])
    code.vector("pxorq", target, register(inputs[0]), spare[0])
    code.vector("psubq", target, target, spare[0])


def _emit_multiply_64(code: VectorCode, target: int, inputs: Inputs, spare: Registers) -> None:
    first, second = register(inputs[0]), register(inputs[1])
    if code.has_avx512:
        code.vector("pmullq", target, first, second)
        return
    # The products of the halves; that of the upper ones is out of reach.
    for number, upper, lower in ((spare[0], first, second), (spare[1], second, first)):
        code.shift("psrlq", number, upper, 32)
        code.vector("pmuludq", number, number, lower)
    code.vector("paddq", spare[0], spare[0], spare[1])
    code.shift("psllq", spare[0], spare[0], 32)
    code.vector("pmuludq", target, first, second)
    code.vector("paddq", target, target, spare[0])


def _emit_shift_right_64(code: VectorCode, target: int, inputs: Inputs, spare: Registers) -> None:
    first, second = register(inputs[0]), register(inputs[1])
    if code.has_avx512:
        code.vector("psravq", target, first, second)
        return
    # Negative numbers are turned round, so that what is shifted in is turned into ones.
    code.zero(spare[0])
    code.vector("pcmpgtq", spare[0], spare[0], first)
    code.vector("pxorq", spare[1], first, spare[0])
    code.vector("psrlvq", spare[1], spare[1], second)
    code.vector("pxorq", target, spare[1], spare[0])


def _wrapping(bits: int, is_signed: bool) -> Operation:
    if not is_signed:
        return with_bits("pand", (1 << bits) - 1)

    def emit(code: VectorCode, target: int, inputs: Inputs, spare: Registers) -> None:
        code.shift("pslld", target, register(inputs[0]), 32 - bits)
        code.shift("psrad", target, target, 32 - bits)

    return Operation(emit, 1, cost=2)


def _emit_double(code: VectorCode, target: int, source: int, is_signed: bool) -> None:
    """32-bit integers as doubles: as many as fit a whole register."""
    if is_signed or code.has_avx512:
        code.unary("cvtdq2pd" if is_signed else "cvtudq2pd", target, source)
        return
    # In the lowest bits of 2⁵².
    magic = code.doubles(2.0**52)
    code.unary("pmovzxdq", target, source)
    code.vector("orpd", target, target, magic)
    code.vector("subpd", target, target, magic)


def _division_32(is_signed: bool) -> Operation:
    """Through doubles: what is left over is at least 2⁻³² of the quotient, and they have 53 bits."""

    def emit(code: VectorCode, target: int, inputs: Inputs, spare: Registers) -> None:
        first, second = register(inputs[0]), register(inputs[1])
        parts = spare[: 1 if code.is_wide else 2]
        for number, quotient in enumerate(parts):
            dividend, divisor = first, second
            if number:
                dividend, divisor = quotient, spare[2]
                code.extract_upper(dividend, first, bits=code.full_bits)
                code.extract_upper(divisor, second, bits=code.full_bits)
            _emit_double(code, quotient, dividend, is_signed)
            _emit_double(code, spare[2], divisor, is_signed)
            code.vector("divpd", quotient, quotient, spare[2])
            if is_signed or code.has_avx512:
                code.unary("cvttpd2dq" if is_signed else "cvttpd2udq", quotient, quotient)
            else:
                code.unary_immediate("roundpd", quotient, quotient, 3 | 8)
                code.vector("addpd", quotient, quotient, code.doubles(2.0**52))
                code.extract_upper(spare[2], quotient, bits=256)
                code.immediate("shufps", quotient, quotient, spare[2], 0x88, bits=128)
        if not code.is_wide:
            name = "insertf64x4" if code.has_avx512 else "insertf128"
            code.immediate(name, parts[0], parts[0], parts[1], 1)
        code.zero(spare[2])
        if code.has_avx512:
            code.compare_integers(MASK, second, spare[2], _PREDICATES["equal"])
            code.blend(target, parts[0], spare[2], MASK)
        else:
            code.vector("pcmpeqd", spare[2], spare[2], second)
            code.vector("pandn", target, spare[2], parts[0])

    return Operation(emit, 2, (3, 3), cost=40)


def _division_64(is_signed: bool) -> Operation:
    def emit(code: VectorCode, target: int, inputs: Inputs, spare: Registers) -> None:
        with lane_by_lane(code, target, tuple(map(register, inputs)), 8) as (result, dividend, divisor):
            end, proper = code.label(), code.label()
            code.mov(RAX, dividend)
            code.mov(RCX, divisor)
            code.cmp_immediate(RCX, 0)
            code.jump_if("ne", proper)
            code.move_immediate(RAX, 0)
            code.jump(end)
            code.place(proper)
            if is_signed:
                # The processor refuses the most negative number by -1.
                usual = code.label()
                code.cmp_immediate(RCX, -1)
                code.jump_if("ne", usual)
                code.negate(RAX)
                code.jump(end)
                code.place(usual)
                code.divide_signed(RCX)
            else:
                code.move_immediate(RDX, 0)
                code.divide(RCX)
            code.place(end)
            code.mov(result, RAX)

    return Operation(emit, 2, cost=250)


def _power(kind: _Type) -> Operation:
    """By squaring; a negative exponent leaves the reciprocal's integral part."""

    def emit(code: VectorCode, target: int, inputs: Inputs, spare: Registers) -> None:
        move = code.mov if kind.lane == 8 else code.mov32
        with lane_by_lane(code, target, tuple(map(register, inputs)), kind.lane) as (result, base, exponent):
            end, again, even, positive = (code.label() for _ in range(4))
            move(RAX, base)
            move(RCX, exponent)
            if kind.lane == 4:
                # For the tests below; the upper half of a product does not matter.
                code.extend_sign(RCX)
                if kind.is_signed:
                    code.extend_sign(RAX)
            code.move_immediate(RDX, 1)
            code.cmp_immediate(RCX, 0)
            code.jump_if("ge", positive)
            # 1 and -1 stay what they are or become 1; of others nothing is left.
            code.cmp_immediate(RAX, 1)
            code.jump_if("e", end)
            if kind.is_signed:
                other = code.label()
                code.cmp_immediate(RAX, -1)
                code.jump_if("ne", other)
                code.and_immediate(RCX, 1)
                code.jump(again)
                code.place(other)
            code.move_immediate(RDX, 0)
            code.jump(end)
            code.place(positive)
            code.place(again)
            code.test(RCX, RCX)
            code.jump_if("z", end)
            code.test_immediate(RCX, 1)
            code.jump_if("z", even)
            code.multiply(RDX, RAX)
            code.place(even)
            code.multiply(RAX, RAX)
            code.shift_right(RCX, 1)
            code.jump(again)
            code.place(end)
            move(result, RDX)

    return Operation(emit, 2, cost=400)


def _of(kind: _Type) -> dict[tuple[str, str], Operation]:
    d, logic = kind.suffix, kind.logic
    wide = kind.lane == 8
    found = {
        "add": plain(f"padd{d}", commutes=True),
        "subtract": plain(f"psub{d}"),
        "multiply": Operation(_emit_multiply_64, 2, (2, 0), cost=4)
        if wide
        else plain("pmulld", commutes=True),
        "divide": _division_64(kind.is_signed) if wide else _division_32(kind.is_signed),
        "power": _power(kind),
        "minimum": _extreme(kind, "min"),
        "maximum": _extreme(kind, "max"),
        "negative": _negative(kind),
        "bitwise_and": plain(f"pand{logic}", commutes=True),
        "bitwise_or": plain(f"por{logic}", commutes=True),
        "bitwise_xor": plain(f"pxor{logic}", commutes=True),
        "invert": with_bits(f"pxor{logic}", _ONES, kind.lane),
        "left_shift": plain(f"psllv{d}"),
        "where": choice(kind.lane),
        **{name: _comparison(kind, name) for name in COMPARISONS},
        **{f"where_{name}": _choice_by(kind, name) for name in COMPARISONS},
    }
    if not kind.is_signed:
        found["right_shift"] = plain(f"psrlv{d}")
    elif wide:
        found["right_shift"] = Operation(_emit_shift_right_64, 2, (2, 0), cost=2)
        found["absolute"] = Operation(_emit_absolute_64, 1, (1, 0))
    else:
        found["right_shift"] = plain("psravd")
        found["absolute"] = plain_unary("pabsd")
        for bits in (8, 16):
            found[f"wrap_int{bits}"] = _wrapping(bits, True)
            found[f"wrap_uint{bits}"] = _wrapping(bits, False)
    return {(name, kind.name): operation for name, operation in found.items()}


OPERATIONS: Mapping[tuple[str, str], Operation] = {
    **_of(_Type("int32", 4, True)),
    **_of(_Type("uint32", 4, False)),
    **_of(_Type("int64", 8, True)),
    **_of(_Type("uint64", 8, False)),
    ("bitwise_and", "bool"): plain("pand", commutes=True),
    ("bitwise_or", "bool"): plain("por", commutes=True),
    ("bitwise_xor", "bool"): plain("pxor", commutes=True),
    ("invert", "bool"): with_bits("pxor", _ONES),
    ("where", "bool"): choice(4),
}
"""By name and type. All wrap round; wrap_int8 and the like bring an int32 into the range of a narrower type.

divide by 0 gives 0. Shifts by less than 0 or by the width or more leave copies of the sign bit, or 0. The
exponent of power has the base's width and a sign.
"""
