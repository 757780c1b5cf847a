"""Runs kernels on a device, and takes the time of chains of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from vkml.vulkan import Device

Launch = Callable[[Any], None]
"""Records one dispatch."""

TIMEOUT_SECONDS = 60.0
POISON = 0x7FC0DEAD
"""A NaN that no kernel makes."""


def run_once(device: Device, *launches: Launch) -> None:
    """Records launches with barriers between them, runs them and waits."""
    recorder = device.recorder("once")
    for launch in launches:
        launch(recorder)
        recorder.barrier()
    commands = recorder.finish()
    submission = device.submission(commands)
    submission.submit()
    if not submission.wait(timeout_seconds=TIMEOUT_SECONDS):
        raise TimeoutError(f"the device has not finished within {TIMEOUT_SECONDS:.0f} s")
    submission.free()
    commands.free()


class Burner:
    """Keeps the device's clocks up: an idle GPU takes a fifth of its speed and half a second to recover."""

    BEFORE_SECONDS = 0.002
    """Of work in front of each timed chain: the host's share between two chains is shorter than that."""

    def __init__(self, device: Device, launch: Launch, free: Callable[[], None]) -> None:
        self._device = device
        self._launch = launch
        self.free = free
        self._seconds = _chain_seconds(device, lambda index: [launch], 20, 3, None)
        self.burn(1.0)
        self._seconds = _chain_seconds(device, lambda index: [launch], 20, 3, self)

    def burn(self, seconds: float) -> None:
        """Works for so long."""
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            run_once(self._device, lambda recorder: self.record(recorder, 0.02))

    def record(self, recorder: Any, seconds: float = BEFORE_SECONDS) -> None:
        """Records that much work, nothing of it depending on anything."""
        for _ in range(int(max(1, min(1000, seconds / self._seconds)))):
            self._launch(recorder)


@dataclass(frozen=True)
class Timing:
    """How times are taken."""

    seconds: float
    """About how long one chain of launches lasts."""
    samples: int
    burner: Burner | None = None


def time_chain(device: Device, launches: Callable[[int], Sequence[Launch]], timing: Timing) -> float:
    """Median seconds of one turn in a chain of dependent launches, a barrier after each."""
    first = _chain_seconds(device, launches, 2, 1, timing.burner)
    turns = int(max(1, min(100, timing.seconds / max(first, 1e-7))))
    return _chain_seconds(device, launches, turns, timing.samples, timing.burner)


def _chain_seconds(
    device: Device,
    launches: Callable[[int], Sequence[Launch]],
    turns: int,
    samples: int,
    burner: Burner | None,
) -> float:
    pool = device.timestamps(2)
    recorder = device.recorder("chain")
    recorder.reset_timestamps(pool)
    if burner is not None:
        burner.record(recorder)
        recorder.barrier()
    recorder.timestamp(pool, 0)
    for turn in range(turns):
        for launch in launches(turn):
            launch(recorder)
            recorder.barrier()
    recorder.timestamp(pool, 1)
    commands = recorder.finish()
    submission = device.submission(commands)
    found = []
    for _ in range(samples):
        submission.submit()
        if not submission.wait(timeout_seconds=TIMEOUT_SECONDS):
            raise TimeoutError(f"the device has not finished within {TIMEOUT_SECONDS:.0f} s")
        interval = pool.read_intervals()[0]
        found.append((interval or 0.0) * 1e-9)
    submission.free()
    commands.free()
    pool.free()
    return float(np.median(found)) / turns


def compile_all(compilations: Sequence[Callable[[], object]], threads: int) -> None:
    """Compiles side by side; what fails is met again when it is used."""
    with ThreadPoolExecutor(threads) as pool:
        for future in [pool.submit(each) for each in compilations]:
            future.exception()
