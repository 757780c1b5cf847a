"""How a device keeps the fragments of its matrix units: its own compiler alone can tell, so a kernel asks."""

from __future__ import annotations

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

if TYPE_CHECKING:
    from vkml.vulkan import Device, Pipeline

# What devices have answered: they are asked once a process.
_known: dict[tuple[str, Fragment], bool] = {}
_layouts: dict[tuple[str, Fragment], FragmentLayouts | None] = {}


def holds_elements_once(device: Device, fragment: Fragment) -> bool:
    """Whether a subgroup's lanes share the elements of a fragment; some devices keep them several times."""
    key = device.info.uuid, fragment
    if key not in _known:
        push_bytes = device.info.limits.push_constant_bytes
        found = _answer(device, 4, lambda view: count_elements(view, fragment, push_bytes))
        _known[key] = int(found[0]) * fragment.lanes == fragment.n * fragment.k
    return _known[key]


def fragment_layouts(device: Device, fragment: Fragment) -> FragmentLayouts | None:
    """Which elements each lane holds; None where that is no formula of bits."""
    key = device.info.uuid, fragment
    if key not in _layouts:
        push_bytes = device.info.limits.push_constant_bytes
        count = fragment.m * (fragment.k + fragment.n)
        found = _answer(device, count, lambda view: ask_layouts(view, fragment, push_bytes))
        _layouts[key] = layouts_of(found, fragment)
    return _layouts[key]


def _answer(device: Device, count: int, ask: Callable[[View], Dispatch]) -> npt.NDArray[np.int32]:
    """The integers that a launch writes."""
    from vkml.vulkan import MemoryKind

    answer = Buffer(BufferKind.OUTPUT, 4 * count, "answer")
    dispatch = ask(contiguous(answer, TensorType(dtypes.INT32, (count,))))
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
