"""Runs a prepared graph, segment by segment."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from vkml.engine.cpu_bound import out_of_memory
from vkml.engine.device_array import Place
from vkml.engine.plan import Plan, Timing
from vkml.engine.plan_cache import PlanCache, Setting
from vkml.engine.trace import Trace
from vkml.errors import ModelError
from vkml.ir import Graph, TensorType, static

Array = np.ndarray[Any, Any]
LARGEST_ASSUMED = 1 << 24
"""Bytes of an input that a report makes up, where sizes hang on its values."""


class Runner:
    """A prepared graph that runs: its segments one after the other, each with plans for the shapes that come.

    What a segment makes for later ones passes through the host.

    Args:
        graph: prepared.
        setting: of the session.
        trace: receives the runs and their steps, which then take longer; None: no trace.
        forget: called, under the plans' lock, before plans leave their cache.
    """

    def __init__(
        self,
        graph: Graph,
        setting: Setting,
        trace: Trace | None = None,
        forget: Callable[[], None] = lambda: None,
    ) -> None:
        self.plans = PlanCache(graph, setting, forget)
        self._input_names = tuple(value.name for value in graph.inputs)
        self._label = setting.label
        self._trace = trace

    def run(self, feeds: Sequence[Array], wanted: Sequence[str]) -> list[Array]:
        """Runs it.

        Args:
            feeds: in the order of the graph's inputs, of their types.
            wanted: names of the outputs to return, in their order.

        Returns:
            Fresh arrays.

        Raises:
            PlanClosed: it was closed meanwhile.
        """
        if len(self.plans.segments) == 1:
            return self.run_plan(self.plans.plan_for(0, feeds), feeds, wanted)
        values = dict(zip(self._input_names, feeds, strict=True))
        for index, segment in enumerate(self.plans.segments):
            given = [values[value.name] for value in segment.graph.inputs]
            plan = self.plans.plan_for(index, given)
            made = self.run_plan(plan, given, plan.outputs, f"segment {index}")
            values.update(zip(plan.outputs, made, strict=True))
        first = {name: at for at, name in reversed(list(enumerate(wanted)))}
        return [values[name] if first[name] == at else values[name].copy() for at, name in enumerate(wanted)]

    def run_plan(
        self,
        plan: Plan,
        feeds: Sequence[Any],
        wanted: Sequence[str],
        name: str = "run",
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
            self._trace.add(name, start, steps)

    def plans_without_data(self, types: dict[str, TensorType]) -> tuple[list[Plan], list[str]]:
        """Plans of the segments, as many as can be made, and what was assumed for them.

        Args:
            types: of the model's inputs.
        """
        plans: list[Plan] = []
        assumed: list[str] = []
        known: dict[str, Array] = {}
        for index, segment in enumerate(self.plans.segments):
            names = [value.name for value in segment.graph.inputs]
            for name in names:
                type_ = types[name]
                if not type_.is_static:
                    types[name] = type_ = static(
                        type_.dtype, [dim if isinstance(dim, int) else 1 for dim in type_.shape or ()]
                    )
                    assumed.append(f"'{name}' has the shape {list(type_.dims)}")
                if name in segment.values and name not in known:
                    if type_.bytes > LARGEST_ASSUMED:
                        assumed.append(
                            f"of {len(self.plans.segments)} segments, {index} could be planned: sizes hang "
                            f"on the values of '{name}', which would take {type_.bytes} bytes"
                        )
                        return plans, assumed
                    known[name] = np.ones(type_.dims, type_.dtype.storage)
                    assumed.append(f"'{name}' holds ones")
            values = {name: known[name] for name in segment.values}
            try:
                plan = self.plans.plan(index, tuple(types[name].dims for name in names), values)
            except ModelError as error:
                if not assumed:
                    raise
                assumed.append(f"of {len(self.plans.segments)} segments, {index} could be planned: {error}")
                break
            plan.bind([types[name].dims for name in names])
            plans.append(plan)
            types.update((value.name, value.type) for value in plan.graph.outputs)
            known.update(plan.constants)
        return plans, assumed
