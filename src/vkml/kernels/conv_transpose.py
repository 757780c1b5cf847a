"""Transposed convolutions over up to three spatial dimensions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from vkml.ir import TensorType
from vkml.ir.scalar import arithmetic_type
from vkml.kernels.pointwise import emit_store
from vkml.kernels.views import View
from vkml.kernels.writer import compute_type, load_expression, multiply_add, template

if TYPE_CHECKING:
    from vkml.lowering.vulkan_builder import VulkanBuilder

WORKGROUP = 128


def conv_transpose(
    build: VulkanBuilder,
    x: View,
    weight: View,
    bias: View | None,
    result: TensorType,
    *,
    strides: tuple[int, ...],
    pads: tuple[int, ...],
    dilations: tuple[int, ...],
    group: int,
) -> list[View]:
    """The gradient of a convolution with respect to its input.

    Args:
        build: where the launch goes.
        x: (batch, channels, depth, height, width), any strides.
        weight: (channels, out channels / group, kernel depth, height, width), any strides.
        bias: (out channels,) or None.
        result: type of the output as the node states it, (batch, out channels, *spatial).
        strides: distance in the output of neighbouring input elements.
        pads: what is cut from the front of the full output.
        dilations: steps inside the kernel.
        group: number of groups.
    """
    spatial = (1,) * (5 - len(result.dims)) + result.dims[2:]
    batch, channels = result.dims[:2]
    pixels = math.prod(spatial)
    space = (batch, channels, pixels)
    if bias is not None:
        build.before_epilogue(
            result, addend=View(bias.buffer, bias.dtype, space, (0, bias.strides[0], 0), bias.offset)
        )
    accumulator = arithmetic_type(x.dtype)
    epilogue, outputs = build.take_epilogue(result)
    writer = build.writer()
    writer.text(f"typealias Accumulator = {compute_type(accumulator)};")
    writer.text(multiply_add(accumulator))
    named = (("S", strides), ("D", dilations), ("PAD", pads), ("K", weight.shape[2:]), ("X", x.shape[2:]))
    for prefix, triple in (*named, ("O", spatial)):
        for axis, number in zip("DHW", triple, strict=True):
            writer.constant(number, f"{prefix}{axis}")
    total = math.prod(space)
    inner, outer = x.shape[1] // group, channels // group
    sizes = (("TOTAL", total), ("PIXELS", pixels), ("CHANNELS", channels), ("INNER", inner), ("OUTER", outer))
    for name, value in sizes:
        writer.constant(value, name)
    image, taps = writer.read(x), writer.read(weight)
    element = load_expression(image, writer.offset(("image", "c", "d", "h", "w"), x.strides), x.dtype)
    tap = load_expression(taps, writer.offset(("c", "o", "d", "h", "w"), weight.strides), weight.dtype)
    writer.text(f"Accumulator load_image(int image, int c, int d, int h, int w) {{ return {element}; }}")
    writer.text(f"Accumulator load_tap(int c, int o, int d, int h, int w) {{ return {tap}; }}")
    emit_store(writer, space, outputs, epilogue, compute_type(accumulator))
    writer.text(template("conv_transpose"))
    across, high = writer.grid(-(-total // WORKGROUP), build.target.max_groups)
    build.emit(writer.finish("conv_transpose", (across, high, 1), variant="direct"))
    return outputs
