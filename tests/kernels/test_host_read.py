"""The kernel that copies arrays of the host, from wherever they begin."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from vkml.cpu.mapping import map_memory
from vkml.engine.compilation import compile_kernels
from vkml.engine.devices import open_device
from vkml.kernels.host_read import SOURCE_BYTES, read_kernel, read_launch, read_source
from vkml.vulkan import Device, Memory, MemoryKind, Pipeline, find_device

Array = np.ndarray[Any, Any]
PAGES = 16 * 4096
FILLED = 0xA5


@pytest.fixture
def device(vulkan_device_name: str) -> Device:
    found = open_device(find_device(vulkan_device_name, True))
    if not found.imports_host:
        pytest.skip("the device imports no memory of the host")
    return found


@pytest.fixture
def memories(device: Device) -> Iterator[tuple[Array, Memory, Memory, Memory]]:
    """Pages of the host, these on the device, memory for the source, and for the target."""
    host = np.frombuffer(map_memory(PAGES), np.uint8)
    host[:] = np.random.default_rng(0).integers(0, 255, PAGES)
    imported = device.import_host(host, "pages")
    source = device.allocate(SOURCE_BYTES, MemoryKind.DEVICE, "source")
    target = device.allocate(PAGES, MemoryKind.DEVICE, "target")
    yield host, imported, source, target
    for memory in (imported, source, target):
        memory.free()


@pytest.mark.parametrize("vectors", [1, 2, 8])
@pytest.mark.parametrize("most", [65535, 7])
def test_every_place_and_size(
    device: Device, memories: tuple[Array, Memory, Memory, Memory], vectors: int, most: int
) -> None:
    host, imported, source, target = memories
    taken: list[Pipeline] = []
    kernel = read_kernel(vectors)
    pipeline = compile_kernels(device, [kernel], taken)[id(kernel)]
    rng = np.random.default_rng(vectors)
    cases = [(start, size) for start in (0, 1, 3, 4, 16, 127, 130) for size in (1, 15, 16, 17, 4097)]
    cases += [(int(start), PAGES - int(start)) for start in rng.integers(0, 400, 8)]  # to the last page's end
    for start, size in cases:
        device.upload(target, 0, np.full(PAGES, FILLED, np.uint8))
        device.upload(source, 0, read_source(imported.address + start))
        recorder = device.recorder("read")
        push, grid = read_launch(source.address, target.address, size, most, vectors)
        assert max(grid) <= most
        recorder.dispatch(pipeline, push, *grid)
        recorder.barrier()
        commands = recorder.finish()
        submission = device.submission(commands)
        submission.run()
        submission.free()
        commands.free()
        found = device.download(target)
        np.testing.assert_array_equal(found[:size], host[start : start + size], f"{start}, {size}")
        padded = -(-size // 16) * 16
        assert (found[padded:] == FILLED).all(), "beyond the padding"
    device.release_all(taken)
