"""Windows over images in machine code: convolutions, pooling."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from vkml.cpu.native import depthwise, product, region_product, windows, winograd
from vkml.cpu.native.expression import IDENTITY, Access, Epilogue, Expression, Step
from vkml.cpu.native.region_product import Span
from vkml.cpu.native.tiles import lanes_of
from vkml.ir import Constant, TensorType, dtypes
from vkml.ir.dtypes import integer_bounds
from vkml.ir.lowering import CannotLower
from vkml.ir.size import typical
from vkml.ir.windows import Windows
from vkml.kernels.views import View
from vkml.lowering.deferred import is_open
from vkml.lowering.native_epilogue import ADD, Ending, after, grouped, scaled, without_depth
from vkml.lowering.native_layout import Border, access_of, image_of, places, require_floats
from vkml.lowering.native_taps import Rules, Spans, Way, way_of
from vkml.ops.pool import window_counts

if TYPE_CHECKING:
    from vkml.lowering.native_builder import AnyLaunch, NativeBuilder

Array = np.ndarray[Any, Any]


AS_FLOATS = Expression(1, (Step("to_float32", (0,), dtype="int32"),), (1,))
"""Of bytes, which are read as int32."""
PANEL_BYTES = 512 * 1024
"""Of a panel of weights, that the second-level cache keeps while tiles of an image pass."""
MOST_TAPS = 2**16
"""Of windows over three axes, of which the code has a list; those of gradients by weights are images."""


def conv(
    build: NativeBuilder,
    x: View,
    weight: View,
    bias: View | None,
    over: Windows,
    group: int,
) -> list[View]:
    """A convolution of [images, channels, depth, height, width]: depthwise, by Winograd, or as a product.

    A third axis is one more of the batch; what windows have along it are further taps.
    """
    require_floats(x, weight, *([] if bias is None else [bias]))
    result = build.result()
    over = over_axes(result, over)
    if len(over.kernel) == 3 and over.taps > MOST_TAPS:
        raise CannotLower("convolutions of large windows over three axes have no machine code")
    if not x.elements:
        raise CannotLower("a convolution of nothing has no machine code")
    filters = result.dims[1]
    if bias is not None:
        lanes = bias.reshape((1, filters, *(1,) * (len(result.dims) - 2)))
        assert lanes is not None
        build.before_epilogue(result, addend=lanes.expand(result.dims))
    image = image_of(x, len(over.kernel))
    way = _way(build, image, weight, over, filters, group)
    weight = weight.slice(way.first_tap, (1,) * 5, (*weight.shape[:2], *way.windows.over(3).kernel))
    if not weight.buffer.is_constant:
        weight = build.contiguous(weight)
    image = with_border(build, image, way.border)
    is_depthwise = group == x.shape[1] == filters and group > 1
    has_narrow = is_depthwise and not is_open((image.shape, image.strides, result.dims))
    ending = ending_channels_last(build, result, filters, has_narrow=has_narrow)
    is_known, per_group = weight.buffer.is_constant, filters // group
    if not is_known and group > 1 and per_group < lanes_of(build.instructions) // 2:
        raise CannotLower("convolutions of few filters a group with computed weights have no machine code")
    # Once for all parts, which are computed alike.
    packed = functools.cache(lambda panel: _packed(build, weight, group, panel))
    if not way.depths:
        return _convolved(build, image, weight, packed, way, group, ending)
    for span, part in way.depths:
        at = span.start * over.strides[0] - way.windows.pads_begin[0] + span.first * over.dilations[0]
        planes = image.slice((0, 0, at, 0, 0), (1,) * 5, (*image.shape[:2], *part.windows.spatial))
        own = _part_of(ending, (span,), is_last=span is way.depths[-1][0])
        made = _convolved(build, planes, weight, packed, part, group, own, span.first)
    return made


def over_axes(result: TensorType, windows: Windows) -> Windows:
    """Windows over three axes over those that images of a result have in memory: two, or three."""
    return windows.over(max(2, len(result.dims) - 2))


def _convolved(
    build: NativeBuilder,
    image: View,
    weight: View,
    packed: Callable[[int], View],
    way: Way,
    group: int,
    ending: Ending,
    first: int = 0,
) -> list[View]:
    """A convolution of an image with what is to be read round it.

    Args:
        build: adds the launches.
        image: [images, channels, (depth,) height, width].
        weight: [filters, channels, z, y, x].
        packed: the same as `_packed` makes it for panels of a width.
        way: how.
        group: of channels.
        ending: over (image, (z,) y, x, channel).
        first: plane of the weight that meets the image's first one.
    """
    if group == image.shape[1] == weight.shape[0] and group > 1:
        kernel = way.windows.over(3).kernel
        planes = weight.slice((0, 0, first, 0, 0), (1,) * 5, (*weight.shape[:2], *kernel))
        return _depthwise(build, image, planes, way, ending)
    if way.winograd is not None:
        return _winograd(build, image, weight, way.windows, way.winograd, ending, first)
    if way.regions is not None:
        return _in_regions(build, image, weight, packed, way, group, ending)
    return _as_product(build, image, weight, packed, way, group, ending, first)


def _way(build: NativeBuilder, image: View, weight: View, over: Windows, filters: int, group: int) -> Way:
    def under(rules: Rules) -> Way:
        return way_of(
            over,
            images=image.shape[0],
            channels=image.shape[1],
            filters=filters,
            group=group,
            is_depthwise=group == image.shape[1] == filters and group > 1,
            rules=rules,
        )

    is_known = weight.buffer.is_constant
    rules = Rules.of_floats(build.instructions, build.threads, is_known=is_known, is_strict=build.is_strict)
    way = under(rules)
    cuts = way.regions is not None or way.parts is not None or way.depths
    if (cuts or way.windows.kernel != over.kernel) and is_known and not build.ask(weight, _is_finite):
        return under(replace(rules, skips=False))
    return way


def _is_finite(view: View) -> bool:
    """Whether the constant that a view is of has neither infinities nor NaN."""
    constant = view.buffer.constant
    assert constant is not None
    return bool(np.isfinite(constant.array).all())


def _depthwise(build: NativeBuilder, image: View, weight: View, way: Way, ending: Ending) -> list[View]:
    """In parts, where some of the result meets few taps."""
    over, instructions, filters = way.windows, build.instructions, weight.shape[0]
    cuts: list[Spans] = [(Span(0, n, 0, k),) for n, k in zip(over.output, over.kernel, strict=True)]
    cuts[-2:] = way.parts or cuts[-2:]
    start, taps, walks = first_place(image, over), taps_of(image, over), steps_of(image, over)
    by_place, leading = np.array(taps, object).reshape(over.kernel), 5 - len(cuts)
    for spans in itertools.product(*cuts):
        first, shape = (span.first for span in spans), (span.taps for span in spans)
        packed = build.materialised(
            weight.slice((*(0,) * leading, *first), (1,) * 5, (*weight.shape[:leading], *shape)),
            f"depthwise{instructions.value}",
            lambda array: depthwise.pack_depthwise(instructions, array.reshape(filters, 1, *array.shape[2:])),
        )
        read = by_place[tuple(slice(span.first, span.last) for span in spans)].reshape(-1).tolist()
        part = _part_of(
            ending, spans, is_last=all(span is cut[-1] for span, cut in zip(spans, cuts, strict=True))
        )
        launch = build.launch(
            depthwise.depthwise,
            batch=(image.shape[0], *over.output[:-2]),
            height=spans[-2].size,
            width=spans[-1].size,
            channels=filters,
            taps=tuple(tap - read[0] for tap in read),
            a=walks,
            epilogue=ending.epilogue,
            threads=build.threads,
        )
        place = start.offset + read[0] + sum(s.start * step for s, step in zip(spans, walks[1:], strict=True))
        made = finish_padded(build, launch, image, replace(start, offset=place), [packed], part)
    return made


def _part_of(ending: Ending, spans: Sequence[Span], *, is_last: bool) -> Ending:
    """The ending of a part of the result; that of the last one has what is to be made of the whole.

    Args:
        ending: over (image, …, channel).
        spans: of the part, along the first spatial axes.
        is_last: whether it is the last one.
    """

    def cut(view: View) -> View:
        rest = view.shape[1 + len(spans) :]
        starts = (0, *(span.start for span in spans), *(0 for _ in rest))
        shape = (view.shape[0], *(span.size for span in spans), *rest)
        return view.slice(starts, (1,) * len(shape), shape)

    leaves, targets = [cut(leaf) for leaf in ending.leaves], [cut(target) for target in ending.targets]
    return Ending(
        ending.epilogue, leaves, targets, ending.copies if is_last else (), ending.outputs if is_last else ()
    )


def _as_product(
    build: NativeBuilder,
    image: View,
    weight: View,
    packed_for: Callable[[int], View],
    way: Way,
    group: int,
    ending: Ending,
    first_plane: int,
) -> list[View]:
    """A product, or several of a few taps each; arguments as for `_convolved`."""
    over = way.windows
    (*outer, height, width), (filters, inner, *kernel) = over.output, weight.shape
    per_group = filters // group
    start, taps, walks = first_place(image, over), taps_of(image, over), steps_of(image, over)
    is_plain = way.border.is_empty and over.taps == math.prod(over.strides) == 1
    epilogue = ending.epilogue
    strides = [walks, *(access.strides for access in (*epilogue.leaves, *epilogue.results))]
    if outer and all(steps[1] == height * steps[2] for steps in strides):
        # Planes follow one another, line by line.
        walks, epilogue = (walks[0], *walks[2:]), without_depth(epilogue)
        outer, height = [], outer[0] * height
    panel = product.panel_width(
        build.instructions,
        columns=per_group,
        rows=typical(height * width if is_plain else width),
        row_bytes=4 * typical(walks[-1]),
    )
    packed = packed_for(panel)
    packed = replace(packed, offset=packed.offset + first_plane * math.prod(kernel[1:]) * inner * panel)
    batch = (image.shape[0], *outer)
    epilogue, batch, a, b = _by_group(image, weight, batch, walks, group, panel, epilogue)
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
            panel_floats=panel * inner * math.prod(kernel),
        )

    if stretches == 1:
        whole = some_taps(0, len(taps), epilogue)
        return finish_padded(build, whole, image, start, [packed], ending)
    # Sums of a few taps at a time, so that the second-level cache holds the panel they meet.
    dims = (image.shape[0], filters, *over.output)
    sums = places(build.channels_last(TensorType(dtypes.FLOAT32, dims), "", Border()))
    access = access_of(sums)
    if len(batch) + 3 < len(access.strides):
        access = replace(access, strides=(access.strides[0], *access.strides[2:]))
    steps = [round(at * len(taps) / stretches) for at in range(stretches + 1)]
    for first, last in itertools.pairwise(steps):
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


def _in_regions(
    build: NativeBuilder,
    image: View,
    weight: View,
    packed_for: Callable[[int], View],
    way: Way,
    group: int,
    ending: Ending,
) -> list[View]:
    """Products of the parts of the result that meet the same taps."""
    assert way.regions is not None
    panel = way.regions.vectors * lanes_of(build.instructions)
    packed = packed_for(panel)
    walks = steps_of(image, way.windows)
    epilogue, batch, a, b = _by_group(image, weight, image.shape[:1], walks, group, panel, ending.epilogue)
    launch = region_launch(
        build, image, way, weight.shape[0] // group, weight.shape[1], epilogue, batch=batch, a=a, b=b
    )
    return build.finish(launch, [image, packed], ending)


def region_launch(
    build: NativeBuilder,
    image: View,
    way: Way,
    columns: int,
    inner: int,
    epilogue: Epilogue,
    **strides: tuple[int, ...],
) -> AnyLaunch:
    """What computes a convolution in its regions; `strides` as for `region_product`."""
    # Windows begin outside of the image, where nothing is read: taps are told from its own first place.
    before = first_place(image, way.windows).offset - image.offset
    return build.launch(
        region_product.region_product,
        arrangement=way.regions,
        columns=columns,
        inner=inner,
        kernel=way.windows.kernel,
        taps=tuple(before + tap for tap in taps_of(image, way.windows)),
        epilogue=epilogue,
        threads=build.threads,
        terms=way.terms,
        **strides,
    )


def _by_group(
    image: View,
    weight: View,
    batch: tuple[int, ...],
    walks: tuple[int, ...],
    group: int,
    panel: int,
    epilogue: Epilogue,
) -> tuple[Epilogue, tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """The epilogue, the leading axes, and the strides of images and packed weights, of products by group."""
    step_c, (filters, inner), none = image.strides[1], weight.shape[:2], (0,) * len(batch)
    if group == 1:
        return epilogue, batch, (*walks, step_c), none
    per_group = filters // group
    packed = -(-per_group // panel) * panel * inner * math.prod(weight.shape[2:])
    a = (*walks[:-2], inner * step_c, *walks[-2:], step_c)
    return grouped(epilogue, per_group), (*batch, group), a, (*none, packed)


def _packed(build: NativeBuilder, weight: View, group: int, panel: int) -> View:
    """Filters [filters, channels, z, y, x] as [group, panel, tap, channel, lane]."""
    if not weight.buffer.is_constant:
        return _packed_filters(build, weight, group, panel)
    filters, inner = weight.shape[:2]

    def pack(array: Array) -> Array:
        by_tap = array.reshape(group, filters // group, inner, -1).transpose(0, 3, 2, 1)
        parts = [product.pack(part.reshape(-1, filters // group), panel) for part in by_tap]
        return parts[0] if group == 1 else np.concatenate([part.reshape(-1) for part in parts])

    return build.materialised(weight, f"filters{panel}:{group}", pack)


def _packed_filters(build: NativeBuilder, weight: View, group: int, panel: int) -> View:
    """Computed filters [filters, channels, z, y, x] as [group, panel, tap, channel, lane], during the run.

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
    build: NativeBuilder,
    image: View,
    weight: View,
    over: Windows,
    arrangement: winograd.Plan,
    ending: Ending,
    first_plane: int,
) -> list[View]:
    """In the plane; what further planes of a window have are to it more channels of the first one."""
    filters, channels = weight.shape[:2]
    instructions = build.instructions
    plane_steps = [d * step for d, step in zip(over.dilations[:-2], image.strides[2:-2], strict=True)]

    def pack(array: Array) -> Array:
        by_plane = array.transpose(0, 2, 1, 3, 4).reshape(filters, -1, 3, 3)
        return winograd.pack(instructions, by_plane, arrangement)

    packed = build.materialised(
        weight,
        f"{arrangement.key}{build.instructions.value}",
        pack,
    )
    before = first_plane * channels * arrangement.vectors * lanes_of(instructions)
    packed = replace(packed, offset=packed.offset + before)
    launch = build.launch(
        winograd.winograd,
        batch=(image.shape[0], *over.output[:-2]),
        height=over.output[-2],
        width=over.output[-1],
        channels=channels,
        filters=filters,
        a=steps_of(image, over),
        arrangement=arrangement,
        epilogue=ending.epilogue,
        dilations=over.dilations[-2:],
        planes=over.over(3).kernel[0],
        plane_step=sum(plane_steps),
        packed_planes=weight.shape[2],
    )
    return finish_padded(build, launch, image, first_place(image, over), [packed], ending)


def first_place(image: View, over: Windows) -> View:
    """The image from the first element that a window reads, in its border where it has one."""
    before = sum(pad * step for pad, step in zip(over.pads_begin, image.strides[2:], strict=True))
    return replace(image, offset=image.offset - before)


def taps_of(image: View, over: Windows) -> tuple[int, ...]:
    """How far each element of a window lies from its first, in elements of memory."""
    steps = [dilation * step for dilation, step in zip(over.dilations, image.strides[2:], strict=True)]
    taps = [0]
    for size, step in zip(over.kernel, steps, strict=True):
        taps = [tap + at * step for tap in taps for at in range(size)]
    return tuple(taps)


def steps_of(image: View, over: Windows) -> tuple[int, ...]:
    """How far neighbouring windows lie apart along images, (z,) y and x, in elements of memory."""
    step_n, _, *steps = image.strides
    return step_n, *(stride * step for stride, step in zip(over.strides, steps, strict=True))


def pool(
    build: NativeBuilder, x: View, how: str | float, over: Windows, *, counts_padding: bool
) -> list[View]:
    """The greatest element or the mean of each window; bytes are compared as floats."""
    result = build.result()
    has_bytes = how == "max" and x.dtype in (dtypes.UINT8, dtypes.INT8)
    if not has_bytes:
        require_floats(x)
    if how not in ("max", "average"):
        raise CannotLower("this pooling has no machine code")
    images, channels = result.dims[:2]
    over = over_axes(result, over)
    lowest = float(integer_bounds(x.dtype)[0]) if has_bytes else -np.inf
    need = Border.reached_by(over, lowest if how == "max" else 0.0)
    image = with_border(build, image_of(x, len(over.kernel)), need)
    start = first_place(image, over)
    ending = ending_channels_last(
        build, result, channels, has_narrow=not is_open((image.shape, image.strides, result.dims))
    )
    epilogue, others = ending.epilogue, list[View]()
    if has_bytes:
        expression = after(epilogue.expression, (Step("to_int32", (0,)),), 0)
        epilogue = replace(epilogue, expression=expression)
    if how == "average":
        counts = window_counts(over, include_padding=counts_padding)
        with np.errstate(divide="ignore"):
            # A window with nothing in it: zero times infinity, NaN as everywhere.
            shares = (1.0 / counts).astype(np.float32)
        if (shares == shares.flat[0]).all():
            epilogue = scaled(epilogue, float(shares.flat[0]))
        else:
            constant = Constant(dtypes.FLOAT32, shares.shape, shares)
            share = build.constant(constant, "window shares")
            epilogue = scaled(epilogue, Access((0, *share.strides, 0)))
            others = [share]
    launch = build.launch(
        windows.windows,
        kind="max" if how == "max" else "sum",
        batch=(images, *over.output[:-2]),
        height=over.output[-2],
        width=over.output[-1],
        columns=channels,
        taps=taps_of(image, over),
        a=steps_of(image, over),
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
        same = len(image.shape) == len(inside.shape) and all(
            image.shape[axis] == inside.shape[axis]
            and (image.shape[axis] == 1 or image.strides[axis] == inside.strides[axis])
            for axis in range(len(image.shape))
            if axis != 1
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
            result, places, lambda view: channels == 1 or view.strides[-1] == 1, has_narrow=has_narrow
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
