"""Where a model's time goes: its steps with their times, and what the devices could do at best."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from vkml.dataclasses import dataclass
from vkml.engine.options import SessionOptions
from vkml.engine.report import StepReport
from vkml.engine.session import InferenceSession
from vkml.engine.sketch import Sketch
from vkml.engine.trace import TracedRun
from vkml.errors import OutOfMemory

_PRODUCTS = (256, 512, 1024, 2048, 4096)
_SUMS = (1 << 22, 1 << 24, 1 << 26)
_LONG_ENOUGH = 2e-3
"""Seconds from which on a step's time says what the device can do: launches and clocks that rise are little
beside it."""
_TRIES = 3


@dataclass(frozen=True)
class Ceiling:
    """What a device reaches in large steps of one kind, measured.

    Attributes:
        flops: operations a second, of a product of float32 matrices.
        bytes: bytes a second, read and written by a sum of two float32 vectors.
    """

    flops: float
    bytes: float

    def share(self, step: StepReport) -> float | None:
        """How near a step is to the least time that its operations and bytes take; None where it has none."""
        least = max(step.flops / self.flops, step.bytes / self.bytes) if self.flops and self.bytes else 0.0
        return least / step.seconds if least and step.seconds else None

    def is_bound_by_operations(self, step: StepReport) -> bool:
        """Whether operations, not bytes, take the longer."""
        return step.flops * self.bytes > step.bytes * self.flops


def profiled_steps(runs: Sequence[Sequence[TracedRun]]) -> list[StepReport]:
    """The steps of a model, each with the median of the time that it took in a run; the longest first.

    Launches of the same nodes are one step, and so are those of all trips of a loop. What control flow takes
    itself, without its bodies, is a step, too.

    Args:
        runs: of each run of the session what its trace has noted.
    """
    steps: dict[tuple[str, tuple[str, ...]], StepReport] = {}
    times: dict[tuple[str, tuple[str, ...]], list[float]] = {}
    for run in runs:
        taken: dict[tuple[str, tuple[str, ...]], StepReport] = {}
        for traced in run:
            for step in _of_one_plan(traced):
                key = step.device, step.nodes
                taken[key] = _joined(taken[key], step) if key in taken else step
        for step in _between_plans(run):
            key = step.device, step.nodes
            taken[key] = _joined(taken[key], step) if key in taken else step
        steps.update(taken)
        for key, step in taken.items():
            times.setdefault(key, []).append(step.seconds or 0.0)
    found = [replace(step, seconds=statistics.median(times[key])) for key, step in steps.items()]
    return sorted(found, key=lambda step: -(step.seconds or 0.0))


def _of_one_plan(run: TracedRun) -> list[StepReport]:
    """The steps of a plan: a node's launches together, called by the longest."""
    found: dict[tuple[str, tuple[str, ...]], StepReport] = {}
    longest: dict[tuple[str, tuple[str, ...]], float] = {}
    for step in run.steps:
        key, seconds = (step.device, step.nodes), step.seconds or 0.0
        other = found.get(key)
        if other is None:
            found[key], longest[key] = step, seconds
            continue
        # On the CPU what a launch reports is its node's already.
        is_node = step.device == "cpu"
        most = step if seconds > longest[key] else other
        longest[key] = max(longest[key], seconds)
        found[key] = replace(
            most,
            seconds=(other.seconds or 0.0) + seconds,
            flops=max(other.flops, step.flops) if is_node else other.flops + step.flops,
            bytes=max(other.bytes, step.bytes) if is_node else other.bytes + step.bytes,
        )
    return list(found.values())


def _joined(one: StepReport, other: StepReport) -> StepReport:
    """The same step of two trips."""
    return replace(
        one,
        seconds=(one.seconds or 0.0) + (other.seconds or 0.0),
        flops=one.flops + other.flops,
        bytes=one.bytes + other.bytes,
    )


def _between_plans(run: Sequence[TracedRun]) -> list[StepReport]:
    """What nodes between plans take themselves: their time without that of what runs within it."""
    hosts = sorted((each for each in run if not each.steps), key=lambda each: each.seconds)
    plans = [each for each in run if each.steps]
    alone: list[tuple[TracedRun, float]] = []
    for host in hosts:
        inside = sum(each.seconds for each in plans if _is_within(each, host))
        inside += sum(seconds for each, seconds in alone if _is_within(each, host))
        alone.append((host, max(0.0, host.seconds - inside)))
    return [
        StepReport("cpu", "between plans", (host.name,), (host.name.partition(" ")[0],), (), seconds=seconds)
        for host, seconds in alone
    ]


def _is_within(inner: TracedRun, outer: TracedRun) -> bool:
    return (
        inner.thread == outer.thread
        and outer.start <= inner.start
        and inner.start + inner.seconds <= outer.start + outer.seconds
    )


def measured_ceiling(device: str, precision: str = "high") -> Ceiling:
    """Measures what a device reaches, with steps that grow until they take long enough; some seconds.

    Args:
        device: its name.
        precision: of matrix products.
    """
    flops = bytes_ = 0.0
    with suppress(OutOfMemory):  # what smaller ones have reached counts
        for size in _PRODUCTS:
            sketch = Sketch("product")
            x = sketch.input("x", (size, size))
            sketch.node("MatMul", x, sketch.constant(np.ones((size, size), np.float32)))
            seconds = _fastest(sketch, np.ones((size, size), np.float32), device, precision, "MatMul")
            flops = max(flops, 2.0 * size**3 / seconds)
            if seconds > _LONG_ENOUGH:
                break
    with suppress(OutOfMemory):
        for size in _SUMS:
            sketch = Sketch("sum")
            x = sketch.input("x", (size,))
            sketch.node("Add", x, sketch.constant(np.ones(size, np.float32)))
            seconds = _fastest(sketch, np.ones(size, np.float32), device, precision, "Add")
            bytes_ = 12.0 * size / seconds  # of the largest alone: smaller ones stay in caches
            if seconds > 5 * _LONG_ENOUGH:
                break
    return Ceiling(flops, bytes_)


def _fastest(
    sketch: Sketch, x: np.ndarray[tuple[int, ...], np.dtype[np.float32]], device: str, precision: str, op: str
) -> float:
    """The shortest time of the step of an operator, which is the sketch's only node."""
    from vkml.onnx import save_graph

    model = save_graph(sketch.finish(f"{op}_0:0"))
    assert model is not None
    options = SessionOptions(enable_profiling=True)
    with InferenceSession(model, options, devices=device, precision=precision) as session:
        for _ in range(_TRIES):
            session.run(None, {"x": x})
        times = [
            sum(step.seconds or 0.0 for step in run.steps if op in step.operators)
            for run in session.traced_runs
        ]
    return max(min(times), 1e-9)
