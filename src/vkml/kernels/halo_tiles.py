"""Tiles of convolutions whose windows overlap, on matrix units: which there are, and how long they take."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from vkml.dataclasses import dataclass
from vkml.ir.size import typical
from vkml.ir.windows import Windows
from vkml.ir.wording import counted
from vkml.kernels.gemm import LAUNCH, Product
from vkml.kernels.matrix_tiles import LONGEST_SUM, MOST_RANGES, REGISTERS, SUMS_A_LANE
from vkml.kernels.packed_weights import COLUMN_PADDING, WIDEST_TILE, Fragment, padded
from vkml.kernels.views import View

if TYPE_CHECKING:
    from vkml.lowering.target import Target

VECTOR = 8
"""Channels that a thread brings to shared memory at a time."""
PAIR = 2
"""Taps side by side that make a step of a fragment's k, where a block is that many channels."""
LONGEST_ROW = 16
"""Steps of a fragment's k that a row of taps may have, which are laid out in the kernel."""
MOST_LOADS = 12
"""Of eight elements that a thread has under way: registers."""


@dataclass(frozen=True)
class Tile:
    """How a workgroup computes its tile: pixels of output by filters."""

    down: int
    """Fragments of pixels that a subgroup owns,"""
    sub_n: int
    """and filters."""
    subs_m: int
    """Subgroups along pixels,"""
    subs_n: int
    """and along filters."""
    across: int
    """Fragments side by side in a row of the tile; 0: it is a line of positions of all images."""
    block: int
    """Channels in shared memory at a time."""
    stages: int
    """Blocks that there is room for."""
    ahead: int
    """Steps of a fragment's k that the weights are fetched ahead, at most."""
    pace: float = 1.0
    """How much longer than the others' its steps take, by the same counts."""
    pieces: int = 1
    """Of fp16, of an element: two hold all bits of float32."""

    def m(self, fragment: Fragment) -> int:
        return self.down * self.subs_m * fragment.m

    @property
    def n(self) -> int:
        return self.sub_n * self.subs_n

    def threads(self, fragment: Fragment) -> int:
        return self.subs_m * self.subs_n * fragment.lanes

    def sums(self, fragment: Fragment) -> int:
        """That a lane holds: of two pieces, those of first ones twice, and those of different ones."""
        return (3 if self.pieces == 2 else 1) * self.down * fragment.m * self.sub_n // fragment.lanes

    def label(self) -> str:
        rows = self.down * self.subs_m
        tile = f"{rows // self.across}x{self.across}" if self.across else f"{rows} in a line"
        return (
            f"{tile} fragments by {self.n}, {self.down} by {self.sub_n} a subgroup, "
            f"{counted(self.stages, 'block')} of {self.block} channels"
        )


@dataclass(frozen=True)
class Band:
    """The channels that tiles of filters of several groups see: those of all groups with filters there."""

    filters: int
    """Of a tile."""
    group_filters: int
    group_channels: int
    channels: int
    """That each tile sees, in whole blocks,"""
    last: int
    """and where they begin at the latest."""

    @classmethod
    def of(cls, weight: View, tile: Tile, group: int) -> Band:
        filters, channels = weight.shape[:2]
        per_group = filters // group
        most = max(
            -(-min(start + tile.n, filters) // per_group) - start // per_group
            for start in range(0, filters, tile.n)
        )
        seen = padded(most * channels, tile.block)
        return cls(tile.n, per_group, channels, seen, group * channels - seen)

    @property
    def is_of_one(self) -> bool:
        """Whether each tile's filters are of one group, of whose channels it sees all and no others."""
        return self.channels == self.group_channels

    def first(self, filter_: int) -> int:
        """The first channel that the tile of a filter sees."""
        start = filter_ // self.filters * self.filters
        return min(start // self.group_filters * self.group_channels, self.last)


@dataclass(frozen=True)
class Operand:
    """Weights as a tile wants them: of windows that are wider, and of more channels, where it takes that."""

    channels: int
    filters: int
    kernel: tuple[int, int, int]
    channels_there: int
    """Of eight, how many there are."""
    band: Band | None = None
    """Where filters are of several groups."""

    @classmethod
    def of(cls, weight: View, tile: Tile, group: int = 1) -> Operand:
        filters, channels, *kernel = weight.shape
        depth, height, width = kernel
        if group > 1:
            band = Band.of(weight, tile, group)
            return cls(band.channels, filters, (depth, height, width), VECTOR, band)
        if tile.block == VECTOR:
            width = padded(width, PAIR)
        return cls(padded(channels, VECTOR), filters, (depth, height, width), min(channels, VECTOR))

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.filters, self.channels, *self.kernel)


@dataclass(frozen=True)
class Choice:
    """A tile, a number of ranges of channels, and the microseconds that are expected."""

    tile: Tile
    splits: int
    time: float = 0.0

    def label(self) -> str:
        """Tells it from other choices."""
        return f"matrix units, {self.tile.label()}, {counted(self.splits, 'K range')}"


@dataclass(frozen=True)
class Shape:
    """What a tile makes of windows."""

    pitch: int
    """Positions of a row in shared memory,"""
    halo: int
    """and all that the tile's windows see."""
    positions: int
    """Of an image, where tiles are lines."""
    tiles: int
    """Of all images,"""
    across: int
    """side by side in an image,"""
    down: int
    """and one below the other."""
    has_fours: bool
    """Whether four neighbouring results lie together wherever a lane has some."""


TILES = (
    Tile(4, 32, 4, 1, 2, 16, 1, 3, 0.98),
    Tile(4, 32, 4, 1, 1, 16, 1, 3, 1.03),
    Tile(4, 32, 2, 1, 1, 16, 2, 3, 1.04),
    Tile(4, 32, 2, 2, 1, 16, 1, 3, 1.08),
    Tile(4, 32, 2, 2, 1, 16, 2, 3, 1.02),
    Tile(2, 32, 2, 2, 1, 16, 2, 3, 1.02),
    Tile(4, 64, 2, 2, 1, 16, 1, 3, 1.38),
    Tile(4, 32, 1, 4, 1, 16, 2, 3, 1.02),
    Tile(4, 32, 1, 4, 1, 32, 1, 3, 1.15),
    Tile(4, 32, 1, 4, 0, 16, 2, 3, 1.17),
    Tile(4, 32, 1, 4, 0, 32, 1, 3, 1.22),
    Tile(2, 32, 2, 4, 0, 16, 2, 3, 1.11),
    Tile(2, 32, 1, 4, 1, 32, 2, 3, 1.21),
    Tile(2, 32, 1, 2, 1, 32, 2, 3, 1.05),
    Tile(1, 32, 2, 2, 1, 32, 2, 3, 1.06),
    Tile(1, 64, 4, 1, 0, 16, 2, 3, 1.26),
    Tile(2, 32, 2, 1, 0, 32, 2, 3, 1.37),
    Tile(4, 32, 4, 1, 2, 8, 1, 3, 0.94),
    Tile(4, 32, 2, 1, 1, 8, 1, 3, 0.94),
    Tile(1, 16, 4, 1, 1, 16, 2, 3, 0.78),
    Tile(2, 16, 4, 1, 1, 16, 2, 3, 0.86),
    Tile(2, 16, 2, 2, 1, 16, 2, 3, 0.80),
    Tile(2, 32, 2, 2, 1, 16, 2, 3, 1.07, 2),
    Tile(2, 32, 1, 4, 1, 16, 2, 3, 1.12, 2),
    Tile(2, 32, 1, 4, 0, 16, 2, 3, 1.44, 2),
    Tile(2, 32, 2, 2, 0, 16, 2, 3, 1.42, 2),
    Tile(1, 32, 2, 4, 0, 16, 2, 3, 1.10, 2),
    Tile(2, 16, 2, 2, 0, 16, 2, 3, 1.08, 2),
    Tile(2, 16, 2, 2, 1, 16, 2, 3, 0.82, 2),
    Tile(2, 16, 1, 4, 1, 16, 2, 3, 0.84, 2),
    Tile(1, 32, 2, 2, 1, 16, 2, 3, 1.00, 2),
    Tile(2, 32, 2, 2, 1, 8, 1, 3, 1.07, 2),
    Tile(1, 16, 4, 1, 1, 16, 2, 3, 0.72, 2),
    Tile(2, 16, 4, 1, 1, 16, 2, 3, 0.79, 2),
)
"""Those of one piece fitted, with the numbers below, to 142 figures of an H200: they are 7 % off in the mean,
what the rule chooses takes 2.9 % longer than the best."""


@dataclass(frozen=True)
class Costs:
    """Microseconds."""

    wave: float
    """The start and the end of a workgroup,"""
    turn: float
    """a step of a fragment's k, whatever it multiplies,"""
    block: float
    """a block of channels,"""
    load: float
    """bringing eight channels of a position to shared memory,"""
    result: float
    """a result,"""
    unit: float
    """a product of a subgroup that has a quarter of a multiprocessor for itself."""


COSTS = {
    1: Costs(2.34, 0.0254, 0.246, 0.979e-3, 1.034e-4, 0.635 * 1.72e-6),
    2: Costs(4.23, 0.0474, 0.491, 1.093e-3, 7.0e-6, 2.455e-6),
}
"""By pieces; those of two were fitted to 62 figures of seven layers, 7 % off in the mean."""
SECOND_PASS = 2.7
"""Microseconds: adding up ranges of channels,"""
PARTIAL = 0.912e-6
"""and each sum of a range."""
FEWEST_REGISTERS = {1: 128, 2: 168}
"""That a thread is taken to have, by pieces."""
CROWDED = 104
"""Registers of sums and of loads under way beyond which a guarded kernel of one piece has too few,"""
CROWDED_LONGER = 1.35
"""and how much longer its steps take then (1.2 to 1.7; eleven layers of groups, H200)."""
ALONE = 7.5e-4
"""Microseconds that a result of a guarded tile of several groups takes longer where rows are no multiples of
four, so that a lane stores one at a time."""
SHARED = 2
"""Workgroups of the most shared memory that a multiprocessor is taken to hold at a time."""


def shape_of(tile: Tile, fragment: Fragment, windows: Windows, batch: int) -> Shape:
    """Positions and tiles of a convolution over three axes, of which the first is 1."""
    if tile.block == VECTOR:
        windows = replace(windows, kernel=(*windows.kernel[:2], padded(windows.kernel[2], PAIR)))
    _, height, width = windows.spatial
    _, stride_h, stride_w = windows.strides
    _, extent_h, extent_w = windows.extents
    _, out_h, out_w = windows.output
    m = tile.m(fragment)
    if not tile.across:
        # What the last windows read behind a row is the padding before the next one.
        pitch = max(width + windows.pads_begin[2], out_w + extent_w - 1 - windows.pads_begin[2], out_w)
        rows = max(height + windows.pads_begin[1], out_h + extent_h - 1 - windows.pads_begin[1], out_h)
        halo = m + (extent_h - 1) * pitch + extent_w - 1
        positions = pitch * rows
        return Shape(pitch, halo, positions, -(-(batch * positions) // m), 1, 1, (out_w | pitch) % 4 == 0)
    tile_w = tile.across * fragment.m
    tile_h = m // tile_w
    pitch = (tile_w - 1) * stride_w + extent_w
    halo = ((tile_h - 1) * stride_h + extent_h) * pitch
    across, down = -(-out_w // tile_w), -(-out_h // tile_h)
    return Shape(pitch, halo, 0, batch * across * down, across, down, out_w % 4 == 0)


def shared_bytes(tile: Tile, fragment: Fragment, shape: Shape, *, is_guarded: bool = True) -> int:
    """As halo_units.slang counts them."""
    subgroups = tile.subs_m * tile.subs_n
    results = subgroups * fragment.n * ((tile.down * fragment.m + 4) // 4)
    octets = tile.block // VECTOR
    operands = max(
        tile.pieces * tile.stages * shape.halo * (1 if octets == 1 else octets + 1),
        tile.pieces * tile.m(fragment) * (fragment.k // VECTOR + 1),
    )
    rows, columns = (1 + fragment.k // VECTOR, 2) if is_guarded else (1, 1)
    noted = rows * tile.m(fragment) // 4 + columns * tile.n // 4 + (subgroups + 3) // 4
    return 16 * (max(operands, results) + noted)


def fits(
    tile: Tile, fragment: Fragment, target: Target, weight: View, windows: Windows, group: int = 1
) -> bool:
    """Whether the kernel's loops come out even, and the device has room."""
    columns = max(1, 8 * fragment.lanes // (fragment.n * fragment.k)) * fragment.n
    threads = tile.threads(fragment)
    fragments = tile.down * tile.subs_m
    operand = Operand.of(weight, tile, group)
    if operand.band is None:
        is_whole = operand.channels == weight.shape[1] or weight.shape[1] < VECTOR
    else:
        is_whole = operand.band.last >= 0 and tile.block > VECTOR
    is_even = (
        is_whole
        and operand.channels % tile.block == 0
        and (operand.shape == weight.shape or weight.buffer.is_constant)
        and (tile.block % math.lcm(fragment.k, VECTOR) == 0 or tile.block == VECTOR)
        and tile.block * operand.kernel[2] % fragment.k == 0
        and fragment.k % VECTOR == 0
        and tile.sub_n % (columns if tile.pieces == 1 else math.lcm(columns, COLUMN_PADDING)) == 0
        # Results that are computed again are the bits of a word a lane.
        and fragment.n * tile.down * fragment.m <= 32 * fragment.lanes
        and COLUMN_PADDING % fragment.n == 0
        and tile.n <= WIDEST_TILE
        and (tile.down * fragment.m) % 4 == 0
        and operand.kernel[2] * tile.block // fragment.k <= LONGEST_ROW
        and (tile.block > VECTOR or windows.dilations[2] == 1)
        and tile.sums(fragment) <= SUMS_A_LANE
        and threads <= target.max_invocations
    )
    if not is_even:
        return False
    if tile.across:
        is_even = fragments % tile.across == 0 and (
            tile.down % tile.across == 0 or tile.across % tile.down == 0
        )
    else:
        is_even = windows.strides == (1, 1, 1)
    if not is_even:
        return False
    shape = shape_of(tile, fragment, windows, 1)
    runs = tile.down * fragment.m
    return (
        -(-shape.halo * (tile.block // VECTOR) // threads) <= min(MOST_LOADS, 32)
        and shared_bytes(tile, fragment, shape) <= target.shared_bytes
        and all(
            runs // width % fragment.lanes == 0 or fragment.lanes % (runs // width) == 0 for width in (1, 4)
        )
        and all(
            fragment.lanes * width // runs <= fragment.n
            and fragment.n % max(1, fragment.lanes * width // runs) == 0
            for width in (1, 4)
        )
    )


def choices(
    target: Target, product: Product, weight: View, windows: Windows, group: int, pieces: int
) -> list[Choice]:
    """Tiles and ranges of channels for a convolution that units suit, with their times."""
    fragment = target.fragment
    assert fragment is not None
    found = []
    for tile in TILES:
        if tile.pieces != pieces or not fits(tile, fragment, target, weight, windows, group):
            continue
        if tile.block == VECTOR and not _has_few_taps(weight, windows):
            continue
        layout = shape_of(tile, fragment, windows, typical(product.space[0]))
        operand = Operand.of(weight, tile, group)
        blocks = operand.channels // tile.block
        for splits in _ranges(target, tile, layout, operand, blocks):
            found.append(
                Choice(tile, splits, _estimate(target, fragment, tile, splits, layout, operand, product))
            )
    return found


def _has_few_taps(weight: View, windows: Windows) -> bool:
    """Whether steps of several taps have been measured for such a convolution: a first layer of 3 × 3."""
    return weight.shape[1] < VECTOR and max(windows.kernel) <= 3 and windows.strides == (1, 1, 1)


def _ranges(target: Target, tile: Tile, layout: Shape, operand: Operand, blocks: int) -> list[int]:
    """Numbers of ranges of channels that fill the device, none of them too long a sum, none empty."""
    groups = typical(layout.tiles) * -(-operand.filters // tile.n)
    longest = max(1, LONGEST_SUM // (tile.block * math.prod(operand.kernel)))
    least = -(-blocks // longest)
    found = {max(least, min(blocks, MOST_RANGES, turns * target.processors // groups)) for turns in (1, 2)}
    return sorted({-(-blocks // -(-blocks // splits)) for splits in found | {least}})


def _estimate(
    target: Target,
    fragment: Fragment,
    tile: Tile,
    splits: int,
    layout: Shape,
    operand: Operand,
    product: Product,
) -> float:
    """Microseconds: workgroups run in waves of as many as fit on all multiprocessors."""
    subgroups = tile.subs_m * tile.subs_n
    blocks = -(-(operand.channels // tile.block) // splits)
    turns = blocks * math.prod(operand.kernel) * tile.block // fragment.k
    groups = typical(layout.tiles) * -(-operand.filters // tile.n) * splits
    registers = min(255, max(FEWEST_REGISTERS[tile.pieces], 4 * tile.sums(fragment))) * tile.threads(fragment)
    has_several_groups = operand.band is not None and not operand.band.is_of_one
    shared = shared_bytes(tile, fragment, layout, is_guarded=tile.pieces == 2 or has_several_groups)
    held = max(1, min(REGISTERS // registers, SHARED * target.shared_bytes // shared))
    most = -(-groups // target.processors)
    costs, pace = COSTS[tile.pieces], tile.pace
    loads = -(-layout.halo * tile.block // (VECTOR * tile.threads(fragment)))
    if tile.pieces == 1 and has_several_groups and tile.sums(fragment) + 2 * VECTOR * loads > CROWDED:
        pace *= CROWDED_LONGER
    multiplied = costs.unit * tile.down * fragment.m * tile.sub_n * fragment.k
    time = LAUNCH
    while most > 0:
        some = min(held, most)
        most -= some
        time += costs.wave + pace * (
            turns * (costs.turn + multiplied * -(-some * subgroups // 4))
            + blocks * (costs.block + some * costs.load * layout.halo * tile.block / VECTOR)
            + some * costs.result * tile.m(fragment) * tile.n
        )
        if tile.pieces == 1 and has_several_groups and not layout.has_fours:
            time += ALONE * tile.m(fragment) * tile.n
    if splits > 1:
        time += SECOND_PASS + PARTIAL * splits * typical(product.n) * operand.filters
    return time
