"""Constants on a device: each where its address says, however they came there."""

from __future__ import annotations

import numpy as np
import pytest

import vkml
from vkml.engine import devices as device_registry
from vkml.engine import weights
from vkml.engine.turns import is_owned
from vkml.engine.weights import WeightStore
from vkml.ir import Constant, dtypes
from vkml.ir.graph import ScaledConstant
from vkml.lowering.memory import ALIGNMENT


def test_memory_is_freed_when_the_lock_is_free(
    vulkan_device_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To free it waits for others' runs, in the midst of which another plan may give back its weights."""
    device = device_registry.open_device(next(i for i in vkml.devices() if i.name == vulkan_device_name))
    store = WeightStore(lambda: device)
    array = np.ones(10, np.float32)
    lease = store.add([Constant(dtypes.FLOAT32, array.shape, array)])
    memory, seen = lease[0].memory, []
    free = memory.free
    monkeypatch.setattr(memory, "free", lambda: (seen.append(is_owned(store._lock)), free()))
    store.release(lease)
    assert seen == [False] and store.bytes == 0
    store.close()


def test_what_is_scaled_by_threads_is_what_one_would_make(vulkan_device_name: str) -> None:
    device = device_registry.open_device(next(i for i in vkml.devices() if i.name == vulkan_device_name))
    numbers = np.random.default_rng(1)
    store = WeightStore(lambda: device)
    made = []
    for shape in ((300, 40, 3, 3), (1, 9, 7), (3, 5000)):
        source = Constant(dtypes.FLOAT32, shape, numbers.standard_normal(shape, np.float32))
        factors = numbers.standard_normal(shape[0])
        largest = np.zeros(source.type.elements // shape[0], np.float32)  # nobody asks
        made.append(ScaledConstant(dtypes.FLOAT32, shape, source, factors, largest))
    try:
        lease = store.add(made)
        memory = lease[0].memory
        for constant in made:
            held = device.download(memory, store.address(constant) - memory.address, constant.type.bytes)
            np.testing.assert_array_equal(held.view(np.float32), constant.array.reshape(-1))
        store.release(lease)
    finally:
        store.close()


def test_small_weights_are_uploaded_together_and_each_lies_where_its_address_says(
    vulkan_device_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers of many sizes, none at all and larger ones than go together among them."""
    monkeypatch.setattr(weights, "_SMALL_BYTES", 4096)
    monkeypatch.setattr(weights, "_TOGETHER_BYTES", 10_000)
    device = device_registry.open_device(next(i for i in vkml.devices() if i.name == vulkan_device_name))
    numbers = np.random.default_rng(1)
    sizes = [3, 0, 1024, 1025, 7, 900, 900, 900, 1000, 1, 5000, 2, 64]
    arrays = [numbers.standard_normal(size).astype(np.float32) for size in sizes]
    constants = [Constant(dtypes.FLOAT32, array.shape, array) for array in arrays]
    calls = []
    real = device.upload
    monkeypatch.setattr(device, "upload", lambda m, at, data: (calls.append(at), real(m, at, data)))
    told: list[int] = []
    store = WeightStore(lambda: device, lambda what, done, whole: told.append(done))
    try:
        lease = store.add(constants)
        assert len(calls) < len(constants) and len(told) == len(constants) and told == sorted(told)
        memory = lease[0].memory
        for constant, array in zip(constants, arrays, strict=True):
            at = store.address(constant) - memory.address
            assert at % ALIGNMENT == 0
            held = device.download(memory, at, array.nbytes).view(np.float32)
            np.testing.assert_array_equal(held, array)
        store.release(lease)
    finally:
        store.close()
