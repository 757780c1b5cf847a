"""Functions that the language has."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from vkml.kernels.slang import arithmetic, syntax, types
from vkml.kernels.slang import opcodes as op
from vkml.kernels.slang.arithmetic import convert, reinterpreted
from vkml.kernels.slang.body import Place, Value
from vkml.kernels.slang.errors import Unsupported
from vkml.kernels.slang.types import BOOL, DOUBLE, FLOAT, INT, UINT, Fragment, Pointer, Scalar, Type

if TYPE_CHECKING:
    from vkml.kernels.slang.emitter import Emitter, Operand

OUTPUTS = {
    "asuint": (1, 2),
    **{f"Interlocked{name}": (0, 2) for name in ("Add", "And", "Or", "Xor", "Min", "Max", "Exchange")},
    "__atomic_add": (0,),
}
"""Places of arguments that functions write to."""

_ELEMENTWISE = {
    "fma": "fma", "exp2": "exp2", "log2": "log2", "sqrt": "sqrt", "rsqrt": "rsqrt", "floor": "floor",
    "ceil": "ceil", "trunc": "trunc", "rint": "rint", "round": "rint", "sin": "sin", "cos": "cos",
    "tan": "tan", "exp": "exp", "log": "log", "pow": "pow",
}  # fmt: skip
_BY_KIND = {
    "min": {"f": "fmin", "i": "smin", "u": "umin"},
    "max": {"f": "fmax", "i": "smax", "u": "umax"},
    "clamp": {"f": "fclamp", "i": "sclamp", "u": "uclamp"},
    "abs": {"f": "fabs", "i": "sabs"},
}
LIGHT = frozenset(("asuint", "asint", "asfloat", "bit_cast", "min", "max", "clamp", "abs", "fma", "select"))
"""Those that cost next to nothing."""

_ATOMICS = {
    "Add": (op.ATOMIC_I_ADD,) * 2, "And": (op.ATOMIC_AND,) * 2, "Or": (op.ATOMIC_OR,) * 2,
    "Xor": (op.ATOMIC_XOR,) * 2, "Exchange": (op.ATOMIC_EXCHANGE,) * 2,
    "Min": (op.ATOMIC_S_MIN, op.ATOMIC_U_MIN), "Max": (op.ATOMIC_S_MAX, op.ATOMIC_U_MAX),
}  # fmt: skip
_OF_SUBGROUPS = {
    "WaveActiveMax": {"f": op.GROUP_F_MAX, "i": op.GROUP_S_MAX, "u": op.GROUP_U_MAX},
    "WaveActiveMin": {"f": op.GROUP_F_MIN, "i": op.GROUP_S_MIN, "u": op.GROUP_U_MIN},
    "WaveActiveSum": {"f": op.GROUP_F_ADD, "i": op.GROUP_I_ADD, "u": op.GROUP_I_ADD},
}
_LAYOUTS = {"RowMajor": 0, "ColumnMajor": 1}
_FRAGMENT_ALIGNMENT = 16
"""Bytes: kernels see to it."""
_SUBGROUP_ID, _LANE = 40, 41
_ALL_MEMORY = op.ACQUIRE_RELEASE | op.WORKGROUP_SEMANTICS | op.DEVICE_SEMANTICS


def call(emitter: Emitter, expression: syntax.Call) -> Value | None:
    """A call of a function of the language.

    Raises:
        Unsupported: there is none of this name, or not for such operands.
    """
    name = expression.name
    if name.startswith("Interlocked"):
        _interlocked(emitter, expression)
        return None
    special = _SPECIAL.get(name)
    if special is not None:
        return special(emitter, expression)
    values = [emitter.value(argument) for argument in expression.arguments]
    body = emitter.body
    if name in _ELEMENTWISE or name in _BY_KIND:
        type_ = values[0].type
        for value in values[1:]:
            type_ = arithmetic.common(type_, value.type)
        element = types.element_of(type_)
        if element is None:
            raise Unsupported(f"{name} of {type_}")
        if name in _ELEMENTWISE:
            if element.kind != "f":
                type_, element = types.like(type_, FLOAT), FLOAT
            function = _ELEMENTWISE[name]
        else:
            if element.kind == "u" and name == "abs":
                return values[0]
            function = _BY_KIND[name].get(element.kind, "")
            if not function:
                raise Unsupported(f"{name} of {element.name}")
            found = _known(name, values, element)
            if found is not None:
                return found
        return body.function(function, type_, *(convert(body, value, type_) for value in values))
    simple = _SIMPLE.get(name)
    if simple is None:
        raise Unsupported(f"the function {name}")
    return simple(emitter, *values)


def _known(name: str, values: list[Value], element: Scalar) -> Value | None:
    """Of integers that are known."""
    numbers = [value.constant for value in values]
    if element.kind == "f" or any(number is None for number in numbers):
        return None
    whole = [int(number) for number in numbers if number is not None]
    if name == "clamp":
        return arithmetic.constant(element, min(max(whole[0], whole[1]), whole[2]))
    if name == "abs":
        return arithmetic.constant(element, abs(whole[0]))
    return arithmetic.constant(element, min(whole) if name == "min" else max(whole))


def _bits(kind: str) -> Callable[[Emitter, Value], Value]:
    def reinterpret(emitter: Emitter, value: Value) -> Value:
        element = types.element_of(value.type)
        if element is None or element.kind == "b":
            raise Unsupported("the bits of what is no number")
        if kind == "f":
            target = {16: types.HALF, 32: FLOAT, 64: DOUBLE}[element.bits]
        else:
            target = types.integer(element.bits, is_signed=kind == "i")
        return reinterpreted(emitter.body, value, types.like(value.type, target))

    return reinterpret


def _bits_of(emitter: Emitter, expression: syntax.Call) -> Value | None:
    """``asuint(x)``, and ``asuint(double, low, high)``."""
    value = emitter.value(expression.arguments[0])
    if len(expression.arguments) == 1:
        return _bits("u")(emitter, value)
    body = emitter.body
    pair = body.emit(op.BITCAST, types.vector(UINT, 2), body.number(convert(body, value, DOUBLE)))
    for index, argument in enumerate(expression.arguments[1:]):
        place = emitter.operand(argument)
        if not isinstance(place, Place):
            raise Unsupported("asuint to what is no variable")
        body.store(place, body.extract(pair, index, UINT))
    return None


def _double(emitter: Emitter, low: Value, high: Value) -> Value:
    body = emitter.body
    pair = body.construct(types.vector(UINT, 2), [convert(body, word, UINT) for word in (low, high)])
    return body.emit(op.BITCAST, DOUBLE, pair.number)


def _select(emitter: Emitter, condition: Value, yes: Value, no: Value) -> Value:
    return arithmetic.select(emitter.body, convert(emitter.body, condition, BOOL), yes, no)


def _logical(operation: str) -> Callable[[Emitter, Value, Value], Value]:
    def of_bools(emitter: Emitter, left: Value, right: Value) -> Value:
        a, b = (convert(emitter.body, value, BOOL) for value in (left, right))
        return arithmetic.binary(emitter.body, operation, a, b)

    return of_bools


def _find(name: str) -> Callable[[Emitter, Value], Value]:
    def find(emitter: Emitter, value: Value) -> Value:
        return emitter.body.function(name, value.type, value)

    return find


def _count_bits(emitter: Emitter, value: Value) -> Value:
    return emitter.body.emit(op.BIT_COUNT, value.type, emitter.body.number(value))


def _bit_cast(emitter: Emitter, expression: syntax.Call) -> Value:
    return reinterpreted(
        emitter.body, emitter.value(expression.arguments[0]), _generic_type(emitter, expression)
    )


def _generic_type(emitter: Emitter, expression: syntax.Call) -> Type:
    argument = expression.generics[0] if expression.generics else None
    if not isinstance(argument, syntax.TypeOperand):
        raise Unsupported(f"{expression.name} without a type")
    return emitter.type(argument.type)


_DOTS = {
    "dot4add_i8packed": (op.S_DOT, INT),
    "dot4add_u8packed": (op.U_DOT, UINT),
    "dot4add_i8u8packed": (op.SU_DOT, INT),
}
"""The last, which Slang lacks, takes signed bytes first."""


def _dot(name: str) -> Callable[[Emitter, Value, Value, Value], Value]:
    """The products of two words' four bytes, added to a sum that wraps."""

    def add(emitter: Emitter, left: Value, right: Value, total: Value) -> Value:
        body = emitter.body
        code, type_ = _DOTS[name]
        body.module.dot_products()
        words = [body.number(convert(body, word, UINT)) for word in (left, right)]
        products = body.emit(code, type_, *words, op.PACKED_BYTES)
        return arithmetic.binary(body, "+", products, convert(body, total, type_))

    return add


# --- memory


def _aligned(emitter: Emitter, expression: syntax.Call, *, is_coherent: bool = False) -> Place:
    """What the first argument of loadAligned or storeAligned points to."""
    pointer = emitter.value(expression.arguments[0])
    if not isinstance(pointer.type, Pointer):
        raise Unsupported(f"{expression.name} of what is no pointer")
    number = emitter.body.number(pointer)
    alignment = emitter.fixed(expression.generics[0])
    return Place(op.DEVICE_MEMORY, number, pointer.type.element, (), alignment, is_coherent=is_coherent)


def _load(emitter: Emitter, expression: syntax.Call) -> Value:
    return emitter.body.load(_aligned(emitter, expression))


def _store(emitter: Emitter, expression: syntax.Call) -> None:
    place = _aligned(emitter, expression)
    value = emitter.value(expression.arguments[1])
    emitter.body.store(place, convert(emitter.body, value, place.type))


def _coherent(emitter: Emitter, expression: syntax.Call) -> Place:
    """As `_aligned`, of what invocations of other workgroups write or read."""
    scope = expression.generics[1] if len(expression.generics) > 1 else None
    if not _is_named(scope, "Device"):
        raise Unsupported(f"{expression.name} for another scope than the device")
    return _aligned(emitter, expression, is_coherent=True)


def _is_named(operand: object, name: str) -> bool:
    """Whether an operand is this name of an enumeration."""
    return isinstance(operand, syntax.Member) and operand.name == name


def _load_coherent(emitter: Emitter, expression: syntax.Call) -> Value:
    return emitter.body.load(_coherent(emitter, expression))


def _store_coherent(emitter: Emitter, expression: syntax.Call) -> None:
    place = _coherent(emitter, expression)
    value = emitter.value(expression.arguments[1])
    emitter.body.store(place, convert(emitter.body, value, place.type))


def _atomic_add(emitter: Emitter, expression: syntax.Call) -> Value:
    """``__atomic_add(place, value, MemoryOrder.AcquireRelease)``: what was there before.

    What the invocation has written to memory of the device, or has seen written, is so before this for
    whoever meets the sum.
    """
    order = expression.arguments[2] if len(expression.arguments) > 2 else None
    if not _is_named(order, "AcquireRelease"):
        raise Unsupported(f"{expression.name} of another order than AcquireRelease")
    return _atomic(emitter, expression, "Add", op.ACQUIRE_RELEASE | op.DEVICE_SEMANTICS)


def _atomic(emitter: Emitter, expression: syntax.Call, name: str, semantics: int) -> Value:
    codes = _ATOMICS.get(name)
    place = emitter.operand(expression.arguments[0])
    element = place.type
    if (
        codes is None
        or not isinstance(place, Place)
        or not isinstance(element, Scalar)
        or element.kind == "f"
    ):
        raise Unsupported(f"{expression.name} of {element}")
    body, module = emitter.body, emitter.body.module
    value = convert(body, emitter.value(expression.arguments[1]), element)
    if element.bits == 64:
        raise Unsupported("an atomic operation of 64 bits")
    if body.has_twins:
        raise Unsupported("an atomic operation where not all invocations write")
    scope, ordered = module.constant(UINT, op.SCOPE_DEVICE), module.constant(UINT, semantics)
    numbers = body.pointer(place), scope, ordered, body.number(value)
    return body.emit(codes[element.kind == "u"], element, *numbers)


def _interlocked(emitter: Emitter, expression: syntax.Call) -> None:
    """``InterlockedAdd(place, value, before)`` and its like, which order nothing else."""
    before = _atomic(emitter, expression, expression.name.removeprefix("Interlocked"), 0)
    body = emitter.body
    if len(expression.arguments) > 2:
        target = emitter.operand(expression.arguments[2])
        if not isinstance(target, Place):
            raise Unsupported(f"{expression.name} to what is no variable")
        body.store(target, convert(body, before, target.type))


def _barrier(waiting: int, memory: int, semantics: int) -> Callable[[Emitter, syntax.Call], None]:
    """A barrier of the invocations of a scope, to writes that reach another."""

    def wait(emitter: Emitter, expression: syntax.Call) -> None:
        module = emitter.body.module
        made = semantics | (op.MADE_AVAILABLE_AND_VISIBLE if module.shares_workgroup_memory else 0)
        numbers = [module.constant(UINT, number) for number in (waiting, memory, made)]
        emitter.body.act(op.CONTROL_BARRIER, *numbers)

    return wait


# --- subgroups


def _input(built_in: int) -> Callable[[Emitter, syntax.Call], Value]:
    def read(emitter: Emitter, expression: syntax.Call) -> Value:
        module = emitter.body.module
        module.capability(op.GROUP_NON_UNIFORM)
        return emitter.body.load(Place(op.INPUT, module.built_in(built_in, UINT), UINT))

    return read


def _over_subgroup(name: str) -> Callable[[Emitter, Value], Value]:
    def reduce(emitter: Emitter, value: Value) -> Value:
        module = emitter.body.module
        module.capability(op.GROUP_ARITHMETIC)
        element = types.element_of(value.type)
        if element is None or element.kind not in "fiu":
            raise Unsupported(f"{name} of {value.type}")
        scope = module.constant(UINT, op.SCOPE_SUBGROUP)
        code = _OF_SUBGROUPS[name][element.kind]
        return emitter.body.emit(code, value.type, scope, 0, emitter.body.number(value))

    return reduce


def _any(emitter: Emitter, value: Value) -> Value:
    body = emitter.body
    body.module.capability(op.GROUP_VOTE)
    scope = body.module.constant(UINT, op.SCOPE_SUBGROUP)
    return body.emit(op.GROUP_ANY, BOOL, scope, body.number(convert(body, value, BOOL)))


def _is_first(emitter: Emitter) -> Value:
    body = emitter.body
    body.module.capability(op.GROUP_NON_UNIFORM)
    return body.emit(op.GROUP_ELECT, BOOL, body.module.constant(UINT, op.SCOPE_SUBGROUP))


def _of_lane(emitter: Emitter, value: Value, lane: Value) -> Value:
    body = emitter.body
    body.module.capability(op.GROUP_SHUFFLES)
    scope = body.module.constant(UINT, op.SCOPE_SUBGROUP)
    number = body.number(convert(body, lane, UINT))
    return body.emit(op.GROUP_SHUFFLE, value.type, scope, body.number(value), number)


# --- matrices


def of_type(emitter: Emitter, type_: Type, expression: syntax.Call) -> Value:
    """``Matrix.Load<layout>(array or pointer, element, stride)``, or ``LoadCoherent`` with a scope"""
    if isinstance(type_, Fragment) and expression.name == "GetLength":
        return _length(emitter, type_)
    if not isinstance(type_, Fragment) or expression.name not in ("Load", "LoadCoherent"):
        raise Unsupported(f"{expression.name} of a type")
    pointer, stride, storage = _in_memory(emitter, expression)
    layout = emitter.body.module.constant(UINT, _layout(expression))
    memory = _memory_operands(emitter, expression, storage, op.MAKE_VISIBLE)
    return emitter.body.emit(op.MATRIX_LOAD, type_, pointer, layout, stride, *memory)


def _length(emitter: Emitter, type_: Type) -> Value:
    """How many elements of a fragment an invocation holds."""
    return emitter.body.emit(op.MATRIX_LENGTH, UINT, emitter.body.module.type(type_))


def of_fragment(emitter: Emitter, matrix: Operand, expression: syntax.Call) -> Value | None:
    """``matrix.Store<layout>(array or pointer, element, stride)``, ``StoreCoherent`` with a scope, too,
    and ``matrix.GetLength()``"""
    if expression.name == "GetLength":
        return _length(emitter, matrix.type)
    if expression.name not in ("Store", "StoreCoherent"):
        raise Unsupported(f"{expression.name} of a matrix")
    body = emitter.body
    value = body.load(matrix) if isinstance(matrix, Place) else matrix
    pointer, stride, storage = _in_memory(emitter, expression)
    layout = body.module.constant(UINT, _layout(expression))
    memory = _memory_operands(emitter, expression, storage, op.MAKE_AVAILABLE)
    body.act(op.MATRIX_STORE, pointer, body.number(value), layout, stride, *memory)
    return None


def _layout(expression: syntax.Call) -> int:
    layout = expression.generics[0] if expression.generics else None
    if not isinstance(layout, syntax.Member) or layout.name not in _LAYOUTS:
        raise Unsupported(f"{expression.name} without a layout")
    return _LAYOUTS[layout.name]


def _in_memory(emitter: Emitter, expression: syntax.Call) -> tuple[int, int, int]:
    """Numbers of the pointer to a fragment's first element and of its stride, and the storage class."""
    where, element, stride = expression.arguments[:3]
    base = emitter.operand(where)
    body = emitter.body
    if isinstance(base.type, Pointer):
        pointer = body.load(base) if isinstance(base, Place) else base
        first, storage = body.number(emitter.moved(pointer, emitter.value(element))), op.DEVICE_MEMORY
    elif isinstance(base, Place) and isinstance(base.type, types.Array):
        first, storage = body.pointer(body.at(base, emitter.value(element), base.type.element)), base.storage
    else:
        raise Unsupported("a matrix that is neither in a shared array nor behind a pointer")
    return first, body.number(convert(body, emitter.value(stride), INT)), storage


def _memory_operands(
    emitter: Emitter, expression: syntax.Call, storage: int, coherence: int
) -> tuple[int, ...]:
    """How memory is accessed; of a coherent function, for whom a load or store is `coherence`."""
    if not expression.name.endswith("Coherent"):
        is_seen = storage == op.WORKGROUP and emitter.body.module.shares_workgroup_memory
        seen = op.NON_PRIVATE if is_seen else 0
        return op.ALIGNED | seen, _FRAGMENT_ALIGNMENT
    if not _is_named(expression.arguments[3] if len(expression.arguments) > 3 else None, "Device"):
        raise Unsupported(f"{expression.name} for another scope than the device")
    device = emitter.body.module.constant(UINT, op.SCOPE_DEVICE)
    return op.ALIGNED | coherence | op.NON_PRIVATE, _FRAGMENT_ALIGNMENT, device


def _multiply_add(emitter: Emitter, expression: syntax.Call) -> Value:
    body = emitter.body
    left, right, sums = (emitter.value(argument) for argument in expression.arguments)
    # Matrices of integers have signs where they are multiplied, one bit for each and one for the result.
    kinds = [value.type for value in (left, right, sums, sums)]
    signs = sum(
        1 << at for at, type_ in enumerate(kinds) if isinstance(type_, Fragment) and type_.element.kind == "i"
    )
    operands = (signs,) if signs else ()
    return body.emit(op.MATRIX_MUL_ADD, sums.type, *map(body.number, (left, right, sums)), *operands)


_SPECIAL: dict[str, Callable[[Emitter, syntax.Call], Value | None]] = {
    "asuint": _bits_of,
    "bit_cast": _bit_cast,
    "loadAligned": _load,
    "storeAligned": _store,
    "loadCoherent": _load_coherent,
    "storeCoherent": _store_coherent,
    "__atomic_add": _atomic_add,
    "GroupMemoryBarrierWithGroupSync": _barrier(
        op.SCOPE_WORKGROUP, op.SCOPE_WORKGROUP, op.ACQUIRE_RELEASE | op.WORKGROUP_SEMANTICS
    ),
    "AllMemoryBarrierWithGroupSync": _barrier(op.SCOPE_WORKGROUP, op.SCOPE_DEVICE, _ALL_MEMORY),
    # What HLSL means by the one above between threads of a group; to reach all of a device costs more.
    "PhaseBarrier": _barrier(op.SCOPE_WORKGROUP, op.SCOPE_WORKGROUP, _ALL_MEMORY),
    "AllMemoryBarrierWithWaveSync": _barrier(op.SCOPE_SUBGROUP, op.SCOPE_SUBGROUP, _ALL_MEMORY),
    "WaveGetLaneIndex": _input(_LANE),
    "WaveGetWaveIndex": _input(_SUBGROUP_ID),
    "coopMatMulAdd": _multiply_add,
}
_SIMPLE: dict[str, Callable[..., Value]] = {
    "asint": _bits("i"),
    "asfloat": _bits("f"),
    "asuint16": _bits("u"),
    "asdouble": _double,
    "select": _select,
    "and": _logical("&"),
    "or": _logical("|"),
    "firstbitlow": _find("find_low"),
    "countbits": _count_bits,
    "WaveActiveAnyTrue": _any,
    "WaveIsFirstLane": _is_first,
    "WaveReadLaneAt": _of_lane,
    **{name: _dot(name) for name in _DOTS},
    **{name: _over_subgroup(name) for name in _OF_SUBGROUPS},
}
