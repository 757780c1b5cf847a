"""Gradients of convolutions in machine code."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from vkml.cpu.native import product
from vkml.cpu.native.expression import IDENTITY, Epilogue
from vkml.cpu.native.tiles import lanes_of
from vkml.ir import TensorType, dtypes
from vkml.ir.windows import Windows
from vkml.kernels.views import View
from vkml.lowering.deferred import is_open
from vkml.lowering.native_epilogue import ADD, Ending
from vkml.lowering.native_images import finish_padded, first_place, steps_of, with_border
from vkml.lowering.native_layout import Border, access_of, image_of

if TYPE_CHECKING:
    from vkml.lowering.native_builder import NativeBuilder

STRETCH_BYTES = 512 * 1024
"""Of both images that the second-level cache keeps while tiles of all taps pass."""
LEAST_CHANNELS = 4
"""Fewer are rows of a tile that hardly use what they load."""


def conv_weight_gradient(build: NativeBuilder, x: View, cotangent: View, over: Windows) -> View | None:
    """[filters, channels, z, y, x]: for each tap a product of the image, moved by it, with the cotangent.

    Rows are channels, columns filters, and what is summed over are places, line by line: neither side is
    packed or turned round. Some images at a time, whose sums are added up in the result.
    """
    filters, channels = cotangent.shape[1], x.shape[1]
    if (
        is_open((x.shape, x.strides, cotangent.shape, cotangent.strides))
        or not x.elements * cotangent.elements
    ):
        return None
    if any(view.dtype not in (dtypes.FLOAT32, dtypes.FLOAT16) for view in (x, cotangent)):
        return None
    if channels < LEAST_CHANNELS or filters % lanes_of(build.instructions):
        return None
    rank = 2 if x.shape[2] == over.kernel[0] == over.output[0] == 1 else 3
    over = over.over(rank)
    image = with_border(build, image_of(x, rank), Border.reached_by(over))
    factor = with_border(build, image_of(cotangent, rank), Border())
    images, (*heights, width) = x.shape[0], over.output
    step_n, *steps, step_x = steps_of(image, over)
    by_tap = tuple(d * s for d, s in zip(over.dilations, image.strides[2:], strict=True))
    panel = product.panel_width(build.instructions, columns=filters, rows=channels, row_bytes=4)
    shape = (*over.kernel, channels, filters)
    with build.step(TensorType(dtypes.FLOAT32, shape)):
        ending = build.ending(
            build.result(),
            lambda view: view.reshape((*over.kernel, 1, channels, filters)),
            lambda view: view.strides[-1] == 1,
        )
        [sums], access = ending.targets, access_of(ending.targets[0])
        one = 4 * (step_n + factor.strides[0])
        ends = _stretches(images, math.ceil(images * one / STRETCH_BYTES))
        start = first_place(image, over)
        for first, last in pairwise(ends):
            lines = np.indices((last - first, *heights)).reshape(rank, -1).T
            leaves = (sums,) if first else ()
            epilogue = Epilogue(ADD if first else IDENTITY, (access,) * len(leaves), (access,))
            part = Ending(epilogue, leaves, (sums,), (), ())
            launch = build.launch(
                product.product,
                batch=over.kernel,
                height=1,
                width=channels,
                columns=filters,
                inner=width,
                taps=tuple((lines @ (step_n, *steps)).tolist()),
                a=(*by_tap, 0, 1, step_x),
                b=(0,) * rank,
                panel=panel,
                epilogue=epilogue,
                threads=build.threads,
                panel_floats=panel,
                rows_of_b=(
                    factor.strides[-1],
                    tuple((lines @ (factor.strides[0], *factor.strides[2:-1])).tolist()),
                ),
            )
            read = _from_image(factor, first)
            finish_padded(build, launch, _from_image(image, first), _from_image(start, first), [read], part)
    made = build.reshape(ending.outputs[0], (*over.over(3).kernel, channels, filters))
    return made.transpose((4, 3, 0, 1, 2))


def _stretches(images: int, count: int) -> list[int]:
    """Where each of so many stretches of images begins, and the end."""
    size = math.ceil(images / min(count, images))
    return [*range(0, images, size), images]


def _from_image(view: View, first: int) -> View:
    """The images from one on."""
    starts = (first, *(0 for _ in view.shape[1:]))
    return view.slice(starts, (1,) * len(starts), (view.shape[0] - first, *view.shape[1:]))
