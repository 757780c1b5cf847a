"""Where the tensors of a batch are made: memory of the host, or a device's that the host writes."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from vkml.engine.device_array import DeviceArray
from vkml.engine.host_memory import empty
from vkml.forks import renew_in_child
from vkml.ir.dtypes import from_numpy
from vkml.tensors import Tensor
from vkml.tracing import value_of

if TYPE_CHECKING:
    from vkml.vulkan import Device, Memory

Array = np.ndarray[Any, Any]
Write = Callable[[Array], None]
"""Writes all elements into an array."""
DIRECT_BYTES = 1 << 20
"""Tensors from here on are written straight to a device's memory. Smaller ones a run takes along from the
host faster (`Traced.fed`), for it then finds everything where it was at the run before."""
_STAGING_KEPT = 4


class Place:
    """Memory of the host, for tensors of the CPU."""

    def make(self, shape: tuple[int, ...], dtype: np.dtype[Any], write: Write) -> Tensor:
        """A tensor whose elements something writes, once.

        Args:
            shape: of the tensor.
            dtype: of its elements.
            write: gets an array of this shape and type, to be written and not to be read or kept.
        """
        made = empty(shape, dtype)
        write(made)
        return Tensor(value_of(made))


class DevicePlace(Place):
    """A Vulkan device's memory.

    Where the host can write that, batches are written there; else to memory of the host that the device
    copies from, on the queue that only copies where it has one. Memory goes to the next batch when no tensor,
    and no run, has it any more.

    Args:
        device: opened.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._staging: list[Memory] = []
        self._renew()
        renew_in_child(self._renew)

    def _renew(self) -> None:
        self._lock = threading.RLock()

    def make(self, shape: tuple[int, ...], dtype: np.dtype[Any], write: Write) -> Tensor:
        if math.prod(shape) * dtype.itemsize < DIRECT_BYTES:
            array = empty(shape, dtype)
            write(array)
            return Tensor(value_of(array, self._device))
        made = DeviceArray(self._device, from_numpy(dtype), shape)
        there = made.mapped()
        if there is not None:
            write(there)
            made.flush()
        else:
            self._send(made, write)
        return Tensor(value_of(made))

    def _send(self, target: DeviceArray, write: Write) -> None:
        memory = self._staging_memory(target.nbytes)
        assert memory.host is not None
        write(memory.host[: target.nbytes].view(target.dtype.storage).reshape(target.shape))
        memory.flush()
        target.receive(memory)
        # Not after an interrupt: the device may be reading it still.
        self._give(memory)

    def _staging_memory(self, size: int) -> Memory:
        from vkml.vulkan import MemoryKind

        with self._lock:
            for at, memory in enumerate(self._staging):
                if size <= memory.size <= 2 * size:
                    return self._staging.pop(at)
        return self._device.allocate(size, MemoryKind.UPLOAD, "staging for batches")

    def _give(self, memory: Memory) -> None:
        with self._lock:
            self._staging.append(memory)
            surplus = self._staging.pop(0) if len(self._staging) > _STAGING_KEPT else None
        if surplus is not None:
            surplus.free()

    def __del__(self) -> None:
        for memory in getattr(self, "_staging", ()):
            memory.free()


def place_on(device: Any) -> Place:
    """Where tensors of a device are made.

    Args:
        device: its name, as in ``"vulkan:0"``, or what has one; None for the CPU.
    """
    from vkml.engine.ort_value import device_of
    from vkml.tensors.tensor import device_name

    found = None if device is None else device_of(device_name(device))
    return Place() if found is None else DevicePlace(found)
