"""Times several runners of one model in turns, so that all of them meet the same machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

Array = np.ndarray[Any, Any]
Feed = Mapping[str, Array]

WARM_UP_RUNS = 3
WARM_UP_SECONDS = 1.0
"""Before the first turn, where a GPU is among the devices: while a model was compiled, its clocks have
fallen, and it works at half their speed for a second. Measured right away, bert took 1.97 ms instead of
0.97."""
BURST_SECONDS = 0.05
"""A runner's turn: long enough for clocks and caches to settle on it, short enough that turns alternate."""
PAUSE_SECONDS = 0.02
"""Before a turn, which then begins with a run that does not count: onnxruntime's threads spin on after its
last run and would take a core from the next in turn."""
MAX_RUNS = 20_000
TOLERANCE = 1e-3
"""Largest error, relative to the largest value, that goes unmarked."""


class NotAvailable(Exception):
    """A peer cannot run here, or not this model; the message says why."""


@dataclass(frozen=True)
class Prepared:
    """A model loaded by one runtime: call `run` for outputs in host memory, `close` when done."""

    run: Callable[[Feed], Sequence[Array]]
    close: Callable[[], None]
    device: str = ""
    session: Any = None
    """The session, of peers with onnxruntime's interface, for runs with values that stay on `device`."""


class Peer(Protocol):
    """One runtime with one setting."""

    @property
    def name(self) -> str: ...

    def prepare(self, path: str) -> Prepared:
        """Loads a model; raises `NotAvailable` where that is not possible."""
        ...


@dataclass(frozen=True)
class Errors:
    """How far outputs are from others; of several the worst. Infinite where shapes differ, or by NaN."""

    largest: float
    """The largest difference, relative to the largest value."""
    mean: float
    """The mean difference, relative to the mean magnitude."""


@dataclass
class Measured:
    """What was measured of one peer on one model; times in seconds."""

    peer: str
    device: str = ""
    load: float = 0.0
    first: float = 0.0
    runs: list[float] = field(default_factory=list)
    errors: Errors | None = None
    """Against the reference's outputs."""
    reason: str = ""
    """Why there is no measurement."""

    @property
    def median(self) -> float:
        return float(np.median(self.runs))

    @property
    def p95(self) -> float:
        return float(np.percentile(self.runs, 95))


def measure(
    path: str,
    feed: Feed,
    peers: Sequence[Peer],
    seconds: float,
    reference: str = "",
    expected: Sequence[Array] | None = None,
) -> list[Measured]:
    """Loads the model in every peer, then lets them take turns for `seconds` each.

    Args:
        path: The model's file.
        feed: Its inputs; the same values each run, read anew each run.
        peers: In the order of the table.
        seconds: How long each peer runs in all.
        reference: Of these the one whose outputs all are compared with; by default, and where it is not
            available, the first that is.
        expected: What all are compared with instead.

    Returns:
        One entry a peer.
    """
    found = [Measured(peer.name) for peer in peers]
    prepared: list[Prepared | None] = []
    outputs: dict[str, list[Array]] = {}
    try:
        for peer, entry in zip(peers, found, strict=True):
            ready = _prepare(peer, path, feed, entry)
            prepared.append(ready)
            if ready is None:
                continue
            outputs[peer.name] = [np.array(each) for each in ready.run(feed)]
            for _ in range(WARM_UP_RUNS):
                ready.run(feed)
        if expected is None:
            expected = outputs.get(reference) or next(iter(outputs.values()), [])
        for entry in found:
            if entry.peer in outputs:
                entry.errors = errors_of(outputs.pop(entry.peer), expected)
        _warm_clocks(feed, [each for each in prepared if each is not None])
        _take_turns(feed, prepared, found, seconds)
    finally:
        for each in prepared:
            if each is not None:
                each.close()
    return found


def _prepare(peer: Peer, path: str, feed: Feed, entry: Measured) -> Prepared | None:
    """Loads and runs once, noting the times; a failure becomes the entry's reason."""
    try:
        started = time.perf_counter()
        ready = peer.prepare(path)
        loaded = time.perf_counter()
        ready.run(feed)
        entry.load, entry.first = loaded - started, time.perf_counter() - loaded
    except NotAvailable as reason:
        entry.reason = str(reason)
        return None
    except Exception as problem:  # a peer's failure is a result, not the benchmark's end
        entry.reason = f"{type(problem).__name__}: {str(problem).splitlines()[0] if str(problem) else ''}"
        return None
    entry.device = ready.device
    return ready


def _warm_clocks(feed: Feed, prepared: Sequence[Prepared]) -> None:
    """Has GPUs at work until their clocks have risen."""
    on_gpus = [each for each in prepared if each.device and not each.device.startswith("cpu")]
    until = time.perf_counter() + WARM_UP_SECONDS
    while on_gpus and time.perf_counter() < until:
        for each in on_gpus:
            each.run(feed)


def _take_turns(
    feed: Feed, prepared: Sequence[Prepared | None], found: Sequence[Measured], seconds: float
) -> None:
    spent = [0.0] * len(found)
    while True:
        is_done = True
        for index, (ready, entry) in enumerate(zip(prepared, found, strict=True)):
            if (
                ready is None
                or len(entry.runs) >= MAX_RUNS
                or (spent[index] >= seconds and len(entry.runs) >= 3)
            ):
                continue
            is_done = False
            until = spent[index] + min(BURST_SECONDS, seconds)
            time.sleep(PAUSE_SECONDS)
            ready.run(feed)
            while True:
                started = time.perf_counter()
                ready.run(feed)
                taken = time.perf_counter() - started
                entry.runs.append(taken)
                spent[index] += taken
                if spent[index] >= until:
                    break
        if is_done:
            return


def errors_of(have: Sequence[Array], want: Sequence[Array]) -> Errors:
    """Of outputs, against others."""
    largest = mean = 0.0
    for left, right in zip(have, want, strict=False):
        if left.size != right.size:
            return Errors(float("inf"), float("inf"))
        if not right.size:
            continue
        exact = right.astype(np.float64)
        gap = np.abs(left.reshape(right.shape).astype(np.float64) - exact)
        size = np.abs(exact)
        largest = max(largest, _finite(float(gap.max()) / (float(size.max()) or 1.0)))
        mean = max(mean, _finite(float(gap.mean()) / (float(size.mean()) or 1.0)))
    return Errors(largest, mean)


def _finite(error: float) -> float:
    return error if error == error else float("inf")
