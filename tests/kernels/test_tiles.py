"""Every tile (that 32 KiB of shared memory hold) and split of products; software devices choose few."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tests.vulkan_cases import Cases, Fixed
from vkml.kernels import gemm


@pytest.fixture
def lavapipe(vulkan_device_name: str) -> str:
    from vkml import vulkan

    info = vulkan.find_device(vulkan_device_name, True)
    if "SwiftShader" in info.title:
        pytest.skip("SwiftShader compiles wide tiles for minutes")
    return vulkan_device_name


@pytest.fixture
def forced() -> Iterator[None]:
    yield
    gemm.forced = None


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize(
    "tile",
    [tile for tile in gemm.TILES if tile.shared_bytes(4) <= 32768],
    ids=lambda tile: f"{tile.m}x{tile.n}x{tile.k}",
)
def test_tile(lavapipe: str, forced: None, tile: gemm.Tile, splits: int) -> None:
    gemm.forced = (tile, splits)
    generator = np.random.default_rng(tile.m * 1000 + tile.n + splits)

    def normal(*shape: int) -> np.ndarray:
        return generator.standard_normal(shape).astype(np.float32)

    cases = Cases(seed=1)
    # Sums of up to 288 products of magnitude 10 and below, in another order than NumPy's: 5e-5 is 4 units
    # in the last place of their partial sums.
    cases.add("MatMul", normal(70, 132), normal(132, 68), atol=5e-5)  # read in vectors
    cases.add(
        "Conv", normal(2, 32, 9, 7), Fixed(normal(40, 32, 3, 3)), pads=(1, 1, 1, 1), atol=5e-5
    )  # windows
    cases.check(lavapipe)
