"""Tiles of products on matrix units, whatever these multiply, and the choice among them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

from vkml.dataclasses import dataclass
from vkml.ir.size import typical
from vkml.kernels import range_sums

if TYPE_CHECKING:
    from vkml.kernels.gemm import Product
    from vkml.kernels.packed_weights import Fragment
    from vkml.lowering.target import Target

CYCLES = 1755
"""That an H200's processors do in a microsecond."""
START = 1500
"""Cycles in which a workgroup begins and ends."""
SHARED = 49152
"""Bytes of shared memory that the workgroups of a multiprocessor have together (H200)."""
REGISTERS = 65536
"""Of a multiprocessor."""
RANGES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
"""Numbers of ranges of K that are considered."""


@dataclass(frozen=True)
class UnitTile:
    """How a workgroup shares its tile of results among subgroups."""

    m: int
    n: int
    k: int
    sub_m: int
    """Rows of results that a subgroup owns,"""
    sub_n: int
    """and columns."""

    @property
    def subgroups(self) -> int:
        return self.m // self.sub_m * self.n // self.sub_n

    def threads(self, fragment: Fragment) -> int:
        return self.subgroups * fragment.lanes

    def comes_out_even(self, fragment: Fragment, steps: int, width: int, target: Target) -> bool:
        """Whether loops over fragments of `steps` of k, and loads of `width` elements a thread, do."""
        loaded = width * self.threads(fragment)
        return (
            self.sub_m % fragment.m == 0
            and self.sub_n % fragment.n == 0
            and self.k % steps == 0
            and self.m * self.k % loaded == 0
            and self.n * self.k % loaded == 0
            and self.threads(fragment) <= target.max_invocations
        )

    def numbers(self, fragment: Fragment) -> dict[str, int]:
        """What the kernels' texts call the fragment and a subgroup's share."""
        return {
            "FRAGMENT_M": fragment.m,
            "FRAGMENT_N": fragment.n,
            "FRAGMENT_K": fragment.k,
            "LANES": fragment.lanes,
            "SUB_M": self.sub_m,
            "SUB_N": self.sub_n,
        }


Chosen = TypeVar("Chosen", bound=UnitTile)


@dataclass(frozen=True)
class Choice(Generic[Chosen]):
    """A tile, a number of ranges of K, and the cycles that are expected, with what adds up the ranges."""

    tile: Chosen
    splits: int
    cycles: float


def resident_groups(threads: int, shared_bytes: int, registers: int = 255) -> int:
    """Workgroups of lanes of so many registers that a multiprocessor holds at a time."""
    return max(1, min(REGISTERS // (registers * threads), SHARED // shared_bytes))


def in_waves(target: Target, groups: int, resident: int, work: float, alone: float) -> float:
    """Cycles of workgroups in waves of as many as fit on all multiprocessors; the last wave is sparse.

    Args:
        target: the device.
        groups: how many there are.
        resident: of these on a multiprocessor; see `resident_groups`.
        work: cycles that these take together.
        alone: the share of a multiprocessor's speed that is left with one of them.
    """
    waves, rest = divmod(groups, target.processors * resident)
    cycles = waves * (work + START)
    if rest:
        share = math.ceil(rest / target.processors) / resident
        cycles += max(share, min(1.0, 1 / (resident * alone))) * work + START
    return cycles


def estimates(
    target: Target,
    product: Product,
    tiles: Iterable[Chosen],
    ranges: Sequence[int],
    least: int,
    lanes: int,
    cycles: Callable[[Chosen, int, int], float],
) -> list[Choice[Chosen]]:
    """All tiles and numbers of ranges of K with the time that is estimated for each.

    Args:
        target: the device.
        product: its sizes.
        tiles: those that fit.
        ranges: numbers of ranges to consider, from 1 on.
        least: steps of k that a range has at the least.
        lanes: of a subgroup.
        cycles: of a tile, so many workgroups and so many steps of k.
    """
    batch, m, n, k = (typical(size) for size in (product.batch, product.m, product.n, product.k))
    found: list[Choice[Chosen]] = []
    for tile in tiles:
        groups = math.ceil(m / tile.m) * math.ceil(n / tile.n) * batch
        for splits in ranges:
            if splits > 1 and k < least * splits:
                break
            expected = cycles(tile, groups * splits, math.ceil(k / splits))
            threads = tile.subgroups * lanes
            adding = range_sums.microseconds(
                target, product, splits, (tile.m, tile.n), threads, is_measured=False
            )
            expected += CYCLES * adding
            found.append(Choice(tile, splits, expected))
    return found


def cheapest(choices: Iterable[Choice[Chosen]]) -> Choice[Chosen] | None:
    """The one with the least estimated time; None where there is none."""
    return min(choices, key=lambda choice: choice.cycles, default=None)
