"""Whether a device keeps the fragments of its matrix units as packed weights are kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from vkml.engine.compilation import compile_kernels
from vkml.engine.single_run import run_once
from vkml.ir import TensorType, dtypes
from vkml.kernels.packed_weights import Fragment, count_elements
from vkml.kernels.views import Buffer, BufferKind, contiguous

if TYPE_CHECKING:
    from vkml.vulkan import Device, Pipeline

_known: dict[tuple[str, Fragment], bool] = {}


def holds_elements_once(device: Device, fragment: Fragment) -> bool:
    """Whether a subgroup's lanes share the elements of a fragment; some devices keep them several times.

    Only the device's own compiler can tell: a kernel asks it, once a process.
    """
    from vkml.vulkan import MemoryKind

    key = device.info.uuid, fragment
    if key not in _known:
        counter = Buffer(BufferKind.OUTPUT, 16, "elements a lane")
        view = contiguous(counter, TensorType(dtypes.INT32, (4,)))
        dispatch = count_elements(view, fragment, device.info.limits.push_constant_bytes)
        pipelines: list[Pipeline] = []
        memory = device.allocate(16, MemoryKind.READBACK, counter.name)
        try:
            made = compile_kernels(device, [dispatch.kernel], pipelines)
            run_once(device, dispatch, made, {counter: memory.address})
            assert memory.host is not None
            found = int(memory.host[:4].view(np.int32)[0])
        finally:
            memory.free()
            for pipeline in pipelines:
                device.release(pipeline)
        _known[key] = found * fragment.lanes == fragment.n * fragment.k
    return _known[key]
