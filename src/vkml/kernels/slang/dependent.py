"""Modules of kernels that wait for launches before theirs: an entry point round the kernel's own one.

See `kernels.dependent_launch`. By Vulkan's memory model: stores of a workgroup → its barrier → one
invocation's addition, a release at device scope; one invocation's loads until the count is there, then an
acquire → workgroup barrier → an acquire of each invocation, for whom what others made available becomes
visible. Accesses to memory that others see are NonPrivatePointer, and barriers of workgroups make available
and visible.
"""

from __future__ import annotations

import array
from collections.abc import Iterator
from typing import NamedTuple

from vkml.errors import CompileError
from vkml.kernels.dependent_launch import LINE_BYTES, MOST_LINES
from vkml.kernels.slang import opcodes as op
from vkml.kernels.slang.module import WAIT_FUNCTION
from vkml.vulkan.spirv import instructions, text_of, words_of

_COMPLAINTS_AT, _COUNT_AT = 0, 8
_LOOKS_EVERY = 1024
"""Polls after which a workgroup looks whether another has waited in vain."""
_ANY_MEMORY = op.DEVICE_SEMANTICS | op.WORKGROUP_SEMANTICS
_ORDERED = op.ACQUIRE_RELEASE | _ANY_MEMORY | op.MADE_AVAILABLE | op.MADE_VISIBLE
_ACQUIRED = op.ACQUIRE | op.DEVICE_SEMANTICS | op.MADE_VISIBLE
_RELEASED = op.RELEASE | op.DEVICE_SEMANTICS | op.MADE_AVAILABLE
_SEEN_BY_OTHERS = op.WORKGROUP, op.DEVICE_MEMORY
_MASKS = {op.LOAD: 3, op.STORE: 2, op.MATRIX_LOAD: 5, op.MATRIX_STORE: 4}
"""Of instructions that access memory, which operand says how, where there is one."""
_POINTERS = {op.LOAD: 2, op.STORE: 0, op.MATRIX_LOAD: 2, op.MATRIX_STORE: 0}
"""And which is the pointer."""
_BEFORE_TYPES = frozenset({op.EXTENSION, op.EXT_INST_IMPORT, op.MEMORY_MODEL, op.ENTRY_POINT})
_BEFORE_TYPES |= {op.EXECUTION_MODE, op.CAPABILITY, op.NAME, op.DECORATE, op.MEMBER_DECORATE}
_WORKGROUP_ID, _LOCAL_INDEX = 26, 29


def with_dependencies(module: bytes, push_bytes: int, polls: int, *, may_wait_itself: bool = True) -> bytes:
    """A module whose entry point waits for the launches before it, and counts its own workgroups.

    Args:
        module: of a kernel.
        push_bytes: of the kernel's own push constants and what is between these and a `Dependency`.
        polls: after which a workgroup waits no longer.
        may_wait_itself: whether the kernel waits where it calls `wait_for_producers`, if it does; else such
            calls do nothing.
    """
    return _Rewriting(module, push_bytes, polls).finish(may_wait_itself)


class _Line(NamedTuple):
    """An instruction."""

    opcode: int
    operands: list[int]


class _Rewriting:
    def __init__(self, module: bytes, push_bytes: int, polls: int) -> None:
        words = words_of(module)
        self._header = list(words[:5])
        self._bound = self._header[3]
        self._lines = [_Line(each.opcode, list(each.operands)) for each in instructions(words)]
        self._first: list[_Line] = []
        """Types that others, which are there already, are made of."""
        self._globals: list[_Line] = []
        """Types, constants and variables, behind those that are there."""
        self._decorations: list[_Line] = []
        self._functions: list[_Line] = []
        self._push_bytes, self._polls = push_bytes, polls
        self._entry = next(line for line in self._lines if line.opcode == op.ENTRY_POINT)
        body = self._entry.operands[1]
        function = next(
            line for line in self._lines if line.opcode == op.FUNCTION and line.operands[1] == body
        )
        self._void, self._function_type = function.operands[0], function.operands[3]
        self._uint = self._leaf(op.TYPE_INT, 32, 0)
        self._bool = self._leaf(op.TYPE_BOOL)
        self._word = self._pointer_to_device(self._uint, 4)
        line = self._new()
        self._first.append(_Line(op.TYPE_STRUCT, [line, self._word, self._uint]))
        for member, offset in enumerate((_COMPLAINTS_AT, _COUNT_AT)):
            self._decorations.append(_Line(op.MEMBER_DECORATE, [line, member, op.OFFSET, offset]))
        self._counters = self._pointer_to_device(line, LINE_BYTES)
        self._numbers: dict[int, int] = {}
        self._show_accesses()
        self._push, self._members = self._extended_push()
        self._vector = self._made_vector()
        self._group = self._built_in(_WORKGROUP_ID, self._vector)
        self._thread = self._built_in(_LOCAL_INDEX, self._uint)

    def finish(self, may_wait_itself: bool) -> bytes:
        named = self._wait_function() if may_wait_itself else None
        wait = self._new() if named is None else named
        if named is not None:
            self._drop_function(named)
        self._add_wait(wait)
        signal = self._new()
        self._add_signal(signal)
        self._add_entry(None if named is not None else wait, signal)
        lines = self._in_vulkans_model()
        words = [*self._header[:3], self._bound, self._header[4]]
        for opcode, operands in lines:
            words += ((1 + len(operands)) << 16 | opcode, *operands)
        return array.array("I", words).tobytes()

    # --- what is there, and what is added

    def _pointer_to_device(self, type_: int, stride: int) -> int:
        made = self._new()
        self._first.append(_Line(op.TYPE_POINTER, [made, op.DEVICE_MEMORY, type_]))
        self._decorate(made, op.ARRAY_STRIDE, stride)
        return made

    def _new(self) -> int:
        found = self._bound
        self._bound += 1
        return found

    def _declared(self, opcode: int, *operands: int) -> _Line | None:
        wanted = list(operands)
        return next(
            (line for line in self._lines if line.opcode == opcode and line.operands[1:] == wanted), None
        )

    def _leaf(self, opcode: int, *operands: int) -> int:
        """A type that is made of no others, at the front of all: there may be one of a kind."""
        line = self._declared(opcode, *operands)
        if line is None:
            line = _Line(opcode, [self._new(), *operands])
        else:
            self._lines.remove(line)
        self._first.append(line)
        return line.operands[0]

    def _made_vector(self) -> int:
        line = self._declared(op.TYPE_VECTOR, self._uint, 3)
        return self._declare(op.TYPE_VECTOR, self._uint, 3) if line is None else line.operands[0]

    def _declare(self, opcode: int, *operands: int) -> int:
        made = self._new()
        self._globals.append(_Line(opcode, [made, *operands]))
        return made

    def _decorate(self, target: int, *words: int) -> None:
        self._decorations.append(_Line(op.DECORATE, [target, *words]))

    def _number(self, value: int) -> int:
        found = self._numbers.get(value)
        if found is None:
            found = self._numbers[value] = self._new()
            self._globals.append(_Line(op.CONSTANT, [self._uint, found, value]))
        return found

    def _built_in(self, number: int, type_: int) -> int:
        for line in self._lines:
            if line.opcode == op.DECORATE and line.operands[1:] == [op.BUILT_IN, number]:
                return line.operands[0]
        pointer = self._declare(op.TYPE_POINTER, op.INPUT, type_)
        made = self._new()
        self._globals.append(_Line(op.VARIABLE, [pointer, made, op.INPUT]))
        self._decorate(made, op.BUILT_IN, number)
        self._entry.operands.append(made)
        return made

    def _extended_push(self) -> tuple[int, int]:
        """The variable of the push constants, with a `Dependency` in it, and how many members are before."""
        variable = next(
            (
                line
                for line in self._lines
                if line.opcode == op.VARIABLE and line.operands[2] == op.PUSH_CONSTANT
            ),
            None,
        )
        if variable is None:
            raise CompileError("a kernel without push constants cannot be told what to wait for")
        pointer = next(
            line
            for line in self._lines
            if line.opcode == op.TYPE_POINTER and line.operands[0] == variable.operands[0]
        )
        struct = next(
            line
            for line in self._lines
            if line.opcode == op.TYPE_STRUCT and line.operands[0] == pointer.operands[2]
        )
        count = len(struct.operands) - 1
        struct.operands.extend((self._counters, self._uint, self._uint))
        for member, offset in enumerate((0, 8, 12)):
            place = self._push_bytes + offset
            words = [struct.operands[0], count + member, op.OFFSET, place]
            self._decorations.append(_Line(op.MEMBER_DECORATE, words))
        return variable.operands[1], count

    def _wait_function(self) -> int | None:
        """The function that the kernel calls where it wants to wait."""
        for line in self._lines:
            if line.opcode == op.NAME and text_of(line.operands[1:]) == WAIT_FUNCTION.encode():
                return line.operands[0]
        return None

    def _drop_function(self, number: int) -> None:
        start = next(
            at
            for at, line in enumerate(self._lines)
            if line.opcode == op.FUNCTION and line.operands[1] == number
        )
        end = next(at for at in range(start, len(self._lines)) if self._lines[at].opcode == op.FUNCTION_END)
        del self._lines[start : end + 1]

    # --- memory

    def _show_accesses(self) -> None:
        """Has memory that several invocations see take part in what barriers order."""
        shared_types: set[int] = set()
        pointers: set[int] = set()
        constants = {line.operands[1]: line.operands[2] for line in self._lines if line.opcode == op.CONSTANT}
        for opcode, operands in self._lines:
            if opcode == op.TYPE_POINTER and operands[1] in _SEEN_BY_OTHERS:
                shared_types.add(operands[0])
            elif opcode in (op.CONTROL_BARRIER, op.MEMORY_BARRIER):
                operands[-1] = self._number(_made_known(constants[operands[-1]]))
            elif opcode in _MASKS and operands[_POINTERS[opcode]] in pointers:
                at = _MASKS[opcode]
                if len(operands) > at:
                    operands[at] |= op.NON_PRIVATE
                else:
                    operands.append(op.NON_PRIVATE)
            elif opcode not in _MASKS and len(operands) > 1 and operands[0] in shared_types:
                pointers.add(operands[1])
            if opcode == op.LOAD and operands[0] in shared_types:
                pointers.add(operands[1])

    def _in_vulkans_model(self) -> Iterator[_Line]:
        """All instructions in their order, in a module of Vulkan's memory model."""
        capabilities = {line.operands[0] for line in self._lines if line.opcode == op.CAPABILITY}
        for needed in (op.MEMORY_MODEL_VULKAN, op.MEMORY_MODEL_DEVICE_SCOPE):
            if needed not in capabilities:
                yield _Line(op.CAPABILITY, [needed])
        is_head = True
        has_functions = False
        for line in self._lines:
            if is_head and line.opcode not in _BEFORE_TYPES:
                is_head = False
                yield from self._decorations
                yield from self._first
            if line.opcode == op.FUNCTION and not has_functions:
                has_functions = True
                yield from self._globals
            if line.opcode == op.MEMORY_MODEL:
                yield _Line(op.MEMORY_MODEL, [line.operands[0], op.VULKANS_MODEL])
            else:
                yield line
        yield from self._functions

    # --- functions

    def _add(self, opcode: int, *operands: int) -> None:
        self._functions.append(_Line(opcode, list(operands)))

    def _value(self, opcode: int, type_: int, *operands: int) -> int:
        made = self._new()
        self._add(opcode, type_, made, *operands)
        return made

    def _begin(self, number: int) -> None:
        self._add(op.FUNCTION, self._void, number, 0, self._function_type)
        self._add(op.LABEL, self._new())

    def _end(self) -> None:
        self._add(op.RETURN)
        self._add(op.FUNCTION_END)

    def _given(self, member: int) -> int:
        """A member of the launch's `Dependency`."""
        type_ = self._counters if member == 0 else self._uint
        pointer_type = self._declare(op.TYPE_POINTER, op.PUSH_CONSTANT, type_)
        index = self._number(self._members + member)
        pointer = self._value(op.ACCESS_CHAIN, pointer_type, self._push, index)
        return self._value(op.LOAD, type_, pointer)

    def _counter(self, counters: int, line: int) -> int:
        return self._value(op.PTR_ACCESS_CHAIN, self._word, counters, line, self._number(1))

    def _is(self, opcode: int, value: int, other: int) -> int:
        return self._value(opcode, self._bool, value, self._number(other))

    def _if(self, condition: int) -> int:
        """Opens what is done under a condition; returns the label behind it."""
        inside, behind = self._new(), self._new()
        self._add(op.SELECTION_MERGE, behind, 0)
        self._add(op.BRANCH_CONDITIONAL, condition, inside, behind)
        self._add(op.LABEL, inside)
        return behind

    def _close(self, behind: int) -> None:
        self._add(op.BRANCH, behind)
        self._add(op.LABEL, behind)

    def _is_first_thread(self) -> int:
        thread = self._value(op.LOAD, self._uint, self._thread)
        return self._is(op.I_EQUAL, thread, 0)

    def _workgroup_barrier(self) -> None:
        workgroup = self._number(op.SCOPE_WORKGROUP)
        self._add(op.CONTROL_BARRIER, workgroup, workgroup, self._number(_ORDERED))

    def _acquire(self) -> None:
        self._add(op.MEMORY_BARRIER, self._number(op.SCOPE_DEVICE), self._number(_ACQUIRED))

    def _add_wait(self, number: int) -> None:
        """A function that waits for the level before, with all invocations of a workgroup."""
        device, relaxed = self._number(op.SCOPE_DEVICE), self._number(0)
        self._begin(number)
        awaited = self._given(1)
        behind_all = self._if(self._is(op.I_NOT_EQUAL, awaited, 0))
        joined = self._if(self._is_first_thread())
        counters, lines = self._given(0), self._given(2)
        line = self._value(op.BITWISE_AND, self._uint, lines, self._number(MOST_LINES - 1))
        before = self._counter(counters, self._value(op.I_SUB, self._uint, line, self._number(1)))
        has_failed = self._counter(counters, self._number(0))
        start, header, test, again, look, looked, proceed, done = (self._new() for _ in range(8))
        self._add(op.BRANCH, start)
        self._add(op.LABEL, start)
        self._add(op.BRANCH, header)
        self._add(op.LABEL, header)
        polls, following = self._new(), self._new()
        self._add(op.PHI, self._uint, polls, self._number(0), start, following, proceed)
        self._add(op.LOOP_MERGE, done, proceed, 0)
        self._add(op.BRANCH, test)
        self._add(op.LABEL, test)
        # Not acquired each time: that empties caches which the workgroups beside it read from.
        count = self._value(op.ATOMIC_LOAD, self._uint, before, device, relaxed)
        self._add(
            op.BRANCH_CONDITIONAL, self._value(op.U_GREATER_EQUAL, self._bool, count, awaited), done, again
        )
        self._add(op.LABEL, again)
        self._add(op.I_ADD, self._uint, following, polls, self._number(1))
        turn = self._value(op.BITWISE_AND, self._uint, following, self._number(_LOOKS_EVERY - 1))
        is_turn = self._is(op.I_EQUAL, turn, 0)
        self._add(op.SELECTION_MERGE, looked, 0)
        self._add(op.BRANCH_CONDITIONAL, is_turn, look, looked)
        self._add(op.LABEL, look)
        found = self._value(op.ATOMIC_LOAD, self._uint, has_failed, device, relaxed)
        self._add(op.BRANCH, looked)
        self._add(op.LABEL, looked)
        failure = self._value(op.PHI, self._uint, self._number(0), again, found, look)
        is_within = self._is(op.U_LESS, following, self._polls)
        goes_on = self._value(op.LOGICAL_AND, self._bool, is_within, self._is(op.I_EQUAL, failure, 0))
        self._add(op.BRANCH_CONDITIONAL, goes_on, proceed, done)
        self._add(op.LABEL, proceed)
        self._add(op.BRANCH, header)
        self._add(op.LABEL, done)
        behind = self._if(self._value(op.U_LESS, self._bool, count, awaited))
        self._add(op.ATOMIC_STORE, has_failed, device, relaxed, self._number(1))
        self._add_complaint(counters)
        self._close(behind)
        self._acquire()
        self._close(joined)
        self._workgroup_barrier()
        self._acquire()
        self._close(behind_all)
        self._end()

    def _add_complaint(self, counters: int) -> None:
        """Tells the host that a workgroup has waited in vain: in two words, for others may use the first."""
        pointer = self._declare(op.TYPE_POINTER, op.DEVICE_MEMORY, self._word)
        place = self._value(op.ACCESS_CHAIN, pointer, counters, self._number(0))
        told = self._value(op.LOAD, self._word, place, op.ALIGNED, 8)
        for word in range(2):
            at = self._value(op.PTR_ACCESS_CHAIN, self._word, told, self._number(word))
            self._add(op.STORE, at, self._number(1), op.ALIGNED | op.NON_PRIVATE, 4)

    def _add_signal(self, number: int) -> None:
        """A function that counts the workgroup, which has ended."""
        device = self._number(op.SCOPE_DEVICE)
        self._begin(number)
        lines = self._given(2)
        behind_all = self._if(self._is(op.I_NOT_EQUAL, lines, 0))
        self._workgroup_barrier()
        behind_first = self._if(self._is_first_thread())
        counters = self._given(0)
        group = self._value(op.LOAD, self._vector, self._group)
        x, y, z = (self._value(op.COMPOSITE_EXTRACT, self._uint, group, axis) for axis in range(3))
        place = self._value(op.BITWISE_OR, self._uint, self._value(op.BITWISE_OR, self._uint, x, y), z)
        line = self._value(op.BITWISE_AND, self._uint, lines, self._number(MOST_LINES - 1))
        behind = self._if(self._is(op.I_EQUAL, place, 0))
        self._reset(counters, line, 2)
        self._close(behind)
        own = self._counter(counters, line)
        released, one = self._number(_RELEASED), self._number(1)
        before = self._value(op.ATOMIC_I_ADD, self._uint, own, device, released, one)
        all_of_level = self._value(op.SHIFT_RIGHT_LOGICAL, self._uint, lines, self._number(16))
        count = self._value(op.I_ADD, self._uint, before, one)
        behind = self._if(self._value(op.I_EQUAL, self._bool, count, all_of_level))
        self._reset(counters, line, 0)
        self._reset(counters, line, 1)
        self._close(behind)
        self._close(behind_first)
        self._close(behind_all)
        self._end()

    def _reset(self, counters: int, line: int, back: int) -> None:
        """Sets the counter of a level before, or of the own one, to 0."""
        counter = self._counter(counters, self._value(op.I_SUB, self._uint, line, self._number(back)))
        zero = self._number(0)
        self._add(op.ATOMIC_STORE, counter, self._number(op.SCOPE_DEVICE), zero, zero)

    def _add_entry(self, wait: int | None, signal: int) -> None:
        """An entry point that calls the kernel's own one.

        Args:
            wait: called before; None where the kernel calls it itself.
            signal: called behind.
        """
        body, made = self._entry.operands[1], self._new()
        self._entry.operands[1] = made
        for line in self._lines:
            if line.opcode == op.EXECUTION_MODE:
                line.operands[0] = made
        self._begin(made)
        for function in (wait, body, signal):
            if function is not None:
                self._value(op.FUNCTION_CALL, self._void, function)
        self._end()


def _made_known(semantics: int) -> int:
    """Semantics of a barrier, which also makes available what it releases and visible what it acquires."""
    if semantics & (op.ACQUIRE_RELEASE | op.RELEASE):
        semantics |= op.MADE_AVAILABLE
    if semantics & (op.ACQUIRE_RELEASE | op.ACQUIRE):
        semantics |= op.MADE_VISIBLE
    return semantics
