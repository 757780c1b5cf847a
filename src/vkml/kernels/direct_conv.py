"""Launches of convolutions of little work, with what pools their results: threads share input channels."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from vkml.dataclasses import dataclass
from vkml.ir import TensorType, dtypes
from vkml.ir.size import Size
from vkml.ir.windows import Windows
from vkml.kernels.gemm import CYCLES, LAUNCH
from vkml.kernels.links import Link
from vkml.kernels.pointwise import emit_store, emit_value
from vkml.kernels.reduction import extreme
from vkml.kernels.views import View
from vkml.kernels.writer import KernelWriter, multiply_add, template

if TYPE_CHECKING:
    from vkml.lowering.target import Target
    from vkml.lowering.vulkan_builder import VulkanBuilder

Array = np.ndarray[Any, Any]
THREADS = 128
"""Of a workgroup, at most, but for what more slices ask for."""
MOST_TAPS = 25
"""Of a window; a thread keeps as many vectors of weights,"""
MOST_SEEN = 64
"""and as many pixels of a channel,"""
MOST_SUMS = 36
"""and sums."""
MOST_CHANNELS = 4
"""Input channels of a slice, where there may be more slices: each channel is waited for."""


@dataclass(frozen=True)
class Shape:
    """How a workgroup is made up."""

    windows: int
    slices: int
    filters: int
    """That a thread has."""

    def label(self) -> str:
        return f"{self.windows} windows, {self.slices} slices of channels, {self.filters} filters a thread"


@dataclass(frozen=True)
class Sizes:
    """Of a convolution, and of what pools it."""

    batch: int
    channels: int
    filters: int
    conv: Windows
    pool: Windows
    """Windows of one result each where nothing does."""

    @property
    def results(self) -> int:
        """Of the convolution in each window of pooling."""
        return self.pool.taps

    @property
    def seen(self) -> int:
        """Pixels of a channel that a window's results see."""
        return math.prod(
            (count - 1) * step + extent
            for count, step, extent in zip(self.pool.kernel, self.conv.strides, self.conv.kernel, strict=True)
        )

    @property
    def windows(self) -> int:
        return self.batch * math.prod(self.pool.output)


forced: Shape | None = None
"""For tests and tuning runs: how every one that can be launched so is."""


def each_alone(output: tuple[int, ...]) -> Windows:
    """Windows of one element each."""
    ones, zeros = (1,) * len(output), (0,) * len(output)
    return Windows(output, ones, ones, ones, zeros, zeros, output)


def refusal(link: Link, pool: Windows) -> str:
    """Why no such launch computes a convolution and what pools it, or an empty string."""
    conv, ones = link.windows, (1,) * len(pool.kernel)
    if any(isinstance(number, Size) for number in (*link.x.shape, *conv.output, *pool.output)):
        return "open sizes"
    if link.x.dtype != dtypes.FLOAT32 or link.weight.dtype != dtypes.FLOAT32:
        return "not float32"
    if not link.weight.buffer.is_constant:
        return "computed weights"
    if link.group != 1 or link.x.is_reversed:
        return "groups or reversed images"
    if conv.spatial[0] > 1 or conv.kernel[0] > 1 or conv.output[0] > 1 or pool.kernel[0] > 1:
        return "three spatial axes"
    if conv.dilations != ones or pool.dilations != ones:
        return "dilated windows"
    if any(step < extent for step, extent in zip(pool.strides, pool.kernel, strict=True)):
        return "windows that share results"
    sizes = sizes_of(link, pool)
    if conv.taps > MOST_TAPS or sizes.seen > MOST_SEEN or sizes.results > MOST_SUMS:
        return "large windows"
    return ""


def sizes_of(link: Link, pool: Windows) -> Sizes:
    return Sizes(link.x.shape[0], link.x.shape[1], link.filters, link.windows, pool)


def choose(target: Target, sizes: Sizes) -> Shape | None:
    """How workgroups are made up; None on software devices, and where none fits."""
    if forced is not None:
        return forced if sizes.filters % forced.filters == 0 else None
    if target.processors == 1:
        return None
    return min(shapes(target, sizes), key=lambda shape: estimate(target, sizes, shape), default=None)


def shapes(target: Target, sizes: Sizes) -> list[Shape]:
    """All that fit the device."""
    found = []
    for filters in (1, 2, 4):
        if sizes.filters % filters or filters * sizes.results > MOST_SUMS:
            continue
        for slices in (1, 2, 4, 8, 16, 32):
            if slices > sizes.channels:
                break
            for windows in (16, 32, 64, 128):
                threads = windows * slices
                shared = 4 * threads * sizes.results * filters
                if 32 <= threads <= min(512, target.max_invocations) and shared <= target.shared_bytes // 2:
                    found.append(Shape(windows, slices, filters))
    return found


def estimate(target: Target, sizes: Sizes, shape: Shape) -> float:
    """Microseconds; fitted to 60 figures (H200)."""
    channels = -(-sizes.channels // shape.slices)
    is_shared = shape.slices > 1
    loads = sizes.conv.taps + 3 * sizes.seen
    sums = sizes.results * sizes.conv.taps * shape.filters
    groups = -(-sizes.windows // shape.windows) * (sizes.filters // shape.filters)
    subgroups = groups * shape.windows * shape.slices / 32
    each = channels * (loads + sums) + 80 + sizes.results * shape.filters * (6 if is_shared else 2)
    # Four subgroups' instructions a cycle, of as many as a processor has; one alone has every other at most.
    work = max(subgroups / target.processors / 4, 1) * each * 1.75
    waits = 2.5 + 0.25 * (channels - 1) + 0.5 * is_shared
    return LAUNCH + waits + work / CYCLES


def launch(
    build: VulkanBuilder,
    link: Link,
    pool: Windows,
    how: str,
    result: TensorType,
    shape: Shape,
    why: str = "",
) -> list[View]:
    """Emits a convolution that `refusal` has nothing against; returns the views of its results.

    Args:
        build: where the launches go.
        link: the convolution, with its epilogue where that is not what is on offer.
        pool: over its results.
        how: "max", "average" or "", where nothing is pooled.
        result: type of what is stored.
        shape: of workgroups.
        why: it is not on matrix units, for people.
    """
    x, conv, sizes = link.x, link.windows, sizes_of(link, pool)
    weight = build.contiguous(link.weight)
    if not how:
        build.before_epilogue(result, addend=link.bias_of(result))
    epilogue, outputs = build.take_epilogue(result)
    writer = build.writer()
    arranged = build.prepared(
        weight, f"direct {shape.filters}", functools.partial(_in_blocks, filters=shape.filters)
    )
    weights = writer.read(arranged, width=shape.filters)
    load = f"{weights}[at]" if shape.filters == 1 else f"loadAligned<{4 * shape.filters}>({weights} + at)"
    numbers = {
        "WINDOWS": shape.windows, "SLICES": shape.slices, "FILTERS_A_THREAD": shape.filters,
        "KH": conv.kernel[1], "KW": conv.kernel[2], "POOL_H": pool.kernel[1], "POOL_W": pool.kernel[2],
        "STEP_H": conv.strides[1], "STEP_W": conv.strides[2],
    }  # fmt: skip
    writer.text(
        "\n".join(f"#define {name} {number}" for name, number in numbers.items())
        + f"\n#define IMAGE {writer.read(x)}\n"
        "typealias Filters = vector<float, FILTERS_A_THREAD>;\n"
        f"Filters load_weights(int at) {{ return Filters({load}); }}\n" + multiply_add(dtypes.FLOAT32)
    )
    for name, value in (
        ("PADH", conv.pads_begin[1]), ("PADW", conv.pads_begin[2]),
        ("XH", conv.spatial[1]), ("XW", conv.spatial[2]), ("OH", conv.output[1]), ("OW", conv.output[2]),
        ("POOL_STEP_H", pool.strides[1]), ("POOL_STEP_W", pool.strides[2]),
        ("POOL_PADH", pool.pads_begin[1]), ("POOL_PADW", pool.pads_begin[2]),
        ("POOLED_H", pool.output[1]), ("POOLED_W", pool.output[2]),
        ("ALL_WINDOWS", sizes.windows), ("CHANNEL_STRIDE", x.strides[1]),
    ):  # fmt: skip
        writer.constant(value, name)
    # Pushed: SwiftShader unrolls a loop of few steps that it knows, and then compiles it for minutes.
    writer.text(
        f"#define CHANNELS {writer.word('channels', sizes.channels)}\n"
        f"#define CHANNELS_A_SLICE {writer.word('channels_a_slice', -(-sizes.channels // shape.slices))}\n"
        f"int image_at(int image) {{ return {writer.offset(('image',), x.strides[:1])}; }}\n"
        f"int image_place(int h, int w) {{ return {writer.offset(('h', 'w'), x.strides[3:])}; }}"
    )
    space = (sizes.batch, sizes.filters)
    emit_value(writer, "conv_end", (*space, math.prod(conv.output)), link.epilogue if how else None)
    emit_store(writer, (*space, math.prod(pool.output)), outputs, epilogue, "float")
    _emit_pooling(writer, how)
    writer.text(template("direct_conv"))
    groups = -(-sizes.windows // shape.windows), sizes.filters // shape.filters, 1
    pooled = f" pooled by {pool.kernel[1]} × {pool.kernel[2]}" if how else ""
    build.emit(
        writer.finish(
            "conv",
            groups,
            variant=f"direct, {shape.label()}",
            reason=f"batch {sizes.batch}, {sizes.filters} filters, {math.prod(conv.output)} pixels{pooled}, "
            f"K {sizes.channels * conv.taps}" + (f"; not in fp16: {why}" if why else ""),
        )
    )
    return outputs


def _emit_pooling(writer: KernelWriter, how: str) -> None:
    """Adds what is made of a window's results."""
    lowest = extreme(dtypes.FLOAT32, lowest=True)
    initial, combined, final = {
        "": ("0.0", "x", "value"),
        "max": (lowest, "maximum(value, x)", "value"),
        "average": ("0.0", "value + x", "value / float(max(count, 1))"),
    }[how]
    writer.math()
    writer.text(
        f"float initial() {{ return {initial}; }}\n"
        f"float combine(float value, float x) {{ return {combined}; }}\n"
        f"float finalize(float value, int count) {{ return {final}; }}"
    )


def _in_blocks(weight: Array, filters: int) -> Array:
    """(out, in, *window) → blocks of (in, *window, filters), kept under the first shape."""
    blocks = weight.reshape(weight.shape[0] // filters, filters, -1).transpose(0, 2, 1)
    return np.ascontiguousarray(blocks).reshape(weight.shape)
