"""Convolution over channels-last memory: products of unrolled windows, a block of output rows at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from vkml.cpu.scratch import scratch

Array = np.ndarray[Any, Any]
Part = tuple[int, int, int, int]
"""A block of the result: first row, row after the last, first filter, filter after the last."""

COLUMN_ELEMENTS = 262144
"""Elements of one block's unrolled windows: 1 MiB of float32, about a core's second-level cache."""
LEAST_ROWS = 96
"""Output places a block's product has at least: with fewer, packing the weights takes too long."""
LEAST_FILTERS = 64
"""Filters a block has at least where the filters are split."""


class Windowed(Protocol):
    """Where windows lie over the spatial axes; every tuple has one entry a spatial axis."""

    @property
    def spatial(self) -> tuple[int, ...]: ...
    @property
    def kernel(self) -> tuple[int, ...]: ...
    @property
    def strides(self) -> tuple[int, ...]: ...
    @property
    def dilations(self) -> tuple[int, ...]: ...
    @property
    def pads_begin(self) -> tuple[int, ...]: ...
    @property
    def pads_end(self) -> tuple[int, ...]: ...
    @property
    def output(self) -> tuple[int, ...]: ...


class Convolution:
    """A convolution with its weight prepared; x is [N, *spatial, C] and the result [N, *output, filters].

    `prepare` is called once a run, `block` for each block of rows, from any thread, in any order.
    """

    wants_channels_last = True
    """Whether `prepare` wants x as [N, *spatial, C]; else as [N, C, *spatial]."""
    splits_filters = False
    """Whether blocks may have some of the filters only."""

    def __init__(self, windows: Windowed, channels: int, filters: int, group: int) -> None:
        self.windows, self.channels, self.filters, self.group = windows, channels, filters, group
        self.need = tuple(
            (count - 1) * stride + (k - 1) * dilation + 1
            for count, stride, k, dilation in zip(
                windows.output, windows.strides, windows.kernel, windows.dilations, strict=True
            )
        )
        """Sizes of the padded input that the windows reach."""
        self.row_products = math.prod(windows.kernel) * channels // group

    @property
    def flops(self) -> int:
        """Of one image, additions and products counted apart."""
        return 2 * math.prod(self.windows.output) * self.filters * self.row_products

    def partition(self, threads: int) -> list[Part]:
        """Blocks of one image for that many threads: of rows, and of filters where there are few places."""
        rows, step = self.windows.output[0], self.rows_per_block(threads)
        spans = [(start, min(start + step, rows)) for start in range(0, rows, step)]
        pieces = -(-threads // len(spans)) if self.splits_filters else 1
        width = max(LEAST_FILTERS, -(-self.filters // (pieces * 16)) * 16)
        return [
            (start, stop, left, min(left + width, self.filters))
            for start, stop in spans
            for left in range(0, self.filters, width)
        ]

    def rows_per_block(self, threads: int) -> int:
        """Rows of the first spatial output axis that one block should have."""
        rows, row = self.windows.output[0], math.prod(self.windows.output[1:])
        least = -(-LEAST_ROWS // row)
        fitting = max(COLUMN_ELEMENTS // max(1, row * self.row_products * self.group), least)
        shared = max(-(-rows // threads), least)
        return max(1, min(rows, fitting, shared))

    def prepare(self, x: Array) -> Array:
        """x as the blocks read it."""
        return np.ascontiguousarray(x)

    def block(self, x: Array, part: Part, target: Array) -> None:
        """One block of one image.

        Args:
            x: one image of what `prepare` returned.
            part: rows of the first spatial output axis, then filters.
            target: [rows, *output[1:], filters], contiguous unless it has not all filters; is written.
        """
        raise NotImplementedError

    def padded_rows(self, x: Array, start: int, stop: int) -> Array:
        """The rows of the padded input that output rows `start` to `stop` read, [rows, *need[1:], C]."""
        windows = self.windows
        first = start * windows.strides[0] - windows.pads_begin[0]
        count = (stop - start - 1) * windows.strides[0] + (windows.kernel[0] - 1) * windows.dilations[0] + 1
        low, high = max(first, 0), min(first + count, windows.spatial[0])
        inner_fits = not any(windows.pads_begin[1:]) and all(
            need <= size for need, size in zip(self.need[1:], windows.spatial[1:], strict=True)
        )
        if inner_fits and high - low == count:
            return x[low:high]
        padded = scratch("padded", (count, *self.need[1:], x.shape[-1]), x.dtype)
        inner = [
            (begin, max(0, min(size, need - begin)))
            for begin, size, need in zip(
                windows.pads_begin[1:], windows.spatial[1:], self.need[1:], strict=True
            )
        ]
        if len(inner) == 1:
            (begin, size) = inner[0]
            padded[:, :begin] = 0
            padded[:, begin + size :] = 0
        elif inner:
            padded[...] = 0
        low = min(low, windows.spatial[0])
        high = max(high, low)
        padded[: low - first] = 0
        padded[high - first :] = 0
        padded[(slice(low - first, high - first), *(slice(begin, begin + size) for begin, size in inner))] = (
            x[(slice(low, high), *(slice(0, size) for _, size in inner))]
        )
        return padded


class ColumnConvolution(Convolution):
    """Windows unrolled to [places, kernel * C], times the weight: any rank, stride, dilation, group."""

    def __init__(self, weight: Array, windows: Windowed, group: int) -> None:
        filters, inner = weight.shape[:2]
        super().__init__(windows, inner * group, filters, group)
        self.splits_filters = group == 1
        rank = len(windows.kernel)
        columns = weight.transpose(*range(2, 2 + rank), 1, 0).reshape(-1, group, filters // group)
        self.weights = [np.ascontiguousarray(columns[:, g]) for g in range(group)]

    def block(self, x: Array, part: Part, target: Array) -> None:
        start, stop, left, right = part
        padded = self.padded_rows(x, start, stop)
        inner, outer = self.channels // self.group, self.filters // self.group
        columns = self._columns(padded, stop - start) if self.group == 1 else None
        if columns is not None:
            np.matmul(columns, self.weights[0][:, left:right], out=_as_matrix(target))
            return
        flat = target.reshape(-1, self.filters)
        for g, weight in enumerate(self.weights):
            lanes = padded[..., g * inner : (g + 1) * inner]
            np.matmul(self._columns(lanes, stop - start), weight, out=flat[:, g * outer : (g + 1) * outer])

    def _columns(self, padded: Array, rows: int) -> Array:
        windows = self.windows
        view = window_view(padded, (rows, *windows.output[1:]), windows)
        columns = scratch("columns", view.shape, padded.dtype)
        np.copyto(columns, view)
        return columns.reshape(rows * math.prod(windows.output[1:]), -1)


class PointwiseConvolution(Convolution):
    """A kernel of one place: x itself is the matrix, or every stride-th place of it."""

    splits_filters = True

    def __init__(self, weight: Array, windows: Windowed) -> None:
        filters, inner = weight.shape[:2]
        super().__init__(windows, inner, filters, 1)
        self.weight = np.ascontiguousarray(weight.reshape(filters, inner).T)

    def prepare(self, x: Array) -> Array:
        strides = self.windows.strides
        if any(stride != 1 for stride in strides):
            x = x[(slice(None), *(slice(None, None, stride) for stride in strides))]
            x = x[(slice(None), *(slice(0, size) for size in self.windows.output))]
        return np.ascontiguousarray(x)

    def block(self, x: Array, part: Part, target: Array) -> None:
        start, stop, left, right = part
        rows = x[start:stop].reshape(-1, self.channels)
        np.matmul(rows, self.weight[:, left:right], out=_as_matrix(target))

    def rows_per_block(self, threads: int) -> int:
        rows, row = self.windows.output[0], math.prod(self.windows.output[1:])
        least = -(-LEAST_ROWS // row)
        fitting = max(COLUMN_ELEMENTS // 2 // (row * max(self.channels, self.filters)), least)
        return max(1, min(rows, fitting, max(-(-rows // threads), least)))


class PlaneConvolution(Convolution):
    """Few input channels, as of an image: x stays [N, C, *spatial], windows unroll to [C * kernel, places].

    Channels-last memory would copy runs of kernel * C elements, 3 to 21 of them; here a run is an output row.
    """

    wants_channels_last = False
    MAX_CHANNELS = 8

    def __init__(self, weight: Array, windows: Windowed) -> None:
        filters, inner = weight.shape[:2]
        super().__init__(windows, inner, filters, 1)
        self.weight = np.ascontiguousarray(weight.reshape(filters, -1).T)

    def prepare(self, x: Array) -> Array:
        windows = self.windows
        fits = not any(windows.pads_begin) and all(
            need <= size for need, size in zip(self.need, windows.spatial, strict=True)
        )
        if fits:
            return x
        padded = np.zeros((*x.shape[:2], *self.need), x.dtype)
        sizes = [
            max(0, min(size, need - begin))
            for size, need, begin in zip(windows.spatial, self.need, windows.pads_begin, strict=True)
        ]
        inside = tuple(
            slice(begin, begin + size) for begin, size in zip(windows.pads_begin, sizes, strict=True)
        )
        padded[(slice(None), slice(None), *inside)] = x[
            (slice(None), slice(None), *(slice(0, s) for s in sizes))
        ]
        return padded

    def block(self, x: Array, part: Part, target: Array) -> None:
        start, stop, _, _ = part
        windows = self.windows
        first = x[:, start * windows.strides[0] :]
        planes = np.moveaxis(first, 0, -1)
        view = window_view(planes, (stop - start, *windows.output[1:]), windows)
        rank = len(windows.kernel)
        view = view.transpose(2 * rank, *range(rank, 2 * rank), *range(rank))
        columns = scratch("columns", view.shape, x.dtype)
        np.copyto(columns, view)
        places = (stop - start) * math.prod(windows.output[1:])
        np.matmul(columns.reshape(-1, places).T, self.weight, out=target.reshape(-1, self.filters))


class DepthwiseConvolution(Convolution):
    """One filter a channel, over two spatial axes: sums of products along rows of [W * C] elements.

    `einsum` multiplies and adds in one pass over registers; nine multiply and nine add calls took longer (384
    channels of 14 x 14: 95 µs against 175).
    """

    def __init__(self, weight: Array, windows: Windowed) -> None:
        channels = weight.shape[0]
        super().__init__(windows, channels, channels, channels)
        columns = windows.output[1]
        taps = weight.reshape(channels, *windows.kernel).transpose(1, 2, 0)
        self.weight = np.ascontiguousarray(
            np.broadcast_to(taps[:, :, None, :], (*windows.kernel, columns, channels))
        )
        self.weight = self.weight.reshape(*windows.kernel, columns * channels)

    def block(self, x: Array, part: Part, target: Array) -> None:
        start, stop, _, _ = part
        windows, channels = self.windows, self.channels
        if windows.strides[1] == 1:
            source = self.padded_rows(x, start, stop)
            row, tap = source.strides[0], windows.dilations[1] * channels * source.itemsize
        else:
            source = self._tap_columns(x, start, stop)
            row, tap = source.strides[1], source.strides[0]
        columns = windows.output[1]
        rows = stop - start
        view = np.ndarray(
            (rows, *windows.kernel, columns * channels),
            source.dtype,
            source,
            0,
            (row * windows.strides[0], row * windows.dilations[0], tap, source.itemsize),
        )
        np.einsum("ykla,kla->ya", view, self.weight, out=target.reshape(rows, -1))

    def _tap_columns(self, x: Array, start: int, stop: int) -> Array:
        """The columns that each tap reads, side by side, so that a row is contiguous whatever the stride."""
        windows, columns = self.windows, self.windows.output[1]
        (taps, step, dilation) = windows.kernel[1], windows.strides[1], windows.dilations[1]
        first = start * windows.strides[0] - windows.pads_begin[0]
        count = (stop - start - 1) * windows.strides[0] + (windows.kernel[0] - 1) * windows.dilations[0] + 1
        low, high = span_inside(first, 1, count, windows.spatial[0])
        source = scratch("taps", (taps, count, columns, self.channels), x.dtype)
        source[:, :low] = 0
        source[:, high:] = 0
        for k in range(taps):
            shift = k * dilation - windows.pads_begin[1]
            begin, end = span_inside(shift, step, columns, windows.spatial[1])
            tap = source[k, low:high]
            tap[:, :begin] = 0
            tap[:, end:] = 0
            if end > begin:
                at = begin * step + shift
                tap[:, begin:end] = x[
                    first + low : first + high, at : at + (end - begin - 1) * step + 1 : step
                ]
        return source

    def rows_per_block(self, threads: int) -> int:
        rows, row = self.windows.output[0], self.windows.output[1] * self.channels
        return max(1, min(rows, max(1, COLUMN_ELEMENTS // 2 // row), -(-rows // threads)))


def span_inside(first: int, step: int, count: int, size: int) -> tuple[int, int]:
    """Which of the places first, first + step, … (`count` of them) lie in an axis of `size`: from, up to.

    Example:
        >>> span_inside(-1, 2, 4, 5)
        (1, 3)
    """
    low = min(count, max(0, -(first // step)))
    return low, max(low, min(count, (size - 1 - first) // step + 1))


def _as_matrix(target: Array) -> Array:
    """[*places, filters] as [places, filters], without a copy also where the filters are a part of more."""
    if target.flags.c_contiguous:
        return target.reshape(-1, target.shape[-1])
    matrix = target.reshape(-1, target.shape[-1])
    assert np.may_share_memory(matrix, target), "places must follow each other in memory"
    return matrix


def window_view(padded: Array, places: Sequence[int], windows: Windowed) -> Array:
    """[*places, *kernel, C] over padded [*spatial, C], without a copy."""
    spatial, channel = padded.strides[:-1], padded.strides[-1]
    shape = (*places, *windows.kernel, padded.shape[-1])
    strides = (
        *(stride * step for stride, step in zip(spatial, windows.strides, strict=True)),
        *(stride * step for stride, step in zip(spatial, windows.dilations, strict=True)),
        channel,
    )
    if padded.flags.c_contiguous:
        # A tenth of what as_strided takes (0.5 µs), which a small model notices.
        return np.ndarray(shape, padded.dtype, padded, 0, strides)
    return np.lib.stride_tricks.as_strided(padded, shape, strides, writeable=False)
