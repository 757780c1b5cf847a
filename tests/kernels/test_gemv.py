"""Products of few rows with the launches that GPUs of many processors get; software devices choose others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import vkml.engine.devices
from tests.kernels.test_tiles import lavapipe
from tests.vulkan_cases import Cases
from vkml.kernels import gemv
from vkml.lowering.target import Target
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


def test_ranges_of_k(lavapipe: str, monkeypatch: pytest.MonkeyPatch, processors: int) -> None:
    """A matrix of few columns and many rows is read by several workgroups a column."""
    monkeypatch.setattr(gemv, "SPLIT_BYTES", 1 << 12)
    generator = np.random.default_rng(0)
    cases = Cases(seed=1)
    for k in (4096, 4095, 9001):
        a, b = (generator.standard_normal(shape).astype(np.float32) for shape in ((2, k), (k, 8)))
        cases.add("MatMul", a, b, atol=1e-3)
    cases.check(lavapipe)
