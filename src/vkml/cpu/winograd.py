"""Winograd convolution of 3 x 3 kernels: four or 2.25 times fewer products for some additions around them."""

from __future__ import annotations

from typing import Any

import numpy as np

from vkml.cpu.convolution import Convolution, Part, Windowed, span_inside
from vkml.cpu.scratch import scratch

Array = np.ndarray[Any, Any]

# Rows: values of the kernel polynomial at the points 0, 1, -1, 2, -2, infinity (Lavin and Gray,
# "Fast Algorithms for Convolutional Neural Networks", section 4.3), and at 0, 1, -1, infinity (section 4.1).
_KERNEL_4 = np.array(
    [
        [1 / 4, 0, 0],
        [-1 / 6, -1 / 6, -1 / 6],
        [-1 / 6, 1 / 6, -1 / 6],
        [1 / 24, 1 / 12, 1 / 6],
        [1 / 24, -1 / 12, 1 / 6],
        [0, 0, 1],
    ]
)
_KERNEL_2 = np.array([[1, 0, 0], [1 / 2, 1 / 2, 1 / 2], [1 / 2, -1 / 2, 1 / 2], [0, 0, 1]])

_FOUR = np.array(4, np.float32)


class WinogradConvolution(Convolution):
    """3 x 3, stride 1, float32: tiles of m x m outputs from (m + 2) x (m + 2) inputs, m = 4 or 2.

    Each of the (m + 2)² positions in a tile is one matrix product over channels. The transforms are additions
    along whole rows of channels-last memory. Rounding error is about 1e-6 (m = 2) and 5e-6 (m = 4) of the
    largest output.
    """

    BLOCK_ELEMENTS = 589824
    """Of the transformed input a block: 36 positions x 16384, 2.3 MiB of float32."""

    def __init__(self, weight: Array, windows: Windowed, tile: int) -> None:
        filters, inner = weight.shape[:2]
        super().__init__(windows, inner, filters, 1)
        self.tile = tile
        kernel = _KERNEL_4 if tile == 4 else _KERNEL_2
        self.weight = np.empty(((tile + 2) ** 2, inner, filters), np.float32)
        # Some filters at a time: the float64 forms of a large weight would take eight times its memory.
        for first in range(0, filters, 64):
            part = weight[first : first + 64]
            taps = part.transpose(2, 3, 1, 0).astype(np.float64, order="C").reshape(9, -1)
            with np.errstate(all="ignore"):  # infinities become NaN here
                made = np.kron(kernel, kernel) @ taps
                self.weight[:, :, first : first + 64] = made.reshape(-1, inner, len(part))
        self.columns = -(-windows.output[1] // tile)
        """Tiles side by side."""

    def rows_per_block(self, threads: int) -> int:
        rows, position = self.windows.output[0], (self.tile + 2) ** 2
        row = position * self.columns * max(self.channels, self.filters)
        bands = max(1, self.BLOCK_ELEMENTS // row)
        bands = max(bands, -(-32 // self.columns))
        bands = min(bands, -(-rows // (self.tile * threads)))
        return max(1, bands) * self.tile

    def block(self, x: Array, part: Part, target: Array) -> None:
        start, stop, _, _ = part
        tile, columns, side = self.tile, self.columns, self.tile + 2
        bands = -(-(stop - start) // tile)
        planes = self._planes(x, start, bands)
        count, inner = bands * tile + 2, columns * self.channels
        half = scratch("winograd_half", (side, count, inner))
        forward = _forward_4 if tile == 4 else _forward_2
        inverse = _inverse_4 if tile == 4 else _inverse_2
        forward(planes.reshape(side, count, inner), half, "winograd_row")
        plane, row, item = half.strides
        lanes = np.ndarray((side, side, bands, inner), np.float32, half, 0, (row, plane, row * tile, item))
        # [row position, column position, tiles, channels]
        transformed = scratch("winograd_input", (side, side, bands, inner))
        forward(lanes, transformed, "winograd_column")
        products = scratch("winograd_product", (side, side, bands, columns, self.filters))
        flat_in = transformed.reshape(side * side, -1, self.channels)
        np.matmul(flat_in, self.weight, out=products.reshape(side * side, -1, self.filters))
        # [column position, output row, tiles, filters], then columns are put side by side.
        narrow = scratch("winograd_narrow", (side, tile, bands, columns, self.filters))
        inverse(products, narrow.transpose(1, 0, 2, 3, 4), "winograd_row")
        exact = columns * tile == self.windows.output[1] and bands * tile == stop - start
        wide = (
            target.reshape(bands, tile, columns * tile, self.filters)
            if exact
            else scratch("winograd_output", (bands, tile, columns * tile, self.filters))
        )
        spread = wide.reshape(bands, tile, columns, tile, self.filters)
        inverse(narrow, spread.transpose(3, 1, 0, 2, 4), "winograd_column")
        if not exact:
            np.copyto(
                target,
                wide.reshape(bands * tile, columns * tile, -1)[: stop - start, : self.windows.output[1]],
            )

    def _planes(self, x: Array, start: int, bands: int) -> Array:
        """The padded input rows of some bands by their position in a tile: [position, rows, tiles, C]."""
        tile, columns = self.tile, self.columns
        top, left = self.windows.pads_begin
        height, width = self.windows.spatial
        first, count = start - top, bands * tile + 2
        planes = scratch("winograd_planes", (tile + 2, count, columns, self.channels))
        low, high = min(max(first, 0), height), min(first + count, height)
        high = max(low, high)
        planes[:, : low - first] = 0
        planes[:, high - first :] = 0
        rows = slice(low - first, high - first)
        for position in range(tile + 2):
            # Tile t has input column t * tile + position - left here.
            begin, end = span_inside(position - left, tile, columns, width)
            plane = planes[position]
            plane[rows, :begin] = 0
            plane[rows, end:] = 0
            if end > begin:
                at = begin * tile + position - left
                plane[rows, begin:end] = x[low:high, at : at + (end - begin - 1) * tile + 1 : tile]
        return planes


def _forward_4(d: Array, out: Array, key: str) -> None:
    """out[i] = sum over j of B[i, j] d[j], for the six points of F(4, 3)."""
    first, second = scratch(key + "1", d.shape[1:]), scratch(key + "2", d.shape[1:])
    np.multiply(d[2], _FOUR, first)
    np.subtract(d[4], first, first)
    np.multiply(d[1], _FOUR, second)
    np.subtract(d[3], second, second)
    np.add(first, second, out[1])
    np.subtract(first, second, out[2])
    np.subtract(d[4], d[2], first)
    np.subtract(d[3], d[1], second)
    np.add(second, second, second)
    np.add(first, second, out[3])
    np.subtract(first, second, out[4])
    np.subtract(d[0], d[2], out[0])
    np.multiply(out[0], _FOUR, out[0])
    np.add(out[0], first, out[0])
    np.subtract(d[5], d[3], out[5])
    np.add(second, second, second)
    np.subtract(out[5], second, out[5])


def _inverse_4(m: Array, out: Array, key: str) -> None:
    """The four outputs of six products."""
    first, second = scratch(key + "3", m.shape[1:]), scratch(key + "4", m.shape[1:])
    np.add(m[1], m[2], first)
    np.add(m[3], m[4], second)
    np.add(m[0], first, out[0])
    np.add(out[0], second, out[0])
    np.multiply(second, _FOUR, second)
    np.add(first, second, out[2])
    np.subtract(m[1], m[2], first)
    np.subtract(m[3], m[4], second)
    np.add(second, second, second)
    np.add(first, second, out[1])
    np.multiply(second, _FOUR, second)
    np.add(first, second, first)
    np.add(first, m[5], out[3])


def _forward_2(d: Array, out: Array, key: str) -> None:
    np.subtract(d[0], d[2], out[0])
    np.add(d[1], d[2], out[1])
    np.subtract(d[2], d[1], out[2])
    np.subtract(d[3], d[1], out[3])


def _inverse_2(m: Array, out: Array, key: str) -> None:
    first = scratch(key + "3", m.shape[1:])
    np.add(m[0], m[1], out[0])
    np.add(out[0], m[2], out[0])
    np.subtract(m[1], m[2], first)
    np.add(first, m[3], out[1])
