"""Gradients of convolutions, transposed ones included, by image and by weight."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from vkml.errors import ShapeError
from vkml.ir.dtypes import FLOATS, INT64
from vkml.ir.gradients import (
    Emitter,
    T,
    expanded,
    padded,
    reshaped,
    reversed_along,
    sliced,
    summed,
    transposed,
    zeros,
)
from vkml.ir.graph import Node
from vkml.ir.lowering import Lowering, V, given
from vkml.ir.operator import INTS, REQUIRED, Array, Operator, operator
from vkml.ir.types import Known, TensorType
from vkml.ir.windows import Windows
from vkml.ops.checks import present, require_dtype, require_rank, require_same_dtype, required
from vkml.ops.limits import check_size
from vkml.ops.pointwise import widened
from vkml.ops.stepwise import AT_ONCE
from vkml.ops.windows import check_window_padding, pad_for_windows, spatial_attribute, tap_views, window_view

MOST_RESTS = 9
"""Convolutions, each of which makes the image's cotangent at places of its own, that there may be."""
FEWEST_FILTERS = 32
"""Of each of these convolutions, if there is more than one to a group."""
COLUMN_ELEMENTS = 2**23
"""Elements of unrolled windows that one product of `ConvWeightGradient.evaluate` reads."""


def is_dense(windows: Windows) -> bool:
    """Whether what `image_gradient` makes is dense convolutions, not a transposed one."""
    pairs = zip(windows.strides, windows.dilations, windows.kernel, strict=True)
    return 0 not in windows.output and not any(s > 1 and d > 1 and k > 1 for s, d, k in pairs)


def image_gradient(
    build: Emitter[T], cotangent: T, weight: T, windows: Windows, group: int, bias: T | None = None
) -> T:
    """The cotangent of a convolution's image.

    A convolution once more where that is possible, for its kernels are the faster ones. With stride s, places
    of the image that leave the same rest r when divided by s meet the same taps r, r + s, …: each rest has a
    dense convolution. These are one, each rest's channels beside the others', that become places; but where
    some rests have a tap more than others, each is by itself (`_rest_by_rest`).

    Args:
        build: the emitter.
        cotangent: of the output, [N, M, *output].
        weight: [M, C / group, *kernel].
        windows: over the image.
        group: number of groups.
        bias: [C] that is added, where windows are dense.
    """
    if not is_dense(windows):
        return _transpose_convolved(build, cotangent, weight, windows, group)
    if _has_uneven_rests(windows, build.type_of(weight).dims[1]):
        return _rest_by_rest(build, cotangent, weight, windows, group, bias)
    rank, strides = len(windows.kernel), windows.strides
    rests = [min(s, k) for s, k in zip(strides, windows.kernel, strict=True)]
    taps = [-(-k // s) for s, k in zip(strides, windows.kernel, strict=True)]
    batch = build.type_of(cotangent).dims[0]
    channels = build.type_of(weight).dims[1] * group
    by_rest = _made_of(build, weight, _weights_by_rest, strides, rests, taps, group)
    first = [begin // s for begin, s in zip(windows.pads_begin, strides, strict=True)]
    counts = [
        (begin + size - 1) // s - at + 1
        for begin, size, s, at in zip(windows.pads_begin, windows.spatial, strides, first, strict=True)
    ]
    begins = [(q - 1) * d - at for q, d, at in zip(taps, windows.dilations, first, strict=True)]
    ends = [at + n - size for at, n, size in zip(first, counts, windows.output, strict=True)]
    before = [begin - at * s for begin, at, s in zip(windows.pads_begin, first, strides, strict=True)]
    behind = [
        n * s - skipped - size
        for n, s, skipped, size in zip(counts, strides, before, windows.spatial, strict=True)
    ]
    # Places that no tap reaches are filled in with zeros, to which the bias would be to be added, too.
    is_filled = rests != list(strides) or any(not b >= 0 for b in (*before, *behind))
    dense = build.apply(
        "Conv",
        _cropped(build, cotangent, begins, ends),
        by_rest,
        None if bias is None or is_filled else _by_channel_and_rest(build, bias, math.prod(rests)),
        group=group,
        dilations=windows.dilations,
        pads=(*(max(b, 0) for b in begins), *(max(e, 0) for e in ends)),
    )
    apart = reshaped(build, dense, [batch, channels, *rests, *counts])
    order = [0, 1, *(axis for at in range(rank) for axis in (2 + rank + at, 2 + at))]
    apart = transposed(build, apart, order)
    missing = [entry for s, r in zip(strides, rests, strict=True) for entry in (0, s - r)]
    apart = padded(build, apart, [0] * (2 + 2 * rank), [0, 0, *missing])
    whole = reshaped(build, apart, [batch, channels, *(n * s for n, s in zip(counts, strides, strict=True))])
    whole = padded(build, whole, [0, 0, *(-b for b in before)], [0, 0, *(-b for b in behind)])
    if bias is None or not is_filled:
        return whole
    return build.apply("Add", whole, reshaped(build, bias, (channels, *(1 for _ in range(rank)))))


def _has_uneven_rests(windows: Windows, inner: int) -> bool:
    """Whether rests have their own convolutions: where a third of one's products or more would be by zeros.

    A 3 × 3 kernel of stride 2 has 4, 2, 2 and 1 taps, of 16 then. And zeros that all of a result's products
    have are, to kernels that compute again what is near zero, no better than results that cancel out. Kernels
    do not like to have few filters; but one of a group is worth another kernel.

    Args:
        windows: over the image.
        inner: channels of a group, filters of each convolution.
    """
    pairs = [*zip(windows.kernel, windows.strides, strict=True)]
    if math.prod(windows.strides) > MOST_RESTS or any(k < s for k, s in pairs):
        return False
    if 1 < inner < FEWEST_FILTERS:
        return False
    return 2 * math.prod(s * -(-k // s) for k, s in pairs) >= 3 * windows.taps


def _rest_by_rest(
    build: Emitter[T], cotangent: T, weight: T, windows: Windows, group: int, bias: T | None
) -> T:
    """The cotangent of an image by one convolution for each rest, in the order of the places they make."""
    rank, strides = len(windows.kernel), windows.strides
    batch, channels = build.type_of(cotangent).dims[0], build.type_of(weight).dims[1] * group
    counts = [-(-size // s) for size, s in zip(windows.spatial, strides, strict=True)]
    made = []
    for place in itertools.product(*map(range, strides)):
        reached = [at + begin for at, begin in zip(place, windows.pads_begin, strict=True)]
        rests = [at % s for at, s in zip(reached, strides, strict=True)]
        first = [at // s for at, s in zip(reached, strides, strict=True)]
        taps = [-(-(k - r) // s) for k, r, s in zip(windows.kernel, rests, strides, strict=True)]
        begins = [(q - 1) * d - at for q, d, at in zip(taps, windows.dilations, first, strict=True)]
        ends = [at + n - size for at, n, size in zip(first, counts, windows.output, strict=True)]
        own = _made_of(build, weight, _weights_of_rest, strides, rests, group)
        made.append(
            build.apply(
                "Conv",
                *(_cropped(build, cotangent, begins, ends), own, bias),
                group=group,
                dilations=windows.dilations,
                pads=(*(max(b, 0) for b in begins), *(max(e, 0) for e in ends)),
            )
        )
    joined = build.apply("Concat", *made, axis=1)
    apart = reshaped(build, joined, [batch, *strides, channels, *counts])
    order = [0, 1 + rank, *(axis for at in range(rank) for axis in (2 + rank + at, 1 + at))]
    apart = transposed(build, apart, order)
    whole = reshaped(build, apart, [batch, channels, *(n * s for n, s in zip(counts, strides, strict=True))])
    behind = [size - n * s for size, n, s in zip(windows.spatial, counts, strides, strict=True)]
    return padded(build, whole, [0] * (2 + rank), [0, 0, *behind])


def _cropped(build: Emitter[T], x: T, begins: Sequence[int], ends: Sequence[int]) -> T:
    """What is left in front and behind of [N, C, *spatial] where fewer than no places are to be added."""
    return padded(build, x, [0, 0, *(min(b, 0) for b in begins)], [0, 0, *(min(e, 0) for e in ends)])


def _by_channel_and_rest(build: Emitter[T], bias: T, rests: int) -> T:
    """[C] as [C · rests], each number as often as there are rests, one after the other."""
    [channels] = build.type_of(bias).dims
    elements = build.elements_of(bias)
    if elements is not None:
        return build.constant(np.repeat(elements, rests), build.type_of(bias).dtype)
    repeated = expanded(build, reshaped(build, bias, (channels, 1)), (channels, rests))
    return reshaped(build, repeated, (channels * rests,))


def _made_of(build: Emitter[T], weight: T, make: Callable[..., Any], *how: Any) -> T:
    """What `make(build, weight, *how)` makes; of a constant at once, a constant."""
    elements = build.elements_of(weight)
    if elements is None:
        made: T = make(build, weight, *how)
        return made
    return build.constant(make(AT_ONCE, elements, *how), build.type_of(weight).dtype)


def _weights_by_rest(
    build: Emitter[T],
    weight: T,
    strides: Sequence[int],
    rests: Sequence[int],
    taps: Sequence[int],
    group: int,
) -> T:
    """[M, C / group, *kernel] as [C · rests, M / group, *taps], each rest's taps in reverse order."""
    filters, inner, *kernel = build.type_of(weight).dims
    rank = len(kernel)
    fill = [q * s - k for q, s, k in zip(taps, strides, kernel, strict=True)]
    weight = padded(build, weight, [0] * (2 + rank), [0, 0, *fill])
    split = [entry for q, s in zip(taps, strides, strict=True) for entry in (q, s)]
    weight = reshaped(build, weight, [group, filters // group, inner, *split])
    for axis, rest in enumerate(rests):
        weight = sliced(build, weight, 4 + 2 * axis, 0, rest)
    backwards = [3 + 2 * axis for axis, count in enumerate(taps) if count > 1]
    weight = reversed_along(build, weight, backwards) if backwards else weight
    order = [0, 2, *(4 + 2 * axis for axis in range(rank)), 1, *(3 + 2 * axis for axis in range(rank))]
    moved = transposed(build, weight, order)
    return reshaped(build, moved, [group * inner * math.prod(rests), filters // group, *taps])


def _weights_of_rest(
    build: Emitter[T], weight: T, strides: Sequence[int], rests: Sequence[int], group: int
) -> T:
    """[M, C / group, *kernel] as [C, M / group, *taps], one rest's taps in reverse order."""
    filters, inner, *kernel = build.type_of(weight).dims
    rank = len(kernel)
    last = [k - 1 - (k - 1 - r) % s for k, s, r in zip(kernel, strides, rests, strict=True)]
    before, axes, back = [-(2**62)] * rank, [*range(2, 2 + rank)], [-s for s in strides]
    stated = [build.constant(entries, INT64) for entries in (last, before, axes, back)]
    weight = build.apply("Slice", weight, *stated)
    taps = build.type_of(weight).dims[2:]
    weight = reshaped(build, weight, [group, filters // group, inner, *taps])
    moved = transposed(build, weight, [0, 2, 1, *range(3, 3 + rank)])
    return reshaped(build, moved, [group * inner, filters // group, *taps])


def _transpose_convolved(build: Emitter[T], cotangent: T, weight: T, windows: Windows, group: int) -> T:
    type_ = build.type_of(cotangent)
    channels = build.type_of(weight).dims[1] * group
    if 0 in type_.dims:
        return zeros(build, TensorType(type_.dtype, (type_.dims[0], channels, *windows.spatial)))
    return build.apply(
        "ConvTranspose",
        cotangent,
        weight,
        group=group,
        strides=windows.strides,
        dilations=windows.dilations,
        pads=(*windows.pads_begin, *(max(reach, 0) for reach in windows.reach_end)),
        output_padding=tuple(max(-reach, 0) for reach in windows.reach_end),
    )


def convolved(build: Emitter[T], x: T, weight: T, windows: Windows, group: int) -> T:
    """The convolution over just these windows, whatever the image has behind the last one."""
    crops = [min(reach, 0) for reach in windows.reach_end]
    return build.apply(
        "Conv",
        padded(build, x, [0] * (2 + len(crops)), [0, 0, *crops]),
        weight,
        group=group,
        strides=windows.strides,
        dilations=windows.dilations,
        pads=(*windows.pads_begin, *(max(reach, 0) for reach in windows.reach_end)),
    )


def bias_gradient(build: Emitter[T], cotangent: T) -> T:
    """The cotangent of a bias, [M]."""
    axes = [axis for axis in range(len(build.type_of(cotangent).dims)) if axis != 1]
    return summed(build, cotangent, axes)


def weight_gradient(build: Emitter[T], x: T, cotangent: T, windows: Windows, group: int) -> T:
    """The cotangent of a convolution's weight, [M, C / group, *kernel]."""
    return build.apply(
        "ConvWeightGradient",
        x,
        cotangent,
        domain="vkml",
        group=group,
        kernel_shape=windows.kernel,
        strides=windows.strides,
        dilations=windows.dilations,
        pads=windows.pads_begin,
    )


@operator("ConvWeightGradient")
class ConvWeightGradient(Operator):
    """Gradient of a convolution of x [N, C, *spatial] by its weight, from its output's [N, M, *output].

    ``pads`` are those in front; how many windows there are, the output's gradient says. vkml makes it, no
    file does. It is a convolution itself, of channels by output channels with the output as a window. But
    such windows are huge and few: unrolled the way of the forward one, NumPy takes a third to three quarters
    of the time (8 samples of ResNet's stages).
    """

    domain = "vkml"
    inputs = (2, 2)
    attributes = {
        "dilations": REQUIRED,
        "group": 1,
        "kernel_shape": REQUIRED,
        "pads": REQUIRED,
        "strides": REQUIRED,
    }
    attribute_types = {"dilations": INTS, "kernel_shape": INTS, "pads": INTS, "strides": INTS}

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x, cotangent = required(node, inputs, 0), required(node, inputs, 1)
        require_dtype(node, x, FLOATS, "the input")
        require_same_dtype(node, x, cotangent, "the output's gradient")
        require_rank(node, x, 3)
        group = node.attributes["group"]
        fits = len(cotangent.dims) == len(x.dims) and cotangent.dims[0] == x.dims[0]
        if not fits or group < 1 or x.dims[1] % group or cotangent.dims[1] % group:
            raise ShapeError(
                f"{node.label}: a gradient {list(cotangent.dims)} is not one of a convolution of "
                f"{list(x.dims)} in {group} groups"
            )
        windows = _windows(node, x.dims, cotangent.dims)
        check_window_padding(node, windows, x.dims[0] * x.dims[1], x.dims[0] * cotangent.dims[1])
        return [check_size(node, x.dtype, (cotangent.dims[1], x.dims[1] // group, *windows.kernel))]

    def multiply_adds(
        self, node: Node, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]
    ) -> int:
        return present(inputs, 1).elements * math.prod(outputs[0].dims[1:])

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x, cotangent = widened(present(inputs, 0)), widened(present(inputs, 1))
        windows, group = _windows(node, x.shape, cotangent.shape), node.attributes["group"]
        filters, inner = cotangent.shape[1], x.shape[1] // group
        result = np.zeros((group, filters // group, inner * windows.taps), x.dtype)
        if x.size and cotangent.size:
            image = pad_for_windows(x, windows, 0)
            add = _add_taps if inner == 1 else _add_columns
            add(result, image, cotangent.reshape(*cotangent.shape[:1], group, filters // group, -1), windows)
        shape = (filters, inner, *windows.kernel)
        return [result.reshape(shape).astype(present(inputs, 0).dtype, copy=False)]

    def lower(self, build: Lowering[V], node: Node, inputs: Sequence[V | None]) -> Sequence[V | None] | None:
        x, cotangent, result = given(inputs, 0), given(inputs, 1), build.result()
        windows, group = _windows(node, x.shape, cotangent.shape), node.attributes["group"]
        if len(windows.kernel) > 3:
            return None
        over = windows.over(3)
        batch, channels = x.shape[:2]
        inner, filters = channels // group, cotangent.shape[1]
        if group == 1:
            planes = build.reshape(x, (batch, channels, *over.spatial))
            found = build.conv_weight_gradient(
                planes, build.reshape(cotangent, (batch, filters, *over.output)), over
            )
            if found is not None:
                return [build.reshape(found, result.dims)]
        # Samples are what is summed over: channels of the turned image. Its windows are the output.
        image = build.reshape(x, (batch, group, inner, *over.spatial)).transpose((2, 1, 0, 3, 4, 5))
        image = build.reshape(image, (inner, group * batch, *over.spatial))
        factor = build.reshape(cotangent, (batch, filters, *over.output)).transpose((1, 0, 2, 3, 4))
        turned = Windows(
            over.spatial,
            over.output,
            over.dilations,
            over.strides,
            over.pads_begin,
            tuple(max(reach, 0) for reach in over.reach_end),
            over.kernel,
        )
        order = (1, 0, *range(2, len(result.dims)))
        with build.step(TensorType(result.dtype, (inner, filters, *windows.kernel)), order):
            [made] = build.conv(image, factor, None, turned, group=group)
        return [made.transpose(order)]

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        x, incoming, weight = present(inputs, 0), present(inputs, 1), present(cotangents, 0)
        windows = _windows(node, build.type_of(x).dims, build.type_of(incoming).dims)
        group = node.attributes["group"]
        return [
            image_gradient(build, incoming, weight, windows, group) if needed[0] else None,
            convolved(build, x, weight, windows, group) if needed[1] else None,
        ]


def _windows(node: Node, x: Sequence[int], cotangent: Sequence[int]) -> Windows:
    rank = len(x) - 2
    stated = [
        spatial_attribute(node, key, rank, 1, least)
        for key, least in (("kernel_shape", 1), ("strides", 1), ("dilations", 1), ("pads", 0))
    ]
    kernel, strides, dilations, pads = stated
    return Windows(tuple(x[2:]), kernel, strides, dilations, pads, (0,) * rank, tuple(cotangent[2:]))


def _add_taps(result: Array, image: Array, cotangent: Array, windows: Windows) -> None:
    """Groups of one input channel: one product and sum a tap."""
    for at, (_, view) in enumerate(tap_views(image, windows)):
        read = view.reshape(*view.shape[:2], -1)
        result[:, :, at] = np.einsum("ngml,ngl->gm", cotangent, read)


def _add_columns(result: Array, image: Array, cotangent: Array, windows: Windows) -> None:
    """Windows unrolled into columns, some output rows at a time, and one matrix product a group."""
    rank, group = len(windows.kernel), result.shape[0]
    # [N, C, *output, *kernel] → [N, C, *kernel, *output].
    view = window_view(image, windows)
    view = view.transpose(0, 1, *range(2 + rank, 2 + 2 * rank), *range(2, 2 + rank))
    row = math.prod(windows.output[1:])
    rows = max(1, min(windows.output[0], COLUMN_ELEMENTS // max(image.shape[1] * windows.taps * row, 1)))
    for sample in range(image.shape[0]):
        for start in range(0, windows.output[0], rows):
            part: tuple[Any, ...] = (sample, *(slice(None),) * (1 + rank), slice(start, start + rows))
            columns = view[part].reshape(group, result.shape[2], -1)
            lanes = cotangent[sample, :, :, start * row : (start + rows) * row]
            result += np.matmul(lanes, columns.transpose(0, 2, 1))
