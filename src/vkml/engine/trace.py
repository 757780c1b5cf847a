"""The trace of a session's runs, in the format of Chrome's trace viewer."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

from vkml.dataclasses import dataclass
from vkml.engine.flight import Timing
from vkml.engine.plan import Plan
from vkml.engine.report import StepReport
from vkml.engine.step_facts import StepFacts
from vkml.ir.wording import shape_text


@dataclass(frozen=True)
class TracedRun:
    """A run of a plan, or of a node between plans.

    Attributes:
        name: of the run, or the node's label.
        start: of `time.perf_counter`.
        seconds: that it took, traced; of a node between plans, with what its bodies run.
        steps: of the plan, with their times, in the order in which they ran; none of a node between plans.
        thread: the system's number of the thread that ran it.
    """

    name: str
    start: float
    seconds: float
    steps: tuple[StepReport, ...]
    thread: int


class Trace:
    """Runs and their steps, as they ended."""

    def __init__(self) -> None:
        self.runs: list[TracedRun] = []
        self.began_ns = time.monotonic_ns()
        """When it began."""
        self._facts: WeakKeyDictionary[Plan, dict[tuple[tuple[int, ...], ...], StepFacts]]
        self._facts = WeakKeyDictionary()

    def add(
        self,
        name: str,
        start: float,
        steps: Sequence[Timing] = (),
        plan: Plan | None = None,
        shapes: tuple[tuple[int, ...], ...] = (),
    ) -> None:
        """Notes a run that began at `start` (of `time.perf_counter`) and ends now.

        Args:
            name: of the run.
            start: when it began.
            steps: of the plan, as far as they ran.
            plan: that ran; None for a node between plans.
            shapes: of the plan's inputs.
        """
        seconds = time.perf_counter() - start
        told: tuple[StepReport, ...] = ()
        if plan is not None and steps:
            known = self._facts.setdefault(plan, {})
            if shapes not in known:
                known[shapes] = StepFacts(plan, plan.known(shapes))
            told = tuple(replace(known[shapes].timed(each), seconds=each.seconds) for each in steps)
        self.runs.append(TracedRun(name, start, seconds, told, threading.get_native_id()))

    def events(self) -> list[dict[str, Any]]:
        """All of it as complete events (``"ph": "X"``), times in microseconds."""
        return [event for run in self.runs for event in _events(run)]

    def write(self, prefix: str) -> str:
        """Writes all of it to a new file whose name begins so, and returns its path."""
        import json

        stem = f"{prefix}_{time.strftime('%Y-%m-%d_%H-%M-%S')}"
        for count in itertools.count(1):
            path = f"{stem}_{count}.json" if count > 1 else f"{stem}.json"
            # Another session, perhaps of another process, may have written in this second.
            with contextlib.suppress(FileExistsError), open(path, "x", encoding="utf-8") as file:
                # An event a line, for programs that read it so.
                file.write("[\n" + ",\n".join(map(json.dumps, self.events())) + "\n]\n")
                break
        return path


def _events(run: TracedRun) -> list[dict[str, Any]]:
    def event(name: str, category: str, start: float, seconds: float, **args: Any) -> dict[str, Any]:
        times = {"ts": start * 1e6, "dur": seconds * 1e6}
        return {"name": name, "cat": category, "ph": "X", **times, **at, "args": args}

    at = {"pid": os.getpid(), "tid": run.thread}
    found = [event(run.name, "Session", run.start, run.seconds)]
    start = run.start
    for step in run.steps:
        seconds = step.seconds or 0.0
        facts = {"kernel": f"{step.kernel} {step.variant}".strip(), "operators": " ".join(step.operators)}
        shapes = " ".join(map(shape_text, step.output_shapes))
        more = {"output": shapes, "flops": step.flops, "bytes": step.bytes}
        found.append(
            event(", ".join(step.nodes), "Node", start, seconds, device=step.device, **facts, **more)
        )
        start += seconds
    return found
