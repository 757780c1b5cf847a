"""1×1 convolutions whose results stay in a workgroup's shared memory: what expanded.slang is given."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from vkml.dataclasses import dataclass
from vkml.ir import dtypes
from vkml.kernels.links import Link
from vkml.kernels.pointwise import emit_value
from vkml.kernels.views import View
from vkml.kernels.writer import KernelWriter, multiply_add

if TYPE_CHECKING:
    from vkml.lowering.vulkan_builder import VulkanBuilder

Array = np.ndarray[Any, Any]
CHANNELS = (4, 8, 16, 32)
"""That a workgroup may make."""
THREADS = (128, 256, 512)
UNROLL = 32
"""Input channels whose elements a thread asks for together, at most: each time takes as memory does."""
MOST_SHARED = 40960
"""Bytes of shared memory that a workgroup may take."""


@dataclass(frozen=True)
class Expansion:
    """What a workgroup makes."""

    inputs: int
    """Input channels; 0 where nothing is expanded."""
    channels: int
    seen: int
    """Pixels."""
    threads: int

    @property
    def slices(self) -> int:
        """Of threads that share the steps over input channels."""
        most = max(1, self.threads // self.seen)
        return next(count for count in range(most, 0, -1) if self.inputs % count == 0)

    @property
    def words(self) -> int:
        """Of shared memory."""
        return rounded(self.slices * self.channels * self.seen) if self.inputs else 0

    @property
    def unroll(self) -> int:
        """Input channels whose elements a thread asks for together: a power of two."""
        if not self.inputs:
            return 1
        return math.gcd(UNROLL // 2 if self.channels > 16 else UNROLL, self.inputs // self.slices)

    @property
    def instructions(self) -> float:
        """Of a thread, about."""
        if not self.inputs:
            return 0
        steps = -(-self.seen // self.threads) * self.inputs // self.slices
        return steps * (2 + 1.25 * self.channels) + 10 * self.channels * self.seen / self.threads

    @property
    def waits(self) -> float:
        """Times that a thread waits for memory."""
        if not self.inputs:
            return 0
        return -(-self.seen // self.threads) * (self.inputs // self.slices) / self.unroll

    def declare(
        self, build: VulkanBuilder, writer: KernelWriter, x: View, first: Link | None, weight_words: int
    ) -> None:
        """Adds to a kernel what expanded.slang wants.

        Args:
            build: where constants are kept.
            writer: of the kernel.
            x: the image, (batch, channels, 1, height, width).
            first: the convolution; None where nothing is expanded.
            weight_words: of 16 bytes, that shared memory has for weights.
        """
        writer.text(
            f"#define IS_EXPANDED {int(first is not None)}\n"
            f"#define IMAGE {writer.read(x)}\n"
            f"static const int CHANNELS = {self.channels};\n"
            f"static const int THREADS = {self.threads};\n"
            f"static const int UNROLL = {self.unroll};\n"
            f"static const int WEIGHT_WORDS = {rounded(weight_words)};\n"
            f"static const int EXPANDED_WORDS = {self.words};\n" + multiply_add(dtypes.FLOAT32)
        )
        # Pushed where they end loops: SwiftShader unrolls those of which it knows the length.
        writer.text(
            f"#define INPUTS {writer.word('inputs', self.inputs)}\n"
            f"#define STEPS_A_SLICE {writer.word('steps_a_slice', self.inputs // self.slices)}"
        )
        writer.constant(self.seen, "SEEN")
        writer.constant(self.slices, "SLICES")
        batch, channels, _, height, width = x.shape
        flat = x.reshape((batch, channels, height * width))
        if flat is None:
            across = writer.constant(width)
            place = writer.offset((f"(place / {across})", f"(place % {across})"), x.strides[3:])
        else:
            place = writer.offset(("place",), flat.strides[2:])
        writer.text(
            f"int image_at(int image) {{ return {writer.offset(('image',), x.strides[:1])}; }}\n"
            f"int channel_at(int channel) {{ return {writer.offset(('channel',), x.strides[1:2])}; }}\n"
            f"int pixel_at(int place) {{ return {place}; }}"
        )
        if first is not None:
            emit_value(writer, "expand_end", (batch, first.filters, height * width), first.epilogue)
            self.declare_weights(build, writer, "EXPAND", first.weight)

    def declare_weights(self, build: VulkanBuilder, writer: KernelWriter, name: str, weight: View) -> None:
        """Adds ``NAME_WEIGHTS``: constants (channels, k, …) in blocks of (k, channels)."""
        change = functools.partial(_in_blocks, channels=self.channels)
        arranged = build.prepared(build.contiguous(weight), f"blocks of {self.channels}", change)
        writer.text(f"#define {name}_WEIGHTS {writer.read(arranged, width=4)}")

    def declare_filters(self, build: VulkanBuilder, writer: KernelWriter, weight: View) -> None:
        """Adds ``FILTER_WEIGHTS``: constants (filters, channels, …) in blocks of (filters, channels)."""
        change = functools.partial(_in_columns, channels=self.channels)
        arranged = build.prepared(build.contiguous(weight), f"columns of {self.channels}", change)
        writer.text(f"#define FILTER_WEIGHTS {writer.read(arranged, width=4)}")


def _in_blocks(weight: Array, channels: int) -> Array:
    """(out, …) → blocks of (…, channels), kept under the first shape."""
    blocks = weight.reshape(weight.shape[0] // channels, channels, -1).transpose(0, 2, 1)
    return np.ascontiguousarray(blocks).reshape(weight.shape)


def _in_columns(weight: Array, channels: int) -> Array:
    """(filters, in, …) → blocks of (filters, channels), kept under the first shape."""
    filters, inner = weight.shape[:2]
    blocks = weight.reshape(filters, inner // channels, channels).transpose(1, 0, 2)
    return np.ascontiguousarray(blocks).reshape(weight.shape)


def rounded(words: int) -> int:
    """A little more, up to a quarter: what shared memory is declared as, so that few sources differ."""
    step = 1 << max((words - 1).bit_length() - 3, 6)
    return -(-words // step) * step
