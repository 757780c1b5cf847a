"""Conversions between arithmetic types, and the code of each.

Floats to integers lose their fraction and keep their low bits; what does not fit 64 bits counts as -2⁶³, for
uint64 it is any number. Everything else is exact or rounds once.
"""

from __future__ import annotations

from collections.abc import Mapping

from vkml.cpu.native.floats import PREDICATES
from vkml.cpu.native.mathematics import MASK
from vkml.cpu.native.operation import Emitter, Inputs, Operation, Registers, plain_unary, register
from vkml.cpu.native.vectors import VectorCode

_TRUNCATE = 3 | 8
_NEAREST = 0 | 8
_NOT_LESS, _ORDERED = 0x15, 0x07
"""Quiet predicates of vcmpps: true for NaN, and false for it."""


def _instruction(name: str) -> Emitter:
    def emit(code: VectorCode, target: int, inputs: Inputs, spare: Registers) -> None:
        code.unary(name, target, inputs[0])

    return emit


def _by_set(with_avx512: str, otherwise: Emitter) -> Emitter:
    """An instruction of AVX-512, and what does the same with AVX2."""
    instruction = _instruction(with_avx512)

    def emit(code: VectorCode, target: int, inputs: Inputs, spare: Registers) -> None:
        (instruction if code.has_avx512 else otherwise)(code, target, inputs, spare)

    return emit


def _single_to_32(code: VectorCode, target: int, inputs: Inputs, spare: Registers) -> None:
    """From 2³¹ on there is no fraction: multiples of 2³² are taken off first, exactly."""
    code.vector("mulps", spare[0], register(inputs[0]), code.constant(2.0**-32))
    code.unary_immediate("roundps", spare[0], spare[0], _NEAREST)
    code.copy(spare[1], register(inputs[0]))
    code.vector("fnmadd231ps", spare[1], spare[0], code.constant(2.0**32))
    # 2³¹ itself does not fit and gives -2³¹, as it should; NaN and infinity give 0.
    if code.has_avx512:
        code.compare(MASK, spare[1], spare[1], _ORDERED)
        code.unary("cvttps2dq", target, spare[1], mask=MASK, zeroes=True)
    else:
        code.compare(spare[0], spare[1], spare[1], _ORDERED)
        code.unary("cvttps2dq", target, spare[1])
        code.vector("pand", target, target, spare[0])


def _double_to_32(code: VectorCode, target: int, inputs: Inputs, spare: Registers) -> None:
    if code.has_avx512:
        code.unary("cvttpd2qq", spare[0], inputs[0])
        code.truncate_lanes(target, spare[0])
        return
    _compare_size(code, spare[0], register(inputs[0]), PREDICATES["less"])
    code.unary_immediate("roundpd", spare[1], inputs[0], _TRUNCATE)
    code.vector("andpd", spare[1], spare[1], spare[0])
    _low_word(code, target, spare[1], spare[0])


def _compare_size(code: VectorCode, target: int, source: int, predicate: int) -> None:
    """Compares the size of doubles with 2⁶³ (AVX2)."""
    code.vector("andpd", target, source, code.bits((1 << 63) - 1, lane=8))
    code.compare(target, target, code.constant(2.0**63, "float64"), predicate, lane=8)


def _low_word(code: VectorCode, target: int, whole: int, spare: int) -> None:
    """The low 32 bits of doubles without fraction, in 32-bit lanes; changes both registers."""
    code.vector("mulpd", spare, whole, code.constant(2.0**-32, "float64"))
    code.unary_immediate("roundpd", spare, spare, _NEAREST)
    code.vector("fnmadd231pd", whole, spare, code.constant(2.0**32, "float64"))
    code.unary("cvttpd2dq", target, whole)


def _double_to_64(code: VectorCode, target: int, inputs: Inputs, spare: Registers) -> None:
    """As two words, and -2⁶³ for what is too large (AVX2)."""
    _compare_size(code, spare[3], register(inputs[0]), _NOT_LESS)
    _double_to_words(code, spare[0], inputs, spare)
    code.blend(target, spare[0], code.bits(1 << 63, lane=8), spare[3], lane=8)


def _double_to_words(code: VectorCode, target: int, inputs: Inputs, spare: Registers) -> None:
    """The upper and the lower word of 64 bits, with or without a sign (AVX2)."""
    whole, upper, other = spare[:3]
    code.unary_immediate("roundpd", whole, inputs[0], _TRUNCATE)
    # x = 2³² floor(x / 2³²) + rest, all exact.
    code.vector("mulpd", upper, whole, code.constant(2.0**-32, "float64"))
    code.unary_immediate("roundpd", upper, upper, 1 | 8)
    code.vector("fnmadd231pd", whole, upper, code.constant(2.0**32, "float64"))
    _low_word(code, whole, whole, other)
    _low_word(code, upper, upper, other)
    code.unary("pmovzxdq", whole, whole)
    code.unary("pmovzxdq", upper, upper)
    code.shift("psllq", upper, upper, 32)
    code.vector("porq", target, upper, whole)


def _double_to_unsigned(code: VectorCode, target: int, inputs: Inputs, spare: Registers) -> None:
    if not code.has_avx512:
        _double_to_words(code, target, inputs, spare)
        return
    source = register(inputs[0])
    code.copy(spare[0], source)
    _less_upper_half(code, "pd", source, spare[0])
    code.unary("cvttpd2qq", target, spare[0])


def _single_to_unsigned(code: VectorCode, target: int, inputs: Inputs, spare: Registers) -> None:
    source = register(inputs[0])
    if code.has_avx512:
        code.copy(spare[0], source)
        _less_upper_half(code, "ps", source, spare[0])
        code.unary("cvttps2qq", target, spare[0])
    else:
        code.unary("cvtps2pd", spare[0], source)
        _double_to_words(code, target, [spare[0]], spare)


def _less_upper_half(code: VectorCode, suffix: str, source: int, copy: int) -> None:
    """Subtracts 2⁶⁴, exactly, from what is at least 2⁶³ (AVX-512)."""
    dtype, lane = ("float32", 4) if suffix == "ps" else ("float64", 8)
    code.compare(MASK, source, code.constant(2.0**63, dtype), PREDICATES["greater_equal"], lane=lane)
    code.vector(f"sub{suffix}", copy, copy, code.constant(2.0**64, dtype), mask=MASK)


def _single_to_64(code: VectorCode, target: int, inputs: Inputs, spare: Registers) -> None:
    code.unary("cvtps2pd", spare[0], inputs[0])
    _double_to_64(code, target, [spare[0]], spare)


def _unsigned_32_to_single(code: VectorCode, target: int, inputs: Inputs, spare: Registers) -> None:
    """2¹⁶ times the upper half and the lower one, rounded once (AVX2)."""
    source = register(inputs[0])
    code.shift("psrld", spare[0], source, 16)
    code.unary("cvtdq2ps", spare[0], spare[0])
    code.vector("pand", target, source, code.bits(0xFFFF))
    code.unary("cvtdq2ps", target, target)
    code.vector("fmadd231ps", target, spare[0], code.constant(2.0**16))


def _unsigned_32_to_double(code: VectorCode, target: int, inputs: Inputs, spare: Registers) -> None:
    code.unary("pmovzxdq", target, inputs[0])
    code.vector("porq", target, target, code.constant(2.0**52, "float64"))
    code.vector("subpd", target, target, code.constant(2.0**52, "float64"))


def _to_double(is_signed: bool) -> Emitter:
    """A double of the upper word, whose units are 2³², and one of the lower; their sum rounds once (AVX2)."""
    upper_bits = 0x45300000_00000000 | (0x80000000 if is_signed else 0)

    def emit(code: VectorCode, target: int, inputs: Inputs, spare: Registers) -> None:
        source = register(inputs[0])
        code.shift("psrlq", spare[0], source, 32)
        code.vector("pxorq", spare[0], spare[0], code.bits(upper_bits, lane=8))
        beyond = 2.0**84 + 2.0**52 + (2.0**63 if is_signed else 0.0)
        code.vector("subpd", spare[0], spare[0], code.constant(beyond, "float64"))
        code.vector("pandq", target, source, code.bits(0xFFFFFFFF, lane=8))
        code.vector("porq", target, target, code.constant(2.0**52, "float64"))
        code.vector("addpd", target, target, spare[0])

    return emit


def _to_single(is_signed: bool) -> Emitter:
    """Through a double (AVX2).

    Before that the lowest bits of large numbers become one that says whether any was set: then the double is
    exact, and its rounding the only one.
    """
    to_double = _to_double(is_signed)

    def emit(code: VectorCode, target: int, inputs: Inputs, spare: Registers) -> None:
        source = register(inputs[0])
        gathered, size, rest = spare
        lowest = code.bits(0x7FF, lane=8)
        code.vector("pandq", gathered, source, lowest)
        code.vector("paddq", gathered, gathered, lowest)
        code.vector("porq", gathered, gathered, source)
        code.vector("pandq", gathered, gathered, code.bits(~0x7FF, lane=8))
        # Below 2⁵³ all bits fit.
        if is_signed:
            code.vector("paddq", size, source, code.bits(1 << 53, lane=8))
            code.shift("psrlq", size, size, 54)
        else:
            code.shift("psrlq", size, source, 53)
        code.zero(rest)
        code.vector("pcmpeqq", size, size, rest)
        code.blend(gathered, gathered, source, size, lane=8)
        to_double(code, gathered, [gathered], [size])
        code.unary("cvtpd2ps", target, gathered)

    return emit


def _truncated(code: VectorCode, target: int, inputs: Inputs, spare: Registers) -> None:
    source = register(inputs[0])
    if code.has_avx512:
        code.truncate_lanes(target, source)
    else:
        code.extract_upper(spare[0], source, bits=256)
        code.immediate("shufps", target, source, spare[0], 0x88, bits=128)


def _of_truth(dtype: str) -> Operation:
    def emit(code: VectorCode, target: int, inputs: Inputs, spare: Registers) -> None:
        source = register(inputs[0])
        if dtype.endswith("64"):
            code.unary("pmovsxdq", target, source)
            code.vector("pandq", target, target, code.constant(1, dtype))
        else:
            code.vector("pand", target, source, code.constant(1, dtype))

    return Operation(emit, 1)


def conversion(target: str) -> str:
    """The name of the operation that converts to an arithmetic type."""
    return f"to_{target}"


_FORMS: Mapping[tuple[str, str], Operation] = {
    ("float32", "float64"): plain_unary("cvtps2pd"),
    ("float32", "int32"): Operation(_single_to_32, 1, (2, 2), cost=5),
    ("float32", "int64"): Operation(_by_set("cvttps2qq", _single_to_64), 1, (4, 0), cost=8),
    ("float32", "uint64"): Operation(_single_to_unsigned, 1, (3, 1), cost=8),
    ("float64", "float32"): plain_unary("cvtpd2ps"),
    ("float64", "int32"): Operation(_double_to_32, 1, (2, 2), cost=5),
    ("float64", "int64"): Operation(_by_set("cvttpd2qq", _double_to_64), 1, (4, 0), cost=8),
    ("float64", "uint64"): Operation(_double_to_unsigned, 1, (3, 1), cost=8),
    ("int32", "float32"): plain_unary("cvtdq2ps"),
    ("int32", "float64"): plain_unary("cvtdq2pd"),
    ("int32", "int64"): plain_unary("pmovsxdq"),
    ("uint32", "float32"): Operation(_by_set("cvtudq2ps", _unsigned_32_to_single), 1, (1, 0), cost=3),
    ("uint32", "float64"): Operation(_by_set("cvtudq2pd", _unsigned_32_to_double), 1, cost=2),
    ("uint32", "int64"): plain_unary("pmovzxdq"),
    ("int64", "float32"): Operation(_by_set("cvtqq2ps", _to_single(True)), 1, (3, 0), cost=6),
    ("int64", "float64"): Operation(_by_set("cvtqq2pd", _to_double(True)), 1, (1, 0), cost=3),
    ("int64", "int32"): Operation(_truncated, 1, (1, 0)),
    ("uint64", "float32"): Operation(_by_set("cvtuqq2ps", _to_single(False)), 1, (3, 0), cost=6),
    ("uint64", "float64"): Operation(_by_set("cvtuqq2pd", _to_double(False)), 1, (1, 0), cost=3),
    **{("bool", dtype): _of_truth(dtype) for dtype in ("float32", "float64", "int32", "int64")},
}
_ALIKE = {"uint32": "int32", "uint64": "int64"}
"""Types whose conversions are those of another, for these have the same bits."""


def _operations() -> dict[tuple[str, str], Operation]:
    found = {}
    for source in ("float32", "float64", "int32", "uint32", "int64", "uint64", "bool"):
        for target in ("float32", "float64", "int32", "uint32", "int64", "uint64"):
            alike = (_ALIKE.get(source, source), _ALIKE.get(target, target))
            mixed = (source, alike[1])
            for form in ((source, target), mixed, (alike[0], target), alike):
                if form in _FORMS and _ALIKE.get(source) != target and _ALIKE.get(target) != source:
                    found[conversion(target), source] = _FORMS[form]
                    break
    return found


OPERATIONS = {**_operations(), ("truncate", "float32"): plain_unary("cvttps2dq")}
"""By name and the type converted from. Integers of one size have the same bits and need none; truncate is a
conversion of numbers that int32 has."""
