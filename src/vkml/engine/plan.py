"""A plan: everything a session needs to run one signature of inputs."""

from __future__ import annotations

import functools
import itertools
import logging
import sys
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

import numpy as np

from vkml.dataclasses import dataclass
from vkml.engine.closing import PlanClosed, close_plan_at_exit
from vkml.engine.cpu_bound import CpuBound
from vkml.engine.device_array import DeviceArray, Place, Value, check_target, put
from vkml.engine.flight import Flight, Timing
from vkml.engine.programs import Bound, Prepared, VulkanBound
from vkml.engine.written_over import Pairs
from vkml.errors import DeviceError, Fail, OutOfMemory
from vkml.forks import renew_in_child
from vkml.ir import Graph, TensorType
from vkml.ir.mapped_file import MappedFile
from vkml.ir.size import Sizes, binder, concrete, matcher
from vkml.ir.size_terms import Symbol
from vkml.lowering.donation import donations

if TYPE_CHECKING:
    from vkml.engine.trips import Wiring
    from vkml.vulkan import Device

_log = logging.getLogger("vkml")
Array = np.ndarray[Any, Any]


Direct = Callable[[Mapping[str, Any]], list[Array] | None]
"""From a feed to all outputs; None, having run nothing, for a feed that it does not take, or while taken."""


_NESTED = (
    "this session runs in this very thread, for inputs of the same shapes: what is called during a run (a "
    "signal handler, a finalizer) cannot run it once more"
)


@dataclass(eq=False)
class Plan:
    """Programs, and values that they hand each other. Closes when the last reference to it goes.

    Runs that come at the same time, from several threads, each have programs with memory of their own
    (`Flight`), as many as are worth it and as there is memory for; others wait for one.
    """

    signature: Any
    input_names: tuple[str, ...]
    input_types: tuple[TensorType, ...]
    outputs: tuple[str, ...]
    programs: list[Bound]
    fallbacks: tuple[tuple[str, str], ...]
    graph: Graph
    constants: Mapping[str, Array]
    """Outputs that are constants of the model."""
    sizes: Sizes | None = None
    """The sizes that are open, and what had to be decided about them."""
    is_closed: bool = False
    reasons: tuple[str, ...] = ()
    """Why a device does not run all nodes."""
    donated: Pairs = frozenset()
    """Of several programs, inputs and outputs that may be at one address."""
    behind: Sequence[Collection[int]] = ()
    """See `Flight`."""
    _most_flights: int = field(default=1, init=False)
    _is_growing: bool = field(default=False, init=False)
    """Whether a thread, the one that holds `_growing`, is making a flight."""

    def run(
        self,
        feeds: Sequence[Value],
        wanted: Sequence[str],
        profile: list[Timing] | None = None,
        places: Mapping[str, Place] | None = None,
    ) -> list[Any]:
        """Runs all programs.

        Args:
            feeds: in the order of `input_names`.
            wanted: names of the values to return.
            profile: receives the time of every step: of each launch, those of GPUs from a second pass in
                which they run one by one.
            places: of values that are to be on a device, or in memory that there is; others become arrays.
        """
        known = self.known([array.shape for array in feeds])
        bound = tuple(known.values())
        flight = self._idle()
        with flight.lock:
            # No call between these: a signal handler would come in between, and might close the plan.
            if flight.is_taken or self.is_closed:
                raise self._refusal(flight)
            flight.is_taken = True
            try:
                if self._is_direct and wanted == self.outputs and profile is None and places is None:
                    return flight.run_only(feeds, bound)
                targets = {} if places is None else self._targets(places, feeds, known, wanted)
                values: dict[str, Any] = dict(zip(self.input_names, feeds, strict=True))
                flight.run(values, bound, known, wanted, targets, profile)
            finally:
                flight.is_taken = False
        outputs: list[Any] = []
        shared = set(self.input_names)
        overwritten: list[tuple[int, DeviceArray]] = []
        for name in wanted:
            found = self._constant(name, known) if name in self.constants else values[name]
            if places is not None and name in places:
                found = put(found, targets[name])
                bound_to = places[name]
                if isinstance(bound_to, DeviceArray) and bound_to is not found:
                    overwritten.append((len(outputs), bound_to))
            elif isinstance(found, DeviceArray):
                found = found.numpy()
            elif name in shared:
                found = np.array(found)
            outputs.append(found)
            shared.add(name)  # an output that is wanted twice
        for at, bound_to in overwritten:  # inputs, which outputs may be copies of
            outputs[at] = put(outputs[at], bound_to)
        return outputs

    def run_trips(
        self,
        feeds: Sequence[Value],
        count: int | None,
        wiring: Wiring,
        carried: Sequence[Value],
        captured: Mapping[int, Value],
        require_open: Callable[[], None],
    ) -> list[Array]:
        """Runs trips of a loop whose body this is, where one program of a GPU is the whole plan.

        Args:
            feeds: of the first trip, for their shapes.
            count: trips; the most, where they say themselves whether there is another.
            wiring: what becomes of values from trip to trip.
            carried: before the first trip.
            captured: by number.
            require_open: see `GatedTrips.run`.

        Returns:
            See `VulkanBound.run_trips`.
        """
        bound = tuple(self.known([array.shape for array in feeds]).values())
        flight = self._idle()
        with flight.lock:
            # No call between these: a signal handler would come in between, and might close the plan.
            if flight.is_taken or self.is_closed:
                raise self._refusal(flight)
            flight.is_taken = True
            try:
                [program] = flight.programs
                assert isinstance(program, VulkanBound)
                return program.run_trips(bound, wiring, count, carried, captured, require_open)
            finally:
                flight.is_taken = False

    def known(self, shapes: Sequence[tuple[int, ...]]) -> dict[Symbol, int]:
        """The values of the open sizes, which this plan is for, by symbol."""
        if self.sizes is None:
            return {}
        bound = self.values_of(shapes)
        assert bound is not None, "the plan is for other shapes"
        return dict(zip(self.sizes.examples, bound, strict=True))

    def _refusal(self, flight: Flight) -> Exception:
        return Fail(_NESTED) if flight.is_taken else PlanClosed("this plan has been closed")

    def _idle(self) -> Flight:
        """Programs that nobody runs, or those to wait for.

        Raises:
            Fail: this very thread is in the middle of a run: for what that holds, the device's queues among
                it, it would wait for ever.
        """
        flights = self._flights
        for flight in flights:
            if not flight.is_taken:
                return flight
        if any(flight.is_owned for flight in flights):
            raise Fail(_NESTED)
        if len(flights) < self._most_flights:
            made = self._another_flight()
            if made is not None:
                return made
        return flights[next(self._turns) % len(flights)]

    def _another_flight(self) -> Flight | None:
        with self._growing:
            if self.is_closed or self._is_growing or len(self._flights) >= self._most_flights:
                return None
            self._is_growing = True
            try:
                made = self._flights[0].another()
            except (OutOfMemory, DeviceError, MemoryError):
                self._most_flights = len(self._flights)
                return None
            finally:
                self._is_growing = False
            self._flights.append(made)
            direct = self._direct_of(made)
            if direct is not None:
                self.directs.append(direct)
            return made

    def _targets(
        self,
        places: Mapping[str, Place],
        feeds: Sequence[Value],
        known: Mapping[Symbol, int],
        wanted: Sequence[str],
    ) -> dict[str, DeviceArray]:
        """Memory for each of the values that are to be on a device.

        It overlaps none of the feeds', but for those that the value may be written over.
        """
        shapes = self._output_shapes(known)
        targets = {}
        lying = self._lying(feeds)
        for name, there in places.items():
            dtype, shape = self._output_types[name].dtype, shapes[name]
            if isinstance(there, DeviceArray):
                check_target(there, dtype, shape, name)
                is_read = self._needs_other_memory(name, there, lying, wanted)
                targets[name] = DeviceArray(there.device, dtype, shape) if is_read else there
            else:
                targets[name] = DeviceArray(there, dtype, shape)
        return targets

    def _needs_other_memory(
        self,
        output: str,
        target: DeviceArray,
        lying: Mapping[tuple[int, int], Sequence[str]],
        wanted: Sequence[str],
    ) -> bool:
        """Whether an output cannot be computed in this memory: an input lies there that is read later.

        Args:
            output: its name.
            target: the memory.
            lying: see `_lying`.
            wanted: names of the outputs.
        """
        here = lying.get((id(target.device), target.address))
        if not here:
            return False
        if any(name in wanted for name in here):
            return True  # inputs that are outputs are copied at the end
        return any((name, output) not in self._donations for name in here)

    def _lying(self, feeds: Sequence[Value]) -> dict[tuple[int, int], list[str]]:
        """The inputs that lie on devices, by device and address."""
        found: dict[tuple[int, int], list[str]] = {}
        for name, value in zip(self.input_names, feeds, strict=True):
            if isinstance(value, DeviceArray):
                found.setdefault((id(value.device), value.address), []).append(name)
        return found

    @functools.cached_property
    def _donations(self) -> frozenset[tuple[str, str]]:
        """Inputs and outputs that may be at one address."""
        if len(self.programs) != 1:
            return self.donated
        program = self.programs[0]
        return donations(program.program) if isinstance(program, VulkanBound) else frozenset()

    def values_of(self, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...] | None:
        """The values of the open sizes for inputs of these shapes; None where the plan does not hold."""
        return self._values(shapes)

    def _constant(self, name: str, known: Mapping[Symbol, int]) -> Array:
        """An output that is known without a run; among its elements there may be open sizes."""
        array, constant = self.constants[name], self.graph.constants[name]
        if self.sizes is None or not constant.is_open:
            return np.array(array)
        numbers = [concrete(element, known) for element in array.reshape(-1)]
        return np.array(numbers, constant.dtype.storage).reshape(array.shape)

    def __post_init__(self) -> None:
        self._flights = [Flight(self.programs, self.graph.types, self.behind)]
        self._turns = itertools.count()
        self._renew()
        renew_in_child(self._renew)
        self._most_flights = max((program.most_at_once for program in self.programs), default=1)
        stated = [type_.dims for type_ in self.input_types]
        self._values: Callable[[Sequence[tuple[int, ...]]], tuple[int, ...] | None]
        if self.sizes is None:
            self._values = lambda shapes: () if list(shapes) == stated else None
        else:
            self._values = matcher(stated, self.sizes)
        self._is_direct = (
            len(self.programs) == 1
            and self.programs[0].inputs == self.input_names
            and self.programs[0].outputs == self.outputs
        )

        devices = [(p, p.on) for p in self.programs if isinstance(p, VulkanBound)]
        self.made_on = {name: device for program, device in devices for name in program.outputs}
        """Values that a device makes."""
        readers: dict[str, set[Device | None]] = {}
        for program in self.programs:
            for name in program.inputs:
                readers.setdefault(name, set()).add(program.on if isinstance(program, VulkanBound) else None)
        self.read_on = {name: found.pop() for name, found in readers.items() if len(found) == 1}
        """Values that are read on one device alone, None: on the CPU."""
        direct = self._direct_of(self._flights[0])
        self.directs: list[Direct] = [] if direct is None else [direct]
        """The shortest ways to all outputs, one a flight, where one program is the whole plan."""
        if devices:
            close_plan_at_exit(self)

    @functools.cached_property
    def _output_types(self) -> dict[str, TensorType]:
        return {value.name: value.tensor for value in self.graph.outputs}

    @functools.cached_property
    def _output_shapes(self) -> Callable[[Mapping[Symbol, int]], Mapping[str, tuple[int, ...]]]:
        """Of outputs that can be on a device, for the values of the open sizes."""
        shapes = {name: type_.dims for name, type_ in self._output_types.items() if type_.is_static}
        if self.sizes is None:
            return lambda known: shapes
        compute = binder([dim for dims in shapes.values() for dim in dims], tuple(self.sizes.examples))

        def bound(known: Mapping[Symbol, int]) -> Mapping[str, tuple[int, ...]]:
            found = iter(compute(*known.values()))
            return {name: tuple(itertools.islice(found, len(dims))) for name, dims in shapes.items()}

        return bound

    def _renew(self) -> None:
        self._growing = threading.RLock()

    def _direct_of(self, flight: Flight) -> Direct | None:
        program = flight.programs[0] if self._is_direct else None
        if isinstance(program, CpuBound):
            return program.direct(self.input_types, flight, self._values)
        return program.direct(flight) if isinstance(program, VulkanBound) else None

    @property
    def writing_order(self) -> tuple[str, ...]:
        """What `prepared` makes, in its order."""
        return self.programs[0].outputs if len(self.programs) == 1 else self.outputs

    @property
    def reading_order(self) -> list[int]:
        """Which of the feeds `prepared` reads, in its order."""
        if len(self.programs) != 1:
            return list(range(len(self.input_names)))
        return [self.input_names.index(name) for name in self.programs[0].inputs]

    def prepared(
        self,
        feeds: Sequence[Value],
        wanted: Sequence[str],
        targets: Mapping[str, DeviceArray],
        is_holding: bool = True,
    ) -> Prepared | None:
        """The shortest way to run it again with the same values, where it is programs on GPUs.

        It takes other arrays in place of those among the feeds, if any, in the order in which they are
        read (`reading_order`), and returns copies of the outputs without a target, in that of
        `writing_order`; None, having run nothing, when the plan has been closed or has recorded anew: `run`
        goes on from there.

        Args:
            feeds: that it ran with.
            wanted: the outputs.
            targets: values on the device that are overwritten with some of them.
            is_holding: whether it keeps the values of the device alive, which else is the caller's concern.
        """
        flight = self._flights[next(self._turns) % len(self._flights)]
        program = flight.programs[0] if len(flight.programs) == 1 else None
        is_several = len(flight.programs) > 1 and not is_holding
        if not is_several and (
            not isinstance(program, VulkanBound) or sorted(program.outputs) != sorted(wanted)
        ):
            return None
        given = dict(zip(self.input_names, feeds, strict=True))
        lying = self._lying(feeds)
        if any(self._needs_other_memory(name, target, lying, wanted) for name, target in targets.items()):
            return None
        values = self.values_of([value.shape for value in feeds])
        if values is None:
            return None
        if program is None:
            known = self.known([value.shape for value in feeds])
            return flight.prepared(given, values, known, self.outputs, targets)
        assert isinstance(program, VulkanBound)
        inputs = [given[name] for name in program.inputs]
        there = [value for value in (*inputs, *targets.values()) if isinstance(value, DeviceArray)]
        if any(value.device is not program.on for value in there):
            return None  # addresses of one device mean nothing to another
        given_targets = [targets.get(name) for name in program.outputs]
        make = functools.partial(program.prepared, flight, inputs, values, given_targets, is_holding)
        return self._made_alone(flight, make)

    def _made_alone(self, flight: Flight, make: Callable[[], Prepared | None]) -> Prepared | None:
        """What is made while no run of the flight's is under way: it may record, as runs do."""
        with flight.lock:
            if flight.is_taken or self.is_closed:
                return None
            flight.is_taken = True
            try:
                return make()
            finally:
                flight.is_taken = False

    def array_call(self, feeds: Sequence[Array]) -> Prepared | None:
        """The shortest way from arrays to arrays, where one program of known sizes is the whole plan.

        It takes arrays of the inputs' types and shapes, in their order, and arrays to write the outputs to,
        contiguous and apart from the inputs, None for fresh ones. None, having run nothing, when the plan has
        been closed or is at work: `run` goes on from there.

        Args:
            feeds: arrays of the inputs' types.
        """
        if not self._is_direct or self.sizes is not None:
            return None
        flight = self._flights[0]
        program = next(iter(self.programs), None)
        if isinstance(program, CpuBound):
            return self._made_alone(flight, functools.partial(program.array_call, flight))
        if not isinstance(program, VulkanBound):
            return None  # it has just been closed
        targets = [None] * len(program.outputs)
        return self._made_alone(
            flight, functools.partial(program.prepared, flight, feeds, (), targets, False)
        )

    def watch(self, files: Sequence[MappedFile]) -> None:
        """Has sizes that come later refused with `ModelChanged` where one of these files has changed by then.

        Programs of the CPU read constants where they are mapped; GPUs have them all.
        """
        for program in self.programs:
            if isinstance(program, CpuBound):
                program.files = files

    def bind(self, shapes: Sequence[tuple[int, ...]]) -> None:
        """Makes what a run with inputs of these shapes needs, for reports."""
        flight = self._flights[0]
        with flight.lock:
            if flight.is_taken:
                raise self._refusal(flight)
            flight.is_taken = True
            try:
                values = self.values_of(shapes)
                if values is not None and not self.is_closed:
                    for program in flight.programs:
                        program.bind(values)
            finally:
                flight.is_taken = False

    def close(self) -> bool:
        """Frees what the programs hold, when no other thread runs it any more; returns whether it did.

        A thread in the middle of a run of its own (a signal handler closes the session) frees nothing: the
        run's end does, by letting go of the plan.
        """
        if any(flight.is_owned for flight in self._flights):
            return False
        self.is_closed = True
        with self._growing:
            flights = list(self._flights)
        for flight in flights:
            with flight.lock:
                flight.close()
        return True

    def __del__(self, is_ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if is_ending():
            return  # its device is closed, and modules have lost their names
        try:
            self.close()
        except Exception:
            _log.debug("closing a plan at its end failed", exc_info=True)
