"""Products of float16 or bfloat16 on matrix units, of operands as they lie in memory: tiles and launches."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from vkml.dataclasses import dataclass
from vkml.ir import dtypes
from vkml.ir.size import Size
from vkml.ir.wording import counted
from vkml.kernels.gemm import CYCLES, LAUNCH, Product
from vkml.kernels.matrix_tiles import LEAST_FRAGMENT, LONGEST_SUM
from vkml.kernels.packed_weights import UNIT_NEEDS, Fragment
from vkml.kernels.padded_lines import can_be_padded, has_lines, is_aligned, microseconds
from vkml.kernels.results import add_partials, emit_finish
from vkml.kernels.unit_tiles import RANGES, Choice, UnitTile, cheapest, estimates, in_waves, resident_groups
from vkml.kernels.views import View
from vkml.kernels.writer import KernelWriter, template

if TYPE_CHECKING:
    from vkml.lowering.target import Target
    from vkml.lowering.vulkan_builder import VulkanBuilder

WORD = 8
"""Elements of 16 bytes, which a load fetches."""
STORE = 0.4
"""Cycles that a multiprocessor takes to store a result."""
PROMOTED = 128
"""Steps of k after which sums leave the unit at precision "highest": see split_product.py."""


@dataclass(frozen=True)
class Tile(UnitTile):
    """One of products of halves, and what the rule knows of it."""

    promoted: int
    """Blocks of k after which sums leave the unit, which truncates as it adds; 0: at the end."""
    rate: float
    """Multiply-adds that a multiprocessor does in a cycle when it holds all workgroups that fit."""
    alone: float
    """The share of that with one workgroup."""

    def shared_bytes(self, fragment: Fragment) -> int:
        """As half_product.slang counts them, whichever way lines run that take more."""

        def lines(size: int) -> int:
            return max(size * (self.k // WORD + 1), self.k * (size // WORD + 1))

        results = self.subgroups * fragment.m * (self.sub_n + 4) // 4
        return 16 * max(lines(self.m) + lines(self.n), results)

    def fits(self, fragment: Fragment, target: Target) -> bool:
        """Whether the kernel's loops come out even with this fragment, and the device has room."""
        threads = self.threads(fragment)
        return (
            self.comes_out_even(fragment, fragment.k, WORD, target)
            and all(size % WORD == 0 for size in (fragment.m, fragment.n, fragment.k))
            and all(threads % (size // WORD) == 0 for size in (self.m, self.n, self.k))
            and fragment.lanes % (self.sub_n // 4) == 0
            and self.shared_bytes(fragment) <= target.shared_bytes
        )

    def label(self) -> str:
        size = f"{self.m}x{self.n}x{self.k}"
        sums = f", sums of {self.promoted * self.k}" if self.promoted else ""
        return f"matrix units, halves, {size} tile, {self.sub_m}x{self.sub_n} a subgroup{sums}"


TILES = (
    Tile(128, 128, 32, 64, 64, 0, 720, 0.6),
    Tile(128, 128, 64, 64, 64, 0, 740, 1.0),
    Tile(128, 64, 64, 64, 32, 0, 600, 1.0),
    Tile(64, 64, 64, 32, 32, 0, 500, 0.6),
    Tile(64, 64, 32, 32, 32, 0, 380, 0.6),
    Tile(128, 64, 32, 64, 32, PROMOTED // 32, 424, 0.6),
    Tile(64, 64, 32, 32, 32, PROMOTED // 32, 330, 0.6),
)
"""Rates are those of an H200, but for blocks of 64 × 64 × 32, whose are estimates."""

forced: tuple[Tile, int] | None = None
"""For tests and tuning runs: the tile and ranges of K of every product that can be computed so at all."""


@dataclass(frozen=True)
class Lines:
    """How kernels read an operand (batch, rows, k), each line of which begins at a multiple of 16 bytes."""

    is_along_k: bool
    batch: int
    """Elements from one batch to the next,"""
    line: int
    """and from one line."""
    rows: int
    """That may be read,"""
    k: int
    """and steps of k; of both there may be more than are multiplied."""

    def define(self, writer: KernelWriter, view: View, letter: str) -> str:
        """The names that the kernel reads it by."""
        lines, length = (self.rows, self.k) if self.is_along_k else (self.k, self.rows)
        values = {"BATCH": self.batch, "LINE": self.line, "LINES": lines, "LENGTH": length}
        for name, value in values.items():
            writer.constant(value, f"{letter}_{name}")
        names = {"WORDS": writer.read_words(view, WORD), "ALONG_K": int(self.is_along_k)}
        return "\n".join(f"#define {letter}_{name} {value}" for name, value in names.items())


def is_readable(view: View) -> bool:
    """Whether kernels read (batch, rows, k), or a copy with its lines padded."""
    return has_lines(view) and (is_aligned(view) or can_be_padded(view))


def padding(view: View) -> float:
    """Microseconds of the pass that pads the lines of what `is_readable`; 0 where it is read as it lies."""
    return 0.0 if is_aligned(view) else LAUNCH + microseconds(view)


def readable(build: VulkanBuilder, view: View) -> View:
    """What `is_readable` as kernels read it: copied before where lines begin anywhere."""
    return view if is_aligned(view) else build.padded_lines(view)


def lines_of(view: View) -> Lines:
    """How what is `readable` lies."""
    batch, row, k = view.strides
    batch = 0 if view.shape[0] == 1 else batch
    return Lines(k == 1, batch, row if k == 1 else k, *view.shape[1:])


def fragment_of(target: Target, a: View, b: View) -> Fragment | None:
    """Of the unit that multiplies both operands as they are."""
    if a.dtype != b.dtype:
        return None
    units = {dtypes.FLOAT16: target.fragment, dtypes.BFLOAT16: target.bfloat16_fragment}
    fragment = units.get(a.dtype)
    lacks = fragment is not None and set(UNIT_NEEDS[fragment.element]) - target.capabilities
    return None if lacks else fragment


def choose(target: Target, product: Product, a: View, b: View) -> Choice[Tile] | None:
    """The tile and number of ranges of K with the least estimated time; None where no units are for it."""
    return cheapest(choices(target, product, a, b))


def choices(target: Target, product: Product, a: View, b: View) -> list[Choice[Tile]]:
    """All tiles and numbers of ranges of K that there are for a product.

    Args:
        target: the device.
        product: its sizes.
        a: (batch, m, k).
        b: (batch, k, n).
    """
    fragment = fragment_of(target, a, b)
    if fragment is None or product.k == 0:
        return []
    if any(isinstance(size, Size) for size in (product.batch, product.m, product.n, product.k)):
        return []
    columns = b.transpose((0, 2, 1))
    if not (is_readable(a) and is_readable(columns)):
        return []
    if forced is not None:
        return [Choice(*forced, 0.0)] if forced[0].fits(fragment, target) else []
    sizes = zip((fragment.m, fragment.n, fragment.k), LEAST_FRAGMENT, strict=True)
    if any(size < least for size, least in sizes):
        return []
    tiles = [
        tile for tile in TILES if (tile.promoted > 0) == target.strict_fp32 and tile.fits(fragment, target)
    ]

    passes = CYCLES * (padding(a) + padding(columns))

    def cycles(tile: Tile, groups: int, k: int) -> float:
        if not tile.promoted and k > LONGEST_SUM:
            return math.inf
        resident = resident_groups(tile.threads(fragment), tile.shared_bytes(fragment))
        work = resident * tile.m * tile.n * (k / tile.rate + STORE)
        return in_waves(target, groups, resident, work, tile.alone) + passes

    return estimates(target, product, tiles, RANGES, 128, fragment.lanes, cycles)


def launch(build: VulkanBuilder, product: Product, a: View, b: View, choice: Choice[Tile]) -> list[View]:
    """Emits the product with the epilogue on offer; returns the views of its results."""
    fragment = fragment_of(build.target, a, b)
    assert fragment is not None
    left, right = readable(build, a), readable(build, b.transpose((0, 2, 1)))
    tile = choice.tile
    batch, m, n, k = product.batch, product.m, product.n, product.k
    epilogue, outputs = build.take_epilogue(product.result)
    blocks = -(-k // tile.k)
    share = -(-blocks // choice.splits)
    splits = -(-blocks // share)
    writer = build.writer()
    for name, value in (("M", m), ("N", n), ("K", k), ("SPLITS", splits), ("BLOCKS_A_SPLIT", share)):
        writer.constant(value, name)
    numbers = {**tile.numbers(fragment), "TILE_M": tile.m, "TILE_N": tile.n, "BLOCK": tile.k}
    writer.text(
        "\n".join(
            [
                *(f"static const int {name} = {value};" for name, value in numbers.items()),
                f"#define PROMOTED {tile.promoted}",
                f"typealias Element = {fragment.slang_element};",
                lines_of(left).define(writer, left, "A"),
                lines_of(right).define(writer, right, "B"),
            ]
        )
    )
    shape = tile.m, tile.n
    partials = emit_finish(
        build, writer, product, splits, shape, tile.threads(fragment), outputs, epilogue, is_measured=False
    )
    writer.need(*UNIT_NEEDS[fragment.element])
    writer.text("".join(map(template, ("half_lines", "half_product", "shared_results"))))
    build.emit(
        writer.finish(
            product.label,
            (-(-n // tile.n), -(-m // tile.m), batch * splits),
            variant=f"{tile.label()}, {counted(splits, 'K range')}",
            reason=f"batch {batch}, M {m}, N {n}, K {k}",
            subgroup_size=fragment.lanes,
        )
    )
    if partials is not None:
        add_partials(build, product, partials, splits, outputs, epilogue)
    return outputs
