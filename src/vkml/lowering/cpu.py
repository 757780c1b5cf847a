"""Programs for the CPU: nodes compiled once to steps over numbered slots, then run as often as wanted."""

from __future__ import annotations

import time
from collections import ChainMap, Counter
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from vkml.cpu.blas import borrowed_threads
from vkml.cpu.buffers import BufferPool
from vkml.cpu.memory import UNBOUNDED, MemoryBudget
from vkml.cpu.native.executable import InstructionSet, instruction_set
from vkml.cpu.pool import shared_pool
from vkml.errors import Error, RuntimeException
from vkml.ir import Constant, Graph, Node, TensorType, find
from vkml.kernels.writer import STORAGE
from vkml.lowering.cpu_groups import Scope, Slots, StepFunction, compile_group
from vkml.lowering.cpu_memory import peak_bytes
from vkml.lowering.cpu_views import VIEWS, compile_movement
from vkml.passes.fuse import members

if TYPE_CHECKING:
    from vkml.lowering.native import NativeStep

Array = np.ndarray[Any, Any]
T = TypeVar("T")
Profile = list[tuple[str, float]]
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
        forms: Mapping[str, Form],
        result_bytes: int,
    ) -> None:
        self.forms = forms
        """Value → how the node that makes it runs."""
        self.result_bytes = result_bytes
        """The most that results take at a time while it runs, without what lies in the arenas."""
        self._steps = tuple(steps)
        self._slots = dict(slots)
        self._constants = constants
        self._template: Slots = [None] * len(slots)
        for name, slot in slots.items():
            if name in constants:
                self._template[slot] = constants[name].array
        self._shared = shared
        self._schedules: dict[tuple[str, ...], _Schedule] = {}

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
            profile: receives (node label, seconds) of every node.

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
        with np.errstate(all="ignore"), borrowed_threads():
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
        for name in wanted:
            slot = self._slots.get(name, -1)
            results.append((name, slot, slot < 0 or name in self._shared))
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
                profile.append((label, time.perf_counter() - before))
            for slot in dead:
                slots[slot] = None
    except Error:
        raise
    except MemoryError as error:
        raise MemoryError(f"{label}: {error or 'an allocation failed'}") from error
    except Exception as error:
        raise RuntimeException(f"{label} failed on the CPU: {type(error).__name__}: {error}") from error


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
) -> CpuProgram:
    """Compiles nodes for the CPU: to machine code where there is some for a node, else to NumPy's functions.

    Args:
        nodes: normalised, in topological order, `Fused` nodes among them or not.
        types: static types of all values.
        constants: values that are known; weights are prepared here, once.
        threads: threads to use; None: as many as the process may run on.
        inputs: the order in which runs give values from outside, where there is one.
        outputs: the values that runs may ask for, in their order, which machine code needs to know; None:
            any, and NumPy does it all.
        is_strict: whether convolutions must add up the products that they state (no Winograd).
        budget: for the memory that machine code keeps between runs.

    Raises:
        OutOfMemory: that is not enough.
    """
    slots: dict[str, int] = {}
    for node in nodes:
        for name in (*node.inputs, *node.outputs):
            if name:
                slots.setdefault(name, len(slots))
    scope = Scope(types, constants, slots, set(), shared_pool(threads), BufferPool(), is_strict, budget)
    instructions = instruction_set() if outputs is not None else None
    reason = "machine code needs x86-64 with AVX2, a system that lets it run, and VKML_NATIVE not to be 0"
    runs = [_Run((node,), reason) for node in nodes]
    if instructions is not None and outputs is not None:
        try:
            runs = _native_runs(scope, nodes, inputs, outputs, instructions)
        except OSError as error:  # a limit or a policy after all
            runs = [_Run((node,), f"the system refuses executable memory: {error}") for node in nodes]
    steps, reordered = [], []
    for run in runs:
        reordered.append(run.nodes[0] if run.step is None else run.as_node())
        steps.append(_compile_node(scope, run.nodes[0]) if run.step is None else _native_step(scope, run))
    variant = instructions.value if instructions is not None else ""
    forms: dict[str, Form] = {}
    for run in runs:
        for node in run.nodes:
            form = Form(variant) if run.step is not None else Form("numpy", _reason(node, run.reason))
            forms.update(dict.fromkeys(node.outputs, form))
    shared = _shared_values(reordered, steps, slots)
    return CpuProgram(steps, slots, constants, shared, forms, peak_bytes(reordered, types, outputs or ()))


def _reason(node: Node, reason: str) -> str:
    """Why NumPy runs a node; of a group, which of its members keep it from being machine code."""
    parts = members(node)
    if len(parts) == 1:
        return reason
    from vkml.lowering.native_body import pointwise_refusal  # not for sessions on a GPU: 50 ms

    body: Graph = node.attributes["body"]
    types = {name: constant.type for name, constant in body.constants.items()}
    types |= {value.name: value.type for value in (*body.inputs, *body.outputs)} | dict(body.types)
    found = [(part, pointwise_refusal(part, types, body.constants)) for part in parts]
    return "; ".join(f"{part.label}: {why}" for part, why in found if why) or reason


@dataclass(frozen=True)
class _Run:
    """Consecutive nodes: one for NumPy, or any number that machine code does in one step."""

    nodes: tuple[Node, ...]
    reason: str = ""
    """Why they are not machine code."""
    step: NativeStep | None = None
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()

    def as_node(self) -> Node:
        """What it reads and makes, as one node."""
        return Node("Native", self.inputs, self.outputs, domain="vkml", name=self.nodes[0].label)


def _native_step(scope: Scope, run: _Run) -> _Step:
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
    scope: Scope,
    nodes: Sequence[Node],
    given: Sequence[str],
    wanted: Sequence[str],
    instructions: InstructionSet,
) -> list[_Run]:
    """Cuts nodes into runs, the longest possible for machine code.

    A refusal is found by trying. After the first one, stretches are tried that double in length as long as
    none is refused: to try all that is left each time took 6 s for 1200 nodes, every second one refused.
    """
    from vkml.lowering.native import Refused, compile_native  # not for sessions on a GPU: 50 ms

    runs: list[_Run] = []
    waiting = [(0, len(nodes))]
    uses = Counter(name for node in nodes for name in {*node.inputs})
    # Values from and for outside in the order in which runs give and want them.
    given_place = {name: at for at, name in enumerate(given)}
    wanted_place = {name: at for at, name in enumerate(wanted)}
    length = len(nodes)
    while waiting:
        start, stop = waiting.pop()
        if start == stop:
            continue
        part = tuple(nodes[start : min(stop, start + length)])
        made = dict.fromkeys(name for node in part for name in node.outputs if name)
        inside = Counter(name for node in part for name in {*node.inputs})
        read = [name for name in inside if name and name not in made and name not in scope.constants]
        needed = [name for name in made if name in wanted_place or uses[name] > inside[name]]
        outputs = tuple(sorted(needed, key=lambda name: wanted_place.get(name, len(wanted))))
        inputs = tuple(sorted(read, key=lambda name: given_place.get(name, len(given))))
        refused = ((at, _type_refusal(scope, node)) for at, node in enumerate(part))
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
                )
                if len(part) < stop - start:
                    waiting.append((start, stop))
                    length *= 2
                else:
                    runs.append(_Run(part, "", step, inputs, outputs))
                continue
            except Refused as refusal:
                first, reason = refusal.position, str(refusal)
        length = max(first, _FIRST_STRETCH)
        if first:
            waiting += [(start + first, stop), (start, start + first)]
            continue
        runs.append(_Run(part[:1], reason))
        waiting.append((start + 1, stop))
    return runs


def _type_refusal(scope: Scope, node: Node) -> str:
    """Why no machine code reads or makes values of these types; nothing where it may."""
    for name in (*node.inputs, *node.outputs):
        if not name:
            continue
        type_ = scope.types.get(name)
        if type_ is None or not type_.is_static:
            return f"the shape of '{name}' depends on data"
        if type_.dtype not in STORAGE:
            return f"machine code handles no {type_.dtype.name}"
        if type_.elements >= 2**31:
            return f"'{name}' has {type_.elements} elements, machine code counts to {2**31 - 1}"
    return ""


def _compile_node(scope: Scope, node: Node) -> _Step:
    run, is_fresh = None, True
    if node.op == "Fused" and node.domain == "vkml":
        run = _compile_fused(scope, node)
    else:
        run = compile_movement(scope, node)
        is_fresh = run is None or node.op not in VIEWS
        if run is None and _has_static_outputs(scope, node):
            run = compile_group(scope, (node,), node.outputs, {})
    if run is None:
        run, is_fresh = _reference(scope, node), False
    return _Step(
        node.label,
        run,
        tuple(scope.slots[name] for name in node.inputs if name),
        tuple(scope.slots[name] for name in node.outputs if name),
        is_fresh,
    )


def _has_static_outputs(scope: Scope, node: Node) -> bool:
    return len(node.outputs) == 1 and all(
        name in scope.types and scope.types[name].is_static for name in (*node.inputs, *node.outputs) if name
    )


def _compile_fused(scope: Scope, node: Node) -> StepFunction | None:
    body: Graph = node.attributes["body"]
    renamed = {value.name: outer for value, outer in zip(body.inputs, node.inputs, strict=True)}
    renamed.update({value.name: outer for value, outer in zip(body.outputs, node.outputs, strict=True)})
    types: dict[str, TensorType] = {}
    for value in (*body.inputs, *body.outputs):
        types[renamed[value.name]] = value.type
    for name, type_ in body.types.items():
        types.setdefault(renamed.get(name, name), type_)
    types.update({name: constant.type for name, constant in body.constants.items()})
    members = [
        replace(
            member,
            inputs=tuple(renamed.get(name, name) for name in member.inputs),
            outputs=tuple(renamed.get(name, name) for name in member.outputs),
        )
        for member in body.nodes
    ]
    if any(name not in types for member in members for name in member.outputs if name):
        return None
    inner = replace(
        scope,
        types=_over(types, scope.types),
        constants=_over(body.constants, scope.constants),
        slots=_over(dict.fromkeys(body.constants, -1), scope.slots),
    )
    return compile_group(inner, members, node.outputs, body.constants)


def _over(inner: Mapping[str, T], outer: Mapping[str, T]) -> Mapping[str, T]:
    """What `inner` says, else what `outer` does; neither is copied."""
    return ChainMap(cast(MutableMapping[str, T], inner), cast(MutableMapping[str, T], outer))


def _reference(scope: Scope, node: Node) -> StepFunction:
    """The operator's own `evaluate`."""
    evaluate = find(node).evaluate
    sources = [scope.slots[name] if name else None for name in node.inputs]
    targets = [(at, scope.slots[name]) for at, name in enumerate(node.outputs) if name]

    def step(slots: Slots) -> None:
        found = evaluate(node, [None if source is None else slots[source] for source in sources])
        for at, slot in targets:
            slots[slot] = found[at]

    return step


def _shared_values(nodes: Sequence[Node], steps: Sequence[_Step], slots: Mapping[str, int]) -> frozenset[str]:
    """Values that may share memory with an input, a constant or another value: copied for the caller."""
    uses = Counter(name for node in nodes for name in node.inputs)
    fresh: set[str] = set()
    for node, step in zip(nodes, steps, strict=True):
        if step.is_fresh:
            fresh.update(node.outputs)
        elif node.op in VIEWS and not node.domain and node.inputs[0] in fresh and uses[node.inputs[0]] == 1:
            # A view of an array that nobody else looks at takes it over.
            fresh.discard(node.inputs[0])
            fresh.update(node.outputs)
    return frozenset(name for name in slots if name not in fresh)
