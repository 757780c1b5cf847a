"""Expressions over vectors: steps in order, and the code that computes them in registers."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from types import MappingProxyType

from vkml.cpu.native.assembler import Mem
from vkml.cpu.native.element import ITEM_BYTES, lane_bytes
from vkml.cpu.native.operation import Operation
from vkml.cpu.native.operations import OPERATIONS
from vkml.cpu.native.vectors import VectorCode
from vkml.dataclasses import dataclass
from vkml.ir.lowering import CannotLower


@dataclass(frozen=True)
class Step:
    """One operation on earlier values."""

    operation: str
    """A name of `OPERATIONS`."""
    inputs: tuple[int, ...] = ()
    number: float | int = field(default=0.0, compare=False)
    """For "constant"."""
    dtype: str = "float32"
    """The arithmetic type that it computes in: of what is compared, converted, chosen."""
    spelling: str = field(init=False, repr=False)
    """The number exactly, by which steps are compared: 0 equals -0, which it is not, and NaN not itself."""

    def __post_init__(self) -> None:
        number = self.number
        object.__setattr__(self, "spelling", number.hex() if isinstance(number, float) else str(number))

    @property
    def form(self) -> Operation:
        """How it becomes code."""
        return OPERATIONS[self.operation, self.dtype]

    @property
    def result(self) -> str:
        """The arithmetic type of its value."""
        if self.operation.startswith("to_"):
            return self.operation[3:]
        if self.operation == "truncate":
            return "int32"
        return "bool" if self.operation in _TESTS else self.dtype


_TESTS = frozenset(("equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "isnan"))
_LIMITS = {"minimum": "limit_above", "maximum": "limit_below"}
"""What an extreme of a float and a number is, which needs no test for NaN."""
_CHOICES = {"greater": "greater_of", "less": "less_of"}
"""What the choice of one of two that are compared is, by the comparison."""
_WRAPS = {
    "wrap_uint8": (0, 255),
    "wrap_int8": (-128, 127),
    "wrap_uint16": (0, 65535),
    "wrap_int16": (-32768, 32767),
}
"""Numbers that are left as they are where integers are brought into the range of a narrow type."""
_EXACT = 1 << 24
"""Up to which whole numbers are floats."""


@dataclass(frozen=True)
class Expression:
    """Values 0 … operands - 1 are given; each step makes the next. All are vectors with as many lanes.

    A truth value is a vector of 32-bit lanes that have all bits set or none.
    """

    operands: int
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]

    @property
    def is_wide(self) -> bool:
        """Whether a step computes with 64 bits: then vectors have half as many lanes."""
        return any(lane_bytes(dtype) == 8 for step in self.steps for dtype in (step.dtype, step.result))


@dataclass(frozen=True)
class Access:
    """How an operand or a result lies in memory, over the index space of a kernel.

    Attributes:
        strides: elements from one index to the next, for each axis of the index space; 0 repeats.
        dtype: of the elements, one of `ITEM_BYTES`.
    """

    strides: tuple[int, ...]
    dtype: str = "float32"

    @property
    def itemsize(self) -> int:
        return ITEM_BYTES[self.dtype]


@dataclass(frozen=True)
class Epilogue:
    """What becomes of a kernel's result (operand 0 of the expression) before it is stored.

    Attributes:
        expression: its operand 0 is the kernel's result, the others correspond to `leaves`.
        leaves: where the other operands lie.
        results: where the outputs go; their stride along the last axis is 1 unless a kernel says otherwise.
    """

    expression: Expression
    leaves: tuple[Access, ...]
    results: tuple[Access, ...]


IDENTITY = Expression(1, (), (0,))
"""The result as it is."""


class TooFewRegisters(CannotLower):
    """The registers offered cannot hold what the expression needs at the same time."""


_NOTHING: Mapping[int, int] = MappingProxyType({})
_NO_CONSTANTS: Mapping[str, int] = MappingProxyType({})


def emit(
    code: VectorCode,
    expression: Expression,
    *,
    bound: Mapping[int, int],
    load: Callable[[int, int], None],
    free: Sequence[int],
    kept: Mapping[int, int] = _NOTHING,
    constants: Mapping[str, int] = _NO_CONSTANTS,
) -> list[int]:
    """Emits the code of an expression.

    Besides the registers given it changes RAX and, with AVX-512, the mask registers 5–7; some operations use
    the stack.

    Args:
        code: receives the code.
        expression: what to compute.
        bound: operands that are in registers already; these may be overwritten after their last use.
        load: called as load(operand, register) to emit the load of any other operand, right before its first
            use; called again where the register had to be given up in between.
        free: registers that may be used.
        kept: operands that are in registers already, which stay as they are.
        constants: float32 numbers (see `numbers_of`) that are in all lanes of registers, which stay so.

    Returns:
        The register of each output. The same value listed twice is in the same register.

    Raises:
        TooFewRegisters: nothing has been emitted then.
    """
    plan = _plan(
        expression,
        _items(bound),
        tuple(free),
        code.has_avx512,
        _items(kept),
        tuple(sorted(constants.items())),
    )
    for action in plan.actions:
        if action.step is None:
            load(action.operand, action.target)
        elif action.step.operation == "constant":
            code.load(action.target, _number(code, action.step), lane=lane_bytes(action.step.dtype))
        else:
            inputs = [_number(code, entry) if isinstance(entry, Step) else entry for entry in action.inputs]
            action.step.form.emit(code, action.target, inputs, action.spare)
    return list(plan.outputs)


def _number(code: VectorCode, step: Step) -> Mem:
    return code.constant(step.number, step.dtype)


def numbers_of(expression: Expression) -> tuple[str, ...]:
    """The float32 constants that the code of an expression loads, each by its `float.hex`."""
    simple = simplified(expression)
    needed = _needed(simple)
    steps = [simple.steps[value - simple.operands] for value in needed]
    return tuple(dict.fromkeys(step.spelling for step in steps if _is_single(step)))


def _is_single(step: Step) -> bool:
    return step.operation == "constant" and step.dtype == "float32"


@functools.lru_cache(maxsize=4096)
def registers_needed(expression: Expression, bound_count: int, *, has_avx512: bool = False) -> int:
    """How many free registers `emit` needs when the first operands are in registers of their own already."""
    bound = tuple((operand, operand) for operand in range(bound_count))
    for count in range(_MOST_REGISTERS + 1):
        try:
            _plan(expression, bound, tuple(range(bound_count, bound_count + count)), has_avx512)
        except TooFewRegisters:
            continue
        return count
    raise TooFewRegisters(
        f"an expression of {len(expression.steps)} steps needs more than {_MOST_REGISTERS} registers"
    )


_MOST_REGISTERS = 64


@dataclass(frozen=True)
class _Action:
    """A load of an operand (no step), a constant put into a register, or an operation."""

    step: Step | None
    target: int
    operand: int = 0
    inputs: tuple[int | Step, ...] = ()
    """Registers, and constants in memory."""
    spare: tuple[int, ...] = ()


@dataclass(frozen=True)
class _Plan:
    actions: tuple[_Action, ...]
    outputs: tuple[int, ...]


def _items(registers: Mapping[int, int]) -> tuple[tuple[int, int], ...]:
    return tuple(sorted(registers.items()))


@functools.lru_cache(maxsize=4096)
def _plan(
    expression: Expression,
    bound: tuple[tuple[int, int], ...],
    free: tuple[int, ...],
    has_avx512: bool,
    kept: tuple[tuple[int, int], ...] = (),
    constants: tuple[tuple[str, int], ...] = (),
) -> _Plan:
    simple = simplified(expression)
    failure = ""  # not the error itself, whose traceback would keep this frame and all its callers'
    for order in (_needed(simple), _depth_first(simple)):
        try:
            allocation = _Allocation(simple, dict(bound), dict(kept), free, has_avx512, dict(constants))
            return allocation.run(order)
        except TooFewRegisters as error:
            failure = str(error)
    raise TooFewRegisters(failure)


@functools.lru_cache(maxsize=4096)
def simplified(expression: Expression) -> Expression:
    """Equal steps once; a comparison and the choice it decides as one operation, and the like.

    A product and a sum stay two, which round twice.
    """
    uses = _uses(expression)
    base = expression.operands
    steps: list[Step] = []
    known: dict[Step, int] = {}
    place = list(range(base))
    bounds = _Bounds(base, steps)

    def add(step: Step) -> int:
        if step not in known:
            known[step] = base + len(steps)
            steps.append(step)
        return known[step]

    for step in expression.steps:
        inputs = [place[value] for value in step.inputs]
        # What is used once only may be taken in; it stays behind unused.
        inner = [
            steps[inputs[at] - base] if value >= base and uses[value] == 1 and inputs[at] >= base else None
            for at, value in enumerate(step.inputs)
        ]
        name, dtype = step.operation, step.dtype
        is_limit = name in _LIMITS and (_LIMITS[name], dtype) in OPERATIONS
        condition = inner[0] if inner else None
        if is_limit and any(_is_number(entry, expression) for entry in step.inputs):
            at = 0 if _is_number(step.inputs[0], expression) else 1
            place.append(add(Step(_LIMITS[name], (inputs[1 - at], inputs[at]), dtype=dtype)))
        elif (
            name == "where"
            and condition is not None
            and condition.operation in _TESTS
            and lane_bytes(condition.dtype) == lane_bytes(dtype)
        ):
            # The choice is one of bits: only the size of lanes matters.
            of_both = _CHOICES.get(condition.operation), condition.dtype
            if of_both in OPERATIONS and condition.inputs == tuple(inputs[1:]):
                place.append(add(Step(str(of_both[0]), condition.inputs, dtype=condition.dtype)))
                continue
            fused = f"where_{condition.operation}"
            place.append(add(Step(fused, (*condition.inputs, *inputs[1:]), dtype=condition.dtype)))
        elif name == "to_int32" and dtype == "float32" and bounds.are_within(inputs[0], -(2**31), 2**31 - 1):
            place.append(add(Step("truncate", (inputs[0],), dtype=dtype)))
        elif name in _WRAPS and bounds.are_within(inputs[0], *_WRAPS[name]):
            place.append(inputs[0])
        elif name == "to_float32" and dtype == "int32" and (number := bounds.number(inputs[0])) is not None:
            place.append(add(Step("constant", number=float(number))))
        elif name == "divide" and ("reciprocal", dtype) in OPERATIONS and _is_one(step.inputs[0], expression):
            place.append(add(Step("reciprocal", (inputs[1],), dtype=dtype)))
        else:
            place.append(add(replace(step, inputs=tuple(inputs))))
    return Expression(base, tuple(steps), tuple(place[value] for value in expression.outputs))


class _Bounds:
    """What is known of the values of steps.

    Args:
        base: the number of the first step's value.
        steps: may grow.
    """

    def __init__(self, base: int, steps: Sequence[Step]) -> None:
        self._base, self._steps = base, steps

    def number(self, value: int) -> float | None:
        """A whole number that a float32 has; None where the value is something else, or not known."""
        step = self._steps[value - self._base] if value >= self._base else None
        if step is None or step.operation != "constant" or not abs(step.number) <= _EXACT:
            return None
        return step.number if step.number == int(step.number) else None

    def are_within(self, value: int, least: float, most: float) -> bool:
        """Whether a value is a number between two, and not NaN."""
        low, high = self._of(value)
        return low is not None and high is not None and least <= low and high <= most

    def _of(self, value: int) -> tuple[float | None, float | None]:
        """A number that the value is at least, and one that it is at most; a lower one says it is not NaN."""
        step = self._steps[value - self._base] if value >= self._base else None
        if step is None:
            return None, None
        if step.operation in ("greater_of", "less_of"):
            # Where the first is NaN, it is the second.
            other = self.number(step.inputs[1])
            low, high = self._of(step.inputs[0])
            if other is None:
                return None, None
            if step.operation == "greater_of":
                return other if low is None else max(low, other), None if high is None else max(high, other)
            return None if low is None else min(low, other), other if high is None else min(high, other)
        if step.operation in ("truncate", "rint", "floor", "ceil", "trunc"):
            low, high = self._of(step.inputs[0])
            return None if low is None else math.floor(low), None if high is None else math.ceil(high)
        number = self.number(value)
        return number, number


def _is_number(value: int, expression: Expression) -> bool:
    """Whether a value is a constant other than NaN."""
    if value < expression.operands:
        return False
    step = expression.steps[value - expression.operands]
    return step.operation == "constant" and not math.isnan(step.number)


def _is_one(value: int, expression: Expression) -> bool:
    return _is_number(value, expression) and expression.steps[value - expression.operands].number == 1


def _uses(expression: Expression) -> list[int]:
    uses = [0] * (expression.operands + len(expression.steps))
    for step in expression.steps:
        for value in step.inputs:
            uses[value] += 1
    for value in expression.outputs:
        uses[value] += 1
    return uses


def _needed(expression: Expression) -> list[int]:
    """Values of the steps that outputs depend on, in the order given."""
    wanted = set(expression.outputs)
    base = expression.operands
    for at in range(len(expression.steps) - 1, -1, -1):
        if base + at in wanted:
            wanted.update(expression.steps[at].inputs)
    return sorted(value for value in wanted if value >= base)


def _depth_first(expression: Expression) -> list[int]:
    """Values in the order of a walk from the outputs that begins with the input that needs most registers."""
    base = expression.operands
    weight = [1] * (base + len(expression.steps))
    for at, step in enumerate(expression.steps):
        ranked = sorted((weight[value] for value in step.inputs), reverse=True)
        weight[base + at] = max([1, *(need + position for position, need in enumerate(ranked))])
    order: list[int] = []
    seen: set[int] = set()
    for output in expression.outputs:
        stack = [(output, False)]
        while stack:
            value, is_ready = stack.pop()
            if value < base or (value in seen and not is_ready):
                continue
            if is_ready:
                order.append(value)
                continue
            seen.add(value)
            stack.append((value, True))
            stack += [
                (entry, False)
                for entry in sorted(expression.steps[value - base].inputs, key=weight.__getitem__)
            ]
    return order


class _Allocation:
    """Registers while the steps of an expression are planned one after another."""

    def __init__(
        self,
        expression: Expression,
        bound: dict[int, int],
        kept: dict[int, int],
        free: Sequence[int],
        has_avx512: bool,
        constants: dict[str, int],
    ) -> None:
        self.expression, self.has_avx512 = expression, has_avx512
        kept = {**kept, **self._held_constants(constants)}
        self.bound = frozenset(bound) | frozenset(kept)
        self.registers = {**bound, **kept}
        """Where each value is that has a register."""
        self.free = list(dict.fromkeys(free))[::-1]
        # One use too many keeps a register to the end.
        self.uses = [int(value in kept) for value in range(expression.operands + len(expression.steps))]
        self.actions: list[_Action] = []

    def _held_constants(self, constants: dict[str, int]) -> dict[int, int]:
        found = {
            self.expression.operands + at: constants.get(step.spelling)
            for at, step in enumerate(self.expression.steps)
            if _is_single(step)
        }
        return {value: register for value, register in found.items() if register is not None}

    def run(self, order: Sequence[int]) -> _Plan:
        base = self.expression.operands
        for value in order:
            for entry in self.expression.steps[value - base].inputs:
                self.uses[entry] += 1
        for value in self.expression.outputs:
            self.uses[value] += 1
        for value in [value for value in self.registers if not self.uses[value]]:
            self.free.append(self.registers.pop(value))
        for value in order:
            if self._constant(value) is None:
                self._compute(value)
        kept = frozenset(self.expression.outputs)
        outputs = tuple(self._resident(value, kept) for value in self.expression.outputs)
        return _Plan(tuple(self.actions), outputs)

    def _compute(self, value: int) -> None:
        step = self.expression.steps[value - self.expression.operands]
        operation = step.form
        entries = list(step.inputs)
        memory = None
        if operation.takes_memory:
            if operation.is_commutative and self._in_memory(entries[-2]) and not self._in_memory(entries[-1]):
                entries[-2:] = entries[-1], entries[-2]
            if self._in_memory(entries[-1]):
                memory = entries[-1]
        kept = frozenset(entry for at, entry in enumerate(entries) if memory is None or at < len(entries) - 1)
        inputs: list[int | Step] = []
        for at, entry in enumerate(entries):
            if memory is not None and at == len(entries) - 1:
                constant = self._constant(entry)
                assert constant is not None
                inputs.append(constant)
            else:
                inputs.append(self._resident(entry, kept))
        spare = [self._take(kept) for _ in range(operation.spare[self.has_avx512])]
        for entry in entries:
            self.uses[entry] -= 1
        for entry in reversed(dict.fromkeys(entries)):
            if not self.uses[entry] and entry in self.registers:
                self.free.append(self.registers.pop(entry))
        # An input that can be loaded again may make place for the result.
        target = self._take(frozenset())
        self.registers[value] = target
        self.actions.append(_Action(step, target, inputs=tuple(inputs), spare=tuple(spare)))
        self.free += spare

    def _constant(self, value: int) -> Step | None:
        if value < self.expression.operands:
            return None
        step = self.expression.steps[value - self.expression.operands]
        return step if step.operation == "constant" else None

    def _in_memory(self, value: int) -> bool:
        return self._constant(value) is not None and value not in self.registers

    def _resident(self, value: int, kept: frozenset[int]) -> int:
        """The register of a value; operands and constants are loaded where they have none."""
        if value not in self.registers:
            register = self._take(kept)
            self.actions.append(_Action(self._constant(value), register, operand=value))
            self.registers[value] = register
        return self.registers[value]

    def _take(self, kept: frozenset[int]) -> int:
        if not self.free:
            # Give up what can be loaded again: the one with the fewest uses to come.
            again = [
                value
                for value in self.registers
                if value not in kept and value not in self.bound and self._is_loadable(value)
            ]
            if not again:
                raise TooFewRegisters(f"{len(self.registers)} values at the same time, and no register left")
            self.free.append(self.registers.pop(min(again, key=self.uses.__getitem__)))
        return self.free.pop()

    def _is_loadable(self, value: int) -> bool:
        return value < self.expression.operands or self._constant(value) is not None
