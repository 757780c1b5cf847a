"""Pooling over up to three spatial axes: the maximum, the mean, a norm of windows; the maximum's gradient."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

from vkml.dataclasses import dataclass
from vkml.ir import DType, TensorType
from vkml.ir.scalar import arithmetic_type
from vkml.ir.size import Size
from vkml.ir.windows import Windows
from vkml.kernels.pointwise import emit_store, on_space
from vkml.kernels.reduction import extreme
from vkml.kernels.reduction import norm as reduce_norm
from vkml.kernels.views import View
from vkml.kernels.window_blocks import (
    Block,
    block_of,
    emit_block,
    emit_line_store,
    emit_vectors,
    input_rows,
    is_known_below,
    items_of,
    keeps_rows,
    span,
)
from vkml.kernels.writer import KernelWriter, compute_type, load_expression, store_expression, template

if TYPE_CHECKING:
    from vkml.lowering.vulkan_builder import VulkanBuilder

WORKGROUP = 128
_MOST_LAID_OUT = 64
"""Elements that a thread reads for a column of results, up to which its loops are laid out,"""
_MOST_IN_SOFTWARE = 16
"""and for all of them where the driver is software, which takes minutes, and gigabytes, to compile more."""
_MOST_TAPS = 16
"""Of windows, and windows of an element, up to which loops of the gradient of a maximum are laid out."""
_MOST_APART = 4
"""Results of a thread in several rows, where their windows' rows are no neighbours."""
_MOST_OF_A_TILE = 1024
"""Elements, and windows: what is kept of these takes 12 KiB in fp64, and every device has 16."""


@dataclass(frozen=True)
class PoolFunction:
    """What is made of a window's elements, as Slang text over the accumulator's type."""

    label: str
    combine: str
    """Of the value so far and an element x."""
    finalize: str = "value"
    """Of the combined value and the number of elements, `count`."""


AVERAGE = PoolFunction("average_pool", "value + x", "value / Accumulator(max(count, 1))")
SUM_OF_SQUARES = PoolFunction("sum_of_squares", "value + x * x")


def norm(p: float, dtype: DType) -> PoolFunction:
    """The p-norm of each window of elements of `dtype`."""
    how = reduce_norm(p, dtype)
    return PoolFunction("norm_pool", f"value + {how.map}", how.finalize.replace("x", "value"))


def pool(
    build: VulkanBuilder,
    x: View,
    result: TensorType,
    windows: Windows,
    *,
    how: PoolFunction,
    counts_padding: bool = False,
) -> list[View]:
    """Pools `x`, a view of (batch, channels, depth, height, width); missing dimensions have size 1."""
    batch, channels = x.shape[:2]
    pixels = math.prod(windows.output)
    total = batch * channels * pixels
    accumulator = arithmetic_type(x.dtype)
    type_ = compute_type(accumulator)
    epilogue, outputs = build.take_epilogue(result)
    writer = build.writer()
    writer.text(f"typealias Accumulator = {type_};")
    writer.text(f"static const bool COUNT_PAD = {'true' if counts_padding else 'false'};")
    _emit_planes(writer, x, windows)
    writer.text(
        "Accumulator initial() { return Accumulator(0); }\n"
        f"Accumulator combine(Accumulator value, Accumulator x) {{ return {how.combine}; }}\n"
        f"Accumulator finalize(Accumulator value, int count) {{ return {how.finalize}; }}"
    )
    emit_store(writer, (batch, channels, pixels), outputs, epilogue, type_)
    writer.math()
    writer.text(template("pool"))
    across, high = writer.grid(-(-total // WORKGROUP), build.target.max_groups)
    build.emit(writer.finish(how.label, (across, high, 1), variant="direct"))
    return outputs


def max_pool(build: VulkanBuilder, x: View, result: TensorType, windows: Windows) -> list[View]:
    """The greatest elements of windows of `x`, a view of (batch, channels, depth, height, width)."""
    batch, channels = x.shape[:2]
    depth, height, width = windows.output
    accumulator = arithmetic_type(x.dtype)
    type_ = compute_type(accumulator)
    epilogue, outputs = build.take_epilogue(result)
    planes = batch * channels * depth

    is_software = build.target.processors == 1

    def fits(block: Block) -> bool:
        return _is_short(windows, block, is_software=is_software)

    block = block_of(x, planes, windows, fits, _MOST_APART)
    items = items_of(planes, windows, block)
    writer = build.writer()
    writer.text(f"typealias Accumulator = {type_};\ntypealias Line = vector<Accumulator, {block.columns}>;")
    _emit_geometry(writer, windows)
    writer.constant(channels, "CHANNELS")
    writer.constant(items, "ITEMS")
    is_laid_out = keeps_rows(windows, block.columns) and fits(block)
    emit_block(writer, windows, block, is_laid_out=is_laid_out)
    emit_vectors(writer, x, block.vector)
    writer.text(f"Accumulator initial() {{ return {extreme(accumulator, lowest=True)}; }}")
    writer.text(_FLOAT_KEYS if type_ == "float" else _OWN_KEYS)
    emit_line_store(writer, (batch, channels, depth * height, width), outputs, epilogue, type_, block.columns)
    writer.math()
    writer.text(template("pool_max"))
    across, high = writer.grid(-(-items // WORKGROUP), build.target.max_groups)
    build.emit(writer.finish("max_pool", (across, high, 1), variant=block.variant))
    return outputs


_FLOAT_KEYS = """typealias Key = int;
Key key_of(float x)
{
    int bits = asint(x);
    return is_nan(x) ? 0x7fffffff : bits ^ ((bits >> 31) & 0x7fffffff);
}
float value_of(Key key) { return asfloat(key ^ ((key >> 31) & 0x7fffffff)); }
Key greater(Key a, Key b) { return max(a, b); }"""
"""Floats as integers in the same order: of negative ones the greater magnitude is the lesser number."""
_OWN_KEYS = """typealias Key = Accumulator;
Key key_of(Accumulator x) { return x; }
Accumulator value_of(Key key) { return key; }
Key greater(Key a, Key b) { return maximum(a, b); }"""


def _is_short(windows: Windows, block: Block, *, is_software: bool = False) -> bool:
    """Whether loops over so many windows are laid out: which hold an element is known then."""
    most = _MOST_IN_SOFTWARE if is_software else _MOST_LAID_OUT * block.columns
    return is_known_below(windows) and input_rows(windows, block.rows) * span(windows, block.columns) <= most


def max_pool_places(
    build: VulkanBuilder,
    x: View,
    windows: Windows,
    values: View | None,
    places: View,
    *,
    is_column_major: bool,
) -> None:
    """The first of the greatest elements of each window, and where it lies in `x` laid out row by row.

    Args:
        build: where the launch goes.
        x: (batch, channels, depth, height, width).
        windows: over its last three axes.
        values: where the elements go; None where they are not wanted.
        places: where the places go, int64: -1 for a window that holds nothing.
        is_column_major: whether places count the last axis slowest instead, within a plane.
    """
    batch, channels = x.shape[:2]
    total = batch * channels * math.prod(windows.output)
    writer = build.writer()
    writer.math()
    writer.text(f"typealias Accumulator = {compute_type(x.dtype)};")
    _emit_planes(writer, x, windows)
    writer.text(f"Accumulator initial() {{ return {extreme(x.dtype, lowest=True)}; }}")
    depth, height, width = windows.spatial
    weights = (1, depth, depth * height) if is_column_major else (height * width, width, 1)
    at = writer.offset(("d", "h", "w"), weights)
    size = writer.constant(depth * height * width)
    writer.text(
        f"int64_t place(int plane, int d, int h, int w) {{ return int64_t(plane) * {size} + ({at}); }}"
    )
    coordinates = ("image", "channel", "pixel")
    lines = []
    for view, value in ((values, "best"), (places, "at")):
        if view is None:
            continue
        flat = on_space(view, (batch, channels, math.prod(windows.output)))
        stored = store_expression(value, view.dtype)
        lines.append(f"    {writer.write(flat)}[{writer.offset(coordinates, flat.strides)}] = {stored};")
    arguments = "int image, int channel, int pixel, Accumulator best, int64_t at"
    writer.text("\n".join([f"void store({arguments})", "{", *lines, "}"]))
    writer.text(template("pool_places"))
    across, high = writer.grid(-(-total // WORKGROUP), build.target.max_groups)
    build.emit(writer.finish("max_pool_places", (across, high, 1)))


def max_pool_gradient(build: VulkanBuilder, x: View, cotangent: View, result: View, windows: Windows) -> bool:
    """The gradient of the greatest elements of windows: the first of equals has what the window has.

    Args:
        build: where the launch goes.
        x: (batch, channels, depth, height, width).
        cotangent: what the windows have, over the same axes.
        result: where the sums go; of x's shape.
        windows: over the last three axes of x.

    Returns:
        False where the windows that hold one element are too many for a workgroup's memory, or sizes are
        open, of which no tile can be told.
    """
    if any(isinstance(size, Size) for size in (*windows.spatial, *windows.output)):
        return False
    tile = _tile_of_gradients(windows)
    if tile is None:
        return False
    batch, channels = x.shape[:2]
    # Windows that one element may lie in.
    covers = tuple(-(-extent // s) for extent, s in zip(windows.extents, windows.strides, strict=True))
    is_laid_out = max(windows.taps, math.prod(covers)) <= _MOST_TAPS
    writer = build.writer()
    writer.math()
    writer.text(
        f"typealias Accumulator = {compute_type(x.dtype)};\n"
        f"static const int WORKGROUP = {WORKGROUP};\n"
        f"static const int MOST_WINDOWS = {_MOST_OF_A_TILE};\n"
        f"#define LAID_OUT {'[ForceUnroll]' if is_laid_out else ''}"
    )
    for prefix, triple in (("TAPS_", windows.kernel), ("COVER_", covers)):
        for axis, number in zip("DHW", triple, strict=True):
            writer.text(f"static const int {prefix}{axis} = {number};")
    _emit_planes(writer, x, windows)
    for prefix, triple in (
        ("T", tile.sizes),
        ("N", tile.windows),
        ("TILES_", tile.counts),
        ("EXTENT_", windows.extents),
    ):
        for axis, number in zip("DHW", triple, strict=True):
            writer.constant(number, f"{prefix}{axis}")
    threads = min(tile.sizes[-1], WORKGROUP)
    writer.constant(threads, "THREADS")
    writer.constant(WORKGROUP // threads, "ROWS")
    writer.constant(tile.planes, "PLANES")
    writer.constant(batch * channels, "ALL_PLANES")
    coordinates = ("image", "channel", "d", "h", "w")
    arguments = ", ".join(f"int {name}" for name in coordinates)
    incoming = load_expression(
        writer.read(cotangent), writer.offset(coordinates, cotangent.strides), cotangent.dtype
    )
    writer.text(f"Accumulator cotangent({arguments}) {{ return {incoming}; }}")
    target = f"{writer.write(result)}[{writer.offset(coordinates, result.strides)}]"
    stored = store_expression("sum", result.dtype)
    writer.text(f"void store({arguments}, Accumulator sum) {{ {target} = {stored}; }}")
    writer.text(template("pool_gradient"))
    count = -(-(batch * channels) // tile.planes) * math.prod(tile.counts)
    across, high = writer.grid(count, build.target.max_groups)
    build.emit(writer.finish("max_pool_gradient", (across, high, 1)))
    return True


@dataclass(frozen=True)
class _Tile:
    """What a workgroup has of an image; every tuple has one entry a spatial axis."""

    sizes: tuple[int, ...]
    counts: tuple[int, ...]
    """Tiles along each axis."""
    windows: tuple[int, ...]
    """How many hold an element of a tile, at most."""

    @property
    def planes(self) -> int:
        """How many there are in a tile: more than one only where tiles are whole planes."""
        if math.prod(self.counts) > 1:
            return 1
        largest = max(math.prod(self.sizes), math.prod(self.windows))
        return 1 << ((_MOST_OF_A_TILE // largest).bit_length() - 1)

    def work(self, taps: int) -> int:
        """Elements that all tiles of a plane look at and sum for."""
        return math.prod(self.counts) * (math.prod(self.windows) * taps + math.prod(self.sizes))


def _tile_of_gradients(windows: Windows) -> _Tile | None:
    """The widest tile of those with little work; None where none is small enough.

    Memory comes in lines, which a wide tile uses whole: that is worth an eighth more of work.
    """
    halves = [sorted({-(-size >> power) for power in range(size.bit_length())}) for size in windows.spatial]
    found = []
    for sizes in itertools.product(*halves):
        held = tuple(
            min((size + extent - 2) // stride + 1, count)
            for size, extent, stride, count in zip(
                sizes, windows.extents, windows.strides, windows.output, strict=True
            )
        )
        if max(math.prod(sizes), math.prod(held)) <= _MOST_OF_A_TILE:
            counts = tuple(-(-whole // size) for whole, size in zip(windows.spatial, sizes, strict=True))
            found.append(_Tile(sizes, counts, held))
    if not found:
        return None
    least = min(tile.work(windows.taps) for tile in found)
    few = [tile for tile in found if 8 * tile.work(windows.taps) <= 9 * least]
    return max(few, key=lambda tile: (tile.sizes[-1], -tile.work(windows.taps)))


def _emit_geometry(writer: KernelWriter, windows: Windows) -> None:
    """Adds the sizes of windows."""
    for prefix, triple in (
        ("S", windows.strides),
        ("D", windows.dilations),
        ("PAD", windows.pads_begin),
        ("PAD_END_", windows.pads_end),
        ("K", windows.kernel),
        ("X", windows.spatial),
        ("O", windows.output),
    ):
        for axis, number in zip("DHW", triple, strict=True):
            writer.constant(number, f"{prefix}{axis}")


def _emit_planes(writer: KernelWriter, x: View, windows: Windows) -> None:
    """Adds the windows' geometry, ``plane(image, channel)`` and ``load(plane offset, d, h, w)``."""
    _emit_geometry(writer, windows)
    pixels = math.prod(windows.output)
    writer.constant(pixels, "PIXELS")
    writer.constant(x.shape[1], "CHANNELS")
    writer.constant(x.shape[0] * x.shape[1] * pixels, "TOTAL")
    plane = writer.offset(("image", "channel"), x.strides[:2])
    place = writer.offset(("d", "h", "w"), x.strides[2:])
    element = load_expression(writer.read(x), f"start + {place}", x.dtype)
    writer.text(f"int plane(int image, int channel) {{ return {plane}; }}")
    writer.text(f"Accumulator load(int start, int d, int h, int w) {{ return {element}; }}")
