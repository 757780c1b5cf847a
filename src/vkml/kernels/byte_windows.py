"""Convolutions of bytes on matrix units: images with their channels side by side, read and written so."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from vkml.ir import dtypes
from vkml.ir.size import Size
from vkml.ir.windows import Windows
from vkml.kernels.byte_blocks import WORD, in_blocks
from vkml.kernels.conv import constants_of
from vkml.kernels.gemm import Operand, Product
from vkml.kernels.padded_lines import COPIED, MOST_ELEMENTS
from vkml.kernels.views import View
from vkml.kernels.writer import KernelWriter

if TYPE_CHECKING:
    from vkml.lowering.vulkan_builder import VulkanBuilder

Array = np.ndarray[Any, Any]


def product_of(
    build: VulkanBuilder, x: View, weight: View, windows: Windows, group: int, signs: tuple[bool, bool]
) -> Product | None:
    """A convolution as a product whose rows are pixels, whose columns are filters; None where channels are no
    whole words of 16 bytes, or sizes are open.

    Args:
        build: whose result it is.
        x: (batch, channels, depth, height, width).
        weight: (filters, channels / group, kernel depth, height, width).
        windows: over depth, height and width.
        group: number of groups.
        signs: of the images' bytes and of the filters'.
    """
    batch, filters, channels = x.shape[0], weight.shape[0], weight.shape[1]
    if channels % WORD or any(isinstance(size, Size) for size in (*x.shape, *x.strides, x.offset)):
        return None
    result, pixels = build.result(), math.prod(windows.output)
    return Product(
        group,
        batch * pixels,
        filters // group,
        windows.taps * channels // 4,
        dtypes.INT32,
        result,
        (batch, pixels, filters),
        "m / PIXELS, m % PIXELS, batch * N + n",
        "byte_conv",
        (("PIXELS", pixels),),
        signs=signs,
        turned=(0, 2, 1),
        # As the next convolution on units would read it.
        lies=(0, *range(2, len(result.dims)), 1) if filters % WORD == 0 else (),
    )


def lies_so(x: View) -> bool:
    """Whether an image's channels are words of 16 bytes as they lie."""
    others = (x.strides[0] if x.shape[0] != 1 else 0, *x.strides[2:], x.offset)
    return (
        x.strides[1] == 1
        and not x.is_reversed
        and all(number % WORD == 0 for number in others)
        and x.byte_range[1] <= MOST_ELEMENTS
    )


def microseconds(x: View) -> float:
    """What the copy of images that do not lie so takes, without what a launch does."""
    return 0.0 if lies_so(x) else 2 * math.prod(x.shape) / COPIED


def filters_in_blocks(build: VulkanBuilder, weight: View, group: int) -> View:
    """Constant filters as units read them: steps of k are taps, and channels inside these."""
    return build.prepared(
        weight, f"windows in blocks of {group}", partial(_in_blocks, group=group), dtypes.INT32
    )


def _in_blocks(array: Array, group: int) -> Array:
    filters, channels = array.shape[:2]
    taps = array.reshape(group, filters // group, channels, -1).transpose(0, 3, 2, 1)
    return in_blocks(taps.reshape(group, -1, filters // group))


def windows_operand(x: View, windows: Windows, group: int, fill: int) -> Operand:
    """Operand A, of images that `lies_so`.

    Args:
        x: the images.
        windows: over them.
        group: number of groups.
        fill: what pads images, in each byte of a word of four.
    """

    def declare(writer: KernelWriter, width: int) -> str:
        batch, _, *spatial = (stride // WORD for stride in x.strides)
        channels = x.shape[1] // group // WORD
        numbers = dict(zip(("X_DEPTH", "X_ROW", "X_COLUMN"), spatial, strict=True))
        numbers |= {"CHANNELS": channels, "X_IMAGE": batch if x.shape[0] != 1 else 0, "X_GROUP": channels}
        for name, value in (numbers | constants_of(windows) | {"FILL": fill}).items():
            writer.constant(value, name)
        return f"#define A_WORDS {writer.read_words(x, WORD)}"

    return Operand(declare, True, 4, "windows")
