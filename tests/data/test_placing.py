"""Batches on a device: made in its memory, with one copy, ahead of the step that uses them."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import vkml
from tests.patience import patience
from vkml.data import ArrayDataset, DataLoader, Dataset, placing
from vkml.data.placing import DIRECT_BYTES, DevicePlace, place_on
from vkml.engine.device_array import DeviceArray
from vkml.engine.ort_value import device_of
from vkml.ir.dtypes import FLOAT32
from vkml.vulkan import Device

Array = np.ndarray[Any, Any]
WIDE = DIRECT_BYTES // 16
"""Numbers of an item of which four are a batch that is written to the device."""


class Filled(Dataset[Any]):
    """Arrays that are full of their index, and that."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        return np.full(WIDE, index, np.float32), index


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Notes the ways on which batches' bytes go."""
    seen: list[str] = []

    def noting(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*arguments: Any, **named: Any) -> Any:
            seen.append(name)
            return call(*arguments, **named)

        return noted

    monkeypatch.setattr(placing, "empty", noting("host", placing.empty))
    for name in ("upload", "send", "copy"):
        monkeypatch.setattr(Device, name, noting(name, getattr(Device, name)))
    monkeypatch.setattr(DeviceArray, "mapped", noting("mapped", DeviceArray.mapped))
    return seen


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_where_they_are_wanted(device_name: str, workers: int) -> None:
    loader = DataLoader(Filled(), 4, num_workers=workers, device=device_name)
    for number, (wide, small) in enumerate(loader):
        items = np.arange(4) + 4 * number
        assert wide.device == small.device == device_name
        np.testing.assert_array_equal(wide.numpy(), np.repeat(items, WIDE).reshape(4, WIDE))
        assert small.dtype == vkml.int64 and small.tolist() == items.tolist()
    assert number == 5


@pytest.mark.parametrize("kind", ["items", "rows"])
def test_each_byte_is_copied_once(vulkan_device_name: str, writes: list[str], kind: str) -> None:
    """By the host, straight to memory that the device reads; the run finds it there."""
    array = np.arange(8 * WIDE, dtype=np.float32).reshape(8, WIDE)
    data = ArrayDataset(array, single=True) if kind == "rows" else array
    loader = DataLoader(data, 4, num_workers=2, device=vulkan_device_name)  # type: ignore[arg-type]
    total = 0.0
    for batch in loader:
        assert isinstance(batch.value.data, DeviceArray)
        total += batch.max().item()
    assert total == array[3].max() + array[7].max()
    assert writes == ["mapped"] * 2  # and nothing was uploaded, nor copied on the device


def test_small_batches_go_with_the_run(vulkan_device_name: str, writes: list[str]) -> None:
    batches = list(DataLoader(ArrayDataset(np.arange(8), single=True), 4, device=vulkan_device_name))
    assert writes == ["host", "host"]
    assert [(batch * 2).tolist() for batch in batches] == [[0, 2, 4, 6], [8, 10, 12, 14]]


def test_memory_that_the_host_cannot_write(vulkan_device_name: str) -> None:
    """Of most discrete GPUs: batches are made in memory that the device copies from."""
    device = device_of(vulkan_device_name)
    assert device is not None
    with Device(device.info, force_staging=True) as other:
        place = DevicePlace(other)
        sources = [np.random.default_rng(at).random((4, WIDE), np.float32) for at in range(3)]
        made = [place.make(array.shape, array.dtype, _writing(array)) for array in sources]
        for tensor, array in zip(made, sources, strict=True):
            assert isinstance(tensor.value.data, DeviceArray) and tensor.value.data.mapped() is None
            np.testing.assert_array_equal(tensor.value.data.numpy(), array)
        assert len(place._staging) == 1  # the same memory, turn after turn
        del made, tensor, place
        gc.collect()


def _writing(array: Array) -> Callable[[Array], None]:
    def write(target: Array) -> None:
        target[...] = array

    return write


def test_no_batch_is_written_while_it_is_used(vulkan_device_name: str) -> None:
    """What is recorded on a batch, and computed long after it, sees the batch's own elements."""
    loader = DataLoader(Filled(), 4, num_workers=2, device=vulkan_device_name)
    recorded = [(wide[:, :8].sum(1), at) for at, (wide, _) in enumerate(loader)]
    for sums, at in recorded:
        assert sums.tolist() == [8.0 * item for item in range(4 * at, 4 * at + 4)]


def test_the_next_batches_are_made_meanwhile(vulkan_device_name: str, writes: list[str]) -> None:
    """While the program has one batch, and asks for no other, two more come to lie on the device."""
    batches = iter(DataLoader(Filled(), 4, num_workers=2, device=vulkan_device_name, prefetch_factor=2))
    wide, _ = next(batches)
    deadline = time.monotonic() + patience(30)
    while writes.count("mapped") < 3:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    assert wide.value.data is not None and wide[:, 0].tolist() == [0, 1, 2, 3]
    time.sleep(0.02)
    assert writes.count("mapped") == 3  # and no more than that


def test_memory_takes_turns(vulkan_device_name: str) -> None:
    """Of an endless loop: no more than are ahead, in use, and made by then."""
    loader = DataLoader(Filled(), 4, num_workers=2, device=vulkan_device_name, prefetch_factor=2)
    places = set()
    for _ in range(3):
        for wide, _ in loader:
            places.add(wide.value.data.address)
            wide.sum().item()
            del wide
    assert len(places) <= 2 + 1 + 2 + 1


@pytest.mark.parametrize("workers", [0, 2])
def test_a_captured_step_takes_them(device_name: str, workers: int) -> None:
    weight = vkml.zeros(WIDE, device=device_name)

    @vkml.jit
    def step(wide: vkml.Tensor) -> vkml.Tensor:
        weight.add_(wide.sum(0))
        return wide.mean()

    loader = DataLoader(Filled(), 4, num_workers=workers, device=device_name)
    means = [step(wide).item() for _ in range(2) for wide, _ in loader]
    assert means == [1.5 + 4 * at for at in range(6)] * 2
    assert weight[:3].tolist() == [2 * sum(range(24))] * 3


def test_batches_that_the_program_joins(device_name: str) -> None:
    def join(items: list[Any]) -> Any:
        return {"x": vkml.tensor(np.stack([item[0] for item in items])), "n": len(items)}

    loader = DataLoader(Filled(), 4, num_workers=2, device=device_name, collate_fn=join)
    for at, batch in enumerate(loader):
        assert batch["x"].device == device_name and batch["n"] == 4
        assert batch["x"][:, 0].tolist() == [4.0 * at + item for item in range(4)]


def test_memory_of_the_host_takes_turns() -> None:
    place = place_on(None)

    def made() -> Any:
        return place.make((WIDE * 4,), FLOAT32.storage, lambda target: target.fill(1))

    first = made()
    at = first.value.data.ctypes.data
    second = made()
    assert second.value.data.ctypes.data != at
    del first
    gc.collect()
    assert made().value.data.ctypes.data == at


def test_devices_that_there_are_not() -> None:
    with pytest.raises(ValueError, match="there is no device 'nowhere'"):
        iter(DataLoader(Filled(), 4, device="nowhere"))
