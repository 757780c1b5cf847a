"""GridSample in other operators, and its gradient: places and weights of what is read are scalar forms."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from vkml.dataclasses import dataclass
from vkml.ir import scalar
from vkml.ir.dtypes import BOOL, INT32, DType
from vkml.ir.gradients import (
    Emitter,
    T,
    converted,
    expanded,
    expression,
    reshaped,
    sliced,
    summed,
    widened,
    zeros,
)
from vkml.ir.scalar import Scalar
from vkml.ir.scalar_derivatives import derivative

CUBIC_COEFFICIENT = -0.75


@dataclass(frozen=True)
class AxisTap:
    """What is read along an axis, as forms of the grid's element for it."""

    place: Scalar
    """Inside the axis, a whole number."""
    weight: Scalar
    inside: Scalar | None
    """Whether anything is there; None where that is always so."""


def axis_taps(g: Scalar, size: int, mode: str, padding: str, aligned: bool) -> list[AxisTap]:
    """The taps along an axis of `size` elements, as `GridSample.evaluate` takes them.

    Args:
        g: the grid's element, -1 … 1.
        size: of the axis.
        mode: nearest, linear or cubic.
        padding: zeros, border or reflection.
        aligned: whether -1 and 1 are the centres of the corner elements, not their outer edges.
    """
    place = (g + 1) / 2 * (size - 1) if aligned else ((g + 1) * size - 1) / 2
    return taps_at(place, size, mode, padding, aligned)


def taps_at(place: Scalar, size: int, mode: str, padding: str, aligned: bool) -> list[AxisTap]:
    """The taps along an axis round a place of it; see `axis_taps`."""
    place = _limited(scalar.where(scalar.test("isnan", place), -1e6, place), -1e6, 1e6 + size)
    low, high = (0.0, size - 1.0) if aligned else (-0.5, size - 0.5)
    if mode == "nearest":
        place = scalar.unary("rint", place)
    if mode != "cubic" and padding == "border":
        place = _limited(place, 0, size - 1)
    elif mode != "cubic" and padding == "reflection":
        place = _reflected(place, low, high)
    base = scalar.unary("floor", place)
    fraction = place - base
    one = scalar.constant(1, place.dtype)
    weights: list[tuple[int, Scalar]]
    if mode == "nearest":
        weights = [(0, one)]
    elif mode == "linear":
        weights = [(0, 1 - fraction), (1, fraction)]
    else:
        weights = [(offset, _cubic(scalar.absolute(fraction - offset))) for offset in range(-1, 3)]
    taps = []
    for offset, weight in weights:
        index, inside = base + offset, None
        if padding == "zeros":
            inside = (index >= 0) & (index < size)
        elif padding == "reflection":
            index = _reflected(index, low, high)
        taps.append(AxisTap(_limited(index, 0, max(size - 1, 0)), weight, inside))
    return taps


def _limited(x: Scalar, low: float, high: float) -> Scalar:
    """As clip, but at the limits themselves nothing depends on `x`."""
    return scalar.where(x <= low, low, scalar.where(x >= high, high, x))


def _reflected(place: Scalar, low: float, high: float) -> Scalar:
    """Places folded back into low … high."""
    span = high - low
    if span <= 0:
        return scalar.constant(low, place.dtype)
    distance = scalar.absolute(place - low)
    folded = scalar.binary("mod", distance, 2 * span)
    return scalar.minimum(folded, 2 * span - folded) + low


def _cubic(distance: Scalar) -> Scalar:
    a = CUBIC_COEFFICIENT
    near = ((a + 2) * distance - (a + 3)) * distance * distance + 1
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    return scalar.where(distance <= 1, near, far)


def grid_sample_gradient(
    build: Emitter[T],
    x: T,
    grid: T,
    cotangent: T,
    mode: str,
    padding: str,
    aligned: bool,
    needed: Sequence[bool],
) -> list[T | None]:
    """Cotangents of the image and of the grid.

    Args:
        build: the emitter.
        x: [N, C, *spatial].
        grid: [N, *output, axes], the last axis first.
        cotangent: of the output, [N, C, *output].
        mode: nearest, linear or cubic.
        padding: zeros, border or reflection.
        aligned: see `axis_taps`.
        needed: of both, whether it is wanted.
    """
    type_, of_grid = build.type_of(x), build.type_of(grid)
    batch, channels, *spatial = type_.dims
    count = math.prod(of_grid.dims[1:-1])
    if 0 in (batch, channels, count):
        made = zip((type_, of_grid), needed, strict=True)
        return [zeros(build, entry) if wanted else None for entry, wanted in made]
    grid = widened(build, reshaped(build, grid, [batch, count, len(spatial)]))
    wide = build.type_of(grid).dtype
    lanes = [
        reshaped(build, sliced(build, grid, 2, axis, axis + 1), [batch, count])
        for axis in reversed(range(len(spatial)))
    ]
    corners = corners_of(
        [
            axis_taps(scalar.argument(axis, wide), size, mode, padding, aligned)
            for axis, size in enumerate(spatial)
        ],
        spatial,
        wide,
    )
    rows = len(corners) * count

    def beside(forms: Sequence[Scalar], dtype: DType) -> T:
        return _beside(build, forms, lanes, dtype)

    places = expanded(
        build,
        reshaped(build, beside([c.place for c in corners], INT32), [batch, 1, rows]),
        [batch, channels, rows],
    )
    incoming = widened(build, reshaped(build, cotangent, [batch, channels, 1, count]))
    made_x = made_grid = None
    if needed[0]:
        weights = beside([c.weight for c in corners], build.type_of(incoming).dtype)
        shares = build.apply("Mul", incoming, reshaped(build, weights, [batch, 1, len(corners), count]))
        updates = converted(build, reshaped(build, shares, [batch, channels, rows]), type_.dtype)
        image = [batch, channels, math.prod(spatial)]
        nothing = expanded(build, build.constant(0, type_.dtype), image)
        made_x = build.apply("ScatterElements", nothing, places, updates, axis=2, reduction="add")
        made_x = reshaped(build, made_x, type_.dims)
    if needed[1]:
        flat = widened(build, reshaped(build, x, [batch, channels, math.prod(spatial)]))
        read = reshaped(
            build,
            build.apply("GatherElements", flat, places, axis=2),
            [batch, channels, len(corners), count],
        )
        products = converted(build, summed(build, build.apply("Mul", incoming, read), [1]), wide)
        columns = []
        for axis in reversed(range(len(spatial))):
            slopes = [derivative(c.weight, axis) or scalar.constant(0, wide) for c in corners]
            along = summed(build, build.apply("Mul", products, beside(slopes, wide)), [1])
            columns.append(reshaped(build, along, [batch, count, 1]))
        joined = build.apply("Concat", *columns, axis=2) if len(columns) > 1 else columns[0]
        made_grid = reshaped(build, converted(build, joined, of_grid.dtype), of_grid.dims)
    return [made_x, made_grid]


@dataclass(frozen=True)
class Corner:
    """One element that is read: a tap of each axis."""

    place: Scalar
    """In the flattened image, int32."""
    weight: Scalar
    """0 where nothing is there."""
    inside: Scalar | None
    """Whether anything is there; None where that is always so."""


def corners_of(taps: Sequence[Sequence[AxisTap]], spatial: Sequence[int], dtype: DType) -> list[Corner]:
    """One tap of each axis, in all ways.

    Args:
        taps: of each axis.
        spatial: the sizes of the axes.
        dtype: of weights.
    """
    made = []
    for corner in itertools.product(*taps):
        place, weight = scalar.constant(0, INT32), scalar.constant(1, dtype)
        for tap, size in zip(corner, spatial, strict=True):
            place = place * size + scalar.convert(tap.place, INT32)
            weight = tap.weight if weight.is_constant else weight * tap.weight
        inside = None
        for tap in corner:
            if tap.inside is not None:
                weight = scalar.where(tap.inside, weight, 0)
                inside = tap.inside if inside is None else inside & tap.inside
        made.append(Corner(place, weight, inside))
    return made


def _beside(build: Emitter[T], forms: Sequence[Scalar], lanes: Sequence[T], dtype: DType) -> T:
    """[N, forms, P] of forms of the elements of lanes [N, P]."""
    batch, count = build.type_of(lanes[0]).dims
    parts = []
    for form in forms:
        if form.is_constant:
            made = expanded(build, build.constant(form.value, dtype), [batch, count])
        else:
            made = expanded(build, expression(build, form, lanes, dtype), [batch, count])
        parts.append(reshaped(build, made, [batch, 1, count]))
    return build.apply("Concat", *parts, axis=1) if len(parts) > 1 else parts[0]


def read_corners(build: Emitter[T], x: T, lanes: Sequence[T], corners: Sequence[Corner]) -> T:
    """Weighted sums of the corners round each of P places: [N, C, P], in the type in which `x` is computed.

    Args:
        build: the emitter.
        x: images [N, C, elements].
        lanes: [N, P], what the corners' forms are of.
        corners: of an image.
    """
    batch, channels, _ = build.type_of(x).dims
    count, rows = build.type_of(lanes[0]).dims[1], len(corners)
    wide = widened(build, x)
    dtype = build.type_of(wide).dtype
    places = reshaped(
        build, _beside(build, [c.place for c in corners], lanes, INT32), [batch, 1, rows * count]
    )
    places = expanded(build, places, [batch, channels, rows * count])
    read = build.apply("GatherElements", wide, places, axis=2)
    read = reshaped(build, read, [batch, channels, rows, count])
    weights = _beside(build, [c.weight for c in corners], lanes, dtype)
    product = build.apply("Mul", read, reshaped(build, weights, [batch, 1, rows, count]))
    insides = [c.inside for c in corners if c.inside is not None]
    if insides:
        # Not a weight of 0 alone, by which an infinity at the edge would become NaN.
        mask = reshaped(build, _beside(build, insides, lanes, BOOL), [batch, 1, rows, count])
        product = build.apply("Where", mask, product, build.constant(0, dtype))
    return summed(build, product, [2])


def grid_sampled(build: Emitter[T], x: T, grid: T, mode: str, padding: str, aligned: bool) -> T:
    """GridSample of an image with elements; see `grid_sample_gradient`."""
    type_, of_grid = build.type_of(x), build.type_of(grid)
    batch, channels, *spatial = type_.dims
    outer = of_grid.dims[1:-1]
    grid = widened(build, reshaped(build, grid, [batch, math.prod(outer), len(spatial)]))
    wide = build.type_of(grid).dtype
    lanes = [
        reshaped(build, sliced(build, grid, 2, axis, axis + 1), [batch, math.prod(outer)])
        for axis in reversed(range(len(spatial)))
    ]
    taps = [
        axis_taps(scalar.argument(axis, wide), size, mode, padding, aligned)
        for axis, size in enumerate(spatial)
    ]
    flat = reshaped(build, x, [batch, channels, math.prod(spatial)])
    found = read_corners(build, flat, lanes, corners_of(taps, spatial, wide))
    return converted(build, reshaped(build, found, [batch, channels, *outer]), type_.dtype)
