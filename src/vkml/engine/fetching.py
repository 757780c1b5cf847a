"""Large results, which a device copies to where the caller gets them: the host copies nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from vkml.engine.host_memory import leased
from vkml.errors import DeviceError

if TYPE_CHECKING:
    from vkml.vulkan import CommandBuffer, Device, Memory, Queue, Submission

Array = np.ndarray[Any, Any]
Fetch = tuple[int, np.dtype[Any], tuple[int, ...], int]
"""An output's number, its type and shape, and where it begins."""


class Fetching:
    """Copies of one run's results at a time, behind what computes them on the same queue.

    Args:
        device: that computes them.
        queue: on which.
        time_limit: in seconds; see `Device.submission`.
    """

    def __init__(self, device: Device, queue: Queue, time_limit: float | None) -> None:
        self._device, self._queue, self._time_limit = device, queue, time_limit
        self._commands: CommandBuffer | None = None
        self._submission: Submission | None = None
        self._late: list[tuple[Array, int]] = []
        """Results that the device cannot copy into, and where they begin."""
        self._written: dict[int, Array] = {}
        """What the device may be writing: kept until it has."""

    def start(self, source: Memory, fetches: Sequence[Fetch]) -> dict[int, Array]:
        """Submits the copies of what has been submitted to be computed; returns where they go, by number."""
        self._written = found = {}
        self._late = []
        recorder = self._device.recorder("results", again=self._commands, queue=self._queue)
        recorder.barrier()
        for number, storage, shape, at in fetches:
            array, block = leased(shape, storage)
            found[number] = array
            there = block.on(self._device)
            if there is None:
                self._late.append((array, at))
            else:
                recorder.copy(source, at, there.memory, 0, array.nbytes)
        recorder.barrier_to_host()
        self._commands = recorder.finish()
        if self._submission is None:
            self._submission = self._device.submission(self._commands, time_limit=self._time_limit)
        self._submission.submit()
        self._source = source
        return found

    def finish(self) -> None:
        """Waits for the copies."""
        assert self._submission is not None
        self._submission.finish()
        self._written = {}
        for array, at in self._late:
            array.reshape(-1).view(np.uint8)[:] = self._device.download(self._source, at, array.nbytes)

    def has_finished(self) -> bool:
        """Whether `finish` would not have to wait."""
        assert self._submission is not None
        return self._submission.wait(0.0, 0.0)

    def settle(self) -> None:
        """Waits for copies that nobody wants any more."""
        if self._submission is not None:
            with contextlib.suppress(DeviceError):
                self._submission.settle()
        self._written = {}

    def free(self) -> None:
        """Frees the commands, which must not be running."""
        if self._submission is not None:
            self._submission.free()
        if self._commands is not None:
            self._commands.free()
        self._submission = self._commands = None
