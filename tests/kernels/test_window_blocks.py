"""Blocks of windows: what the rule chooses, where an H200 was asked which is the fastest."""

from __future__ import annotations

import math

import pytest

from vkml.ir import dtypes
from vkml.ir.windows import Windows
from vkml.kernels import depthwise, pool
from vkml.kernels.views import Buffer, BufferKind, View
from vkml.kernels.window_blocks import Block, block_of


def chosen(module: object, batch: int, channels: int, side: int, kernel: int, stride: int, pad: int) -> Block:
    """The block for windows over square images."""
    output = (side + 2 * pad - kernel) // stride + 1
    windows = Windows(
        (1, side, side), (1, kernel, kernel), (1, stride, stride), (1, 1, 1),
        (0, pad, pad), (0, pad, pad), (1, output, output),
    )  # fmt: skip
    shape = (batch, channels, 1, side, side)
    strides = tuple(math.prod(shape[axis + 1 :]) for axis in range(5))
    x = View(Buffer(BufferKind.ACTIVATION, 4 * math.prod(shape), "x"), dtypes.FLOAT32, shape, strides, 0)
    is_pool = module is pool
    short, apart = (
        (pool._is_short, pool._MOST_APART) if is_pool else (depthwise._is_short, depthwise.MOST_APART)
    )
    return block_of(x, batch * channels, windows, lambda block: short(windows, block), apart)


@pytest.mark.parametrize(
    ("sizes", "block"),
    [
        ((32, 144, 56, 3, 1, 1), Block(4, 4, 4)),  # 32.2 µs; 8 rows 33.8, one 33.9, one result a thread 88.7
        ((32, 96, 112, 3, 2, 1), Block(1, 2, 4)),  # 46.6; 4 × 2 50.7, 1 × 4 48.1, 4 × 4 52.5
        ((32, 96, 56, 7, 1, 3), Block(4, 4, 4)),  # 37.4; 2 × 4 43.8, 1 × 4 57.2
        ((32, 240, 28, 5, 1, 2), Block(4, 4, 4)),  # 19.5; 8 × 4 21.0
        ((32, 576, 14, 3, 1, 1), Block(2, 2, 2)),  # 11.2; 1 × 2 13.5, 4 × 2 11.9
        ((1, 144, 56, 3, 1, 1), Block(1, 4, 4)),  # 3.5; 2 × 4 3.4, one result a thread 4.9
        ((1, 96, 112, 3, 2, 1), Block(1, 2, 4)),  # 3.5; 1 × 4 3.8
        ((1, 576, 14, 3, 1, 1), Block(1, 2, 2)),  # 2.7
        ((1, 960, 7, 3, 1, 1), Block(1, 1, 1)),  # 2.4
    ],
    ids=str,
)
def test_depthwise_convolutions(sizes: tuple[int, int, int, int, int, int], block: Block) -> None:
    assert chosen(depthwise, *sizes) == block


@pytest.mark.parametrize(
    ("sizes", "block"),
    [
        ((64, 64, 128, 3, 1, 1), Block(8, 4, 4)),  # 132.5 µs; 4 rows 137.2, one column 179
        ((32, 64, 112, 3, 2, 1), Block(2, 2, 4)),  # 32.6; 4 × 2 34.3, 2 × 4 34.3, 8 × 4 41.2
        ((32, 64, 224, 2, 2, 0), Block(2, 2, 4)),  # 118.7; 8 × 4 127.5
        ((32, 192, 35, 3, 2, 0), Block(2, 1, 1)),  # 13.8; one row 16.4, four 14.4
    ],
    ids=str,
)
def test_greatest_elements(sizes: tuple[int, int, int, int, int, int], block: Block) -> None:
    assert chosen(pool, *sizes) == block
