"""Memory of large results, which is used again, and copies by several threads."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import vkml
import vkml.onnx
from vkml.cpu import copying
from vkml.cpu.copying import copy
from vkml.engine import host_memory
from vkml.engine.devices import open_device
from vkml.engine.fetching import Fetching
from vkml.engine.host_memory import LARGE_BYTES, copied, empty
from vkml.engine.sketch import Sketch
from vkml.vulkan import Device

Array = np.ndarray[Any, Any]
LARGE = (3, 2_000_003)
"""Shape of several parts that threads copy, the last one shorter than others."""


def numbers(shape: tuple[int, ...], dtype: Any = np.float32) -> Array:
    return np.random.default_rng(0).integers(0, 255, shape).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.float64, np.bool_])
@pytest.mark.parametrize("shape", [(), (5,), (0, 3), (1 << 19,), LARGE])
def test_copies(shape: tuple[int, ...], dtype: Any) -> None:
    source = numbers(shape, dtype)
    found = copied(source)
    assert (found.shape, found.dtype, found.flags.writeable) == (source.shape, source.dtype, True)
    np.testing.assert_array_equal(found, source)
    assert not np.shares_memory(found, source)


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_several_threads_copy_all_of_it(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "available_processors", lambda: threads)
    source = numbers(LARGE)
    for _ in range(20):
        target = np.full(LARGE, np.nan, np.float32)
        copy(target, source)
        np.testing.assert_array_equal(target, source)


def test_other_orders_and_types_are_converted() -> None:
    source = numbers((1500, 1500))
    for given in (source.T, source.astype(np.float64), source[::-1], source.astype(">f4")):
        target = np.zeros((1500, 1500), np.float32)
        copy(target, given)
        np.testing.assert_array_equal(target, given)


def test_memory_is_used_again_when_the_last_view_has_gone() -> None:
    shape = (LARGE_BYTES // 2,)
    first = empty(shape, np.dtype(np.float32))
    at = first.ctypes.data
    part = first[10:20]
    del first
    gc.collect()
    second = empty(shape, np.dtype(np.float32))
    assert second.ctypes.data != at  # somebody looks at a part of it still
    part[:] = 1
    del part
    gc.collect()
    assert empty(shape, np.dtype(np.float32)).ctypes.data == at


def test_no_more_is_kept_than_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "_KEPT_BYTES", 9 << 20)
    arrays = [empty((4 << 20,), np.dtype(np.uint8)) for _ in range(5)]
    arrays.clear()
    gc.collect()
    assert sum(block.bytes.size for block in host_memory._unused) <= 9 << 20


def test_memory_of_sizes_that_come_no_more_is_given_back() -> None:
    gc.collect()
    host_memory._unused.clear()
    for part in range(1, 13):  # as results of a text that grows: each size for a while
        for _ in range(30):
            array = empty((part << 22,), np.dtype(np.uint8))
            del array
        kept = sorted(block.bytes.size >> 22 for block in host_memory._unused)
        assert kept == list(range(max(1, part - 3), part + 1)), kept


def test_an_interrupt_leaves_nobody_writing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller's share fails in the middle; when `copy` has raised, the memory is the caller's again."""
    monkeypatch.setattr(copying, "available_processors", lambda: 4)
    source, target = np.ones(LARGE, np.float32), np.zeros(LARGE, np.float32)

    class Failing:
        """Parts of which the calling thread gets none."""

        def __init__(self, given: Any) -> None:
            self.parts = list(given)

        def popleft(self) -> int:
            import threading

            if threading.current_thread() is threading.main_thread():
                raise KeyboardInterrupt
            if not self.parts:
                raise IndexError
            return int(self.parts.pop(0))

        def clear(self) -> None:
            self.parts.clear()

        def __bool__(self) -> bool:
            return True

    real = copying.deque
    monkeypatch.setattr(copying, "deque", lambda *given: Failing(*given) if given else real())
    for _ in range(20):
        with pytest.raises(KeyboardInterrupt):
            copy(target, source)
        target[:] = 2
        assert (target == 2).all()


def double() -> bytes:
    sketch = Sketch("double", 17)
    x = sketch.input("x", ("n", 1024))
    return vkml.onnx.save_graph(sketch.finish(sketch.node("Add", x, x)))


@pytest.fixture
def importing(vulkan_device_name: str) -> Device:
    """A device that copies into the host's memory, none of which lies about unused."""
    [info] = [info for info in vkml.devices(True) if info.name == vulkan_device_name]
    device = open_device(info)
    if not device.imports_host:
        pytest.skip("the device imports no memory of the host")
    gc.collect()
    host_memory._unused.clear()
    return device


@pytest.mark.parametrize("imports", [True, False])
def test_large_results_of_a_session_are_the_callers(
    vulkan_device_name: str, imports: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not imports:  # as where the driver refuses this memory
        monkeypatch.setattr(host_memory.Block, "on", lambda *_: None)
    with vkml.InferenceSession(double(), devices=vulkan_device_name) as session:
        feeds = [numbers((1500, 1024)) + number for number in range(3)]
        kept = [session.run(None, {"x": feed})[0] for feed in feeds]
        for feed, found in zip(feeds, kept, strict=True):
            np.testing.assert_array_equal(found, 2 * feed)
            found[:] = 0
    np.testing.assert_array_equal(kept[0], 0)


def test_devices_copy_into_results_themselves(
    vulkan_device_name: str, importing: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> Any:
        pytest.fail("the host copies")

    with vkml.InferenceSession(double(), devices=vulkan_device_name) as session:
        monkeypatch.setattr("vkml.engine.programs.copied", fails)
        monkeypatch.setattr(Device, "download", fails)
        for rows in (1500, 1500, 700, 1600):
            x = numbers((rows, 1024))
            np.testing.assert_array_equal(session.run(None, {"x": x})[0], 2 * x)


def test_memory_that_results_have_left_is_the_systems_again(
    vulkan_device_name: str, importing: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    device, x = importing, numbers((1500, 1024))
    with vkml.InferenceSession(double(), devices=vulkan_device_name) as session:
        session.run(None, {"x": x})
        gc.collect()
        before = device.live_allocations
        kept = [session.run(None, {"x": x})[0] for _ in range(4)]
        assert device.live_allocations == before + 3
        monkeypatch.setattr(host_memory, "_KEPT_BYTES", 0)
        del kept
        gc.collect()
        assert device.live_allocations == before - 1 and not host_memory._unused


def test_after_a_fork_devices_learn_anew_where_memory_is(vulkan_device_name: str, importing: Device) -> None:
    device, x = importing, numbers((1500, 1024))
    with vkml.InferenceSession(double(), devices=vulkan_device_name) as session:
        found = session.run(None, {"x": x})[0]
        at = found.ctypes.data
        del found
        gc.collect()
        [block] = [block for block in host_memory._unused if block.bytes.ctypes.data == at]
        known = block.on(device)
        assert block.on(device) is known
        host_memory._note_fork()
        found = session.run(None, {"x": x})[0]
        assert found.ctypes.data == at and block.on(device) is not known
        np.testing.assert_array_equal(found, 2 * x)


def test_an_interrupted_run_leaves_no_device_writing(
    vulkan_device_name: str, importing: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while results are copied: their memory is given back only when they have been."""
    x = numbers((1500, 1024))
    with vkml.InferenceSession(double(), devices=vulkan_device_name) as session:
        session.run(None, {"x": x})
        real, settled = Fetching.settle, []

        def interrupted(self: Fetching) -> None:
            raise KeyboardInterrupt

        def noting(self: Fetching) -> None:
            settled.append(len(self._written))
            real(self)

        with monkeypatch.context() as patched:
            patched.setattr(Fetching, "finish", interrupted)
            patched.setattr(Fetching, "settle", noting)
            with pytest.raises(KeyboardInterrupt):
                session.run(None, {"x": x})
        assert settled and settled[0] == 1
        np.testing.assert_array_equal(session.run(None, {"x": x + 1})[0], 2 * (x + 1))
