"""How a device keeps the fragments of its matrix units: its own compiler alone can tell, so a kernel asks.

Answers are kept on disk, by the driver's build: a session that finds them there plans while its device opens.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from vkml.engine.compilation import compile_kernels
from vkml.engine.single_run import run_once
from vkml.ir import TensorType, dtypes
from vkml.kernels.fragment_layout import FragmentLayouts, ask_layouts, layouts_of
from vkml.kernels.packed_weights import Fragment, count_elements
from vkml.kernels.spec import Dispatch
from vkml.kernels.views import Buffer, BufferKind, View, contiguous
from vkml.vulkan import cache

if TYPE_CHECKING:
    from vkml.vulkan import Device, DeviceInfo, Pipeline

Answer = npt.NDArray[np.int32]

# What devices have answered, as it is used.
_known: dict[tuple[str, Fragment], bool] = {}
_layouts: dict[tuple[str, Fragment], FragmentLayouts | None] = {}


def holds_elements_once(info: DeviceInfo, opened: Callable[[], Device], fragment: Fragment) -> bool:
    """Whether a subgroup's lanes share the elements of a fragment; some devices keep them several times.

    Args:
        info: the device.
        opened: waits for it, and returns it open.
        fragment: that it multiplies.
    """
    key = info.uuid, fragment
    if key not in _known:
        push_bytes = info.limits.push_constant_bytes
        found = _answered(
            info, opened, "elements", fragment, 4, lambda view: count_elements(view, fragment, push_bytes)
        )
        _known[key] = int(found[0]) * fragment.lanes == fragment.n * fragment.k
    return _known[key]


def fragment_layouts(
    info: DeviceInfo, opened: Callable[[], Device], fragment: Fragment
) -> FragmentLayouts | None:
    """Which elements each lane holds; None where that is no formula of bits. Arguments: as above."""
    key = info.uuid, fragment
    if key not in _layouts:
        push_bytes = info.limits.push_constant_bytes
        count = fragment.m * (fragment.k + fragment.n) + fragment.k * fragment.n
        found = _answered(
            info, opened, "layouts", fragment, count, lambda view: ask_layouts(view, fragment, push_bytes)
        )
        _layouts[key] = layouts_of(found, fragment)
    return _layouts[key]


def _answered(
    info: DeviceInfo,
    opened: Callable[[], Device],
    what: str,
    fragment: Fragment,
    count: int,
    ask: Callable[[View], Dispatch],
) -> Answer:
    """The integers that a launch writes, or has written in another process."""
    asked = ask(_place(count))
    words = info.uuid, info.driver_id, info.driver_version, info.driver_info, fragment, asked.kernel.source
    name = f"fragments/{what}-{hashlib.sha256(repr(words).encode()).hexdigest()[:32]}"
    kept = _kept(name, count)
    if kept is not None:
        return kept
    found = _answer(opened(), count, ask)
    cache.write(name, found.tobytes())
    return found


def _kept(name: str, count: int) -> Answer | None:
    kept = cache.read(name)
    return np.frombuffer(kept, np.int32) if kept is not None and len(kept) == 4 * count else None


def _place(count: int) -> View:
    return contiguous(Buffer(BufferKind.OUTPUT, 4 * count, "answer"), TensorType(dtypes.INT32, (count,)))


def _answer(device: Device, count: int, ask: Callable[[View], Dispatch]) -> Answer:
    """The integers that a launch writes."""
    from vkml.vulkan import MemoryKind

    view = _place(count)
    answer = view.buffer
    dispatch = ask(view)
    pipelines: list[Pipeline] = []
    memory = device.allocate(4 * count, MemoryKind.READBACK, answer.name)
    try:
        made = compile_kernels(device, [dispatch.kernel], pipelines)
        run_once(device, [dispatch], made, {answer: memory.address})
        assert memory.host is not None
        return np.array(memory.host[: 4 * count].view(np.int32))
    finally:
        memory.free()
        device.release_all(pipelines)
