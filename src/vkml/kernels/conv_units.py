"""Launches of convolutions of float32 on matrix units: whether, in which order of k, and in which tiles."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from vkml.ir import TensorType, dtypes
from vkml.ir.size import Size, is_multiple, typical
from vkml.ir.windows import Windows
from vkml.kernels import matrix_tiles, matrix_units, range_sums
from vkml.kernels.gemm import LAUNCH, Product, estimate_ordinary
from vkml.kernels.matrix_tiles import Choice, Tile
from vkml.kernels.matrix_units import define, why_no_units, why_not_chosen
from vkml.kernels.packed_weights import (
    COLUMN_PADDING,
    MATRIX_UNIT_NEEDS,
    Fragment,
    boolean,
    define_guess,
    exponents_of,
    fragments_of,
    has_holes,
    least_power,
    packing,
    small_of,
)
from vkml.kernels.results import add_partials, emit_finish
from vkml.kernels.split_rows import BLOCK
from vkml.kernels.views import View
from vkml.kernels.writer import KernelWriter, multiply_add, template

if TYPE_CHECKING:
    from vkml.kernels import halo_tiles
    from vkml.lowering.target import Target
    from vkml.lowering.vulkan_builder import VulkanBuilder

TILES = (
    *matrix_tiles.TILES,
    # For 64 filters, for which half of a wider tile works for nothing. Swept on an H200 (56², 32 images):
    # 0.68 and 0.76 times as long for 64→64 and 256→64 1×1; its step is the wider one's in that proportion.
    Tile(64, 32, 2, 1, 32, 2, 0.887, 0.63),
    # Of two pieces: fitted to 96 figures of fourteen layers, 9 % off in the mean.
    Tile(32, 32, 4, 1, 64, 2, 1.824, 0.566, 2, 3.54),
    Tile(64, 16, 8, 1, 32, 2, 0.911, 0.306, 2, 3.85),
    Tile(32, 16, 4, 1, 32, 2, 0.760, 0.491, 2, 2.01),
    Tile(32, 16, 4, 2, 32, 2, 0.756, 0.363, 2, 1.22),
)
"""That convolutions may have, if they fit."""
VECTOR = 8
"""Neighbours along k, of one window, that a lane brings to shared memory at a time."""
CHANNEL_BLOCK = 64
"""What the longest step of k takes, so that each is of one tap."""
READ_BY_ONE = 1e5
"""Bytes that one multiprocessor reads from the second-level cache in a microsecond,"""
LOOK = 0.7
"""and the microseconds until the first of them come."""
STRICT_LONGER = 1.35
"""How much longer ordinary arithmetic takes, and what is in pieces of bfloat16, than is estimated (1.12 to
3.1, fourteen layers), besides storing results."""
VALUES_LEAST_POWER = 4
"""Of weights that a run computes, whose range is not known: it is enough up to 2^18."""
PIECES_LEAST_POWER = -4
"""The least power of two that windows may have as their largest magnitude where elements are two pieces: some
eight bits above what pieces hold fewer bits of, which results are computed again for where it may count."""


def refusal(
    build: VulkanBuilder, product: Product, x: View, weight: View, group: int, *, is_rule: bool = True
) -> str:
    """Why a convolution is not for matrix units, or an empty string.

    Args:
        build: for a device.
        product: its sizes: m counts filters, n pixels of all images.
        x: (batch, channels, depth, height, width).
        weight: (out channels, channels, kernel depth, height, width); row-major where it is constant.
        group: number of groups.
        is_rule: whether it also has to be expected to be faster there.
    """
    target = build.target
    why = why_no_weights(build, weight)
    if why:
        return why
    if x.dtype != dtypes.FLOAT32:
        return "not float32"
    is_constant = weight.buffer.is_constant
    if not is_constant and any(isinstance(size, Size) for size in weight.shape):
        return "open sizes of the weights"
    if group != 1:
        return "groups"
    if x.is_reversed:
        return "reversed images"
    ordinary = estimate_otherwise(target, product) - packing_of(target, weight)
    why = why_not_chosen(target, product, rule_of(target, product), is_rule=is_rule, ordinary=ordinary)
    if why or not is_constant or target.strict_fp32:
        return why
    suits = build.ask(_matrix(x, weight), least_power) is not None
    return "" if suits else "weights that one scale a filter does not suit"


def estimate_otherwise(target: Target, product: Product) -> float:
    """The microseconds that a convolution is expected to take where it is not on units of fp16."""
    ordinary = estimate_ordinary(target, product)
    if not target.strict_fp32:
        return ordinary
    stored = 4 * typical(product.batch * product.m * product.n) / matrix_tiles.STORED
    return STRICT_LONGER * (ordinary + stored)


def why_no_weights(build: VulkanBuilder, weight: View) -> str:
    """Why units of a device are not for weights, or an empty string.

    Strict float32 are two pieces of fp16. What results are computed again from lies on the device besides.
    """
    has_pieces = matrix_units.forced is None or matrix_units.forced.tile.pieces == 2
    why = why_no_units(build.target, has_pieces=has_pieces)
    if why or not build.target.strict_fp32:
        return why
    return why_not_in_pieces(build, weight)


def why_not_in_pieces(build: VulkanBuilder, weight: View) -> str:
    """Why weights do not become two pieces of fp16, or an empty string."""
    has_room = build.keeps_pieces or not weight.buffer.is_constant
    return "" if has_room else "strict fp32, and no room for weights in pieces"


def packing_of(target: Target, weight: View) -> float:
    """Microseconds that a run is expected to take to pack weights that are no constant."""
    if weight.buffer.is_constant:
        return 0.0
    return packing(typical(math.prod(weight.shape)), LAUNCH, 2 if target.strict_fp32 else 1)


def launch(
    build: VulkanBuilder,
    product: Product,
    x: View,
    weight: View,
    windows: Windows,
    geometry: Mapping[str, int],
    choice: Choice,
) -> list[View]:
    """Emits a convolution that `refusal` has nothing against; returns the views of its results.

    Args:
        build: where the launches go.
        product: as in `refusal`.
        x: (batch, channels, depth, height, width), any strides.
        weight: as in `refusal`.
        windows: over depth, height and width.
        geometry: of the windows, by the names that kernels know it by.
        choice: tile and ranges of K.
    """
    fragment = build.target.fragment
    assert fragment is not None
    tile, splits = choice.tile, choice.splits
    _, filters, pixels = product.space
    m = product.n
    if weight.is_reversed or flat(weight) is None:
        weight = build.contiguous(weight)
    matrix = _matrix(x, weight)
    asked = (matrix,) if weight.buffer.is_constant else ()
    is_guarded = needs_guard(build, asked, tile.pieces)
    packed, least = pack(build, matrix, fragment, tile.pieces, asked, is_guarded=is_guarded)
    epilogue, outputs = build.take_epilogue(product.result)
    writer = build.writer()
    pointers = {
        "A_POINTER": writer.read(x),
        "B_POINTER": writer.read(fragments_of(packed, filters), width=4),
        "COLUMN_EXPONENTS": writer.read(exponents_of(packed, filters), reinterpreted_as="int"),
    }
    for name, value in geometry.items():
        writer.constant(value, name)
    writer.constant(pixels, "PIXELS")
    if _has_taps_innermost(x, weight):
        across = windows.kernel[-1]
        rows = 1 if across % VECTOR == 0 else 1 + -(-(VECTOR - 1) // across)
        writer.text(f"#define TAPS_INNERMOST\nstatic const int ROWS_A_LOAD = {rows};")
    else:
        writer.constant(_block(weight), "BLOCK")
    writer.constant(math.prod(weight.shape[2:]), "TAPS")
    if is_guarded:
        define_guard(writer, weight, packed)
    writer.constant(x.strides[1], "CHANNEL_STRIDE")
    define_guess(writer, least, tile.pieces)
    start = writer.offset(("image",), x.strides[:1])
    place = writer.offset(("d", "h", "w"), x.strides[2:])
    is_inside = not (
        any(windows.pads_begin) or any(reach > 0 for reach in windows.reach_end)
    ) and is_multiple(product.k, tile.step_k)
    writer.text(f"static const bool IS_INSIDE = {boolean(is_inside)};")
    writer.text(f"int image_start(int image) {{ return {start}; }}")
    writer.text(f"int image_place(int d, int h, int w) {{ return {place}; }}")
    define(writer, fragment, choice, (m, filters, product.k), pointers)
    shape = tile.n, tile.m
    partials = emit_finish(build, writer, product, splits, shape, tile.threads(fragment), outputs, epilogue)
    kernels = "matrix_units_windows", "unit_weights", "tile_bands", "matrix_units"
    tiles = -(-m // tile.m) * -(-filters // tile.n)
    emit(build, writer, product, kernels, choice, tiles, tile.pieces, is_guarded=is_guarded)
    if partials is not None:
        add_partials(build, product, partials, splits, outputs, epilogue)
    return outputs


def needs_guard(build: VulkanBuilder, asked: Sequence[View], pieces: int) -> bool:
    """Whether results are looked at for what fp16 may have lost: for all weights (…, n) but dense ones.

    Args:
        build: for a device.
        asked: constant weights; none where nothing is known of them.
        pieces: of fp16, of an element.
    """
    return not asked or pieces == 2 or any(build.ask(each, has_holes) for each in asked)


def pack(
    build: VulkanBuilder,
    matrix: View,
    fragment: Fragment,
    pieces: int,
    asked: Sequence[View],
    *,
    is_guarded: bool,
) -> tuple[View, int]:
    """Weights in fragments, of constants made once, of values in each run, and the least power of windows.

    Args:
        build: where launches go.
        matrix: of weights, as kernels count k.
        fragment: whose order.
        pieces: of fp16, of an element.
        asked: the constant weights whose ranges say how small windows may be; none where nothing is known.
        is_guarded: as `needs_guard` says.
    """
    packed = build.packed_weights if matrix.buffer.is_constant else build.packed_values
    if pieces == 2:
        return packed(matrix, fragment, 2), PIECES_LEAST_POWER
    if not matrix.buffer.is_constant:
        return packed(matrix, fragment), VALUES_LEAST_POWER
    found = [build.ask(each, least_power) for each in asked]
    least = max((each for each in found if isinstance(each, int)), default=VALUES_LEAST_POWER)
    return packed(matrix, fragment, 1 if is_guarded else 0), least


def emit(
    build: VulkanBuilder,
    writer: KernelWriter,
    product: Product,
    files: Sequence[str],
    choice: Choice | halo_tiles.Choice,
    tiles: int,
    pieces: int = 1,
    *,
    is_guarded: bool,
) -> None:
    """Emits a convolution of scaled fp16.

    Args:
        build: where the launch goes.
        writer: of the kernel, which knows all but what is the same for all tiles.
        product: its sizes.
        files: what is between scales and results.
        choice: tile and ranges of K.
        tiles: of results, each one workgroup's.
        pieces: of fp16, of an element.
        is_guarded: whether results are computed again that need it.
    """
    fragment = build.target.fragment
    assert fragment is not None
    batch, filters, pixels = product.space
    across, rows = writer.grid(tiles, build.target.max_groups)
    writer.need(*MATRIX_UNIT_NEEDS)
    guard = ("exact_results",) if is_guarded else ()
    scales = ("scales", *(("split_common",) if pieces == 2 else ()), "scale_guesses")
    writer.text("".join(map(template, (*scales, *files, "shared_results", *guard))))
    how = "fp16" if pieces == 1 else "pieces of fp16"
    build.emit(
        writer.finish(
            "conv",
            (across, rows, choice.splits),
            variant=choice.label() + (", two pieces" if pieces == 2 else ""),
            reason=f"batch {batch}, {filters} filters, {pixels} pixels, K {product.k}: {how} scaled by tiles "
            f"and filters, fp32 sums; {choice.time:.0f} µs expected, "
            f"else {estimate_otherwise(build.target, product):.0f}",
            subgroup_size=fragment.lanes,
        )
    )


def define_guard(writer: KernelWriter, weight: View, packed: View) -> None:
    """What results need that are computed again, where nothing is known of the weights before the run."""
    taps = flat(weight)
    assert taps is not None
    pointer, place = writer.read(taps), writer.offset(("n", "channel", "tap"), taps.strides)
    writer.text(
        "#define GUARDED\n"
        f"#define COLUMN_SMALL {writer.read(small_of(packed, weight.shape[0]), reinterpreted_as='int')}\n"
        f"float weight_at(int n, int channel, int tap) {{ return {pointer}[{place}]; }}\n"
        + multiply_add(dtypes.FLOAT32)
    )


def fits(tile: Tile, fragment: Fragment) -> bool:
    """Whether each thread's loads are all of one pixel, and what the kernel keeps in between has room."""
    slice_threads = tile.subgroups * fragment.lanes
    threads = tile.threads(fragment)
    words = (
        max(
            2 * tile.slices * tile.m * (tile.pieces * tile.step_k + 8),
            tile.n // tile.sub_n * fragment.n * 2 * (tile.m + 4),
        )
        // 8
    )
    return (
        slice_threads % tile.m == 0
        and tile.m * tile.step_k % (slice_threads * VECTOR) == 0
        and fragment.n * tile.sub_m // 4 % fragment.lanes == 0
        and threads // fragment.lanes <= tile.m
        and (tile.pieces == 1 or (tile.step_k % BLOCK == 0 and tile.sub_n % COLUMN_PADDING == 0))
        and threads <= words
        # Results that are computed again are the bits of a word a lane.
        and fragment.n * tile.sub_m <= 32 * fragment.lanes
    )


def shared_bytes(tile: Tile, fragment: Fragment) -> int:
    """As matrix_units_windows.slang counts them: results leave in columns, and each row has two numbers."""
    operands = 2 * tile.slices * tile.m * ((tile.pieces * tile.step_k + 8) // 8)
    results = tile.subgroups * fragment.n * ((tile.sub_m + 4) // 4)
    added = tile.slices // 2 * tile.m * tile.n // 4
    return 16 * (max(operands, results, added) + 2 * (tile.m // 4))


def rule_of(target: Target, product: Product) -> Choice | None:
    """The choice with the least estimated time; None where no tile fits."""
    time, found = min(_timed(target, product), key=lambda timed: timed[0], default=(0.0, None))
    return None if found is None else replace(found, time=time)


def choices(target: Target, product: Product) -> list[Choice]:
    """Tiles and ranges of K. Pixels are the matrix units' rows, filters their columns."""
    return [replace(choice, time=time) for time, choice in _timed(target, product)]


def _timed(target: Target, product: Product) -> Iterator[tuple[float, Choice]]:
    """Each with the microseconds that it takes, with what adds up its ranges."""
    m, n, k = (typical(size) for size in (product.n, product.m, product.k))
    fragment = target.fragment
    assert fragment is not None
    for choice in _choices(target, m, n, k, matrix_units.forced):
        shape, threads = (choice.tile.n, choice.tile.m), choice.tile.threads(fragment)
        yield choice.time + range_sums.microseconds(target, product, choice.splits, shape, threads), choice


@functools.lru_cache(maxsize=512)
def _choices(target: Target, m: int, n: int, k: int, forced: Choice | None) -> tuple[Choice, ...]:
    """Each is asked for when nodes are placed and when they are lowered, twice."""
    fragment = target.fragment
    assert fragment is not None
    sizes = Product(1, m, n, k, dtypes.FLOAT32, TensorType(dtypes.FLOAT32, (n, m)), (1, n, m), "n, m", "conv")
    pieces = 2 if target.strict_fp32 else 1
    tiles = tuple(tile for tile in TILES if tile.pieces == pieces)

    def suits(tile: Tile) -> bool:
        return fits(tile, fragment) and shared_bytes(tile, fragment) <= target.shared_bytes

    found = matrix_units.choices(target, fragment, sizes, suits, (False,), tiles)
    return tuple(replace(each, time=_estimate(target, fragment, each, m, n, k)) for each in found)


def _estimate(target: Target, fragment: Fragment, choice: Choice, m: int, n: int, k: int) -> float:
    """Microseconds; what is before a workgroup's steps is as if it had read all of its rows once."""
    tile, splits = choice.tile, choice.splits
    read = 4 * tile.m * -(-k // splits) * matrix_tiles.resident(target, fragment, tile) / READ_BY_ONE
    return matrix_tiles.estimate_waves(target, fragment, tile, splits, m, n, k, LOOK + read)


def _has_taps_innermost(x: View, weight: View) -> bool:
    """Whether k counts each channel's taps one after the other; else channels, in blocks, for each tap.

    Channels where they are whole vectors, for pixels of several channels are worked out once; but not where
    channels lie further apart than images do. These are the images of a gradient of weights, which sums over
    samples: their channels are samples, their taps the outputs.
    """
    if weight.shape[1] % VECTOR:
        return True
    return typical(x.shape[0]) > 1 and typical(x.strides[1]) > typical(x.strides[0])


def _block(weight: View) -> int:
    """Channels that are read for all taps before others are: so many pixels stay in the first-level cache."""
    channels, taps = weight.shape[1], math.prod(weight.shape[2:])
    return CHANNEL_BLOCK if taps > 1 and channels % CHANNEL_BLOCK == 0 else channels


def flat(weight: View) -> View | None:
    """(out channels, channels, taps), if strides allow it."""
    return weight.reshape((*weight.shape[:2], math.prod(weight.shape[2:])))


def _matrix(x: View, weight: View) -> View:
    """(k, out channels) of weights, or (blocks, taps, channels of a block, out channels)."""
    flattened = flat(weight)
    assert flattened is not None
    out, channels, taps = flattened.shape
    far, near, along = flattened.strides
    if not _has_taps_innermost(x, weight):
        block = _block(weight)
        shape, strides = (channels // block, taps, block, out), (block * near, along, near, far)
        return replace(flattened, shape=shape, strides=strides)
    if near == taps * along or channels == 1:
        return replace(flattened, shape=(channels * taps, out), strides=(along, far))
    return replace(flattened, shape=(1, channels, taps, out), strides=(0, near, along, far))
