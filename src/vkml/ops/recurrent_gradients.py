"""Gradients of recurrent layers: back through time, one step after the other, all products but one at once.

What a step computed is made again of the layer's own output: the gates of all steps are one product of the
hidden states before them. Only an LSTM's memory is followed step by step, and the way back. A cell's forms
(`vkml.ir.recurrence`) give the derivatives, so that whatever a layer may state (activations, clip, peepholes,
...) is differentiated as it is computed.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import field
from typing import Generic

import numpy as np

from vkml.dataclasses import dataclass
from vkml.ir import scalar
from vkml.ir.dtypes import BOOL, INT32, INT64, DType
from vkml.ir.gradients import (
    Emitter,
    T,
    converted,
    expanded,
    expression,
    reshaped,
    reversed_along,
    sliced,
    summed,
    transposed,
    widened,
    zeros,
)
from vkml.ir.recurrence import OUTPUT, Cell, OperandKind
from vkml.ir.scalar import Scalar, ordered, substituted
from vkml.ir.scalar_derivatives import derivative, times
from vkml.ir.types import TensorType

_TOTAL = "total"  # a gate's sum and its part of the input's product, which the cell only adds up
_RUNS = "runs"  # whether a sequence has not ended
_Key = tuple[OperandKind | str, int]


@dataclass(frozen=True)
class RecurrentLayer:
    """What a recurrent layer is."""

    steps: int
    batch: int
    inputs: int
    hidden: int
    gates: int
    cells: Sequence[Cell]
    """Of each direction, without lengths."""
    is_reversed: Sequence[bool]
    """Of each direction."""
    own_bias: Sequence[int]
    """Gates whose recurrent bias the cell adds itself: the first vectors, where there is a bias."""
    states: int
    """How many have a value before the first step: the inputs from the sixth on."""
    is_batch_first: bool


@dataclass
class _Stage:
    """A stage's forms over what is known of all steps."""

    source: int
    gates: tuple[int, ...]
    operands: tuple[_Key, ...]
    results: tuple[tuple[int, Scalar], ...]


def _stages(cell: Cell, dtype: DType, has_lengths: bool) -> list[_Stage]:
    """The stages of a cell, gates added up where nothing else becomes of their parts."""
    return [_stage(cell, at, dtype, has_lengths) for at in range(len(cell.stages))]


def _stage(cell: Cell, number: int, dtype: DType, has_lengths: bool) -> _Stage:
    stage = cell.stages[number]
    keys: list[_Key] = [(operand.kind, operand.index) for operand in stage.operands]
    results = list(stage.results)
    type_ = scalar.arithmetic_type(dtype)

    def given(key: _Key) -> Scalar:
        if key not in keys:
            keys.append(key)
        return scalar.argument(keys.index(key), BOOL if key[0] == _RUNS else type_)

    for gate in stage.gates:
        parts = [
            keys.index(key) for key in ((OperandKind.SUM, gate), (OperandKind.INPUT, gate)) if key in keys
        ]
        if len(parts) < 2:
            continue
        both = scalar.argument(parts[0], type_) + scalar.argument(parts[1], type_)
        total = scalar.argument(len(keys), type_)

        def instead(part: Scalar, both: Scalar = both, total: Scalar = total) -> Scalar | None:
            return total if part is both else None

        added = [(target, substituted(form, instead)) for target, form in results]
        left = {part.value for part in ordered(form for _, form in added) if part.operation == "argument"}
        if left.isdisjoint(parts):
            results = added
            keys.append((_TOTAL, gate))
    if has_lengths:
        for at, (target, form) in enumerate(results):
            if target == OUTPUT:
                results[at] = target, scalar.where(given((_RUNS, 0)), form, 0.0)
            elif target < cell.carried:
                old = given((OperandKind.STATE, target))
                results[at] = target, scalar.where(given((_RUNS, 0)), form, old)
    return _Stage(stage.source, stage.gates, tuple(keys), tuple(results))


@dataclass
class _Known(Generic[T]):
    """What is known of all steps of one direction, in the order in which they run."""

    whole: dict[_Key, T] = field(default_factory=dict)
    """[steps, batch, hidden], or with ones in the place of sizes."""
    pieces: dict[_Key, list[T]] = field(default_factory=dict)
    """[1, batch, hidden] of each step."""


@dataclass
class _Found(Generic[T]):
    """Cotangents of one direction; None for 0."""

    x: T | None = None
    weights: T | None = None
    recurrent: T | None = None
    bias: T | None = None
    states: list[T | None] = field(default_factory=list)
    peepholes: T | None = None


def recurrent_gradients(
    build: Emitter[T],
    layer: RecurrentLayer,
    inputs: Sequence[T | None],
    output: T,
    cotangents: Sequence[T | None],
    needed: Sequence[bool],
) -> list[T | None]:
    """The cotangents of a recurrent layer's inputs.

    Args:
        build: the emitter.
        layer: what it is.
        inputs: X, W, R, B, sequence_lens, initial_h, initial_c, P as far as it has them.
        output: Y.
        cotangents: of Y and the last states.
        needed: which are wanted.
    """
    given: list[T | None] = [*inputs, *[None] * (8 - len(inputs))]
    wanted = [*needed, *[False] * (8 - len(needed))]
    first = given[0]
    assert first is not None, "an input that must be there"
    dtype = build.type_of(first).dtype
    states = range(5, 5 + layer.states)
    if not layer.steps:
        made: list[T | None] = [None] * len(given)
        for at, cotangent in zip(states, cotangents[1:], strict=False):
            made[at] = _started(build, layer, cotangent, given[4], 1 if layer.is_batch_first else 0)
        return [value if wanted[at] else None for at, value in enumerate(made)][: len(inputs)]
    order = (1, 0, 2) if layer.is_batch_first else (0, 1, 2)
    along = (1, 2, 0, 3) if layer.is_batch_first else (0, 1, 2, 3)

    def wide(x: T | None, axes: Sequence[int] | None = None) -> T | None:
        if x is None:
            return None
        return widened(build, x if axes is None else transposed(build, x, axes))

    plain = [
        *(wide(x, order if at == 0 or at in states else None) for at, x in enumerate(given[:4])),
        given[4],
    ]
    plain += [wide(x, order if at in states else None) for at, x in enumerate(given[5:], 5)]
    whole, counted = wide(output, along), wide(cotangents[0], along)
    last = [wide(x, order) for x in cotangents[1:]]
    last += [None] * (layer.states - len(last))
    found = [
        _Direction(build, layer, at, plain, whole, counted, last, wanted).run()
        for at in range(len(layer.cells))
    ]

    def joined(parts: Sequence[T | None], at: int) -> T | None:
        original = given[at]
        if original is None or not wanted[at] or all(part is None for part in parts):
            return None
        known = next(part for part in parts if part is not None)
        filled = [zeros(build, build.type_of(known)) if part is None else part for part in parts]
        together = filled[0] if len(filled) == 1 else build.apply("Concat", *filled, axis=0)
        if at in states:
            together = transposed(build, together, order)
        return converted(build, together, dtype)

    made = [None] * len(given)
    xs = [part.x for part in found if part.x is not None]
    if wanted[0] and xs:
        total = xs[0] if len(xs) == 1 else build.apply("Sum", *xs)
        made[0] = converted(build, transposed(build, total, order), dtype)
    made[1] = joined([part.weights for part in found], 1)
    made[2] = joined([part.recurrent for part in found], 2)
    made[3] = joined([part.bias for part in found], 3)
    for n, at in enumerate(states):
        made[at] = joined([part.states[n] for part in found], at)
    made[7] = joined([part.peepholes for part in found], 7) if layer.states == 2 else None
    return made[: len(inputs)]


def _started(build: Emitter[T], layer: RecurrentLayer, x: T | None, lengths: T | None, axis: int) -> T | None:
    """What comes to a state before the first step; nothing to sequences without one, which begin with 0."""
    if x is None or lengths is None:
        return x
    has_steps = build.apply("Greater", lengths, build.constant(0, INT32))
    shape = (layer.batch, 1) if axis == 0 else (layer.batch, 1, 1)
    zero = build.constant(0, build.type_of(x).dtype)
    return build.apply("Where", reshaped(build, has_steps, shape), x, zero)


@functools.lru_cache(maxsize=1024)
def _total(incoming: tuple[tuple[Scalar, Scalar], ...], at: int) -> Scalar | None:
    """What forms times their cotangents give to an argument; None for nothing."""
    total: Scalar | None = None
    for form, cotangent in incoming:
        slope = derivative(form, at)
        if slope is not None:
            part = times(slope, cotangent)
            total = part if total is None else total + part
    return total


class _Direction(Generic[T]):
    """One direction's way back.

    Args:
        build: the emitter.
        layer: what it is of.
        number: of the direction.
        inputs: of the layer, computed in, batches behind steps.
        whole: Y, [steps, directions, batch, hidden].
        counted: its cotangent.
        last: cotangents of the states after the last step, [directions, batch, hidden].
        needed: which inputs' are wanted.
    """

    def __init__(
        self,
        build: Emitter[T],
        layer: RecurrentLayer,
        number: int,
        inputs: Sequence[T | None],
        whole: T | None,
        counted: T | None,
        last: Sequence[T | None],
        needed: Sequence[bool],
    ) -> None:
        x, w, r, bias, lengths, peepholes = *inputs[:5], inputs[7]
        assert x is not None and w is not None and r is not None and whole is not None
        self.build, self.layer, self.number, self.needed = build, layer, number, needed
        self.is_reversed = layer.is_reversed[number]
        self.dtype = build.type_of(x).dtype
        self.lengths, self.initial = lengths, inputs[5:7]
        self.x = self._in_order(x)
        hidden, gates = layer.hidden, layer.gates
        self.w = reshaped(build, self._mine(w), (gates * hidden, layer.inputs))
        self.r = reshaped(build, self._mine(r), (gates * hidden, hidden))
        self.bias = None if bias is None else reshaped(build, self._mine(bias), (2 * gates * hidden,))
        self.peepholes = None if peepholes is None else reshaped(build, self._mine(peepholes), (3 * hidden,))
        self.y = self._of_output(whole)
        self.counted = None if counted is None else self._steps(self._of_output(counted))
        self.last: list[T | None] = [None if x is None else self._mine(x) for x in last]
        self.cell = layer.cells[number]
        self.stages = _stages(self.cell, self.dtype, lengths is not None)
        self.known: _Known[T] = _Known()

    def _mine(self, x: T) -> T:
        """This direction's part of what has directions as its first axis."""
        return sliced(self.build, x, 0, self.number, self.number + 1)

    def _in_order(self, x: T) -> T:
        """In the order in which steps run, and back."""
        return reversed_along(self.build, x, [0]) if self.is_reversed else x

    def _of_output(self, x: T) -> T:
        part = sliced(self.build, x, 1, self.number, self.number + 1)
        return self._in_order(
            reshaped(self.build, part, (self.layer.steps, self.layer.batch, self.layer.hidden))
        )

    def _steps(self, x: T) -> list[T]:
        """[steps, …] step by step."""
        return self._split(x, 0, self.layer.steps, 1)

    def _split(self, x: T, axis: int, count: int, size: int) -> list[T]:
        if count == 1:
            return [x]
        sizes = self.build.constant([size] * count, INT64)
        return self.build.apply_all("Split", [x, sizes], count, axis=axis)

    def _rows(self, gates: Sequence[int]) -> T:
        """The recurrent weights of some gates, [gates * hidden, hidden]."""
        hidden = self.layer.hidden
        if tuple(gates) == tuple(range(self.layer.gates)):
            return self.r
        parts = [sliced(self.build, self.r, 0, gate * hidden, (gate + 1) * hidden) for gate in gates]
        return parts[0] if len(parts) == 1 else self.build.apply("Concat", *parts, axis=0)

    # -- what the steps computed ----------------------------------------------------------------------------

    def _recall(self) -> None:
        build, layer, known = self.build, self.layer, self.known
        flags: T | None = None
        if self.lengths is not None:
            numbers = np.arange(layer.steps, dtype=np.int32)[:: -1 if self.is_reversed else 1]
            at = build.constant(numbers.reshape(-1, 1, 1), INT32)
            flags = build.apply("Less", at, reshaped(build, self.lengths, (1, layer.batch, 1)))
            known.whole[_RUNS, 0] = flags
        self._recall_hidden(flags)
        self._recall_inputs()
        for stage in self.stages:
            self._recall_sums(stage)
            for target, form in stage.results:
                if target >= self.cell.carried:
                    known.whole[OperandKind.STATE, target] = self._applied(
                        form, [known.whole[key] for key in stage.operands]
                    )
        for key, value in known.whole.items():
            is_same = build.type_of(value).dims[0] == 1 and layer.steps > 1
            known.pieces[key] = [value] * layer.steps if is_same else self._steps(value)
        if self.cell.carried > 1:
            self._recall_memory()

    def _initial(self, at: int) -> T:
        given = self.initial[at]
        if given is None:
            return zeros(self.build, TensorType(self.dtype, (1, self.layer.batch, self.layer.hidden)))
        return self._mine(given)

    def _recall_hidden(self, flags: T | None) -> None:
        """The hidden state before each step: the output of the one before."""
        build, steps = self.build, self.layer.steps
        start = self._initial(0)
        before = start
        if steps > 1:
            rest = sliced(build, self.y, 0, 0, steps - 1)
            if flags is not None and self.is_reversed:
                # Where a sequence has not begun, the state is still the first one.
                rest = build.apply("Where", sliced(build, flags, 0, 0, steps - 1), rest, start)
            before = build.apply("Concat", start, rest, axis=0)
        self.known.whole[OperandKind.STATE, 0] = before

    def _recall_inputs(self) -> None:
        build, layer = self.build, self.layer
        hidden, gates = layer.hidden, layer.gates
        made = build.apply("MatMul", self.x, transposed(build, self.w, (1, 0)))
        vectors: list[T] = []
        if self.bias is not None:
            own = self._split(self.bias, 0, 2 * gates, hidden)
            parts = [
                own[gate] if gate in layer.own_bias else build.apply("Add", own[gate], own[gates + gate])
                for gate in range(gates)
            ]
            made = build.apply("Add", made, parts[0] if gates == 1 else build.apply("Concat", *parts, axis=0))
            vectors = [own[gates + gate] for gate in layer.own_bias]
        if self.peepholes is not None:
            vectors += self._split(self.peepholes, 0, 3, hidden)
        for at, vector in enumerate(vectors):
            self.known.whole[OperandKind.VECTOR, at] = reshaped(build, vector, (1, 1, hidden))
        for gate, value in enumerate(self._split(made, 2, gates, hidden)):
            self.known.whole[OperandKind.INPUT, gate] = value

    def _recall_sums(self, stage: _Stage) -> None:
        build, known = self.build, self.known
        if not stage.gates:
            return
        source = known.whole[OperandKind.STATE, stage.source]
        made = build.apply("MatMul", source, transposed(build, self._rows(stage.gates), (1, 0)))
        values = self._split(made, 2, len(stage.gates), self.layer.hidden)
        for gate, value in zip(stage.gates, values, strict=True):
            known.whole[OperandKind.SUM, gate] = value
            if (_TOTAL, gate) in stage.operands:
                known.whole[_TOTAL, gate] = build.apply("Add", value, known.whole[OperandKind.INPUT, gate])

    def _recall_memory(self) -> None:
        """Further states before each step, one step after the other."""
        [stage] = self.stages
        for state in range(1, self.cell.carried):
            self.known.pieces[OperandKind.STATE, state] = [self._initial(state)]
        forms = [(target, form) for target, form in stage.results if target > 0]
        for step in range(self.layer.steps - 1):
            values = [self.known.pieces[key][step] if self._has(key) else None for key in stage.operands]
            made = [(target, self._applied(form, values)) for target, form in forms]
            for target, value in made:
                self.known.pieces[OperandKind.STATE, target].append(value)

    def _has(self, key: _Key) -> bool:
        return key in self.known.pieces

    def _applied(self, form: Scalar, values: Sequence[T | None]) -> T:
        """A form of what it names; the rest may be absent."""
        known = next(value for value in values if value is not None)
        return expression(
            self.build, form, [known if value is None else value for value in values], self.dtype
        )

    # -- back -----------------------------------------------------------------------------------------------

    def run(self) -> _Found[T]:
        self._recall()
        steps = self.layer.steps
        parts: dict[_Key, list[T | None]] = {}
        sums: list[list[T | None]] = [[None] * steps for _ in self.stages]
        states: list[T | None] = [*self.last, *[None] * (self.cell.states - len(self.last))]
        for step in reversed(range(steps)):
            is_last = step == 0 and not self.needed[5]
            for number in reversed(range(len(self.stages))):
                stage = self.stages[number]
                found = self._through(stage, step, states)
                states = [None if at in dict(stage.results) else value for at, value in enumerate(states)]
                for key, value in found.items():
                    if key[0] is OperandKind.STATE:
                        states[key[1]] = self._added(states[key[1]], value)
                    else:
                        parts.setdefault(key, [None] * steps)[step] = value
                together = self._of_sums(stage, found)
                sums[number][step] = together
                # Into an earlier state of the same step, or the step before.
                if together is not None and not (is_last and stage.source == 0):
                    through = self.build.apply("MatMul", together, self._rows(stage.gates))
                    states[stage.source] = self._added(states[stage.source], through)
        return self._finished(parts, sums, states)

    def _added(self, a: T | None, b: T) -> T:
        return b if a is None else self.build.apply("Add", a, b)

    def _through(self, stage: _Stage, step: int, states: Sequence[T | None]) -> dict[_Key, T]:
        """Cotangents of a stage's operands at a step."""
        values: list[T | None] = [
            self.known.pieces[key][step] if self._has(key) else None for key in stage.operands
        ]
        incoming: list[tuple[Scalar, Scalar]] = []
        for target, form in stage.results:
            given = states[target] if target != OUTPUT else self.counted[step] if self.counted else None
            if given is not None:
                incoming.append((form, scalar.argument(len(values), self.dtype)))
                values.append(given)
        found: dict[_Key, T] = {}
        for at, key in enumerate(stage.operands):
            total = None if key[0] == _RUNS else _total(tuple(incoming), at)
            if total is not None:
                found[key] = self._applied(total, values)
        return found

    def _of_sums(self, stage: _Stage, found: dict[_Key, T]) -> T | None:
        """The cotangents of a stage's sums, [1, batch, gates * hidden]."""
        each = [found.get((_TOTAL, gate), found.get((OperandKind.SUM, gate))) for gate in stage.gates]
        return self._side_by_side(each, 1)

    def _side_by_side(self, each: Sequence[T | None], steps: int) -> T | None:
        if all(value is None for value in each):
            return None
        type_ = TensorType(self.dtype, (steps, self.layer.batch, self.layer.hidden))
        filled = [zeros(self.build, type_) if value is None else value for value in each]
        return filled[0] if len(filled) == 1 else self.build.apply("Concat", *filled, axis=2)

    def _stacked(self, parts: Sequence[T | None]) -> T | None:
        known = next((part for part in parts if part is not None), None)
        if known is None:
            return None
        filled = [zeros(self.build, self.build.type_of(known)) if part is None else part for part in parts]
        return filled[0] if len(filled) == 1 else self.build.apply("Concat", *filled, axis=0)

    # -- sums over all steps --------------------------------------------------------------------------------

    def _finished(
        self, parts: dict[_Key, list[T | None]], sums: Sequence[list[T | None]], states: Sequence[T | None]
    ) -> _Found[T]:
        build, layer = self.build, self.layer
        rows, hidden, gates = layer.steps * layer.batch, layer.hidden, layer.gates
        found: _Found[T] = _Found(states=[self._start(value) for value in states[: layer.states]])
        stacked = [self._stacked(each) for each in sums]
        entering = self._entering(parts, stacked)
        if entering is not None:
            flat = reshaped(build, entering, (rows, gates * hidden))
            if self.needed[0]:
                made = build.apply("Gemm", flat, self.w)
                found.x = self._in_order(reshaped(build, made, (layer.steps, layer.batch, layer.inputs)))
            if self.needed[1]:
                given = reshaped(build, self.x, (rows, layer.inputs))
                made = build.apply("Gemm", flat, given, transA=1)
                found.weights = reshaped(build, made, (1, gates * hidden, layer.inputs))
            if self.needed[3]:
                found.bias = self._bias(summed(build, flat, [0]), parts)
        if self.needed[2]:
            found.recurrent = self._recurrent(stacked)
        if self.needed[7]:
            of_each = [self._vector(parts, at) for at in range(3)]
            found.peepholes = reshaped(build, build.apply("Concat", *of_each, axis=0), (1, 3 * hidden))
        return found

    def _start(self, value: T | None) -> T | None:
        return _started(self.build, self.layer, value, self.lengths, 0)

    def _entering(self, parts: dict[_Key, list[T | None]], stacked: Sequence[T | None]) -> T | None:
        """The cotangent of the inputs' product, [steps, batch, gates * hidden]."""
        every = range(self.layer.gates)
        if len(stacked) == 1 and all((_TOTAL, gate) in self.stages[0].operands for gate in every):
            return stacked[0]
        each = [parts.get((_TOTAL, gate), parts.get((OperandKind.INPUT, gate))) for gate in every]
        return self._side_by_side(
            [None if part is None else self._stacked(part) for part in each], self.layer.steps
        )

    def _recurrent(self, stacked: Sequence[T | None]) -> T | None:
        build, layer = self.build, self.layer
        rows, hidden = layer.steps * layer.batch, layer.hidden
        of_gates: dict[int, T] = {}
        for stage, value in zip(self.stages, stacked, strict=True):
            if value is None:
                continue
            source = reshaped(build, self.known.whole[OperandKind.STATE, stage.source], (rows, hidden))
            flat = reshaped(build, value, (rows, len(stage.gates) * hidden))
            made = build.apply("Gemm", flat, source, transA=1)
            of_gates |= zip(stage.gates, self._split(made, 0, len(stage.gates), hidden), strict=True)
        if not of_gates:
            return None
        nothing = TensorType(self.dtype, (hidden, hidden))
        each = [of_gates.get(gate) for gate in range(layer.gates)]
        filled = [zeros(build, nothing) if value is None else value for value in each]
        together = filled[0] if len(filled) == 1 else build.apply("Concat", *filled, axis=0)
        return reshaped(build, together, (1, layer.gates * hidden, hidden))

    def _bias(self, of_inputs: T, parts: dict[_Key, list[T | None]]) -> T:
        """Of both biases, [1, 2 * gates * hidden]."""
        build, hidden, gates = self.build, self.layer.hidden, self.layer.gates
        second = self._split(of_inputs, 0, gates, hidden)
        for at, gate in enumerate(self.layer.own_bias):
            second[gate] = self._vector(parts, at)
        made = build.apply("Concat", of_inputs, *second, axis=0)
        return reshaped(build, made, (1, 2 * gates * hidden))

    def _vector(self, parts: dict[_Key, list[T | None]], at: int) -> T:
        """[hidden]: what all steps of all sequences say of a vector."""
        stacked = self._stacked(parts.get((OperandKind.VECTOR, at), [None]))
        if stacked is None:
            return zeros(self.build, TensorType(self.dtype, (self.layer.hidden,)))
        full = expanded(self.build, stacked, (self.layer.steps, self.layer.batch, self.layer.hidden))
        return summed(self.build, full, [0, 1])
