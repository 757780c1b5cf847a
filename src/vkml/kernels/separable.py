"""Launches of depthwise-separable convolutions: 1×1, windows of each channel, 1×1."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from vkml.dataclasses import dataclass
from vkml.ir import TensorType, dtypes
from vkml.ir.lowering import CannotLower
from vkml.ir.size import Size
from vkml.ir.windows import Windows
from vkml.kernels.expanded import CHANNELS, MOST_SHARED, THREADS, Expansion, rounded
from vkml.kernels.gemm import LAUNCH, Product
from vkml.kernels.links import Link
from vkml.kernels.pointwise import emit_store, emit_value
from vkml.kernels.results import add_partials
from vkml.kernels.views import View
from vkml.kernels.writer import template

if TYPE_CHECKING:
    from vkml.lowering.target import Target
    from vkml.lowering.vulkan_builder import VulkanBuilder

SCHEDULERS = 4
"""Of a multiprocessor."""
BEGIN, WAIT, INSTRUCTION = 2.5, 0.45, 0.001
"""Microseconds: of a workgroup with nothing to do, of waiting for memory once more, of an instruction."""
MOST_TAPS = 25
"""Of a window, which are laid out."""


@dataclass(frozen=True)
class Shape:
    """How a workgroup is made up."""

    rows: int
    """Of output pixels."""
    channels: int
    """Of those between the two 1×1 convolutions."""
    threads: int

    def label(self) -> str:
        return f"{self.rows} rows, {self.channels} channels, {self.threads} threads"


@dataclass(frozen=True)
class Sizes:
    """Of a depthwise-separable convolution."""

    batch: int
    inputs: int
    """Channels that are expanded; 0 where the windows are those of the image."""
    inner: int
    filters: int
    windows: Windows

    def seen(self, rows: int) -> int:
        """Pixels that the windows of so many rows see, at most."""
        windows = self.windows
        return (
            min((rows - 1) * windows.strides[1] + windows.extents[1], windows.spatial[1]) * windows.spatial[2]
        )

    def blocks(self, shape: Shape) -> int:
        return self.inner // shape.channels

    def tiles(self, shape: Shape) -> int:
        return -(-self.windows.output[1] // shape.rows)

    def expansion(self, shape: Shape) -> Expansion:
        return Expansion(self.inputs, shape.channels, self.seen(shape.rows), shape.threads)

    def filter_slices(self, shape: Shape) -> int:
        """Of threads that share the filters."""
        return max(1, shape.threads // (shape.rows * self.windows.output[2]))

    def filters_at_once(self, shape: Shape) -> int:
        """Whose sums a thread has at a time."""
        return 8 if self.filters >= 8 * self.filter_slices(shape) else 4

    def weight_words(self, shape: Shape) -> int:
        return (self.inputs + self.windows.taps + self.filters) * shape.channels // 4

    def shared_bytes(self, shape: Shape) -> int:
        return 16 * rounded(self.weight_words(shape)) + 4 * self.expansion(shape).words


forced: Shape | None = None
"""For tests and tuning runs: how every one that can be launched so is, whatever else may be faster."""


def refusal(first: Link | None, middle: Link, last: Link) -> str:
    """Why no launch computes these convolutions together, or an empty string."""
    links = [link for link in (first, middle, last) if link is not None]
    numbers = [*middle.windows.spatial, *middle.windows.output, middle.x.shape[0], middle.x.shape[1]]
    if any(isinstance(number, Size) for number in numbers):
        return "open sizes"
    if any(view.dtype != dtypes.FLOAT32 for link in links for view in (link.x, link.weight)):
        return "not float32"
    if not all(link.weight.buffer.is_constant for link in links):
        return "computed weights"
    if not all(link.is_of_points for link in links if link is not middle) or not middle.is_of_channels:
        return "convolutions of other kinds"
    if links[0].x.is_reversed:
        return "reversed images"
    if (
        middle.windows.spatial[0] > 1
        or middle.windows.kernel[0] > 1
        or any((middle.windows.pads_begin[0], middle.windows.pads_end[0]))
    ):
        return "windows over three axes"
    if middle.windows.taps > MOST_TAPS:
        return "large windows"
    return ""


def launch(
    build: VulkanBuilder, first: Link | None, middle: Link, last: Link, result: TensorType
) -> list[View]:
    """Emits them, with the epilogue on offer behind the last; `CannotLower` where launches apart are better.

    Args:
        build: where the launches go.
        first: makes the channels; None where they are the image's.
        middle: of each channel.
        last: over channels.
        result: type of what the last makes.
    """
    why = refusal(first, middle, last)
    if why:
        raise CannotLower(f"convolutions that would be one launch: {why}")
    batch, inner = middle.x.shape[:2]
    windows = middle.windows
    sizes = Sizes(batch, 0 if first is None else first.x.shape[1], inner, last.filters, windows)
    shape = choose(build.target, sizes)
    if shape is None:
        raise CannotLower("convolutions that are faster one by one")
    x = middle.x if first is None else first.x
    output = math.prod(windows.output)
    build.before_epilogue(result, addend=last.bias_of(result))
    epilogue, outputs = build.take_epilogue(result)
    writer = build.writer()
    blocks, tiles = sizes.blocks(shape), sizes.tiles(shape)
    expansion = sizes.expansion(shape)
    expansion.declare(build, writer, x, first, sizes.weight_words(shape))
    expansion.declare_weights(build, writer, "TAP", middle.weight)
    expansion.declare_filters(build, writer, last.weight)
    for name, triple in (
        ("S", windows.strides), ("PAD", windows.pads_begin), ("D", windows.dilations),
        ("X", windows.spatial), ("O", windows.output),
    ):  # fmt: skip
        for axis, number in zip("HW", triple[1:], strict=True):
            writer.constant(number, f"{name}{axis}")
    # Pushed: SwiftShader unrolls a loop of which it knows the length.
    writer.text(
        f"#define FILTERS {writer.word('filters', sizes.filters)}\n"
        f"static const int KH = {windows.kernel[1]};\n"
        f"static const int KW = {windows.kernel[2]};\n"
        f"static const int FILTERS_AT_ONCE = {sizes.filters_at_once(shape)};"
    )
    writer.constant(shape.rows, "ROWS")
    writer.constant(sizes.filter_slices(shape), "FILTER_SLICES")
    emit_value(writer, "windows_end", (batch, inner, output), middle.epilogue)
    partials = None
    if blocks > 1:
        partials = build.scratch(TensorType(dtypes.FLOAT32, (blocks, 1, last.filters, batch * output)))
        pointer = writer.write(partials)
        pixels, count = writer.constant(output), writer.constant(batch * output)
        body = f"{pointer}[(block * FILTERS + filter) * {count} + image * {pixels} + pixel] = x;"
    else:
        emit_store(writer, (batch, last.filters, output), outputs, epilogue, "float")
        body = "store(image, filter, pixel, x);"
    writer.text(f"void finish(int block, int image, int filter, int pixel, float x) {{ {body} }}")
    writer.text(template("expanded") + template("separable"))
    build.emit(
        writer.finish(
            "separable",
            (tiles, blocks, batch),
            variant=shape.label(),
            reason=f"batch {batch}, channels {sizes.inputs} to {inner} to {last.filters}, {output} pixels: "
            f"{estimate(build.target, sizes, shape):.1f} µs expected, one by one "
            f"{estimate_apart(build.target, sizes):.1f}",
        )
    )
    if partials is not None:
        product = Product(
            1, last.filters, batch * output, inner, dtypes.FLOAT32, result, (batch, last.filters, output),
            "n / PIXELS, m, n % PIXELS", "conv", (("PIXELS", output),),
        )  # fmt: skip
        add_partials(build, product, partials, blocks, outputs, epilogue)
    return outputs


def shapes(target: Target, sizes: Sizes) -> list[Shape]:
    """All that fit the device."""
    high = sizes.windows.output[1]
    rows = sorted({-(-high // count) for count in range(1, high + 1)})
    found = [
        Shape(count, channels, threads)
        for channels in CHANNELS
        if sizes.inner % channels == 0
        for count in rows
        for threads in THREADS
    ]
    return [shape for shape in found if _fits(target, sizes, shape)]


def _fits(target: Target, sizes: Sizes, shape: Shape) -> bool:
    most = min(MOST_SHARED, target.shared_bytes)
    return shape.threads <= target.max_invocations and sizes.shared_bytes(shape) <= most


def choose(target: Target, sizes: Sizes) -> Shape | None:
    """How workgroups are made up where one launch is expected to be faster; None where it is not."""
    if forced is not None:
        return forced if sizes.inner % forced.channels == 0 and _fits(target, sizes, forced) else None
    if target.processors == 1:
        return None
    found = min(shapes(target, sizes), key=lambda shape: estimate(target, sizes, shape), default=None)
    if found is None or estimate(target, sizes, found) >= estimate_apart(target, sizes):
        return None
    return found


def estimate(target: Target, sizes: Sizes, shape: Shape) -> float:
    """Microseconds, with what adds up partial sums.

    Fitted to 70 figures (H200). Up to two subgroups a scheduler do not wait for each other: what counts is
    how many instructions a thread has.
    """
    windows, channels = sizes.windows, shape.channels
    expansion, blocks = sizes.expansion(shape), sizes.blocks(shape)
    groups = sizes.tiles(shape) * blocks * sizes.batch
    turns = -(-shape.rows * windows.output[2] // shape.threads)
    instructions = expansion.instructions + turns * (
        windows.taps * (8 + 2.25 * channels)
        + -(-sizes.filters // sizes.filter_slices(shape)) * (5 + 1.25 * channels)
    )
    subgroups = -(-groups // target.processors) * shape.threads / 32 / SCHEDULERS
    waits = expansion.waits if sizes.inputs else windows.taps * channels / 64
    work = INSTRUCTION * instructions * max(1.0, subgroups / 2)
    time = LAUNCH + BEGIN + WAIT * max(0, waits - 1) + work
    if blocks > 1:
        results = sizes.batch * sizes.filters * math.prod(windows.output)
        time += LAUNCH + 0.4 + 0.011 * blocks + 4 * blocks * results / 5e6
    return time


def estimate_apart(target: Target, sizes: Sizes) -> float:
    """Microseconds of a launch for each of the convolutions."""
    image, output = math.prod(sizes.windows.spatial), math.prod(sizes.windows.output)

    def product(k: int, filters: int, pixels: int) -> float:
        multiplied = sizes.batch * pixels * k * filters
        return LAUNCH + 2.8 + k / 200 + multiplied / 2.5e7 + 4 * sizes.batch * pixels * (k + filters) / 2.5e6

    time = LAUNCH + 1.0 + 4 * sizes.batch * sizes.inner * (image + output) / 2.5e6
    time += product(sizes.inner, sizes.filters, output)
    return time + (product(sizes.inputs, sizes.inner, image) if sizes.inputs else 0)
