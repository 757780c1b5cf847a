"""The plans of a graph: made for the shapes that come, kept for those that came last."""

from __future__ import annotations

import contextlib
import itertools
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from vkml.dataclasses import dataclass
from vkml.engine.collector import collector_paused
from vkml.engine.device_array import dtype_of, on_host
from vkml.engine.model_errors import explained
from vkml.engine.options import SessionOptions
from vkml.engine.placement import Placement
from vkml.engine.plan import Plan
from vkml.engine.planning import make_plan
from vkml.engine.turns import Turn
from vkml.errors import Fail, ModelError
from vkml.forks import renew_in_child
from vkml.ir import DType, Graph, TensorType, Value
from vkml.ir.lowering import CannotLower
from vkml.ir.mapped_file import MappedFile
from vkml.ir.size import Sizes, TooOpen
from vkml.passes.segments import segments

Array = np.ndarray[Any, Any]
_STRUCTURES_KEPT = 1024
_MOST_OPEN = 4
"""Plans with open sizes that a structure has on the CPU."""


@dataclass(frozen=True)
class Setting:
    """What all graphs of a session have in common: the model's own and those inside of it."""

    label: str
    """The model, for errors."""
    placement: Placement
    options: SessionOptions
    files: tuple[MappedFile, ...]
    """Files that the model's constants lie in."""
    announce: Callable[[Plan], None]
    """Called with each new plan, without locks: says what users are to know of it."""
    close: Callable[[], None]
    """Closes the session."""


class PlanCache:
    """Plans of a graph's segments, from the cache or new; any number of threads may ask.

    Args:
        graph: prepared.
        setting: of the session.
        forget: called, under `lock`, before plans leave the cache.
    """

    def __init__(self, graph: Graph, setting: Setting, forget: Callable[[], None] = lambda: None) -> None:
        self.segments = segments(graph)
        self.kept: OrderedDict[Any, Plan] = OrderedDict()
        self.alive: weakref.WeakSet[Plan] = weakref.WeakSet()
        """Plans of the cache, and those that have left it while threads run them."""
        # Held to look at the cache and to change it, never to plan, close or call anything of the caller's.
        # Re-entrant: a signal handler may close the session just then.
        self.lock = threading.RLock()
        self.is_closed = False
        self._setting = setting
        self._forget = forget
        self._deciding = tuple(
            tuple(
                (at, value.name)
                for at, value in enumerate(segment.graph.inputs)
                if value.name in segment.values
            )
            for segment in self.segments
        )
        """Of each segment, the inputs whose values decide shapes: where they stand, and their names."""
        self._untyped = tuple(
            tuple(at for at, value in enumerate(segment.graph.inputs) if value.type.is_unknown)
            for segment in self.segments
        )
        """Of each segment, where the inputs stand whose element types are known when they come."""
        self._structures: dict[Hashable, int] = {}
        """How many plans there have been for a structure."""
        self._fixed: set[Hashable] = set()
        """Structures for which there are no plans with open sizes."""
        self._serials = itertools.count(1)
        self._planning: weakref.WeakValueDictionary[Any, Turn] = weakref.WeakValueDictionary()
        """A turn for each signature that some thread plans or waits for."""
        renew_in_child(self._renew)

    def plan_for(self, index: int, feeds: Sequence[Array]) -> Plan:
        """The plan of segment `index` for these inputs; see `plan`."""
        return self.plan(index, *self._signature(index, feeds))

    def find_for(self, index: int, feeds: Sequence[Array]) -> tuple[Hashable, Plan | None]:
        """That plan, where there is one already, and what tells these inputs from those that need others."""
        shapes, values, types = self._signature(index, feeds)
        key, structure = self._keys(index, shapes, values, types)
        return key, self._find(key) or self._find_open(structure, shapes)

    def _signature(
        self, index: int, feeds: Sequence[Array]
    ) -> tuple[tuple[tuple[int, ...], ...], dict[str, Array], tuple[DType, ...]]:
        # Copies, which the plan keeps: the caller may change the arrays at any time.
        values = {name: on_host(feeds[at]).copy() for at, name in self._deciding[index]}
        types = tuple([dtype_of(feeds[at]) for at in self._untyped[index]])
        return tuple([array.shape for array in feeds]), values, types

    def _keys(
        self,
        index: int,
        shapes: tuple[tuple[int, ...], ...],
        values: Mapping[str, Array],
        types: tuple[DType, ...],
    ) -> tuple[Hashable, Hashable]:
        """What a plan for just these inputs is kept under, and the structure that an open one serves."""
        # Numbers: no shape is decided by strings, whose bytes are addresses.
        contents = (types, *(array.tobytes() for array in values.values()))
        return (index, shapes, contents), self._structure(index, shapes, contents)

    def untyped(self, index: int) -> list[str]:
        """The inputs of segment `index` that the model states no element types of."""
        inputs = self.segments[index].graph.inputs
        return [inputs[at].name for at in self._untyped[index]]

    def plan(
        self,
        index: int,
        shapes: tuple[tuple[int, ...], ...],
        values: Mapping[str, Array],
        types: tuple[DType, ...] = (),
    ) -> Plan:
        """A segment's plan for a signature, from the cache or new; not closed as long as the caller holds it.

        Each signature is planned by one thread; others that want the same wait for it.

        Args:
            index: of the segment.
            shapes: of its inputs.
            values: of those that decide shapes.
            types: of those that are `untyped`.
        """
        key, structure = self._keys(index, shapes, values, types)
        plan = self._find(key) or self._find_open(structure, shapes)
        if plan is not None:
            return plan
        with self.lock:
            turn = self._planning.setdefault(key, Turn())
        try:
            with turn.taken(
                f"{self._setting.label} is being planned for these shapes in this very thread: what planning "
                "calls (a progress callback, a signal handler) may use only what is planned already"
            ):
                plan = (
                    self._find(key)
                    or self._find_open(structure, shapes)
                    or self._make_plan(index, shapes, values, types, key, structure)
                )
        finally:
            if self.is_closed:
                self._setting.close()  # what a close in the middle of planning had to leave
        self._setting.announce(plan)
        return plan

    def holds(self, plan: Plan) -> bool:
        """Whether a plan is in the cache; to be asked under `lock`."""
        return self.kept.get(plan.signature) is plan

    def close(self) -> bool:
        """Closes all plans, waiting for threads that run or plan; returns whether nothing is at work now.

        What this very thread is in the middle of is closed at its own end.
        """
        with self.lock:
            self.is_closed = True
            # Before they are let go of: what this thread is in the middle of may hold no more than a part.
            plans, planning = list(self.alive), list(self._planning.values())
            self._forget()
            self.kept.clear()
        is_idle = True
        for turn in planning:
            with turn.lock:
                is_idle &= not turn.is_taken
        for plan in plans:
            is_idle &= plan.close()
        return is_idle

    def require_open(self) -> None:
        """Raises `Fail` where it has been closed."""
        if self.is_closed:
            raise Fail(f"this session of {self._setting.label} is closed; make a new one")

    def _find(self, key: Hashable) -> Plan | None:
        with self.lock:
            self.require_open()
            try:
                self.kept.move_to_end(key)
                return self.kept[key]
            except KeyError:
                return None

    def _structure(self, index: int, shapes: tuple[tuple[int, ...], ...], contents: Hashable) -> Hashable:
        """What signatures have in common that one plan may serve: all but open sizes from 2 on.

        None where no size is open.
        """
        inputs = self.segments[index].graph.inputs
        kept = tuple(
            tuple(
                None if size >= 2 and not isinstance(dim, int) else size
                for size, dim in zip(shape, value.tensor.shape or (None,) * len(shape), strict=False)
            )
            for shape, value in zip(shapes, inputs, strict=True)
        )
        return (index, kept, contents) if any(None in sizes for sizes in kept) else None

    def _find_open(self, structure: Hashable, shapes: tuple[tuple[int, ...], ...]) -> Plan | None:
        """A plan with open sizes that holds for these shapes."""
        if structure is None:
            return None
        with self.lock:
            found = [plan for plan in self.kept.values() if plan.signature[:1] == (structure,)]
        for plan in reversed(found):
            if plan.values_of(shapes) is not None:
                return self._find(plan.signature)
        return None

    def _make_plan(
        self,
        index: int,
        shapes: tuple[tuple[int, ...], ...],
        values: Mapping[str, Array],
        types: tuple[DType, ...],
        key: Hashable,
        structure: Hashable,
    ) -> Plan:
        """A new plan: for these shapes alone where they are the first of a structure, else an open one."""
        if structure is None or structure in self._fixed:
            return self._plan_shapes(index, shapes, values, types, key)
        with self.lock:
            made = self._structures.get(structure, 0)
            if len(self._structures) >= _STRUCTURES_KEPT:
                self._structures.clear()
            self._structures[structure] = made + 1
        if not made:
            return self._plan_shapes(index, shapes, values, types, key)
        if made > _MOST_OPEN and not self._setting.placement.sites:
            # Sizes that decide this much: a plan for known ones is made as fast, where no kernel is compiled.
            self._fixed.add(structure)
            return self._plan_shapes(index, shapes, values, types, key)
        try:
            return self._plan_open(index, shapes, values, types, structure)
        except (CannotLower, ModelError, TooOpen):
            # The plan for these shapes alone says what is wrong, where it is the shapes.
            plan = self._plan_shapes(index, shapes, values, types, key)
            self._fixed.add(structure)
            return plan

    def _plan_open(
        self,
        index: int,
        shapes: tuple[tuple[int, ...], ...],
        values: Mapping[str, Array],
        types: tuple[DType, ...],
        structure: Hashable,
    ) -> Plan:
        sizes = Sizes()
        inputs = self.segments[index].graph.inputs
        opened: tuple[tuple[Any, ...], ...] = tuple(
            tuple(
                size
                if size < 2 or isinstance(dim, int) or value.name in values
                else sizes.symbol(dim or f"{value.name}.{axis}", size)
                for axis, (size, dim) in enumerate(
                    zip(shape, value.tensor.shape or (None,) * len(shape), strict=False)
                )
            )
            for shape, value in zip(shapes, inputs, strict=True)
        )
        return self._plan_shapes(index, opened, values, types, (structure, next(self._serials)), sizes)

    def _plan_shapes(
        self,
        index: int,
        shapes: Sequence[tuple[int, ...]],
        values: Mapping[str, Array],
        types: tuple[DType, ...],
        signature: Hashable,
        sizes: Sizes | None = None,
    ) -> Plan:
        segment = self.segments[index]
        found = dict(zip(self._untyped[index], types, strict=True))
        inputs = tuple(
            Value(value.name, TensorType(found.get(at) or value.tensor.dtype, shape))
            for at, (value, shape) in enumerate(zip(segment.graph.inputs, shapes, strict=True))
        )
        named = {value.name: value.tensor.dims for value in inputs}
        graph = replace(segment.graph, inputs=inputs)
        with explained(self._setting.label), _mapped(self._setting.files), collector_paused():
            plan = make_plan(
                graph,
                named,
                values,
                self._setting.placement,
                self._setting.options,
                signature,
                segment.arithmetic,
                sizes,
            )
        plan.watch(self._setting.files)
        dropped: list[Plan] = []  # each closes when the last run that uses it lets go of it, or here
        with self.lock:
            self.require_open()
            self._forget()
            while len(self.kept) >= max(1, self._setting.options.plan_cache_size) * len(self.segments):
                dropped.append(self.kept.popitem(last=False)[1])
            self.alive.add(plan)
            self.kept[signature] = plan
        return plan

    def _renew(self) -> None:
        self.lock = threading.RLock()


@contextlib.contextmanager
def _mapped(files: Sequence[MappedFile]) -> Iterator[None]:
    """Checks that the model's files are what they were, and keeps them mapped during the context.

    Raises:
        ModelChanged: one is not.
    """
    for file in files:
        file.check()
    views = [file.view() for file in files]
    yield
    del views
