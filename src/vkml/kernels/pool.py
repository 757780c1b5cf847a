"""Max and average pooling over up to three spatial dimensions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from vkml.ir import TensorType, dtypes
from vkml.kernels.pointwise import emit_store
from vkml.kernels.reduce import extreme
from vkml.kernels.views import View
from vkml.kernels.writer import compute_type, load_expression, template

if TYPE_CHECKING:
    from vkml.lowering.builder import Builder

Triple = tuple[int, int, int]
WORKGROUP = 128


def pool(
    build: Builder,
    x: View,
    result: TensorType,
    *,
    is_max: bool,
    kernel: Triple,
    strides: Triple,
    dilations: Triple,
    pads: Triple,
    pads_end: Triple = (0, 0, 0),
    counts_padding: bool = False,
) -> list[View]:
    """Pools `x`, a view of (batch, channels, depth, height, width); missing dimensions have size 1."""
    spatial = (1,) * (5 - len(result.dims)) + result.dims[2:]
    batch, channels = x.shape[:2]
    pixels = math.prod(spatial)
    total = batch * channels * pixels
    accumulator = dtypes.FLOAT32 if x.dtype == dtypes.FLOAT16 else x.dtype
    type_ = compute_type(accumulator)
    epilogue, outputs = build.take_epilogue(result)
    writer = build.writer()
    writer.text(f"typealias Accumulator = {type_};")
    for name, value in (("IS_MAX", is_max), ("COUNT_PAD", counts_padding)):
        writer.text(f"static const bool {name} = {'true' if value else 'false'};")
    named = (("S", strides), ("D", dilations), ("PAD", pads), ("PAD_END_", pads_end))
    for prefix, triple in (*named, ("K", kernel), ("X", x.shape[2:]), ("O", spatial)):
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
    writer.text(f"Accumulator lowest() {{ return {extreme(accumulator, lowest=True)}; }}")
    emit_store(writer, (batch, channels, pixels), outputs, epilogue, type_)
    writer.math()
    writer.text(template("pool"))
    groups = -(-total // WORKGROUP)
    high = -(-groups // build.target.max_groups)
    across = -(-groups // high)
    writer.constant(across, "ACROSS")
    build.emit(writer.finish("max_pool" if is_max else "average_pool", (across, high, 1), variant="direct"))
    return outputs
