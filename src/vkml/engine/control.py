"""Runs nodes that no plan can have: control flow, whose bodies have plans of their own, and sequences."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from vkml.cpu.memory import MemoryBudget, amount, free_memory
from vkml.dataclasses import dataclass
from vkml.engine.closing import PlanClosed
from vkml.engine.device_array import DeviceArray, Place, dtype_of, on_host
from vkml.engine.ending import require_going
from vkml.engine.flight import RESIDENT_BYTES
from vkml.engine.plan import Plan
from vkml.engine.prepare import prepare_normalised
from vkml.engine.programs import VulkanBound
from vkml.engine.trips import Source, Wiring
from vkml.errors import Error, ModelError, OutOfMemory, RuntimeException
from vkml.ir import Graph, GraphIndex, Known, Node, Operator, Value, ValueType, find, static
from vkml.ir.dtypes import DType, from_numpy
from vkml.ir.file_constant import owned
from vkml.ir.lowering import CannotLower
from vkml.ir.size import concrete
from vkml.ir.types import UNKNOWN
from vkml.ops.bodies import better_type, of_any_shape
from vkml.ops.control import ControlFlow
from vkml.passes import remove_dead
from vkml.passes.segments import Segment
from vkml.passes.specialise import evaluate_constant, infer_types

if TYPE_CHECKING:
    from vkml.engine.runner import Runner
    from vkml.tracing.graphs import GradientGraph

Array = np.ndarray[Any, Any]
MakeRunner = Callable[[Graph, Callable[[], None]], "Runner"]
"""Makes what runs a body, of a prepared graph and what is to be called before plans leave their cache."""
_CHECKED = 1 << 20
"""Bytes from which on it is asked whether there is memory for an array."""
_PLANS_IN_VAIN = 3
"""Plans that may be made for one trip each before trips do without, where little is computed."""
EVALUATED_ELEMENTS = 4096
"""Elements that the inputs of a trip, and its constants, may have for it to do without a plan."""
_GRADIENTS_KEPT = 16
"""Shapes for which a node keeps what differentiates its body."""
_TRIPS_UNCHECKED = 256
"""Runs of bodies after which it is asked whether there is memory left: loops may hold on to ever more."""


@dataclass(frozen=True)
class Planned:
    """What runs as one, for people: a plan, or a node between plans."""

    depth: int
    """How many bodies it lies in."""
    plan: Plan | None
    node: Node | None = None
    shapes: tuple[tuple[int, ...], ...] = ()
    """Of the plan's inputs."""


class HostNode:
    """A node between plans, run from the calling thread.

    Args:
        segment: whose only node it is.
        make: makes what runs a body.
        memory_limit: share of the free memory that may be taken.

    Raises:
        InvalidGraph: in a body, a node that needs a tensor is given a sequence or an optional.
    """

    def __init__(self, segment: Segment, make: MakeRunner, memory_limit: float) -> None:
        assert segment.alone is not None
        self.node: Node = segment.alone
        self._operator: Operator = find(self.node)
        self._types = segment.types
        self._make = make
        self._captures: dict[str, tuple[str, ...]] = {}
        """Body → what it captures."""
        self._bodies: dict[str, Body] = {}
        """Those that there was a use for."""
        self._gradients: dict[Hashable, tuple[GradientGraph, Runner]] = {}
        """What differentiates bodies, by the types of what these are given."""
        self._is_closed = False
        constants = segment.graph.constants
        self._constants = {name: read_only(constant.array) for name, constant in constants.items()}
        self._constant_types = {name: constant.type for name, constant in constants.items()}
        self._memory_limit = memory_limit
        self._trips = 0
        if isinstance(self._operator, ControlFlow):
            attributes = self.node.attributes
            self._captures = {key: attributes[key].captures for key in self._operator.body_inputs(self.node)}
            if _may_be_refused(self.node, self._types):
                _ = self.bodies

    @property
    def bodies(self) -> Mapping[str, Body]:
        """What runs its bodies, by attribute."""
        return {key: self.body(key) for key in self._captures}

    def body(self, key: str) -> Body:
        """What runs a body.

        It is made at its first use, by which a model of very many loads sooner, unless something may be wrong
        with it, which is to be said while it loads.
        """
        made = self._bodies.get(key)
        if made is None:
            made = self._bodies.setdefault(key, self._new_body(key))  # one for all threads
            if self._is_closed:
                made.close()
        return made

    def _new_body(self, key: str) -> Body:
        node, operator, types, constants = self.node, self._operator, self._types, self._constant_types
        assert isinstance(operator, ControlFlow)
        given = [constants.get(name) or types.get(name, UNKNOWN) for name in node.inputs]
        inputs, carried = operator.body_types(node, given)[key], operator.carried(node).get(key)
        return Body(node.attributes[key], inputs, types, self._make, carried)

    def run(self, values: Mapping[str, Any]) -> list[Any]:
        """Runs it.

        Args:
            values: by name, all that it reads, but for constants.

        Returns:
            Its outputs, which may be inputs or share memory with these.
        """
        node, operator = self.node, self._operator
        known = {**values, **self._constants} if self._constants else values
        inputs = [on_host(known[name]) if name else None for name in node.inputs]
        try:
            if isinstance(operator, ControlFlow):
                captured = {key: [known[name] for name in names] for key, names in self._captures.items()}
                return [on_host(value) for value in operator.execute(node, inputs, _Host(self, captured))]
            return operator.evaluate(node, inputs)
        except (Error, MemoryError):
            raise
        except Exception as error:
            raise RuntimeException(f"{node.label} failed: {type(error).__name__}: {error}") from error

    def planned(
        self, types: Mapping[str, ValueType], depth: int
    ) -> tuple[Sequence[ValueType], list[Planned], list[str]]:
        """Types of its outputs, itself and its bodies' plans for people, and what was assumed for these.

        Args:
            types: of the values around it, as far as they are known.
            depth: how many bodies it lies in.
        """
        node, operator = self.node, self._operator
        around = {**types, **{name: self._constant_types[name] for name in self._constants}}
        known = [
            Known(around.get(name, UNKNOWN), self._constants.get(name)) if name else None
            for name in node.operands
        ]
        found: list[Planned] = [Planned(depth, None, node)]
        assumed: list[str] = []
        if isinstance(operator, ControlFlow):
            given = [UNKNOWN if each is None else each.stated for each in known[: len(node.inputs)]]
            for key, inputs in operator.body_types(node, given).items():
                inner, more = self.body(key).planned(inputs, around, depth + 1)
                found += inner
                assumed += [f"in {key} of {node.label}: {text}" for text in more]
        try:
            return operator.infer(node, known), found, assumed
        except ModelError:
            return [UNKNOWN] * len(node.outputs), found, assumed

    def require_memory(self, need: int = 0) -> None:
        """Raises `OutOfMemory` where so many bytes are not to be had."""
        budget = MemoryBudget(free_memory(), self._memory_limit)
        if not budget.admits(need) or budget.free == 0:
            raise OutOfMemory(
                f"cpu: {self.node.label} needs {amount(need)} for what its trips make, {budget}; let it make "
                "fewer trips, or less in each"
            )

    def count_trip(self) -> None:
        """Asks whether the run is to end, and from time to time whether there is memory left."""
        require_going()
        self._trips += 1
        if self._trips % _TRIPS_UNCHECKED == 0:
            self.require_memory()

    def gradients(self, key: str, given: Sequence[Any], count: int) -> Sequence[Any]:
        """The derivatives of what a body makes by the first of its inputs: a graph that is run like a body.

        Args:
            key: of the body.
            given: its inputs, then what it captures.
            count: of how many inputs.
        """
        from vkml.tracing.graphs import gradient_graph  # which is built on plans

        form = (key, *((array.shape, array.dtype) for array in given))
        kept = self._gradients.get(form)
        if kept is None:
            found = gradient_graph(self.node.attributes[key], given, count)
            kept = found, self._make(prepare_normalised(found.graph), lambda: None)
            if not found.is_of_data:
                while len(self._gradients) >= _GRADIENTS_KEPT:
                    # Another thread may be running it, and be here, too: its plans go with their last user.
                    self._gradients.pop(next(iter(self._gradients), None), None)
                self._gradients[form] = kept
        found, runner = kept
        names = [value.name for value in found.graph.outputs]
        return found.of(runner.run([given[at] for at in found.feeds], names))

    def close(self) -> bool:
        """Closes the plans of its bodies; see `PlanCache.close`."""
        self._is_closed = True  # before it is looked which bodies there are; see `body`
        closed = [runner.close() for _, runner in list(self._gradients.values())]
        return all([*closed, *(body.close() for body in list(self._bodies.values()))])


def _may_be_refused(node: Node, types: Mapping[str, ValueType]) -> bool:
    """Whether there may be sequences or optionals in a node's bodies, or nodes that no plan can have."""
    return any(types.get(name, UNKNOWN).is_container for name in node.reads) or any(
        any(value.type.is_container for value in (*body.inputs, *body.outputs))
        or any(find(inner).stands_alone for inner in body.nodes)
        for body in node.subgraphs
    )


def read_only(array: Array) -> Array:
    """A view of a constant for values that go from hand to hand: what leaves a session is copied."""
    view = owned(array).view()
    view.flags.writeable = False
    return view


class _Host:
    """One run of a control-flow node."""

    def __init__(self, owner: HostNode, captured: Mapping[str, list[Any]]) -> None:
        self._owner = owner
        self._captured = captured

    def run(self, body: str, inputs: Sequence[Any]) -> Sequence[Any]:
        self._owner.count_trip()
        return self._owner.body(body).run(inputs, self._captured[body])

    def run_trips(self, body: str, count: int | None, carried: Sequence[Any]) -> Sequence[Any] | None:
        return self._owner.body(body).run_trips(count, carried, self._captured[body])

    def gradients(self, body: str, inputs: Sequence[Any], count: int) -> Sequence[Any]:
        return self._owner.gradients(body, [*inputs, *on_host(self._captured[body])], count)

    def captured(self, body: str) -> Mapping[str, Any]:
        return dict(zip(self._owner.body(body).captures, on_host(self._captured[body]), strict=True))

    def allocate(self, node: Node, shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
        need = dtype.itemsize
        for size in shape:
            need *= size
        if need >= _CHECKED:
            self._owner.require_memory(need)
        return np.empty(tuple(shape), dtype)


@dataclass(frozen=True)
class _Entry:
    """A plan, and what it is for."""

    shapes: tuple[tuple[int, ...], ...]
    types: tuple[np.dtype[Any], ...]
    plan: Plan
    places: Mapping[str, Place] | None
    """Results that stay on the device; None where the plan does not run on one alone."""


class Body:
    """A subgraph that runs with plans: what it captures is given behind its inputs.

    Outputs that are inputs as they are, or constants, are handed on; no plan makes them. From trip to trip,
    large values stay on the device that runs them: what is carried, and what is captured.

    Args:
        graph: prepared.
        inputs: types of its inputs, as far as the node knows them.
        outer: types of what it may capture.
        make: makes what runs the rest.
        carried: which of its outputs only go into its next trip; None: it has no trips.
    """

    def __init__(
        self,
        graph: Graph,
        inputs: Sequence[ValueType],
        outer: Mapping[str, ValueType],
        make: MakeRunner,
        carried: range | None = None,
    ) -> None:
        self.graph = graph
        self.captures = graph.captures
        values = [
            Value(value.name, of_any_shape(better_type(value.type, type_)))
            for value, type_ in zip(graph.inputs, inputs, strict=True)
        ]
        values += [Value(name, of_any_shape(outer[name])) for name in self.captures]
        place = {value.name: at for at, value in enumerate(values)}
        index = GraphIndex.of(graph)
        made: dict[str, Value] = {}
        self._sources: list[tuple[int, Any]] = []
        """Of each output: which of the inputs or, counted on, of the results it is; or -1 and a constant."""
        origins = [_origin(output.name, index) for output in graph.outputs]
        for output, name in zip(graph.outputs, origins, strict=True):
            if name in graph.constants:
                self._sources.append((-1, read_only(graph.constants[name].array)))
            elif name in place:
                self._sources.append((place[name], None))
            else:
                made.setdefault(name, Value(name, of_any_shape(output.type)))
                self._sources.append((len(values) + list(made).index(name), None))
        rest = remove_dead(replace(graph, outputs=tuple(made.values())))
        read = dict.fromkeys(name for node in rest.nodes for name in node.reads if name in place)
        self._read = [place[name] for name in read]
        self._wanted = tuple(made)
        self._names = list(place)
        self._rest = rest
        self._new_plans = 0
        """Trips, the last ones, each of which needed a plan of its own."""
        self._newest: Hashable = None
        """What the last of them was told by."""
        self._latest: list[_Entry] = []
        """The plan for what came last."""
        self._wired: tuple[Any, Wiring | None] | None = None
        """The wiring made last, and what for."""
        inside = [name for at, name in enumerate(origins) if carried is not None and at in carried]
        outside = {name for at, name in enumerate(origins) if carried is None or at not in carried}
        self._carried = tuple(name for name in made if name in inside and name not in outside)
        """Of what plans make, values that nobody but the next trip looks at."""
        self._inputs = len(graph.inputs)
        handed_on = {at for number, (at, _) in enumerate(self._sources) if number in (carried or ())}
        self._staying = tuple(
            at for at in self._read if carried is not None and (at >= self._inputs or at in handed_on)
        )
        """Of what plans read, that which the next trip reads again as it is."""
        self.runner = (
            make(replace(rest, inputs=tuple(values[at] for at in self._read)), self._latest.clear)
            if made
            else None
        )
        constants = sum(constant.type.elements for constant in rest.constants.values())
        is_plain = self.runner is not None and self.runner.is_whole and not self.runner.placement.strict
        self._is_small = is_plain and constants <= EVALUATED_ELEMENTS

    def run(self, inputs: Sequence[Any], captured: list[Any]) -> list[Any]:
        """Runs it.

        Args:
            inputs: its inputs.
            captured: what it captures; large values are replaced by themselves on the device that reads them.

        Returns:
            Its outputs; those that are inputs, or constants, are not copied.
        """
        values = [*inputs, *captured]
        made = () if self.runner is None else self._run(self.runner, values, captured)
        count = len(values)
        return [
            constant if at < 0 else values[at] if at < count else made[at - count]
            for at, constant in self._sources
        ]

    def _run(self, runner: Runner, values: list[Any], captured: list[Any]) -> Sequence[Any]:
        feeds = [values[at] for at in self._read]
        entry = next(iter(self._latest), None)  # another thread may clear it
        if entry is not None:
            for array, shape, dtype in zip(feeds, entry.shapes, entry.types, strict=True):
                if type(array) is np.ndarray:
                    if array.shape != shape or array.dtype != dtype:
                        break
                elif type(array) is not DeviceArray or array.shape != shape or array.dtype.storage != dtype:
                    break
            else:
                if entry.places is not None and self._upload(runner, values, captured):
                    feeds = [values[at] for at in self._read]
                try:
                    return runner.run_plan(entry.plan, feeds, entry.plan.outputs, places=entry.places)
                except PlanClosed:
                    pass
        runner.check(feeds)
        if self._is_evaluated(runner, feeds):
            return self._evaluate(on_host(feeds))
        found = runner.only_plan(feeds)
        if found is None or found.outputs != self._wanted:
            return runner.run(on_host(feeds), self._wanted)
        types = tuple([dtype_of(array).storage for array in feeds])
        entry = _Entry(tuple([array.shape for array in feeds]), types, found, self._places(runner, found))
        with runner.plans.lock:
            if runner.plans.holds(found):
                self._latest[:] = [entry]
        return runner.run_plan(found, feeds, found.outputs, places=entry.places)

    def run_trips(
        self, count: int | None, carried: Sequence[Any], captured: Sequence[Any]
    ) -> Sequence[Any] | None:
        """Trips of a loop on a device; None, with nothing run, where its plan is not one program of a device,
        or values change their types from trip to trip.

        Args:
            count: of the trips, as long as the condition is true; None: any number.
            carried: values before the first trip.
            captured: what the body captures.
        """
        runner, (at, constant) = self.runner, self._sources[0]
        is_endless = at == 1 or (at < 0 and bool(np.all(constant)))
        if runner is None or not runner.placement.sites or runner.is_traced:
            return None
        if (at < 0 and not is_endless) or (is_endless and count is None):
            return None
        inputs = self.graph.inputs
        first = [np.zeros(_one(inputs[0]), np.int64), np.ones(_one(inputs[1]), np.bool_), *carried]
        values = [*first, *captured]
        feeds = [values[at] for at in self._read]
        if not all(isinstance(value, np.ndarray | DeviceArray) and value.dtype != object for value in values):
            return None
        runner.check(feeds)
        plan = runner.only_plan(feeds)
        if plan is None or plan.outputs != self._wanted:
            return None
        wiring = self._wiring(plan, values)
        if wiring is None:
            return None
        given = {at: values[self._inputs + at] for at in wiring.captured_types}
        try:
            return plan.run_trips(feeds, count, wiring, carried, given, runner.plans.require_open)
        except (CannotLower, OutOfMemory, PlanClosed):
            return None

    def _wiring(self, plan: Plan, values: Sequence[Any]) -> Wiring | None:
        """How values go from trip to trip, where every trip is like the first."""
        key = plan, tuple([(dtype_of(value), value.shape) for value in values])
        wired = self._wired  # another thread may replace it
        if wired is not None and wired[0] == key:
            return wired[1]
        made = self._new_wiring(plan, key[1])
        self._wired = key, made
        return made

    def _new_wiring(self, plan: Plan, types: Sequence[tuple[DType, tuple[int, ...]]]) -> Wiring | None:
        program = plan.programs[0] if len(plan.programs) == 1 else None
        if not isinstance(program, VulkanBound) or plan.constants:
            return None
        at_input = dict(zip(plan.input_names, self._read, strict=True))
        known = plan.known([types[at][1] for at in self._read])
        stated = {value.name: value.tensor for value in plan.graph.outputs}
        made = {
            name: (stated[name].dtype, tuple([concrete(dim, known) for dim in stated[name].dims]))
            for name in program.outputs
        }
        constants: list[Array] = []

        def source(at: int, constant: Any) -> Source:
            if at < 0:
                constants.append(np.asarray(constant))
                return Source("constant", len(constants) - 1)
            if at >= len(types):
                return Source("made", program.outputs.index(self._wanted[at - len(types)]))
            if at >= self._inputs:
                return Source("captured", at - self._inputs)
            return Source("carried", at - 2) if at > 1 else Source(("number", "condition")[at])

        def type_of(each: Source) -> tuple[DType, tuple[int, ...]]:
            if each.kind == "made":
                return made[program.outputs[each.at]]
            if each.kind == "constant":
                return from_numpy(constants[each.at].dtype), constants[each.at].shape
            first = {"number": 0, "condition": 1, "carried": 2, "captured": self._inputs}[each.kind]
            return types[first + each.at]

        reads = tuple([source(at_input[name], None) for name in program.inputs])
        condition: Source | None = None
        if self._sources[0][0] > 1:
            condition = source(*self._sources[0])
            others = [at for at, _ in self._sources[1:]]
            if condition.kind != "made" or self._sources[0][0] in others:
                return None
        results = [source(at, constant) for at, constant in self._sources[1:]]
        carried, stacked = tuple(results[: self._inputs - 2]), tuple(results[self._inputs - 2 :])
        if [type_of(each) for each in carried] != [*types[2 : self._inputs]]:
            return None
        if any(each.kind not in ("made", "carried", "captured") for each in stacked):
            return None
        needed = {each.at for each in (*reads, *carried, *stacked) if each.kind == "captured"}
        return Wiring(
            reads,
            condition,
            carried,
            stacked,
            tuple(types[2 : self._inputs]),
            tuple(made.values()),
            {at: types[self._inputs + at] for at in sorted(needed)},
            tuple(constants),
            len(program.program.dispatches),
        )

    def _places(self, runner: Runner, plan: Plan) -> Mapping[str, Place] | None:
        """Where large values that are carried stay; None where a plan does not run on a device alone."""
        device = runner.placement.device
        if device is None or not all(isinstance(program, VulkanBound) for program in plan.programs):
            return None
        types = {value.name: value.tensor for value in plan.graph.outputs}
        return {
            name: device
            for name in self._carried
            if name not in plan.constants and (types[name].is_open or types[name].bytes >= RESIDENT_BYTES)
        }

    def _upload(self, runner: Runner, values: list[Any], captured: list[Any]) -> bool:
        """Puts large values where all further trips find them; returns whether there were any."""
        device = runner.placement.device
        assert device is not None
        has_any = False
        for at in self._staying:
            value = values[at]
            if type(value) is np.ndarray and value.nbytes >= RESIDENT_BYTES and value.dtype != object:
                values[at] = made = DeviceArray(device, from_numpy(value.dtype), value.shape)
                made.write(np.asarray(value, order="C"))
                has_any = True
                if at >= self._inputs:
                    captured[at - self._inputs] = made
        return has_any

    def _is_evaluated(self, runner: Runner, feeds: Sequence[Array]) -> bool:
        """Whether to do without a plan: the last few served one trip each, and there is little to compute.

        A plan takes a millisecond to make. Where trips differ in shapes, or in numbers that decide these (a
        Slice by the trip number), none lives to its second run.
        """
        if not self._is_small or any(isinstance(value, DeviceArray) for value in feeds):
            return False
        key, plan = runner.plans.find_for(0, feeds)
        if plan is not None or key == self._newest:
            if self._new_plans <= _PLANS_IN_VAIN:  # else a plan is worth making when two trips are alike
                self._new_plans = 0
            return False
        self._newest = key
        self._new_plans += 1
        return self._new_plans > _PLANS_IN_VAIN and sum(array.size for array in feeds) <= EVALUATED_ELEMENTS

    def _evaluate(self, feeds: Sequence[Array]) -> list[Array]:
        """Runs the nodes one by one with NumPy, each checked before, as planning does."""
        graph = self._rest
        values = {name: Known(constant.type, constant.array) for name, constant in graph.constants.items()}
        for at, array in zip(self._read, feeds, strict=True):
            values[self._names[at]] = Known(static(from_numpy(array.dtype), array.shape), array)
        for node in graph.nodes:
            known = [values[name] if name else None for name in node.inputs]
            infer_types(node, known)
            made = evaluate_constant(node, [None if each is None else each.value for each in known])
            for name, value in zip(node.outputs, made, strict=False):
                array = np.asarray(value)
                values[name] = Known(static(from_numpy(array.dtype), array.shape), array)
        return [np.asarray(values[name].value) for name in self._wanted]

    def planned(
        self, inputs: Sequence[ValueType], outer: Mapping[str, ValueType], depth: int
    ) -> tuple[list[Planned], list[str]]:
        """Its plans, as `Runner.planned` gives them.

        Args:
            inputs: types of its inputs, as far as they are known.
            outer: types of what it may capture.
            depth: how many bodies it lies in, itself included.
        """
        if self.runner is None:
            return [], []
        given = [
            better_type(type_, value.type) for type_, value in zip(inputs, self.graph.inputs, strict=True)
        ]
        given += [outer[name] for name in self.captures]
        return self.runner.planned([given[at] for at in self._read], depth)

    def close(self) -> bool:
        """Closes its plans; see `PlanCache.close`."""
        return self.runner is None or self.runner.close()


def _one(value: Value) -> tuple[int, ...]:
    """The shape of one element, as a body states it."""
    return (1,) * len(value.tensor.shape or ())


def _origin(name: str, index: GraphIndex) -> str:
    """The value that a value is the same as."""
    node = index.producer(name)
    while node is not None and node.op == "Identity" and not node.domain:
        name = node.inputs[0]
        node = index.producer(name)
    return name
