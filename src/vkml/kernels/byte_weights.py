"""Products of bytes on matrix units by constant int8 weights, which go straight into fragments.

The kernel is that of halves: along k bytes are counted in pairs, which are as long as halves.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from vkml.dataclasses import dataclass
from vkml.ir import dtypes
from vkml.ir.size import is_multiple, typical
from vkml.ir.wording import counted
from vkml.kernels import half_weights, matrix_units
from vkml.kernels.gemm import Product
from vkml.kernels.half_product import WORD as LOADED
from vkml.kernels.half_product import is_readable, lines_of, padding, readable
from vkml.kernels.matrix_units import LEAST_FRAGMENT, Tile
from vkml.kernels.packed_weights import (
    COLUMN_PADDING,
    K_PADDING,
    UNIT_NEEDS,
    WIDEST_TILE,
    Fragment,
    boolean,
    padded,
)
from vkml.kernels.views import View

if TYPE_CHECKING:
    from vkml.lowering.target import Target
    from vkml.lowering.vulkan_builder import VulkanBuilder

Array = np.ndarray[Any, Any]

PAIR = 2
"""Bytes that count as one step of k."""

TILES = (
    Tile(64, 64, 4, 1, 32, 2, 0.78, 0.60),
    Tile(64, 64, 4, 1, 64, 2, 1.44, 0.60),
    Tile(64, 32, 4, 1, 32, 2, 0.654, 0.63),
    Tile(64, 32, 2, 2, 64, 4, 1.3, 0.60),
    Tile(32, 64, 2, 2, 64, 2, 1.5, 0.77),
    Tile(32, 32, 4, 1, 64, 4, 0.70, 0.64),
    Tile(32, 32, 4, 2, 64, 4, 0.45, 0.50),
    Tile(32, 32, 2, 4, 64, 4, 0.45, 0.50),
)
"""Steps are of pairs, and predicted: they read as many bytes, and take as many instructions of the unit, as
those of halves, whose times these are (H200)."""

offered = False
"""Whether `choose` offers them: they have not been timed on a GPU yet."""

forced: tuple[Tile, int] | None = None
"""For tests and tuning runs: the tile and ranges of K of every product that can be computed so at all."""


@dataclass(frozen=True)
class Choice(matrix_units.Choice):
    """A tile, a number of ranges of K, and the microseconds that are expected."""

    def label(self) -> str:
        """Tells it from other choices."""
        ranges = counted(self.splits, "K range")
        return f"matrix units, int8, weights in fragments, {self.tile.label()} pairs, {ranges}"


def choose(target: Target, product: Product, a: View, b: View) -> Choice | None:
    """The choice with the least estimated time; None where there is none, or these are not offered."""
    if not offered and forced is None:
        return None
    return min(choices(target, product, a, b), key=lambda choice: choice.time, default=None)


def choices(target: Target, product: Product, a: View, b: View) -> list[Choice]:
    """All tiles that fit and numbers of ranges of K, with the time that is estimated for each.

    Args:
        target: the device.
        product: its sizes.
        a: (1, m, k) of int8 or uint8, of which m may be open.
        b: (1, k, n), the whole of a constant of int8.
    """
    fragment = _pairs_of(target.byte_fragment)
    if fragment is None or set(UNIT_NEEDS["int8"]) - target.capabilities:
        return []
    is_single = product.batch == 1 and product.k != 0
    if not (is_readable(a) and a.strides[2] == 1 and b.dtype == dtypes.INT8 and is_single):
        return []
    if forced is not None:
        return [Choice(*forced)] if fits(forced[0], fragment, target, a) else []
    sizes = zip((fragment.m, fragment.n, fragment.k), LEAST_FRAGMENT, strict=True)
    if any(size < least for size, least in sizes):
        return []
    m, n, k = typical(product.m), typical(product.n), -(-a.shape[2] // PAIR)
    return [
        Choice(
            tile,
            splits,
            time=matrix_units.estimate_waves(target, fragment, tile, splits, m, n, k) + padding(a),
        )
        for tile in TILES
        if fits(tile, fragment, target, a)
        for splits in matrix_units.ranges(target, tile, m, n, k)
    ]


def fits(tile: Tile, fragment: Fragment, target: Target, a: View) -> bool:
    """Whether loops come out even with a fragment of pairs, and there is room in shared memory."""
    return half_weights.fits(tile, fragment, target, a, _word(fragment))


def pairs_of(a: View) -> View:
    """The operand (1, m, k), whose lines along k begin at multiples of 16 bytes, as pairs of bytes along k.

    Of an odd k, anything is the last one's other byte, which meets a zero of the weights.
    """
    shape = 1, a.shape[1], -(-a.shape[2] // PAIR)
    return View(a.buffer, dtypes.UINT16, shape, (0, a.strides[1] // PAIR, 1), a.offset // PAIR)


def _pairs_of(fragment: Fragment | None) -> Fragment | None:
    """A fragment whose k counts pairs."""
    return None if fragment is None or fragment.k % PAIR else replace(fragment, k=fragment.k // PAIR)


def _word(fragment: Fragment) -> int:
    """Pairs of a word of shared memory and of weights, in whose multiples fragments begin and end."""
    return LOADED if fragment.k % LOADED == 0 else LOADED // 2


def launch(build: VulkanBuilder, product: Product, a: View, b: View, choice: Choice) -> list[View]:
    """Emits the product with the epilogue on offer; returns the views of its results.

    From bytes without signs the kernel takes 128: the epilogue on offer gives that back.
    """
    fragment, tile = _pairs_of(build.target.byte_fragment), choice.tile
    assert fragment is not None and product.signs is not None
    pairs = pairs_of(readable(build, a))
    lines = lines_of(pairs)
    packed = build.prepared(
        b,
        f"fragments of {fragment.n} columns and {PAIR * fragment.k} rows",
        functools.partial(in_fragments, columns=fragment.n, rows=PAIR * fragment.k),
        dtypes.UINT32,
    )
    epilogue, outputs = build.take_epilogue(product.result)
    writer = build.writer()
    word, steps = _word(fragment), -(-a.shape[2] // PAIR)
    pointers = {"B_POINTER": writer.read(packed, width=word // 2)}
    matrix_units.define(writer, fragment, choice, (product.m, product.n, steps), pointers)
    is_whole = is_multiple(lines.rows, tile.m) and is_multiple(lines.k, tile.step_k)
    writer.text(
        "\n".join(
            [
                f"#define WORD {word}",
                lines.define(writer, pairs, "A"),
                f"static const bool IS_WHOLE = {boolean(is_whole)};",
                f"static const uint FLIP_A = {'0u' if product.signs[0] else '0x80808080u'};",
            ]
        )
    )
    files = ("half_lines", "matrix_units_halves", "matrix_units_results", "matrix_units", "shared_results")
    how = f"pairs of bytes; {choice.time:.0f} µs expected"
    counted_in_pairs = replace(product, k=steps)
    matrix_units.emit_product(
        build, writer, fragment, counted_in_pairs, choice, files, how, outputs, epilogue
    )
    return outputs


def in_fragments(array: Array, *, columns: int, rows: int) -> Array:
    """A matrix (1, k, n) of bytes as words of fragment after fragment along n, then along k, columns whole.

    Padded as kernels read it: see `PackedWeights`.
    """
    _, k, n = array.shape
    wide = np.zeros((padded(k, PAIR * K_PADDING), padded(n, COLUMN_PADDING)), np.int8)
    wide[:k, :n] = array[0]
    blocks = wide.reshape(wide.shape[0] // rows, rows, wide.shape[1] // columns, columns)
    behind = np.zeros(PAIR * K_PADDING * (wide.shape[1] + WIDEST_TILE), np.int8)
    return np.concatenate([blocks.transpose(0, 2, 3, 1).reshape(-1), behind]).view(np.uint32)
