"""Products of few rows with the launches that GPUs of many processors get; software devices choose others."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

import vkml.engine.devices
from tests.kernels import gpu_targets
from tests.kernels.test_tiles import lavapipe
from tests.vulkan_cases import Cases
from vkml.ir import TensorType, dtypes
from vkml.kernels import gemv, range_sums
from vkml.kernels.views import BufferKind
from vkml.lowering.target import Target
from vkml.lowering.vulkan_builder import VulkanBuilder
from vkml.vulkan import DeviceInfo

__all__ = ["lavapipe"]


@pytest.fixture(params=[132, 8], ids=lambda count: f"{count} processors")
def processors(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Of the GPU that lavapipe is taken for."""
    count: int = request.param
    real = vkml.engine.devices.target_of

    def target_of(info: DeviceInfo, precision: str = "highest") -> Target:
        return replace(real(info, precision), processors=count)

    monkeypatch.setattr(vkml.engine.devices, "target_of", target_of)
    return count


@pytest.mark.parametrize("rows", [1, 3, 4])
@pytest.mark.parametrize("is_transposed", [False, True], ids=["along n", "along k"])
def test_rows_and_ranges(lavapipe: str, processors: int, rows: int, is_transposed: bool) -> None:
    generator = np.random.default_rng(rows)
    cases = Cases(seed=1)
    for k, n in ((64, 64), (256, 256), (255, 70), (1024, 48), (700, 1030), (4096, 12)):
        a, b = (generator.standard_normal(shape).astype(np.float32) for shape in ((rows, k), (k, n)))
        if is_transposed:
            cases.add("Gemm", a, np.ascontiguousarray(b.T), transB=1, atol=2e-4)
        else:
            cases.add("MatMul", a, b, atol=2e-4)
    cases.add("MatMul", a.reshape(1, rows, k).repeat(3, 0), np.stack([b, 2 * b, -b]), atol=4e-4)
    cases.check(lavapipe)


def test_ranges_of_k(lavapipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A matrix of few columns and many rows is read by several workgroups a column."""
    monkeypatch.setattr(gemv, "forced", gemv.Shape(64, 16, 4, 5))
    generator = np.random.default_rng(0)
    cases = Cases(seed=1)
    for k in (4096, 4095, 9001):
        a, b = (generator.standard_normal(shape).astype(np.float32) for shape in ((2, k), (k, 8)))
        cases.add("MatMul", a, b, atol=1e-3)
    cases.check(lavapipe)


@pytest.mark.parametrize("shape", [gemv.Shape(256, 32, 8, 1), gemv.Shape(128, 32, 4, 2)])
def test_what_is_left_of_a_range_is_loaded_at_once(
    lavapipe: str, monkeypatch: pytest.MonkeyPatch, processors: int, shape: gemv.Shape
) -> None:
    """Ranges that end anywhere within what a thread waits for, one lane before another."""
    monkeypatch.setattr(gemv, "forced", shape)
    generator = np.random.default_rng(0)
    cases = Cases(seed=1)
    for k in (1, 31, 33, 255, 257, 500):
        a, b = (generator.standard_normal(size).astype(np.float32) for size in ((1, k), (k, 4100 // k + 40)))
        b = b[:, : b.shape[1] // 4 * 4]
        a[0, -1] = 1e30  # the last step is not added twice
        cases.add("MatMul", a, np.abs(b), atol=1e-3)
    cases.check(lavapipe)


GPU = replace(gpu_targets.GPU, capabilities=gpu_targets.GPU.capabilities | {*range_sums.JOIN_NEEDS})
SHAPES = {
    "one workgroup a processor": ((1, 4032, 4032), dtypes.FLOAT32, (1024, 128, 8, 1), 126),
    "fewer, of whole lines": ((1, 768, 3072), dtypes.FLOAT32, (1024, 128, 4, 1), 96),
    "half lines": ((1, 3072, 768), dtypes.FLOAT32, (1024, 256, 4, 1), 48),
    "long columns": ((1, 16384, 768), dtypes.FLOAT32, (1024, 128, 8, 5), 120),
    "several workgroups a processor": ((4, 4096, 11008), dtypes.FLOAT32, (256, 32, 8, 1), 344),
    "halves": ((1, 4096, 4096), dtypes.FLOAT16, (256, 16, 8, 8), 512),
    "several rows of halves": ((4, 4096, 11008), dtypes.FLOAT16, (512, 8, 4, 6), 258),
    "rows far from each other": ((1, 784, 338000), dtypes.FLOAT32, (256, 8, 4, 1), 2641),
    "few columns": ((1, 16384, 256), dtypes.FLOAT32, (1024, 256, 8, 8), 128),
}


@pytest.mark.parametrize("name", SHAPES)
def test_the_rule(name: str) -> None:
    """As an H200 has it: bytes under way on every processor, and no more ranges of K than that takes."""
    (m, k, n), dtype, shape, count = SHAPES[name]
    build = VulkanBuilder(GPU)
    a, b = (build.buffer(BufferKind.INPUT, TensorType(dtype, each)) for each in ((1, m, k), (1, k, n)))
    with build.step(TensorType(dtype, (1, m, n))):
        build.matmul(a, b)
    [launch] = build.launches
    threads, lanes, unroll, splits = shape
    columns = threads // lanes
    assert launch.kernel.variant.startswith(
        f"4 wide along n, {lanes} lanes, {columns} columns, {unroll} at once, {splits} K range"
    ), launch.kernel.variant
    assert math.prod(launch.groups) == count
