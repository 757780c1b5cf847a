"""Gradients of convolutions in machine code."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

from vkml.cpu.native import product
from vkml.cpu.native.expression import IDENTITY, Epilogue
from vkml.cpu.native.tiles import lanes_of
from vkml.ir import TensorType, dtypes
from vkml.ir.windows import Windows
from vkml.kernels.views import View
from vkml.lowering.deferred import is_open
from vkml.lowering.native_epilogue import ADD, Ending
from vkml.lowering.native_images import finish_padded, first_place, steps_of, with_border
from vkml.lowering.native_layout import Border, access_of, plane

if TYPE_CHECKING:
    from vkml.lowering.native_builder import NativeBuilder

STRETCH_BYTES = 512 * 1024
"""Of both images that the second-level cache keeps while tiles of all taps pass."""
LEAST_CHANNELS = 4
"""Fewer are rows of a tile that hardly use what they load."""


def conv_weight_gradient(build: NativeBuilder, x: View, cotangent: View, over: Windows) -> View | None:
    """[filters, channels, 1, y, x]: for each tap a product of the image, moved by it, with the cotangent.

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
    if x.shape[2] != 1 or over.kernel[0] != 1:
        return None
    if channels < LEAST_CHANNELS or filters % lanes_of(build.instructions):
        return None
    planar = over.over(2)
    image = with_border(build, plane(x), Border.reached_by(planar))
    factor = with_border(build, plane(cotangent), Border())
    images, (height, width) = x.shape[0], planar.output
    step_n, step_y, step_x = steps_of(image, planar)
    tap_y, tap_x = (d * s for d, s in zip(planar.dilations, image.strides[2:], strict=True))
    panel = product.panel_width(build.instructions, columns=filters, rows=channels, row_bytes=4)
    shape = (*planar.kernel, channels, filters)
    with build.step(TensorType(dtypes.FLOAT32, shape)):
        ending = build.ending(
            build.result(),
            lambda view: view.reshape((*planar.kernel, 1, channels, filters)),
            lambda view: view.strides[-1] == 1,
        )
        [sums], access = ending.targets, access_of(ending.targets[0])
        one = 4 * (step_n + factor.strides[0])
        ends = _stretches(images, math.ceil(images * one / STRETCH_BYTES))
        start = first_place(image, planar)
        for first, last in pairwise(ends):
            lines = [(n, y) for n in range(last - first) for y in range(height)]
            leaves = (sums,) if first else ()
            epilogue = Epilogue(ADD if first else IDENTITY, (access,) * len(leaves), (access,))
            part = Ending(epilogue, leaves, (sums,), (), ())
            launch = build.launch(
                product.product,
                batch=planar.kernel,
                height=1,
                width=channels,
                columns=filters,
                inner=width,
                taps=tuple(n * step_n + y * step_y for n, y in lines),
                a=(tap_y, tap_x, 0, 1, step_x),
                b=(0, 0),
                panel=panel,
                epilogue=epilogue,
                threads=build.threads,
                panel_floats=panel,
                rows_of_b=(
                    factor.strides[3],
                    tuple(n * factor.strides[0] + y * factor.strides[2] for n, y in lines),
                ),
            )
            read = _from_image(factor, first)
            finish_padded(build, launch, _from_image(image, first), _from_image(start, first), [read], part)
    made = build.reshape(ending.outputs[0], (1, *shape))
    return made.transpose((4, 3, 0, 1, 2))


def _stretches(images: int, count: int) -> list[int]:
    """Where each of so many stretches of images begins, and the end."""
    size = math.ceil(images / min(count, images))
    return [*range(0, images, size), images]


def _from_image(view: View, first: int) -> View:
    """The images from one on."""
    return view.slice((first, 0, 0, 0), (1,) * 4, (view.shape[0] - first, *view.shape[1:]))
