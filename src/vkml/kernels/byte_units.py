"""Products of 8-bit integers on matrix units: tiles, and when that is faster."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from vkml.dataclasses import dataclass
from vkml.kernels.packed_weights import MATRIX_UNIT_NEEDS, Fragment
from vkml.kernels.unit_tiles import Choice, UnitTile, cheapest, estimates, in_waves, resident_groups
from vkml.kernels.writer import WORD

if TYPE_CHECKING:
    from vkml.kernels.gemm import Product
    from vkml.lowering.target import Target

NEEDS = (*MATRIX_UNIT_NEEDS, "int8")
FORMS = ("words", "lines", "blocks", "windows")
"""How operands are read: see byte_units.slang."""
STORE = 0.2
"""Cycles that a multiprocessor takes to store a result."""


@dataclass(frozen=True)
class Tile(UnitTile):
    """One of products of bytes; `k` counts words of four."""

    registers: int = 255
    """That a lane takes (H200)."""
    rate: float = 300.0
    """Words that a multiprocessor multiplies in a cycle when it holds all workgroups that fit."""
    alone: float = 1.0
    """The share of that with one workgroup."""
    stages: int = 1
    """Tiles of each operand in shared memory."""

    def shared_bytes(self, fragment: Fragment) -> int:
        """As byte_units.slang counts them."""
        operands = self.stages * (self.m + self.n) * (self.k + 4)
        return 4 * max(operands, self.subgroups * fragment.m * (self.sub_n + 4))

    def takes_lines(self, fragment: Fragment) -> bool:
        """Whether loads of 16 bytes of both operands, in lines or blocks, come out even."""
        loaded = WORD * self.threads(fragment)
        return (
            self.k in (4, 8, 16, 32)
            and self.m * self.k % loaded == 0
            and self.n * self.k % loaded == 0
            and self.m % 8 == 0
            and self.n % 8 == 0
        )

    def fits(self, fragment: Fragment, target: Target) -> bool:
        """Whether the kernel's loops come out even with this fragment, and the device has room."""
        return (
            fragment.k % WORD == 0
            and self.comes_out_even(fragment, fragment.k // WORD, 1, target)
            and self.takes_lines(fragment)
            and self.shared_bytes(fragment) <= target.shared_bytes
        )

    def label(self) -> str:
        size = f"{self.m}x{self.n}x{WORD * self.k}"
        stages = ", two stages" if self.stages == 2 else ""
        return f"matrix units, int8, {size} tile, {self.sub_m}x{self.sub_n} a subgroup{stages}"

    def text(
        self,
        fragment: Fragment,
        signs: tuple[bool, bool],
        forms: tuple[str, str],
        widths: tuple[int, int],
        along_k: tuple[bool, bool],
    ) -> str:
        """What byte_units.slang wants to know of it.

        Args:
            fragment: the device's.
            signs: of the operands' bytes.
            forms: how each is read,
            widths: words that are fetched at once of each,
            along_k: and whether they lie so.
        """
        loads = self.n * self.k // (widths[1] * self.threads(fragment))
        has_fours = widths[1] == 4 if along_k[1] else loads % 4 == 0
        is_stored_so = along_k[0] and widths[0] == 4 and has_fours
        lines = [f"static const int {name} = {value};" for name, value in self.numbers(fragment).items()]
        # Fragments begin at words of shared memory.
        stored = math.gcd(fragment.k // WORD, 4) if is_stored_so else 1
        lines.append(f"#define STORED {stored}\n#define OF_FOUR_STEPS {int(not along_k[1])}")
        lines.append(f"#define FIRST_WORD room[0]{'.x' if stored > 1 else ''}")
        lines.append(f"#define STAGES {self.stages}")
        lines.append("".join(f"#define {form.upper()} {number}\n" for number, form in enumerate(FORMS)))
        for letter, is_signed, form in zip("AB", signs, forms, strict=True):
            lines.append(f"static const int FLIP_{letter} = int({'0u' if is_signed else '0x80808080u'});")
            lines.append(f"#define {letter}_FORM {form.upper()}")
        return "\n".join(lines)


TILES = (
    Tile(128, 128, 32, 64, 64, 255, 381, 1.0),
    Tile(128, 128, 16, 64, 64, 242, 346, 0.75),
    Tile(128, 64, 16, 64, 32, 165, 225, 0.75),
    Tile(64, 64, 32, 32, 32, 128, 220, 0.65),
    Tile(64, 64, 16, 32, 32, 101, 175, 0.60),
    Tile(32, 64, 32, 16, 32, 96, 160, 0.60),
    Tile(32, 64, 16, 16, 32, 70, 180, 0.35),
    Tile(32, 32, 32, 16, 16, 80, 130, 0.40),
)
"""The rule gives what they take within 30 %, and what it picks takes 14 % more than the fastest at the most,
in products and convolutions of 10^8 to 5 · 10^11 products of bytes (H200)."""
RANGES = (1, 2, 3, 4, 6, 8, 12, 16)

forced: tuple[Tile, int] | None = None
"""For tests and tuning runs: the tile and ranges of K of every product that can be computed so at all."""


def choose(target: Target, product: Product) -> Choice[Tile] | None:
    """The tile and number of ranges of K with the least estimated time; None where no units are for it."""
    return cheapest(choices(target, product))


def choices(target: Target, product: Product) -> list[Choice[Tile]]:
    """All tiles and numbers of ranges of K that there are for a product.

    One operand at the most is unsigned, for then the other one's sums are enough to tell what is missing.
    """
    fragment = target.byte_fragment
    if (
        fragment is None
        or product.signs is None
        or not any(product.signs)
        or set(NEEDS) - target.capabilities
    ):
        return []
    if forced is not None:
        return [Choice(*forced, 0.0)] if forced[0].fits(fragment, target) else []
    if target.processors == 1:
        return []  # software drivers compile fragments for minutes
    tiles = [tile for tile in TILES if tile.fits(fragment, target)]

    def cycles(tile: Tile, groups: int, k: int) -> float:
        resident = resident_groups(tile.threads(fragment), tile.shared_bytes(fragment), tile.registers)
        work = resident * tile.m * tile.n * (k / tile.rate + STORE)
        return in_waves(target, groups, resident, work, tile.alone)

    return estimates(target, product, tiles, RANGES, 64, fragment.lanes, cycles)
