"""Winograd's convolution of 3 x 3 windows: a quarter of the products, for some additions around them.

Tiles of 4 x 4 results come from 6 x 6 inputs. A chunk takes some tiles and some filters: it transforms its
inputs, multiplies each of the 36 places of a tile by a matrix [channels, filters] of its own, and transforms
back; all in the scratch memory of its thread, which the second-level cache holds (Lavin and Gray, "Fast
Algorithms for Convolutional Neural Networks"). The polynomials are taken at 0, ±3/4, ±3/2 and infinity: the
factors of the transforms of data are exact in float32, and errors are a fourth of those with 0, ±1, ±2: 2e-6
of the largest result (256 channels), where adding up directly gives 3e-7.

Of windows of dilation d each d-th result along an axis is an ordinary convolution of each d-th input. A tile
is of one of these d convolutions: its neighbours lie d apart.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from vkml.cpu.native.executable import InstructionSet
from vkml.cpu.native.expression import Epilogue
from vkml.cpu.native.kept_kernels import kept_kernel
from vkml.cpu.native.kernel import Kernel, Launch
from vkml.cpu.native.product import SECONDS_PER_FLOP, tile_of
from vkml.cpu.native.tiles import lanes_of
from vkml.cpu.native.winograd_code import FAR, HEADER, NEAR, PLACES, TILE, WinogradCode, WinogradShape
from vkml.dataclasses import dataclass

Array = np.ndarray[Any, Any]
LEAST_CHANNELS = 16
LEAST_TILES = 12
"""With fewer the matrices, four times the weights, take longer to read than the products they save."""
MOST_TILES = 32
"""Of a chunk."""
MOST_BYTES = 1 << 27
"""Of transformed weights."""
SCRATCH_BYTES = 768 * 1024
CACHE_BYTES = 400 * 1024
"""Of scratch memory that stays in the second-level cache beside weights."""
BYTES_PER_SECOND = 20e9
"""At which all threads together read weights."""
TRANSFORM_SECONDS = 60e-9
"""Of a tile of one vector of channels, there or back."""


@dataclass(frozen=True)
class Plan:
    """How the work is cut: a function of the shape alone, so that packing and code agree.

    Attributes:
        tiles: of a chunk.
        rows: tiles that are multiplied at once.
        vectors: of filters that are multiplied at once.
        panels: so many vectors each, of a chunk.
        seconds: estimated for one core.
    """

    tiles: int
    rows: int
    vectors: int
    panels: int
    seconds: float

    @property
    def key(self) -> str:
        """Names the arrangement of weights."""
        return f"winograd{self.vectors}:{self.panels}"


@functools.lru_cache(maxsize=1024)
def plan(
    instructions: InstructionSet,
    *,
    images: int,
    height: int,
    width: int,
    channels: int,
    filters: int,
    threads: int,
    dilations: tuple[int, int] = (1, 1),
    share: float = 1.0,
    like: Plan | None = None,
) -> Plan | None:
    """How to compute a 3 x 3 convolution of stride 1; None where adding up directly is faster.

    Args:
        instructions: the set that code may use.
        images: batch.
        height: of the result.
        width: of the result.
        channels: of the input.
        filters: channels of the result.
        threads: that will share the work.
        dilations: of the window, along y and x.
        share: of the time of all products that adding up directly takes, where it leaves some out.
        like: a plan for whose weights this is to be one, too.
    """
    if min(channels, filters) < LEAST_CHANNELS or min(height // dilations[0], width // dilations[1]) < TILE:
        return None
    total = images * len(_starts(height, dilations[0])[0]) * len(_starts(width, dilations[1])[0])
    if total < LEAST_TILES or 4 * PLACES * channels * filters > MOST_BYTES:
        return None
    lanes = lanes_of(instructions)
    best: Plan | None = None
    best_time = math.inf
    for tiles in range(min(8, total), min(MOST_TILES, total) + 1):
        rows, vectors = tile_of(instructions, columns=filters, rows=tiles, row_bytes=4 * channels + 64)
        all_panels = -(-filters // (vectors * lanes))
        for panels in {-(-all_panels // parts) for parts in (1, 2, 3, 4, 6, 8, 16)}:
            if like is not None and (vectors, panels) != (like.vectors, like.panels):
                continue
            parts = -(-all_panels // panels)
            columns = panels * vectors * lanes
            if parts > 1 and 4 * PLACES * tiles * (channels + columns) > SCRATCH_BYTES and panels > 1:
                continue
            flops = 2.0 * PLACES * tiles * channels * columns
            transforms = tiles * (-(-channels // lanes) + panels * vectors) * TRANSFORM_SECONDS * 16 / lanes
            # Rows that are left over take as long as some more.
            waste = 1 + 0.02 * (tiles % rows > 0)
            # 256² pixels of 64 channels: 296 GFLOP/s (counted as if added up directly) with 592 KiB, 315
            # with 322.
            waste += 0.03 * (4 * PLACES * tiles * (channels + columns) > CACHE_BYTES)
            chunk = flops * waste * SECONDS_PER_FLOP + transforms + 1e-6
            chunks = parts * -(-total // tiles)
            read = 4.0 * PLACES * channels * columns / BYTES_PER_SECOND
            # Weights that one chunk has read the next ones find in a cache.
            time = max(-(-chunks // threads) * chunk, read * parts * (1 + 0.25 * (chunks / parts - 1)))
            # A thread's last chunk keeps the others waiting.
            time += 0.05 * chunk * (threads > 1)
            if time < best_time * 0.999:
                best, best_time = Plan(tiles, rows, vectors, panels, chunks * chunk), time
    direct = share * 18.0 * images * height * width * channels * filters * SECONDS_PER_FLOP
    return best if best is not None and best_time < 0.85 * direct / threads else None


def pack(instructions: InstructionSet, weight: Array, arrangement: Plan) -> Array:
    """Weights [filters, channels, 3, 3] as [chunk of filters][place][panel][channel][filter], with zeros."""
    filters, channels = weight.shape[:2]
    lanes = arrangement.vectors * lanes_of(instructions)
    all_panels = -(-filters // lanes)
    transform = np.kron(_kernel_transform(), _kernel_transform()).astype(np.float32)
    packed = np.zeros((all_panels, PLACES, channels, lanes), np.float32)
    for panel in range(all_panels):
        part = weight[panel * lanes : (panel + 1) * lanes]
        taps = part.transpose(2, 3, 1, 0).reshape(9, -1)
        with np.errstate(all="ignore"):  # infinities become NaN here
            packed[panel, :, :, : len(part)] = (transform @ taps).reshape(PLACES, channels, len(part))
    chunks = []
    for first in range(0, all_panels, arrangement.panels):
        chunks.append(packed[first : first + arrangement.panels].swapaxes(0, 1).reshape(-1))
    return np.concatenate(chunks)


def _kernel_transform() -> Array:
    """Turns three taps into values of their polynomial, over the product of the point's differences."""
    points = [0.0, NEAR, -NEAR, FAR, -FAR]
    rows = []
    for at, point in enumerate(points):
        scale = math.prod(point - other for position, other in enumerate(points) if position != at)
        rows.append([1 / scale, point / scale, point * point / scale])
    return np.array([*rows, [0.0, 0.0, 1.0]])


def winograd(
    instructions: InstructionSet,
    *,
    batch: tuple[int, ...],
    height: int,
    width: int,
    channels: int,
    filters: int,
    a: tuple[int, ...],
    arrangement: Plan,
    epilogue: Epilogue,
    dilations: tuple[int, int] = (1, 1),
    planes: int = 1,
    plane_step: int = 0,
    packed_planes: int = 1,
) -> Launch:
    """A 3 x 3 convolution of stride 1 over channels-last images that have room for every window.

    Args:
        instructions: the set that code may use.
        batch: leading axes.
        height: of the result.
        width: of the result.
        channels: of the input, whose elements are neighbours.
        filters: channels of the result.
        a: element strides of A: batch…, y, x; A begins at the first window's first place.
        arrangement: from `plan`.
        epilogue: over (batch…, y, x, filter), float32; leaves walk filters by 0 or 1, results by 1.
        dilations: of the window, along y and x.
        planes: of a window, each with channels and weights of its own, as if they were further channels.
        plane_step: elements of A from one to the next.
        packed_planes: that the weights are packed of; those that are used begin at the operand.

    Returns:
        A launch of A, the packed weights, the leaves, the results.
    """
    lanes = lanes_of(instructions)
    accesses = (*epilogue.leaves, *epilogue.results)

    def steps(y: int, x: int) -> tuple[int, int]:
        return 4 * y * dilations[0], 4 * x * dilations[1]

    shape = WinogradShape(
        instructions,
        arrangement.tiles,
        arrangement.rows,
        arrangement.vectors,
        arrangement.panels,
        channels,
        filters % lanes,
        steps(*a[-2:]),
        tuple(steps(*access.strides[-3:-1]) for access in accesses),
        replace(
            epilogue,
            leaves=tuple(replace(access, strides=access.strides[-1:]) for access in epilogue.leaves),
            results=tuple(replace(access, strides=access.strides[-1:]) for access in epilogue.results),
        ),
        planes,
        4 * plane_step,
        packed_planes,
    )
    columns = arrangement.panels * arrangement.vectors * lanes
    table = _table(
        shape,
        batch=batch,
        sizes=(height, width),
        dilations=dilations,
        filters=filters,
        columns=columns,
        operands=[(*a, 0), *(access.strides for access in accesses)],
    )
    return Launch(_kernel(shape), table, arrangement.seconds + 1e-7)


@kept_kernel(256)
def _kernel(shape: WinogradShape) -> Kernel:
    return WinogradCode(shape).kernel()


def _table(
    shape: WinogradShape,
    *,
    batch: tuple[int, ...],
    sizes: tuple[int, int],
    dilations: tuple[int, int],
    filters: int,
    columns: int,
    operands: Sequence[Sequence[int]],
) -> Array:
    """A row a chunk; see `winograd_code`."""
    lanes = lanes_of(shape.instructions)
    height, width = sizes
    (starts_y, skips_y), (starts_x, skips_x) = _starts(height, dilations[0]), _starts(width, dilations[1])
    counts = (*batch, len(starts_y), len(starts_x))
    *at, y, x = (axis.reshape(-1) for axis in np.meshgrid(*map(range, counts), indexing="ij"))
    starts = (*at, starts_y[y], starts_x[x])
    made = [
        np.asarray(sum(start * step for start, step in zip(starts, strides, strict=False)))
        for strides in operands
    ]
    tiles = np.stack([4 * made[0], skips_y[y], skips_x[x], *(4 * part for part in made[1:])], 1)
    firsts = np.arange(0, filters, columns)
    chunks = -(-len(tiles) // shape.tiles)
    table = np.zeros((chunks, len(firsts), HEADER + shape.tiles * tiles.shape[1]), np.int64)
    panel = shape.vectors * lanes
    for number, first in enumerate(firsts.tolist()):
        count = min(columns, filters - first)
        steps = np.array([0, 0, 0, *(4 * first * strides[-1] for strides in operands[1:])])
        whole = np.zeros((chunks * shape.tiles, tiles.shape[1]), np.int64)
        whole[: len(tiles)] = tiles + steps
        table[:, number, HEADER:] = whole.reshape(chunks, -1)
        table[:, number, 0] = 4 * PLACES * first * shape.packed_planes * shape.channels
        table[:, number, 1] = -(-count // panel)
        table[:, number, 2] = count // lanes
        table[:, number, 3] = count % lanes > 0
        table[:, number, 4] = np.minimum(shape.tiles, len(tiles) - np.arange(chunks) * shape.tiles)
    if PLACES * filters > math.prod(batch) * height * width:
        # Weights are larger than the image: chunks that use the same ones follow one another.
        table = table.swapaxes(0, 1)
    return np.ascontiguousarray(table.reshape(-1, table.shape[2]))


def _starts(size: int, dilation: int) -> tuple[Array, Array]:
    """Where tiles begin along an axis, and how many results each skips.

    Last tiles of those of one rest begin earlier, and skip what the one before stores.
    """
    starts, skips = [], []
    for rest in range(dilation):
        count = -(-(size - rest) // dilation)
        wanted = np.arange(0, count, TILE)
        made = np.minimum(wanted, count - TILE)
        starts.append(rest + dilation * made)
        skips.append(wanted - made)
    return np.concatenate(starts), np.concatenate(skips)
