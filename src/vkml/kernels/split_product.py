"""Products of float32 on matrix units of float16, as exact as float32 or as TF32: tiles and launches."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from vkml.dataclasses import dataclass
from vkml.ir import dtypes
from vkml.ir.size import Size
from vkml.ir.wording import counted
from vkml.kernels.gemm import CYCLES, LAUNCH, Product, matrix_operand
from vkml.kernels.matrix_units import LEAST_FRAGMENT, LONGEST_SUM
from vkml.kernels.packed_weights import MATRIX_UNIT_NEEDS, Fragment
from vkml.kernels.results import add_partials, emit_finish
from vkml.kernels.split_rows import BLOCK, SLACK
from vkml.kernels.unit_tiles import RANGES, Choice, UnitTile, cheapest, estimates, in_waves, resident_groups
from vkml.kernels.views import View
from vkml.kernels.writer import multiply_add, template

if TYPE_CHECKING:
    from vkml.lowering.target import Target
    from vkml.lowering.vulkan_builder import VulkanBuilder

PROMOTED = 4
"""Blocks of k after which sums of two pieces leave the unit, which truncates: 2.3e-7 in relative L2."""
LARGEST_PIECES = 1 << 28
"""Bytes: an operand of more stays whole, for its pieces would be as large once more."""
STORE = 0.4
"""Cycles that a multiprocessor takes to store a result;"""
SPLIT = 1.6e6
"""bytes of an operand that are scaled and split in a microsecond."""


@dataclass(frozen=True)
class Tile(UnitTile):
    """One of products in pieces, and what the rule knows of it."""

    pieces: int
    rate: float
    """Multiply-adds of fp32 that a multiprocessor does in a cycle when it holds all workgroups that fit."""
    alone: float
    """The share of that with one workgroup."""

    def shared_bytes(self, fragment: Fragment) -> int:
        """As split_product.slang counts them."""
        operands = (self.m + self.n) * (2 * self.pieces * BLOCK + 16)
        results = self.subgroups * fragment.m * (self.sub_n + 4) * 4
        return max(operands, results) + (self.m + self.n + 1) // 2 * 16

    def fits(self, fragment: Fragment, target: Target) -> bool:
        """Whether the kernel's loops come out even with this fragment, and the device has room."""
        return (
            self.sub_m % fragment.m == 0
            and self.sub_n % fragment.n == 0
            and BLOCK % fragment.k == 0
            and fragment.lanes % (self.sub_n // 4) == 0
            and fragment.m * self.sub_n <= 32 * fragment.lanes  # bits of a lane's results
            and max(self.m, self.n) <= SLACK
            and self.threads(fragment) <= target.max_invocations
            and self.shared_bytes(fragment) <= target.shared_bytes
        )

    def label(self) -> str:
        tile = f"{self.m}x{self.n} tile, {self.sub_m}x{self.sub_n} a subgroup"
        return f"matrix units, {counted(self.pieces, 'piece')} of scaled fp16, {tile}"


TILES = (
    Tile(96, 128, BLOCK, 48, 32, 2, 226, 0.9),
    Tile(96, 64, BLOCK, 48, 32, 2, 215, 0.6),
    Tile(64, 64, BLOCK, 32, 32, 2, 190, 0.6),
    Tile(128, 128, BLOCK, 64, 64, 1, 690, 0.6),
    Tile(128, 64, BLOCK, 64, 32, 1, 500, 0.6),
    Tile(64, 64, BLOCK, 32, 32, 1, 380, 0.6),
)

forced: tuple[Tile, int] | None = None
"""For tests and tuning runs: the tile and ranges of K of every product that can be computed so at all."""


def choose(target: Target, product: Product) -> Choice[Tile] | None:
    """The tile and number of ranges of K with the least estimated time; None where no units are for it."""
    return cheapest(choices(target, product))


def choices(target: Target, product: Product) -> list[Choice[Tile]]:
    """All tiles and numbers of ranges of K that there are for a product."""
    fragment = target.fragment
    if (
        fragment is None
        or product.accumulator != dtypes.FLOAT32
        or set(MATRIX_UNIT_NEEDS) - target.capabilities
    ):
        return []
    batch, m, n, k = product.batch, product.m, product.n, product.k
    if any(isinstance(size, Size) for size in (batch, m, n, k)):
        return []
    pieces = 2 if target.strict_fp32 else 1
    if 2 * pieces * batch * k * max(m, n) > LARGEST_PIECES:
        return []
    if forced is not None:
        return [Choice(*forced, 0.0)] if forced[0].fits(fragment, target) else []
    sizes = zip((fragment.m, fragment.n, fragment.k), LEAST_FRAGMENT, strict=True)
    if any(size < least for size, least in sizes):
        return []
    tiles = [tile for tile in TILES if tile.pieces == pieces and tile.fits(fragment, target)]

    def cycles(tile: Tile, groups: int, k: int) -> float:
        if pieces == 1 and k > LONGEST_SUM:
            return math.inf
        resident = resident_groups(tile.threads(fragment), tile.shared_bytes(fragment))
        work = resident * tile.m * tile.n * (k / tile.rate + STORE)
        return in_waves(target, groups, resident, work, tile.alone) + _splitting(product)

    return estimates(target, product, tiles, RANGES, 128, fragment.lanes, cycles)


def _splitting(product: Product) -> float:
    """Cycles of the launches that split both operands."""
    return CYCLES * (2 * LAUNCH + 4 * product.batch * product.k * (product.m + product.n) / SPLIT)


def launch(build: VulkanBuilder, product: Product, a: View, b: View, choice: Choice[Tile]) -> list[View]:
    """Emits the product with the epilogue on offer; returns the views of its results."""
    fragment = build.target.fragment
    assert fragment is not None
    tile, splits = choice.tile, choice.splits
    batch, m, n, k = product.batch, product.m, product.n, product.k
    rows, columns = build.split_rows(a, tile.pieces), build.split_rows(b.transpose((0, 2, 1)), tile.pieces)
    epilogue, outputs = build.take_epilogue(product.result)
    blocks = -(-k // BLOCK)
    share = -(-blocks // splits)
    splits = -(-blocks // share)
    writer = build.writer()
    for name, value in (("M", m), ("N", n), ("K", k), ("SPLITS", splits), ("BLOCKS_A_SPLIT", share)):
        writer.constant(value, name)
    numbers = {**tile.numbers(fragment), "TILE_M": tile.m, "TILE_N": tile.n}
    writer.text(
        "\n".join(
            [
                *(f"static const int {name} = {value};" for name, value in numbers.items()),
                f"#define PIECES {tile.pieces}",
                f"#define PROMOTED {PROMOTED if tile.pieces > 1 else 0}",
                "typealias Accumulator = float;",
                rows.define(writer, "A"),
                columns.define(writer, "B"),
                multiply_add(dtypes.FLOAT32),
            ]
        )
    )
    writer.text(matrix_operand(a, "a", a.strides[2], a.strides[1]).declare(writer, 1))
    writer.text(matrix_operand(b, "b", b.strides[1], b.strides[2]).declare(writer, 1))
    shape = tile.m, tile.n
    partials = emit_finish(
        build, writer, product, splits, shape, tile.threads(fragment), outputs, epilogue, is_measured=False
    )
    writer.need(*MATRIX_UNIT_NEEDS)
    writer.text(
        "".join(map(template, ("scales", "split_common", "split_product", "shared_results", "exact_results")))
    )
    build.emit(
        writer.finish(
            product.label,
            (-(-n // tile.n), -(-m // tile.m), batch * splits),
            variant=f"{tile.label()}, {counted(splits, 'K range')}",
            reason=f"batch {batch}, M {m}, N {n}, K {k}"
            + (f"; not in fp16: {product.why_strict}" if product.why_strict else ""),
            subgroup_size=fragment.lanes,
        )
    )
    if partials is not None:
        add_partials(build, product, partials, splits, outputs, epilogue)
    return outputs
