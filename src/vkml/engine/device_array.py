"""Values that lie on a device, and the memory that they take turns in."""

from __future__ import annotations

import contextlib
import math
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from vkml.errors import InvalidArgument, OutOfMemory
from vkml.ir import DType
from vkml.ir.dtypes import from_numpy

if TYPE_CHECKING:
    from vkml.vulkan import Device, Memory

Array = np.ndarray[Any, Any]
_LEAST_BYTES = 256
_KEPT_BYTES = 64 << 20
"""Unused memory of one size that stays for values to come, and at least one such memory."""
_IDLE = 64
"""Values made since one has left memory, from which on it goes: sizes that grow come no more."""


class DeviceArray:
    """A tensor in a Vulkan device's memory, in C order.

    It owns the memory, which goes back to the device's pool with the last reference.

    Args:
        device: where it lies.
        dtype: of its elements.
        shape: its sizes.
    """

    __slots__ = ("__weakref__", "_memory", "address", "device", "dtype", "nbytes", "shape")

    def __init__(self, device: Device, dtype: DType, shape: tuple[int, ...]) -> None:
        if dtype.kind == "s":
            raise InvalidArgument("strings live on the CPU only")
        self.device, self.dtype, self.shape = device, dtype, shape
        self.nbytes = math.prod(shape) * dtype.itemsize
        """Bytes that its elements take."""
        pool = _pools.get(device) or _pools.setdefault(device, _Pool())
        self._memory = memory = pool.take(device, self.nbytes)
        self.address = memory.address
        """Of the first byte, on the device."""
        _alive[id(device), self.address] = self

    def write(self, array: Array) -> None:
        """Overwrites it with an array of its type and shape; no run may be using it."""
        self.require_like(array.dtype, array.shape)
        self.device.upload(self._memory, 0, array)

    def require_like(self, dtype: DType | np.dtype[Any], shape: tuple[int, ...]) -> None:
        """Raises `InvalidArgument` where what it is to be overwritten with is of another type or shape."""
        storage = dtype.storage if isinstance(dtype, DType) else dtype
        if shape != self.shape or storage != self.dtype.storage:
            raise InvalidArgument(
                f"the value is {self.dtype.numpy_name}{list(self.shape)}, what it is to become "
                f"{storage}{list(shape)}"
            )

    def copy_from(self, other: DeviceArray) -> None:
        """Overwrites it with another value of its type and shape, of any device; no run may be using it."""
        if not self.nbytes:
            return
        if other.device is self.device:
            self.device.copy(other._memory, 0, self._memory, 0, self.nbytes)
        else:
            other.device.pass_on(other._memory, 0, self.device, self._memory, 0, self.nbytes)

    def write_into(self, target: Array) -> None:
        """Writes it into an array of its type and shape, in C order: memory that another device reads."""
        if self.nbytes:
            self.device.download_into(self._memory, 0, target.reshape(-1).view(np.uint8))

    def copy_into(self, memory: Memory, offset: int) -> None:
        """Copies it into memory of its device that nothing is using.

        Args:
            memory: large enough.
            offset: in bytes.
        """
        if self.nbytes:
            self.device.copy(self._memory, 0, memory, offset, self.nbytes)

    def mapped(self) -> Array | None:
        """Its elements, for the host to write, not to read or keep; None where it cannot.

        `flush` hands them to the device. No run may be using it.
        """
        host = self._memory.host
        return None if host is None else host[: self.nbytes].view(self.dtype.storage).reshape(self.shape)

    def flush(self) -> None:
        """Has the device see what was written through `mapped`."""
        self._memory.flush()

    def receive(self, memory: Memory) -> None:
        """Overwrites it with the first bytes of a memory that the host has written, and waits for that.

        Args:
            memory: of its device; no run may be using either.
        """
        if self.nbytes:
            self.device.send(memory, 0, self._memory, 0, self.nbytes)

    def numpy(self) -> Array:
        """A copy on the host."""
        found = self.device.download(self._memory, 0, self.nbytes)
        return found.view(self.dtype.storage).reshape(self.shape)

    def __del__(self) -> None:
        memory = getattr(self, "_memory", None)
        if memory is None or self.device.is_closed:  # never made, or gone already
            return
        pool = _pools.get(self.device)
        if pool is not None:
            pool.give(memory)


class _Pool:
    """Memory of a device that values have left.

    Values go whenever the collector finds them, in any thread and in the midst of anything: nothing here
    waits for a lock.
    """

    def __init__(self) -> None:
        self._unused: dict[int, deque[tuple[Memory, int]]] = {}
        """By size: memory, and how many values had been made when one left it last."""
        self._made = 0

    def take(self, device: Device, size: int) -> Memory:
        room = _room(size)
        self._made += 1
        if self._made % _IDLE == 0:
            self._free(self._made - _IDLE)
        unused = self._unused.setdefault(room, deque())
        with contextlib.suppress(IndexError):
            while True:
                # The longest unused: values that take turns come back to a place after as few runs as can be.
                found = unused.popleft()[0]
                # Of values in a cycle the collector ends the memory, too, before or after these give it back.
                if not found.is_freed:
                    return found
        from vkml.vulkan import MemoryKind

        try:
            return device.allocate(room, MemoryKind.DEVICE, "values")
        except OutOfMemory:
            self._free(self._made)
            return device.allocate(room, MemoryKind.DEVICE, "values")

    def give(self, memory: Memory) -> None:
        unused = self._unused.setdefault(memory.size, deque())
        if len(unused) * memory.size < _KEPT_BYTES:
            unused.append((memory, self._made))
        else:
            memory.free()

    def _free(self, before: int) -> None:
        """Frees what values had left when so many had been made."""
        for unused in list(self._unused.values()):
            with contextlib.suppress(IndexError):
                while unused[0][1] <= before:
                    unused.popleft()[0].free()  # another thread may have taken the first: then a later one


_pools: weakref.WeakKeyDictionary[Device, _Pool] = weakref.WeakKeyDictionary()
_alive: weakref.WeakValueDictionary[tuple[int, int], DeviceArray] = weakref.WeakValueDictionary()
"""By device and address."""


def at_address(device: Device, address: int) -> DeviceArray | None:
    """The value that begins at an address of a device."""
    return _alive.get((id(device), address))


def _room(size: int) -> int:
    """Bytes to allocate, in steps of an eighth to a quarter: values of near sizes take turns in them."""
    size = max(size, _LEAST_BYTES)
    step = max(_LEAST_BYTES, 1 << max(0, size.bit_length() - 3))
    return -(-size // step) * step


Value = Array | DeviceArray
"""A value of a run."""
Place: TypeAlias = "Device | DeviceArray"
"""Where a value is to be: fresh on a device, or in the memory of one that there is."""


def dtype_of(value: Value) -> DType:
    """The element type of a value."""
    return value.dtype if isinstance(value, DeviceArray) else from_numpy(value.dtype)


def on_host(value: Any) -> Any:
    """A value as an array; a sequence as a list of them."""
    if isinstance(value, list):
        return [on_host(item) for item in value]
    return value.numpy() if isinstance(value, DeviceArray) else value


def put(found: Value, target: DeviceArray) -> DeviceArray:
    """Copies a value into the memory of another, unless it is that one; returns this.

    Args:
        found: as a run made it.
        target: of its type and shape.
    """
    if found is not target:
        if isinstance(found, DeviceArray):
            target.copy_from(found)
        else:
            target.write(found)
    return target


def place_array(array: Array, place: Device | DeviceArray, name: str) -> DeviceArray:
    """An array where it was wanted.

    Args:
        array: the value.
        place: a device, or a value that is overwritten.
        name: of the output, for errors.
    """
    if not isinstance(array, np.ndarray):
        raise InvalidArgument(
            f"output '{name}' is a sequence or an optional; bind it to the CPU, where it stays"
        )
    dtype = from_numpy(array.dtype)
    if isinstance(place, DeviceArray):
        check_target(place, dtype, array.shape, name)
        target = place
    else:
        target = DeviceArray(place, dtype, array.shape)
    target.write(array)
    return target


def check_target(target: DeviceArray, dtype: DType, shape: tuple[int, ...], name: str) -> None:
    """Raises `InvalidArgument` where a value bound to an output is not of the output's type and shape."""
    if (target.dtype, target.shape) != (dtype, shape):
        raise InvalidArgument(
            f"output '{name}' is {dtype.numpy_name}{list(shape)}, the value bound to it "
            f"{target.dtype.numpy_name}{list(target.shape)}"
        )
