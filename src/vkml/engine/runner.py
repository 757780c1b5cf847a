"""Runs a prepared graph, segment by segment."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from vkml.engine.control import HostNode, Planned
from vkml.engine.cpu_bound import out_of_memory
from vkml.engine.device_array import DeviceArray, Place, dtype_of, on_host
from vkml.engine.ending import require_going
from vkml.engine.flight import RESIDENT_BYTES, Timing
from vkml.engine.plan import Plan
from vkml.engine.plan_cache import PlanCache, Setting
from vkml.engine.trace import Trace
from vkml.errors import ModelError, RuntimeException
from vkml.ir import Graph, TensorType, ValueType, static
from vkml.ir.dtypes import UNDEFINED
from vkml.passes.segments import Segment

if TYPE_CHECKING:
    from vkml.vulkan import Device

Array = np.ndarray[Any, Any]
HOST_ELEMENTS = 16
"""Elements up to which all values of a body's plan may have for it to run on the CPU, whatever the device is:
counters, conditions and sizes, for which a submission costs more than the work."""
LARGEST_ASSUMED = 1 << 24
"""Bytes of an input that a report makes up, where sizes hang on its values."""


class Runner:
    """A prepared graph that runs: its segments one after the other, each with plans for the shapes that come.

    Large values that one device makes and reads again in a later segment stay there, others pass through the
    host. Bodies of control flow have runners, too.

    Args:
        graph: prepared.
        setting: of the session.
        trace: receives the runs and their steps, which then take longer; None: no trace.
        forget: called, under the plans' lock, before plans leave their cache.
        name: what the trace calls its runs.
    """

    def __init__(
        self,
        graph: Graph,
        setting: Setting,
        trace: Trace | None = None,
        forget: Callable[[], None] = lambda: None,
        name: str = "run",
    ) -> None:
        self.plans = PlanCache(graph, setting, forget)
        self.hosts: dict[int, HostNode] = {}
        """Segment → what runs its node, where that is one that no plan can have."""
        self._inputs = graph.inputs
        self._label = setting.label
        self._trace = trace
        self._name = name
        self._is_body = False
        self._readers: dict[str, Device | None] = {}
        """Of inputs of segments, the only device that reads them; None where several do, or the CPU."""
        self.placement = setting.placement
        segments = self.plans.segments
        self.is_whole = (
            len(segments) == 1 and segments[0].alone is None and segments[0].graph.inputs == graph.inputs
        )
        """Whether it is one segment that plans run, of all inputs."""
        self._dead = _last_reads(segments, [value.name for value in graph.outputs])
        if any(segment.alone is not None for segment in segments):
            self._add_hosts(setting)

    def _add_hosts(self, setting: Setting) -> None:
        placement = replace(setting.placement, host_elements=HOST_ELEMENTS)
        inside = replace(setting, placement=placement)
        for at, segment in enumerate(self.plans.segments):
            if segment.alone is None:
                continue
            make = partial(_body_runner, inside, self._trace, segment.alone.label)
            self.hosts[at] = HostNode(segment, make, setting.options.memory_limit)

    def run(self, feeds: Sequence[Any], wanted: Sequence[str]) -> list[Any]:
        """Runs it.

        Args:
            feeds: in the order of the graph's inputs, of their types; tensors may be on devices.
            wanted: names of the outputs to return, in their order.

        Returns:
            Fresh arrays; of a body, some may be inputs or share memory with these.

        Raises:
            PlanClosed: it was closed meanwhile.
        """
        if self.is_whole:
            return self.run_plan(self.plans.plan_for(0, feeds), feeds, wanted)
        values = {value.name: feed for value, feed in zip(self._inputs, feeds, strict=True)}
        fresh: set[str] = set()
        """What plans have made: arrays of their own."""
        for index, segment in enumerate(self.plans.segments):
            require_going()
            host = self.hosts.get(index)
            if host is not None:
                made: Sequence[Any] = self._run_host(host, values)
                names = host.node.outputs
            else:
                given = [
                    on_host(values[value.name]) if value.name in segment.values else values[value.name]
                    for value in segment.graph.inputs
                ]
                plan = self.plans.plan_for(index, given)
                places = self._places(plan, wanted)
                label = f"segment {index}"
                made, names = self.run_plan(plan, given, plan.outputs, label, places), plan.outputs
                self._note_readers(plan)
                fresh.update(names)
            values.update(zip(names, made, strict=False))
            for name in self._dead[index]:
                values.pop(name, None)
        if self._is_body:
            return [values[name] for name in wanted]
        taken: set[int] = set()
        _take(feeds, taken)
        return [_own(on_host(values[name]), taken, name in fresh) for name in wanted]

    def _places(self, plan: Plan, wanted: Sequence[str]) -> Mapping[str, Place] | None:
        """Where large values stay that the same device reads in a later segment, by what was seen so far."""
        if not self._readers:
            return None
        types = {value.name: value.tensor for value in plan.graph.outputs}
        found = {
            name: device
            for name, device in plan.made_on.items()
            if self._readers.get(name) is device
            and name not in wanted
            and (types[name].is_open or types[name].bytes >= RESIDENT_BYTES)
        }
        return found or None

    def _note_readers(self, plan: Plan) -> None:
        """Notes which inputs of a segment a device reads, and no other."""
        for name in plan.input_names:
            device = plan.read_on.get(name)
            if self._readers.setdefault(name, device) is not device:
                self._readers[name] = None

    def _run_host(self, host: HostNode, values: Mapping[str, Any]) -> list[Any]:
        start = time.perf_counter()
        try:
            return host.run(values)
        except MemoryError as error:
            raise out_of_memory(error, self._label) from error
        finally:
            if self._trace is not None:
                self._trace.add(host.node.label, start)

    @property
    def is_traced(self) -> bool:
        """Whether a trace wants the times of all steps."""
        return self._trace is not None

    def only_plan(self, feeds: Sequence[Any]) -> Plan | None:
        """The plan that is all there is to run for inputs of these shapes; None where there is more."""
        if not self.is_whole or self.plans.segments[0].values:
            return None
        return self.plans.plan_for(0, feeds)

    def check(self, feeds: Sequence[Any]) -> None:
        """Raises `RuntimeException` where a value that a body is given is not of the type that it states."""
        for value, found in zip(self._inputs, feeds, strict=True):
            stated = value.type
            if not isinstance(stated, TensorType):
                continue
            if not isinstance(found, np.ndarray | DeviceArray):
                raise RuntimeException(f"'{value.name}' must be a tensor, it is {_kind(found)}")
            dtype = dtype_of(found)
            if not stated.is_unknown and dtype != stated.dtype:
                raise RuntimeException(
                    f"'{value.name}' is stated to be {stated.dtype.name}, what comes is {dtype.name}"
                )

    def close(self) -> bool:
        """Closes its plans and its bodies'; see `PlanCache.close`."""
        is_idle = self.plans.close()
        return all([host.close() for host in self.hosts.values()]) and is_idle

    def all_segments(self) -> Iterator[Segment]:
        """Its segments, and those of all bodies."""
        for at, segment in enumerate(self.plans.segments):
            yield segment
            host = self.hosts.get(at)
            for body in host.bodies.values() if host is not None else ():
                if body.runner is not None:
                    yield from body.runner.all_segments()

    def run_plan(
        self,
        plan: Plan,
        feeds: Sequence[Any],
        wanted: Sequence[str],
        name: str = "",
        places: Mapping[str, Place] | None = None,
    ) -> list[Any]:
        """Runs one of the plans; see `Plan.run`."""
        if self._trace is None:
            try:
                return plan.run(feeds, wanted, None, places)
            except MemoryError as error:
                raise out_of_memory(error, self._label) from error
        start = time.perf_counter()
        steps: list[Timing] = []
        try:
            return plan.run(feeds, wanted, steps, places)
        finally:
            shapes = tuple(tuple(array.shape) for array in feeds)
            self._trace.add(name or self._name, start, steps, plan, shapes)

    def planned(self, given: Sequence[ValueType], depth: int = 0) -> tuple[list[Planned], list[str]]:
        """Its segments' plans without data, as many as can be made, and what was assumed for them.

        Args:
            given: types of its inputs; unknown sizes are taken for ones.
            depth: how many bodies it lies in.
        """
        types = {value.name: type_ for value, type_ in zip(self._inputs, given, strict=True)}
        planned: list[Planned] = []
        assumed: list[str] = []
        known: dict[str, Array] = {}
        segments = self.plans.segments
        for index, segment in enumerate(segments):
            host = self.hosts.get(index)
            if host is not None:
                made, found, more = host.planned(types, depth)
                types.update(zip(host.node.outputs, made, strict=False))
                planned += found
                assumed += more
                continue
            stop = f"of {len(segments)} segments, {index} could be planned: "
            names = [value.name for value in segment.graph.inputs]
            tensors = {name: _assumed(name, types[name], assumed) for name in names}
            for name in names:
                if name not in segment.values or name in known:
                    continue
                type_ = tensors[name]
                if type_.bytes > LARGEST_ASSUMED:
                    assumed.append(
                        f"{stop}sizes hang on the values of '{name}', which would take {type_.bytes} bytes"
                    )
                    return planned, assumed
                known[name] = np.ones(type_.dims, type_.dtype.storage)
                assumed.append(f"'{name}' holds ones")
            untyped = [tensors[name].dtype for name in self.plans.untyped(index)]
            if any(dtype == UNDEFINED for dtype in untyped):
                assumed.append(f"{stop}the element types of values from outside are not known")
                break
            values = {name: known[name] for name in segment.values}
            shapes = tuple(tensors[name].dims for name in names)
            try:
                plan = self.plans.plan(index, shapes, values, tuple(untyped))
            except ModelError as error:
                if not assumed:
                    raise
                assumed.append(f"{stop}{error}")
                break
            plan.bind(shapes)
            planned.append(Planned(depth, plan, shapes=shapes))
            types.update(tensors)
            types.update((value.name, value.type) for value in plan.graph.outputs)
            known.update(plan.constants)
        return planned, assumed


def _assumed(name: str, type_: ValueType, assumed: list[str]) -> TensorType:
    """The type of a tensor with all sizes known, which says so where they are made up."""
    found = type_.tensor
    if not found.is_static:
        sizes = [dim if isinstance(dim, int) else 1 for dim in found.shape or ()]
        found = static(found.dtype, sizes)
        assumed.append(f"'{name}' has the shape {sizes}")
    return found


def _body_runner(
    setting: Setting, trace: Trace | None, name: str, graph: Graph, forget: Callable[[], None]
) -> Runner:
    made = Runner(graph, setting, trace, forget, f"body of {name}")
    made._is_body = True
    return made


def _last_reads(segments: Sequence[Segment], outputs: Sequence[str]) -> list[list[str]]:
    """Of each segment, the values that are not needed behind it."""
    kept = set(outputs)
    dead: list[list[str]] = []
    for segment in reversed(segments):
        names = [value.name for value in (*segment.graph.inputs, *segment.graph.outputs)]
        last = [name for name in dict.fromkeys(names) if name not in kept]
        kept.update(last)
        dead.append(last)
    return dead[::-1]


def _take(values: Sequence[Any], taken: set[int]) -> None:
    """Notes the arrays among values, those in sequences included."""
    for value in values:
        if isinstance(value, list):
            _take(value, taken)
        else:
            taken.add(id(value))


def _own(value: Any, taken: set[int], is_fresh: bool) -> Any:
    """A value for the caller: arrays that may be another's as copies, which then are `taken`."""
    if isinstance(value, list):
        return [_own(item, taken, False) for item in value]
    if not isinstance(value, np.ndarray):
        return value
    if id(value) in taken or not (is_fresh or value.base is None):
        value = np.array(value)
    taken.add(id(value))
    return value


def _kind(value: Any) -> str:
    return "a sequence" if isinstance(value, list) else "an optional of nothing"
