"""Recurrent layers: LSTM, GRU and RNN."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from vkml.dataclasses import dataclass
from vkml.errors import InvalidGraph, ShapeError
from vkml.ir.dtypes import FLOATS, INT32, DType
from vkml.ir.gradients import Emitter, T
from vkml.ir.graph import Node
from vkml.ir.lowering import CannotLower, Lowering, V, given
from vkml.ir.operator import FLOAT, INT, STRINGS, Array, Operator, operator
from vkml.ir.operator import FLOATS as FLOATS_ATTRIBUTE
from vkml.ir.recurrence import Cell, StageWriter
from vkml.ir.scalar import Scalar, arithmetic_type
from vkml.ir.types import Known, TensorType
from vkml.ops.checks import optional, present, require_dtype, require_rank, require_same_dtype, required
from vkml.ops.limits import check_size
from vkml.ops.pointwise import widened
from vkml.ops.recurrent_activations import Activation, activations_of
from vkml.ops.recurrent_gradients import RecurrentLayer, recurrent_gradients
from vkml.ops.upgrading import renew

_DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
"""Attribute → for each direction, whether it runs from the last step to the first."""


@dataclass(frozen=True)
class RecurrentGeometry:
    """Sizes of a recurrent layer."""

    steps: int
    batch: int
    inputs: int
    hidden: int
    directions: int


@dataclass(frozen=True)
class _Weights:
    """What one direction computes with; of the gates' rows in ONNX's order."""

    input: Array
    """[gates, hidden, inputs]."""
    recurrent: Array
    """[gates, hidden, hidden]."""
    input_bias: Array
    """[gates, hidden]."""
    recurrent_bias: Array
    peepholes: Array
    """[3, hidden] of an LSTM."""


class _Recurrent(Operator):
    """A cell applied step by step; see the operators."""

    inputs = (3, 6)
    outputs = (0, 2)
    attributes = {
        "activation_alpha": None,
        "activation_beta": None,
        "activations": None,
        "clip": None,
        "direction": "forward",
        "hidden_size": None,
        "layout": 0,
    }
    attribute_types = {
        "activation_alpha": FLOATS_ATTRIBUTE,
        "activation_beta": FLOATS_ATTRIBUTE,
        "activations": STRINGS,
        "clip": FLOAT,
        "hidden_size": INT,
        "output_sequence": INT,
    }
    gates: ClassVar[int]
    functions: ClassVar[tuple[str, ...]]
    """The default activations of one direction."""
    clipped: ClassVar[int] = 2
    """How many of them have what they are applied to clipped, as onnxruntime has it: not an LSTM's third."""
    initial: ClassVar[tuple[int, ...]] = (5,)
    """Inputs with the states before the first step."""

    def multiply_adds(
        self, node: Node, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]
    ) -> int:
        x, w, r = (present(inputs, index) for index in range(3))
        return math.prod(x.dims[:2]) * (w.elements + r.elements)

    def upgrade(self, node: Node) -> Node:
        # Before opset 7, `output_sequence` said whether Y may be absent; it always may.
        return renew(node, drop=("output_sequence",)) if node.version < 7 else node

    # -- shapes ---------------------------------------------------------------------------------------------

    def geometry(self, node: Node, x: Sequence[int], recurrent: Sequence[int]) -> RecurrentGeometry:
        batch, steps = (x[0], x[1]) if node.attributes["layout"] else (x[1], x[0])
        return RecurrentGeometry(steps, batch, x[2], recurrent[2], len(self._reversed(node)))

    def _reversed(self, node: Node) -> tuple[bool, ...]:
        found = _DIRECTIONS.get(node.attributes["direction"].lower())
        if found is None:
            raise InvalidGraph(
                f"{node.label}: the direction is {node.attributes['direction']!r}; "
                f"there are {', '.join(_DIRECTIONS)}"
            )
        return found

    def _functions(self, node: Node) -> list[list[Activation]]:
        """The activations of each direction."""
        return activations_of(node, len(self._reversed(node)), self.functions, self.clipped)

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x, weights, recurrent = (required(node, inputs, index) for index in range(3))
        require_dtype(node, x, FLOATS, "X")
        for found, what in ((x, "X"), (weights, "W"), (recurrent, "R")):
            require_rank(node, found, 3, 3, what)
        layout = node.attributes["layout"]
        if layout not in (0, 1):
            raise InvalidGraph(f"{node.label}: layout is {layout}; it must be 0 or 1")
        sizes = self.geometry(node, x.dims, recurrent.dims)
        stated = node.attributes["hidden_size"]
        if stated is not None and stated != sizes.hidden:
            raise ShapeError(f"{node.label}: hidden_size is {stated}, R of shape {list(recurrent.dims)}")
        self._functions(node)
        rows, state = self.gates * sizes.hidden, self._state_shape(node, sizes)
        shapes = {
            1: ("W", (sizes.directions, rows, sizes.inputs)),
            2: ("R", (sizes.directions, rows, sizes.hidden)),
            3: ("B", (sizes.directions, 2 * rows)),
            5: ("initial_h", state),
            6: ("initial_c", state),
            7: ("P", (sizes.directions, 3 * sizes.hidden)),
        }
        for index, (what, shape) in shapes.items():
            given: Known | None = optional(inputs, index)
            if given is None:
                continue
            require_same_dtype(node, x, given, what)
            if given.dims != shape:
                raise ShapeError(
                    f"{node.label}: {what} must have the shape {list(shape)}, it has {list(given.dims)} "
                    f"(X {list(x.dims)}, R {list(recurrent.dims)}, {node.attributes['direction']})"
                )
        lengths: Known | None = optional(inputs, 4)
        if lengths is not None:
            require_dtype(node, lengths, (INT32,), "sequence_lens")
            if lengths.dims != (sizes.batch,):
                raise ShapeError(
                    f"{node.label}: sequence_lens must have {sizes.batch} elements, its shape is "
                    f"{list(lengths.dims)}"
                )
        whole = (sizes.steps, sizes.directions, sizes.batch, sizes.hidden)
        if layout:
            whole = (sizes.batch, sizes.steps, sizes.directions, sizes.hidden)
        types = [
            check_size(node, x.dtype, whole),
            *[check_size(node, x.dtype, state)] * (self.outputs[1] - 1),
        ]
        return types[: len(node.outputs)]

    def _state_shape(self, node: Node, sizes: RecurrentGeometry) -> tuple[int, int, int]:
        if node.attributes["layout"]:
            return sizes.batch, sizes.directions, sizes.hidden
        return sizes.directions, sizes.batch, sizes.hidden

    # -- reference ------------------------------------------------------------------------------------------

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x = widened(present(inputs, 0))
        sizes = self.geometry(node, x.shape, present(inputs, 2).shape)
        if node.attributes["layout"]:
            x = x.swapaxes(0, 1)
        states = [self._initial_state(node, inputs, index, sizes, x.dtype) for index in self.initial]
        whole = np.zeros((sizes.steps, sizes.directions, sizes.batch, sizes.hidden), x.dtype)
        lengths: Array | None = optional(inputs, 4)
        if lengths is None:
            lengths = np.full(sizes.batch, sizes.steps)
        functions = self._functions(node)
        for direction, is_reversed in enumerate(self._reversed(node)):
            weights = self._weights(inputs, direction, sizes, x.dtype)
            held = [state[direction] for state in states]
            for step in range(sizes.steps)[:: -1 if is_reversed else 1]:
                is_running = (step < lengths)[:, None]
                with np.errstate(all="ignore"):
                    made = self.step(node, x[step], held, weights, functions[direction])
                held = [np.where(is_running, new, old) for new, old in zip(made, held, strict=True)]
                whole[step, direction] = np.where(is_running, made[0], 0)
            for state, last in zip(states, held, strict=True):
                state[direction] = last
        if node.attributes["layout"]:
            whole, states = whole.transpose(2, 0, 1, 3), [state.swapaxes(0, 1) for state in states]
        dtype = present(inputs, 0).dtype
        return [np.ascontiguousarray(made.astype(dtype, copy=False)) for made in (whole, *states)][
            : len(node.outputs)
        ]

    def _initial_state(
        self, node: Node, inputs: Sequence[Array | None], index: int, sizes: RecurrentGeometry, dtype: Any
    ) -> Array:
        """[directions, batch, hidden]; zeros for sequences without a step, as onnxruntime has it."""
        given: Array | None = optional(inputs, index)
        state = np.zeros((sizes.directions, sizes.batch, sizes.hidden), dtype)
        if given is not None:
            state[...] = given.swapaxes(0, 1) if node.attributes["layout"] else given
        lengths: Array | None = optional(inputs, 4)
        if lengths is not None:
            state[:, lengths <= 0] = 0
        return state

    def _weights(
        self, inputs: Sequence[Array | None], direction: int, sizes: RecurrentGeometry, dtype: Any
    ) -> _Weights:
        def part(index: int, shape: tuple[int, ...]) -> Array:
            given: Array | None = optional(inputs, index)
            if given is None:
                return np.zeros(shape, dtype)
            return np.asarray(given[direction], dtype).reshape(shape)

        gates, hidden = self.gates, sizes.hidden
        bias = part(3, (2, gates, hidden))
        return _Weights(
            part(1, (gates, hidden, sizes.inputs)),
            part(2, (gates, hidden, hidden)),
            bias[0],
            bias[1],
            part(7, (3, hidden)),
        )

    def step(
        self,
        node: Node,
        x: Array,
        states: Sequence[Array],
        weights: _Weights,
        functions: Sequence[Activation],
    ) -> list[Array]:
        """The states [batch, hidden] after a step; the first is the output, too."""
        raise NotImplementedError(self.name)

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        x, recurrent = (build.type_of(present(inputs, index)) for index in (0, 2))
        sizes = self.geometry(node, x.dims, recurrent.dims)
        has_peepholes = optional(inputs, 7) is not None
        layer = RecurrentLayer(
            sizes.steps,
            sizes.batch,
            sizes.inputs,
            sizes.hidden,
            self.gates,
            [
                self.cell(node, functions, x.dtype, False, has_peepholes)
                for functions in self._functions(node)
            ],
            self._reversed(node),
            self._gates_with_own_bias(node),
            len(self.initial),
            bool(node.attributes["layout"]),
        )
        return recurrent_gradients(build, layer, inputs, outputs[0], cotangents, needed)

    # -- lowering -------------------------------------------------------------------------------------------

    def lower(self, build: Lowering[V], node: Node, inputs: Sequence[V | None]) -> Sequence[V | None] | None:
        x, weights, recurrent = (given(inputs, index) for index in range(3))
        sizes = self.geometry(node, x.shape, recurrent.shape)
        if not sizes.inputs:
            raise CannotLower("a product over nothing")
        order = (1, 0, 2) if node.attributes["layout"] else (0, 1, 2)
        lengths, peepholes = optional(inputs, 4), optional(inputs, 7)
        dtype = arithmetic_type(x.dtype)
        functions = self._functions(node)
        cells = [
            self.cell(node, of_direction, dtype, lengths is not None, peepholes is not None)
            for of_direction in (functions[:1] if functions[:1] * len(functions) == functions else functions)
        ]
        gates = (sizes.directions, self.gates, sizes.hidden)
        bias, vectors = self._biases(build, node, optional(inputs, 3), sizes)
        if peepholes is not None:
            vectors += _parts(build, peepholes, sizes, 3)
        return build.recurrence(
            cells,
            self._input_product(build, x.transpose(order), weights, bias, sizes, dtype),
            build.reshape(recurrent, (*gates, sizes.hidden)),
            vectors=vectors,
            lengths=lengths,
            initial=[
                None if state is None else state.transpose(order)
                for state in (optional(inputs, index) for index in self.initial)
            ],
            is_reversed=self._reversed(node),
            dtype=x.dtype,
            is_batch_first=bool(node.attributes["layout"]),
            wanted=[bool(name) for name in node.outputs],
        )

    def _input_product(
        self, build: Lowering[V], x: V, weights: V, bias: V | None, sizes: RecurrentGeometry, dtype: DType
    ) -> V:
        """[steps, batch, directions, gates, hidden]: what all inputs add to the gates, in one product."""
        rows, columns = sizes.steps * sizes.batch, sizes.directions * self.gates * sizes.hidden
        result = TensorType(dtype, (1, rows, columns))
        shape = (sizes.steps, sizes.batch, sizes.directions, self.gates, sizes.hidden)
        if not rows:
            return build.scratch(TensorType(dtype, shape))
        right = build.reshape(weights, (1, columns, sizes.inputs)).transpose((0, 2, 1))
        with build.step(result):
            if bias is not None:
                build.before_epilogue(result, addend=build.reshape(bias, (1, 1, columns)).expand(result.dims))
            [made] = build.matmul(build.reshape(x, (1, rows, sizes.inputs)), right)
        return build.reshape(made, shape)

    def _biases(
        self, build: Lowering[V], node: Node, given: V | None, sizes: RecurrentGeometry
    ) -> tuple[V | None, list[V]]:
        """The bias of the input's product, contiguous, and vectors that the cell adds itself."""
        if given is None:
            return None, []
        shape = (sizes.directions, 2, self.gates, sizes.hidden)
        apart = self._gates_with_own_bias(node)

        def both(array: Array) -> Array:
            pairs = widened(array.reshape(shape))
            joined = pairs[:, 0] + pairs[:, 1]
            joined[:, apart] = pairs[:, 0, apart]
            return joined.astype(array.dtype)

        if build.is_whole_constant(given):
            bias = build.prepared(given, f"recurrent bias {shape} {apart}", both)
        else:
            pairs = build.reshape(given, shape)
            bias = build.scratch(TensorType(given.dtype, (sizes.directions, self.gates, sizes.hidden)))
            for gate in range(self.gates):
                at = (sizes.directions, 1, 1, sizes.hidden)
                first, second = (pairs.slice((0, which, gate, 0), (1, 1, 1, 1), at) for which in (0, 1))
                target = bias.slice((0, gate, 0), (1, 1, 1), (sizes.directions, 1, sizes.hidden))
                place = target.reshape(at)
                assert place is not None  # of memory that is contiguous
                if gate in apart:
                    build.copy(first, place)
                else:
                    build.compute(lambda body, a, b: body("Add", a, b), [first, second], place)
        own = _parts(
            build,
            build.reshape(given, (sizes.directions, 2 * self.gates * sizes.hidden)),
            sizes,
            2 * self.gates,
        )
        return bias, [own[self.gates + gate] for gate in apart]

    def _gates_with_own_bias(self, node: Node) -> list[int]:
        """Gates whose recurrent bias is not simply added to the input's."""
        return []

    def cell(
        self, node: Node, functions: Sequence[Activation], dtype: Any, has_lengths: bool, has_peepholes: bool
    ) -> Cell:
        """One step for back ends."""
        raise NotImplementedError(self.name)


def _parts(build: Lowering[V], view: V, sizes: RecurrentGeometry, count: int) -> list[V]:
    """[directions, count * hidden] as so many vectors [directions, hidden]."""
    whole = build.reshape(view, (sizes.directions, count, sizes.hidden))
    return [
        build.reshape(
            whole.slice((0, at, 0), (1, 1, 1), (sizes.directions, 1, sizes.hidden)),
            (sizes.directions, sizes.hidden),
        )
        for at in range(count)
    ]


def _product(x: Array, weights: Array, bias: Array) -> Array:
    return np.asarray(x @ weights.T + bias)


@operator()
class RNN(_Recurrent):
    """H = f(X Wᵀ + H Rᵀ + Wb + Rb)."""

    attributes = {**_Recurrent.attributes, "activations": None}
    gates = 1
    functions = ("Tanh",)

    def step(
        self,
        node: Node,
        x: Array,
        states: Sequence[Array],
        weights: _Weights,
        functions: Sequence[Activation],
    ) -> list[Array]:
        total = _product(x, weights.input[0], weights.input_bias[0])
        total = total + _product(states[0], weights.recurrent[0], weights.recurrent_bias[0])
        return [functions[0].evaluate(total)]

    def cell(
        self, node: Node, functions: Sequence[Activation], dtype: Any, has_lengths: bool, has_peepholes: bool
    ) -> Cell:
        stage = StageWriter(dtype, 0, has_lengths=has_lengths)
        hidden = functions[0].form(stage.sum(0) + stage.input(0))
        stage.carry(0, hidden)
        stage.output(hidden)
        return Cell(1, 1, 1, (stage.finish(),))


@operator()
class GRU(_Recurrent):
    """Gates z and r and a candidate n from X and H; then H = (1 - z) n + z H.

    The candidate is g(Xn + (r H) Rᵀ + Rb), with `linear_before_reset` g(Xn + r (H Rᵀ + Rb)).
    """

    attributes = {**_Recurrent.attributes, "linear_before_reset": 0}
    gates = 3
    functions = ("Sigmoid", "Tanh")

    def step(
        self,
        node: Node,
        x: Array,
        states: Sequence[Array],
        weights: _Weights,
        functions: Sequence[Activation],
    ) -> list[Array]:
        [hidden] = states
        given = [_product(x, weights.input[gate], weights.input_bias[gate]) for gate in range(3)]

        def recurrent(state: Array, gate: int) -> Array:
            return _product(state, weights.recurrent[gate], weights.recurrent_bias[gate])

        update = functions[0].evaluate(given[0] + recurrent(hidden, 0))
        reset = functions[0].evaluate(given[1] + recurrent(hidden, 1))
        if node.attributes["linear_before_reset"]:
            candidate = functions[1].evaluate(given[2] + reset * recurrent(hidden, 2))
        else:
            candidate = functions[1].evaluate(given[2] + recurrent(reset * hidden, 2))
        return [(1 - update) * candidate + update * hidden]

    def _gates_with_own_bias(self, node: Node) -> list[int]:
        return [2] if node.attributes["linear_before_reset"] else []

    def cell(
        self, node: Node, functions: Sequence[Activation], dtype: Any, has_lengths: bool, has_peepholes: bool
    ) -> Cell:
        first = StageWriter(dtype, 0, has_lengths=has_lengths)
        update, reset = (functions[0].form(first.sum(gate) + first.input(gate)) for gate in (0, 1))
        if node.attributes["linear_before_reset"]:
            own = first.sum(2)
            if len(node.inputs) > 3 and node.inputs[3]:
                own = own + first.vector(0)
            _close_gru(first, update, functions[1].form(first.input(2) + reset * own))
            return Cell(3, 1, 1, (first.finish(),))
        # The update gate, and the reset one times H, wait for the second stage as states 1 and 2.
        first.keep(1, update)
        first.keep(2, reset * first.state(0))
        second = StageWriter(dtype, 2, has_lengths=has_lengths)
        _close_gru(second, second.state(1), functions[1].form(second.sum(2) + second.input(2)))
        return Cell(3, 1, 3, (first.finish(), second.finish()))


def _close_gru(stage: StageWriter, update: Scalar, candidate: Scalar) -> None:
    hidden = (1 - update) * candidate + update * stage.state(0)
    stage.carry(0, hidden)
    stage.output(hidden)


@operator()
class LSTM(_Recurrent):
    """Gates i, o, f and a candidate c from X and H; then C = f C + i c and H = o h(C).

    With peepholes P, i and f see P C as well, and o sees P times the new C. `input_forget`: f is 1 - i.
    """

    inputs = (3, 8)
    outputs = (0, 3)
    attributes = {**_Recurrent.attributes, "input_forget": 0}
    gates = 4
    functions = ("Sigmoid", "Tanh", "Tanh")
    initial = (5, 6)

    def step(
        self,
        node: Node,
        x: Array,
        states: Sequence[Array],
        weights: _Weights,
        functions: Sequence[Activation],
    ) -> list[Array]:
        hidden, memory = states
        gate_input, gate_output, gate_forget, candidate = (
            _product(x, weights.input[gate], weights.input_bias[gate])
            + _product(hidden, weights.recurrent[gate], weights.recurrent_bias[gate])
            for gate in range(4)
        )
        let_in = functions[0].evaluate(gate_input + weights.peepholes[0] * memory)
        keep = 1 - let_in
        if not node.attributes["input_forget"]:
            keep = functions[0].evaluate(gate_forget + weights.peepholes[2] * memory)
        memory = keep * memory + let_in * functions[1].evaluate(candidate)
        let_out = functions[0].evaluate(gate_output + weights.peepholes[1] * memory)
        return [let_out * functions[2].evaluate(memory), memory]

    def cell(
        self, node: Node, functions: Sequence[Activation], dtype: Any, has_lengths: bool, has_peepholes: bool
    ) -> Cell:
        stage = StageWriter(dtype, 0, has_lengths=has_lengths)

        def gate(number: int, function: Activation, peephole: int, memory: Scalar) -> Scalar:
            total = stage.sum(number) + stage.input(number)
            if has_peepholes and number != 3:
                total = total + stage.vector(peephole) * memory
            return function.form(total)

        old = stage.state(1)
        let_in = gate(0, functions[0], 0, old)
        keep = 1 - let_in if node.attributes["input_forget"] else gate(2, functions[0], 2, old)
        memory = keep * old + let_in * gate(3, functions[1], 0, old)
        hidden = gate(1, functions[0], 1, memory) * functions[2].form(memory)
        stage.carry(0, hidden)
        stage.carry(1, memory)
        stage.output(hidden)
        return Cell(4, 2, 2, (stage.finish(),))
