"""Constants on a device: uploaded once, shared by the plans of a session."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from vkml.engine.compilation import compile_kernels
from vkml.engine.single_run import run_once
from vkml.engine.turns import Turn
from vkml.forks import renew_in_child
from vkml.ir import Constant
from vkml.ir.file_constant import release_pages
from vkml.kernels.packed_weights import PackedWeights
from vkml.lowering.memory import ALIGNMENT

if TYPE_CHECKING:
    from vkml.engine.options import Progress
    from vkml.vulkan import Device, Memory, Pipeline

Array = np.ndarray[Any, Any]
_UPLOAD_STEP = 32 << 20
_SMALL_BYTES = 1 << 16
_TOGETHER_BYTES = 1 << 20


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
    """

    def __init__(
        self, device: Device, progress: Progress | None = None, memory_limit: float | None = None
    ) -> None:
        self._device = device
        self._progress = progress
        self._memory_limit = memory_limit
        self._arenas: list[_Arena] = []
        self._places: dict[int, tuple[_Arena, int, Constant]] = {}
        # Re-entrant: a session that the garbage collector closes may release while this thread holds it.
        self._lock = threading.RLock()
        self._adding = Turn()
        self.bytes = 0
        renew_in_child(self._renew)

    def add(self, constants: Sequence[Constant]) -> Lease:
        """Uploads those not there yet, into one arena in the order given.

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
        offsets, size = [], 0
        for constant in fresh:
            offsets.append(size)
            size += -(-max(1, constant.type.bytes) // ALIGNMENT) * ALIGNMENT
        from vkml.vulkan import MemoryKind

        memory = self._device.allocate(size, MemoryKind.DEVICE, "weights", self._memory_limit)
        arena = _Arena(memory, [id(constant) for constant in fresh], 1)
        taken: list[Pipeline] = []
        try:
            kernels = [each.dispatch.kernel for each in fresh if isinstance(each, PackedWeights)]
            pipelines = compile_kernels(self._device, kernels, taken) if kernels else {}
            for group in _together(fresh, offsets):
                if len(group) > 1:
                    self._upload_together(memory, group)
                else:
                    [(constant, offset)] = group
                    if isinstance(constant, PackedWeights):
                        self._pack(memory, offset, constant, pipelines)
                    else:
                        self._upload(memory, offset, constant)
                if self._progress:
                    for constant, offset in group:
                        self._progress("upload", offset + constant.type.bytes, size)
            with self._lock:
                self._arenas.append(arena)
                self.bytes += memory.size
                for constant, offset in zip(fresh, offsets, strict=True):
                    self._places[id(constant)] = (arena, offset, constant)
        except BaseException:
            self._forget(arena)
            raise
        finally:
            self._device.release_all(taken)
        return arena

    def _upload(self, memory: Memory, offset: int, constant: Constant) -> None:
        data = constant.data
        for start in range(0, data.size, _UPLOAD_STEP):
            self._device.upload(memory, offset + start, data[start : start + _UPLOAD_STEP])
        release_pages(constant)

    def _upload_together(self, memory: Memory, group: Sequence[tuple[Constant, int]]) -> None:
        start, last = group[0][1], group[-1]
        whole = np.zeros(last[1] + last[0].type.bytes - start, np.uint8)
        for constant, offset in group:
            data = constant.data
            whole[offset - start : offset - start + data.size] = data
        self._device.upload(memory, start, whole)

    def _pack(
        self, memory: Memory, offset: int, weights: PackedWeights, pipelines: dict[int, Pipeline]
    ) -> None:
        """Uploads the original beside the arena, has it packed, and gives its memory back."""
        from vkml.vulkan import MemoryKind

        device, original = self._device, weights.original
        source = device.allocate(original.type.bytes, MemoryKind.DEVICE, "weights", self._memory_limit)
        try:
            self._upload(source, 0, original)
            places = {weights.source: source.address, weights.target: memory.address + offset}
            run_once(device, weights.dispatch, pipelines, places)
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
                if arena.users == 0:
                    self._forget(arena)

    def _forget(self, arena: _Arena) -> None:
        with self._lock:
            if arena in self._arenas:
                self._arenas.remove(arena)
                self.bytes -= arena.memory.size
            for key in arena.keys:
                self._places.pop(key, None)
            arena.memory.free()

    def close(self) -> None:
        with self._lock:
            for arena in self._arenas:
                arena.memory.free()
            self._arenas.clear()
            self._places.clear()
            self.bytes = 0

    def _renew(self) -> None:
        self._lock = threading.RLock()


def _together(constants: Sequence[Constant], offsets: Sequence[int]) -> Iterator[list[tuple[Constant, int]]]:
    """Constants with their offsets, small neighbours in one list: an upload costs more than their bytes."""
    group: list[tuple[Constant, int]] = []
    for constant, offset in zip(constants, offsets, strict=True):
        is_small = not isinstance(constant, PackedWeights) and constant.type.bytes <= _SMALL_BYTES
        if group and (not is_small or offset - group[0][1] > _TOGETHER_BYTES):
            yield group
            group = []
        if is_small:
            group.append((constant, offset))
        else:
            yield [(constant, offset)]
    if group:
        yield group


Lease = tuple[_Arena, ...]
"""What a program holds of a `WeightStore`."""
