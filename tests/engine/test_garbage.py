"""Values on devices that the collector finds in cycles."""

from __future__ import annotations

import gc

import numpy as np

from vkml.engine import devices as device_registry
from vkml.engine.device_array import place_array


def test_memory_of_values_in_cycles_is_not_used_again(vulkan_device_name: str) -> None:
    """Their memory goes with them: the collector calls finalizers of all that is in a cycle, in any order."""
    [info] = [info for info in device_registry.devices(True) if info.name == vulkan_device_name]
    device = device_registry.open_device(info)
    size = 12_345  # no other test's
    cycle = [place_array(np.full(size + at, at, np.float32), device, "a value") for at in range(4)]
    holder: list[object] = [cycle]
    holder.append(holder)
    del cycle, holder
    gc.collect()
    made = [place_array(np.full(size + at, 7 + at, np.float32), device, "a value") for at in range(4)]
    for at, value in enumerate(made):
        key = value._memory._memory_key
        assert key is not None and key.context is not None
        np.testing.assert_array_equal(value.numpy(), np.full(size + at, 7 + at, np.float32))


def test_memory_that_is_gone_is_not_pooled(vulkan_device_name: str) -> None:
    [info] = [info for info in device_registry.devices(True) if info.name == vulkan_device_name]
    device = device_registry.open_device(info)
    size = 23_456
    for _ in range(3):
        holder: list[object] = [place_array(np.zeros(size, np.float32), device, "a value")]
        holder.append(holder)
        del holder
        gc.collect()
        value = place_array(np.ones(size, np.float32), device, "a value")
        key = value._memory._memory_key
        assert key is not None and key.context is not None
        assert value.numpy().all()
