"""Products of float16 or bfloat16 on matrix units by what is packed as fragments lie, once or in each run."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from vkml.dataclasses import dataclass
from vkml.ir.size import Size, is_multiple, typical
from vkml.ir.wording import counted
from vkml.kernels import matrix_tiles, matrix_units, range_sums
from vkml.kernels.gemm import LAUNCH, Product, estimate_ordinary
from vkml.kernels.half_product import WORD, fragment_of, is_readable, lines_of, padding, readable
from vkml.kernels.matrix_tiles import LEAST_FRAGMENT, LINE_TILES, LONGEST_SUM, Tile
from vkml.kernels.packed_weights import K_PADDING, Fragment, batch_words, boolean, padded
from vkml.kernels.packed_weights import packing as packing_elements
from vkml.kernels.padded_lines import MOST_ELEMENTS
from vkml.kernels.views import View

if TYPE_CHECKING:
    from vkml.lowering.target import Target
    from vkml.lowering.vulkan_builder import VulkanBuilder

TILES = LINE_TILES

forced: tuple[Tile, int] | None = None
"""For tests and tuning runs: the tile and ranges of K of every product that can be computed so at all."""


@dataclass(frozen=True)
class Choice(matrix_tiles.Choice):
    """A tile, a number of ranges of K, and the microseconds that are expected."""

    def label(self) -> str:
        """Tells it from other choices."""
        ranges = counted(self.splits, "K range")
        return f"matrix units, halves, weights in fragments, {self.tile.label()}, {ranges}"


def choose(target: Target, product: Product, a: View, b: View) -> Choice | None:
    """The choice with the least estimated time; None where there is none."""
    return min(choices(target, product, a, b), key=lambda choice: choice.time, default=None)


def choices(target: Target, product: Product, a: View, b: View, slower: float = 1.0) -> list[Choice]:
    """All tiles that fit and numbers of ranges of K, with the time that is estimated for each.

    Args:
        target: the device. Units truncate as they add: there are none where float32 is strict.
        product: its sizes.
        a: (1, m, k), of which m may be open.
        b: (1, k, n).
        slower: by what steps take longer than tiles know.
    """
    fragment = fragment_of(target, a, b)
    if fragment is None or target.strict_fp32 or product.k == 0 or not is_readable(a):
        return []
    if not is_packable(product, b):
        return []
    sizes = zip((fragment.m, fragment.n, fragment.k), LEAST_FRAGMENT, strict=True)
    if forced is None and any(size < least for size, least in sizes):
        return []
    if forced is not None:
        found = _forced(fragment, target, a)
    else:
        found = _all(target, fragment, product, a, b, slower)
    found = [choice for choice in found if choice.longest_sum(product.k) <= LONGEST_SUM]
    return found if found and target.holds_elements_once(fragment) else []


def is_packable(product: Product, b: View) -> bool:
    """Whether the packing kernel finds the elements of an operand (batch, k, n).

    Constants are packed where they are one matrix, which is done once; so are those of a run, in each run.
    """
    numbers = (*b.shape, *b.strides, b.offset)
    return (
        (product.batch == 1 or not b.buffer.is_constant)
        and not any(isinstance(number, Size) for number in numbers)
        and not b.is_reversed
        and b.byte_range[1] // b.itemsize <= MOST_ELEMENTS
    )


def packing(b: View) -> float:
    """Microseconds that packing what `is_packable` takes in each run."""
    if b.buffer.is_constant:
        return 0.0
    different = 1 if b.strides[0] == 0 else b.shape[0]
    return packing_elements(different * b.shape[1] * b.shape[2], LAUNCH)


def _forced(fragment: Fragment, target: Target, a: View) -> list[Choice]:
    assert forced is not None
    return [Choice(*forced)] if fits(forced[0], fragment, target, a) else []


def _all(
    target: Target, fragment: Fragment, product: Product, a: View, b: View, slower: float
) -> list[Choice]:
    batch, m, n, k = (typical(size) for size in (product.batch, product.m, product.n, product.k))
    passes = padding(a) + packing(b)
    return [
        Choice(
            tile,
            splits,
            time=passes
            + matrix_tiles.estimate_lines(
                target,
                fragment,
                replace(tile, step=slower * tile.step),
                splits,
                (batch, m, n, k),
                product.result.dtype.itemsize,
            )
            + range_sums.microseconds(
                target, product, splits, (tile.m, tile.n), tile.threads(fragment), is_measured=False
            ),
        )
        for tile in TILES
        if fits(tile, fragment, target, a) and padded(k, K_PADDING) % tile.step_k == 0
        for splits in matrix_tiles.ranges(target, tile, m, n, k, batch)
    ]


def fits(tile: Tile, fragment: Fragment, target: Target, a: View) -> bool:
    """Whether loops over words of eight elements come out even, too, and lines have room in shared memory."""
    slice_threads = tile.subgroups * fragment.lanes
    along, across = (tile.step_k, tile.m) if a.strides[2] == 1 else (tile.m, tile.step_k)
    return (
        tile.fits(fragment, target)
        and all(size % WORD == 0 for size in (fragment.m, fragment.k, along))
        and tile.m * tile.step_k % (WORD * slice_threads) == 0
        and slice_threads % (along // WORD) == 0
        and tile.slices * 2 * across * 2 * (along + WORD) <= target.shared_bytes
    )


def launch(build: VulkanBuilder, product: Product, a: View, b: View, choice: Choice) -> list[View]:
    """Emits the product with the epilogue on offer; returns the views of its results."""
    fragment = fragment_of(build.target, a, b)
    assert fragment is not None
    if b.buffer.is_constant:
        packed = build.packed_weights(matrix_units.matrix_of(b), fragment)
    else:
        packed = build.packed_values(matrix_units.matrices_of(b), fragment)
    return launch_with(build, product, a, b, packed, choice)


def launch_with(
    build: VulkanBuilder,
    product: Product,
    a: View,
    b: View,
    packed: View,
    choice: Choice,
    codes: matrix_units.Codes | None = None,
) -> list[View]:
    """Emits the product by what is packed of an operand: halves, or codes of few bits."""
    fragment, tile = fragment_of(build.target, a, b), choice.tile
    assert fragment is not None
    rows = readable(build, a)
    lines = lines_of(rows)
    epilogue, outputs = build.take_epilogue(product.result)
    writer = build.writer()
    pointers = {"B_POINTER": writer.read(packed, width=4 if codes is None else 1)}
    matrix_units.define(
        writer, fragment, choice, (product.m, product.n, product.k), pointers, batch_words(product.batch, b)
    )
    if codes is not None:
        codes.define(writer)
    is_whole = is_multiple(lines.rows, tile.m) and is_multiple(lines.k, tile.step_k)
    writer.text(f"{lines.define(writer, rows, 'A')}\nstatic const bool IS_WHOLE = {boolean(is_whole)};")
    files = (
        "half_lines",
        "matrix_units_halves",
        "matrix_units_unscaled",
        "matrix_units_results",
        "unit_weights" if codes is None else "few_bit_weights",
        "tile_bands",
        "matrix_units",
        "shared_results",
    )
    how = f"{choice.time:.0f} µs expected, else {estimate_ordinary(build.target, product):.0f}"
    matrix_units.emit_product(
        build, writer, fragment, product, choice, files, how, outputs, epilogue, is_measured=False
    )
    return outputs
