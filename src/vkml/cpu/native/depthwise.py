"""Depthwise convolutions: every channel with a window of its own; lanes lie along channels."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from vkml.cpu.native.assembler import R8, R9, Mem
from vkml.cpu.native.executable import InstructionSet
from vkml.cpu.native.expression import Epilogue
from vkml.cpu.native.kernel import Kernel, Launch
from vkml.cpu.native.tiles import MASK, TileCode, TileShape, chunk_table, lanes_of, tile_shape

Array = np.ndarray[Any, Any]
SECONDS_PER_VECTOR = 0.4e-9
"""Of a multiply-add with an operand from the first-level cache."""


def pack_depthwise(instructions: InstructionSet, weight: Array) -> Array:
    """[channels, 1, …] → [taps, channels, filled up to whole vectors with zeros]."""
    lanes = lanes_of(instructions)
    channels = weight.shape[0]
    packed = np.zeros((math.prod(weight.shape[1:]), -(-channels // lanes) * lanes), np.float32)
    packed[:, :channels] = weight.reshape(channels, -1).T
    return packed


def depthwise(
    instructions: InstructionSet,
    *,
    images: int,
    height: int,
    width: int,
    channels: int,
    taps: tuple[int, ...],
    a: tuple[int, int, int],
    epilogue: Epilogue,
    threads: int,
) -> Launch:
    """Sums of a window's places times the channel's weights, then an epilogue.

    Args:
        instructions: the set that code may use.
        images: of the batch.
        height: of the result.
        width: of the result.
        channels: neighbours in A and in the results.
        taps: element offsets of the window's places in A; all places exist.
        a: element strides of A: image, y, x.
        epilogue: over (image, y, x, channel), float32.
        threads: that will share the work.

    Returns:
        A launch of A, the weights (see `pack_depthwise`), the leaves, the results.
    """
    lanes = lanes_of(instructions)
    operands = [(*a, 1), *(access.strides for access in (*epilogue.leaves, *epilogue.results))]
    tile_rows = min(12 if instructions is InstructionSet.AVX512 else 8, width)
    tile_rows = -(-width // -(-width // tile_rows))
    shape = tile_shape(
        instructions,
        tile_rows=tile_rows,
        width=width,
        columns=channels,
        panel=lanes,
        taps=taps,
        operands=[strides[1:3] for strides in operands],
        epilogue=epilogue,
    )
    seconds = len(taps) * SECONDS_PER_VECTOR
    table = chunk_table(
        shape,
        batch=(images,),
        height=height,
        width=width,
        columns=channels,
        panel=lanes,
        operands=operands,
        panel_floats=lanes,
        b=(0,),
        row_seconds=seconds,
        row_bytes=4 * lanes,
        threads=threads,
    )
    vectors = images * height * width * -(-channels // lanes)
    return Launch(_kernel(shape, -(-channels // lanes) * lanes * 4), table, vectors * seconds + 1e-7)


@functools.lru_cache(maxsize=512)
def _kernel(shape: TileShape, tap_bytes: int) -> Kernel:
    return _DepthwiseCode(shape, tap_bytes).kernel()


class _DepthwiseCode(TileCode):
    """Tiles of places of one vector of channels."""

    label = "depthwise"

    def __init__(self, shape: TileShape, tap_bytes: int) -> None:
        super().__init__(shape)
        self.tap_bytes = tap_bytes

    def accumulate(self, sums: list[list[int]], lanes: int | None) -> None:
        code = self.code
        step = self.shape.steps[0][1]
        weight, value, mask = len(sums), len(sums) + 1, None
        if lanes is not None:
            mask = MASK if code.has_avx512 else len(sums) + 2
            if not code.has_avx512:
                code.set_mask(mask, lanes)
        for number, tap in enumerate(self.shape.taps):
            code.load(weight, Mem(R9, number * self.tap_bytes))
            for row, [register] in enumerate(sums):
                place = Mem(R8, tap + row * step)
                if mask is None:
                    code.multiply_add(register, weight, place)
                else:
                    code.load(value, place, mask)
                    code.multiply_add(register, weight, value)
