"""Pooling over up to three spatial dimensions: the maximum, the mean, a norm of each window."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vkml.ir import DType, TensorType, dtypes
from vkml.ir.windows import Windows
from vkml.kernels.pointwise import emit_store
from vkml.kernels.reduce import extreme
from vkml.kernels.reduce import norm as reduce_norm
from vkml.kernels.views import View
from vkml.kernels.writer import compute_type, load_expression, template

if TYPE_CHECKING:
    from vkml.lowering.vulkan_builder import VulkanBuilder

WORKGROUP = 128


@dataclass(frozen=True)
class PoolFunction:
    """What is made of a window's elements, as Slang text over the accumulator's type."""

    label: str
    combine: str
    """Of the value so far and an element x."""
    finalize: str = "value"
    """Of the combined value and the number of elements, `count`."""
    starts_lowest: bool = False
    """Whether the value starts as the type's least, not as 0."""


MAX = PoolFunction("max_pool", "maximum(value, x)", starts_lowest=True)
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
    accumulator = dtypes.FLOAT32 if x.dtype == dtypes.FLOAT16 else x.dtype
    type_ = compute_type(accumulator)
    epilogue, outputs = build.take_epilogue(result)
    writer = build.writer()
    writer.text(f"typealias Accumulator = {type_};")
    writer.text(f"static const bool COUNT_PAD = {'true' if counts_padding else 'false'};")
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
    writer.constant(pixels, "PIXELS")
    writer.constant(channels, "CHANNELS")
    writer.constant(total, "TOTAL")
    pointer = writer.read(x)
    plane = writer.offset(("image", "channel"), x.strides[:2])
    place = writer.offset(("d", "h", "w"), x.strides[2:])
    element = load_expression(pointer, f"start + {place}", x.dtype)
    writer.text(f"int plane(int image, int channel) {{ return {plane}; }}")
    writer.text(f"Accumulator load(int start, int d, int h, int w) {{ return {element}; }}")
    initial = extreme(accumulator, lowest=True) if how.starts_lowest else "Accumulator(0)"
    writer.text(
        f"Accumulator initial() {{ return {initial}; }}\n"
        f"Accumulator combine(Accumulator value, Accumulator x) {{ return {how.combine}; }}\n"
        f"Accumulator finalize(Accumulator value, int count) {{ return {how.finalize}; }}"
    )
    emit_store(writer, (batch, channels, pixels), outputs, epilogue, type_)
    writer.math()
    writer.text(template("pool"))
    across, high = writer.grid(-(-total // WORKGROUP), build.target.max_groups)
    build.emit(writer.finish(how.label, (across, high, 1), variant="direct"))
    return outputs
