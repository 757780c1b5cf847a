"""Launches of depthwise-separable convolutions: 1×1, windows of each channel, 1×1, of which the last is written."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from vkml.dataclasses import dataclass
from vkml.ir import TensorType, dtypes
from vkml.ir.lowering import CannotLower
from vkml.ir.size import Size
from vkml.ir.windows import Windows
from vkml.kernels.gemm import CYCLES, LAUNCH, Product
from vkml.kernels.links import Link
from vkml.kernels.pointwise import emit_store, emit_value
from vkml.kernels.results import add_partials
from vkml.kernels.views import View
from vkml.kernels.writer import multiply_add, template

if TYPE_CHECKING:
    from vkml.lowering.target import Target
    from vkml.lowering.vulkan_builder import VulkanBuilder

Array = np.ndarray[Any, Any]
CHANNELS = (4, 8, 16, 32)
"""Inner channels that a workgroup may have."""
THREADS = (128, 256, 512)
UNROLL = 8
"""Input channels whose elements a thread asks for together."""
MOST_SHARED = 40960
"""Bytes of shared memory that a workgroup may take."""


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
        return min((rows - 1) * windows.strides[1] + windows.extents[1], windows.spatial[1]) * windows.spatial[2]

    def blocks(self, shape: Shape) -> int:
        return self.inner // shape.channels

    def tiles(self, shape: Shape) -> int:
        return -(-self.windows.output[1] // shape.rows)

    def slices(self, shape: Shape) -> int:
        """Of threads that share the steps over input channels."""
        most = max(1, shape.threads // self.seen(shape.rows))
        return next(count for count in range(most, 0, -1) if self.inputs % count == 0)

    def weight_words(self, shape: Shape) -> int:
        return (self.inputs + self.windows.taps + self.filters) * shape.channels // 4

    def expanded_words(self, shape: Shape) -> int:
        return self.slices(shape) * shape.channels * self.seen(shape.rows) if self.inputs else 0

    def shared_bytes(self, shape: Shape) -> int:
        return 16 * _rounded(self.weight_words(shape)) + 4 * _rounded(self.expanded_words(shape))


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
    if middle.windows.spatial[0] > 1 or middle.windows.kernel[0] > 1 or any(
        (middle.windows.pads_begin[0], middle.windows.pads_end[0])
    ):
        return "windows over three axes"
    return ""


def launch(build: VulkanBuilder, first: Link | None, middle: Link, last: Link, result: TensorType) -> list[View]:
    """Emits them, with the epilogue on offer behind the last; `CannotLower` where launches apart are better."""
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
    image, output = math.prod(windows.spatial), math.prod(windows.output)
    weights = [
        None if link is None else build.contiguous(link.weight) for link in (first, middle, last)
    ]
    build.before_epilogue(result, addend=last.bias_of(result))
    epilogue, outputs = build.take_epilogue(result)
    writer = build.writer()
    blocks, tiles, slices = sizes.blocks(shape), sizes.tiles(shape), sizes.slices(shape)
    unroll = math.gcd(UNROLL, sizes.inputs // slices) if sizes.inputs else 1
    writer.text(
        f"#define IS_EXPANDED {int(first is not None)}\n"
        f"#define IMAGE {writer.read(x)}\n"
        f"static const int CHANNELS = {shape.channels};\n"
        f"static const int THREADS = {shape.threads};\n"
        f"static const int UNROLL = {unroll};\n"
        f"static const int WEIGHT_WORDS = {_rounded(sizes.weight_words(shape))};\n"
        f"static const int EXPANDED_WORDS = {_rounded(sizes.expanded_words(shape))};\n"
        + multiply_add(dtypes.FLOAT32)
    )
    arrange = functools.partial(_of_inputs, channels=shape.channels), functools.partial(
        _of_windows, channels=shape.channels
    ), functools.partial(_of_filters, channels=shape.channels)
    for name, weight, how in zip(("EXPAND", "TAP", "FILTER"), weights, arrange, strict=True):
        if weight is not None:
            key = f"separable {name} {shape.channels}"
            writer.text(f"#define {name}_WEIGHTS {writer.read(build.prepared(weight, key, how), width=4)}")
    for name, triple in (
        ("S", windows.strides), ("PAD", windows.pads_begin), ("D", windows.dilations),
        ("X", windows.spatial), ("K", windows.kernel), ("O", windows.output),
    ):  # fmt: skip
        for axis, number in zip("HW", triple[1:], strict=True):
            writer.constant(number, f"{name}{axis}")
    # Pushed where they end loops: SwiftShader unrolls those of which it knows the length.
    writer.text(
        f"#define INPUTS {writer.word('inputs', sizes.inputs)}\n"
        f"#define FILTERS {writer.word('filters', sizes.filters)}\n"
        f"#define TAPS {writer.word('taps', windows.taps)}"
    )
    writer.constant(shape.rows, "ROWS")
    writer.constant(sizes.seen(shape.rows), "SEEN")
    writer.constant(slices, "SLICES")
    writer.constant(max(1, shape.threads // (shape.rows * windows.output[2])), "FILTER_SLICES")
    width = writer.constant(windows.spatial[2])
    row_and_column = f"place / {width}", f"(place % {width})"
    flat = x.reshape((batch, x.shape[1], image))
    place = (
        writer.offset(row_and_column, x.strides[3:])
        if flat is None
        else writer.offset(("place",), flat.strides[2:])
    )
    writer.text(
        f"int image_at(int image) {{ return {writer.offset(('image',), x.strides[:1])}; }}\n"
        f"int channel_at(int channel) {{ return {writer.offset(('channel',), x.strides[1:2])}; }}\n"
        f"int pixel_at(int place) {{ return {place}; }}"
    )
    if first is not None:
        emit_value(writer, "expand_end", (batch, inner, image), first.epilogue)
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
    writer.text(template("separable"))
    build.emit(
        writer.finish(
            "separable",
            (tiles, blocks, batch),
            variant=shape.label(),
            reason=f"batch {batch}, {sizes.inputs or 'no'} channels expanded, {inner} windowed, {last.filters} "
            f"filters, {output} pixels: {estimate(build.target, sizes, shape):.1f} µs expected, one by one "
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


def _of_inputs(weight: Array, channels: int) -> Array:
    """(inner, inputs, …) → blocks of (inputs, channels), kept under the first shape."""
    inner, inputs = weight.shape[:2]
    blocks = weight.reshape(inner // channels, channels, inputs).transpose(0, 2, 1)
    return np.ascontiguousarray(blocks).reshape(weight.shape)


def _of_windows(weight: Array, channels: int) -> Array:
    """(inner, 1, *window) → blocks of (taps, channels), kept under the first shape."""
    return _of_inputs(weight.reshape(weight.shape[0], -1), channels).reshape(weight.shape)


def _of_filters(weight: Array, channels: int) -> Array:
    """(filters, inner, …) → blocks of (filters, channels), kept under the first shape."""
    filters, inner = weight.shape[:2]
    blocks = weight.reshape(filters, inner // channels, channels).transpose(1, 0, 2)
    return np.ascontiguousarray(blocks).reshape(weight.shape)


def _rounded(words: int) -> int:
    """A little more, up to a quarter: what shared memory is declared as, so that few sources differ."""
    step = 1 << max((words - 1).bit_length() - 3, 6)
    return -(-words // step) * step


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
    """Microseconds, with what adds up partial sums."""
    windows, channels = sizes.windows, shape.channels
    blocks, seen = sizes.blocks(shape), sizes.seen(shape.rows)
    groups = sizes.tiles(shape) * blocks * sizes.batch
    pixels = shape.rows * windows.output[2]
    slices = max(1, shape.threads // pixels)
    # Instructions of subgroups, of which four are issued in a cycle.
    expand = -(-seen // 32) * sizes.inputs * (2 + 1.25 * channels)
    window = -(-pixels * slices // 32) * windows.taps * (8 + 2.25 * channels)
    project = -(-pixels // 32) * sizes.filters * (4 + 1.25 * channels)
    moved = 4 * (seen * max(sizes.inputs, 0 if sizes.inputs else channels) + pixels * sizes.filters)
    work = max((expand + window + project) / 3, moved / 60)
    steps = sizes.inputs / sizes.slices(shape) / UNROLL * 300 if sizes.inputs else windows.taps * 100
    turns = -(-groups // target.processors)
    time = LAUNCH + (2000 + steps + turns * work) / CYCLES
    if blocks > 1:
        results = sizes.batch * sizes.filters * math.prod(windows.output)
        time += LAUNCH + 0.7 + 0.02 * blocks + 8 * blocks * results / 3e6
    return time


def estimate_apart(target: Target, sizes: Sizes) -> float:
    """Microseconds of a launch for each of the convolutions."""
    image, output = math.prod(sizes.windows.spatial), math.prod(sizes.windows.output)

    def product(k: int, filters: int, pixels: int) -> float:
        multiplied = sizes.batch * pixels * k * filters
        return LAUNCH + 2.2 + k / 200 + multiplied / 2.5e7 + 4 * sizes.batch * pixels * (k + filters) / 2.5e6

    time = LAUNCH + 1.0 + 4 * sizes.batch * sizes.inner * (image + output) / 2.5e6
    time += product(sizes.inner, sizes.filters, output)
    return time + (product(sizes.inputs, sizes.inner, image) if sizes.inputs else 0)

