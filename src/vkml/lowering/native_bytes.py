"""Products and convolutions of bytes in machine code: four at a time, as words of 32 bits."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from vkml.cpu.native import depthwise, product
from vkml.cpu.native.executable import has_byte_dots
from vkml.cpu.native.product import Terms
from vkml.cpu.native.tiles import lanes_of
from vkml.ir import TensorType, dtypes
from vkml.ir.lowering import CannotLower
from vkml.ir.size import typical
from vkml.ir.windows import Windows
from vkml.kernels.views import View
from vkml.lowering.deferred import is_open
from vkml.lowering.native_epilogue import grouped, with_rows
from vkml.lowering.native_images import (
    ending_channels_last,
    finish_padded,
    first_place,
    over_axes,
    region_launch,
    steps_of,
    taps_of,
    with_own_border,
)
from vkml.lowering.native_layout import Border, image_of, places
from vkml.lowering.native_taps import WORD, Rules, way_of

if TYPE_CHECKING:
    from vkml.lowering.native_builder import NativeBuilder

Array = np.ndarray[Any, Any]


def byte_matmul(build: NativeBuilder, a: View, b: View) -> list[View]:
    """[batch, m, k] of uint8 times [batch, k, n] of constant int8, the same for all of the batch."""
    _require_bytes(a, b)
    batch, m, k = a.shape
    n = b.shape[2]
    if not k:
        raise CannotLower("a product over nothing")
    if b.shape[0] != 1 and b.strides[0] != 0:
        raise CannotLower("products of several matrices of bytes each have no machine code")
    words = _words(a)
    if words is None:
        made = build.scratch(TensorType(dtypes.UINT8, (batch, m, -(-k // WORD) * WORD)))
        # What is in the bytes behind the last does not matter: B has zeros there.
        build.copy(a, made.slice((0, 0, 0), (1, 1, 1), a.shape))
        words = _words(made)
        assert words is not None
    terms = _terms(build)
    result = build.result()
    ending = build.ending(
        result,
        lambda view: view.reshape((batch, m, n)),
        lambda view: n == 1 or view.strides[2] == 1,
        has_narrow=not is_open((words.shape, words.strides, result.dims)),
    )
    width = product.panel_width(
        build.instructions,
        columns=typical(n),
        rows=typical(m),
        row_bytes=WORD * typical(words.strides[1]),
        terms=terms,
    )
    matrix = replace(b, shape=b.shape[1:], strides=b.strides[1:])
    packed = build.materialised(
        matrix, f"bytes{width}", lambda array: product.pack_bytes(array, width), dtypes.INT32
    )
    launch = build.launch(
        product.product,
        batch=(batch,),
        height=1,
        width=m,
        columns=n,
        inner=words.shape[2],
        taps=(0,),
        a=(words.strides[0], 0, words.strides[1], 1),
        b=(0,),
        panel=width,
        epilogue=with_rows(ending.epilogue),
        threads=build.threads,
        terms=terms,
    )
    return build.finish(launch, [words, packed], ending)


def byte_conv(
    build: NativeBuilder, x: View, weight: View, over: Windows, group: int, fill: int
) -> list[View]:
    """A convolution of uint8 [images, channels, depth, height, width] with constant filters of int8."""
    _require_bytes(x, weight)
    result = build.result()
    over = over_axes(result, over)
    if not x.elements:
        raise CannotLower("a convolution of nothing has no machine code")
    images, filters = result.dims[:2]
    per_group, inner = filters // group, weight.shape[1]
    if group == x.shape[1] == filters and group > 1:
        return _byte_depthwise(build, x, weight, over, fill)
    if group > 1 and inner % WORD:
        raise CannotLower("convolutions of bytes in groups of few channels have no machine code")
    words, rules = -(-inner // WORD), Rules.of_bytes(build.instructions, build.threads, fill)
    way = way_of(
        over,
        images=images,
        channels=group * words,
        filters=filters,
        group=group,
        is_depthwise=False,
        rules=rules,
    )
    over, terms = way.windows, rules.terms
    weight = weight.slice(way.first_tap, (1,) * 5, (*weight.shape[:2], *over.over(3).kernel))
    image = _image_of_words(build, image_of(x, len(over.kernel)), replace(way.border, fill=fill))
    walks = steps_of(image, over)
    ending = ending_channels_last(
        build, result, filters, has_narrow=not is_open((image.shape, image.strides, result.dims))
    )
    taps = taps_of(image, over)
    if way.regions is not None:
        width = way.regions.vectors * lanes_of(build.instructions)
    else:
        width = product.panel_width(
            build.instructions,
            columns=per_group,
            rows=typical(over.output[-1]),
            row_bytes=WORD * typical(walks[-1]),
            terms=terms,
        )

    def pack(array: Array) -> Array:
        by_tap = array.reshape(group, per_group, inner, -1).transpose(0, 3, 2, 1)
        whole = np.pad(by_tap, ((0, 0), (0, 0), (0, WORD * words - inner), (0, 0)))
        return np.stack([product.pack_bytes(part.reshape(-1, per_group), width) for part in whole])

    packed = build.materialised(weight, f"byte filters{width}:{group}", pack, dtypes.INT32)
    epilogue = ending.epilogue
    batch: tuple[int, ...] = (images, *over.output[:-2])
    a: tuple[int, ...] = (*walks, 1)
    b: tuple[int, ...] = (0,) * len(batch)
    if group > 1:
        batch, a = (*batch, group), (*walks[:-2], words, *walks[-2:], 1)
        b = (*b, -(-per_group // width) * width * words * len(taps))
        epilogue = grouped(epilogue, per_group)
    if way.regions is not None:
        launch = region_launch(build, image, way, per_group, words, epilogue, batch=batch, a=a, b=b)
        return build.finish(launch, [image, packed], ending)
    launch = build.launch(
        product.product,
        batch=batch,
        height=over.output[-2],
        width=over.output[-1],
        columns=per_group,
        inner=words,
        taps=taps,
        a=a,
        b=b,
        panel=width,
        epilogue=epilogue,
        threads=build.threads,
        terms=terms,
    )
    return finish_padded(build, launch, image, first_place(image, over), [packed], ending)


def _byte_depthwise(build: NativeBuilder, x: View, weight: View, over: Windows, fill: int) -> list[View]:
    """A convolution of uint8 whose channels have a filter of int8 each."""
    result, instructions = build.result(), build.instructions
    if over.taps > depthwise.MOST_BYTE_TAPS:
        raise CannotLower("depthwise convolutions of bytes over large windows have no machine code")
    images, channels = result.dims[:2]
    image, need = image_of(x, len(over.kernel)), Border.reached_by(over, fill)
    found = with_own_border(build, image, need)
    if found is None:
        found = build.channels_last(TensorType(dtypes.UINT8, image.shape), "", need)
        build.copy(image, found)
    is_known = not is_open((found.shape, found.strides, result.dims))
    ending = ending_channels_last(build, result, channels, has_narrow=is_known)
    packed = build.materialised(
        weight,
        f"byte depthwise{instructions.value}",
        lambda array: depthwise.pack_depthwise(instructions, array.reshape(channels, 1, *array.shape[2:])),
    )
    launch = build.launch(
        depthwise.depthwise,
        batch=(images, *over.output[:-2]),
        height=over.output[-2],
        width=over.output[-1],
        channels=channels,
        taps=taps_of(found, over),
        a=steps_of(found, over),
        epilogue=ending.epilogue,
        threads=build.threads,
        dtype="uint8",
    )
    return finish_padded(build, launch, found, first_place(found, over), [packed], ending)


def _require_bytes(a: View, b: View) -> None:
    if (a.dtype, b.dtype) != (dtypes.UINT8, dtypes.INT8):
        raise CannotLower(f"machine code multiplies uint8 with int8, not {a.dtype.name} with {b.dtype.name}")
    if not b.buffer.is_constant:
        raise CannotLower("products with computed bytes have no machine code")


def _terms(build: NativeBuilder) -> Terms:
    return Terms.DOTS if has_byte_dots(build.instructions) else Terms.PAIRS


def _words(view: View) -> View | None:
    """Bytes whose last axis is in one piece as words; None where they do not fall into such."""
    sizes = (view.shape[-1], *view.strides[:-1], view.offset)
    if view.strides[-1] != 1 or any(size % WORD for size in sizes):
        return None
    return replace(
        view,
        dtype=dtypes.INT32,
        shape=(*view.shape[:-1], view.shape[-1] // WORD),
        strides=(*(stride // WORD for stride in view.strides[:-1]), 1),
        offset=view.offset // WORD,
    )


def _image_of_words(build: NativeBuilder, image: View, need: Border) -> View:
    """[images, channels, …] as words of four channels, with enough of a border: itself, else a copy."""
    found, last = with_own_border(build, image, need), len(image.shape) - 1
    words = None if found is None else _words(places(found))
    if words is None:
        images, channels, *spatial = image.shape
        whole = -(-channels // WORD) * WORD
        made = build.channels_last(TensorType(dtypes.UINT8, (images, whole, *spatial)), "", need)
        build.copy(image, made.slice((0,) * len(image.shape), (1,) * len(image.shape), image.shape))
        words = _words(places(made))
        assert words is not None
    return words.transpose((0, last, *range(1, last)))
