"""Convolution and pooling kernels against sums written out in float64."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from vkml.cpu.convolution import (
    ColumnConvolution,
    Convolution,
    DepthwiseConvolution,
    PlaneConvolution,
    PointwiseConvolution,
)
from vkml.cpu.pooling import Pooling, mean_over_places
from vkml.cpu.winograd import WinogradConvolution

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Windows:
    spatial: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads_begin: tuple[int, ...]
    pads_end: tuple[int, ...]

    @property
    def output(self) -> tuple[int, ...]:
        return tuple(
            (size + begin + end - (k - 1) * dilation - 1) // stride + 1
            for size, begin, end, k, dilation, stride in zip(
                self.spatial,
                self.pads_begin,
                self.pads_end,
                self.kernel,
                self.dilations,
                self.strides,
                strict=True,
            )
        )


def random_windows(rng: np.random.Generator, rank: int, kernel: tuple[int, ...] | None = None) -> Windows:
    """Windows of random geometry that fit at least once."""
    kernel = kernel or tuple(int(k) for k in rng.integers(1, 5, rank))
    dilations = tuple(int(d) for d in rng.integers(1, 3, rank))
    spatial = tuple((k - 1) * d + 1 + int(rng.integers(0, 9)) for k, d in zip(kernel, dilations, strict=True))
    strides = tuple(int(s) for s in rng.integers(1, 4, rank))
    begin, end = (tuple(int(p) for p in rng.integers(0, 3, rank)) for _ in range(2))
    return Windows(spatial, kernel, strides, dilations, begin, end)


def tap_views(x: Array, windows: Windows, fill: float) -> list[tuple[tuple[int, ...], Array]]:
    """For every tap the elements of x [N, C, *spatial] that it meets, [N, C, *output]."""
    pads = [(0, 0), (0, 0), *zip(windows.pads_begin, windows.pads_end, strict=True)]
    padded = np.pad(x, pads, constant_values=fill)
    views = []
    for tap in itertools.product(*(range(k) for k in windows.kernel)):
        place = [
            slice(k * d, k * d + (count - 1) * s + 1, s)
            for k, d, count, s in zip(tap, windows.dilations, windows.output, windows.strides, strict=True)
        ]
        views.append((tap, padded[(slice(None), slice(None), *place)]))
    return views


def reference(x: Array, weight: Array, windows: Windows, group: int) -> Array:
    """[N, filters, *output] in float64."""
    n, filters, inner = x.shape[0], weight.shape[0], weight.shape[1]
    out = np.zeros((n, group, filters // group, *windows.output))
    taps = weight.reshape(group, filters // group, inner, *windows.kernel).astype(np.float64)
    for tap, view in tap_views(x.astype(np.float64), windows, 0):
        lanes = view.reshape(n, group, inner, *windows.output)
        out += np.einsum("ngc...,goc->ngo...", lanes, taps[(..., *tap)])
    return out.reshape(n, filters, *windows.output)


def run(kernel: Convolution, x: Array, windows: Windows, filters: int, threads: int) -> Array:
    """All blocks of all images, as a program would do them."""
    rank = len(windows.kernel)
    given = np.moveaxis(x, 1, -1) if kernel.wants_channels_last else x
    prepared = kernel.prepare(given)
    out = np.full((x.shape[0], *windows.output, filters), np.nan, np.float32)
    for n in range(x.shape[0]):
        for part in kernel.partition(threads):
            start, stop, left, right = part
            kernel.block(prepared[n], part, out[n, start:stop, ..., left:right])
    return out.transpose(0, rank + 1, *range(1, rank + 1))


def check(
    kernel: Convolution, weight: Array, x: Array, windows: Windows, group: int, tolerance: float = 2e-6
) -> None:
    expected = reference(x, weight, windows, group)
    scale = np.abs(expected).max() + 1e-6
    for threads in (1, 2, 3):
        found = run(kernel, x, windows, weight.shape[0], threads)
        assert np.abs(found - expected).max() / scale < tolerance


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_columns_with_groups(rank: int, seed: int) -> None:
    rng = np.random.default_rng([seed, rank])
    windows, group = random_windows(rng, rank), int(rng.integers(1, 4))
    inner, outer = (int(v) for v in rng.integers(1, 6, 2))
    x = rng.standard_normal((2, inner * group, *windows.spatial), dtype=np.float32)
    weight = rng.standard_normal((outer * group, inner, *windows.kernel), dtype=np.float32)
    check(ColumnConvolution(weight, windows, group), weight, x, windows, group)


def test_columns_split_filters_where_there_are_few_places() -> None:
    rng = np.random.default_rng(3)
    windows = Windows((5, 5), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1))
    x = rng.standard_normal((1, 8, 5, 5), dtype=np.float32)
    weight = rng.standard_normal((200, 8, 3, 3), dtype=np.float32)
    kernel = ColumnConvolution(weight, windows, 1)
    assert len(kernel.partition(2)) == 2
    check(kernel, weight, x, windows, 1)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_planes(rank: int, seed: int) -> None:
    rng = np.random.default_rng([seed, rank, 1])
    windows, channels = random_windows(rng, rank), int(rng.integers(1, 4))
    x = rng.standard_normal((2, channels, *windows.spatial), dtype=np.float32)
    weight = rng.standard_normal((5, channels, *windows.kernel), dtype=np.float32)
    check(PlaneConvolution(weight, windows), weight, x, windows, 1)


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("filters", [6, 200])
def test_pointwise(stride: int, filters: int) -> None:
    rng = np.random.default_rng(stride)
    windows = Windows((7, 9), (1, 1), (stride, stride), (1, 1), (0, 0), (0, 0))
    x = rng.standard_normal((2, 12, 7, 9), dtype=np.float32)
    weight = rng.standard_normal((filters, 12, 1, 1), dtype=np.float32)
    check(PointwiseConvolution(weight, windows), weight, x, windows, 1)


@pytest.mark.parametrize("seed", range(16))
def test_depthwise(seed: int) -> None:
    rng = np.random.default_rng([seed, 2])
    windows, channels = random_windows(rng, 2), int(rng.integers(1, 40))
    x = rng.standard_normal((2, channels, *windows.spatial), dtype=np.float32)
    weight = rng.standard_normal((channels, 1, *windows.kernel), dtype=np.float32)
    check(DepthwiseConvolution(weight, windows), weight, x, windows, channels)


@pytest.mark.parametrize(("tile", "tolerance"), [(2, 4e-6), (4, 3e-5)])
@pytest.mark.parametrize("seed", range(12))
def test_winograd(tile: int, tolerance: float, seed: int) -> None:
    rng = np.random.default_rng([seed, 3])
    size = tuple(int(v) for v in rng.integers(3, 40, 2))
    begin, end = (tuple(int(v) for v in rng.integers(0, 3, 2)) for _ in range(2))
    windows = Windows(size, (3, 3), (1, 1), (1, 1), begin, end)  # type: ignore[arg-type]
    channels, filters = (int(v) for v in rng.integers(1, 24, 2))
    x = rng.standard_normal((2, channels, *size), dtype=np.float32)
    weight = rng.standard_normal((filters, channels, 3, 3), dtype=np.float32)
    check(WinogradConvolution(weight, windows, tile), weight, x, windows, 1, tolerance)


def test_winograd_in_many_blocks() -> None:
    rng = np.random.default_rng(9)
    windows = Windows((67, 50), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1))
    x = rng.standard_normal((1, 96, 67, 50), dtype=np.float32)
    weight = rng.standard_normal((64, 96, 3, 3), dtype=np.float32)
    kernel = WinogradConvolution(weight, windows, 4)
    assert len(kernel.partition(1)) > 1
    check(kernel, weight, x, windows, 1, 3e-5)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("average", [False, True])
def test_pooling(average: bool, seed: int) -> None:
    rng = np.random.default_rng([seed, 4])
    windows = random_windows(rng, int(rng.integers(1, 4)))
    x = rng.standard_normal((2, 5, *windows.spatial), dtype=np.float32)
    counts = sum(view[0, 0] for _, view in tap_views(np.ones_like(x), windows, 0))
    values = np.stack(
        [view for _, view in tap_views(x.astype(np.float64), windows, 0 if average else -np.inf)]
    )
    with np.errstate(invalid="ignore", divide="ignore"):
        expected = values.sum(0) / counts if average else values.max(0)
        kernel = Pooling(windows, average, np.asarray(counts) if average else None)
    last = np.moveaxis(x, 1, -1)
    found = np.empty((2, *windows.output, 5), np.float32)
    for n in range(2):
        for start in range(0, windows.output[0], 2):
            stop = min(start + 2, windows.output[0])
            with np.errstate(invalid="ignore"):
                kernel.block(last[n], start, stop, found[n, start:stop])
    np.testing.assert_allclose(np.moveaxis(found, -1, 1), expected, rtol=2e-6, atol=1e-6)


def test_mean_over_places() -> None:
    rng = np.random.default_rng(5)
    x = rng.standard_normal((3, 49, 17), dtype=np.float32)
    out = np.empty((3, 17), np.float32)
    mean_over_places(x, out)
    np.testing.assert_allclose(out, x.astype(np.float64).mean(1), rtol=1e-5, atol=1e-6)
