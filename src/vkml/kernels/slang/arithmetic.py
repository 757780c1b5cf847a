"""Conversions and operators: what they are in SPIR-V, and what they give where numbers are known.

Integers that are known are computed here; floating-point numbers never are, but for conversions and signs.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable

from vkml.kernels.slang import opcodes as op
from vkml.kernels.slang import types
from vkml.kernels.slang.body import Body, Value, derived
from vkml.kernels.slang.errors import Unsupported
from vkml.kernels.slang.types import (
    BOOL,
    DOUBLE,
    FLOAT,
    HALF,
    INT,
    UINT,
    UINT64,
    Fragment,
    Scalar,
    Type,
    Vector,
)

_COMPARISONS = frozenset(("==", "!=", "<", "<=", ">", ">="))
_SHIFTS = frozenset(("<<", ">>"))
_NUMBERS = frozenset((FLOAT, HALF, DOUBLE, INT, UINT, types.INT64, UINT64))
"""Types of which two operands are of the type that they are brought to."""
# By the kind of operands: floating-point, signed, unsigned.
_OPCODES: dict[str, dict[str, int]] = {
    "+": {"f": op.F_ADD, "i": op.I_ADD, "u": op.I_ADD},
    "-": {"f": op.F_SUB, "i": op.I_SUB, "u": op.I_SUB},
    "*": {"f": op.F_MUL, "i": op.I_MUL, "u": op.I_MUL},
    "/": {"f": op.F_DIV, "i": op.S_DIV, "u": op.U_DIV},
    "%": {"f": op.F_REM, "u": op.U_MOD},
    "&": {"i": op.BITWISE_AND, "u": op.BITWISE_AND, "b": op.LOGICAL_AND},
    "|": {"i": op.BITWISE_OR, "u": op.BITWISE_OR, "b": op.LOGICAL_OR},
    "^": {"i": op.BITWISE_XOR, "u": op.BITWISE_XOR, "b": op.LOGICAL_NOT_EQUAL},
    "<<": {"i": op.SHIFT_LEFT_LOGICAL, "u": op.SHIFT_LEFT_LOGICAL},
    ">>": {"i": op.SHIFT_RIGHT_ARITHMETIC, "u": op.SHIFT_RIGHT_LOGICAL},
    "==": {"f": op.F_ORD_EQUAL, "i": op.I_EQUAL, "u": op.I_EQUAL, "b": op.LOGICAL_EQUAL},
    "!=": {"f": op.F_UNORD_NOT_EQUAL, "i": op.I_NOT_EQUAL, "u": op.I_NOT_EQUAL, "b": op.LOGICAL_NOT_EQUAL},
    "<": {"f": op.F_ORD_LESS, "i": op.S_LESS, "u": op.U_LESS},
    "<=": {"f": op.F_ORD_LESS_EQUAL, "i": op.S_LESS_EQUAL, "u": op.U_LESS_EQUAL},
    ">": {"f": op.F_ORD_GREATER, "i": op.S_GREATER, "u": op.U_GREATER},
    ">=": {"f": op.F_ORD_GREATER_EQUAL, "i": op.S_GREATER_EQUAL, "u": op.U_GREATER_EQUAL},
}
_OF_INTEGERS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "&": operator.and_, "|": operator.or_,
    "^": operator.xor, "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le,
    ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


def constant(type_: Type, value: int | float | bool) -> Value:
    """A known number of a type; integers wrap."""
    if isinstance(type_, Scalar) and type_.kind in "iu":
        value = wrapped(int(value), type_)
    return Value(type_, 0, value)


def wrapped(value: int, type_: Scalar) -> int:
    low = value & ((1 << type_.bits) - 1)
    return low - (1 << type_.bits) if type_.kind == "i" and low >> (type_.bits - 1) else low


def known(
    operation: str, left: int | float | bool, right: int | float | bool, type_: Scalar
) -> int | bool | None:
    """The result of an operation of two known numbers of one type that is not floating-point, or None."""
    if type_.kind == "f":
        return None
    a, b = int(left), int(right)
    compute = _OF_INTEGERS.get(operation)
    if compute is not None:
        return compute(a, b)
    if operation in ("/", "%"):
        if b == 0:
            return None
        quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
        return quotient if operation == "/" else a - quotient * b
    if 0 <= b < type_.bits:
        return a << b if operation == "<<" else a >> b
    return None


def common(left: Type, right: Type) -> Type:
    """The type that two operands of an arithmetic operation are brought to."""
    a, b = types.element_of(left), types.element_of(right)
    if a is None or b is None:
        raise Unsupported(f"arithmetic of {left} and {right}")
    element = _promoted(a, b)
    return types.like(left if isinstance(left, Vector) else right, element)


def _promoted(a: Scalar, b: Scalar) -> Scalar:
    if a is b and (a.kind == "f" or a.bits >= 32):
        return a
    if "f" in (a.kind, b.kind):
        if DOUBLE in (a, b):
            return DOUBLE
        return FLOAT if FLOAT in (a, b) or a is not b else HALF
    if a is BOOL and b is BOOL:
        return INT
    bits = max(a.bits, b.bits, 32)
    is_unsigned = any(entry.kind == "u" and entry.bits == bits for entry in (a, b))
    return types.integer(bits, is_signed=not is_unsigned)


def convert(body: Body, value: Value, target: Type) -> Value:
    """A value in another type, scalars in all elements of a vector.

    Raises:
        Unsupported: there is no such conversion.
    """
    if value.type is target:
        return value
    source, element = types.element_of(value.type), types.element_of(target)
    if isinstance(value.type, types.Pointer) and isinstance(target, types.Pointer):
        return body.emit(op.BITCAST, target, body.number(value))
    if isinstance(target, Fragment) and element is None:
        return body.emit(op.COMPOSITE_CONSTRUCT, target, body.number(convert(body, value, target.element)))
    if source is None or element is None:
        raise Unsupported(f"a conversion of {value.type} to {target}")
    if isinstance(target, Vector):
        if isinstance(value.type, Vector):
            if value.type.count != target.count:
                raise Unsupported("a vector of another length")
            return _converted(body, value, source, element)
        part = convert(body, value, element)
        if part.constant is not None:
            return Value(target, body.module.constant(target, part.constant))
        return body.construct(target, [part] * target.count)
    if isinstance(value.type, Vector):
        value = body.extract(value, 0, source)
    if value.constant is not None:
        return _known_converted(value.constant, source, element)
    return _converted(body, value, source, element)


def _known_converted(value: int | float | bool, source: Scalar, target: Scalar) -> Value:
    if target.kind == "b":
        return Value(target, 0, bool(value))
    if target.kind == "f":
        return Value(target, 0, rounded(float(value), target))
    if source.kind == "f":
        number = float(value)
        whole = int(number) if abs(number) < 1 << 63 else 0
        return constant(target, whole)
    return constant(target, int(value))


def rounded(value: float, type_: Scalar) -> float:
    """The number of a floating-point type that is nearest."""
    form = {16: "<e", 32: "<f", 64: "<d"}[type_.bits]
    try:
        return float(struct.unpack(form, struct.pack(form, value))[0])
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def _converted(body: Body, value: Value, source: Scalar, target: Scalar) -> Value:
    """A value that is not known, each element of it."""
    if source is target:
        return value
    type_ = types.like(value.type, target)
    number = body.number(value)
    if source.kind == "b":
        one, zero = (body.module.constant(type_, rest) for rest in (1, 0))
        return body.emit(op.SELECT, type_, number, one, zero)
    if target.kind == "b":
        zero = body.module.constant(value.type, 0)
        opcode = op.F_UNORD_NOT_EQUAL if source.kind == "f" else op.I_NOT_EQUAL
        return body.emit(opcode, type_, number, zero)
    if source.kind == "f":
        if target.kind == "f":
            if source is HALF and not value.is_stored:
                return _converted(body, _widened(body, value), FLOAT, target)
            return body.emit(op.F_CONVERT, type_, number)
        if target.bits < 32:
            whole = _converted(body, value, source, types.integer(32, is_signed=target.kind == "i"))
            return _converted(body, whole, types.integer(32, is_signed=target.kind == "i"), target)
        return body.emit(op.CONVERT_F_TO_S if target.kind == "i" else op.CONVERT_F_TO_U, type_, number)
    if target.kind == "f":
        return body.emit(op.CONVERT_S_TO_F if source.kind == "i" else op.CONVERT_U_TO_F, type_, number)
    if source.bits == target.bits:
        return derived(body.emit(op.BITCAST, type_, number), value)
    # The sign of what is extended decides how.
    between = types.integer(target.bits, is_signed=source.kind == "i")
    opcode = op.S_CONVERT if source.kind == "i" else op.U_CONVERT
    made = derived(body.emit(opcode, types.like(value.type, between), number), value)
    return made if between is target else derived(body.emit(op.BITCAST, type_, made.number), made)


def _widened(body: Body, value: Value) -> Value:
    """A half as a float, made of its bits.

    NVIDIA's compiler (580) leaves out a conversion to half and the one back, whatever modes and decorations
    say of rounding, and sees through casts, masks and shared memory between them, but not through these
    integers. An H200 does 1.7 million million of these a second, where both conversions would be 3.7.
    """
    if isinstance(value.type, Vector):
        parts = [_widened(body, body.extract(value, index, HALF)) for index in range(value.type.count)]
        return body.construct(types.like(value.type, FLOAT), parts)
    # In a pair, for not every device that has halfs has integers as wide.
    pair = body.construct(types.vector(HALF, 2), [value, Value(HALF, 0, 0.0)])
    bits = reinterpreted(body, pair, UINT)
    size = binary(body, "&", bits, constant(UINT, 0x7FFF))
    at_place = binary(body, "<<", size, constant(INT, 23 - 10))
    normal = binary(body, "+", at_place, constant(UINT, (127 - 15) << 23))
    unit = Value(FLOAT, 0, 2.0**-24)
    subnormal = reinterpreted(body, binary(body, "*", convert(body, size, FLOAT), unit), UINT)
    special = binary(body, "|", at_place, constant(UINT, 0x7F800000))
    made = select(body, binary(body, "<", size, constant(UINT, 0x400)), subnormal, normal)
    made = select(body, binary(body, "<", size, constant(UINT, 0x7C00)), made, special)
    sign = binary(body, "<<", binary(body, "&", bits, constant(UINT, 0x8000)), constant(INT, 16))
    return reinterpreted(body, binary(body, "|", made, sign), FLOAT)


def binary(body: Body, operation: str, left: Value, right: Value) -> Value:
    """An operation of two values, brought to one type."""
    type_: Type
    if left.type is right.type and left.type in _NUMBERS:  # as most are
        if left.constant is not None and right.constant is not None and left.type is INT:
            # Loops that are unrolled, sizes of tiles.
            number = known(operation, left.constant, right.constant, INT)
            if number is not None:
                if operation in _COMPARISONS:
                    return Value(BOOL, 0, bool(number))
                return Value(INT, 0, number if -0x80000000 <= number < 0x80000000 else wrapped(number, INT))
        type_, a, b = left.type, left, right
    elif isinstance(left.type, Fragment):
        return _of_fragments(body, operation, left, right)
    elif operation in _SHIFTS:
        shifted = types.element_of(left.type)
        assert shifted is not None
        type_ = common(left.type, types.like(left.type, shifted))
        a = convert(body, left, type_)
        b = convert(body, right, type_ if isinstance(type_, Vector) else types.element_of(right.type) or INT)
    elif operation in ("==", "!=", "&", "|", "^") and left.type is BOOL and right.type is BOOL:
        type_, a, b = BOOL, left, right
    else:
        type_ = common(left.type, right.type)
        a, b = convert(body, left, type_), convert(body, right, type_)
    element = types.element_of(type_)
    assert element is not None
    result = types.like(type_, BOOL) if operation in _COMPARISONS else type_
    if a.constant is not None or b.constant is not None:
        if a.constant is not None and b.constant is not None and isinstance(result, Scalar):
            found = known(operation, a.constant, b.constant, element)
            if found is not None:
                return Value(BOOL, 0, bool(found)) if result is BOOL else constant(result, found)
        found_same = _unchanged(operation, a, b, element)
        if found_same is not None:
            return found_same
    if operation == "%" and element.kind == "i":
        # Vulkan leaves OpSRem and OpSMod undefined where an operand is negative, but not the division.
        quotient = binary(body, "/", a, b)
        return binary(body, "-", a, binary(body, "*", quotient, b))
    if operation in ("+", "-") and element is UINT64:
        return _in_words(body, operation, a, b)
    opcode = _OPCODES[operation].get(element.kind)
    if opcode is None:
        raise Unsupported(f"{operation} of {element.name}")
    return derived(body.emit(opcode, result, body.number(a), body.number(b)), a, b)


def _in_words(body: Body, operation: str, a: Value, b: Value) -> Value:
    """A sum or a difference of 64 bits without a sign, made of its words.

    Of what looks like a sum or a difference that saturates (a > b ? a - b : 0, a - min(a, b), a + min(b, ~a))
    NVIDIA's compiler (580) makes one, whose upper word is wrong in kernels that also divide 64-bit numbers.
    """
    if isinstance(a.type, Vector):
        pairs = ([body.extract(each, index, UINT64) for each in (a, b)] for index in range(a.type.count))
        return body.construct(a.type, [_in_words(body, operation, *pair) for pair in pairs])
    words = [reinterpreted(body, each, types.vector(UINT, 2)) for each in (a, b)]
    (low, high), (other_low, other_high) = ([body.extract(w, at, UINT) for at in (0, 1)] for w in words)
    made = binary(body, operation, low, other_low)
    carries = binary(body, "<", made, low) if operation == "+" else binary(body, "<", low, other_low)
    above = binary(body, operation, binary(body, operation, high, other_high), convert(body, carries, UINT))
    return reinterpreted(body, body.construct(types.vector(UINT, 2), [made, above]), UINT64)


def _unchanged(operation: str, a: Value, b: Value, element: Scalar) -> Value | None:
    """The operand that an operation of integers with 0 or 1 leaves as it is."""
    if element.kind not in "iu":
        return None
    if operation in ("+", "-", "<<", ">>", "|", "^") and b.constant == 0:
        return a
    if operation in ("*", "/") and b.constant == 1:
        return a
    if operation in ("+", "|", "^") and a.constant == 0:
        return b
    if operation == "*" and a.constant == 1:
        return b
    return None


def _of_fragments(body: Body, operation: str, left: Value, right: Value) -> Value:
    if operation == "*" and isinstance(left.type, Fragment) and isinstance(right.type, Scalar):
        number = body.number(convert(body, right, left.type.element))
        return body.emit(op.MATRIX_TIMES_SCALAR, left.type, body.number(left), number)
    if operation not in "+-*/" or left.type is not right.type:
        raise Unsupported(f"{operation} of matrices of different kinds")
    return body.emit(_OPCODES[operation]["f"], left.type, body.number(left), body.number(right))


def unary(body: Body, operation: str, value: Value) -> Value:
    element = types.element_of(value.type)
    if element is None:
        raise Unsupported(f"{operation} of {value.type}")
    if operation == "!":
        value = convert(body, value, types.like(value.type, BOOL))
        if value.constant is not None:
            return Value(BOOL, 0, not value.constant)
        return body.emit(op.LOGICAL_NOT, value.type, body.number(value))
    if element.kind == "b" or (element.kind in "iu" and element.bits < 32):
        element = INT
        value = convert(body, value, types.like(value.type, INT))
    if operation == "-":
        if value.constant is not None:
            return constant(value.type, -value.constant)
        return body.emit(op.F_NEGATE if element.kind == "f" else op.S_NEGATE, value.type, body.number(value))
    if element.kind == "f":
        raise Unsupported("~ of a floating-point number")
    if value.constant is not None:
        return constant(value.type, ~int(value.constant))
    return body.emit(op.NOT, value.type, body.number(value))


def select(body: Body, condition: Value, yes: Value, no: Value) -> Value:
    """One of two values, both of which there are."""
    if yes.type is not no.type:
        type_ = common(yes.type, no.type)
        yes, no = convert(body, yes, type_), convert(body, no, type_)
    if condition.constant is not None:
        return yes if condition.constant else no
    return derived(body.emit(op.SELECT, yes.type, *map(body.number, (condition, yes, no))), yes, no)


def reinterpreted(body: Body, value: Value, target: Type) -> Value:
    """The same bits as another type."""
    if value.type is target:
        return value
    if value.constant is not None and isinstance(target, Scalar) and isinstance(value.type, Scalar):
        found = _known_bits(value.constant, value.type, target)
        if found is not None:
            return found
    return derived(body.emit(op.BITCAST, target, body.number(value)), value)


def _known_bits(value: int | float | bool, source: Scalar, target: Scalar) -> Value | None:
    if source.kind in "iu" and target.kind in "iu":
        return constant(target, int(value))
    forms = {16: ("<H", "<e"), 32: ("<I", "<f"), 64: ("<Q", "<d")}
    whole, real = forms[source.bits]
    if source.kind == "f":
        return constant(target, int(struct.unpack(whole, struct.pack(real, value))[0]))
    bits = int(value) & ((1 << source.bits) - 1)
    number = float(struct.unpack(real, struct.pack(whole, bits))[0])
    # What a NaN has besides being one is lost on the way through Python's numbers, perhaps.
    if struct.unpack(whole, struct.pack(real, number))[0] != bits:
        return None
    return Value(target, 0, number)
