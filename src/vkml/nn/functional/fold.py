"""Blocks of images as columns, and back."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from vkml.ir.dtypes import INT64
from vkml.nn.functional.arguments import Sizes, batched, sizes
from vkml.nn.functional.padding import pad
from vkml.tensors import Tensor
from vkml.tensors import operations as op
from vkml.tracing import apply, constant


def _counts(
    image: Sequence[int], kernel: Sequence[int], gaps: Sequence[int], pads: Sequence[int],
    steps: Sequence[int], name: str,
) -> list[int]:  # fmt: skip
    """Blocks along each axis."""
    if min((*kernel, *gaps, *steps)) < 1 or min(pads) < 0:
        raise RuntimeError(f"{name}: kernel size, dilation and stride should be greater than zero")
    found = [
        (size + 2 * p - d * (k - 1) - 1) // s + 1
        for size, k, d, p, s in zip(image, kernel, gaps, pads, steps, strict=True)
    ]
    if min(found) < 1:
        raise RuntimeError(
            f"{name}: an image {list(image)} with kernel_size={list(kernel)}, dilation={list(gaps)}, "
            f"padding={list(pads)} and stride={list(steps)} has {found} blocks, its components must be "
            "at least one"
        )
    return found


def unfold(
    input: Tensor, kernel_size: Sizes, dilation: Sizes = 1, padding: Sizes = 0, stride: Sizes = 1
) -> Tensor:
    """All blocks of images as columns: [batch, channels, height, width] as [batch, channels · block, blocks].

    Args:
        input: [batch, channels, height, width], or without a batch.
        kernel_size: of the blocks, one number or two.
        dilation: distance of a block's elements.
        padding: of zeros on both sides.
        stride: distance of blocks.

    Raises:
        RuntimeError: shapes do not fit.
    """
    x, is_single = batched(input, 2, "unfold")
    kernel, gaps = sizes(kernel_size, 2, "kernel_size"), sizes(dilation, 2, "dilation")
    pads, steps = sizes(padding, 2, "padding"), sizes(stride, 2, "stride")
    counts = _counts(x.shape[2:], kernel, gaps, pads, steps, "unfold")
    if any(pads):
        x = pad(x, [pads[1], pads[1], pads[0], pads[0]])
    blocks = []
    for place in itertools.product(*map(range, kernel)):
        ranges = [
            slice(at * d, at * d + (count - 1) * s + 1, s)
            for at, d, s, count in zip(place, gaps, steps, counts, strict=True)
        ]
        blocks.append(x[(slice(None), slice(None), *ranges)])
    made = op.reshape(op.stack(blocks, 2), x.shape[0], x.shape[1] * len(blocks), math.prod(counts))
    return made.squeeze(0) if is_single else made


def fold(
    input: Tensor, output_size: Sizes, kernel_size: Sizes, dilation: Sizes = 1, padding: Sizes = 0,
    stride: Sizes = 1,
) -> Tensor:  # fmt: skip
    """Columns [batch, channels · block, blocks] added up into images [batch, channels, *output_size].

    Args:
        input: [batch, channels · block, blocks], or without a batch.
        output_size: of the images, one number or two.
        kernel_size: of the blocks.
        dilation: distance of a block's elements.
        padding: of the images, which is left out.
        stride: distance of blocks.

    Raises:
        RuntimeError: shapes do not fit.
    """
    if input.ndim not in (2, 3):
        raise RuntimeError(
            f"fold: expected 2D or 3D (batch mode) tensor for input, but got the shape {list(input.shape)}"
        )
    is_single = input.ndim == 2
    x = op.unsqueeze(input, 0) if is_single else input
    kernel, gaps = sizes(kernel_size, 2, "kernel_size"), sizes(dilation, 2, "dilation")
    pads, steps = sizes(padding, 2, "padding"), sizes(stride, 2, "stride")
    image = sizes(output_size, 2, "output_size")
    counts = _counts(image, kernel, gaps, pads, steps, "fold")
    if x.shape[1] % math.prod(kernel) or x.shape[2] != math.prod(counts):
        raise RuntimeError(
            f"fold: given output_size={list(image)}, kernel_size={list(kernel)}, dilation={list(gaps)}, "
            f"padding={list(pads)}, stride={list(steps)}, expected an input of {math.prod(kernel)} · n "
            "channels and "
            f"{math.prod(counts)} blocks, but got the shape {list(input.shape)}"
        )
    made = apply(
        "Col2Im", x.value, constant(list(image), INT64), constant(list(kernel), INT64), dilations=gaps,
        pads=(*pads, *pads), strides=steps,
    )  # fmt: skip
    return Tensor(made).squeeze(0) if is_single else Tensor(made)
