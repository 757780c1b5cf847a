"""Launches of products and convolutions of 8-bit integers: four along k at a time, as words."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from vkml.ir import dtypes
from vkml.ir.lowering import CannotLower
from vkml.ir.size import is_multiple, typical
from vkml.ir.windows import Windows
from vkml.kernels import byte_blocks, byte_units, byte_windows, gemm
from vkml.kernels.byte_blocks import can_be_blocks, in_blocks
from vkml.kernels.conv import convolution, image_operand
from vkml.kernels.gemm import (
    CYCLES,
    LAUNCH,
    TILE_K,
    AnyTile,
    Operand,
    Product,
    choose,
    launch,
    matrix_operand,
    matrix_product,
)
from vkml.kernels.padded_lines import can_be_padded, has_lines, is_aligned, microseconds
from vkml.kernels.views import View
from vkml.kernels.writer import WORD, KernelWriter

if TYPE_CHECKING:
    from vkml.lowering.vulkan_builder import VulkanBuilder

Array = np.ndarray[Any, Any]
GATHERED = 8.1
"""Words that a processor multiplies in a cycle where their bytes are gathered one by one (8191³ on an H200);
what that takes is saved, but for a seventh, where they are read as words."""

UNTURNED = 236.0
"""The same, of what units lose where bytes run across k: 241 TOP/s at 8192³ instead of 538 (H200)."""

GATHERED_PIXELS = 0.55
"""The share of its speed that ordinary arithmetic keeps where it gathers bytes of pixels as it reads them:
0.35 to 0.73 in convolutions of 1 to 32 images (H200)."""


def byte_matmul(build: VulkanBuilder, a: View, b: View) -> list[View]:
    """The batched product of views (batch, m, k) and (batch, k, n) of int8 or uint8, in int32."""
    product = replace(
        matrix_product(a, b, build.result()),
        k=_words(a.shape[2]),
        accumulator=dtypes.INT32,
        label="byte_matmul",
        signs=_signs(a, b),
    )
    chosen = _choose(build, product, b)
    if isinstance(chosen[0], byte_units.Tile):
        left = _of_units(build, product, a, "a")
        if build.is_whole_constant(b):
            right = _blocks(build.prepared(b, "blocks", in_blocks, dtypes.INT32), "b")
        else:
            right = _of_units(build, product, b.transpose((0, 2, 1)), "b")
        return _launch(build, product, left, right, chosen, b, _column_sums)
    left = _matrix(_in_words(build, product, a), "a")
    if build.is_whole_constant(b):
        packed = build.prepared(b, "words first", _words_first, dtypes.INT32)
        right = matrix_operand(packed, "b", packed.strides[1], packed.strides[2])
    else:
        right = _matrix(_in_words(build, product, b.transpose((0, 2, 1))), "b")
    return _launch(build, product, left, right, chosen, b, _column_sums)


def byte_conv(
    build: VulkanBuilder, x: View, weight: View, windows: Windows, group: int, fill: int
) -> list[View]:
    """A convolution of 8-bit images with constant 8-bit filters, in int32.

    Args:
        build: where the launch goes.
        x: (batch, channels, depth, height, width), any strides.
        weight: (filters, channels / group, kernel depth, height, width), a whole constant.
        windows: over depth, height and width.
        group: number of groups.
        fill: what images are padded with.
    """
    if not build.is_whole_constant(weight):
        raise CannotLower("convolutions with computed filters of bytes have no Vulkan kernel")
    filters, inner = weight.shape[0] // group, weight.shape[1]
    if inner == 1 and group > 1:
        raise CannotLower("convolutions of one channel a group have no Vulkan kernel for bytes")
    on_units = _conv_on_units(build, x, weight, windows, group, fill)
    if on_units is not None:
        return on_units
    channels = _words(inner)
    is_tap_major = not windows.is_pointwise and channels % TILE_K == 0
    if is_tap_major:
        packed = build.prepared(weight, "words last", _words_last, dtypes.INT32)
    else:
        packed = build.prepared(weight, "words first", _words_first, dtypes.INT32)
    steps = packed.elements // (group * filters)
    rows = packed.reshape((group, filters, steps))
    assert rows is not None
    product = replace(
        convolution(x, windows, group, filters, steps, build.result()),
        accumulator=dtypes.INT32,
        label="byte_conv",
        signs=_signs(weight, x),
    )
    a = matrix_operand(rows, "a", 1, steps)
    pixels = image_operand(x, group, windows, is_tap_major, WORD, _four_times(fill))
    # Pixels are gathered word by word, for which units wait longer than ordinary arithmetic does.
    chosen = choose(build.target, replace(product, signs=(False, False)))
    return launch(build, product, a, pixels, chosen)


def _conv_on_units(
    build: VulkanBuilder, x: View, weight: View, windows: Windows, group: int, fill: int
) -> list[View] | None:
    """A convolution on matrix units, of images that are copied with channels side by side if these do not lie
    so; None where it is none for them, or expected to be slower."""
    signs = _signs(x, weight)
    product = byte_windows.product_of(build, x, weight, windows, group, signs)
    if product is None or not signs[1]:
        return None
    chosen = byte_units.choose(build.target, product)
    if chosen is None:
        return None
    if byte_units.forced is None:
        gathered = replace(product, signs=(False, False), gathered=GATHERED_PIXELS)
        ordinary = gemm.cycles(build.target, gathered)
        copying = byte_windows.microseconds(x)
        if chosen.cycles + (CYCLES * (LAUNCH + copying) if copying else 0.0) > ordinary:
            return None
    if not byte_windows.lies_so(x):
        x = build.channels_last(x)
    filters = byte_windows.filters_in_blocks(build, weight, group)
    operands = byte_windows.windows_operand(x, windows, group, _four_times(fill)), _blocks(filters, "b")
    return _launch(build, product, *operands, (chosen.tile, chosen.splits), weight, _filter_sums)


def _four_times(byte: int) -> int:
    """The same byte four times, with the sign that the word then has."""
    return int(np.full(WORD, byte, np.int64).astype(np.uint8).view(np.int32)[0])


def _choose(build: VulkanBuilder, product: Product, weight: View) -> tuple[AnyTile, int]:
    """The tile and ranges of K: of matrix units where these are expected to be faster.

    Units take int8. Where an operand is uint8, the other one has to be known (see `_launch`).
    """
    assert product.signs is not None
    is_weight_signed = weight.dtype == dtypes.INT8
    takes_units = all(product.signs) or (is_weight_signed and build.is_whole_constant(weight))
    return choose(build.target, product if takes_units else replace(product, signs=(False, False)))


def _launch(
    build: VulkanBuilder,
    product: Product,
    a: Operand,
    b: Operand,
    chosen: tuple[AnyTile, int],
    weight: View,
    sums: Callable[[Array], Array],
) -> list[View]:
    """Emits the product.

    From uint8, 128 is taken for units, and so from the results 128 times the sums of the weights: the
    epilogue gives these back.

    Args:
        build: where the launches go.
        product: what is computed.
        a: the left operand.
        b: the right one.
        chosen: by `_choose`.
        weight: the one that may be constant.
        sums: of such weights along k, as they broadcast with the product's space.
    """
    assert product.signs is not None
    if isinstance(chosen[0], byte_units.Tile) and not all(product.signs):
        missing = build.prepared(weight, f"missing {sums.__name__}", sums, dtypes.INT32)
        build.before_epilogue(product.result, addend=missing.expand(product.stored_space))
    return launch(build, product, a, b, chosen)


def _column_sums(array: Array) -> Array:
    """128 times the sums of matrices (batch, k, n): (batch, 1, n)."""
    return np.asarray(128 * array.sum(1, dtype=np.int32, keepdims=True))


def _filter_sums(array: Array) -> Array:
    """128 times the sums of filters: (1, filters, 1)."""
    return np.asarray(128 * array.reshape(1, len(array), -1).sum(2, dtype=np.int32, keepdims=True))


def _words(count: int) -> int:
    return -(-count // WORD)


def _signs(a: View, b: View) -> tuple[bool, bool]:
    for view in (a, b):
        if view.dtype not in (dtypes.INT8, dtypes.UINT8):
            raise CannotLower(f"products of {view.dtype.name} are none of bytes")
    return a.dtype == dtypes.INT8, b.dtype == dtypes.INT8


def _of_units(build: VulkanBuilder, product: Product, rows: View, letter: str) -> Operand:
    """An operand (batch, rows, k) as units read it: in lines as it lies, else in blocks that a pass makes of
    it where that takes less than it saves, or in words."""
    if _has_whole_lines(rows):
        return _lines(rows, letter)
    rate = UNTURNED if rows.strides[2] != 1 else GATHERED
    if can_be_blocks(rows) and _cycles(build, product) / rate > CYCLES * (LAUNCH + microseconds(rows)):
        return _blocks(build.byte_blocks(rows), letter)
    return _matrix(rows, letter)


def _has_whole_lines(rows: View) -> bool:
    """Whether (batch, rows, k) is whole words of 16 bytes along k as it lies."""
    return (
        rows.strides[2] == 1
        and has_lines(rows)
        and is_aligned(rows)
        and rows.shape[2] % byte_blocks.WORD == 0
    )


def _blocks(blocks: View, letter: str) -> Operand:
    def declare(writer: KernelWriter, width: int) -> str:
        return byte_blocks.define_blocks(writer, blocks, letter.upper())

    return Operand(declare, letter == "a", WORD, "blocks")


def _lines(rows: View, letter: str) -> Operand:
    """Of (batch, rows, k)."""

    def declare(writer: KernelWriter, width: int) -> str:
        return byte_blocks.define_lines_of(writer, rows, letter.upper())

    return Operand(declare, letter == "a", WORD, "lines")


def _cycles(build: VulkanBuilder, product: Product) -> float:
    """Of all processors, at a word a cycle."""
    words = math.prod(map(typical, (product.batch, product.m, product.n, product.k)))
    return words / build.target.processors


def _in_words(build: VulkanBuilder, product: Product, rows: View) -> View:
    """An operand (batch, rows, k) that is read in words, or a copy with its lines padded that is.

    Left as it is where the copy takes longer than to gather bytes one by one.
    """
    batch, row, k = rows.strides
    others = (batch, row, rows.shape[2]) if k == 1 else (batch, k, rows.shape[1])
    if not can_be_padded(rows) or all(is_multiple(number, WORD) for number in (*others, rows.offset)):
        return rows
    saved = _cycles(build, product) / GATHERED
    return build.padded_lines(rows) if saved > CYCLES * (LAUNCH + microseconds(rows)) else rows


def _matrix(rows: View, letter: str) -> Operand:
    """An operand (batch, rows, k) whose bytes are words as they lie, or are gathered into such as they are
    read."""
    batch, outer, inner = rows.strides
    if inner != 1 or not all(
        is_multiple(number, WORD) for number in (batch, outer, rows.shape[2], rows.offset)
    ):
        return matrix_operand(_oriented(rows, letter), letter, inner, outer, WORD)
    shape = (*rows.shape[:2], rows.shape[2] // WORD)
    words = View(rows.buffer, dtypes.INT32, shape, (batch // WORD, outer // WORD, 1), rows.offset // WORD)
    return matrix_operand(_oriented(words, letter), letter, 1, outer // WORD)


def _oriented(rows: View, letter: str) -> View:
    """(batch, rows, k) as products have it: the right operand is (batch, k, n)."""
    return rows if letter == "a" else rows.transpose((0, 2, 1))


def _packed(array: Array, axis: int) -> Array:
    """Bytes whose fours along an axis are words, zeros behind the last."""
    last = np.moveaxis(array, axis, -1)
    wide = np.zeros((*last.shape[:-1], _words(last.shape[-1]) * WORD), array.dtype)
    wide[..., : last.shape[-1]] = last
    return np.moveaxis(wide.view(np.int32), -1, axis)


def _words_first(array: Array) -> Array:
    """(batch, k, n) → (batch, words, n), (filters, channels, *kernel) → (filters, words, *kernel)."""
    return np.ascontiguousarray(_packed(array, 1))


def _words_last(array: Array) -> Array:
    """(batch, k, n) → (batch, n, words), (filters, channels, *kernel) → (filters, *kernel, words)."""
    return np.ascontiguousarray(np.moveaxis(_packed(array, 1), 1, -1))
