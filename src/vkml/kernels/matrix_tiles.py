"""Tiles of products on matrix units: which there are, and how long they take."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from vkml.dataclasses import dataclass
from vkml.ir.wording import counted
from vkml.kernels.gemm import LAUNCH
from vkml.kernels.packed_weights import COLUMN_PADDING, K_PADDING, WIDEST_TILE, Fragment
from vkml.kernels.split_rows import BLOCK, SLACK

if TYPE_CHECKING:
    from vkml.lowering.target import Target

LEAST_FRAGMENT = (16, 8, 16)
"""Smaller units than this have not been found to be faster than ordinary arithmetic."""
LONGEST_SUM = 1 << 16
"""Units truncate as they add, by 1.2e-9 a step of K (H200): 8e-5 here, where TF32's rounding gives 3e-4.

Longer sums are ranges of K, no longer than this each, whose sums are added in fp32.
"""
MOST_RANGES = 16
"""Of K, where they are short;"""
LONG_RANGE = 4096
"""of ranges as long as this there may be more: what adds them up is little beside them."""
SUMS_A_LANE = 128
"""fp32 sums a lane may hold: half the registers of a GPU whose lanes have 255."""
SUMS_OF_PIECES = 144
"""Those of products in two pieces, which leave room for little else."""
PROMOTED = 128
"""Steps of k after which sums of two pieces leave the unit: 2.3e-7 in relative L2."""
REGISTERS = 65536
"""Of a multiprocessor."""
OTHER_REGISTERS = 100
"""What a lane needs beside its sums."""


@dataclass(frozen=True)
class Tile:
    """How a workgroup computes its tile, and what the rule knows of it (fitted to 1655 figures, H200)."""

    sub_m: int
    """Rows of results that a subgroup owns,"""
    sub_n: int
    """and columns."""
    subgroups: int
    """Side by side along n: no fragment of the weights is read twice."""
    slices: int
    """Shares of K inside a workgroup."""
    step_k: int
    ahead: int
    """Steps of a fragment's k that the weights are fetched ahead."""
    step: float
    """Microseconds a step of k where a multiprocessor holds as many workgroups as fit."""
    least: float
    """The share of `step` that is left where it holds only one of them."""
    pieces: int = 1
    """Of fp16, of an element: products of two are as exact as float32's (split_product.py)."""
    start: float = 2.0
    """Microseconds in which a workgroup begins and ends."""

    @property
    def m(self) -> int:
        return self.sub_m

    @property
    def n(self) -> int:
        return self.sub_n * self.subgroups

    @property
    def shared_bytes(self) -> int:
        """As matrix_units.slang counts them, but for the fragment's rows of results, which are fewer."""
        operands = self.slices * 2 * self.m * ((self.pieces * self.step_k + 8) // 4)
        added = self.slices // 2 * self.m * self.n // 2
        return 8 * (max(operands, added) + self._told_words)

    def results_bytes(self, fragment: Fragment) -> int:
        return 8 * (self.subgroups * fragment.m * ((self.sub_n + 4) // 2) + self._told_words)

    @property
    def _told_words(self) -> int:
        """Exponents of rows by slices, and what subgroups tell each other, where scales are guessed."""
        return self.slices * (self.m + self.subgroups)

    def threads(self, fragment: Fragment) -> int:
        return self.subgroups * self.slices * fragment.lanes

    def sums(self, fragment: Fragment) -> int:
        """That a lane holds: of two pieces, those of first ones twice, and those of different ones."""
        return (3 if self.pieces == 2 else 1) * self.sub_m * self.sub_n // fragment.lanes

    @property
    def promoted(self) -> int:
        """Steps after which sums of two pieces leave the unit, which truncates; 0: at the end."""
        return PROMOTED // self.step_k if self.pieces == 2 else 0

    def label(self) -> str:
        slices = f"x{self.slices}" if self.slices > 1 else ""
        return f"{self.m}x{self.n} tile, {self.sub_m}x{self.sub_n}{slices} a subgroup, steps of {self.step_k}"

    def fits(self, fragment: Fragment, target: Target) -> bool:
        """Whether the kernel's loops come out even with this fragment, and the device has room."""
        slice_threads = self.subgroups * fragment.lanes
        group = max(1, 8 * fragment.lanes // (fragment.n * fragment.k)) * fragment.n
        return (
            self.sub_m % fragment.m == 0
            and self.sub_n % group == 0
            and COLUMN_PADDING % fragment.n == 0
            and self.step_k % (fragment.k * self.ahead) == 0
            and fragment.m * self.sub_n // 4 % fragment.lanes == 0
            and self.m * self.step_k % (slice_threads * 4) == 0
            and self.n <= WIDEST_TILE
            and self.sums(fragment) <= (SUMS_A_LANE if self.pieces == 1 else SUMS_OF_PIECES)
            and self.threads(fragment) <= min(512, target.max_invocations)
            and max(self.shared_bytes, self.results_bytes(fragment)) <= target.shared_bytes
        )


TILES = (
    Tile(64, 64, 8, 1, 32, 2, 0.826, 0.50),
    Tile(48, 64, 4, 1, 32, 2, 0.833, 0.78),
    Tile(64, 32, 4, 1, 32, 2, 0.925, 0.63),
    Tile(64, 32, 2, 2, 64, 4, 0.723, 0.50),
    Tile(32, 64, 2, 2, 64, 2, 1.216, 0.77),
    Tile(32, 32, 4, 1, 64, 4, 0.916, 0.64),
    Tile(32, 32, 4, 2, 64, 4, 0.702, 0.50),
    Tile(32, 32, 2, 2, 64, 4, 0.797, 0.81),
    Tile(32, 32, 2, 4, 64, 4, 0.872, 0.50),
    Tile(16, 32, 2, 4, 64, 4, 0.950, 0.72),
)

LINE_TILES = (
    Tile(64, 64, 4, 1, 64, 2, 1.22, 0.80, start=2.2),
    Tile(64, 32, 4, 1, 64, 4, 0.82, 0.63, start=1.2),
    Tile(64, 32, 2, 2, 64, 4, 0.42, 0.50),
    Tile(32, 64, 2, 2, 64, 2, 1.00, 0.77),
    Tile(32, 32, 4, 1, 64, 4, 0.78, 0.64),
    Tile(32, 32, 4, 2, 64, 4, 0.40, 0.50),
    Tile(32, 32, 2, 2, 64, 4, 0.56, 0.81),
    Tile(32, 32, 2, 4, 64, 4, 0.61, 0.50),
    Tile(16, 32, 2, 4, 64, 4, 0.66, 0.72),
)
"""Where A comes in lines of halves: fitted to products from 1024³ to 8192³, with K of 512 to 16384 (H200)."""
LINE_WORD = 8
"""Elements of 16 bytes, which a load of such a line fetches."""

SPLIT = 3.4e6
"""Bytes that the pass which makes halves of rows reads and writes in a microsecond,"""
STORED = 4.1e6
"""and those of results, which a product of lines stores besides what its tiles' times say;"""
GUESS = 0.7
"""and the microseconds in which a workgroup agrees on a scale, and finds that it suited."""
NOTING = 1.03
"""What steps take longer where the largest magnitudes are noted."""


@dataclass(frozen=True)
class Choice:
    """A tile, a number of ranges of K, where scales come from, and the microseconds that are expected."""

    tile: Tile
    splits: int
    has_pass: bool = False
    """Whether a pass before makes halves of rows; else each workgroup does, by scales that it guesses."""
    time: float = 0.0

    def label(self) -> str:
        """Tells it from other choices."""
        scales = ", halves from a pass" if self.has_pass else ""
        return f"matrix units, {self.tile.label()}, {counted(self.splits, 'K range')}{scales}"

    def longest_sum(self, k: int) -> int:
        """How much of K a unit adds up before ordinary arithmetic does."""
        return (
            math.ceil(math.ceil(k / self.tile.step_k) / (self.splits * self.tile.slices)) * self.tile.step_k
        )


def fits_rows(tile: Tile, fragment: Fragment, target: Target) -> bool:
    """Whether loops over rows come out even, and a subgroup can tell what a row's scale may be."""
    return tile.fits(fragment, target) and guesses(tile, fragment)


def fits_lines(tile: Tile, fragment: Fragment, target: Target) -> bool:
    """Whether loops over lines of halves along k come out even, too, and these have room in shared memory."""
    slice_threads = tile.subgroups * fragment.lanes
    line = tile.pieces * tile.step_k
    return (
        tile.fits(fragment, target)
        and all(size % LINE_WORD == 0 for size in (fragment.m, fragment.k, line))
        and tile.m * line % (LINE_WORD * slice_threads) == 0
        and slice_threads % (line // LINE_WORD) == 0
        and K_PADDING % tile.step_k == 0
        and (tile.pieces == 1 or (tile.step_k % BLOCK == 0 and BLOCK % fragment.k == 0))
        and (tile.pieces == 1 or tile.sub_n % COLUMN_PADDING == 0)
        and tile.m <= SLACK
    )


def guesses(tile: Tile, fragment: Fragment) -> bool:
    """Whether a row's elements of a step are a subgroup's, so that it can tell what their scale may be."""
    return tile.step_k // 4 <= fragment.lanes


def ranges(target: Target, tile: Tile, m: int, n: int, k: int, batch: int = 1) -> list[int]:
    """Numbers of ranges of K that fill the device once or a few times, none of them too long a sum."""
    tiles = -(-m // tile.m) * -(-n // tile.n) * batch
    least = -(-k // (LONGEST_SUM * tile.slices))
    most = min(k // (tile.step_k * tile.slices * 2), max(MOST_RANGES, k // LONG_RANGE))
    # Four workgroups a multiprocessor is what the registers of the smaller tiles allow.
    turns = (1, 2) if least <= 1 else (1, 2, 3, 4)
    return sorted(
        {max(1, least, min(most, turn * target.processors // tiles)) for turn in turns} | {max(1, least)}
    )


def estimate(target: Target, fragment: Fragment, choice: Choice, m: int, n: int, k: int) -> float:
    """Microseconds until the sums of all ranges are there; making halves of rows is among them."""
    tile, splits = choice.tile, choice.splits
    if choice.has_pass:
        return estimate_lines(target, fragment, tile, splits, (1, m, n, k), 4) + splitting(m * k)
    return estimate_waves(target, fragment, tile, splits, m, n, k, GUESS, slower=NOTING)


def splitting(elements: int, pieces: int = 1) -> float:
    """Microseconds of the pass that makes halves of so many elements."""
    return LAUNCH + (4 + 2 * pieces) * elements / SPLIT


def estimate_lines(
    target: Target,
    fragment: Fragment,
    tile: Tile,
    splits: int,
    sizes: tuple[int, int, int, int],
    itemsize: int,
    before: float = 0.0,
) -> float:
    """Microseconds of a product whose rows come in lines of halves.

    Args:
        target: the device.
        fragment: its own.
        tile: what a workgroup computes,
        splits: in so many ranges of K.
        sizes: batch, m, n and k.
        itemsize: bytes of a result.
        before: see `estimate_waves`.
    """
    batch, m, n, k = sizes
    stored = batch * m * n * (4 * splits if splits > 1 else itemsize) / STORED
    return estimate_waves(target, fragment, tile, splits, m, n, k, before, batch) + stored


def resident(target: Target, fragment: Fragment, tile: Tile) -> int:
    """Workgroups that a multiprocessor holds at a time."""
    by_registers = REGISTERS // (min(255, tile.sums(fragment) + OTHER_REGISTERS) * tile.threads(fragment))
    shared = max(tile.shared_bytes, tile.results_bytes(fragment))
    return max(1, min(by_registers, target.shared_bytes // shared))


def estimate_waves(
    target: Target,
    fragment: Fragment,
    tile: Tile,
    splits: int,
    m: int,
    n: int,
    k: int,
    before: float = 0.0,
    batch: int = 1,
    slower: float = 1.0,
) -> float:
    """Microseconds: workgroups run in waves of as many as fit on all multiprocessors; the last is sparse.

    Args:
        target: the device.
        fragment: its own.
        tile: what a workgroup computes,
        splits: in so many ranges of K.
        m: sizes of the product,
        n: all three
        k: of them.
        before: what each wave takes before its steps, besides `Tile.start`.
        batch: of how many products.
        slower: by what steps take longer than `Tile.step`.
    """
    held = resident(target, fragment, tile)
    groups = -(-m // tile.m) * -(-n // tile.n) * splits * batch
    steps = math.ceil(math.ceil(k / tile.step_k) / (splits * tile.slices))
    waves, rest = divmod(groups, target.processors * held)
    wave, step = tile.start + before, slower * tile.step
    time = LAUNCH + waves * (wave + steps * step)
    if rest:
        share = -(-rest // target.processors) / held
        time += wave + steps * step * max(share, tile.least)
    return time
