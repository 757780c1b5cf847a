"""Computes traced values: what was recorded becomes a graph, planned once for all that are built alike."""

from __future__ import annotations

import logging
import re
import threading
import weakref
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence, Set
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from vkml.engine import devices as device_registry
from vkml.engine.collector import collector_paused
from vkml.engine.device_array import Place, on_host, place_array
from vkml.engine.options import SessionOptions
from vkml.engine.placement import Placement, Site
from vkml.engine.plan import Plan
from vkml.engine.plan_cache import Setting
from vkml.engine.prepare import prepare_normalised
from vkml.engine.runner import Runner
from vkml.engine.weights import WeightStore
from vkml.errors import Error
from vkml.forks import renew_in_child
from vkml.ir import Constant, Graph, Node, Value
from vkml.ir.size import is_deciding
from vkml.ops.upgrading import NEWEST
from vkml.passes.stated_sizes import with_named_sizes, with_stated_sizes
from vkml.tracing import precision
from vkml.tracing.moves import Moved, devices_of, late_values, name_of
from vkml.tracing.value import Application, Joined, Kind, Origin, Traced, place_of

if TYPE_CHECKING:
    from vkml.vulkan import Device

_log = logging.getLogger("vkml")
SMALL_BYTES = 64 << 10
"""Of values that the host looks at: up to here they come with the run that makes them, not by a copy."""
STRUCTURES_KEPT = 256
"""Plans of structures that were evaluated last."""
APPLICATIONS_KEPT = 20_000
"""Of which these plans are at the most, but for the last one: each takes the host some 3 KiB."""
_LABEL = "the recorded operations"
_NAME = re.compile(r"node '#(\d+)'")
"""Of a node in errors: its number among the applications."""


class Recorded:
    """What has to be computed for some values: applications in the order of recording, and what they read.

    Args:
        targets: values that are not known.
        held: whether what tensors of the program hold is computed, too.
    """

    def __init__(self, targets: Sequence[Traced], held: bool = True) -> None:
        self.applications = _applications(targets)
        self.leaves: list[Traced] = []
        """Known values, in the order in which they are met."""
        self.numbers: list[Traced] = []
        """Those among the leaves that are numbers of the program's text."""
        self.places: dict[tuple[int, int], int] = {}
        """Serial of an application and number of an output → the value's number."""
        self._leaf_numbers: dict[int, int] = {}
        self.wanted = self._wanted(targets, held)
        self.is_on_several = any([type(made) is Moved and made.is_between for made in self.applications])
        """Whether it is computed on several devices."""
        self.key = self._key()

    def _wanted(self, targets: Sequence[Traced], held: bool) -> list[Traced]:
        """The targets, and what else tensors of the program hold of what they are made of, or is random."""
        wanted: dict[int, Traced] = {id(value): value for value in targets}
        for application in self.applications if held else ():
            outputs = range(len(application.types)) if len(application.types) > 1 else ()
            for value in (*application.inputs, *map(application.known_output, outputs)):
                if value is not None and value.data is None and value.holders:
                    wanted[id(value)] = value
            if not application.operator.is_deterministic:
                # Computed again, whether for what follows or for a gradient, it would be something else.
                for value in application.kept_outputs():
                    wanted[id(value)] = value
        for application in self.applications if held else ():
            if not application.operator.gradient_outputs or application.device is None:
                continue  # the CPU's gradients go by steps, which read nothing that is kept
            first, *others = map(application.known_output, range(len(application.types)))
            if first is not None and id(first) in wanted:
                # What gradients read would else take all of it to be computed once more.
                more = application.kept_outputs() if application.tracks else others
                wanted.update({id(value): value for value in more if value is not None})
        return list(wanted.values())

    @property
    def origins(self) -> list[Origin | None]:
        """Where the program applied each operator."""
        return [application.origin for application in self.applications]

    def _key(self) -> Hashable:
        key: list[Any] = []
        places = self.places
        count = 0
        for application in self.applications:
            key.append(application.node)
            for value in application.inputs:
                if value is None:
                    key.append(None)
                elif value.data is None:
                    assert value.application is not None
                    key.append(places[value.application.serial, value.index])
                else:
                    key.append(self._leaf(value, key))
            for at in range(len(application.types)):
                places[application.serial, at] = count
                count += 1
        for value in self.wanted:
            assert value.application is not None
            key.append(places[value.application.serial, value.index])
            key.append(value.device is None)
        if self.is_on_several:
            key += [id(application.device) for application in self.applications]
            key += [id(value.device) for value in self.wanted]
            key.append(self.bucket_bytes)
        return tuple(key)

    @property
    def bucket_bytes(self) -> int | None:
        """See `moved`; the least of what is asked for."""
        asked = [made.bucket_bytes for made in self.applications if isinstance(made, Moved)]
        return min((found for found in asked if found is not None), default=None)

    def _leaf(self, value: Traced, key: list[Any]) -> int:
        """The number of a known value: below 0. What it is becomes part of the key where it comes first."""
        found = self._leaf_numbers.get(id(value))
        if found is not None:
            return found
        self.leaves.append(value)
        number = self._leaf_numbers[id(value)] = -len(self.leaves)
        key.append(value.kind)
        key.append(value.type.key)
        if value.kind is Kind.CONSTANT:
            key.append(np.asarray(value.data).tobytes())
        elif value.kind is Kind.NUMBER:
            self.numbers.append(value)
        return number


def _applications(targets: Sequence[Traced]) -> list[Application]:
    """What makes values, and all that these need, in the order of recording."""
    found: dict[int, Application] = {}
    stack = [value.application for value in targets if value.data is None]
    while stack:
        application = stack.pop()
        if application is None:
            raise NotImplementedError(
                "a tensor on 'meta' has no elements: give its module memory with to_empty(), and write "
                "into that"
            )
        if application.serial in found:
            continue
        found[application.serial] = application
        for value in application.inputs:
            if value is not None and value.data is None:
                stack.append(value.application)
    return [found[serial] for serial in sorted(found)]


class _Structure:
    """Everything that is built like what it was made for, but for numbers of the program's text."""

    def __init__(self) -> None:
        self.latest: tuple[float, ...] | None = None
        self.varying: frozenset[int] = frozenset()
        """Which of the numbers have changed from one time to another: they are inputs of the plan."""

    def fixed(self, recorded: Recorded) -> tuple[bytes | None, ...]:
        """The numbers that are part of the plan; None for those that vary."""
        numbers = tuple([value.data.tobytes() for value in recorded.numbers])  # type: ignore[union-attr]
        if self.latest is not None and numbers != self.latest:
            changed = {
                at for at, pair in enumerate(zip(numbers, self.latest, strict=True)) if pair[0] != pair[1]
            }
            self.varying |= changed
        self.latest = numbers  # type: ignore[assignment]
        return tuple([None if at in self.varying else found for at, found in enumerate(numbers)])


class Program:
    """A structure planned for a device.

    Args:
        recorded: something that is built so.
        varying: which of its numbers are inputs.
        device: where it is computed, unless that is on several.
        donated: leaves that are not needed behind a run, and which of the wanted values are to be written
            over each.
        constants: identities of leaves that are the same in all runs, and prepared once.
    """

    def __init__(
        self, recorded: Recorded, varying: frozenset[int], device: Device | None,
        donated: Sequence[tuple[Traced, int]] = (), constants: Set[int] = frozenset(),
    ) -> None:  # fmt: skip
        numbers = {id(value): at for at, value in enumerate(recorded.numbers)}
        self.size = len(recorded.applications)
        self.inputs = [
            at
            for at, value in enumerate(recorded.leaves)
            if (value.kind is Kind.DATA and id(value) not in constants) or numbers.get(id(value)) in varying
        ]
        """Which of the leaves are fed."""
        graph = graph_of(recorded, self.inputs)
        if is_deciding():
            graph = _with_open_sizes(graph, recorded)
        if donated:
            leaves = {
                id(recorded.leaves[at]): value.name
                for at, value in zip(self.inputs, graph.inputs, strict=True)
            }
            pairs = [(leaves[id(leaf)], graph.outputs[at].name) for leaf, at in donated if id(leaf) in leaves]
            graph = replace(graph, donated=tuple(pairs))
        self.outputs = tuple(value.name for value in graph.outputs)
        places: dict[str, Place] = {
            name: value.device
            for name, value in zip(self.outputs, recorded.wanted, strict=True)
            if value.device is not None
        }
        self.places = places or None
        """Of the outputs that stay on the device: single numbers that the host made stay on the host."""
        self.origins = recorded.origins
        """Where the program applied each operator when this was planned."""
        with collector_paused():
            setting = _setting_of_several(recorded) if recorded.is_on_several else _setting(device)
            self.runner = Runner(prepare_normalised(graph), setting)

    def run(self, recorded: Recorded, looked_at: Sequence[Traced] = ()) -> list[Any]:
        """What was recorded, computed.

        Args:
            recorded: something that is built so.
            looked_at: values that the host wants.
        """
        places = self.places
        small = {id(value) for value in looked_at if value.type.bytes <= SMALL_BYTES}
        if places is not None and small:
            outputs = zip(self.outputs, recorded.wanted, strict=True)
            there = {name for name, value in outputs if id(value) in small}
            places = {name: place for name, place in places.items() if name not in there} or None
        return self._run([recorded.leaves[at].fed() for at in self.inputs], places)

    def run_feeds(self, feeds: Sequence[Any], places: Mapping[str, Place] | None) -> list[Any]:
        """All outputs, of inputs in the order of `inputs`.

        Args:
            feeds: arrays, or values of its device.
            places: of outputs that are to be on the device, or in memory that there is.
        """
        try:
            return self._run(feeds, places)
        except Error as error:
            located(error, self.origins)
            raise

    def _run(self, feeds: Sequence[Any], places: Mapping[str, Place] | None) -> list[Any]:
        plan = self.runner.only_plan(feeds)
        if plan is not None:
            return self.runner.run_plan(plan, feeds, self.outputs, places=places)
        made = self.runner.run(feeds, self.outputs)
        places = places or {}
        return [
            place_array(found, places[name], "a tensor") if name in places else found
            for name, found in zip(self.outputs, made, strict=True)
        ]


def located(error: Error, origins: Sequence[Origin | None]) -> None:
    """Says in an error of nodes where the program applied them."""

    def place(found: re.Match[str]) -> str:
        where = place_of(origins[int(found[1])])
        return f"of {where}" if where else "of the recorded operations"

    if len(error.args) == 1 and isinstance(error.args[0], str):
        error.args = (_NAME.sub(place, error.args[0]),)


def graph_of(recorded: Recorded, inputs: Sequence[int]) -> Graph:
    """What was recorded as a graph, of so many of its leaves."""
    names = {id(value): f"leaf {at}" for at, value in enumerate(recorded.leaves)}
    fed = set(inputs)

    def name(value: Traced | None) -> str:
        if value is None:
            return ""
        if value.data is not None:
            return names[id(value)]
        assert value.application is not None
        return f"value {recorded.places[value.application.serial, value.index]}"

    nodes = []
    for number, application in enumerate(recorded.applications):
        node = application.node
        outputs = tuple(
            f"value {recorded.places[application.serial, at]}" for at in range(len(application.types))
        )
        if isinstance(application, Joined):
            nodes += [
                Node("Identity", (name(value),), (made,), version=NEWEST)
                for value, made in zip(application.inputs, outputs, strict=True)
            ]
            continue
        nodes.append(
            replace(node, inputs=tuple(map(name, application.inputs)), outputs=outputs, name=f"#{number}")
        )
    constants = {
        names[id(value)]: Constant(value.type.dtype, value.dims, np.asarray(on_host(value.data)))
        for at, value in enumerate(recorded.leaves)
        if at not in fed
    }
    given = tuple(Value(names[id(recorded.leaves[at])], recorded.leaves[at].type) for at in inputs)
    made = tuple(Value(name(value), value.type) for value in recorded.wanted)
    return Graph(given, made, tuple(nodes), constants, name="tensors", opsets={"": NEWEST})


def _with_open_sizes(graph: Graph, recorded: Recorded) -> Graph:
    """The graph of what was recorded of open sizes, which a plan finds by the shapes of its inputs."""
    types = {
        f"value {recorded.places[application.serial, at]}": type_
        for application in recorded.applications
        for at, type_ in enumerate(application.types)
    }
    stated = with_stated_sizes(replace(graph, types=types))
    return replace(with_named_sizes(stated, repr), types={})


_lock = threading.RLock()
"""Held while it is looked at what is known and what is not, and while values become known."""
_ended = threading.Condition(_lock)
_under_way: dict[int, weakref.ref[_Turn]] = {}
"""Serials of applications that a thread computes."""
_waiting = 0
"""Threads that wait for one of these."""
_PATIENCE = 0.1
_structures: OrderedDict[Hashable, _Structure] = OrderedDict()
_programs: OrderedDict[Hashable, Program] = OrderedDict()
_settings: dict[tuple[int, str], tuple[Device | None, Setting]] = {}


def _renew() -> None:
    global _lock, _ended, _waiting
    _lock = threading.RLock()
    _ended = threading.Condition(_lock)
    _under_way.clear()
    _waiting = 0
    _programs.clear()
    _settings.clear()


renew_in_child(_renew)


def evaluate(targets: Sequence[Traced], looked_at: Sequence[Traced] = ()) -> None:
    """Computes values, with whatever else of what they are made of a tensor of the program holds.

    Values on several devices are computed by one plan each, unless what they are made of goes from one device
    to another: then by one.

    Args:
        targets: known ones are left alone.
        looked_at: those of them whose elements the host wants: they come there, where they are few.

    Raises:
        OutOfMemory: of the device, or the host.
        DeviceError: what a run may raise.
    """
    devices: dict[int, list[Traced]] = {}
    for value in targets:
        if value.data is None:
            devices.setdefault(id(value.device), []).append(value)
    while devices:
        # What a tensor of the program holds may have come along with what another device computed.
        values = devices.pop(next(iter(devices)))
        turn = _Turn()
        try:
            with _lock:
                found = _taken(turn, values, devices)
                if found is None:
                    continue
            # Nobody else makes known what this thread has taken.
            _evaluate(*found, looked_at)
        finally:
            turn.end()


class _Turn:
    """An evaluation under way, as long as there is a reference to it."""

    __slots__ = ("__weakref__", "reference", "serials", "thread")

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.reference = weakref.ref(self)
        self.serials: Sequence[int] = ()

    def begin(self, serials: Sequence[int]) -> None:
        """Notes which applications it computes."""
        self.serials = serials
        _under_way.update(dict.fromkeys(serials, self.reference))

    def end(self) -> None:
        """Lets others have what it has computed, or compute it themselves."""
        for serial in self.serials:
            _under_way.pop(serial, None)
        if _waiting:
            with _lock:
                _ended.notify_all()

    def is_free(self, serials: Sequence[int]) -> bool:
        """Whether no other thread computes some of these applications.

        One of this thread's counts for nothing: called in the midst of it, it would wait for itself for ever.
        """
        if not _under_way:
            return True
        turns = [reference() for reference in {*map(_under_way.get, serials)} if reference is not None]
        return all(turn is None or turn.thread == self.thread for turn in turns)


def _taken(
    turn: _Turn, values: Sequence[Traced], devices: dict[int, list[Traced]]
) -> tuple[Recorded, Device | None] | None:
    """What is to be computed for values, as nobody else does; None where they are known.

    Args:
        turn: has it from then on.
        values: of one device.
        devices: values of others, of which none is left where they are computed by the same plan.
    """
    global _waiting
    while True:
        unknown = [value for value in values if value.data is None]
        if not unknown:
            return None
        recorded = Recorded(unknown)
        if recorded.is_on_several and devices:
            unknown += [value for more in devices.values() for value in more if value.data is None]
            recorded = Recorded(unknown)
        serials = [application.serial for application in recorded.applications]
        if turn.is_free(serials):
            break
        _waiting += 1  # before it looks once more: who ends looks at this behind
        try:
            if not turn.is_free(serials):
                _ended.wait(_PATIENCE)  # behind an interrupt nobody may say that it has ended
        finally:
            _waiting -= 1
    if recorded.is_on_several:
        devices.clear()
    turn.begin(serials)
    return recorded, unknown[0].device


def _evaluate(recorded: Recorded, device: Device | None, looked_at: Sequence[Traced]) -> None:
    try:
        made = _program(recorded, device).run(recorded, looked_at)
    except Error as error:
        located(error, recorded.origins)
        raise
    with _lock:
        for value, data in zip(recorded.wanted, made, strict=True):
            value.data = data
            if not value.tracks or value.is_leaf:
                value.application = None


def _program(recorded: Recorded, device: Device | None) -> Program:
    with _lock:
        key = (id(device), precision.current, recorded.key)
        structure = _structures.get(key)
        if structure is None:
            structure = _structures[key] = _Structure()
            while len(_structures) > STRUCTURES_KEPT:
                _structures.popitem(last=False)
        else:
            _structures.move_to_end(key)
        fixed = structure.fixed(recorded)
        program = _programs.get((key, fixed))
        if program is None:
            program = Program(recorded, structure.varying, device)
            _programs[key, fixed] = program
            size = sum([each.size for each in _programs.values()])
            while len(_programs) > STRUCTURES_KEPT or (size > APPLICATIONS_KEPT and len(_programs) > 1):
                size -= _programs.popitem(last=False)[1].size
        else:
            _programs.move_to_end((key, fixed))
        return program


def _setting(device: Device | None) -> Setting:
    key = id(device), precision.current
    found = _settings.get(key)
    if found is None:
        sites: tuple[Site, ...] = ()
        options = SessionOptions()
        if device is not None:
            target = device_registry.target_of(device.info, precision.current)

            def opened(device: Device = device) -> Device:
                return device

            weights = WeightStore(opened, None, options.memory_limit)
            sites = (Site(device.info.name, opened, target, weights, opened=opened),)
        placement = Placement(sites, precision=precision.current)
        setting = Setting(_LABEL, placement, options, (), _announce, lambda: None)
        found = _settings[key] = (device, setting)
    return found[1]


def _setting_of_several(recorded: Recorded) -> Setting:
    """As `_setting`, where each application is computed on the device that it is of."""
    devices = devices_of(recorded.applications, recorded.wanted)
    known = {name_of(made.device): made.device for made in recorded.applications if made.device is not None}
    known.update({name_of(v.device): v.device for v in recorded.wanted if v.device is not None})
    one = _setting(None)
    placement = replace(
        one.placement,
        sites=tuple([site for device in known.values() for site in _setting(device).placement.sites]),
        named={f"#{at}": name for at, name in devices.items()},
        late=frozenset([f"value {recorded.places[place]}" for place in late_values(recorded.applications)]),
        bucket_bytes=recorded.bucket_bytes,
    )
    return replace(one, placement=placement)


_warned: set[str] = set()


def _announce(plan: Plan) -> None:
    for label, reason in plan.fallbacks:
        operator = label.split(" node ")[0]
        if operator not in _warned:
            _warned.add(operator)
            _log.warning("%s runs on the CPU, not where the tensors are: %s", operator, reason)
