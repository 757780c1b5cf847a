"""Launches of 1×1 convolutions of which only the mean over all pixels is wanted."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from vkml.ir import TensorType, dtypes
from vkml.ir.lowering import CannotLower
from vkml.ir.size import Size
from vkml.kernels.expanded import CHANNELS, MOST_SHARED, THREADS, Expansion, rounded
from vkml.kernels.gemm import LAUNCH
from vkml.kernels.links import Link
from vkml.kernels.pointwise import emit_store
from vkml.kernels.separable import INSTRUCTION, SCHEDULERS
from vkml.kernels.views import View
from vkml.kernels.writer import template

if TYPE_CHECKING:
    from vkml.lowering.target import Target
    from vkml.lowering.vulkan_builder import VulkanBuilder

BEGIN, CODE, WAIT = 1.6, 0.15, 0.2
"""Microseconds: of a workgroup with nothing to do, of a channel's code, of waiting for memory once more."""
MOST_THREADS = 256
"""Of a workgroup: 1280 channels' means took 12.2 µs with 512, 8.1 with 256, 10.75 in two launches (H200)."""
TRAFFIC = 6e6
"""Bytes that all workgroups together read in a microsecond."""

forced: Expansion | None = None
"""For tests and tuning runs: how every one that can be launched so is."""


def launch(build: VulkanBuilder, link: Link, result: TensorType) -> list[View]:
    """Emits a convolution and the means over its pixels; `CannotLower` where two launches are better.

    Args:
        build: where the launch goes.
        link: the convolution.
        result: type of the means, (batch, channels, 1, …).
    """
    numbers = (*link.x.shape, link.filters)
    why = ""
    if any(isinstance(number, Size) for number in numbers):
        why = "open sizes"
    elif link.x.dtype != dtypes.FLOAT32 or not link.weight.buffer.is_constant or link.x.is_reversed:
        why = "other operands"
    elif not link.is_of_points or link.x.shape[2] != 1 or not math.prod(link.windows.output):
        why = "windows"
    if why:
        raise CannotLower(f"a convolution whose means alone would be made: {why}")
    shape = choose(build.target, link)
    if shape is None:
        raise CannotLower("a convolution that is faster apart from the means of its results")
    epilogue, outputs = build.take_epilogue(result)
    batch, filters = link.x.shape[0], link.filters
    writer = build.writer()
    shape.declare(build, writer, link.x, link, _weight_words(shape))
    emit_store(writer, (batch, filters, 1), outputs, epilogue, "float")
    writer.text("void store_mean(int image, int channel, float mean) { store(image, channel, 0, mean); }")
    writer.text(template("expanded") + template("channel_means"))
    build.emit(
        writer.finish(
            "channel_means",
            (1, filters // shape.channels, batch),
            variant=f"{shape.channels} channels, {shape.threads} threads",
            reason=f"batch {batch}, {filters} filters, {shape.seen} pixels, K {shape.inputs}: "
            f"{estimate(build.target, link, shape):.1f} µs expected, apart {estimate_apart(link):.1f}",
        )
    )
    return outputs


def _weight_words(shape: Expansion) -> int:
    return shape.inputs * shape.channels // 4


def shapes(target: Target, link: Link) -> list[Expansion]:
    """All that fit the device."""
    seen, inputs = math.prod(link.windows.output), link.x.shape[1]
    found = [
        Expansion(inputs, channels, seen, threads)
        for channels in CHANNELS
        if link.filters % channels == 0
        for threads in THREADS
        if threads <= MOST_THREADS
    ]
    return [shape for shape in found if _fits(target, shape)]


def _fits(target: Target, shape: Expansion) -> bool:
    shared = 16 * rounded(_weight_words(shape)) + 4 * (shape.words + shape.threads)
    return shape.threads <= target.max_invocations and shared <= min(MOST_SHARED, target.shared_bytes)


def choose(target: Target, link: Link) -> Expansion | None:
    """How workgroups are made up where one launch is expected to be faster; None where it is not."""
    if forced is not None:
        fits = link.filters % forced.channels == 0 and _fits(target, forced)
        return (
            forced
            if fits
            and (forced.seen, forced.inputs)
            == (
                math.prod(link.windows.output),
                link.x.shape[1],
            )
            else None
        )
    if target.processors == 1:
        return None
    found = min(shapes(target, link), key=lambda shape: estimate(target, link, shape), default=None)
    return found if found is not None and estimate(target, link, found) < estimate_apart(link) else None


def estimate(target: Target, link: Link, shape: Expansion) -> float:
    """Microseconds."""
    groups = link.x.shape[0] * link.filters // shape.channels
    subgroups = -(-groups // target.processors) * shape.threads / 32 / SCHEDULERS
    work = INSTRUCTION * shape.instructions * max(1.0, subgroups / 2)
    read = 4 * groups * (shape.seen * shape.inputs + 4 * _weight_words(shape)) / TRAFFIC
    return LAUNCH + BEGIN + CODE * shape.channels + WAIT * max(0, shape.waits - 1) + work + read


def estimate_apart(link: Link) -> float:
    """Microseconds of two launches."""
    batch, inputs = link.x.shape[:2]
    pixels, filters = math.prod(link.windows.output), link.filters
    multiplied = batch * pixels * inputs * filters
    return (
        2 * LAUNCH
        + 4.0
        + inputs / 200
        + multiplied / 6e7
        + 4 * batch * pixels * (inputs + 2 * filters) / 2.5e6
    )
