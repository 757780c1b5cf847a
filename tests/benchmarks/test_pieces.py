"""The benchmark of products in pieces times the kernel that it says it does."""

from __future__ import annotations

import pytest

from benchmarks.pieces import prepared, tiles_of
from vkml import vulkan
from vkml.engine.devices import fragments_of
from vkml.kernels.matrix_tiles import Tile


def test_a_tile_and_ordinary_arithmetic(vulkan_device_name: str) -> None:
    fragments = fragments_of(vulkan.find_device(vulkan_device_name, True))
    if not fragments:
        pytest.skip("no fp16 matrix units on this device")
    assert tiles_of(vulkan_device_name)
    tile = Tile(max(16, fragments[0].m), 16, 2, 1, 32, 1, 1.0, 0.5, 2)
    size = 40, 24, 200
    for chosen, splits, kernels in (
        (tile, 1, ["split_rows", "column_magnitudes", "pack_weights", "matmul"]),
        (tile, 2, ["split_rows", "column_magnitudes", "pack_weights", "matmul", "add_partials"]),
        (None, 1, ["matmul"]),
    ):
        product = prepared(vulkan_device_name, chosen, size, splits)
        with product.session:
            assert product.error < 1e-6
            assert [dispatch.kernel.label for dispatch in product.bound.program.dispatches] == kernels
            found, before = product.microseconds()
            assert found > 0 and (before > 0) == (chosen is not None)
