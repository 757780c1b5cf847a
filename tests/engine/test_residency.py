"""Values that are bound where a session computes: neither the host nor a copy of the device's moves them."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import vkml.onnx
from vkml import InferenceSession, OrtValue
from vkml.engine import programs
from vkml.engine.device_array import DeviceArray
from vkml.engine.host_memory import LARGE_BYTES
from vkml.engine.ort_value import device_of
from vkml.engine.sketch import Sketch
from vkml.ir import dtypes
from vkml.vulkan import Device

Array = np.ndarray[Any, Any]
LARGE = 64 << 20
"""Bytes of the issue's largest value."""


def test_memory_of_sizes_that_come_no_more_goes(vulkan_device_name: str) -> None:
    """Values that grow, as keys and values do: the memory beside those alive is that of the last few."""
    device = device_of(vulkan_device_name)
    assert device is not None
    gc.collect()
    before = device.allocated_bytes
    alive: list[DeviceArray] = []
    for length in range(100, 2000):
        made = [DeviceArray(device, dtypes.FLOAT32, (length, 256)) for _ in range(2)]
        alive = made  # those of the last length go now
        if length > 300:
            mine = sum(each._memory.size for each in alive)
            assert device.allocated_bytes - before <= 4 * mine, length
    del alive, made
    gc.collect()
    sizes = [DeviceArray(device, dtypes.FLOAT32, (4, 4)) for _ in range(200)]
    assert device.allocated_bytes - before <= len(sizes) * 1024
    for _ in range(300):  # one that is used again and again stays
        address = DeviceArray(device, dtypes.FLOAT32, (900, 900)).address
        assert DeviceArray(device, dtypes.FLOAT32, (900, 900)).address == address


def relu(count: int | str) -> bytes:
    sketch = Sketch("relu", 17)
    return vkml.onnx.save_graph(sketch.finish(sketch.node("Relu", sketch.input("x", (count,)))))


def forbid_transfers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("upload", "download", "copy"):
        monkeypatch.setattr(Device, name, lambda *_, name=name: pytest.fail(f"Device.{name}"))
    for name in ("copy", "copied"):
        monkeypatch.setattr(programs, name, lambda *_, name=name: pytest.fail(f"the host's {name}"))


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("size", [4096, LARGE_BYTES, LARGE])
def test_nothing_moves(
    vulkan_device_name: str, size: int, is_open: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = size // 4
    x = np.arange(count, dtype=np.float32) - count // 2
    with InferenceSession(relu("n" if is_open else count), devices=vulkan_device_name) as session:
        [name] = [value.name for value in session.get_outputs()]
        given = OrtValue.ortvalue_from_numpy(x, vulkan_device_name)
        made = OrtValue.ortvalue_from_shape_and_type((count,), np.float32, vulkan_device_name)
        fresh, kept = session.io_binding(), session.io_binding()
        for binding in (fresh, kept):
            binding.bind_ortvalue_input("x", given)
        fresh.bind_output(name, vulkan_device_name)
        kept.bind_ortvalue_output(name, made)
        with monkeypatch.context() as patched:
            forbid_transfers(patched)
            for binding in (fresh, kept, kept, fresh, kept):
                session.run_with_iobinding(binding)
        for value in (made, *fresh.get_outputs()):
            np.testing.assert_array_equal(value.numpy(), np.maximum(x, 0))


def test_a_cache_goes_round_without_the_host(
    vulkan_device_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was grows by a row a step; the row alone comes from the host, and the sum alone goes there."""
    sketch = Sketch("cache", 17)
    past, row = sketch.input("past", ("n", 64)), sketch.input("row", (1, 64))
    present = sketch.node("Concat", past, row, axis=0)
    model = vkml.onnx.save_graph(sketch.finish(present, sketch.node("ReduceSum", present, keepdims=0)))
    start = np.ones((3000, 64), np.float32)
    with InferenceSession(model, devices=vulkan_device_name) as session:
        grown, total = [value.name for value in session.get_outputs()]
        binding = session.io_binding()
        value = OrtValue.ortvalue_from_numpy(start, vulkan_device_name)
        binding.bind_output(grown, vulkan_device_name)
        binding.bind_output(total)
        totals = []
        with monkeypatch.context() as patched:
            forbid_transfers(patched)
            patched.setattr(programs, "copied", lambda view: np.array(view) if view.size == 1 else None)
            for step in range(12):
                binding.bind_ortvalue_input("past", value)
                binding.bind_cpu_input("row", np.full((1, 64), step, np.float32))
                session.run_with_iobinding(binding)
                value, found = binding.get_outputs()
                totals.append(float(found.numpy()))
        assert totals == [64.0 * (3000 + step * (step + 1) // 2) for step in range(12)]
        assert value.shape() == [3012, 64] and (value.numpy()[-1] == 11).all()
