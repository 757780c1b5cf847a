"""Graphs of nodes applied to traced values: branches that are taken, loops trip by trip."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from vkml.dataclasses import dataclass
from vkml.engine.device_array import on_host
from vkml.errors import InvalidGraph, NotImplemented, RuntimeException
from vkml.ir import Constant, DType, Graph, Known, Node, Operator, dtypes, find
from vkml.ir.gradients import expanded, zeros
from vkml.ir.size import is_number
from vkml.ir.types import UNKNOWN, SequenceType, TensorType, ValueType, static
from vkml.ops.bodies import infer_body
from vkml.ops.control import ControlFlow, stated_shape
from vkml.passes.open_values import evaluate_open, is_open
from vkml.tracing.emit import EMITTER, apply, apply_all, constant
from vkml.tracing.evaluation import Recorded, evaluate, graph_of
from vkml.tracing.gradient import gradients
from vkml.tracing.value import Kind, Traced, tensor_type, tracking

Array = np.ndarray[Any, Any]
Item: TypeAlias = "Traced | list[Any] | None"
"""A tensor, a sequence, or what is absent."""
MOST_FOLDED = 4096
"""Elements of results that are computed as they are recorded, where all that they are made of is constant."""
MOST_PENDING = 1000
"""Depth of what a loop carries at which it is computed, so that many trips take no memory without end."""


def elements(value: Traced) -> Array:
    """The elements of a value, computed if they are not known."""
    evaluate([value])
    return np.asarray(on_host(value.data))


class GraphRecorder:
    """Applies the nodes of graphs that are in their newest form.

    What decides shapes, trips and branches is looked at where it is no constant. What is recorded are the
    operators that a run of the graph applies, so that gradients flow through bodies to what these carry and
    capture, to any order.

    Args:
        values: constants of the graphs, by identity, that stand for values of the program.
        look: gives elements of values; may refuse.
    """

    def __init__(
        self, values: Mapping[int, Traced] | None = None, look: Callable[[Traced], Array] = elements
    ) -> None:
        self._values = dict(values or {})
        self._look = look
        self._constants: dict[int, tuple[Constant, Traced]] = {}

    def run(
        self, graph: Graph, inputs: Sequence[Item], outer: Mapping[str, Item] | None = None
    ) -> list[Item]:
        """The outputs of a graph.

        Args:
            graph: normalised.
            inputs: of its inputs.
            outer: values that it captures, others among them.
        """
        found = self.values(graph, inputs, outer)
        return [found[value.name] for value in graph.outputs]

    def values(
        self, graph: Graph, inputs: Sequence[Item], outer: Mapping[str, Item] | None = None
    ) -> dict[str, Item]:
        """All values of a graph, and those around it."""
        found: dict[str, Item] = dict(outer or {})
        found.update((name, self._constant(value)) for name, value in graph.constants.items())
        found.update(zip((value.name for value in graph.inputs), inputs, strict=True))
        for node in graph.nodes:
            given = [found[name] if name else None for name in node.inputs]
            found.update(zip(node.outputs, self._node(node, given, found), strict=False))
        return found

    def _constant(self, value: Constant) -> Traced:
        own = self._values.get(id(value))
        if own is not None:
            return own
        kept = self._constants.get(id(value))
        if kept is None:
            kept = self._constants[id(value)] = (value, constant(value.array, value.dtype))
        return kept[1]

    def known(self, value: Item) -> Traced:
        """A tensor whose elements are part of the structure."""
        if not isinstance(value, Traced):
            raise RuntimeException("a tensor is needed")
        if value.kind is Kind.CONSTANT and value.data is not None:
            return value
        return constant(self._look(value), value.type.dtype)

    def _number(self, node: Node, value: Item, what: str) -> Any:
        array = np.asarray(self.known(value).data)
        if array.size != 1:
            raise RuntimeException(f"{node.label}: {what} must be one element, it is {list(array.shape)}")
        return array.item()

    # -- nodes ----------------------------------------------------------------------------------------------

    def _node(self, node: Node, given: list[Item], around: Mapping[str, Item]) -> Sequence[Item]:
        operator = find(node)
        if isinstance(operator, ControlFlow):
            write = {
                "If": self._if, "Loop": self._loop, "Scan": self._scan, "Gradient": self._gradient,
            }.get(node.op)  # fmt: skip
            if write is None:
                raise NotImplemented(f"{node.label}: values that are recorded are tensors, not sequences")
            return write(node, given, around)
        if any(isinstance(value, list) for value in given) or operator.stands_alone:
            return self._of_sequences(node, operator, given)
        inputs = [value if isinstance(value, Traced) else None for value in given]
        if operator.is_shape_only:
            made = operator.evaluate_shape(node, _present(node, inputs).dims)
            return [constant(made, _dtype_of(made))]
        if node.op == "Unique" and not node.domain:
            return self._unique(node, operator, _present(node, inputs))
        for at in (*operator.value_inputs, *operator.sizing_inputs):
            value = inputs[at] if at < len(inputs) else None
            if value is not None:
                inputs[at] = self.known(value)
        folded = _folded(node, operator, inputs)
        if folded is not None:
            return folded
        return apply_all(node.op, inputs, len(node.outputs), node.domain, **node.attributes)

    def _unique(self, node: Node, operator: Operator, x: Traced) -> list[Item]:
        """What is distinct is looked at; its elements are those at the places where each comes first."""
        whole = Node(node.op, node.inputs, ("y", "first", "inverse", "counts"), node.attributes, node.name)
        _, *places = operator.evaluate(whole, [np.asarray(self.known(x).data)])
        known = [constant(array, dtypes.INT64) for array in places]
        axis = node.attributes["axis"]
        if axis is None:
            x, axis = apply("Reshape", x, constant([-1], dtypes.INT64)), 0
        made: list[Item] = [apply("Gather", x, known[0], axis=axis), *known]
        return made[: len(node.outputs)]

    def _of_sequences(self, node: Node, operator: Operator, given: Sequence[Item]) -> Sequence[Item]:
        """Lists that hold values instead of arrays; what says where in them is looked at."""
        if node.op == "ConcatFromSequence" and isinstance(given[0], list):
            axis, parts = node.attributes["axis"], given[0]
            if node.attributes["new_axis"]:
                return [_stack(parts, axis)]
            return [apply("Concat", *parts, axis=axis)]
        if node.op == "SplitToSequence":
            return [self._split(node, given)]
        plain = [
            np.asarray(self.known(value).data)
            if isinstance(value, Traced) and at == len(given) - 1 and _is_position(node, at)
            else value
            for at, value in enumerate(given)
        ]
        return [
            constant(value, dtypes.from_numpy(np.asarray(value).dtype))
            if isinstance(value, np.ndarray | np.generic)
            else value
            for value in operator.evaluate(node, plain)  # type: ignore[arg-type]
        ]

    def _split(self, node: Node, given: Sequence[Item]) -> list[Any]:
        x = given[0]
        assert isinstance(x, Traced)
        axis = node.attributes["axis"] % max(len(x.dims), 1)
        size = x.dims[axis]
        stated = np.asarray(self.known(given[1]).data) if len(given) > 1 else np.array(1)
        if stated.ndim:
            sizes = [int(each) for each in stated]
        else:
            each = int(stated)
            sizes = [min(each, size - at) for at in range(0, size, each)]
        parts = apply_all("Split", [x, constant(sizes, dtypes.INT64)], len(sizes), axis=axis)
        if len(given) > 1 or node.attributes["keepdims"]:
            return parts
        return [apply("Squeeze", part, constant([axis], dtypes.INT64)) for part in parts]

    # -- control flow ---------------------------------------------------------------------------------------

    def _if(self, node: Node, given: Sequence[Item], around: Mapping[str, Item]) -> Sequence[Item]:
        taken = "then_branch" if self._number(node, given[0], "the condition") else "else_branch"
        return self.run(node.attributes[taken], (), around)

    def _loop(self, node: Node, given: Sequence[Item], around: Mapping[str, Item]) -> list[Item]:
        body: Graph = node.attributes["body"]
        limit = None if given[0] is None else int(self._number(node, given[0], "the trip count"))
        condition: Item = constant(np.ones(stated_shape(body, 1), np.bool_), dtypes.BOOL)
        goes_on = given[1] is None or bool(self._number(node, given[1], "the condition"))
        carried = list(given[2:])
        stacked: list[list[Item]] = [[] for _ in body.outputs[1 + len(carried) :]]
        trip = 0
        while goes_on and (limit is None or trip < limit):
            number = constant(np.full(stated_shape(body, 0), trip, np.int64), dtypes.INT64)
            condition, *made = self.run(body, [number, condition, *carried], around)
            goes_on = bool(self._number(node, condition, "the condition that the body makes"))
            carried = made[: len(carried)]
            for rows, value in zip(stacked, made[len(carried) :], strict=True):
                rows.append(value)
            _bounded(made)
            trip += 1
        types: Sequence[ValueType] = ()
        if not trip and stacked:
            types = self._types(body, [None, None, *carried], around)[1 + len(carried) :]
        results = [
            self._collected(node, rows, 0, types[at] if types else UNKNOWN) for at, rows in enumerate(stacked)
        ]
        return [*carried, *results][: len(node.outputs)]

    def _scan(self, node: Node, given: Sequence[Item], around: Mapping[str, Item]) -> list[Item]:
        body: Graph = node.attributes["body"]
        count = node.attributes["num_scan_inputs"]
        states, scanned = list(given[: len(given) - count]), given[len(given) - count :]
        slices = [
            self._slices(node, value, axis, bool(is_reversed))
            for value, axis, is_reversed in zip(
                scanned, _entries(node, "scan_input_axes", count),
                _entries(node, "scan_input_directions", count), strict=True,
            )
        ]  # fmt: skip
        trips = len(slices[0])
        if any(len(each) != trips for each in slices):
            raise RuntimeException(
                f"{node.label}: its scan inputs have {[len(each) for each in slices]} slices; all must have "
                "the same number"
            )
        stacked: list[list[Item]] = [[] for _ in body.outputs[len(states) :]]
        for trip in range(trips):
            made = self.run(body, [*states, *(each[trip] for each in slices)], around)
            states = made[: len(states)]
            for rows, value in zip(stacked, made[len(states) :], strict=True):
                rows.append(value)
            _bounded(made)
        types: Sequence[ValueType] = ()
        if not trips and stacked:
            types = self._types(
                body, [*states, *(_slice_of(node, at, x) for at, x in enumerate(scanned))], around
            )
            types = types[len(states) :]
        axes = _entries(node, "scan_output_axes", len(stacked))
        directions = _entries(node, "scan_output_directions", len(stacked))
        results = [
            self._collected(node, rows[::-1] if is_reversed else rows, axis, types[at] if types else UNKNOWN)
            for at, (rows, axis, is_reversed) in enumerate(zip(stacked, axes, directions, strict=True))
        ]
        return [*states, *results]

    def _gradient(self, node: Node, given: Sequence[Item], around: Mapping[str, Item]) -> list[Item]:
        variables = []
        with tracking(True):
            for value in given:
                if not isinstance(value, Traced):
                    raise RuntimeException(f"{node.label}: its inputs are tensors")
                own = apply("Identity", value)
                if value.type.dtype.is_float and not own.tracks:
                    own.tracks = own.is_leaf = True
                variables.append(own)
            [made] = self.run(node.attributes["body"], variables, around)
            assert isinstance(made, Traced)
            return _derivatives(made, variables[: len(node.outputs)], variables)

    def _slices(self, node: Node, value: Item, axis: int, is_reversed: bool) -> list[Traced]:
        if not isinstance(value, Traced) or not value.dims:
            raise RuntimeException(f"{node.label}: a scan input has no axis to scan")
        at = axis % len(value.dims)
        size = value.dims[at]
        if not size:
            return []
        sizes = constant([1] * size, dtypes.INT64)
        parts = apply_all("Split", [value, sizes], size, axis=at) if size > 1 else [value]
        found = [apply("Squeeze", part, constant([at], dtypes.INT64)) for part in parts]
        return found[::-1] if is_reversed else found

    def _collected(self, node: Node, rows: Sequence[Item], axis: int, type_: ValueType) -> Traced:
        if rows:
            return _stack(rows, axis)
        if not isinstance(type_, TensorType) or type_.dtype == dtypes.UNDEFINED:
            raise InvalidGraph(f"{node.label}: no trip was made, and its outputs' types are not known")
        sizes = [size if is_number(size) else 0 for size in type_.shape or ()]
        sizes.insert(axis % (len(sizes) + 1), 0)
        return constant(np.empty(sizes, type_.dtype.storage), type_.dtype)

    def _types(self, body: Graph, inputs: Sequence[Item], around: Mapping[str, Item]) -> list[ValueType]:
        outer = {name: _type_of(value) for name, value in around.items()}
        return infer_body(body, [_type_of(value) for value in inputs], outer)


def _derivatives(made: Traced, by: Sequence[Traced], ends: Sequence[Traced]) -> list[Item]:
    """Of the sum of a value, zeros where it does not depend on what it is differentiated by."""
    one = zeros(EMITTER, made.type)
    found: Sequence[Traced | None] = [None] * len(by)
    if made.tracks:
        one = expanded(EMITTER, constant(1, made.type.dtype), made.dims)
        found = gradients([made], [one], by, ends=ends)
    return [zeros(EMITTER, x.type) if d is None else d for d, x in zip(found, by, strict=True)]


@dataclass(frozen=True)
class GradientGraph:
    """A graph that computes derivatives."""

    graph: Graph
    feeds: tuple[int, ...]
    """What its inputs are among what the function is given."""
    places: tuple[int, ...]
    """Of each derivative, which output it is."""
    is_of_data: bool
    """Whether it is right only for the elements at hand, which decided shapes, branches or trips."""

    def of(self, outputs: Sequence[Any]) -> list[Any]:
        """The derivatives among its outputs."""
        return [outputs[at] for at in self.places]


def gradient_graph(body: Graph, given: Sequence[Array], count: int) -> GradientGraph:
    """The derivatives of the sum of what a body makes by the first of its inputs.

    Args:
        body: normalised.
        given: its inputs, then what it captures.
        count: of how many inputs.
    """
    looked = False

    def look(value: Traced) -> Array:
        nonlocal looked
        looked = True
        return elements(value)

    values = [Traced(tensor_type(dtypes.from_numpy(x.dtype), x.shape), None, x) for x in given]
    inputs = values[: len(body.inputs)]
    for value in inputs:
        value.tracks = value.is_leaf = value.type.dtype.is_float
    with tracking(True):
        outer = dict(zip(body.captures, values[len(inputs) :], strict=True))
        [made] = GraphRecorder(look=look).run(body, inputs, outer)
        assert isinstance(made, Traced)
        found = [
            apply("Identity", x) for x in _derivatives(made, inputs[:count], inputs) if isinstance(x, Traced)
        ]
    recorded = Recorded(found, held=False)
    leaves = [at for at, value in enumerate(recorded.leaves) if value.kind is Kind.DATA]
    numbers = {id(value): at for at, value in enumerate(values)}
    order = {id(value): at for at, value in enumerate(recorded.wanted)}
    return GradientGraph(
        graph_of(recorded, leaves),
        tuple(numbers[id(recorded.leaves[at])] for at in leaves),
        tuple(order[id(value)] for value in found),
        looked,
    )


def _present(node: Node, inputs: Sequence[Traced | None]) -> Traced:
    if not inputs or inputs[0] is None:
        raise RuntimeException(f"{node.label}: its first input is absent")
    return inputs[0]


def _folded(node: Node, operator: Operator, inputs: Sequence[Traced | None]) -> list[Item] | None:
    """Results of constants, computed at once where they are small; None for others."""
    if not operator.is_deterministic or any(x is not None and x.kind is not Kind.CONSTANT for x in inputs):
        return None
    if any(x is not None and x.type.elements > MOST_FOLDED for x in inputs):
        return None
    arrays = [None if x is None else np.asarray(x.data) for x in inputs]
    if any(is_open(array) for array in arrays):
        return _of_open_sizes(node, operator, inputs)
    made = operator.evaluate(node, arrays)
    if any(array.size > MOST_FOLDED for array in made):
        return None
    return [constant(array, _dtype_of(array)) for array in made]


def _of_open_sizes(node: Node, operator: Operator, inputs: Sequence[Traced | None]) -> list[Item] | None:
    """What is computed of sizes that are left open, as far as that can be had of them."""
    if not (operator.is_pointwise or operator.is_shape_arithmetic):
        return None
    known = [None if x is None else Known(x.type, np.asarray(x.data)) for x in inputs]
    types = [type_.tensor for type_ in operator.infer(node, known)]
    made = None if any(type_.is_open for type_ in types) else evaluate_open(node, known, types)
    if made is None:
        return None
    return [constant(array, type_.dtype) for array, type_ in zip(made, types, strict=False)]


def _dtype_of(array: Any) -> DType:
    found = np.asarray(array)
    return dtypes.INT64 if is_open(found) else dtypes.from_numpy(found.dtype)


def _is_position(node: Node, at: int) -> bool:
    """Whether an input of an operator on sequences says where, instead of what."""
    return (node.op, at) in (("SequenceAt", 1), ("SequenceErase", 1), ("SequenceInsert", 2))


def _stack(rows: Sequence[Any], axis: int) -> Traced:
    at = axis % (len(rows[0].dims) + 1)
    where = constant([at], dtypes.INT64)
    return apply("Concat", *(apply("Unsqueeze", row, where) for row in rows), axis=at)


def _bounded(values: Sequence[Item]) -> None:
    deep = [
        value
        for value in values
        if isinstance(value, Traced)
        and value.data is None
        and value.application is not None
        and value.application.depth > MOST_PENDING
    ]
    if deep:
        evaluate(deep)


def _entries(node: Node, key: str, count: int) -> Sequence[int]:
    stated: Sequence[int] | None = node.attributes[key]
    return (0,) * count if stated is None else stated


def _type_of(value: Item) -> ValueType:
    if isinstance(value, list):
        return SequenceType(UNKNOWN)
    return UNKNOWN if value is None else static(value.type.dtype, value.dims)


def _slice_of(node: Node, at: int, value: Item) -> Item:
    """A value of the type of slices of a scan input."""
    assert isinstance(value, Traced)
    axis = _entries(node, "scan_input_axes", at + 1)[at] % len(value.dims)
    return constant(
        np.empty((*value.dims[:axis], *value.dims[axis + 1 :]), value.type.dtype.storage), value.type.dtype
    )
