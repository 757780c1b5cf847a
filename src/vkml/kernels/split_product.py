"""Products of float32 in scaled pieces of float16 on matrix units, as exact as float32 or as TF32."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vkml.dataclasses import dataclass
from vkml.ir import dtypes
from vkml.ir.size import Size
from vkml.ir.wording import counted
from vkml.kernels import matrix_tiles, matrix_units, range_sums
from vkml.kernels.gemm import LAUNCH, Product, estimate_ordinary, matrix_operand
from vkml.kernels.matrix_tiles import LEAST_FRAGMENT, LONGEST_SUM, Tile, estimate_lines, fits_lines, splitting
from vkml.kernels.packed_weights import (
    COLUMN_PADDING,
    MATRIX_UNIT_NEEDS,
    Fragment,
    batch_words,
    exponents_of,
    fragments_of,
    packing,
    padded,
    small_of,
)
from vkml.kernels.views import View
from vkml.kernels.writer import multiply_add

if TYPE_CHECKING:
    from vkml.lowering.target import Target
    from vkml.lowering.vulkan_builder import VulkanBuilder

LARGEST_PIECES = 1 << 28
"""Bytes: an operand of more stays whole, for its pieces would be as large once more."""

TILES = (
    *matrix_tiles.LINE_TILES,
    Tile(48, 32, 8, 1, 64, 2, 1.58, 1.0, 2, 3.5),
    Tile(48, 32, 4, 1, 32, 2, 0.90, 0.60, 2),
    Tile(32, 32, 8, 1, 64, 2, 1.23, 1.0, 2),
    Tile(32, 32, 4, 1, 64, 2, 1.18, 0.60, 2, 1.0),
    Tile(32, 32, 2, 2, 64, 2, 0.72, 1.0, 2),
)
"""Of one piece and of two."""
GUARD = 1.0
"""Microseconds in which a wave of workgroups finds whether results are to be computed again."""

forced: tuple[Tile, int] | None = None
"""For tests and tuning runs: the tile and ranges of K of every product that can be computed so at all."""


@dataclass(frozen=True)
class Choice(matrix_tiles.Choice):
    """A tile, a number of ranges of K, and the microseconds that are expected, passes included."""

    def label(self) -> str:
        """Tells it from other choices."""
        pieces = counted(self.tile.pieces, "piece")
        return (
            f"matrix units, {pieces} of scaled fp16, {self.tile.label()}, {counted(self.splits, 'K range')}"
        )


def choose(target: Target, product: Product, *, has_kept: bool = False) -> Choice | None:
    """The choice with the least estimated time; None where no units are for it. Arguments: see `choices`."""
    found = choices(target, product, has_kept=has_kept)
    return min(found, key=lambda choice: choice.time, default=None)


def is_kept(build: VulkanBuilder, b: View) -> bool:
    """Whether an operand (batch, k, n) is a constant whose pieces are made once: one matrix, of few bytes."""
    return (
        build.keeps_pieces
        and b.buffer.is_constant
        and b.dtype == dtypes.FLOAT32
        and (b.shape[0] == 1 or b.strides[0] == 0)
        and not b.is_reversed
    )


def choices(target: Target, product: Product, *, has_kept: bool = False) -> list[Choice]:
    """All tiles and numbers of ranges of K that there are for a product, with the time that is estimated.

    Args:
        target: the device.
        product: its sizes.
        has_kept: whether the pieces of its right operand are there.
    """
    fragment = target.fragment
    if (
        fragment is None
        or product.accumulator != dtypes.FLOAT32
        or set(MATRIX_UNIT_NEEDS) - target.capabilities
    ):
        return []
    batch, m, n, k = product.batch, product.m, product.n, product.k
    if any(isinstance(size, Size) for size in (batch, m, n, k)) or k == 0:
        return []
    pieces = 2 if target.strict_fp32 else 1
    if 2 * pieces * batch * k * max(m, n) > LARGEST_PIECES or not target.holds_elements_once(fragment):
        return []
    if forced is not None:
        return [Choice(*forced)] if fits(forced[0], fragment, target) else []
    sizes = zip((fragment.m, fragment.n, fragment.k), LEAST_FRAGMENT, strict=True)
    if any(size < least for size, least in sizes):
        return []
    passes = splitting(batch * m * k, pieces)
    if not has_kept:  # the pass over rows runs beside the first of the two over columns
        passes += packing(batch * n * k, LAUNCH, pieces) - LAUNCH
    found = [
        Choice(
            tile,
            splits,
            time=passes
            + estimate_lines(target, fragment, tile, splits, (batch, m, n, k), 4, GUARD)
            + range_sums.microseconds(
                target, product, splits, (tile.m, tile.n), tile.threads(fragment), is_measured=False
            ),
        )
        for tile in TILES
        if tile.pieces == pieces and fits(tile, fragment, target)
        for splits in matrix_tiles.ranges(target, tile, m, n, k, batch)
    ]
    return [choice for choice in found if pieces == 2 or choice.longest_sum(k) <= LONGEST_SUM]


def fits(tile: Tile, fragment: Fragment, target: Target) -> bool:
    """Whether the kernel's loops come out even, and results that are computed again are a word's bits."""
    return fits_lines(tile, fragment, target) and fragment.m * tile.sub_n <= 32 * fragment.lanes


def launch(build: VulkanBuilder, product: Product, a: View, b: View, choice: Choice) -> list[View]:
    """Emits the product with the epilogue on offer; returns the views of its results."""
    fragment, tile = build.target.fragment, choice.tile
    assert fragment is not None
    batch, n = product.batch, product.n
    left, right = matrix_units.matrices_of(a), matrix_units.matrices_of(b)
    rows = build.split_rows(left, tile.pieces)
    if is_kept(build, b):
        packed = build.packed_weights(matrix_units.matrix_of(b), fragment, tile.pieces)
    else:
        packed = build.packed_values(right, fragment, tile.pieces)
    epilogue, outputs = build.take_epilogue(product.result)
    writer = build.writer()
    count = right.shape[0]
    pointers = {
        "B_POINTER": writer.read(fragments_of(packed, n, count), width=4),
        "COLUMN_EXPONENTS": writer.read(exponents_of(packed, n, count), width=4, reinterpreted_as="int"),
        "COLUMN_SMALL": writer.read(small_of(packed, n, count), width=4, reinterpreted_as="int"),
    }
    writer.text(rows.define(writer, left, batch))
    writer.constant(0 if count == 1 else padded(n, COLUMN_PADDING) // 4, "COLUMN_BATCH")
    sizes = product.m, n, product.k
    matrix_units.define(writer, fragment, choice, sizes, pointers, batch_words(batch, right, tile.pieces))
    writer.text(f"#define GUARDED\ntypealias Accumulator = float;\n{multiply_add(dtypes.FLOAT32)}")
    writer.text(matrix_operand(a, "a", a.strides[2], a.strides[1]).declare(writer, 1))
    writer.text(matrix_operand(b, "b", b.strides[1], b.strides[2]).declare(writer, 1))
    files = (
        "scales",
        "half_lines",
        "matrix_units_halves",
        "matrix_units_scales",
        "matrix_units_guard",
        "matrix_units_results",
        "unit_weights",
        "tile_bands",
        "matrix_units",
        "shared_results",
        "exact_results",
    )
    how = f"{choice.time:.0f} µs expected, else {estimate_ordinary(build.target, product):.0f}"
    if product.why_strict:
        how += f"; not by constants: {product.why_strict}"
    matrix_units.emit_product(
        build, writer, fragment, product, choice, files, how, outputs, epilogue, is_measured=False
    )
    return outputs
