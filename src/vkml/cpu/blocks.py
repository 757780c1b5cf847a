"""Chains of pointwise functions, run block by block so that what passes between them stays in the cache."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vkml.cpu.scratch import scratch

Array = np.ndarray[Any, Any]
Index = tuple[int | slice, ...]
"""A block: which part of the leading axes it covers."""

BLOCK_ELEMENTS = 32768
"""Elements of a block: 128 KiB of float32, so that an output and a few operands share a second-level cache,
while the 0.5 µs that a NumPy call costs stays below a fifth of its time."""


def partition(shape: Sequence[int], elements: int = BLOCK_ELEMENTS) -> list[Index]:
    """Splits an index space into blocks of about `elements`, contiguous in C order.

    Example:
        >>> partition((1, 4, 10), 20)
        [(0, slice(0, 2, None)), (0, slice(2, 4, None))]
    """
    if math.prod(shape) <= elements:
        return [()]
    axis, inner = 0, math.prod(shape[1:])
    while inner > elements:
        axis += 1
        inner //= shape[axis]
    count = shape[axis]
    pieces = -(-count // (elements // inner))
    step = -(-count // pieces)
    leading = itertools.product(*(range(size) for size in shape[:axis]))
    slices = [slice(start, min(start + step, count)) for start in range(0, count, step)]
    return [(*place, part) for place in leading for part in slices]


def refine(index: Index, shape: Sequence[int], elements: int = BLOCK_ELEMENTS) -> list[Index]:
    """Splits one block further, to about `elements`, along the axis of its slice."""
    if len(index) == len(shape):
        return [index]
    if not index or isinstance(index[-1], int):
        return [(*index, *part) for part in partition(shape[len(index) :], elements)]
    part, inner = index[-1], math.prod(shape[len(index) :])
    step = max(1, elements // max(1, inner))
    if (part.stop - part.start) * inner <= elements * 3 // 2:
        return [index]
    return [
        (*index[:-1], slice(start, min(start + step, part.stop)))
        for start in range(part.start, part.stop, step)
    ]


@dataclass(frozen=True)
class Step:
    """One function application: ``function(*inputs, out=output)``, values by number."""

    function: Callable[..., Any]
    inputs: tuple[int, ...]
    output: int
    in_place: bool = True
    """Whether the output may share memory with an input (true for every ufunc)."""


@dataclass
class Chain:
    """What is to be computed before memory is assigned: operands, constants and steps make values."""

    dtypes: list[Any] = field(default_factory=list)
    """NumPy type of every value."""
    operands: list[int] = field(default_factory=list)
    constants: list[tuple[int, Array]] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)

    def operand(self, dtype: Any) -> int:
        """Adds an operand: an array that is given for each run."""
        self.operands.append(self._value(dtype))
        return self.operands[-1]

    def constant(self, array: Array) -> int:
        """Adds a number that is the same in every run, a 0-d array."""
        self.constants.append((self._value(array.dtype), array))
        return self.constants[-1][0]

    def step(self, function: Callable[..., Any], *inputs: int, dtype: Any, in_place: bool = True) -> int:
        """Adds a function application and returns its result's number."""
        output = self._value(dtype)
        self.steps.append(Step(function, inputs, output, in_place))
        return output

    def _value(self, dtype: Any) -> int:
        self.dtypes.append(np.dtype(dtype))
        return len(self.dtypes) - 1


_Call = tuple[Callable[..., Any], tuple[int, ...], int]
"""A function, the slots it reads and the slot it writes."""


class BlockProgram:
    """A chain with memory assigned: results live in the outputs' own blocks where they can, else in scratch.

    Args:
        chain: operands and steps.
        outputs: the values to be stored, in order.
        output_dtypes: their NumPy types; a value of another type is converted when stored.
        resident: an operand that a kernel has already written where an output goes, or None.
    """

    def __init__(
        self, chain: Chain, outputs: Sequence[int], output_dtypes: Sequence[Any], resident: int | None = None
    ) -> None:
        self.output_dtypes = [np.dtype(dtype) for dtype in output_dtypes]
        self.resident_output = self._place_resident(chain, outputs, resident)
        """Which output the resident operand shares memory with; None where it needs memory of its own."""
        self._assign(chain, outputs, resident)
        self.is_empty = not self._code

    def _place_resident(self, chain: Chain, outputs: Sequence[int], resident: int | None) -> int | None:
        if resident is None:
            return None
        fitting = [j for j, dtype in enumerate(self.output_dtypes) if dtype == chain.dtypes[resident]]
        stored = [j for j in fitting if outputs[j] == resident]
        return next(iter(stored or fitting), None)

    def _assign(self, chain: Chain, outputs: Sequence[int], resident: int | None) -> None:
        known = [*chain.operands, *(value for value, _ in chain.constants)]
        first_output = len(known)
        first_scratch = first_output + len(outputs)
        last_use = {value: len(chain.steps) for value in outputs}
        for at, step in enumerate(chain.steps):
            for value in step.inputs:
                last_use[value] = max(last_use.get(value, 0), at)
        place = {value: slot for slot, value in enumerate(known)}
        occupied: dict[int, int] = {}
        """Slot (output or scratch) → the step after which it is free."""
        if resident is not None and self.resident_output is not None:
            place[resident] = first_output + self.resident_output
            occupied[place[resident]] = last_use.get(resident, -1)
        scratch_dtypes: list[np.dtype[Any]] = []
        code: list[_Call] = []
        for at, step in enumerate(chain.steps):
            dtype = chain.dtypes[step.output]
            dies = at if step.in_place else at - 1
            slots = [
                *(first_output + j for j, value in enumerate(outputs) if value == step.output),
                *(first_output + j for j in range(len(outputs))),
                *(first_scratch + j for j in range(len(scratch_dtypes))),
            ]
            for slot in slots:
                held = (
                    self.output_dtypes[slot - first_output]
                    if slot < first_scratch
                    else scratch_dtypes[slot - first_scratch]
                )
                if held == dtype and occupied.get(slot, -1) <= dies:
                    break
            else:
                slot = first_scratch + len(scratch_dtypes)
                scratch_dtypes.append(dtype)
            place[step.output] = slot
            occupied[slot] = last_use.get(step.output, at)
            code.append((step.function, tuple(place[value] for value in step.inputs), slot))
        # A value on its way may sit where another copy writes, so values are moved in a safe order.
        code.extend(
            self._stores([place[value] for value in outputs], first_output, first_scratch, scratch_dtypes)
        )
        self._code = code
        self._constants = [array for _, array in chain.constants]
        compared = {
            value for step in chain.steps if step.function in _SLOW_WITH_SCALARS for value in step.inputs
        }
        self._filled = [
            (len(chain.operands) + at, array)
            for at, (value, array) in enumerate(chain.constants)
            if value in compared
        ]
        self._scratch = [(f"chain{j}", dtype) for j, dtype in enumerate(scratch_dtypes)]
        self.passes = len(code)

    def _stores(
        self, sources: list[int], first_output: int, first_scratch: int, scratch_dtypes: list[np.dtype[Any]]
    ) -> list[_Call]:
        pending = [
            (source, first_output + j) for j, source in enumerate(sources) if source != first_output + j
        ]
        code: list[_Call] = []
        while pending:
            ready = [move for move in pending if all(move[1] != source for source, _ in pending)]
            if not ready:
                source = pending[0][0]
                spare = first_scratch + len(scratch_dtypes)
                scratch_dtypes.append(self.output_dtypes[source - first_output])
                code.append((store, (source,), spare))
                pending = [(spare if s == source else s, target) for s, target in pending]
                continue
            code.extend((store, (source,), target) for source, target in ready)
            pending = [move for move in pending if move not in ready]
        return code

    def run(self, index: Index, operands: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Does one block.

        Args:
            index: the block.
            operands: each of the outputs' rank with sizes of 1 where it is broadcast, or 0-d.
            outputs: whole arrays; the block of each is written.
        """
        if index:
            slots = [
                operand[clipped(index, operand.shape)] if operand.ndim else operand for operand in operands
            ]
            targets = [output[index] for output in outputs]
        else:
            slots, targets = list(operands), list(outputs)
        slots += self._constants
        slots += targets
        shape = targets[0].shape
        for slot, constant in self._filled:
            slots[slot] = _filled(constant.item(), constant.dtype, shape)
        if self._scratch:
            slots += [scratch(key, shape, dtype) for key, dtype in self._scratch]
        for function, inputs, out in self._code:
            if len(inputs) == 2:
                first, second = inputs
                function(slots[first], slots[second], out=slots[out])
            elif len(inputs) == 1:
                function(slots[inputs[0]], out=slots[out])
            else:
                function(*[slots[value] for value in inputs], out=slots[out])


_SLOW_WITH_SCALARS = (np.maximum, np.minimum)
"""Functions that NumPy vectorises for two arrays (0.07 ns an element), not for array and number (0.3 ns)."""

_ROW = 2048


def _filled(value: Any, dtype: Any, shape: tuple[int, ...]) -> Array:
    """The number as a row long enough for vector code, broadcast along the other axes of `shape`."""
    first, length = len(shape), 1
    while first > 0 and length < _ROW:
        first -= 1
        length *= shape[first]
    return _filled_row(value, dtype, shape[first:])


@functools.lru_cache(1024)
def _filled_row(value: Any, dtype: Any, shape: tuple[int, ...]) -> Array:
    row = np.full(shape, value, dtype)
    row.flags.writeable = False
    return row


def clipped(index: Index, shape: Sequence[int]) -> Index:
    """The block's index for an operand that is broadcast along its axes of size 1."""
    if 1 not in shape[: len(index)]:
        return index
    whole = slice(None)
    return tuple(
        part if size != 1 else (0 if isinstance(part, int) else whole)
        for part, size in zip(index, shape, strict=False)
    )


def store(value: Array, out: Array) -> None:
    """Copies, converting as a Cast would."""
    np.copyto(out, value, casting="unsafe")


def choose(condition: Array, first: Array, second: Array, out: Array) -> None:
    """Where; `out` must not overlap `first`."""
    np.copyto(out, second)
    np.copyto(out, first, where=condition)
