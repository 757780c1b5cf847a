"""Products of float32 in scaled pieces of float16 on matrix units, as exact as float32 or as TF32."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from vkml.dataclasses import dataclass
from vkml.ir import dtypes
from vkml.ir.size import Size
from vkml.ir.wording import counted
from vkml.kernels import matrix_units
from vkml.kernels.gemm import LAUNCH, Product, estimate_ordinary, matrix_operand
from vkml.kernels.matrix_units import LEAST_FRAGMENT, LONGEST_SUM, Tile
from vkml.kernels.packed_weights import (
    K_PADDING,
    MATRIX_UNIT_NEEDS,
    Fragment,
    batch_words,
    exponents_of,
    fragments_of,
    padded,
    small_of,
)
from vkml.kernels.split_rows import SLACK, BLOCK
from vkml.kernels.views import View
from vkml.kernels.writer import multiply_add, template

if TYPE_CHECKING:
    from vkml.lowering.target import Target
    from vkml.lowering.vulkan_builder import VulkanBuilder

WORD = 8
"""Elements of 16 bytes, which a load fetches."""
LARGEST_PIECES = 1 << 28
"""Bytes: an operand of more stays whole, for its pieces would be as large once more."""
SPLIT = 1.6e6
"""Bytes of an operand that are scaled and split in a microsecond."""

TILES = (
    Tile(64, 64, 4, 1, 64, 2, 1.45, 0.60),
    Tile(64, 32, 4, 1, 32, 2, 0.92, 0.63),
    Tile(64, 32, 2, 2, 64, 4, 0.55, 0.50),
    Tile(32, 64, 2, 2, 64, 2, 1.35, 0.77),
    Tile(32, 32, 4, 1, 64, 4, 0.64, 0.64),
    Tile(32, 32, 4, 2, 64, 4, 0.50, 0.50),
    Tile(32, 32, 2, 2, 64, 4, 0.56, 0.81),
    Tile(48, 32, 8, 1, 64, 2, 2.20, 0.60, 2),
    Tile(48, 32, 4, 1, 32, 2, 1.10, 0.60, 2),
    Tile(32, 32, 4, 1, 32, 2, 0.80, 0.60, 2),
    Tile(32, 32, 2, 2, 32, 2, 0.80, 0.60, 2),
)

forced: tuple[Tile, int] | None = None
"""For tests and tuning runs: the tile and ranges of K of every product that can be computed so at all."""


@dataclass(frozen=True)
class Choice(matrix_units.Choice):
    """A tile, a number of ranges of K, and the microseconds that are expected, passes included."""

    def label(self) -> str:
        """Tells it from other choices."""
        pieces = counted(self.tile.pieces, "piece")
        return (
            f"matrix units, {pieces} of scaled fp16, {self.tile.label()}, {counted(self.splits, 'K range')}"
        )


def choose(target: Target, product: Product) -> Choice | None:
    """The choice with the least estimated time; None where no units are for it."""
    return min(choices(target, product), key=lambda choice: choice.time, default=None)


def choices(target: Target, product: Product) -> list[Choice]:
    """All tiles and numbers of ranges of K that there are for a product, with the time that is estimated."""
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
    splitting = 2 * LAUNCH + 4 * batch * k * (m + n) / SPLIT
    found = [
        Choice(
            tile,
            splits,
            time=splitting
            + matrix_units.estimate_waves(target, fragment, tile, splits, m, n, k, batch=batch),
        )
        for tile in TILES
        if tile.pieces == pieces and fits(tile, fragment, target)
        for splits in matrix_units.ranges(target, tile, m, n, k, batch)
    ]
    return [choice for choice in found if pieces == 2 or choice.longest_sum(k) <= LONGEST_SUM]


def fits(tile: Tile, fragment: Fragment, target: Target) -> bool:
    """Whether loops over words of eight pieces come out even, too, and lines have room in shared memory."""
    slice_threads = tile.subgroups * fragment.lanes
    line = tile.pieces * tile.step_k
    return (
        tile.fits(fragment, target)
        and all(size % WORD == 0 for size in (fragment.m, fragment.k, line))
        and tile.m * line % (WORD * slice_threads) == 0
        and slice_threads % (line // WORD) == 0
        and K_PADDING % tile.step_k == 0
        and (tile.pieces == 1 or (tile.step_k % BLOCK == 0 and BLOCK % fragment.k == 0))
        and tile.m <= SLACK
        # Results that are computed again are the bits of a word a lane.
        and fragment.m * tile.sub_n <= 32 * fragment.lanes
    )


def launch(build: VulkanBuilder, product: Product, a: View, b: View, choice: Choice) -> list[View]:
    """Emits the product with the epilogue on offer; returns the views of its results."""
    fragment, tile = build.target.fragment, choice.tile
    assert fragment is not None
    batch, m, n, k = product.batch, product.m, product.n, product.k
    left, right = matrix_units.matrices_of(a), matrix_units.matrices_of(b)
    rows = build.split_rows(left, tile.pieces)
    packed = build.packed_values(right, fragment, tile.pieces)
    epilogue, outputs = build.take_epilogue(product.result)
    writer = build.writer()
    matrices = right.shape[0]
    columns = exponents_of(packed, n, matrices), small_of(packed, n, matrices)
    pointers = {
        "A_WORDS": writer.read(rows.pieces, width=4, reinterpreted_as="uint"),
        "A_INFO": writer.read(rows.info, width=2, reinterpreted_as="uint"),
        "B_POINTER": writer.read(fragments_of(packed, n, matrices), width=4),
        "COLUMN_EXPONENTS": writer.read(columns[0], width=4, reinterpreted_as="int"),
        "COLUMN_SMALL": writer.read(columns[1], width=4, reinterpreted_as="int"),
    }
    is_one_a, is_one_b = left.shape[0] == 1, right.shape[0] == 1
    numbers = {
        "A_BATCH": 0 if is_one_a else m * rows.line,
        "A_LINE": rows.line,
        "A_LINES": m + SLACK,
        "A_LENGTH": rows.line,
        "INFO_BATCH": 0 if is_one_a else m,
        "COLUMN_BATCH": 0 if is_one_b else padded(n, 16) // 4,
    }
    for name, number in numbers.items():
        writer.constant(number, name)
    matrix_units.define(
        writer, fragment, choice, (m, n, k), pointers, batch_words(batch, right, tile.pieces)
    )
    text = [
        "#define GUARDED",
        "#define A_ALONG_K 1",
        "static const bool IS_WHOLE = true;",
        "typealias Accumulator = float;",
        multiply_add(dtypes.FLOAT32),
    ]
    writer.text("\n".join(text))
    writer.text(matrix_operand(a, "a", a.strides[2], a.strides[1]).declare(writer, 1))
    writer.text(matrix_operand(b, "b", b.strides[1], b.strides[2]).declare(writer, 1))
    files = (
        "scales",
        "half_lines",
        "matrix_units_halves",
        "matrix_units_guard",
        "matrix_units_results",
        "matrix_units",
        "shared_results",
        "exact_results",
    )
    how = f"{choice.time:.0f} µs expected, else {estimate_ordinary(build.target, product):.0f}"
    if product.why_strict:
        how += f"; not by constants: {product.why_strict}"
    matrix_units.emit_product(build, writer, fragment, product, choice, files, how, outputs, epilogue)
    return outputs
