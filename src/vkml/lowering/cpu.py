"""Programs for the CPU: machine code where there is some for a node, else the operator's own `evaluate`."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from vkml.cpu.blas import borrowed_threads
from vkml.cpu.memory import UNBOUNDED, MemoryBudget
from vkml.cpu.native.executable import InstructionSet, instruction_set
from vkml.cpu.pool import WorkerPool, shared_pool
from vkml.dataclasses import dataclass
from vkml.errors import Error, RuntimeException
from vkml.ir import Constant, GraphIndex, Node, TensorType, find
from vkml.ir.size_terms import Symbol
from vkml.lowering.cpu_memory import peak_bytes
from vkml.lowering.cpu_parts import members_of, parts_of
from vkml.passes.bind_sizes import bind_sizes, bound_constant
from vkml.passes.fuse import is_fused, members

if TYPE_CHECKING:
    from vkml.lowering.native_step import NativeStep

Array = np.ndarray[Any, Any]
Slots = list[Any]
StepFunction = Callable[[Slots], None]
Profile = list[tuple[tuple[str, ...], float]]
"""Node label and seconds, in the order run."""


@dataclass(frozen=True)
class _Step:
    label: str
    run: StepFunction
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    is_fresh: bool
    """Whether every output is a new array that nothing else shares."""
    is_native: bool = False


@dataclass(frozen=True)
class _Schedule:
    """The steps for one set of wanted values: each with the slots that are dead after it."""

    steps: tuple[tuple[StepFunction, tuple[int, ...], str], ...]
    wanted: tuple[tuple[str, int, bool], ...]
    """Name, slot, and whether the array must be copied before it leaves."""


@dataclass(frozen=True)
class Form:
    """How a node runs on the CPU, for people."""

    variant: str
    """An instruction set, or ``numpy``."""
    reason: str = ""
    """Why it is not machine code."""


class CpuProgram:
    """Nodes as a list of ready steps; for several threads at once only where none is machine code."""

    def __init__(
        self,
        steps: Sequence[_Step],
        slots: Mapping[str, int],
        constants: Mapping[str, Constant],
        shared: frozenset[str],
        forms: Sequence[tuple[Node, Form]],
        types: Mapping[str, TensorType],
        nodes: Sequence[Node],
        outputs: Sequence[str],
        symbols: Sequence[Symbol] = (),
    ) -> None:
        self.forms = tuple(forms)
        """What it runs, in order, and how: nodes that machine code refused in a group stand by themselves."""
        self.types = types
        """Of all values, those of such nodes included."""
        self._nodes, self._outputs = tuple(nodes), tuple(outputs)
        self._steps = tuple(steps)
        self._symbols = tuple(symbols)
        self._slots = dict(slots)
        self._constants = constants
        self._template: Slots = [None] * len(slots)
        read = {slot for step in steps if not step.is_native for slot in step.reads}
        for name, slot in slots.items():
            # What machine code reads it has in a form of its own, or asks for.
            if name in constants and not constants[name].is_open and (slot in read or name in outputs):
                self._template[slot] = constants[name].array
        self._open = [(slots[n], c) for n, c in constants.items() if c.is_open and slots.get(n) in read]
        """Constants that hold open sizes and that NumPy reads."""
        self._shared = shared
        self._schedules: dict[tuple[str, ...], _Schedule] = {}
        # BLAS's threads would wait in the way of the pool's, without sleeping (a float64 product of 128 x 768
        # x 768 took 3.9 ms with one, 70 with two on a busy machine), and a fork beside them never returns.
        self._uses_blas = not all(step.is_native for step in steps)

    def bind(self, values: tuple[int, ...]) -> None:
        """Makes the next runs those for values of the open sizes, in the order of their symbols."""
        for step in self._steps:
            if step.is_native:
                step.run.bind(values)  # type: ignore[attr-defined]
        if self._open:
            known = dict(zip(self._symbols, values, strict=True))
            for slot, constant in self._open:
                self._template[slot] = bound_constant(constant, known).array

    def another(self) -> CpuProgram:
        """The same steps, machine code with memory of its own."""
        made = copy(self)
        made._steps = tuple(
            replace(step, run=step.run.another()) if step.is_native else step  # type: ignore[attr-defined]
            for step in self._steps
        )
        made._template, made._schedules = self._template.copy(), {}
        return made

    @property
    def threads(self) -> int:
        """The most threads that one of its steps runs on."""
        native = (step.run for step in self._steps if step.is_native)
        return max((step.threads for step in native), default=1)  # type: ignore[attr-defined]

    def types_for(self, values: tuple[int, ...]) -> dict[str, TensorType]:
        """The types of all values where the open sizes are these."""
        return bind_sizes((), self.types, {}, dict(zip(self._symbols, values, strict=True))).types

    def result_bytes(self, types: Mapping[str, TensorType]) -> int:
        """The most that results take at a time while it runs, without what lies in the arenas."""
        return peak_bytes(self._nodes, types, self._outputs)

    @property
    def arena_bytes(self) -> int:
        """Memory that machine code works in."""
        steps = (step.run for step in self._steps if step.is_native)
        return sum(step.report.arena_bytes for step in steps)  # type: ignore[attr-defined]

    def whole(self, inputs: Sequence[str], outputs: Sequence[str]) -> NativeStep | None:
        """The program's only step, where that is machine code from these inputs to these outputs."""
        if len(self._steps) != 1 or not self._steps[0].is_native:
            return None
        [step] = self._steps
        reads = tuple(self._slots.get(name, -1) for name in inputs)
        writes = tuple(self._slots.get(name, -1) for name in outputs)
        return step.run if (reads, writes) == (step.reads, step.writes) else None  # type: ignore[return-value]

    def run(
        self, values: Mapping[str, Array], wanted: Sequence[str], profile: Profile | None = None
    ) -> dict[str, Array]:
        """Runs every node.

        Args:
            values: the inputs, by name, of the types the program was compiled for.
            wanted: names of values to return.
            profile: receives (labels of nodes, seconds) of every step.

        Returns:
            name → a contiguous array that shares memory with no input, constant or other result.
        """
        key = tuple(wanted)
        schedule = self._schedules.get(key) or self._schedule(key)
        slots = self._template.copy()
        places = self._slots
        for name, array in values.items():
            slot = places.get(name)
            if slot is not None:
                slots[slot] = array
        with np.errstate(all="ignore"), borrowed_threads() if self._uses_blas else nullcontext():
            _run_steps(schedule, slots, profile)
        results = {}
        for name, slot, copies in schedule.wanted:
            if slot < 0:
                found = values[name] if name in values else self._constants[name].array
            else:
                found = slots[slot]
            results[name] = np.array(found, order="C", copy=True) if copies else np.asarray(found, order="C")
        return results

    def _schedule(self, wanted: tuple[str, ...]) -> _Schedule:
        kept = {self._slots[name] for name in wanted if name in self._slots}
        dead: set[int] = set(kept)
        reversed_steps = []
        for step in reversed(self._steps):
            last = tuple({slot for slot in (*step.reads, *step.writes) if slot not in dead})
            dead.update(last)
            reversed_steps.append((step.run, last, step.label))
        results = []
        owners: set[int] = set()
        for name in wanted:
            slot = self._slots.get(name, -1)
            results.append((name, slot, slot < 0 or name in self._shared or slot in owners))
            owners.add(slot)
        schedule = _Schedule(tuple(reversed(reversed_steps)), tuple(results))
        self._schedules[wanted] = schedule
        return schedule


def _run_steps(schedule: _Schedule, slots: Slots, profile: Profile | None) -> None:
    label = ""
    try:
        if profile is None:
            for run, dead, label in schedule.steps:  # noqa: B007 (the handlers name it)
                run(slots)
                for slot in dead:
                    slots[slot] = None
            return
        for run, dead, label in schedule.steps:
            before = time.perf_counter()
            replay = getattr(run, "replay_timed", None)
            if replay is not None:
                replay(slots, profile)
            else:
                run(slots)
                profile.append(((label,), time.perf_counter() - before))
            for slot in dead:
                slots[slot] = None
    except Error:
        raise
    except MemoryError as error:
        raise MemoryError(f"{label}: {error or 'an allocation failed'}") from error
    except Exception as error:
        raise RuntimeException(f"{label} failed on the CPU: {type(error).__name__}: {error}") from error


@dataclass
class _Scope:
    """What the steps of one program are compiled against; grows with the parts of groups."""

    types: dict[str, TensorType]
    constants: dict[str, Constant]
    slots: dict[str, int]
    """Where a run keeps each value."""
    pool: WorkerPool
    is_strict: bool
    """Whether convolutions in machine code must add up the products that they state."""
    budget: MemoryBudget
    """For memory that machine code keeps between runs."""
    symbols: tuple[Symbol, ...] = ()
    """The sizes that are open."""

    def add(self, nodes: Sequence[Node]) -> None:
        """Gives the values of nodes their slots."""
        for node in nodes:
            for name in (*node.reads, *node.outputs):
                if name:
                    self.slots.setdefault(name, len(self.slots))


def compile_cpu(
    nodes: Sequence[Node],
    types: Mapping[str, TensorType],
    constants: Mapping[str, Constant],
    *,
    threads: int | None = None,
    inputs: Sequence[str] = (),
    outputs: Sequence[str] | None = None,
    is_strict: bool = False,
    budget: MemoryBudget = UNBOUNDED,
    symbols: Sequence[Symbol] = (),
) -> CpuProgram:
    """Compiles nodes for the CPU: to machine code where there is some for a node, else to its `evaluate`.

    Args:
        nodes: normalised, in topological order, `Fused` nodes among them or not.
        types: static types of all values.
        constants: values that are known.
        threads: threads to use; None: as many as the process may run on.
        inputs: the order in which runs give values from outside, where there is one.
        outputs: the values that runs may ask for, in their order, which machine code needs to know; None:
            any, and NumPy does it all.
        is_strict: whether convolutions must add up the products that they state (no Winograd).
        budget: for the memory that machine code keeps between runs.
        symbols: the sizes that are open; with any this belongs inside of `Sizes.deciding`.

    Raises:
        OutOfMemory: that is not enough.
    """
    pool = shared_pool(threads)
    scope = _Scope(dict(types), dict(constants), {}, pool, is_strict, budget, tuple(symbols))
    scope.add(nodes)
    instructions = instruction_set() if outputs is not None else None
    reason = "machine code needs x86-64 with AVX2, a system that lets it run, and VKML_NATIVE not to be 0"
    runs: list[_Run] | None = None
    if instructions is not None and outputs is not None:
        try:
            runs = _native_runs(scope, nodes, inputs, outputs, instructions)
        except OSError as error:  # a limit or a policy after all
            reason = f"the system refuses executable memory: {error}"
    if runs is None:
        runs = [_Run((part,), reason) for node in nodes for part in _members(scope, node)]
    steps = [_native_step(scope, run) if run.step is not None else _reference(scope, run) for run in runs]
    reordered = [run.nodes[0] if run.step is None else run.as_node() for run in runs]
    variant = instructions.value if instructions is not None else ""
    forms = [
        (node, Form("numpy", run.reason) if run.step is None else _native_form(node, run.step, variant))
        for run in runs
        for node in run.nodes
    ]
    return CpuProgram(
        steps,
        scope.slots,
        scope.constants,
        _shared_values(reordered, steps, scope.slots),
        forms,
        scope.types,
        reordered,
        outputs or (),
        symbols,
    )


def _native_form(node: Node, step: NativeStep, variant: str) -> Form:
    anew = step.written_anew
    is_anew = bool(anew) and any(part.label in anew for part in members(node))
    return Form(variant, "its code is written anew for each set of sizes" if is_anew else "")


def _members(scope: _Scope, node: Node) -> Sequence[Node]:
    """The nodes of a group, which the scope knows from now on; another node as it is."""
    if not is_fused(node):
        return (node,)
    found = members_of(node, scope.slots, scope.types, scope.constants)
    scope.add(found)
    return found


@dataclass(frozen=True)
class _Run:
    """Consecutive nodes: one for NumPy, or any number that machine code does in one step."""

    nodes: tuple[Node, ...]
    reason: str = ""
    """Why it is not machine code."""
    step: NativeStep | None = None
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()

    def as_node(self) -> Node:
        """What it reads and makes, as one node."""
        return Node("Native", self.inputs, self.outputs, domain="vkml", name=self.nodes[0].label)


def _native_step(scope: _Scope, run: _Run) -> _Step:
    assert run.step is not None
    return _Step(
        run.nodes[0].label if len(run.nodes) == 1 else f"{run.nodes[0].label} … {run.nodes[-1].label}",
        run.step,
        tuple(scope.slots[name] for name in run.inputs),
        tuple(scope.slots[name] for name in run.outputs),
        True,
        True,
    )


_FIRST_STRETCH = 32
"""Nodes tried together after a refusal."""


def _native_runs(
    scope: _Scope,
    nodes: Sequence[Node],
    given: Sequence[str],
    wanted: Sequence[str],
    instructions: InstructionSet,
) -> list[_Run]:
    """Cuts nodes into runs, the longest possible for machine code.

    A refusal is found by trying. After the first one, stretches are tried that double in length as long as
    none is refused: to try all that is left each time took 6 s for 1200 nodes, every second one refused. A
    group that is refused is cut into parts, which are tried again.
    """
    from vkml.lowering.native import Refused, compile_native  # not for sessions on a GPU: 50 ms

    runs: list[_Run] = []
    waiting = [tuple(nodes)]
    """Stretches that are still to be tried, the first one last."""
    uses = Counter(name for node in nodes for name in {*node.reads})
    # Values from and for outside in the order in which runs give and want them.
    given_place = {name: at for at, name in enumerate(given)}
    wanted_place = {name: at for at, name in enumerate(wanted)}
    length = len(nodes)
    while waiting:
        stretch = waiting.pop()
        if not stretch:
            continue
        part, rest = stretch[:length], stretch[length:]
        made = dict.fromkeys(name for node in part for name in node.outputs if name)
        inside = Counter(name for node in part for name in {*node.reads})
        read = [name for name in inside if name and name not in made and name not in scope.constants]
        needed = [name for name in made if name in wanted_place or uses[name] > inside[name]]
        outputs = tuple(sorted(needed, key=lambda name: wanted_place.get(name, len(wanted))))
        inputs = tuple(sorted(read, key=lambda name: given_place.get(name, len(given))))
        taken: set[int] = set()
        refused = ((at, _type_refusal(scope, node, taken)) for at, node in enumerate(part))
        first, reason = next(((at, why) for at, why in refused if why), (None, ""))
        if first is None:
            try:
                step = compile_native(
                    part,
                    inputs,
                    outputs,
                    scope.types,
                    scope.constants,
                    scope.slots,
                    instructions,
                    scope.pool,
                    scope.is_strict,
                    scope.budget,
                    scope.symbols,
                )
                if rest:
                    waiting.append(stretch)
                    length *= 2
                else:
                    runs.append(_Run(part, "", step, inputs, outputs))
                continue
            except Refused as refusal:
                first, reason = refusal.position, str(refusal)
        length = max(first, _FIRST_STRETCH)
        if first:
            waiting += [stretch[first:], stretch[:first]]
            continue
        refused_node = stretch[0]
        if not is_fused(refused_node):
            runs.append(_Run((refused_node,), reason))
            waiting.append(stretch[1:])
            continue
        members = _members(scope, refused_node)
        uses.subtract({*refused_node.reads})
        uses.update(name for node in members for name in {*node.reads})
        inside = Counter(name for node in members for name in {*node.reads})
        read = [n for m in members for n in m.outputs if n and (n in wanted_place or uses[n] > inside[n])]
        parts = parts_of(members, read, scope.types, scope.constants)
        uses.subtract(name for node in members for name in {*node.reads})
        uses.update(name for node in parts for name in {*node.reads})
        waiting.append((*parts, *stretch[1:]))
    return runs


def _type_refusal(scope: _Scope, node: Node, taken: set[int]) -> str:
    """Why no machine code reads or makes values of these types; nothing where it may.

    Args:
        scope: that of the node.
        node: any.
        taken: types that it does read and make, by identity; grows.
    """
    from vkml.lowering.native_layout import is_stored  # not for sessions on a GPU: 50 ms

    for name in (*node.inputs, *node.outputs):
        if not name:
            continue
        type_ = scope.types.get(name)
        if id(type_) in taken:
            continue
        if type_ is None or not type_.is_static:
            return f"the shape of '{name}' depends on data"
        if not is_stored(type_.dtype):
            return f"machine code handles no {type_.dtype.name}"
        if type_.elements >= 2**31:
            return f"'{name}' has {type_.elements} elements, machine code counts to {2**31 - 1}"
        taken.add(id(type_))
    return ""


def _reference(scope: _Scope, run: _Run) -> _Step:
    """The operator's own `evaluate`."""
    [node] = run.nodes
    evaluate = find(node).evaluate
    sources = [scope.slots[name] if name else None for name in node.inputs]
    targets = [(at, scope.slots[name]) for at, name in enumerate(node.outputs) if name]

    def step(slots: Slots) -> None:
        found = evaluate(node, [None if source is None else slots[source] for source in sources])
        for at, slot in targets:
            slots[slot] = found[at]

    return _Step(
        node.label,
        step,
        tuple(source for source in sources if source is not None),
        tuple(slot for _, slot in targets),
        False,
    )


def _shared_values(nodes: Sequence[Node], steps: Sequence[_Step], slots: Mapping[str, int]) -> frozenset[str]:
    """Values that may share memory with an input, a constant or another value: copied for the caller."""
    index = GraphIndex(nodes)
    fresh: set[str] = set()
    for node, step in zip(nodes, steps, strict=True):
        if step.is_fresh:
            fresh.update(node.outputs)
        elif find(node).is_view and node.inputs[0] in fresh and index.uses(node.inputs[0]) == 1:
            # A view of an array that nobody else looks at takes it over.
            fresh.discard(node.inputs[0])
            fresh.update(node.outputs)
    return frozenset(name for name in slots if name not in fresh)
