"""How machine code computes a convolution: which taps meet the image, where, and what is fastest by that."""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from itertools import pairwise

import numpy as np

from vkml.cpu.native import region_product, winograd
from vkml.cpu.native.executable import InstructionSet, has_byte_dots
from vkml.cpu.native.product import Terms
from vkml.cpu.native.region_product import Span
from vkml.cpu.native.winograd_code import TILE
from vkml.dataclasses import dataclass
from vkml.ir.size import typical
from vkml.ir.windows import Windows
from vkml.lowering.deferred import is_open
from vkml.lowering.native_layout import Border
from vkml.ops.conv import ConvGeometry

WORD = 4
"""Bytes that an instruction multiplies and adds up."""
Spans = tuple[Span, ...]
LEAST_DILATION = 2
"""Of windows, or of an axis, that are cut: at the edges of others few results read less than all taps."""
MOST_PARTS, PARTS_SHARE = 5, 0.8
"""Of an axis along which a depthwise convolution is cut, and of all taps that its results read at most."""
MOST_DEPTHS, DEPTHS_SHARE = 9, 0.95
"""The same of the third axis, along which any convolution is cut. R3D-18, whose first layers read 22 of 24
taps over eight planes: 68 ms → 64."""


@dataclass(frozen=True)
class Rules:
    """What a convolution may do.

    Attributes:
        instructions: the set that code may use.
        threads: that will share the work.
        skips: whether products with zeros of the padding may be left out: they add nothing to a sum, unless a
            weight is infinite or NaN.
        turns: whether Winograd's algorithm may be used: weights are known, and sums need not be those of the
            products that the operator states.
        terms: what is multiplied.
    """

    instructions: InstructionSet
    threads: int
    skips: bool
    turns: bool
    terms: Terms = Terms.FLOATS

    @classmethod
    def of_floats(
        cls, instructions: InstructionSet, threads: int, *, is_known: bool, is_strict: bool
    ) -> Rules:
        """Those of finite weights; computed ones are taken for finite, unless sums must be those stated."""
        return cls(instructions, threads, is_known or not is_strict, is_known and not is_strict)

    @classmethod
    def of_bytes(cls, instructions: InstructionSet, threads: int, fill: float) -> Rules:
        """Those of bytes, four a number, where `fill` is round the image."""
        terms = Terms.DOTS if has_byte_dots(instructions) else Terms.PAIRS
        return cls(instructions, threads, skips=not fill, turns=False, terms=terms)


@dataclass(frozen=True)
class Way:
    """How a convolution is computed.

    Attributes:
        windows: over two or three axes, with the taps from `first` on that any has inside of the image.
        first: tap of the stated window along each axis.
        border: that is read round the image.
        winograd: how, if so.
        regions: as a product in which regions, if so.
        parts: as a depthwise convolution in which spans along y and x; one where an axis is in one piece.
        terms: what is multiplied.
        depths: spans along z whose results read other taps each, and how each is computed of the planes that
            it reads; none: all at once.
    """

    windows: Windows
    first: tuple[int, ...]
    border: Border
    winograd: winograd.Plan | None = None
    regions: region_product.Plan | None = None
    parts: tuple[Spans, Spans] | None = None
    terms: Terms = Terms.FLOATS
    depths: tuple[tuple[Span, Way], ...] = ()

    @property
    def first_tap(self) -> tuple[int, ...]:
        """Where in weights [filters, channels, z, y, x] those taps begin."""
        return (*(0,) * (5 - len(self.first)), *self.first)

    def cut(self, y: Spans, x: Spans) -> Way:
        """The same without a border along axes of several spans, none of which reads a tap outside."""
        border = self.border
        if len(y) > 1:
            border = replace(border, top=0, bottom=0)
        if len(x) > 1:
            border = replace(border, left=0, right=0)
        return replace(self, border=border)


def border_of(geometry: ConvGeometry, rules: Rules, fill: float) -> Border:
    """What a convolution over up to three axes wants round its image."""
    group, filters = geometry.group, geometry.filters
    inner, is_depthwise = geometry.channels // group, group == geometry.channels == filters and group > 1
    if rules.terms is not Terms.FLOATS:
        if is_depthwise:
            return Border.reached_by(geometry, fill)
        inner = -(-inner // WORD)
    way = way_of(
        geometry,
        images=geometry.batch,
        channels=group * inner,
        filters=filters,
        group=group,
        is_depthwise=is_depthwise,
        rules=rules,
    )
    return replace(way.border, fill=fill)


def way_of(
    windows: Windows,
    *,
    images: int,
    channels: int,
    filters: int,
    group: int,
    is_depthwise: bool,
    rules: Rules,
) -> Way:
    """How to compute a convolution.

    Args:
        windows: over up to three axes.
        images: batch.
        channels: of the input, 32 bits each.
        filters: of the result.
        group: groups of both.
        is_depthwise: whether every channel has a filter of its own.
        rules: what may be done.
    """
    rank = max(2, len(windows.kernel))
    over, first = windows.over(rank), (0,) * rank
    sizes = (*over.spatial, *over.output, channels, filters)
    skips = rules.skips and not is_open(sizes) and all(sizes)
    if skips:
        over, first = _with_live_taps(over)
    whole = Way(over, first, Border.reached_by(over), terms=rules.terms)

    def by_winograd(
        over: Windows, share: float = 1.0, like: winograd.Plan | None = None
    ) -> winograd.Plan | None:
        *outer, height, width = over.output
        dilations = (over.dilations[-2], over.dilations[-1])
        if not rules.turns or group > 1 or over.kernel[-2:] != (3, 3) or over.strides[-2:] != (1, 1):
            return None
        if height < TILE * dilations[0] or width < TILE * dilations[1]:
            return None
        return winograd.plan(
            rules.instructions,
            images=typical(math.prod((images, *outer))),
            height=typical(height),
            width=typical(width),
            channels=math.prod((*over.kernel[:-2], channels)),
            filters=filters,
            threads=rules.threads,
            dilations=dilations,
            share=share,
            like=like,
        )

    if rank == 3:
        own = by_winograd(over)
        depths = _depths(over) if skips and rules.terms is Terms.FLOATS else ()
        if not depths:
            return replace(whole, winograd=own)
        whole = replace(whole, border=replace(whole.border, front=0, back=0))
        # All parts read the same packed weights.
        parts = [replace(whole, windows=_of_depths(over, span)) for span in depths]
        parts = [replace(part, winograd=by_winograd(part.windows, like=own)) for part in parts]
        return replace(whole, depths=tuple(zip(depths, parts, strict=True)))
    cuts = skips and max(over.dilations) >= LEAST_DILATION
    if is_depthwise:
        return _depthwise(whole) if cuts else whole
    regions = None
    if cuts:
        line, place = over.spatial[1] * 4 * channels, 4 * channels
        regions = region_product.plan(
            rules.instructions,
            y=_spans(over, 0),
            x=_spans(over, 1),
            columns=filters // group,
            inner=channels // group,
            steps=(over.strides[0] * line, over.strides[1] * place),
            terms=rules.terms,
        )
    found = by_winograd(over, 1.0 if regions is None else regions.share)
    if found is not None:
        return replace(whole, winograd=found)
    return whole if regions is None else replace(whole.cut(regions.y, regions.x), regions=regions)


def _depths(over: Windows) -> Spans:
    """Along z, where some results read less than all taps, and enough of them do."""
    found = _spans(over, 0)
    read = sum(span.size * span.taps for span in found)
    is_worth_it = 1 < len(found) <= MOST_DEPTHS and read <= DEPTHS_SHARE * over.output[0] * over.kernel[0]
    return found if is_worth_it and all(span.taps for span in found) else ()


def _of_depths(over: Windows, span: Span) -> Windows:
    """Windows of a span along z over the planes that they read."""
    step, dilation = over.strides[0], over.dilations[0]

    def with_depth(sizes: tuple[int, ...], depth: int) -> tuple[int, ...]:
        return (depth, *sizes[1:])

    return replace(
        over,
        spatial=with_depth(over.spatial, (span.size - 1) * step + (span.taps - 1) * dilation + 1),
        kernel=with_depth(over.kernel, span.taps),
        pads_begin=with_depth(over.pads_begin, 0),
        pads_end=with_depth(over.pads_end, 0),
        output=with_depth(over.output, span.size),
    )


def _depthwise(whole: Way) -> Way:
    """A depthwise convolution, cut along axes of which results read few taps."""
    windows = whole.windows
    y, x = (_parts(windows, axis) for axis in (0, 1))
    return whole if len(y) == len(x) == 1 else replace(whole.cut(y, x), parts=(y, x))


def _parts(windows: Windows, axis: int) -> Spans:
    size, taps = windows.output[axis], windows.kernel[axis]
    if windows.dilations[axis] >= LEAST_DILATION:
        found = _spans(windows, axis)
        read = sum(span.size * span.taps for span in found)
        is_worth_it = 1 < len(found) <= MOST_PARTS and read <= PARTS_SHARE * size * taps
        if is_worth_it and all(span.taps for span in found):
            return found
    return (Span(0, size, 0, taps),)


@functools.lru_cache(maxsize=4096)
def _with_live_taps(over: Windows) -> tuple[Windows, tuple[int, ...]]:
    """Windows without first and last taps that are in the padding for all results; how many the first are."""
    first, last = zip(*map(over.live_taps, range(len(over.kernel))), strict=True)
    pads = (low * step for low, step in zip(first, over.dilations, strict=True))
    made = replace(
        over,
        kernel=tuple(high - low for low, high in zip(first, last, strict=True)),
        pads_begin=tuple(pad - less for pad, less in zip(over.pads_begin, pads, strict=True)),
    )
    # What is read behind the image follows from how many windows there are.
    return replace(made, pads_end=made.reach_end), first


@functools.lru_cache(maxsize=4096)
def _spans(over: Windows, axis: int) -> Spans:
    """Results along an axis by which taps of their windows lie inside of the image."""
    size, kernel, dilation = over.spatial[axis], over.kernel[axis], over.dilations[axis]
    begins = np.arange(over.output[axis]) * over.strides[axis] - over.pads_begin[axis]
    first = np.clip(-(begins // dilation), 0, kernel)
    last = np.maximum(np.clip(-((begins - size) // dilation), 0, kernel), first)
    changes = np.flatnonzero((np.diff(first) != 0) | (np.diff(last) != 0)) + 1
    bounds = [0, *changes.tolist(), over.output[axis]]
    return tuple(Span(start, stop, int(first[start]), int(last[start])) for start, stop in pairwise(bounds))
