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
from vkml.kernels import byte_units
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
from vkml.kernels.padded_lines import can_be_padded, can_be_turned, microseconds
from vkml.kernels.views import View
from vkml.kernels.writer import WORD

if TYPE_CHECKING:
    from vkml.lowering.vulkan_builder import VulkanBuilder

Array = np.ndarray[Any, Any]
NEEDS = frozenset(("int8", "storage_8bit", "integer_dot"))
"""Capabilities of a device whose products of quantised numbers are such."""
GATHERED = 8.1
"""Words that a processor multiplies in a cycle where their bytes are gathered one by one (8191³ on an H200);
what that takes is saved, but for a seventh, where they are read as words."""

UNTURNED = 236.0
"""The same, of what units lose where bytes run across k: 241 TOP/s at 8192³ instead of 538 (H200)."""


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
    a = _in_words(build, product, a)
    left = _matrix(a, "a", a.strides[2], a.strides[1])
    if build.is_whole_constant(b):
        if isinstance(chosen[0], byte_units.Tile):
            # Columns are lines along k in shared memory: words of 32 of them at once would meet in two banks.
            packed = build.prepared(b, "words last", _words_last, dtypes.INT32).transpose((0, 2, 1))
        else:
            packed = build.prepared(b, "words first", _words_first, dtypes.INT32)
        right = matrix_operand(packed, "b", packed.strides[1], packed.strides[2])
    else:
        columns = b.transpose((0, 2, 1))
        if isinstance(chosen[0], byte_units.Tile) and _is_worth_turning(build, product, columns):
            columns = build.turned_bytes(columns)
        b = _in_words(build, product, columns).transpose((0, 2, 1))
        right = _matrix(b, "b", b.strides[1], b.strides[2])
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
    # The same byte four times, with the sign that the word then has.
    padding = int(np.full(WORD, fill, np.int64).astype(np.uint8).view(np.int32)[0])
    pixels = image_operand(x, group, windows, is_tap_major, WORD, padding)
    chosen = _choose(build, product, weight, is_gathered=True)
    return _launch(build, product, a, pixels, chosen, weight, _filter_sums)


def _choose(
    build: VulkanBuilder, product: Product, weight: View, *, is_gathered: bool = False
) -> tuple[AnyTile, int]:
    """The tile and ranges of K: of matrix units where these are expected to be faster.

    Units take int8. Where an operand is uint8, the other one has to be known (see `_launch`). Pixels are
    gathered word by word, for which units wait longer than ordinary arithmetic does: of quantised networks of
    convolutions each took 1.3 to 1.5 times as long (H200).
    """
    assert product.signs is not None
    is_weight_signed = weight.dtype == dtypes.INT8
    takes_units = all(product.signs) or (is_weight_signed and build.is_whole_constant(weight))
    takes_units &= not is_gathered or byte_units.forced is not None
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
        build.before_epilogue(product.result, addend=missing.expand(product.space))
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


def _is_worth_turning(build: VulkanBuilder, product: Product, columns: View) -> bool:
    """Whether (batch, n, k) is copied to lines along k, of which units read words as they lie."""
    if not can_be_turned(columns):
        return False
    return _cycles(build, product) / UNTURNED > CYCLES * (LAUNCH + microseconds(columns))


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


def _matrix(view: View, letter: str, inner: int, outer: int) -> Operand:
    """An operand whose bytes are words as they lie, or are gathered into such as they are read."""
    along = 2 if letter == "a" else 1
    others = (view.strides[0], outer, view.shape[along], view.offset)
    if inner != 1 or not all(is_multiple(number, WORD) for number in others):
        return matrix_operand(view, letter, inner, outer, WORD)
    shape = tuple(size // WORD if axis == along else size for axis, size in enumerate(view.shape))
    strides = tuple(1 if axis == along else stride // WORD for axis, stride in enumerate(view.strides))
    words = View(view.buffer, dtypes.INT32, shape, strides, view.offset // WORD)
    return matrix_operand(words, letter, 1, outer // WORD)


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
