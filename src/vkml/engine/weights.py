"""Constants on a device: uploaded once, shared by the plans of a session."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from vkml.cpu.pool import available_processors, shared_pool
from vkml.dataclasses import dataclass
from vkml.engine.compilation import compile_kernels
from vkml.engine.single_run import run_once
from vkml.engine.turns import Turn
from vkml.forks import renew_in_child
from vkml.ir import Constant, mapped_file
from vkml.ir.file_constant import release_pages
from vkml.ir.graph import ScaledConstant, scaled
from vkml.ir.lazy import lazy
from vkml.ir.packing import to_bytes
from vkml.kernels.packed_weights import PackedOnDevice
from vkml.kernels.spec import KernelSpec
from vkml.lowering.memory import ALIGNMENT

if TYPE_CHECKING:
    from vkml.engine.options import Progress
    from vkml.vulkan import Device, Memory, Pipeline

Array = np.ndarray[Any, Any]
_UPLOAD_STEP = 32 << 20
_SMALL_BYTES = 1 << 16
_TOGETHER_BYTES = 1 << 20
_MOST_THREADS = 4
"""That scale a constant: more would read and write it no faster."""


@dataclass(eq=False)
class _Arena:
    """Constants uploaded together, and how many programs use some of them."""

    memory: Memory
    keys: list[int]
    users: int = 0


class WeightStore:
    """A session's constants on one device, each uploaded once and shared by all plans.

    Constants that came with one plan (folded shapes, tables) go when the last plan that uses them is closed,
    so that a session with ever new input shapes does not grow.

    Args:
        opened: returns the device, which may have to be waited for.
        progress: told how much has been uploaded.
        memory_limit: a share of the device's memory, see `Device.allocate`.
    """

    def __init__(
        self,
        opened: Callable[[], Device],
        progress: Progress | None = None,
        memory_limit: float | None = None,
    ) -> None:
        self._opened = opened
        self._progress = progress
        self._memory_limit = memory_limit
        self._arenas: list[_Arena] = []
        self._places: dict[int, tuple[_Arena, int, Constant]] = {}
        # Re-entrant: a session that the garbage collector closes may release while this thread holds it.
        self._lock = threading.RLock()
        self._adding = Turn()
        self.bytes = 0
        renew_in_child(self._renew)

    @lazy
    def _device(self) -> Device:
        return self._opened()

    def packing_kernels(self, constants: Sequence[Constant]) -> list[KernelSpec]:
        """Kernels that `add` will run."""
        with self._lock:
            fresh = [each for each in constants if id(each) not in self._places]
        return [each.dispatch.kernel for each in fresh if isinstance(each, PackedOnDevice)]

    def add(self, constants: Sequence[Constant]) -> Lease:
        """Uploads those not there yet, into one arena; weights that the device packs lie last there.

        Returns:
            what to give back by `release`.
        """
        with self._adding.taken(
            "this session uploads weights in this very thread: a progress callback may use what is planned "
            "already, but not have other shapes planned"
        ):
            used: dict[int, _Arena] = {}
            fresh: dict[int, Constant] = {}
            with self._lock:
                for constant in constants:
                    place = self._places.get(id(constant))
                    if place is None:
                        fresh[id(constant)] = constant
                    else:
                        used[id(place[0])] = place[0]
                for arena in used.values():
                    arena.users += 1
            try:
                made = (self._make_arena(list(fresh.values())),) if fresh else ()
            except BaseException:
                self.release(tuple(used.values()))
                raise
            return (*used.values(), *made)

    def _make_arena(self, fresh: Sequence[Constant]) -> _Arena:
        """Uploads, without the lock: a progress callback is the caller's code. The arena has one user."""
        from vkml.vulkan import MemoryKind

        plain = [constant for constant in fresh if not isinstance(constant, PackedOnDevice)]
        packed = [constant for constant in fresh if isinstance(constant, PackedOnDevice)]
        fresh = [*plain, *packed]
        offsets, size, done = [], 0, 0
        for constant in fresh:
            offsets.append(size)
            size += _aligned(constant.type.bytes)
        memory = self._device.allocate(size, MemoryKind.DEVICE, "weights", self._memory_limit)
        arena = _Arena(memory, [id(constant) for constant in fresh], 1)
        taken: list[Pipeline] = []
        try:
            for group in _together(plain, offsets[: len(plain)]):
                if len(group) > 1:
                    self._upload_together(memory, group)
                else:
                    [(constant, offset)] = group
                    self._upload(memory, offset, constant)
                done = self._tell(done, size, [constant for constant, _ in group])
            pipelines = compile_kernels(self._device, self.packing_kernels(fresh), taken)
            for batch in _batches(packed, offsets[len(plain) :]):
                self._pack(memory, batch, pipelines)
                done = self._tell(done, size, [weights for weights, _ in batch])
            with self._lock:
                self._arenas.append(arena)
                self.bytes += memory.size
                for constant, offset in zip(fresh, offsets, strict=True):
                    self._places[id(constant)] = (arena, offset, constant)
        except BaseException:
            with self._lock:
                self._unlink(arena)
            arena.memory.free()
            raise
        finally:
            self._device.release_all(taken)
        return arena

    def _tell(self, done: int, size: int, constants: Sequence[Constant]) -> int:
        """Says of each constant that it is there; returns the bytes that are, of all so many."""
        for constant in constants:
            done += _aligned(constant.type.bytes)
            if self._progress:
                self._progress("upload", done, size)
        return done

    def _upload(self, memory: Memory, offset: int, constant: Constant) -> None:
        data = _data(constant)
        for start in range(0, data.size, _UPLOAD_STEP):
            part = data[start : start + _UPLOAD_STEP]
            self._device.upload(memory, offset + start, part)
            mapped_file.release_pages(part)
        release_pages(constant)

    def _upload_together(self, memory: Memory, group: Sequence[tuple[Constant, int]]) -> None:
        start, last = group[0][1], group[-1]
        whole = np.zeros(last[1] + last[0].type.bytes - start, np.uint8)
        for constant, offset in group:
            data = constant.data
            whole[offset - start : offset - start + data.size] = data
        self._device.upload(memory, start, whole)

    def _pack(
        self, memory: Memory, batch: Sequence[tuple[PackedOnDevice, int]], pipelines: dict[int, Pipeline]
    ) -> None:
        """Uploads originals beside the arena, has them packed, and gives their memory back."""
        from vkml.vulkan import MemoryKind

        device = self._device
        size = sum(_aligned(weights.original.type.bytes) for weights, _ in batch)
        source = device.allocate(size, MemoryKind.DEVICE, "weights", self._memory_limit)
        try:
            addresses, at = {}, 0
            for weights, offset in batch:
                self._upload(source, at, weights.original)
                addresses[weights.source] = source.address + at
                addresses[weights.target] = memory.address + offset
                at += _aligned(weights.original.type.bytes)
            run_once(device, [weights.dispatch for weights, _ in batch], pipelines, addresses)
        finally:
            source.free()

    def address(self, constant: Constant) -> int:
        arena, offset, _ = self._places[id(constant)]
        return arena.memory.address + offset

    def release(self, lease: Lease) -> None:
        """Gives back what `add` returned; the device must not use it any more."""
        with self._lock:
            for arena in lease:
                arena.users -= 1
            unused = [arena for arena in lease if arena.users == 0]
            for arena in unused:
                self._unlink(arena)
        # Without the lock: this waits for runs to be settled, in the midst of which others may be released.
        for arena in unused:
            arena.memory.free()

    def _unlink(self, arena: _Arena) -> None:
        if arena in self._arenas:
            self._arenas.remove(arena)
            self.bytes -= arena.memory.size
        for key in arena.keys:
            self._places.pop(key, None)

    def close(self) -> None:
        with self._lock:
            for arena in self._arenas:
                arena.memory.free()
            self._arenas.clear()
            self._places.clear()
            self.bytes = 0

    def _renew(self) -> None:
        self._lock = threading.RLock()


def _data(constant: Constant) -> Array:
    """`Constant.data`; what is to be scaled first, by several threads."""
    if not isinstance(constant, ScaledConstant):
        return constant.data
    source, factors = constant.source.array, constant.factors
    made = np.empty(source.shape, source.dtype)

    def scale(first: int, end: int) -> None:
        scaled(source[first:end], factors[first:end], made[first:end])

    filters, pool = len(source), shared_pool(min(_MOST_THREADS, available_processors()))
    pool.parallel_for(filters, scale, max(1, filters // (2 * pool.size)))
    return to_bytes(made, constant.dtype)


def _together(constants: Sequence[Constant], offsets: Sequence[int]) -> Iterator[list[tuple[Constant, int]]]:
    """Constants with their offsets, small neighbours in one list: an upload costs more than their bytes."""
    group: list[tuple[Constant, int]] = []
    for constant, offset in zip(constants, offsets, strict=True):
        is_small = constant.type.bytes <= _SMALL_BYTES
        if group and (not is_small or offset - group[0][1] > _TOGETHER_BYTES):
            yield group
            group = []
        if is_small:
            group.append((constant, offset))
        else:
            yield [(constant, offset)]
    if group:
        yield group


def _batches(
    packed: Sequence[PackedOnDevice], offsets: Sequence[int]
) -> Iterator[list[tuple[PackedOnDevice, int]]]:
    """Weights with their offsets, as many in a list as an upload takes at a time: memory and a submission for
    each would take longer than to pack it."""
    batch: list[tuple[PackedOnDevice, int]] = []
    taken = 0
    for weights, offset in zip(packed, offsets, strict=True):
        size = weights.original.type.bytes
        if batch and taken + size > _UPLOAD_STEP:
            yield batch
            batch, taken = [], 0
        batch.append((weights, offset))
        taken += size
    if batch:
        yield batch


def _aligned(size: int) -> int:
    return -(-max(1, size) // ALIGNMENT) * ALIGNMENT


Lease = tuple[_Arena, ...]
"""What a program holds of a `WeightStore`."""
