"""Windows over images in machine code: convolutions, pooling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from vkml.cpu.native import depthwise, product, windows, winograd
from vkml.cpu.native.expression import IDENTITY, Access, Epilogue, Expression, Step
from vkml.cpu.native.tiles import lanes_of
from vkml.cpu.native.winograd_code import TILE
from vkml.ir import Constant, TensorType, dtypes
from vkml.ir.dtypes import integer_bounds
from vkml.ir.lowering import CannotLower
from vkml.ir.size import typical
from vkml.ir.windows import Windows
from vkml.kernels.views import View
from vkml.lowering.deferred import is_open
from vkml.lowering.native_epilogue import ADD, Ending, after, grouped, scaled
from vkml.lowering.native_layout import Border, access_of, places, plane, require_floats
from vkml.ops.pool import window_counts

if TYPE_CHECKING:
    from vkml.lowering.native_builder import AnyLaunch, NativeBuilder

Array = np.ndarray[Any, Any]


AS_FLOATS = Expression(1, (Step("to_float32", (0,), dtype="int32"),), (1,))
"""Of bytes, which are read as int32."""
PANEL_BYTES = 512 * 1024
"""Of a panel of weights, that the second-level cache keeps while tiles of an image pass."""


def conv(
    build: NativeBuilder,
    x: View,
    weight: View,
    bias: View | None,
    over: Windows,
    group: int,
) -> list[View]:
    """A convolution of [images, channels, 1, (height,) width]: depthwise, by Winograd, or as a product."""
    require_floats(x, weight, *([] if bias is None else [bias]))
    result = build.result()
    if len(result.dims) == 5 or x.shape[2] != 1 or weight.shape[2] != 1:
        raise CannotLower("three-dimensional convolutions have no machine code")
    if not x.elements:
        raise CannotLower("a convolution of nothing has no machine code")
    images, filters = result.dims[:2]
    planar = over.over(2)
    height, width = planar.output
    if bias is not None:
        lanes = bias.reshape((1, filters, *(1,) * (len(result.dims) - 2)))
        assert lanes is not None
        build.before_epilogue(result, addend=lanes.expand(result.dims))
    image, weight = plane(x), build.contiguous(weight)
    kernel_y, kernel_x = planar.kernel
    need = Border.reached_by(planar)
    image = with_border(build, image, need)
    step_n, step_c = image.strides[:2]
    start = first_place(image, planar)
    is_depthwise = group == x.shape[1] == filters and group > 1 and step_c == 1
    has_narrow = is_depthwise and not is_open((image.shape, image.strides, result.dims))
    ending = ending_channels_last(build, result, filters, has_narrow=has_narrow)
    taps, walks = taps_of(image, planar), steps_of(image, planar)
    per_group, instructions = filters // group, build.instructions
    is_known = weight.buffer.is_constant
    if not is_known and group > 1 and per_group < lanes_of(instructions) // 2:
        raise CannotLower("convolutions of few filters a group with computed weights have no machine code")
    if is_depthwise:
        packed = build.materialised(
            weight,
            f"depthwise{build.instructions.value}",
            lambda array: depthwise.pack_depthwise(
                instructions, array.reshape(filters, 1, kernel_y, kernel_x)
            ),
        )
        launch = build.launch(
            depthwise.depthwise,
            images=images,
            height=height,
            width=width,
            channels=filters,
            taps=taps,
            a=walks,
            epilogue=ending.epilogue,
            threads=build.threads,
        )
        return finish_padded(build, launch, image, start, [packed], ending)
    is_square = (kernel_y, kernel_x) == (3, 3) and group == 1 and step_c == 1
    is_dense = planar.strides == planar.dilations == (1, 1)
    if is_known and is_square and is_dense and not build.is_strict and height >= TILE and width >= TILE:
        arrangement = winograd.plan(
            build.instructions,
            images=typical(images),
            height=typical(height),
            width=typical(width),
            channels=x.shape[1],
            filters=filters,
            threads=build.threads,
        )
        if arrangement is not None:
            return _winograd(build, image, start, weight, arrangement, ending)
    inner = weight.shape[1]
    is_plain = planar.kernel == planar.strides == (1, 1) and need.is_empty
    panel = product.panel_width(
        build.instructions,
        columns=per_group,
        rows=typical(height * width if is_plain else width),
        row_bytes=4 * typical(walks[2]),
    )

    def pack(array: Array) -> Array:
        by_tap = array.reshape(group, per_group, inner, kernel_y * kernel_x).transpose(0, 3, 2, 1)
        if group == 1:
            return product.pack(by_tap.reshape(-1, per_group), panel)
        return np.concatenate(
            [product.pack(part.reshape(-1, per_group), panel).reshape(-1) for part in by_tap]
        )

    if is_known:
        packed = build.materialised(weight, f"filters{panel}:{group}", pack)
    else:
        packed = _packed_filters(build, weight, group, panel)
    epilogue = ending.epilogue
    a: tuple[int, ...] = (*walks, step_c)
    b: tuple[int, ...] = (0,)
    batch: tuple[int, ...] = (images,)
    if group > 1:
        batch = (images, group)
        a = (step_n, inner * step_c, *walks[1:], step_c)
        b = (0, -(-per_group // panel) * panel * inner * kernel_y * kernel_x)
        epilogue = grouped(epilogue, per_group)
    stretches = _stretches(len(taps), 4 * inner * panel) if group == 1 and height * width > 1 else 1

    def some_taps(first: int, last: int, ending: Epilogue) -> AnyLaunch:
        return build.launch(
            product.product,
            batch=batch,
            height=height,
            width=width,
            columns=per_group,
            inner=inner,
            taps=taps[first:last],
            a=a,
            b=b,
            panel=panel,
            epilogue=ending,
            threads=build.threads,
            panel_floats=panel * inner * len(taps),
        )

    if stretches == 1:
        whole = some_taps(0, len(taps), epilogue)
        return finish_padded(build, whole, image, start, [packed], ending)
    # Sums of a few taps at a time, so that the second-level cache holds the panel they meet.
    kept = build.channels_last(TensorType(dtypes.FLOAT32, result.dims), "", Border())
    sums = places(kept)
    access = access_of(sums)
    steps = [round(at * len(taps) / stretches) for at in range(stretches + 1)]
    for first, last in pairwise(steps):
        part = replace(packed, offset=packed.offset + first * inner * panel)
        if last < len(taps):
            expression = IDENTITY if first == 0 else ADD
            leaves = (sums,) if first else ()
            partial = Ending(
                Epilogue(expression, (access,) * len(leaves), (access,)), leaves, (sums,), (), ()
            )
            finish_padded(build, some_taps(first, last, partial.epilogue), image, start, [part], partial)
    final = replace(
        epilogue,
        expression=after(epilogue.expression, (Step("add", (0, 1)),), 1),
        leaves=(access, *epilogue.leaves),
    )
    ending = replace(ending, leaves=(sums, *ending.leaves))
    last_launch = some_taps(steps[-2], steps[-1], final)
    return finish_padded(build, last_launch, image, start, [part], ending)


def _packed_filters(build: NativeBuilder, weight: View, group: int, panel: int) -> View:
    """Computed filters [filters, channels, 1, y, x] as [group, panel, tap, channel, lane], during the run.

    Lanes beyond the last filter keep what was in memory: nothing that is stored depends on them.
    """
    weight = build.widened(weight)
    filters, inner = weight.shape[:2]
    taps, per_group = math.prod(weight.shape[2:]), filters // group
    full, rest = divmod(per_group, panel)
    packed = build.scratch(TensorType(dtypes.FLOAT32, (group, full + (rest > 0), taps, inner, panel)))
    row = inner * taps
    for first, panels, lanes in ((0, full, panel), (full, 1, rest)):
        if panels and lanes:
            source = replace(
                weight,
                shape=(group, panels, taps, inner, lanes),
                strides=(per_group * row, panel * row, 1, taps, row),
                offset=weight.offset + first * panel * row,
            )
            build.copy(source, packed.slice((0, first, 0, 0, 0), (1,) * 5, source.shape))
    return packed


def _winograd(
    build: NativeBuilder, image: View, start: View, weight: View, arrangement: winograd.Plan, ending: Ending
) -> list[View]:
    images, filters, *spatial = build.result().dims
    filters, channels = weight.shape[:2]
    instructions = build.instructions
    packed = build.materialised(
        weight,
        f"{arrangement.key}{build.instructions.value}",
        lambda array: winograd.pack(instructions, array.reshape(filters, channels, 3, 3), arrangement),
    )
    launch = build.launch(
        winograd.winograd,
        images=images,
        height=spatial[0],
        width=spatial[1],
        channels=channels,
        filters=filters,
        a=(image.strides[0], image.strides[2], image.strides[3]),
        arrangement=arrangement,
        epilogue=ending.epilogue,
    )
    return finish_padded(build, launch, image, start, [packed], ending)


def first_place(image: View, planar: Windows) -> View:
    """The image from the first element that a window reads, in its border where it has one."""
    top, left = planar.pads_begin
    return replace(image, offset=image.offset - top * image.strides[2] - left * image.strides[3])


def taps_of(image: View, planar: Windows) -> tuple[int, ...]:
    """How far each element of a window lies from its first, in elements of memory."""
    (_, _, step_y, step_x), (dilation_y, dilation_x) = image.strides, planar.dilations
    return tuple(
        y * dilation_y * step_y + x * dilation_x * step_x
        for y in range(planar.kernel[0])
        for x in range(planar.kernel[1])
    )


def steps_of(image: View, planar: Windows) -> tuple[int, int, int]:
    """How far neighbouring windows lie apart along images, y and x, in elements of memory."""
    (step_n, _, step_y, step_x), (stride_y, stride_x) = image.strides, planar.strides
    return step_n, stride_y * step_y, stride_x * step_x


def pool(
    build: NativeBuilder, x: View, how: str | float, over: Windows, *, counts_padding: bool
) -> list[View]:
    """The greatest element or the mean of each window; bytes are compared as floats."""
    result = build.result()
    has_bytes = how == "max" and x.dtype in (dtypes.UINT8, dtypes.INT8)
    if not has_bytes:
        require_floats(x)
    if how not in ("max", "average") or len(result.dims) == 5 or x.shape[2] != 1:
        raise CannotLower("this pooling has no machine code")
    images, channels = result.dims[:2]
    planar = over.over(2)
    lowest = float(integer_bounds(x.dtype)[0]) if has_bytes else -np.inf
    image = with_border(build, plane(x), Border.reached_by(planar, lowest if how == "max" else 0.0))
    start = first_place(image, planar)
    ending = ending_channels_last(
        build, result, channels, has_narrow=not is_open((image.shape, image.strides, result.dims))
    )
    epilogue, others = ending.epilogue, list[View]()
    if has_bytes:
        expression = after(epilogue.expression, (Step("to_int32", (0,)),), 0)
        epilogue = replace(epilogue, expression=expression)
    if how == "average":
        counts = window_counts(planar, include_padding=counts_padding)
        with np.errstate(divide="ignore"):
            # A window with nothing in it: zero times infinity, NaN as everywhere.
            shares = (1.0 / counts).astype(np.float32)
        if (shares == shares.flat[0]).all():
            epilogue = scaled(epilogue, float(shares.flat[0]))
        else:
            constant = Constant(dtypes.FLOAT32, shares.shape, shares)
            share = build.constant(constant, "window shares")
            epilogue = scaled(epilogue, Access((0, share.strides[0], share.strides[1], 0)))
            others = [share]
    launch = build.launch(
        windows.windows,
        kind="max" if how == "max" else "sum",
        batch=(images,),
        height=planar.output[0],
        width=planar.output[1],
        columns=channels,
        taps=taps_of(image, planar),
        a=steps_of(image, planar),
        epilogue=epilogue,
        threads=build.threads,
    )
    ending = replace(ending, leaves=[*others, *ending.leaves])
    return finish_padded(build, launch, image, start, [image], ending)


def with_border(build: NativeBuilder, image: View, need: Border) -> View:
    """The image itself where it has its channels side by side and enough zeros round it, else a copy."""
    found = with_own_border(build, image, need) if image.dtype == dtypes.FLOAT32 else None
    if found is not None:
        return found
    made = build.channels_last(TensorType(dtypes.FLOAT32, image.shape), "", need)
    build.copy(image, made, AS_FLOATS if image.dtype in (dtypes.UINT8, dtypes.INT8) else IDENTITY)
    return made


def with_own_border(build: NativeBuilder, image: View, need: Border) -> View | None:
    """The image, where it has its channels side by side and such a border, that being its own."""
    channels = image.shape[1]
    is_last = image.strides[1] == 1 or channels == 1
    if is_last and need.is_empty:
        return image
    known = build.bordered.get(image.buffer)
    if is_last and known is not None and known.border.covers(need):
        inside = known.inside
        same = all(
            image.shape[axis] == inside.shape[axis]
            and (image.shape[axis] == 1 or image.strides[axis] == inside.strides[axis])
            for axis in (0, 2, 3)
        )
        if same and 0 <= image.offset - inside.offset <= inside.shape[1] - channels:
            # A reshape may have forgotten the stride of an axis of size 1, along which the border lies.
            return replace(image, strides=inside.strides)
    return None


def ending_channels_last(
    build: NativeBuilder, result: TensorType, channels: int, *, has_narrow: bool = False
) -> Ending:
    build.makes_channels_last = True
    try:
        return build.ending(
            result, places, lambda view: channels == 1 or view.strides[3] == 1, has_narrow=has_narrow
        )
    finally:
        build.makes_channels_last = False


def finish_padded(
    build: NativeBuilder, launch: AnyLaunch, image: View, start: View, others: Sequence[View], ending: Ending
) -> list[View]:
    """As `NativeBuilder.finish`, for a first operand whose window begins in the border of `image`."""
    return build.finish(launch, [image, *others], ending, first=start)


def _stretches(taps: int, tap_bytes: int) -> int:
    """Into how many launches the taps of a convolution are cut.

    Args:
        taps: of the window.
        tap_bytes: of a panel of weights, for each tap.
    """
    return 1 if taps * tap_bytes <= 2 * PANEL_BYTES else min(taps, -(-taps * tap_bytes // PANEL_BYTES))
