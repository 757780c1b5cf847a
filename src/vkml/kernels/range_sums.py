"""What it takes to add up ranges of K: by a second launch, or by the workgroup that comes last to a tile."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from vkml.ir.size import is_multiple, typical

if TYPE_CHECKING:
    from vkml.kernels.gemm import Product
    from vkml.lowering.target import Target

JOIN_NEEDS = ("vulkan_memory_model", "vulkan_memory_model_device_scope")
"""What a device must have for workgroups to see what others have written while these run."""
RANGES_AT_ONCE = 8
"""Ranges of K whose sums are loaded together, at most."""

LAUNCH = 3.1
"""Microseconds of a second launch, its barrier included,"""
LAUNCH_RATE = 1.85e6
"""and the sums that it reads or writes in one (H200)."""
JOIN = 2.0
"""Microseconds until a workgroup knows that it comes last, and is done,"""
STEP = 0.2
"""and those of each time that a thread waits for sums (a line through what 24 tiles and ranges took)."""

forced: bool | None = None
"""For tests and tuning runs: whether the workgroup that comes last joins ranges, where the device can."""


def joins(
    target: Target,
    product: Product,
    splits: int,
    tile: tuple[int, int],
    threads: int,
    *,
    is_measured: bool = True,
) -> bool:
    """Whether the workgroup that comes last to a tile adds up its ranges of K, and no second launch does.

    Args:
        target: the device.
        product: its sizes.
        splits: ranges of K.
        tile: rows and columns of results that a workgroup has,
        threads: and its threads.
        is_measured: whether a GPU was faster so with kernels of this kind; others join where that is forced.
    """
    if not target.capabilities.issuperset(JOIN_NEEDS):
        return False
    if forced is not None:
        return forced
    return is_measured and _joined(product, splits, tile, threads) < _launched(product, splits)


def microseconds(
    target: Target,
    product: Product,
    splits: int,
    tile: tuple[int, int],
    threads: int,
    *,
    is_measured: bool = True,
) -> float:
    """That adding up takes, whichever way it goes; arguments are those of `joins`."""
    if splits < 2:
        return 0.0
    launched = _launched(product, splits)
    if not (is_measured and target.capabilities.issuperset(JOIN_NEEDS)):
        return launched
    return min(launched, _joined(product, splits, tile, threads))


def neighbours(product: Product, tile: tuple[int, int]) -> int:
    """How many neighbours of a row are loaded and stored at once by who comes last."""
    last = product.space[-1] if product.space else product.n
    is_whole = all(is_multiple(size, 4) for size in (product.n, last, tile[1]))
    return 4 if is_whole and product.accumulator.itemsize <= 4 else 1


def at_once(splits: int) -> int:
    """Ranges whose sums are under way together."""
    return math.ceil(splits / math.ceil(splits / RANGES_AT_ONCE))


def _launched(product: Product, splits: int) -> float:
    results = typical(product.batch * product.m * product.n)
    return LAUNCH + results * (splits + 1) / LAUNCH_RATE


def _joined(product: Product, splits: int, tile: tuple[int, int], threads: int) -> float:
    items = math.ceil(tile[0] * tile[1] / (neighbours(product, tile) * threads))
    return JOIN + STEP * items * math.ceil(splits / RANGES_AT_ONCE)
