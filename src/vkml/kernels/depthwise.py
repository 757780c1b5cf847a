"""Depthwise convolutions: a block of results a thread, which reads each row of the input once for them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from vkml.ir import TensorType
from vkml.ir.scalar import arithmetic_type
from vkml.ir.windows import Windows
from vkml.kernels import window_blocks
from vkml.kernels.views import View
from vkml.kernels.window_blocks import Block, block_of, emit_block, emit_line_store, emit_vectors, items_of
from vkml.kernels.writer import compute_type, load_expression, multiply_add, template

if TYPE_CHECKING:
    from vkml.lowering.vulkan_builder import VulkanBuilder

WORKGROUP = 128
MOST_PRODUCTS = 1024
"""Of a thread whose loops are laid out;"""
MOST_IN_SOFTWARE = 128
"""of one for a driver in software, which takes minutes, and gigabytes, to compile more;"""
MOST_TAPS = 64
"""weights that it keeps in registers,"""
MOST_ROWS = 4
"""and rows of several results;"""
MOST_APART = 2
"""results, where their windows' rows are no neighbours."""


def depthwise(
    build: VulkanBuilder,
    x: View,
    weight: View,
    result: TensorType,
    windows: Windows,
    geometry: dict[str, int],
) -> list[View]:
    """A convolution each of whose output channels reads one input channel.

    Args:
        build: where the launch goes.
        x: (batch, channels, depth, height, width), any strides.
        weight: (out channels, 1, kernel depth, height, width), row by row.
        result: type of the output.
        windows: over depth, height and width.
        geometry: of the windows, by the template's names.
    """
    batch, channels = x.shape[:2]
    out_channels = weight.shape[0]
    depth, height, width = windows.output
    planes = batch * out_channels * depth

    most = MOST_IN_SOFTWARE if build.target.processors == 1 else MOST_PRODUCTS

    def fits(block: Block) -> bool:
        return _is_short(windows, block, most)

    block = block_of(x, planes, windows, fits, MOST_APART)
    items = items_of(planes, windows, block)
    epilogue, outputs = build.take_epilogue(result)
    writer = build.writer()
    accumulator = arithmetic_type(x.dtype)
    type_ = compute_type(accumulator)
    writer.text(
        f"typealias Accumulator = {type_};\ntypealias Line = vector<Accumulator, {block.columns}>;\n"
        f"static const int WORKGROUP = {WORKGROUP};"
    )
    writer.text(multiply_add(accumulator))
    for name, value in geometry.items():
        writer.constant(value, name)
    writer.constant(items, "ITEMS")
    writer.constant(out_channels, "CHANNELS")
    is_laid_out = window_blocks.keeps_rows(windows, block.columns) and fits(block)
    emit_block(writer, windows, block, is_laid_out=is_laid_out)
    emit_vectors(writer, x, block.vector, f"(channel / {writer.constant(out_channels // channels)})")
    tap = load_expression(writer.read(weight), "at + (kd * KH + kh) * KW + kw", weight.dtype)
    writer.text(f"Accumulator load_tap(int at, int kd, int kh, int kw) {{ return {tap}; }}")
    space = (batch, out_channels, depth * height, width)
    emit_line_store(writer, space, outputs, epilogue, type_, block.columns)
    writer.text(template("depthwise"))
    across, high = writer.grid(-(-items // WORKGROUP), build.target.max_groups)
    build.emit(
        writer.finish("depthwise", (across, high, 1), variant=block.variant, reason="one channel a group")
    )
    return outputs


def _is_short(windows: Windows, block: Block, most: int = MOST_PRODUCTS) -> bool:
    """Whether loops over windows are laid out: which results an element counts for is known then."""
    if not window_blocks.is_known_below(windows):
        return False
    taps = math.prod(windows.kernel[1:])
    is_low = block.columns == 1 or block.rows <= MOST_ROWS
    return is_low and taps <= MOST_TAPS and taps * block.rows * block.columns <= most
