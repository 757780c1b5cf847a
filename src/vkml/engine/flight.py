"""A plan's programs, with memory for one run at a time; where runs come together, a plan has several."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field
from time import perf_counter
from typing import TYPE_CHECKING, Any
from weakref import ref

import numpy as np

from vkml.dataclasses import dataclass
from vkml.engine.cpu_bound import CpuBound
from vkml.engine.device_array import DeviceArray, Value, on_host, put
from vkml.engine.ending import require_going
from vkml.engine.programs import Bound, Prepared, Running, VulkanBound
from vkml.engine.turns import Turn, is_owned
from vkml.ir import TensorType
from vkml.ir.size import concrete
from vkml.ir.size_terms import Symbol

if TYPE_CHECKING:
    from vkml.engine.placement import Placement
    from vkml.kernels.spec import Dispatch
    from vkml.vulkan import Queue

Array = np.ndarray[Any, Any]
RESIDENT_BYTES = 1 << 16
"""Bytes from which on a value stays on its device for what reads it there later."""
PASSED_BYTES = 32 << 20
"""Likewise for what another GPU alone reads: it is passed on in chunks, two of which travel at a time."""
AHEAD = 2
"""Programs of a device that are submitted at a time, where they need not wait for each other on the host: one
runs, and one behind it, so that what comes from other devices meanwhile is next."""
_SPIN_SECONDS = 0.002
_SLICE_SECONDS = 0.0005
"""Between looks at other devices, once it has taken longer than that."""
Targets = Mapping[str, DeviceArray]


class Queues:
    """The queue of each device that programs of a flight share, so that they run in the order of submission.

    Args:
        placement: of the nodes; only where these have their devices by name do programs share a queue.
    """

    def __init__(self, placement: Placement) -> None:
        devices = {site.name: site.device for site in placement.sites} if placement.named else {}
        self._of = {name: device.context.next_queue() for name, device in devices.items()}

    def of(self, device: str) -> Queue | None:
        """The queue on a device; None: any."""
        return self._of.get(device)


@dataclass(frozen=True)
class Timing:
    """How long a step took."""

    device: str
    nodes: tuple[str, ...]
    """Labels of the nodes it computes."""
    seconds: float
    dispatch: Dispatch | None = None
    """The launch, on a GPU."""


@dataclass
class _Submitted:
    """A program at work on its device."""

    program: VulkanBound
    running: Running


@dataclass(eq=False)
class Flight(Turn):
    """Programs that depend on each other, run as soon as what they read is there.

    A program of a GPU is submitted and left to itself; meanwhile others are submitted, and the CPU's run.
    What one GPU makes for a later program of its own stays there; large values that another GPU reads are
    passed on to it in chunks; the rest passes through the host. Where programs of a device share a queue, one
    that reads what another one of them makes is submitted behind it at once.

    Args:
        programs: in an order in which they can run one by one.
        types: of the values between them.
        behind: of each program, others that have to begin before it: they read what it writes over.
    """

    programs: list[Bound]
    types: Mapping[str, TensorType] = field(default_factory=dict)
    behind: Sequence[Collection[int]] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        self._held: dict[str, DeviceArray] = {}
        """What stays on a device from one program to another, from the last run."""
        self._small: set[str] = set()
        """Values that were too small to stay there."""
        readers: dict[str, set[str]] = {}
        for program in self.programs:
            for name in program.inputs:
                readers.setdefault(name, set()).add(program.device)
        hosts = {program.device for program in self.programs if isinstance(program, CpuBound)}
        self._linked = [
            [
                (name, _least(program, readers[name]))
                for name in program.outputs
                if isinstance(program, VulkanBound)
                and name in readers
                and (program.device in readers[name] or not readers[name] & hosts)
            ]
            for program in self.programs
        ]
        """Of each program, what another program reads on the same GPU, or GPUs alone do, and from how many
        bytes on that stays there."""

    @property
    def is_owned(self) -> bool:
        """Whether this very thread is in the middle of a run of it."""
        return self.is_taken and is_owned(self.lock)

    def another(self) -> Flight:
        """The same programs once more, with memory of their own.

        Raises:
            OutOfMemory: there is too little.
        """
        made: list[Bound] = []
        queues: dict[str, Queue] = {}
        try:
            for program in self.programs:
                if isinstance(program, VulkanBound) and program.is_chained:
                    if program.device not in queues:
                        queues[program.device] = program.on.context.next_queue()
                    made.append(program.another(queues[program.device]))
                else:
                    made.append(program.another())
        except BaseException:
            for program in made:
                program.close()
            raise
        return Flight(made, self.types, self.behind)

    def run_only(self, feeds: Sequence[Value], bound: tuple[int, ...]) -> list[Value]:
        """Runs the only program there is.

        Args:
            feeds: in the order of its inputs.
            bound: values of the open sizes.
        """
        [program] = self.programs
        if isinstance(program, CpuBound):
            return list(program.run([on_host(value) for value in feeds], bound))
        assert isinstance(program, VulkanBound)
        return program.run(feeds, bound)

    def run(
        self,
        values: dict[str, Value],
        bound: tuple[int, ...],
        known: Mapping[Symbol, int],
        wanted: Collection[str],
        targets: Targets,
        profile: list[Timing] | None = None,
    ) -> None:
        """Runs all programs.

        Args:
            values: of the inputs; receives what the programs make.
            bound: values of the open sizes, in the order of their symbols.
            known: the same by symbol.
            wanted: names of values that must outlive the next run.
            targets: values to write outputs into.
            profile: receives the time of every step; programs then run one by one.
        """
        waiting = list(range(len(self.programs)))
        submitted: list[_Submitted] = []
        ahead: dict[str, DeviceArray] = {}
        """What programs that have been submitted make on their devices."""
        try:
            while waiting or submitted:
                require_going()
                at = self._next(waiting, submitted, values, ahead)
                if at is None:
                    self._finish(submitted.pop(_finished_first(submitted)), values, wanted)
                    continue
                waiting.remove(at)
                program = self.programs[at]
                given = [values[name] if name in values else ahead[name] for name in program.inputs]
                if isinstance(program, CpuBound):
                    self._run_on_cpu(program, given, bound, values, profile)
                    continue
                assert isinstance(program, VulkanBound)
                places = self._places(program, self._linked[at], known, targets)
                submitted.append(_Submitted(program, program.start(given, bound, places)))
                if profile is not None:
                    self._finish(submitted.pop(), values, wanted)
                    profile += timed_dispatches(program)
                elif program.is_chained and places is not None:
                    there = zip(program.outputs, places, strict=True)
                    ahead.update((name, place) for name, place in there if place is not None)
            for name in wanted:
                value = values.get(name)
                if value is not None and value is self._held.get(name):
                    values[name] = on_host(value)
        except BaseException:
            for program in self.programs:  # also one that has just been started, and is not in the list yet
                if isinstance(program, VulkanBound):
                    program.settle()
            raise

    def prepared(
        self,
        feeds: Mapping[str, Value],
        bound: tuple[int, ...],
        known: Mapping[Symbol, int],
        wanted: Sequence[str],
        targets: Targets,
    ) -> Prepared | None:
        """One closure that runs all programs again with the same values of devices, which it keeps not alive.

        Args:
            feeds: by name; the closure takes other arrays in place of those among them, in their order.
            bound: see `run`.
            known: likewise.
            wanted: all that is made; of what has no target, the closure returns arrays.
            targets: see `run`.
        """
        made = {name for program in self.programs for name in program.outputs}
        if not made.issuperset(wanted):
            return None
        on_device = [(name, ref(value)) for name, value in feeds.items() if isinstance(value, DeviceArray)]
        forms = [(name, value.shape) for name, value in feeds.items() if not isinstance(value, DeviceArray)]
        places = [(name, ref(target)) for name, target in targets.items()]
        fresh = [name for name in wanted if name not in targets]

        def call(arrays: Sequence[Array] = ()) -> list[Array] | None:
            values: dict[str, Any] = {}
            there: dict[str, DeviceArray] = {}
            for name, reference in on_device:
                values[name] = reference()
                if values[name] is None:
                    return None
            for name, reference in places:
                target = reference()
                if target is None:
                    return None
                there[name] = target
            for (name, shape), array in zip(forms, arrays, strict=True):
                if array.shape != shape:
                    return None
                values[name] = array
            with self.lock:
                if self.is_taken or not self.programs:
                    return None
                self.is_taken = True
                try:
                    self.run(values, bound, known, wanted, there)
                    for name, target in there.items():
                        put(values[name], target)  # what the CPU has made for a device
                finally:
                    self.is_taken = False
            return [on_host(values[name]) for name in fresh]

        return call

    def _next(
        self,
        waiting: Sequence[int],
        submitted: Sequence[_Submitted],
        values: Mapping[str, Value],
        ahead: Mapping[str, DeviceArray],
    ) -> int | None:
        """Which of the programs has all that it reads; None: all wait for others.

        Rather one of a GPU; where they share queues, rather a late one: others wait for what it makes.
        """
        ready = [at for at in waiting if self._is_ready(at, waiting, submitted, values, ahead)]
        gpus = [at for at in ready if not isinstance(self.programs[at], CpuBound)]
        if not gpus:
            return ready[0] if ready else None
        first = self.programs[gpus[0]]
        if not isinstance(first, VulkanBound) or not first.is_chained:
            return gpus[0]
        return gpus[-1]

    def _is_ready(
        self,
        at: int,
        waiting: Sequence[int],
        submitted: Sequence[_Submitted],
        values: Mapping[str, Value],
        ahead: Mapping[str, DeviceArray],
    ) -> bool:
        program = self.programs[at]
        if self.behind and any(other in waiting for other in self.behind[at]):
            return False
        if not isinstance(program, VulkanBound) or not program.is_chained:
            return all(name in values for name in program.inputs)
        if sum(each.program.on is program.on for each in submitted) >= AHEAD:
            return False
        return all(name in values or _is_on(ahead.get(name), program) for name in program.inputs)

    def _places(
        self,
        program: VulkanBound,
        linked: Sequence[tuple[str, int]],
        known: Mapping[Symbol, int],
        targets: Targets,
    ) -> list[DeviceArray | None] | None:
        if not linked and not targets:
            return None
        held = {
            name: self._hold(program, name, known, least) for name, least in linked if name not in targets
        }
        return [targets.get(name) or held.get(name) for name in program.outputs]

    def _hold(
        self, program: VulkanBound, name: str, known: Mapping[Symbol, int], least: int
    ) -> DeviceArray | None:
        """Memory for a value that stays on its device, where it has so many bytes at least."""
        found = self._held.get(name)
        if not known and (found is not None or name in self._small):
            return found
        type_ = self.types[name]
        shape = tuple([concrete(dim, known) for dim in type_.dims])
        if found is None or found.shape != shape:
            self._held.pop(name, None)
            if int(np.prod(shape, dtype=np.int64)) * type_.dtype.itemsize < least:
                self._small.add(name)
                return None
            found = self._held[name] = DeviceArray(program.on, type_.dtype, shape)
        return found

    @staticmethod
    def _finish(submitted: _Submitted, values: dict[str, Value], wanted: Collection[str]) -> None:
        program = submitted.program
        made = program.finish(submitted.running, wanted)
        values.update(zip(program.outputs, made, strict=True))

    @staticmethod
    def _run_on_cpu(
        program: CpuBound,
        given: Sequence[Value],
        bound: tuple[int, ...],
        values: dict[str, Value],
        profile: list[Timing] | None,
    ) -> None:
        arrays = [on_host(value) for value in given]
        made = timed(program, arrays, bound, profile) if profile is not None else program.run(arrays, bound)
        values.update(zip(program.outputs, made, strict=True))

    def close(self) -> None:
        """Frees what the programs hold; nobody may be running them."""
        for program in self.programs:
            program.close()
        self.programs.clear()
        self._linked.clear()
        self._held.clear()


def _least(program: Bound, readers: Collection[str]) -> int:
    """From how many bytes on a value stays on the GPU that makes it."""
    if program.device not in readers:
        return PASSED_BYTES
    is_chained = isinstance(program, VulkanBound) and program.is_chained
    return 0 if is_chained and len(readers) == 1 else RESIDENT_BYTES


def _is_on(value: DeviceArray | None, program: VulkanBound) -> bool:
    return value is not None and value.device is program.on


def _finished_first(submitted: Sequence[_Submitted]) -> int:
    """Which of the programs is done; waits for one. Those of a device end in the order of submission."""
    heads: dict[str, int] = {}
    for at, each in enumerate(submitted):
        heads.setdefault(each.program.device, at)
    if len(heads) == 1:
        return 0
    start = perf_counter()
    while True:
        for at in heads.values():
            if submitted[at].program.has_finished(submitted[at].running):
                return at
        passed = perf_counter() - start
        if passed < _SPIN_SECONDS:
            continue
        first = submitted[0]
        if first.program.time_limit is not None and passed > first.program.time_limit:
            return 0  # which says so
        first.running.binding.submission.wait(0.0, _SLICE_SECONDS)
        require_going()


def timed(
    program: CpuBound, feeds: Sequence[Array], bound: tuple[int, ...], profile: list[Timing]
) -> list[Array]:
    """Runs a program of the CPU; `profile` receives the time of every step."""
    steps: list[tuple[tuple[str, ...], float]] = []
    results = program.run(feeds, bound, steps)
    profile += [Timing(program.device, labels, seconds) for labels, seconds in steps]
    return results


def timed_dispatches(program: VulkanBound) -> list[Timing]:
    """The time of every launch of a program that has run, from a second pass in which each runs alone."""
    return [
        Timing(program.device, dispatch.nodes, nanoseconds * 1e-9, dispatch)
        for dispatch, nanoseconds in program.profile()
    ]
