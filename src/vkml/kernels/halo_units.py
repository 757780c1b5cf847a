"""Launches of convolutions of float32 whose windows overlap, on matrix units: whether, and in which tiles."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from vkml.ir import TensorType, dtypes
from vkml.ir.size import Size
from vkml.ir.windows import Windows
from vkml.kernels import halo_tiles, matrix_units
from vkml.kernels.conv_units import (
    define_guard,
    emit,
    estimate_otherwise,
    flat,
    needs_guard,
    pack,
    packing_of,
    why_not_in_pieces,
)
from vkml.kernels.gemm import Product
from vkml.kernels.halo_tiles import Band, Choice, Operand, Shape, Tile, fits, shape_of
from vkml.kernels.matrix_units import why_no_units
from vkml.kernels.packed_weights import (
    COLUMN_PADDING,
    K_PADDING,
    Fragment,
    define_guess,
    exponents_of,
    fragments_of,
    least_power,
)
from vkml.kernels.results import add_partials, define_results
from vkml.kernels.views import View
from vkml.kernels.writer import KernelWriter

if TYPE_CHECKING:
    from vkml.lowering.target import Target
    from vkml.lowering.vulkan_builder import VulkanBuilder

GROUPS_LONGER = 1.5
"""How much longer ordinary arithmetic takes for groups than is estimated (1.2 to 3.4; 21 layers, H200)."""

forced: Choice | None = None
"""For tests and tuning runs: what is chosen wherever a convolution can be computed so at all."""


def refusal(
    build: VulkanBuilder, product: Product, x: View, weight: View, windows: Windows, group: int
) -> str:
    """Why a convolution is not for this kernel, or an empty string.

    Args:
        build: for a device.
        product: its sizes: m counts filters, n pixels of all images.
        x: (batch, channels, depth, height, width).
        weight: (out channels, channels, kernel depth, height, width).
        windows: over depth, height and width.
        group: number of groups.
    """
    target = build.target
    pieces = pieces_of(target)
    why = why_no_units(target, is_forced=forced is not None, has_pieces=pieces == 2)
    if why:
        return why
    if forced is None and matrix_units.forced is not None:
        return "another kernel is forced"
    if x.dtype != dtypes.FLOAT32:
        return "not float32"
    if any(isinstance(size, Size) for size in weight.shape):
        return "open sizes of the weights"
    if not weight.elements:
        return "no channels"
    if group != 1 and not weight.buffer.is_constant:
        return "groups of computed weights"
    if x.is_reversed:
        return "reversed images"
    if any(isinstance(size, Size) for size in (*windows.spatial, *x.strides[1:])):
        return "open sizes of images"
    if windows.spatial[0] != 1 or windows.kernel[0] != 1 or windows.output[0] != 1:
        return "three dimensions"
    if all(kernel <= stride for kernel, stride in zip(windows.kernel, windows.strides, strict=True)):
        return "windows that do not overlap"
    if min(windows.pads_begin) < 0:
        return "images that are cropped"
    assert target.fragment is not None
    if not target.holds_elements_once(target.fragment):
        return "the device's fragments hold elements more than once"
    if pieces == 2:
        return why_not_in_pieces(build, weight)
    if weight.buffer.is_constant and group == 1 and build.ask(_whole(weight), least_power) is None:
        return "weights that one scale a filter does not suit"
    return ""


def pieces_of(target: Target) -> int:
    """Of fp16, that an element becomes on a device: two where all bits of float32 count."""
    if forced is not None:
        return forced.tile.pieces
    return 2 if target.strict_fp32 else 1


def choices(target: Target, product: Product, weight: View, windows: Windows, group: int) -> list[Choice]:
    """Tiles and ranges of channels for a convolution that `refusal` has nothing against, with their times."""
    fragment = target.fragment
    assert fragment is not None
    if forced is not None:
        return [forced] if fits(forced.tile, fragment, target, weight, windows, group) else []
    return halo_tiles.choices(target, product, weight, windows, group, pieces_of(target))


def best(
    target: Target, product: Product, weight: View, group: int, found: Sequence[Choice]
) -> Choice | None:
    """The choice with the least expected time; None where ordinary arithmetic should take no longer."""
    choice = min(found, key=lambda each: each.time, default=None)
    ordinary = estimate_otherwise(target, product) - packing_of(target, weight)
    if group > 1:
        ordinary *= GROUPS_LONGER
    if choice is None or (forced is None and choice.time >= ordinary):
        return None
    return choice


def launch(
    build: VulkanBuilder,
    product: Product,
    x: View,
    weight: View,
    windows: Windows,
    geometry: Mapping[str, int],
    group: int,
    choice: Choice,
) -> list[View]:
    """Emits a convolution that `refusal` has nothing against; returns the views of its results.

    Args:
        build: where the launches go.
        product: its sizes: m counts filters, n pixels of all images.
        x: (batch, channels, 1, height, width), any strides.
        weight: as in `refusal`; row-major where it is constant.
        windows: over depth, height and width.
        geometry: of the windows, by the names that kernels know it by.
        group: number of groups.
        choice: tile and ranges of channels.
    """
    fragment = build.target.fragment
    assert fragment is not None
    tile, splits = choice.tile, choice.splits
    batch, filters, pixels = product.space
    operand = Operand.of(weight, tile, group)
    shape, band = operand.shape, operand.band
    asked: tuple[View, ...] = ()
    if weight.buffer.is_constant:
        asked = _asked(build, weight, band)
        if band is not None and not band.is_of_one:
            key, change = f"in bands: {band}", functools.partial(_banded, band=band)
            weight = build.prepared(weight, key, change)
        elif shape != weight.shape:
            weight = build.prepared(weight, f"padded to {shape}", functools.partial(_padded, shape=shape))
    elif weight.is_reversed or flat(weight) is None:
        weight = build.contiguous(weight)
    matrix = matrix_of(weight, tile.block)
    is_guarded = needs_guard(build, asked, tile.pieces)
    packed, least = pack(build, matrix, fragment, tile.pieces, asked, is_guarded=is_guarded)
    epilogue, outputs = build.take_epilogue(product.result)
    layout = shape_of(tile, fragment, windows, batch)
    writer = build.writer()
    pointers = {
        "A_POINTER": writer.read(x),
        "B_POINTER": writer.read(fragments_of(packed, filters), width=4),
        "COLUMN_EXPONENTS": writer.read(exponents_of(packed, filters), reinterpreted_as="int"),
    }
    for name in ("PADH", "PADW", "XH", "XW", "OH", "OW"):
        writer.constant(geometry[name], name)
    writer.constant(filters, "N")
    writer.constant(operand.channels // tile.block, "BLOCKS")
    writer.constant(splits, "SPLITS")
    writer.constant(layout.tiles, "TILES_M")
    writer.constant(x.strides[1], "CHANNEL_STRIDE")
    if tile.across:
        writer.constant(layout.across, "TILES_X")
        writer.constant(layout.down, "TILES_Y")
    else:
        writer.constant(batch, "BATCH")
        writer.constant(layout.positions, "POSITIONS")
    define_guess(writer, least, tile.pieces)
    if is_guarded:
        define_guard(writer, weight, packed)
    writer.text(_text(tile, fragment, windows, operand, layout, pointers))
    start = writer.offset(("image",), x.strides[:1])
    place = writer.offset(("h", "w"), x.strides[3:])
    writer.text(f"int image_start(int image) {{ return {start}; }}")
    writer.text(f"int image_place(int h, int w) {{ return {place}; }}")
    writer.text(_channels_of(writer, band))
    partials = None
    if splits > 1:
        partials = build.scratch(TensorType(dtypes.FLOAT32, (splits, 1, filters, product.n)))
        store = define_results(
            writer, (splits, filters, product.n), [partials], None, has_fours=layout.has_fours
        )
        writer.constant(pixels, "PIXELS")
        call = f"{store}(split, n, image * PIXELS + pixel, x)"
    else:
        store = define_results(writer, product.space, outputs, epilogue, has_fours=layout.has_fours)
        call = f"{store}(image, n, pixel, x)"
    writer.text(f"void finish(int split, int image, int n, int pixel, Results x) {{ {call}; }}")
    emit(
        build,
        writer,
        product,
        ("halo_pixels", "unit_weights", "tile_bands", "halo_units"),
        choice,
        layout.tiles * -(-filters // tile.n),
        tile.pieces,
        is_guarded=is_guarded,
    )
    if partials is not None:
        add_partials(build, product, partials, splits, outputs, epilogue)
    return outputs


def _text(
    tile: Tile,
    fragment: Fragment,
    windows: Windows,
    operand: Operand,
    layout: Shape,
    pointers: Mapping[str, str],
) -> str:
    """What halo_units.slang is told that is no specialization constant."""
    row = operand.kernel[2] * tile.block // fragment.k
    most = min(tile.ahead, K_PADDING // fragment.k)
    numbers = {
        "FRAGMENT_M": fragment.m,
        "FRAGMENT_N": fragment.n,
        "FRAGMENT_K": fragment.k,
        "LANES": fragment.lanes,
        "DOWN": tile.down,
        "SUB_N": tile.sub_n,
        "SUBS_M": tile.subs_m,
        "SUBS_N": tile.subs_n,
        "FRAGMENTS_A_ROW": tile.across or tile.down * tile.subs_m,
        "BLOCK": tile.block,
        "AHEAD": max(ahead for ahead in range(1, most + 1) if row % ahead == 0),
        "PITCH": layout.pitch,
        "HALO": layout.halo,
        "CHANNELS_THERE": operand.channels_there,
        "KW_THERE": windows.kernel[2],
    }
    for letter, sizes in (("K", operand.kernel), ("S", windows.strides), ("D", windows.dilations)):
        numbers |= {f"{letter}H": sizes[1], f"{letter}W": sizes[2]}
    lines = [f"static const int {name} = {value};" for name, value in numbers.items()]
    lines += [
        f"#define STAGES {tile.stages}",
        f"#define IS_LINEAR {int(not tile.across)}",
        f"#define PIECES {tile.pieces}",
    ]
    lines.append(f"typealias Element = {fragment.slang_element};")
    lines += [f"#define {name} {pointer}" for name, pointer in pointers.items()]
    lines.append(f"#define N_BLOCKS ((N + {COLUMN_PADDING - 1}) / {COLUMN_PADDING} * {COLUMN_PADDING // 8})")
    return "\n".join(lines)


def matrix_of(weight: View, block: int) -> View:
    """(blocks, taps, channels of a block, out channels) of weights."""
    flattened = flat(weight)
    assert flattened is not None
    out, channels, taps = flattened.shape
    far, near, along = flattened.strides
    shape, strides = (channels // block, taps, block, out), (block * near, along, near, far)
    return replace(flattened, shape=shape, strides=strides)


def _whole(weight: View) -> View:
    return matrix_of(weight, weight.shape[1])


def _asked(build: VulkanBuilder, weight: View, band: Band | None) -> tuple[View, ...]:
    """The matrices of constant weights that say how small windows may be; none where nothing of theirs does.

    That is where a tile sees channels that some of its filters have no weights for, or where one scale a
    filter does not suit a group.
    """
    if band is None:
        return (_whole(weight),)
    if not band.is_of_one:
        return ()
    starts = range(0, weight.shape[0], band.group_filters)
    parts = tuple(
        replace(
            weight,
            shape=(band.group_filters, *weight.shape[1:]),
            offset=weight.offset + start * weight.strides[0],
        )
        for start in starts
    )
    asked = tuple(map(_whole, parts))
    return asked if all(build.ask(each, least_power) is not None for each in asked) else ()


def _channels_of(writer: KernelWriter, band: Band | None) -> str:
    """What halo_units.slang asks of groups."""
    if band is None:
        return "int first_channel(int n) { return 0; }\nbool is_in_group(int n, int channel) { return true; }"
    names = {"SEEN_BY": band.filters, "GROUP_N": band.group_filters, "GROUP_CHANNELS": band.group_channels}
    for name, value in (names | {"LAST_CHANNEL": band.last}).items():
        writer.constant(value, name)
    return (
        "int first_channel(int n)\n"
        "{ return min(n / SEEN_BY * SEEN_BY / GROUP_N * GROUP_CHANNELS, LAST_CHANNEL); }\n"
        "bool is_in_group(int n, int channel)\n"
        "{ return (first_channel(n) + channel) / GROUP_CHANNELS == n / GROUP_N; }"
    )


def _banded(weight: np.ndarray[Any, Any], band: Band) -> np.ndarray[Any, Any]:
    """(filters, channels of a group, *window) → (filters, channels that their tile sees, *window)."""
    filters, channels, *window = weight.shape
    seen = np.zeros((filters, band.channels, *window), weight.dtype)
    for n in range(filters):
        start = n // band.group_filters * channels - band.first(n)
        seen[n, start : start + channels] = weight[n]
    return seen


def _padded(weight: np.ndarray[Any, Any], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """With zeros behind what there is."""
    return np.pad(weight, [(0, size - given) for size, given in zip(shape, weight.shape, strict=True)])
