"""A function's body in the making: values, places in memory, blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from vkml.kernels.slang import opcodes as op
from vkml.kernels.slang import types
from vkml.kernels.slang.errors import Unsupported
from vkml.kernels.slang.module import Module
from vkml.kernels.slang.types import Array, Fragment, Record, Scalar, Type, Vector

_COUNTED = Array, Vector
"""Types that state their numbers of elements: a tuple made once, for it is asked for all the time."""


class Value:
    """What an expression gave: an instruction's result, or a number known now."""

    __slots__ = ("constant", "is_stored", "number", "parts", "type")

    def __init__(self, type_: Type, number: int = 0, constant: int | float | bool | None = None) -> None:
        self.type = type_
        self.number = number
        """Of the instruction; 0: that of the constant, once it is asked for."""
        self.constant = constant
        self.is_stored = constant is not None
        """Whether its bits are those of device memory: a driver knows of no wider number behind them."""
        self.parts: tuple[Value, ...] = ()
        """Of an array or a struct, where values of its parts are at hand: these."""


class Place:
    """Somewhere in memory that a value can be read from and written to."""

    __slots__ = ("alignment", "is_coherent", "is_known", "path", "root", "storage", "type")

    def __init__(
        self,
        storage: int,
        root: int,
        type_: Type,
        path: tuple[int | Value, ...] = (),
        alignment: int = 0,
        is_known: bool = True,
        is_coherent: bool = False,
    ) -> None:
        self.storage = storage
        self.root = root
        """Number of the variable or, in device memory, of the pointer."""
        self.type = type_
        self.path = path
        """Indices from the variable on: numbers that are known, or values."""
        self.is_known = is_known
        """Whether all of them are known."""
        self.alignment = alignment
        self.is_coherent = is_coherent
        """Whether it is accessed as all invocations of the device see it."""


class Known:
    """What is known to be at places of a variable."""

    __slots__ = ("depth", "values")

    def __init__(self) -> None:
        self.values: dict[tuple[int, ...], Value] = {}
        self.depth = 0
        """Length of all their paths; -1: they differ."""

    def add(self, path: tuple[int, ...], value: Value) -> None:
        """What was read; it changes nothing."""
        if not self.values:
            self.depth = len(path)
        elif len(path) != self.depth:
            self.depth = -1
        self.values[path] = value

    def replace(self, path: tuple[int, ...], value: Value) -> None:
        """What was written, in the place of all that it lies in or that lies in it."""
        if len(path) != self.depth:  # else that is the place itself alone
            for other in [other for other in self.values if other[: len(path)] == path[: len(other)]]:
                del self.values[other]
        self.add(path, value)


class Body:
    """Instructions of one function. Where no block is open, nothing is added: it would never run.

    Args:
        module: that it is of.
        writes: says whether an invocation writes to memory that others see; None: each does.
    """

    def __init__(self, module: Module, writes: Place | None = None) -> None:
        self.module = module
        self._writes = writes
        self._code: list[int] = []
        self._variables: list[int] = []
        self._stored: dict[int, Known] = {}
        """Of variables of this function: what is known in this block to be at which places of them."""
        self.block = 0
        """The label of the block that is open, 0: none."""
        self._first = module.new()
        self.open(self._first)

    def words(
        self, result: Type, number: int, type_number: int, parameters: Sequence[tuple[int, int]]
    ) -> list[int]:
        """The complete function.

        Args:
            result: its type.
            number: its own.
            type_number: that of its type.
            parameters: numbers of their types and of themselves.
        """
        words = [5 << 16 | op.FUNCTION, self.module.type(result), number, 0, type_number]
        for parameter_type, parameter in parameters:
            words += (3 << 16 | op.FUNCTION_PARAMETER, parameter_type, parameter)
        # The first block's label, then variables, then the rest.
        return [*words, *self._code[:2], *self._variables, *self._code[2:], 1 << 16 | op.FUNCTION_END]

    @property
    def has_twins(self) -> bool:
        """Whether some invocations go the way of others, and write nothing."""
        return self._writes is not None

    # --- blocks

    def open(self, label: int) -> None:
        """Begins a block."""
        self._code += (2 << 16 | op.LABEL, label)
        self.block = label
        self._stored = {}

    def branch(self, label: int) -> None:
        """Ends the block, where one is open."""
        self._end(op.BRANCH, label)

    def leave(self, value: Value | None = None) -> None:
        """Returns from the function."""
        if value is None:
            self._end(op.RETURN)
        else:
            self._end(op.RETURN_VALUE, self.number(value))

    def select_branch(self, condition: Value, yes: int, no: int, merge: int) -> None:
        """Ends the block with a choice of two, which come together at `merge`."""
        number = self.number(condition)
        if self.block:
            self._code += (3 << 16 | op.SELECTION_MERGE, merge, 0)
        self._end(op.BRANCH_CONDITIONAL, number, yes, no)

    def enter_once(self, label: int, merge: int) -> None:
        """Ends the block with a way on that may be left for `merge` from anywhere."""
        zero = self.module.constant(types.UINT, 0)
        if self.block:
            self._code += (3 << 16 | op.SELECTION_MERGE, merge, 0)
        self._end(op.SWITCH, zero, label)

    def loop(self, test: int, merge: int, proceed: int) -> None:
        """Ends a loop's header."""
        if self.block:
            self._code += (4 << 16 | op.LOOP_MERGE, merge, proceed, 0)
        self._end(op.BRANCH, test)

    def choose(self, condition: Value, yes: int, no: int) -> None:
        """Ends the block with a choice that a loop's header has stated the merge of."""
        self._end(op.BRANCH_CONDITIONAL, self.number(condition), yes, no)

    def unreachable(self) -> None:
        self._end(op.UNREACHABLE)

    def _end(self, opcode: int, *operands: int) -> None:
        if self.block:
            self._code += ((1 + len(operands)) << 16 | opcode, *operands)
            self.block = 0

    # --- instructions

    def number(self, value: Value) -> int:
        """The number of a value; a constant's is made when it is first asked for."""
        found = value.number
        if not found:
            assert value.constant is not None
            found = value.number = self.module.constant(value.type, value.constant)
        return found

    def emit(self, opcode: int, type_: Type, *operands: int) -> Value:
        """An instruction with a result."""
        module = self.module
        if not self.block:
            return Value(type_, module.undefined(type_))
        type_number = module.type(type_)
        made = module.new()
        self._code += ((3 + len(operands)) << 16 | opcode, type_number, made, *operands)
        return Value(type_, made)

    def _emit(self, opcode: int, type_number: int, *operands: int) -> int:
        made = self.module.new()
        if self.block:
            self._code += ((3 + len(operands)) << 16 | opcode, type_number, made, *operands)
        return made

    def act(self, opcode: int, *operands: int) -> None:
        """An instruction without a result."""
        if self.block:
            self._code += ((1 + len(operands)) << 16 | opcode, *operands)

    def function(self, name: str, type_: Type, *operands: Value) -> Value:
        """An instruction of GLSL.std.450."""
        numbers = map(self.number, operands)
        return self.emit(op.EXT_INST, type_, self.module.shader_functions, op.FUNCTIONS[name], *numbers)

    def join(self, type_: Type, ways: Sequence[tuple[Value, int]]) -> Value:
        """The value of the way by which the block was reached: values, and the blocks that they come from."""
        words = (word for value, block in ways for word in (self.number(value), block))
        return derived(self.emit(op.PHI, type_, *words), *(value for value, _ in ways))

    def construct(self, type_: Type, parts: Sequence[Value]) -> Value:
        made = self.emit(op.COMPOSITE_CONSTRUCT, type_, *map(self.number, parts))
        return derived(made, *parts)

    def extract(self, value: Value, index: int, type_: Type) -> Value:
        if value.parts and 0 <= index < len(value.parts):
            return value.parts[index]
        if not 0 <= index < _count(value.type):
            raise Unsupported(f"the element {index} of {_count(value.type)}")
        return derived(self.emit(op.COMPOSITE_EXTRACT, type_, self.number(value), index), value)

    # --- memory

    def variable(self, type_: Type) -> Place:
        """A variable of this function."""
        module = self.module
        pointer, made = module.pointer(op.FUNCTION_STORAGE, type_), module.new()
        self._variables += (4 << 16 | op.VARIABLE, pointer, made, op.FUNCTION_STORAGE)
        return Place(op.FUNCTION_STORAGE, made, type_)

    def at(self, place: Place, index: int | Value, type_: Type) -> Place:
        """A part of a place."""
        if isinstance(index, Value) and index.constant is not None:
            index = int(index.constant)
        if isinstance(index, int) and not 0 <= index < _count(place.type):
            raise Unsupported(f"the element {index} of {_count(place.type)}")
        alignment = types.alignment_of(type_) if place.alignment else 0
        is_known = place.is_known and isinstance(index, int)
        return Place(place.storage, place.root, type_, (*place.path, index), alignment, is_known)

    def pointer(self, place: Place) -> int:
        """The number of a pointer to a place."""
        if not place.path:
            return place.root
        module = self.module
        numbers = [
            module.constant(types.INT, step) if isinstance(step, int) else self.number(step)
            for step in place.path
        ]
        if not self.block:
            return module.undefined(types.pointer(place.type))
        return self._emit(op.ACCESS_CHAIN, module.pointer(place.storage, place.type), place.root, *numbers)

    def load(self, place: Place) -> Value:
        path = _known(place)
        if path is not None:
            known = self._stored.get(place.root)
            found = None if known is None else known.values.get(path)
            if found is not None:
                return found
        if isinstance(place.type, Record) and place.alignment:
            # One by one: SwiftShader has no OpCopyLogical, which makes a plain struct of one in memory.
            fields = enumerate(place.type.fields.values())
            parts = [self.load(self.at(place, index, type_)) for index, type_ in fields]
            whole = self.construct(place.type, parts)
            whole.parts = tuple(parts)
            return whole
        pointer, how = self.pointer(place), self._memory_operands(place, op.MAKE_VISIBLE)
        if place.alignment:
            stored = self.emit(op.LOAD, place.type, pointer, *how)
            stored.is_stored = True
            return stored
        value = self.emit(op.LOAD, place.type, pointer, *how)
        if path is not None:
            self._known(place.root).add(path, value)
        return value

    def store(self, place: Place, value: Value) -> None:
        if isinstance(place.type, Record) and place.alignment:
            raise Unsupported("a struct stored in device memory")
        number = self.number(value)
        store = op.STORE, self.pointer(place), number, *self._memory_operands(place, op.MAKE_AVAILABLE)
        if self._writes is not None and self.block and _is_seen(place):
            inside, merge = self.module.new(), self.module.new()
            self.select_branch(self.load(self._writes), inside, merge, merge)
            self.open(inside)
            self.act(*store)
            self.branch(merge)
            self.open(merge)
            return
        self.act(*store)
        if place.storage != op.FUNCTION_STORAGE:
            return
        path = _known(place)
        if path is None:
            self.forget(place)
        else:
            self._known(place.root).replace(path, value)

    def _memory_operands(self, place: Place, coherence: int) -> tuple[int, ...]:
        """What an access says of itself, but for which variable it is of.

        Args:
            place: what is accessed.
            coherence: what a coherent access of this kind does.
        """
        module = self.module
        is_seen = place.is_coherent or (
            module.shares_workgroup_memory
            if place.storage == op.WORKGROUP
            else module.shares_memory and _is_seen(place)
        )
        flags = (op.ALIGNED if place.alignment else 0) | (op.NON_PRIVATE if is_seen else 0)
        if place.is_coherent:
            return flags | coherence, place.alignment, module.constant(types.UINT, op.SCOPE_DEVICE)
        return (flags, place.alignment) if place.alignment else (flags,) if flags else ()

    def _known(self, root: int) -> Known:
        found = self._stored.get(root)
        if found is None:
            found = self._stored[root] = Known()
        return found

    def forget(self, place: Place) -> None:
        """Something else wrote to a variable."""
        self._stored.pop(place.root, None)

    def copied(self, value: Value) -> Place:
        """A variable with a value, so that its elements can be had by numbers that are not known yet."""
        # Made where it is first wanted, which need not be before where it is wanted again.
        place = self.variable(value.type)
        self.store(place, value)
        return place


def derived(made: Value, *sources: Value) -> Value:
    """A fresh value whose bits are those of others, as a driver may find out."""
    for source in sources:
        if not source.is_stored:
            return made
    made.is_stored = True
    return made


def _is_seen(place: Place) -> bool:
    """Whether other invocations see a place."""
    return place.storage in (op.DEVICE_MEMORY, op.WORKGROUP)


def _known(place: Place) -> tuple[int, ...] | None:
    """The path of a place in one of this function's variables, where all of it is known."""
    if place.storage != op.FUNCTION_STORAGE:
        return None
    return cast("tuple[int, ...]", place.path) if place.is_known else None


def _count(type_: Type) -> int:
    if isinstance(type_, _COUNTED):
        return type_.count
    if isinstance(type_, Record):
        return len(type_.fields)
    if isinstance(type_, Fragment):
        return 1 << 30  # the device's affair
    assert isinstance(type_, Scalar), type_
    return 1
