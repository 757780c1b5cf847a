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
"""Ranges of K whose sums are loaded together, at most,"""
LOADS_AT_ONCE = 16, 32
"""and loads, of four neighbours and of one, that a thread has under way for several results."""

LAUNCH = 3.1
"""Microseconds of a second launch, its barrier included,"""
LAUNCH_RATE = 1.85e6
"""and the sums that it reads or writes in one (H200)."""
JOIN = 1.9
"""Microseconds until a workgroup knows that it comes last (H200),"""
LATENCY = 0.3
"""until what a thread then has asked for has come,"""
JOIN_RATE = 2.0e4
"""and the sums of a tile that come in one."""

forced: bool | None = None
"""For tests and tuning runs: whether the workgroup that comes last joins ranges, where the device can."""


def joins(target: Target, product: Product, splits: int, tile: tuple[int, int], threads: int) -> bool:
    """Whether the workgroup that comes last to a tile adds up its ranges of K, and no second launch does.

    Args:
        target: the device.
        product: its sizes.
        splits: ranges of K.
        tile: rows and columns of results that a workgroup has,
        threads: and its threads.
    """
    if not target.capabilities.issuperset(JOIN_NEEDS):
        return False
    if forced is not None:
        return forced
    return _joined(product, splits, tile, threads) < _launched(product, splits)


def microseconds(target: Target, product: Product, splits: int, tile: tuple[int, int], threads: int) -> float:
    """That adding up takes, whichever way it goes; arguments are those of `joins`."""
    if splits < 2:
        return 0.0
    launched = _launched(product, splits)
    if not target.capabilities.issuperset(JOIN_NEEDS):
        return launched
    return min(launched, _joined(product, splits, tile, threads))


def neighbours(product: Product, tile: tuple[int, int]) -> int:
    """How many neighbours of a row are loaded and stored at once by who comes last."""
    last = product.space[-1] if product.space else product.n
    is_whole = all(is_multiple(size, 4) for size in (product.n, last, tile[1]))
    return 4 if is_whole and product.accumulator.storage.itemsize <= 4 else 1


def together(splits: int, width: int, items: int) -> tuple[int, int]:
    """Results of a thread, and ranges of each, whose sums are under way together.

    Args:
        splits: ranges of K.
        width: neighbours of a load.
        items: such loads that a thread has of a range.
    """
    ranges = math.ceil(splits / math.ceil(splits / RANGES_AT_ONCE))
    return max(1, min(items, LOADS_AT_ONCE[width == 1] // ranges)), ranges


def items_of(tile: tuple[int, int], threads: int, width: int) -> int:
    """Loads of so many neighbours that a thread has of a tile's sums of a range."""
    return math.ceil(tile[0] * tile[1] / (width * threads))


def _launched(product: Product, splits: int) -> float:
    results = typical(product.batch * product.m * product.n)
    return LAUNCH + results * (splits + 1) / LAUNCH_RATE


def _joined(product: Product, splits: int, tile: tuple[int, int], threads: int) -> float:
    width = neighbours(product, tile)
    items = items_of(tile, threads, width)
    at_once, ranges = together(splits, width, items)
    steps = math.ceil(items / at_once) * math.ceil(splits / ranges)
    return JOIN + steps * LATENCY + tile[0] * tile[1] * splits / JOIN_RATE
