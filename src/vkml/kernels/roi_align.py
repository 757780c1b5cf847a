"""RoiAlign: bilinear samples of regions of images, averaged or their greatest, bin by bin."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from vkml.ir import TensorType, dtypes
from vkml.ir.scalar import arithmetic_type
from vkml.kernels.gather import index_reader
from vkml.kernels.scalar_text import literal
from vkml.kernels.views import View
from vkml.kernels.writer import compute_type, load_expression, store_expression, template

if TYPE_CHECKING:
    from vkml.lowering.vulkan_builder import VulkanBuilder

MOST_SAMPLES = 1 << 22
"""Of a bin, where the region decides how many there are."""
_WORKGROUP = 64


def roi_align(
    build: VulkanBuilder,
    x: View,
    regions: View,
    images: View,
    result: TensorType,
    *,
    scale: float,
    ratio: int,
    is_max: bool,
    is_half_pixel: bool,
) -> list[View]:
    """Samples `x`; an image that is not there, or a region of no extent, is reported.

    Args:
        build: where the launch goes.
        x: (batch, channels, height, width).
        regions: (regions, 4): x and y of two corners.
        images: (regions): which image each is of, int32 or int64.
        result: (regions, channels, rows of bins, columns of bins).
        scale: of the corners.
        ratio: samples of a bin along each axis; 0: one for each pixel or less.
        is_max: the greatest weighted neighbour instead of the mean.
        is_half_pixel: whether pixels' centres are at halves.
    """
    accumulator = dtypes.FLOAT64 if dtypes.FLOAT64 in (x.dtype, regions.dtype) else arithmetic_type(x.dtype)
    type_ = compute_type(accumulator)
    target = build.output(result)
    writer = build.writer()
    writer.math()
    writer.text(f"typealias Accumulator = {type_};")
    for name, flag in (("MODE_IS_MAX", is_max), ("IS_HALF_PIXEL", is_half_pixel)):
        writer.text(f"static const bool {name} = {'true' if flag else 'false'};")
    writer.text(f"static const int MOST = {MOST_SAMPLES};")
    batch, channels, height, width = x.shape
    rows, columns = result.dims[2:]
    index_reader(build, writer, images)
    for name, number in (
        ("RATIO", ratio),
        ("CHANNELS", channels),
        ("HEIGHT", height),
        ("WIDTH", width),
        ("ROWS", rows),
        ("COLUMNS", columns),
        ("TOTAL", math.prod(result.dims)),
    ):
        writer.constant(number, name)
    size = writer.constant(batch)
    pixel = writer.offset(("image", "channel", "y", "x"), x.strides)
    element = load_expression(writer.read(x), pixel, x.dtype)
    edge = load_expression(
        writer.read(regions), writer.offset(("region", "which"), regions.strides), regions.dtype
    )
    place = writer.offset(("region", "channel", "row", "column"), target.strides)
    sink, stored = writer.write(target), store_expression("value", target.dtype)
    picked = f"read_index({writer.offset(('region',), images.strides)})"
    writer.text(
        f"Accumulator scale() {{ return {literal(scale, accumulator)}; }}\n"
        f"Accumulator load(int image, int channel, int y, int x) {{ return Accumulator({element}); }}\n"
        f"Accumulator corner(int region, int which) {{ return Accumulator({edge}); }}\n"
        # Nothing is counted from the end here.
        f"int image_of(int region)\n"
        f"{{ int pick = {picked}; return checked(pick < 0 ? {size} : pick, {size}); }}\n"
        f"void report() {{ checked({size}, {size}); }}\n"
        f"void store(int region, int channel, int row, int column, Accumulator value)\n"
        f"{{ {sink}[{place}] = {stored}; }}"
    )
    writer.text(template("roi_align"))
    across, high = writer.grid(-(-math.prod(result.dims) // _WORKGROUP), build.target.max_groups)
    build.emit(writer.finish("roi_align", (across, high, 1), variant="maximum" if is_max else "average"))
    return [target]
