"""How machine code computes a convolution: which taps meet the image, where, and what is fastest by that."""

from __future__ import annotations

import functools
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
        windows: over two axes, with the taps from `first` on that any window has inside of the image.
        first: tap of the stated window along y and x.
        border: that is read round the image.
        winograd: how, if so.
        regions: as a product in which regions, if so.
        parts: as a depthwise convolution in which spans along y and x; one where an axis is in one piece.
        terms: what is multiplied.
    """

    windows: Windows
    first: tuple[int, int]
    border: Border
    winograd: winograd.Plan | None = None
    regions: region_product.Plan | None = None
    parts: tuple[Spans, Spans] | None = None
    terms: Terms = Terms.FLOATS

    @property
    def first_tap(self) -> tuple[int, ...]:
        """Where in weights [filters, channels, 1, y, x] those taps begin."""
        return (0, 0, 0, *self.first)

    def cut(self, y: Spans, x: Spans) -> Way:
        """The same without a border along axes of several spans, none of which reads a tap outside."""
        border = self.border
        if len(y) > 1:
            border = replace(border, top=0, bottom=0)
        if len(x) > 1:
            border = replace(border, left=0, right=0)
        return replace(self, border=border)


def border_of(geometry: ConvGeometry, rules: Rules, fill: float) -> Border:
    """What a convolution over one or two axes wants round its image."""
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
        windows: over one or two axes.
        images: batch.
        channels: of the input, 32 bits each.
        filters: of the result.
        group: groups of both.
        is_depthwise: whether every channel has a filter of its own.
        rules: what may be done.
    """
    planar, first = windows.over(2), (0, 0)
    sizes = (*planar.spatial, *planar.output, channels, filters)
    skips = rules.skips and not is_open(sizes) and all(sizes)
    if skips:
        planar, first = _with_live_taps(planar)
    whole = Way(planar, first, Border.reached_by(planar), terms=rules.terms)
    cuts = skips and max(planar.dilations) >= LEAST_DILATION
    if is_depthwise:
        return _depthwise(whole) if cuts else whole
    regions = None
    if cuts:
        line, place = planar.spatial[1] * 4 * channels, 4 * channels
        regions = region_product.plan(
            rules.instructions,
            y=_spans(planar, 0),
            x=_spans(planar, 1),
            columns=filters // group,
            inner=channels // group,
            steps=(planar.strides[0] * line, planar.strides[1] * place),
            terms=rules.terms,
        )
    if (
        rules.turns
        and group == 1
        and planar.kernel == (3, 3)
        and planar.strides == (1, 1)
        and all(size >= TILE * step for size, step in zip(planar.output, planar.dilations, strict=True))
    ):
        found = winograd.plan(
            rules.instructions,
            images=typical(images),
            height=typical(planar.output[0]),
            width=typical(planar.output[1]),
            channels=channels,
            filters=filters,
            threads=rules.threads,
            dilations=planar.dilations,
            share=1.0 if regions is None else regions.share,
        )
        if found is not None:
            return replace(whole, winograd=found)
    return whole if regions is None else replace(whole.cut(regions.y, regions.x), regions=regions)


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
def _with_live_taps(planar: Windows) -> tuple[Windows, tuple[int, int]]:
    """Windows without first and last taps that are in the padding for all results; how many the first are."""
    (low_y, high_y), (low_x, high_x) = (planar.live_taps(axis) for axis in (0, 1))
    pads = (low * step for low, step in zip((low_y, low_x), planar.dilations, strict=True))
    made = replace(
        planar,
        kernel=(high_y - low_y, high_x - low_x),
        pads_begin=tuple(pad - less for pad, less in zip(planar.pads_begin, pads, strict=True)),
    )
    # What is read behind the image follows from how many windows there are.
    return replace(made, pads_end=made.reach_end), (low_y, low_x)


@functools.lru_cache(maxsize=4096)
def _spans(planar: Windows, axis: int) -> Spans:
    """Results along an axis by which taps of their windows lie inside of the image."""
    size, kernel, dilation = planar.spatial[axis], planar.kernel[axis], planar.dilations[axis]
    begins = np.arange(planar.output[axis]) * planar.strides[axis] - planar.pads_begin[axis]
    first = np.clip(-(begins // dilation), 0, kernel)
    last = np.maximum(np.clip(-((begins - size) // dilation), 0, kernel), first)
    changes = np.flatnonzero((np.diff(first) != 0) | (np.diff(last) != 0)) + 1
    bounds = [0, *changes.tolist(), planar.output[axis]]
    return tuple(Span(start, stop, int(first[start]), int(last[start])) for start, stop in pairwise(bounds))
