"""Operators that run subgraphs: If, Loop, Scan, SequenceMap.

Each is written once, over what runs a body: `evaluate` runs it with NumPy, the engine with plans.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np

from vkml.errors import Error, InvalidGraph, RuntimeException
from vkml.ir.dtypes import BOOL, INT64, from_numpy
from vkml.ir.graph import Graph, Node
from vkml.ir.operator import GRAPH, INTS, MANY, OPTIONAL, REQUIRED, Array, AttributeType, Operator, operator
from vkml.ir.size import is_number
from vkml.ir.types import UNKNOWN, Known, SequenceType, TensorType, ValueType, static
from vkml.ops.batched_scan import without_batch
from vkml.ops.bodies import common_type, evaluate_body, infer_body
from vkml.ops.checks import normalise_axis
from vkml.ops.collecting import Collector, stacked


class Host(Protocol):
    """What runs a control-flow node: the engine, or NumPy."""

    def run(self, body: str, inputs: Sequence[Any]) -> Sequence[Any]:
        """Runs the body that is the attribute `body`; what it captures, the host knows."""
        ...

    def run_trips(self, body: str, count: int | None, carried: Sequence[Any]) -> Sequence[Any] | None:
        """All trips of a Loop that has at least one; None where that cannot be, with nothing run.

        Args:
            body: the attribute.
            count: trips, as long as the condition stays true; None: any number.
            carried: values before the first.

        Returns:
            the carried values after the last trip, then what the body's further outputs were, trip by trip.
        """
        ...

    def gradients(self, body: str, inputs: Sequence[Any], count: int) -> Sequence[Any]:
        """The derivatives of the sum of what the body makes by the first of its inputs."""
        ...

    def captured(self, body: str) -> Mapping[str, Any]:
        """What that body captures."""
        ...

    def allocate(self, node: Node, shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
        """Memory for results that are collected; `OutOfMemory` where there is not enough."""
        ...


class ControlFlow(Operator):
    """Base of operators with subgraphs."""

    stands_alone = True

    def execute(self, node: Node, inputs: Sequence[Any], host: Host) -> list[Any]:
        """Runs it.

        Args:
            node: normalised.
            inputs: of `node.inputs`, None where one is absent.
            host: runs the bodies.
        """
        raise NotImplementedError(self.name)

    def body_inputs(self, node: Node) -> Mapping[str, int]:
        """Attribute → how many inputs that body must have."""
        raise NotImplementedError(self.name)

    def body_types(self, node: Node, types: Sequence[ValueType]) -> Mapping[str, Sequence[ValueType]]:
        """Attribute → types of that body's inputs in its first trip, as far as they are known.

        Args:
            node: normalised.
            types: of `node.inputs`, unknown where one is absent.
        """
        return dict.fromkeys(self.body_inputs(node), ())

    def body_outputs(self, node: Node) -> Mapping[str, tuple[int, int]]:
        """Attribute → how many outputs that body must have, at least and at most."""
        raise NotImplementedError(self.name)

    def carried(self, node: Node) -> Mapping[str, range]:
        """Attribute → which outputs of that body only go into its next trip; of bodies that have trips."""
        return {}

    def check(self, node: Node) -> None:
        """Raises `InvalidGraph` where a body has not as many inputs or outputs as the node needs."""
        outputs = self.body_outputs(node)
        for name, count in self.body_inputs(node).items():
            body: Graph = node.attributes[name]
            least, most = outputs[name]
            for what, found, low, high in (
                ("inputs", len(body.inputs), count, count),
                ("outputs", len(body.outputs), least, most),
            ):
                if not low <= found <= high:
                    wanted = str(low) if low == high else f"at least {low}"
                    raise InvalidGraph(
                        f"{node.label}: its {name} must have {wanted} {what} for the node's "
                        f"{len(node.inputs)} inputs and {len(node.outputs)} outputs, it has {found}"
                    )

    def evaluate(self, node: Node, inputs: Sequence[Any]) -> list[Any]:
        count = len(node.inputs)
        outer = dict(zip(node.captures, inputs[count:], strict=True))
        return self.execute(node, inputs[:count], _Reference(node, outer))


class _Reference:
    """Runs bodies with NumPy."""

    def __init__(self, node: Node, outer: Mapping[str, Any]) -> None:
        self._node, self._outer = node, outer
        self._bodies = {
            key: partial(evaluate_body, value, outer=outer)
            for key, value in node.attributes.items()
            if isinstance(value, Graph)
        }

    def run(self, body: str, inputs: Sequence[Any]) -> Sequence[Any]:
        return self._bodies[body](inputs)

    def run_trips(self, body: str, count: int | None, carried: Sequence[Any]) -> Sequence[Any] | None:
        return None

    def gradients(self, body: str, inputs: Sequence[Any], count: int) -> Sequence[Any]:
        from vkml.tracing.graphs import gradient_graph  # records operators, and so knows them all

        graph = self._node.attributes[body]
        given = [*inputs, *(self._outer[name] for name in graph.captures)]
        found = gradient_graph(graph, given, count)
        return found.of(evaluate_body(found.graph, [given[at] for at in found.feeds], {}))

    def captured(self, body: str) -> Mapping[str, Any]:
        return self._outer

    def allocate(self, node: Node, shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
        return np.empty(tuple(shape), dtype)


def _in_trip(node: Node, trip: int, error: Error) -> None:
    """Has an error say in which trip of a loop it came up."""
    where = f"{node.label}, trip {trip}"
    if error.args and isinstance(error.args[0], str) and where not in error.args[0]:
        error.args = (f"{where}: {error.args[0]}", *error.args[1:])


def one_element(node: Node, value: Any, what: str) -> Any:
    """The element of a tensor that must have just one, as a Python number."""
    if not isinstance(value, np.ndarray) or value.size != 1:
        found = list(value.shape) if isinstance(value, np.ndarray) else "no tensor"
        raise RuntimeException(f"{node.label}: {what} must be one element, it is {found}")
    return value.item()


def _types(inputs: Sequence[Known | None]) -> list[ValueType]:
    return [UNKNOWN if known is None else known.stated for known in inputs]


def _outer(node: Node, inputs: Sequence[Known | None]) -> dict[str, ValueType]:
    return dict(zip(node.captures, _types(inputs[len(node.inputs) :]), strict=True))


@operator()
class If(ControlFlow):
    """The outputs of one of two branches, whichever the condition says; the other does not run."""

    outputs = (1, MANY)
    attributes = {"then_branch": REQUIRED, "else_branch": REQUIRED}
    attribute_types = {"then_branch": GRAPH, "else_branch": GRAPH}

    def body_inputs(self, node: Node) -> Mapping[str, int]:
        return dict.fromkeys(self.attributes, 0)

    def body_outputs(self, node: Node) -> Mapping[str, tuple[int, int]]:
        return dict.fromkeys(self.attributes, (len(node.outputs), len(node.outputs)))

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[ValueType]:
        outer = _outer(node, inputs)
        condition = inputs[0]
        if condition is not None and condition.value is not None:
            return infer_body(node.attributes[self._taken(node, condition.value)], (), outer)
        then, other = (infer_body(node.attributes[name], (), outer) for name in self.attributes)
        return [common_type(a, b) for a, b in zip(then, other, strict=True)]

    def execute(self, node: Node, inputs: Sequence[Any], host: Host) -> list[Any]:
        return list(host.run(self._taken(node, inputs[0]), ()))

    def _taken(self, node: Node, condition: Any) -> str:
        return "then_branch" if one_element(node, condition, "the condition") else "else_branch"


@operator()
class Loop(ControlFlow):
    """Runs a body a number of times, or as long as a condition holds, and carries values from trip to trip.

    The condition that the body makes counts also where the node has none at the start, as it does in other
    runtimes; ONNX calls it ignored there.
    """

    inputs = (2, MANY)
    outputs = (0, MANY)
    attributes = {"body": REQUIRED}
    attribute_types = {"body": GRAPH}

    def body_inputs(self, node: Node) -> Mapping[str, int]:
        return {"body": max(2, len(node.inputs))}

    def body_outputs(self, node: Node) -> Mapping[str, tuple[int, int]]:
        count = 1 + max(len(node.outputs), len(node.inputs) - 2)
        return {"body": (count, MANY)}

    def body_types(self, node: Node, types: Sequence[ValueType]) -> Mapping[str, Sequence[ValueType]]:
        body = node.attributes["body"]
        first = [static(INT64, stated_shape(body, 0)), static(BOOL, stated_shape(body, 1))]
        return {"body": [*first, *types[2:]]}

    def carried(self, node: Node) -> Mapping[str, range]:
        return {"body": range(1, max(1, len(node.inputs) - 1))}

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[ValueType]:
        body, outer = node.attributes["body"], _outer(node, inputs)
        carried = _types(inputs[2 : len(node.inputs)])
        first = self.body_types(node, ())["body"]
        made: list[ValueType] = []
        # What a trip changes is unknown; once sizes are, another round changes nothing more.
        for _ in range(3):
            made = infer_body(body, [*first, *carried], outer)
            common = [common_type(a, b) for a, b in zip(carried, made[1:], strict=False)]
            if common == carried:
                break
            carried = common
        collected = [stacked(type_, None, 0) for type_ in made[1 + len(carried) :]]
        return [*carried, *collected][: len(node.outputs)]

    def execute(self, node: Node, inputs: Sequence[Any], host: Host) -> list[Any]:
        body: Graph = node.attributes["body"]
        limit = None if inputs[0] is None else one_element(node, inputs[0], "the trip count")
        goes_on = inputs[1] is None or bool(one_element(node, inputs[1], "the condition"))
        number_shape = stated_shape(body, 0)
        condition = np.ones(stated_shape(body, 1), np.bool_)
        carried: Sequence[Any] = inputs[2:]
        if goes_on and (limit is None or limit > 0):
            all_made = host.run_trips("body", limit, carried)
            if all_made is not None:
                return list(all_made[: len(node.outputs)])
        count = len(carried)
        collectors = [
            Collector(node, host.allocate, output, limit, 0, False) for output in body.outputs[1 + count :]
        ]
        trip = 0
        while goes_on and (limit is None or trip < limit):
            number = np.array(trip, np.int64)
            try:
                made = host.run(
                    "body", [number.reshape(number_shape) if number_shape else number, condition, *carried]
                )
                condition = made[0]
                goes_on = one_element(node, condition, "the condition that the body makes")
                carried = made[1 : 1 + count]
                for collector, value in zip(collectors, made[1 + count :], strict=True):
                    collector.add(value)
            except Error as error:
                _in_trip(node, trip, error)
                raise
            trip += 1
        results = list(carried)
        if collectors:
            shapes = () if trip else _types_without_trip(body, [None, None, *carried], host)
            results += [
                collector.finish(shapes[1 + count + at] if shapes else UNKNOWN)
                for at, collector in enumerate(collectors)
            ]
        return results[: len(node.outputs)]


def stated_shape(body: Graph, at: int) -> tuple[int, ...]:
    """The shape that a body gives its trip number and its condition: a scalar, or one element."""
    type_ = body.inputs[at].type
    return (1,) * len(type_.shape or ()) if isinstance(type_, TensorType) else ()


def _types_without_trip(body: Graph, inputs: Sequence[Any], host: Host) -> list[ValueType]:
    """Types of what a body would have made, had there been a trip."""
    outer = {name: _type_of(value) for name, value in host.captured("body").items()}
    return infer_body(body, list(map(_type_of, inputs)), outer)


def _type_of(value: Any) -> ValueType:
    if isinstance(value, list):
        return SequenceType(UNKNOWN)
    return static(from_numpy(value.dtype), value.shape) if isinstance(value, np.ndarray) else UNKNOWN


@operator()
class Scan(ControlFlow):
    """Runs a body for each slice of its scan inputs, carries states, and stacks what else the body makes."""

    inputs = (1, MANY)
    outputs = (1, MANY)
    attributes = {
        "body": REQUIRED,
        "num_scan_inputs": REQUIRED,
        "scan_input_axes": OPTIONAL,
        "scan_input_directions": OPTIONAL,
        "scan_output_axes": OPTIONAL,
        "scan_output_directions": OPTIONAL,
    }
    attribute_types = {
        "body": GRAPH,
        "num_scan_inputs": AttributeType.INT,
        "scan_input_axes": INTS,
        "scan_input_directions": INTS,
        "scan_output_axes": INTS,
        "scan_output_directions": INTS,
        "directions": INTS,
    }

    def upgrade(self, node: Node) -> Node | Sequence[Node]:
        return without_batch(node) if node.version < 9 else node

    def body_inputs(self, node: Node) -> Mapping[str, int]:
        return {"body": len(node.inputs)}

    def body_outputs(self, node: Node) -> Mapping[str, tuple[int, int]]:
        return {"body": (len(node.outputs), len(node.outputs))}

    def check(self, node: Node) -> None:
        count = node.attributes["num_scan_inputs"]
        states = len(node.inputs) - count
        if not 1 <= count <= len(node.inputs):
            raise InvalidGraph(
                f"{node.label}: num_scan_inputs is {count}; there are {len(node.inputs)} inputs, "
                "at least one of which is scanned"
            )
        super().check(node)
        if len(node.outputs) < states:
            raise InvalidGraph(
                f"{node.label}: it carries {states} states and has only {len(node.outputs)} outputs"
            )
        collected = len(node.outputs) - states
        for key, wanted in (
            ("scan_input_axes", count),
            ("scan_input_directions", count),
            ("scan_output_axes", collected),
            ("scan_output_directions", collected),
        ):
            stated = node.attributes[key]
            if stated is not None and len(stated) != wanted:
                raise InvalidGraph(f"{node.label}: {key} has {len(stated)} entries, {wanted} are needed")
            if stated is not None and key.endswith("directions") and not set(stated) <= {0, 1}:
                raise InvalidGraph(f"{node.label}: {key} are 0 or 1, not {list(stated)}")

    def body_types(self, node: Node, types: Sequence[ValueType]) -> Mapping[str, Sequence[ValueType]]:
        count = node.attributes["num_scan_inputs"]
        states, scanned = types[: len(types) - count], types[len(types) - count :]
        axes = _entries(node, "scan_input_axes", count)
        return {"body": [*states, *map(partial(_slice_type, node), scanned, axes)]}

    def carried(self, node: Node) -> Mapping[str, range]:
        return {"body": range(len(node.inputs) - node.attributes["num_scan_inputs"])}

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[ValueType]:
        body, outer = node.attributes["body"], _outer(node, inputs)
        count = node.attributes["num_scan_inputs"]
        given = _types(inputs[: len(node.inputs)])
        states, scanned = given[: len(given) - count], given[len(given) - count :]
        trips: int | None = None
        for type_, axis in zip(scanned, _entries(node, "scan_input_axes", count), strict=True):
            if isinstance(type_, TensorType) and type_.shape is not None:
                size = type_.shape[normalise_axis(node, axis, len(type_.shape))]
                trips = size if is_number(size) else trips
        slices = self.body_types(node, given)["body"][len(states) :]
        made = infer_body(body, [*states, *slices], outer)
        axes = _entries(node, "scan_output_axes", len(made) - len(states))
        collected = [stacked(t, trips, axis) for t, axis in zip(made[len(states) :], axes, strict=True)]
        return [*(common_type(a, b) for a, b in zip(states, made, strict=False)), *collected]

    def execute(self, node: Node, inputs: Sequence[Any], host: Host) -> list[Any]:
        body: Graph = node.attributes["body"]
        count = node.attributes["num_scan_inputs"]
        states: Sequence[Any] = inputs[: len(inputs) - count]
        scanned = [self._slices(node, at, value) for at, value in enumerate(inputs[len(states) :])]
        trips = len(scanned[0])
        for other in scanned:
            if len(other) != trips:
                raise RuntimeException(
                    f"{node.label}: its scan inputs have {[len(each) for each in scanned]} slices; all must "
                    "have the same number"
                )
        outputs = body.outputs[len(states) :]
        axes = _entries(node, "scan_output_axes", len(outputs))
        directions = _entries(node, "scan_output_directions", len(outputs))
        collectors = [
            Collector(node, host.allocate, output, trips, axis, direction == 1)
            for output, axis, direction in zip(outputs, axes, directions, strict=True)
        ]
        for trip in range(trips):
            try:
                made = host.run("body", [*states, *(each[trip, ...] for each in scanned)])
                states = made[: len(states)]
                for collector, value in zip(collectors, made[len(states) :], strict=True):
                    collector.add(value)
            except Error as error:
                _in_trip(node, trip, error)
                raise
        types: Sequence[ValueType] = ()
        if not trips and collectors:
            slices = [np.empty(each.shape[1:], each.dtype) for each in scanned]
            types = _types_without_trip(body, [*states, *slices], host)
        return [
            *states,
            *(
                collector.finish(types[len(states) + at] if types else UNKNOWN)
                for at, collector in enumerate(collectors)
            ),
        ]

    def _slices(self, node: Node, at: int, value: Any) -> Array:
        """A scan input with its slices along the first axis, in the order in which they are read."""
        count = node.attributes["num_scan_inputs"]
        if not isinstance(value, np.ndarray) or not value.ndim:
            raise RuntimeException(f"{node.label}: its scan input {at} has no axis to scan")
        axis = normalise_axis(node, _entries(node, "scan_input_axes", count)[at], value.ndim)
        found = np.moveaxis(value, axis, 0)
        return found[::-1] if _entries(node, "scan_input_directions", count)[at] else found


def _slice_type(node: Node, type_: ValueType, axis: int) -> ValueType:
    """The type of slices of a tensor along an axis."""
    if not isinstance(type_, TensorType) or type_.shape is None:
        return type_
    at = normalise_axis(node, axis, len(type_.shape))
    return TensorType(type_.dtype, (*type_.shape[:at], *type_.shape[at + 1 :]))


def _entries(node: Node, key: str, count: int) -> Sequence[int]:
    stated: Sequence[int] | None = node.attributes[key]
    return (0,) * count if stated is None else stated


@operator()
class SequenceMap(ControlFlow):
    """Runs a body for each value of a sequence, and makes a sequence of each of its outputs."""

    inputs = (1, MANY)
    outputs = (1, MANY)
    attributes = {"body": REQUIRED}
    attribute_types = {"body": GRAPH}

    def body_inputs(self, node: Node) -> Mapping[str, int]:
        return {"body": len(node.inputs)}

    def body_outputs(self, node: Node) -> Mapping[str, tuple[int, int]]:
        return {"body": (len(node.outputs), len(node.outputs))}

    def body_types(self, node: Node, types: Sequence[ValueType]) -> Mapping[str, Sequence[ValueType]]:
        return {
            "body": [type_.element if isinstance(type_, SequenceType) else type_ for type_ in types],
        }

    def carried(self, node: Node) -> Mapping[str, range]:
        return {"body": range(0)}

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[ValueType]:
        given = self.body_types(node, _types(inputs[: len(node.inputs)]))["body"]
        made = infer_body(node.attributes["body"], given, _outer(node, inputs))
        return [SequenceType(type_) for type_ in made]

    def execute(self, node: Node, inputs: Sequence[Any], host: Host) -> list[Any]:
        first = inputs[0]
        if not isinstance(first, list):
            raise RuntimeException(f"{node.label}: its first input is no sequence")
        for at, value in enumerate(inputs):
            if isinstance(value, list) and len(value) != len(first):
                raise RuntimeException(
                    f"{node.label}: its input {at} has {len(value)} values, the first has {len(first)}"
                )
        results: list[list[Any]] = [[] for _ in node.attributes["body"].outputs]
        for trip in range(len(first)):
            try:
                made = host.run(
                    "body", [value[trip] if isinstance(value, list) else value for value in inputs]
                )
            except Error as error:
                _in_trip(node, trip, error)
                raise
            for result, value in zip(results, made, strict=True):
                result.append(value)
        return list(results)
