"""Products of 8-bit integers on matrix units: tiles, and when that is faster."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vkml.ir.size import typical
from vkml.kernels.packed_weights import MATRIX_UNIT_NEEDS, Fragment
from vkml.kernels.writer import WORD

if TYPE_CHECKING:
    from vkml.kernels.gemm import Product
    from vkml.lowering.target import Target

NEEDS = (*MATRIX_UNIT_NEEDS, "int8")


@dataclass(frozen=True)
class Tile:
    """How a workgroup computes its tile of results; `k` counts words of four bytes."""

    m: int
    n: int
    k: int
    sub_m: int
    """Rows of results that a subgroup owns,"""
    sub_n: int
    """and columns."""
    rate: float = 200.0
    """Words that a multiprocessor multiplies in a cycle: an estimate, by the share that bfloat16 reaches."""

    @property
    def subgroups(self) -> int:
        return self.m // self.sub_m * self.n // self.sub_n

    def threads(self, fragment: Fragment) -> int:
        return self.subgroups * fragment.lanes

    def shared_bytes(self, fragment: Fragment) -> int:
        """As byte_units.slang counts them."""
        words = fragment.k // WORD
        operands = self.k // words * (self.m + self.n) * (4 if words < 4 else words + 4)
        return 4 * max(operands, self.subgroups * fragment.m * (self.sub_n + 4))

    def fits(self, fragment: Fragment, target: Target) -> bool:
        """Whether the kernel's loops come out even with this fragment, and the device has room."""
        return (
            self.sub_m % fragment.m == 0
            and self.sub_n % fragment.n == 0
            and WORD * self.k % fragment.k == 0
            and self.m * self.k % self.threads(fragment) == 0
            and self.n * self.k % self.threads(fragment) == 0
            and self.threads(fragment) <= target.max_invocations
            and self.shared_bytes(fragment) <= target.shared_bytes
        )

    def label(self) -> str:
        size = f"{self.m}x{self.n}x{WORD * self.k}"
        return f"matrix units, int8, {size} tile, {self.sub_m}x{self.sub_n} a subgroup"

    def text(self, fragment: Fragment, signs: tuple[bool, bool]) -> str:
        """What byte_units.slang wants to know of it; `signs` are those of the operands' bytes."""
        numbers = {
            "FRAGMENT_M": fragment.m,
            "FRAGMENT_N": fragment.n,
            "FRAGMENT_K": fragment.k,
            "LANES": fragment.lanes,
            "SUB_M": self.sub_m,
            "SUB_N": self.sub_n,
        }
        lines = [f"static const int {name} = {value};" for name, value in numbers.items()]
        for letter, is_signed in zip("AB", signs, strict=True):
            lines.append(f"static const int FLIP_{letter} = int({'0u' if is_signed else '0x80808080u'});")
        return "\n".join(lines)


TILES = (
    Tile(128, 128, 16, 64, 32),
    Tile(64, 128, 16, 32, 64),
    Tile(128, 64, 16, 64, 32),
    Tile(64, 64, 16, 32, 32),
    Tile(32, 64, 16, 16, 32, 120.0),
)
START = 1500
"""Cycles in which a workgroup begins and ends."""

offered = False
"""Whether `choose` offers units on GPUs: they have not been run on one yet, only on lavapipe; fragment loads
that do not suit a driver may hang it."""

forced: tuple[Tile, int] | None = None
"""For tests and tuning runs: the tile and ranges of K of every product that can be computed so at all."""


@dataclass(frozen=True)
class Choice:
    """A tile, a number of ranges of K, and the cycles that are expected, a second pass included."""

    tile: Tile
    splits: int
    cycles: float


def choose(target: Target, product: Product) -> Choice | None:
    """The tile and number of ranges of K with the least estimated time; None where no units are for it.

    One operand at the most is unsigned, for then the other one's sums are enough to tell what is missing.
    """
    fragment = target.byte_fragment
    if (
        fragment is None
        or product.signs is None
        or not any(product.signs)
        or set(NEEDS) - target.capabilities
    ):
        return None
    if forced is not None:
        return Choice(*forced, 0.0)
    if not offered or target.processors == 1:
        return None  # software drivers compile fragments for minutes
    batch, m, n, k = (typical(size) for size in (product.batch, product.m, product.n, product.k))
    best: Choice | None = None
    for tile in TILES:
        if not tile.fits(fragment, target):
            continue
        tiles = math.ceil(m / tile.m) * math.ceil(n / tile.n) * batch
        for splits in (1, 2, 3, 4, 6, 8, 12, 16):
            if splits > 1 and k < 64 * splits:
                break
            waves = math.ceil(tiles * splits / target.processors)
            cycles = waves * (math.ceil(k / splits) * tile.m * tile.n / tile.rate + START)
            if splits > 1:
                cycles += 5500 + batch * m * n * (splits + 1) / target.processors / 8
            if best is None or cycles < best.cycles:
                best = Choice(tile, splits, cycles)
    return best
