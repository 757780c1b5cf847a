"""Expressions and statements of one function as instructions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from vkml.kernels.slang import arithmetic, calls, syntax, types
from vkml.kernels.slang import opcodes as op
from vkml.kernels.slang.arithmetic import convert
from vkml.kernels.slang.body import Body, Place, Value, derived
from vkml.kernels.slang.errors import Unsupported
from vkml.kernels.slang.types import BOOL, Array, Fragment, Pointer, Record, Scalar, Type, Vector

if TYPE_CHECKING:
    from vkml.kernels.slang.compilation import Compilation

Operand = Value | Place
_OF_ELEMENTS = Array, Vector, Fragment
_COMPONENTS = {"x": 0, "y": 1, "z": 2, "w": 3, "r": 0, "g": 1, "b": 2, "a": 3}


class Emitter:
    """Writes a function's body; functions that are expanded in place share the caller's.

    Attributes:
        body: where instructions go.
        scopes: what names stand for, innermost last.
        assigned: names of variables that change; what others are called is a value.
        generics: what type parameters stand for.
        result: type that the function returns.
    """

    def __init__(self, compilation: Compilation, body: Body) -> None:
        self.compilation = compilation
        self.body = body
        self.scopes: list[dict[str, Operand]] = [{}]
        self.assigned: frozenset[str] = frozenset()
        self.generics: Mapping[str, Type] = {}
        self.result: Type = types.VOID
        self._loops: list[tuple[int, int]] = []
        """Where continue and break lead."""

    def type(self, name: syntax.TypeName) -> Type:
        return self.compilation.type(name, self)

    # --- statements

    def run(self, statement: syntax.Statement) -> None:
        """Adds a statement; nothing where it cannot be reached."""
        if not self.body.block:
            return
        if isinstance(statement, syntax.Evaluate):
            self.evaluate(statement.expression)
        elif isinstance(statement, syntax.Declare):
            self.declare(statement)
        elif isinstance(statement, syntax.Block):
            if statement.is_scope:
                self.scopes.append({})
            for entry in statement.statements:
                self.run(entry)
            if statement.is_scope:
                self.scopes.pop()
        elif isinstance(statement, syntax.If):
            self._if(statement)
        elif isinstance(statement, syntax.For):
            self.scopes.append({})
            self._for(statement)
            self.scopes.pop()
        elif isinstance(statement, syntax.Return):
            value = None
            if statement.value is not None:
                value = convert(self.body, self.value(statement.value), self.result)
            self.body.leave(value)
        elif isinstance(statement, syntax.Continue | syntax.Break):
            if not self._loops:
                raise Unsupported("break or continue outside of a loop")
            proceed, end = self._loops[-1]
            self.body.branch(proceed if isinstance(statement, syntax.Continue) else end)
        else:
            raise Unsupported(f"the statement {type(statement).__name__}")

    def _inside(self, statement: syntax.Statement) -> None:
        if isinstance(statement, syntax.Block) and statement.is_scope:
            self.run(statement)
            return
        self.scopes.append({})
        self.run(statement)
        self.scopes.pop()

    def declare(self, declared: syntax.Declare) -> None:
        value = None if declared.value is None else declared.value
        if declared.type is None:
            assert value is not None
            self.bind(declared.name, self.value(value))
            return
        type_ = self.sized(self.type(declared.type), declared.sizes)
        given = None if value is None else self.converted(value, type_)
        if given is not None and declared.name not in self.assigned:
            self.scopes[-1][declared.name] = given
            return
        place = self.body.variable(type_)
        if given is not None:
            self.body.store(place, given)
        self.scopes[-1][declared.name] = place

    def bind(self, name: str, value: Value) -> None:
        """Gives a value a name, and a variable where it changes."""
        if name not in self.assigned:
            self.scopes[-1][name] = value
            return
        place = self.body.variable(value.type)
        self.body.store(place, value)
        self.scopes[-1][name] = place

    def sized(self, type_: Type, sizes: tuple[syntax.Expression, ...]) -> Type:
        """A type, or arrays of it."""
        for size in reversed(sizes):
            count = self.fixed(size)
            if count < 1:
                # A tile that does not come out even: drivers take it, loops over it do nothing.
                raise Unsupported(f"an array of {count} elements")
            type_ = types.array(type_, count)
        return type_

    def fixed(self, expression: syntax.Expression) -> int:
        """A number that is known when the kernel is compiled."""
        found = self.value(expression).constant
        if found is None:
            raise Unsupported("a size that is not known when a kernel is compiled")
        return int(found)

    def _if(self, statement: syntax.If) -> None:
        body = self.body
        condition = convert(body, self.value(statement.condition), BOOL)
        if condition.constant is not None:
            taken = statement.yes if condition.constant else statement.no
            if taken is not None:
                self._inside(taken)
            return
        new = body.module.new
        yes, merge = new(), new()
        no = merge if statement.no is None else new()
        body.select_branch(condition, yes, no, merge)
        is_reached = statement.no is None
        for label, part in ((yes, statement.yes), (no, statement.no)):
            if part is not None:
                body.open(label)
                self._inside(part)
                is_reached = is_reached or bool(body.block)
                body.branch(merge)
        body.open(merge)
        if not is_reached:
            body.unreachable()

    def _for(self, loop: syntax.For) -> None:
        if loop.is_unrolled and self._unrolled(loop):
            return
        body = self.body
        if loop.first is not None:
            self.run(loop.first)
        new = body.module.new
        header, test, inside, proceed, merge = new(), new(), new(), new(), new()
        body.branch(header)
        body.open(header)
        body.loop(test, merge, proceed)
        body.open(test)
        condition = Value(BOOL, 0, True)
        if loop.condition is not None:
            condition = convert(body, self.value(loop.condition), BOOL)
        if condition.constant is True:
            body.branch(inside)
        else:
            body.choose(condition, inside, merge)
        body.open(inside)
        self._loops.append((proceed, merge))
        self._inside(loop.body)
        self._loops.pop()
        body.branch(proceed)
        body.open(proceed)
        if loop.step is not None:
            self.evaluate(loop.step)
        body.branch(header)
        body.open(merge)

    def _unrolled(self, loop: syntax.For) -> bool:
        """Adds a loop's body as often as it runs, where that is known; returns whether."""
        first, step = loop.first, loop.step
        if not isinstance(first, syntax.Declare) or first.value is None or loop.condition is None:
            return False
        if not isinstance(step, syntax.Assign) or first.type is None:
            return False
        counter = self.converted(first.value, self.type(first.type))
        if counter.constant is None:
            return False
        body, name = self.body, first.name
        may_continue = _has_continue(loop.body)
        while True:
            self.scopes[-1][name] = counter
            condition = convert(body, self.value(loop.condition), BOOL).constant
            if condition is None:
                raise Unsupported("an unrolled loop whose end is not known")
            if not condition or not body.block:
                return True
            if may_continue:
                inside, merge = body.module.new(), body.module.new()
                body.enter_once(inside, merge)
                body.open(inside)
                self._loops.append((merge, 0))
                self._inside(loop.body)
                self._loops.pop()
                body.branch(merge)
                body.open(merge)
            else:
                self._inside(loop.body)
            advanced = arithmetic.binary(body, step.operation, counter, self.value(step.value))
            counter = convert(body, advanced, counter.type)

    # --- expressions

    def evaluate(self, expression: syntax.Expression) -> None:
        """Adds an expression for what it does."""
        if isinstance(expression, syntax.Assign):
            self._assign(expression)
        elif isinstance(expression, syntax.Call):
            calls.call(self, expression)
        else:
            self.value(expression)

    def _assign(self, assign: syntax.Assign) -> None:
        target = self.operand(assign.target)
        if not isinstance(target, Place):
            raise Unsupported("an assignment to what is no variable")
        if assign.operation:
            value = self.value(assign.value)
            value = arithmetic.binary(self.body, assign.operation, self.body.load(target), value)
            value = convert(self.body, value, target.type)
        else:
            value = self.converted(assign.value, target.type)
        self.body.store(target, value)

    def converted(self, expression: syntax.Expression, type_: Type) -> Value:
        """An expression's value in a type; braces become arrays and structs."""
        if not isinstance(expression, syntax.Braces):
            return convert(self.body, self.value(expression), type_)
        if isinstance(type_, Array):
            parts: list[Type] = [type_.element] * type_.count
        elif isinstance(type_, Record):
            parts = list(type_.fields.values())
        elif isinstance(type_, Vector):
            parts = [type_.element] * type_.count
        else:
            raise Unsupported(f"braces for {type_}")
        if len(parts) != len(expression.values):
            raise Unsupported(f"{len(expression.values)} values for {len(parts)}")
        made = [self.converted(value, part) for value, part in zip(expression.values, parts, strict=True)]
        if all(value.constant is not None for value in made):
            numbers = [self.body.number(value) for value in made]
            known = Value(type_, self.body.module.composite(type_, numbers))
            known.parts = tuple(made)
            return known
        return self.body.construct(type_, made)

    def value(self, expression: syntax.Expression) -> Value:
        find = _OPERANDS.get(type(expression))
        found = self.operand(expression) if find is None else find(self, expression)
        return found if isinstance(found, Value) else self.body.load(found)

    def operand(self, expression: syntax.Expression) -> Operand:
        """A value, or where it is."""
        find = _OPERANDS.get(type(expression))
        if find is None:
            raise Unsupported(f"the expression {type(expression).__name__}")
        return find(self, expression)

    def _name(self, expression: syntax.Name) -> Operand:
        found = self._found(expression.name)
        return self.compilation.named(expression.name, self) if found is None else found

    def _number(self, expression: syntax.Number) -> Value:
        found = self.compilation.numbers.get(expression)
        if found is None:
            type_ = types.SCALARS[expression.type]
            value = expression.value
            # Of 0.1 a double, too, is the float that is nearest.
            found = Value(type_, 0, arithmetic.rounded(value, type_) if type_.kind == "f" else value)
            self.compilation.numbers[expression] = found
        return found

    def _call(self, expression: syntax.Call) -> Value:
        found = calls.call(self, expression)
        if found is None:
            raise Unsupported(f"the value of {expression.name}, which has none")
        return found

    def _unary(self, expression: syntax.Unary) -> Operand:
        value = self.value(expression.operand)
        if expression.operation == "*":
            return self._pointed_to(value)
        return arithmetic.unary(self.body, expression.operation, value)

    def _binary(self, expression: syntax.Binary) -> Value:
        operation = expression.operation
        if operation in ("&&", "||"):
            return self._lazy(expression)
        left, right = self.value(expression.left), self.value(expression.right)
        if isinstance(left.type, Pointer) and operation == "+":
            return self.moved(left, right)
        return arithmetic.binary(self.body, operation, left, right)

    def moved(self, pointer: Value, count: Value) -> Value:
        """A pointer so many elements on."""
        if count.constant == 0:
            return pointer
        body = self.body
        return body.emit(op.PTR_ACCESS_CHAIN, pointer.type, body.number(pointer), body.number(count))

    def _lazy(self, expression: syntax.Binary) -> Value:
        is_and = expression.operation == "&&"
        body = self.body
        left = convert(body, self.value(expression.left), BOOL)
        if left.constant is not None:
            if bool(left.constant) is is_and:
                return convert(body, self.value(expression.right), BOOL)
            return left
        if self.compilation.is_light(expression.right, self):
            right = convert(body, self.value(expression.right), BOOL)
            return self._both(is_and, left, right)
        new = body.module.new
        before, inside, merge = body.block, new(), new()
        yes, no = (inside, merge) if is_and else (merge, inside)
        body.select_branch(left, yes, no, merge)
        body.open(inside)
        right = convert(body, self.value(expression.right), BOOL)
        body.number(right)
        after = body.block
        body.branch(merge)
        body.open(merge)
        return body.join(BOOL, ((Value(BOOL, 0, not is_and), before), (right, after)))

    def _both(self, is_and: bool, left: Value, right: Value) -> Value:
        if right.constant is not None:
            return left if bool(right.constant) is is_and else right
        opcode = op.LOGICAL_AND if is_and else op.LOGICAL_OR
        return self.body.emit(opcode, BOOL, self.body.number(left), self.body.number(right))

    def _conditional(self, expression: syntax.Conditional) -> Value:
        body = self.body
        condition = convert(body, self.value(expression.condition), BOOL)
        if condition.constant is not None:
            return self.value(expression.yes if condition.constant else expression.no)
        light = self.compilation.is_light
        if light(expression.yes, self) and light(expression.no, self):
            return arithmetic.select(body, condition, self.value(expression.yes), self.value(expression.no))
        new = body.module.new
        first, second, conversion, merge = new(), new(), new(), new()
        body.select_branch(condition, first, second, merge)
        body.open(first)
        yes = self.value(expression.yes)
        body.branch(conversion)
        body.open(second)
        no = self.value(expression.no)
        type_ = yes.type if yes.type is no.type else arithmetic.common(yes.type, no.type)
        no = convert(body, no, type_)
        end = body.block
        body.branch(merge)
        # In a block of its own: what this one becomes hangs on the other's type.
        body.open(conversion)
        yes = convert(body, yes, type_)
        body.branch(merge)
        body.open(merge)
        return body.join(type_, ((yes, conversion), (no, end)))

    def _index(self, expression: syntax.Index) -> Operand:
        base, index = self.operand(expression.base), self.value(expression.index)
        type_ = base.type
        body = self.body
        if isinstance(type_, Pointer):
            pointer = body.load(base) if isinstance(base, Place) else base
            return self._pointed_to(self.moved(pointer, index))
        if isinstance(type_, Scalar) and index.constant == 0:
            return base
        if not isinstance(type_, _OF_ELEMENTS):
            raise Unsupported(f"an element of {type_}")
        element = type_.element
        if isinstance(base, Place):
            return body.at(base, index, element)
        if index.constant is not None and not isinstance(type_, Fragment):
            return body.extract(base, int(index.constant), element)
        if isinstance(type_, Vector):
            made = body.emit(op.VECTOR_EXTRACT_DYNAMIC, element, body.number(base), body.number(index))
            return derived(made, base)
        return body.at(body.copied(base), index, element)

    def is_register(self, expression: syntax.Expression) -> bool:
        """Whether an expression is a part, by known indices, of what this function has for itself: a driver
        keeps that in registers, so that to read it costs nothing."""
        return isinstance(self._register(expression), Scalar | Vector)

    def _register(self, expression: syntax.Expression) -> Type | None:
        """The type of such a part; None of others."""
        if isinstance(expression, syntax.Name):
            found = self._found(expression.name)
            if isinstance(found, Place) and not (found.storage == op.FUNCTION_STORAGE and found.is_known):
                return None
            return None if found is None else found.type
        if isinstance(expression, syntax.Index) and self._is_known(expression.index):
            of = self._register(expression.base)
            return of.element if isinstance(of, Array | Vector) else None
        if isinstance(expression, syntax.Member):
            of = self._register(expression.base)
            if isinstance(of, Record):
                return of.fields.get(expression.name)
            return of.element if isinstance(of, Vector) and len(expression.name) == 1 else None
        return None

    def _is_known(self, expression: syntax.Expression) -> bool:
        """Whether an expression is of numbers that are known now."""
        if isinstance(expression, syntax.Binary):
            return self._is_known(expression.left) and self._is_known(expression.right)
        if isinstance(expression, syntax.Name):
            found = self._found(expression.name)
            return isinstance(found, Value) and found.constant is not None
        return isinstance(expression, syntax.Number)

    def _found(self, name: str) -> Operand | None:
        """What a name of this function stands for; None where it is none of it."""
        for scope in reversed(self.scopes):
            found = scope.get(name)
            if found is not None:
                return found
        return None

    def _pointed_to(self, pointer: Value) -> Place:
        if not isinstance(pointer.type, Pointer):
            raise Unsupported(f"what {pointer.type} points to")
        element = pointer.type.element
        return Place(op.DEVICE_MEMORY, self.body.number(pointer), element, (), types.alignment_of(element))

    def _member(self, expression: syntax.Member) -> Operand:
        base = self.operand(expression.base)
        type_, name, body = base.type, expression.name, self.body
        if isinstance(type_, Record):
            if name not in type_.fields:
                raise Unsupported(f"{type_.name} has no {name}")
            index = list(type_.fields).index(name)
            member = type_.fields[name]
            if isinstance(base, Place):
                return body.at(base, index, member)
            return body.extract(base, index, member)
        if not isinstance(type_, Vector) or any(letter not in _COMPONENTS for letter in name):
            raise Unsupported(f"{name} of {type_}")
        places = [_COMPONENTS[letter] for letter in name]
        if len(places) == 1 and isinstance(base, Place):
            return body.at(base, places[0], type_.element)
        value = body.load(base) if isinstance(base, Place) else base
        if len(places) == 1:
            return body.extract(value, places[0], type_.element)
        number = body.number(value)
        shuffled = types.vector(type_.element, len(places))
        return derived(body.emit(op.VECTOR_SHUFFLE, shuffled, number, number, *places), value)

    def _construct(self, expression: syntax.Construct) -> Value:
        type_, body = self.type(expression.type), self.body
        values = [self.value(argument) for argument in expression.arguments]
        if len(values) == 1:
            return convert(body, values[0], type_)
        if not isinstance(type_, Vector):
            raise Unsupported(f"{len(values)} values for {type_}")
        parts: list[Value] = []
        for value in values:
            if isinstance(value.type, Vector):
                parts += [body.extract(value, i, value.type.element) for i in range(value.type.count)]
            else:
                parts.append(value)
        if len(parts) != type_.count:
            raise Unsupported(f"{len(parts)} elements for {type_.count}")
        return body.construct(type_, [convert(body, part, type_.element) for part in parts])


_OPERANDS: dict[type[syntax.Expression], Callable[[Emitter, Any], Operand]] = {
    syntax.Name: Emitter._name,
    syntax.Number: Emitter._number,
    syntax.Binary: Emitter._binary,
    syntax.Index: Emitter._index,
    syntax.Member: Emitter._member,
    syntax.Call: Emitter._call,
    syntax.Construct: Emitter._construct,
    syntax.Unary: Emitter._unary,
    syntax.Conditional: Emitter._conditional,
}


def _has_continue(statement: syntax.Statement | None) -> bool:
    """Whether a continue (or break) is in a statement that belongs to the loop around it."""
    if isinstance(statement, syntax.Block):
        return any(map(_has_continue, statement.statements))
    if isinstance(statement, syntax.If):
        return _has_continue(statement.yes) or _has_continue(statement.no)
    return isinstance(statement, syntax.Continue | syntax.Break)
