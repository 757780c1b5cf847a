"""Products of float32 on matrix units of bfloat16: elements in pieces, tiles, and when that is faster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vkml.dataclasses import dataclass
from vkml.ir.dtypes import FLOAT32
from vkml.kernels.packed_weights import UNIT_NEEDS, Fragment
from vkml.kernels.unit_tiles import RANGES, Choice, UnitTile, cheapest, estimates, in_waves, resident_groups

if TYPE_CHECKING:
    from vkml.kernels.gemm import Product
    from vkml.lowering.target import Target

NEEDS = UNIT_NEEDS["bfloat16"]


@dataclass(frozen=True)
class Tile(UnitTile):
    """One of products in pieces, and what the rule knows of it."""

    pieces: int
    """Of bfloat16 that an element is the sum of: 3 hold all of its bits, 2 hold 16."""
    promoted: int
    """Steps of k after which sums leave the unit, which truncates as it adds."""
    rate: float = 100.0
    """Multiply-adds of fp32 that a multiprocessor does in a cycle when it holds all workgroups that fit."""
    alone: float = 0.6
    """The share of that with one workgroup."""

    def shared_bytes(self, fragment: Fragment) -> int:
        """As bfloat16_units.slang counts them, for operands that are packed along k."""
        operands = (self.m + self.n) * (self.pieces * self.k // 4 + 2)
        results = self.subgroups * fragment.m * (self.sub_n + 4) // 2
        return 8 * max(operands, results)

    def fits(self, fragment: Fragment, target: Target) -> bool:
        """Whether the kernel's loops come out even with this fragment, and the device has room."""
        return (
            self.comes_out_even(fragment, fragment.k, 4, target)
            and self.shared_bytes(fragment) <= target.shared_bytes
        )

    def label(self) -> str:
        return (
            f"matrix units, {self.pieces} pieces of bfloat16, {self.m}x{self.n}x{self.k} tile, "
            f"{self.sub_m}x{self.sub_n} a subgroup"
        )

    def text(self, fragment: Fragment) -> str:
        """What bfloat16_units.slang wants to know of it."""
        numbers = self.numbers(fragment) | {"PIECES": self.pieces, "PROMOTED": self.promoted}
        lines = [f"static const int {name} = {value};" for name, value in numbers.items()]
        return "\n".join([*lines, _PIECES[fragment.element]])


_PIECES = {
    "bfloat16": """typealias Piece = BFloat16;
uint cut(float x) { return (asuint(x) + 0x8000u) & 0xffff0000u; }
float whole(uint piece) { return asfloat(piece); }
uint2 packed(uint4 pieces) { return uint2(pieces.x >> 16 | pieces.y, pieces.z >> 16 | pieces.w); }""",
    # fp16 has too few exponents for it: for devices that stand for others in tests.
    "float16": """typealias Piece = half;
uint cut(float x) { return uint(asuint16(half(x))); }
float whole(uint piece) { return float(bit_cast<half>(uint16_t(piece))); }
uint2 packed(uint4 pieces) { return uint2(pieces.x | pieces.y << 16, pieces.z | pieces.w << 16); }""",
}

_NEVER = 1 << 30
TILES = (
    Tile(128, 128, 16, 64, 32, 3, 4, 82, 1.0),
    Tile(64, 128, 16, 32, 64, 3, 4, 82, 0.6),
    Tile(128, 64, 16, 64, 32, 3, 4, 82, 0.6),
    Tile(64, 64, 16, 32, 32, 3, 4, 82, 0.6),
    Tile(128, 128, 16, 64, 32, 2, _NEVER, 130, 0.6),
    Tile(64, 128, 16, 32, 64, 2, _NEVER, 130, 0.5),
    Tile(128, 64, 16, 64, 32, 2, _NEVER, 130, 0.5),
    Tile(64, 64, 32, 32, 32, 2, _NEVER, 130, 0.5),
)
"""Their rates are those of ResNet-18's and a transformer's training steps on an H200; a sweep of products
(`benchmarks.pieces`) gives 80 to 87 and 106 to 141."""

forced: tuple[Tile, int] | None = None
"""For tests and tuning runs: the tile and ranges of K of every product that can be computed so at all."""


def choose(target: Target, product: Product) -> Choice[Tile] | None:
    """The tile and number of ranges of K with the least estimated time; None where no units are for it."""
    return cheapest(choices(target, product))


def choices(target: Target, product: Product) -> list[Choice[Tile]]:
    """All tiles and numbers of ranges of K that there are for a product."""
    fragment = target.bfloat16_fragment
    if fragment is None or product.accumulator != FLOAT32 or set(NEEDS) - target.capabilities:
        return []
    if forced is not None:
        return [Choice(*forced, 0.0)] if forced[0].fits(fragment, target) else []
    pieces = 3 if target.strict_fp32 else 2
    tiles = [tile for tile in TILES if tile.pieces == pieces and tile.fits(fragment, target)]

    def cycles(tile: Tile, groups: int, k: int) -> float:
        resident = resident_groups(tile.threads(fragment), tile.shared_bytes(fragment))
        work = resident * k * tile.m * tile.n / (tile.rate * product.gathered_units)
        return in_waves(target, groups, resident, work, tile.alone)

    return estimates(target, product, tiles, RANGES, 128, fragment.lanes, cycles)
