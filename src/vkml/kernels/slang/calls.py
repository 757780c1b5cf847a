"""Calls: of the source's functions, in place or for themselves, and of those that the language has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vkml.kernels.slang import intrinsics, syntax, types
from vkml.kernels.slang import opcodes as op
from vkml.kernels.slang.arithmetic import convert
from vkml.kernels.slang.body import Place, Value
from vkml.kernels.slang.errors import Unsupported
from vkml.kernels.slang.types import Array, Fragment, Record, Scalar, Type

if TYPE_CHECKING:
    from vkml.kernels.slang.emitter import Emitter, Operand

_COMPOSITE = (Array, Record, Fragment)


def call(emitter: Emitter, expression: syntax.Call) -> Value | None:
    """A call's value, None of a function without one."""
    if expression.base is not None:
        return _method(emitter, expression)
    known = emitter.compilation.program.functions.get(expression.name)
    if known is None:
        phase = emitter.compilation.phase(expression.name, len(expression.arguments) > 2)
        if phase is None:
            return intrinsics.call(emitter, expression)
        values = [
            emitter.converted(*each) for each in zip(expression.arguments, phase.parameters, strict=True)
        ]
        emitter.body.emit(op.FUNCTION_CALL, types.VOID, phase.number, *map(emitter.body.number, values))
        return None
    operands = [emitter.operand(argument) for argument in expression.arguments]
    function, generics = chosen(emitter, known, operands)
    if _is_for_its_place(emitter, function, operands, generics):
        return _in_place(emitter, function, operands, generics, None)
    return _called(emitter, function, operands, generics)


# --- which function


def chosen(
    emitter: Emitter, functions: Sequence[syntax.Function], operands: Sequence[Operand]
) -> tuple[syntax.Function, dict[str, Type]]:
    """The function of a name that fits the operands best, and what its type parameters are."""
    best: tuple[int, syntax.Function, dict[str, Type]] | None = None
    for function in functions:
        if len(function.parameters) != len(operands):
            continue
        found = _fit(emitter, function, operands)
        if found is not None and (best is None or found[0] < best[0]):
            best = found[0], function, found[1]
    if best is None:
        kinds = ", ".join(str(getattr(operand.type, "name", operand.type)) for operand in operands)
        raise Unsupported(f"no {functions[0].name} of ({kinds})")
    return best[1], best[2]


def _fit(
    emitter: Emitter, function: syntax.Function, operands: Sequence[Operand]
) -> tuple[int, dict[str, Type]] | None:
    """How far a function is from the operands' types, and its type parameters; None where it does not fit."""
    generics: dict[str, Type] = {}
    bounds = dict(function.generics)
    cost = 1 if bounds else 0
    for parameter, operand in zip(function.parameters, operands, strict=True):
        given = operand.type
        name = parameter.type.name
        if name in bounds and not parameter.type.pointers:
            if generics.setdefault(name, given) is not given or not _conforms(given, bounds[name], emitter):
                return None
            continue
        if bounds and parameter.type.arguments:
            raise Unsupported("a vector of a type parameter")
        wanted = emitter.sized(emitter.type(parameter.type), parameter.sizes)
        if wanted is given:
            continue
        a, b = types.element_of(wanted), types.element_of(given)
        if a is None or b is None or parameter.mode != "in":
            return None
        # Numbers that are known and numbers of one kind convert before others.
        cost += 2 if isinstance(operand, Value) and operand.constant is not None else 4
        cost += 8 if (a.kind == "f") != (b.kind == "f") else 0
    return cost, generics


def _conforms(type_: Type, bound: str, emitter: Emitter) -> bool:
    if bound == "__BuiltinIntegerType":
        return isinstance(type_, Scalar) and type_.kind in "iu"
    if bound == "__BuiltinArithmeticType":
        return isinstance(type_, Scalar) and type_.kind in "iuf"
    # An interface: what a struct lacks of it is missed where it is used.
    return isinstance(type_, Record)


# --- in place


def _is_for_its_place(
    emitter: Emitter, function: syntax.Function, operands: Sequence[Operand], generics: dict[str, Type]
) -> bool:
    """Whether a function is expanded where it is called: those that are told to, short ones, and those that
    take more than single numbers, which SPIR-V would have copied."""
    statements = function.body.statements
    is_short = len(statements) == 1 and isinstance(statements[0], syntax.Return)
    is_large = any(
        isinstance(operand.type, _COMPOSITE) or parameter.mode != "in"
        for operand, parameter in zip(operands, function.parameters, strict=True)
    )
    if "ForceInline" not in function.attributes and not is_short and not is_large:
        return False
    known = {
        parameter.name: operand
        for parameter, operand in zip(function.parameters, operands, strict=True)
        if isinstance(operand, Value) and operand.constant is not None
    }
    return _ends_once(emitter, statements, dict(known))


def _ends_once(emitter: Emitter, statements: Sequence[syntax.Statement], known: dict[str, Operand]) -> bool:
    """Whether a return is the last thing that happens, and in no branch that is not known."""
    for statement in statements:
        if not _has_return(statement):
            continue
        if isinstance(statement, syntax.Return):
            return True
        if isinstance(statement, syntax.If):
            condition = emitter.compilation.probe(emitter, statement.condition, known)
            if condition is None:
                return False
            taken = statement.yes if condition else statement.no
            if taken is None or not _has_return(taken):
                continue
            inner = taken.statements if isinstance(taken, syntax.Block) else (taken,)
            return _ends_once(emitter, inner, known)
        return False
    return True


def _has_return(statement: syntax.Statement | None) -> bool:
    if isinstance(statement, syntax.Block):
        return any(map(_has_return, statement.statements))
    if isinstance(statement, syntax.If):
        return _has_return(statement.yes) or _has_return(statement.no)
    if isinstance(statement, syntax.For):
        return _has_return(statement.body)
    return isinstance(statement, syntax.Return)


def _in_place(
    emitter: Emitter,
    function: syntax.Function,
    operands: Sequence[Operand],
    generics: dict[str, Type],
    receiver: Operand | None,
) -> Value | None:
    """Expands a function where it is called."""
    body = emitter.body
    changed = emitter.compilation.assigned(function)
    outside = emitter.scopes, emitter.assigned, emitter.generics, emitter.result
    written = {operand.root for operand, parameter in zip(operands, function.parameters, strict=True)
               if isinstance(operand, Place) and parameter.mode != "in"}  # fmt: skip
    if isinstance(receiver, Place):
        written.add(receiver.root)
    scope: dict[str, Operand] = {}
    later: list[tuple[str, Value]] = []
    for parameter, operand in zip(function.parameters, operands, strict=True):
        if parameter.mode != "in":
            if not isinstance(operand, Place):
                raise Unsupported(f"{function.name} writes to what is no variable")
            scope[parameter.name] = operand
            continue
        is_shared = isinstance(operand, Place) and operand.storage == op.FUNCTION_STORAGE
        is_large = isinstance(operand.type, _COMPOSITE)
        if is_shared and is_large and parameter.name not in changed and _root(operand) not in written:
            scope[parameter.name] = operand
            continue
        value = body.load(operand) if isinstance(operand, Place) else operand
        emitter.generics = generics
        wanted = emitter.sized(emitter.type(parameter.type), parameter.sizes)
        emitter.generics = outside[2]
        later.append((parameter.name, convert(body, value, wanted)))
    emitter.scopes = [*([_fields(emitter, receiver)] if receiver is not None else []), scope]
    emitter.assigned, emitter.generics = changed, generics
    emitter.result = emitter.type(function.result)
    for name, value in later:
        emitter.bind(name, value)
    result = _run(emitter, function.body.statements)
    if result is not None:
        result = convert(body, result, emitter.result)
    emitter.scopes, emitter.assigned, emitter.generics, emitter.result = outside
    return result


def _root(operand: Operand) -> int:
    return operand.root if isinstance(operand, Place) else 0


def _run(emitter: Emitter, statements: Sequence[syntax.Statement]) -> Value | None:
    """Statements up to a return that is known to be reached; its value."""
    for statement in statements:
        if not _has_return(statement):
            emitter.run(statement)
        elif isinstance(statement, syntax.Return):
            return None if statement.value is None else emitter.value(statement.value)
        else:
            assert isinstance(statement, syntax.If)
            condition = emitter.value(statement.condition).constant
            taken = statement.yes if condition else statement.no
            if taken is None:
                continue
            inner = taken.statements if isinstance(taken, syntax.Block) else (taken,)
            if _has_return(taken):
                return _run(emitter, inner)
            emitter.run(taken)
    return None


def _fields(emitter: Emitter, receiver: Operand) -> dict[str, Operand]:
    """What a method's names for its struct's fields stand for."""
    type_, body = receiver.type, emitter.body
    assert isinstance(type_, Record)
    found: dict[str, Operand] = {}
    for index, (name, member) in enumerate(type_.fields.items()):
        if isinstance(receiver, Place):
            found[name] = body.at(receiver, index, member)
        else:
            found[name] = body.extract(receiver, index, member)
    return found


def _method(emitter: Emitter, expression: syntax.Call) -> Value | None:
    base = expression.base
    assert base is not None
    if isinstance(base, syntax.TypeOperand):
        return intrinsics.of_type(emitter, emitter.type(base.type), expression)
    receiver = emitter.operand(base)
    if isinstance(receiver.type, Fragment):
        return intrinsics.of_fragment(emitter, receiver, expression)
    if not isinstance(receiver.type, Record):
        raise Unsupported(f"a method of {receiver.type}")
    struct = emitter.compilation.program.structs[receiver.type.name]
    methods = [method for method in struct.methods if method.name == expression.name]
    if not methods:
        raise Unsupported(f"{struct.name} has no {expression.name}")
    operands = [emitter.operand(argument) for argument in expression.arguments]
    method, generics = chosen(emitter, methods, operands)
    if not _ends_once(emitter, method.body.statements, {}):
        raise Unsupported(f"{struct.name}.{method.name} returns early")
    return _in_place(emitter, method, operands, generics, receiver)


# --- for themselves


def _called(
    emitter: Emitter, function: syntax.Function, operands: Sequence[Operand], generics: dict[str, Type]
) -> Value | None:
    """A call of a function that the module has."""
    body = emitter.body
    made = emitter.compilation.instance(function, generics, emitter)
    numbers: list[int] = []
    after: list[tuple[Place, Place]] = []
    for parameter, operand, type_ in zip(function.parameters, operands, made.parameters, strict=True):
        value = body.load(operand) if isinstance(operand, Place) and parameter.mode != "out" else operand
        if parameter.mode == "in":
            assert isinstance(value, Value)
            numbers.append(body.number(convert(body, value, type_)))
            continue
        if not isinstance(operand, Place):
            raise Unsupported(f"{function.name} writes to what is no variable")
        between = body.variable(type_)
        if isinstance(value, Value):
            body.store(between, value)
        numbers.append(between.root)
        after.append((operand, between))
    result = body.emit(op.FUNCTION_CALL, made.result, made.number, *numbers)
    for target, between in after:
        body.forget(between)
        body.store(target, convert(body, body.load(between), target.type))
    return None if made.result is types.VOID else result
