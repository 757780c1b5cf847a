"""Launches of products of float32 on matrix units: whether, and in which tiles."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from vkml.dataclasses import dataclass
from vkml.ir import dtypes
from vkml.ir.size import Size, is_multiple, typical
from vkml.ir.wording import counted
from vkml.kernels import range_sums
from vkml.kernels.epilogue import Epilogue
from vkml.kernels.gemm import LAUNCH, Product, estimate_ordinary
from vkml.kernels.packed_weights import (
    COLUMN_PADDING,
    K_PADDING,
    LARGEST_POWER,
    MATRIX_UNIT_NEEDS,
    UNIT_NEEDS,
    WIDEST_TILE,
    Fragment,
    boolean,
    define_guess,
    exponents_of,
    fragments_of,
    least_power,
)
from vkml.kernels.results import add_partials, emit_finish
from vkml.kernels.split_rows import BLOCK, SLACK
from vkml.kernels.views import View
from vkml.kernels.writer import KernelWriter, template

if TYPE_CHECKING:
    from vkml.lowering.target import Target
    from vkml.lowering.vulkan_builder import VulkanBuilder

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
BAND = 8
"""Tiles of m whose workgroups run side by side."""


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


forced: Choice | None = None
"""For tests and tuning runs: what `choose` returns wherever a product can be computed so at all."""


def refusal(build: VulkanBuilder, product: Product, a: View, b: View, *, is_rule: bool = True) -> str:
    """Why a product is not for matrix units, or an empty string.

    Args:
        build: for a device.
        product: its sizes.
        a: (1, m, k) or (batch, m, k).
        b: (batch, k, n).
        is_rule: whether it also has to be expected to be faster there.
    """
    target = build.target
    fragment = target.fragment
    why = why_no_units(target)
    if why or fragment is None:
        return why
    if a.dtype != dtypes.FLOAT32:
        return "not float32"
    if not b.buffer.is_constant:
        return "no constant weights"
    if any(isinstance(number, Size) for number in (product.k, product.n, b.offset, *b.strides[1:])):
        return "open sizes of the weights"
    if product.batch != 1 or b.is_reversed or a.is_reversed or a.strides[2] != 1:
        return "batched or transposed operands"
    why = why_not_chosen(target, product, rule_of(build, product, a, b), is_rule=is_rule)
    if why:
        return why
    suits = build.ask(matrix_of(b), least_power) is not None
    return "" if suits else "weights that one scale a column does not suit"


def why_no_units(target: Target, *, is_forced: bool | None = None, has_pieces: bool = False) -> str:
    """Why a device multiplies nothing of float32 on matrix units, or an empty string.

    Args:
        target: the device.
        is_forced: whether units of any size will do; None: where a choice is `forced`.
        has_pieces: whether elements may be two of fp16, which hold all bits.
    """
    fragment = target.fragment
    if target.strict_fp32 and not has_pieces:
        return "strict fp32"
    if fragment is None:
        return "the device has no matrix units"
    sizes = zip((fragment.m, fragment.n, fragment.k), LEAST_FRAGMENT, strict=True)
    is_forced = forced is not None if is_forced is None else is_forced
    if not is_forced and any(size < least for size, least in sizes):
        return "the device's matrix units are small"
    missing = set(MATRIX_UNIT_NEEDS) - target.capabilities
    return f"the device lacks {', '.join(sorted(missing))}" if missing else ""


def why_not_chosen(
    target: Target,
    product: Product,
    choice: Choice | None,
    *,
    is_rule: bool = True,
    ordinary: float | None = None,
) -> str:
    """Why strict arithmetic is taken instead of a choice, or an empty string.

    Args:
        target: the device.
        product: its sizes.
        choice: that is made; None where there is none.
        is_rule: whether the choice also has to be expected to be faster
        ordinary: than so many microseconds; None: than `estimate_ordinary` says.
    """
    if choice is None:
        return "no tile fits the device"
    if choice.longest_sum(typical(product.k)) > LONGEST_SUM:
        return f"sums of more than {LONGEST_SUM}"
    if forced is None and is_rule:
        ordinary = estimate_ordinary(target, product) if ordinary is None else ordinary
        if choice.time >= ordinary:
            return "too small a product"
    assert target.fragment is not None
    suits = target.holds_elements_once(target.fragment)
    return "" if suits else "the device's fragments hold elements more than once"


@dataclass(frozen=True)
class Weights:
    """Those of a product (k, n) in the order of fragments, with columns scaled."""

    exponents: View
    """Of columns."""
    fragments: View
    least: int | None
    """See `packed_weights.least_power`; None: scales of rows are found by a pass."""


def launch(build: VulkanBuilder, product: Product, a: View, b: View, choice: Choice) -> list[View]:
    """Emits a product that `refusal` has nothing against; returns the views of its results."""
    fragment = build.target.fragment
    assert fragment is not None
    packed = build.packed_weights(matrix_of(b), fragment)
    least = None
    if not choice.has_pass:
        asked = build.ask(matrix_of(b), least_power)
        assert isinstance(asked, int)
        least = asked
    weights = Weights(exponents_of(packed, product.n), fragments_of(packed, product.n), least)
    return launch_with(build, product, a, weights, choice)


def launch_with(
    build: VulkanBuilder, product: Product, a: View, weights: Weights, choice: Choice
) -> list[View]:
    """Emits a product by weights in fragments; returns the views of its results."""
    fragment = build.target.fragment
    assert fragment is not None
    tile = choice.tile
    rows = build.split_rows(a, 1) if choice.has_pass else None
    epilogue, outputs = build.take_epilogue(product.result)
    writer = build.writer()
    pointers = {
        "B_POINTER": writer.read(weights.fragments, width=4),
        "COLUMN_EXPONENTS": writer.read(weights.exponents, width=4, reinterpreted_as="int"),
    }
    if rows is not None:
        writer.text(rows.define(writer, a))
        writer.constant(0, "COLUMN_BATCH")
        files: tuple[str, ...] = ("half_lines", "matrix_units_halves", "matrix_units_scales")
    else:
        assert weights.least is not None and guesses(tile, fragment)
        define_guess(writer, weights.least)
        pointers["A_POINTER"] = writer.read(a)
        writer.constant(a.strides[1], "A_STRIDE")
        is_whole = boolean(product.k % tile.step_k == 0)
        writer.text(f"static const bool IS_A_ALIGNED = {boolean(_is_aligned(a))};")
        writer.text(f"static const bool IS_K_WHOLE = {is_whole};")
        files = ("scale_guesses", "matrix_units_rows")
    files = ("scales", *files, "matrix_units_results", "unit_weights", "matrix_units", "shared_results")
    define(writer, fragment, choice, (product.m, product.n, product.k), pointers)
    expected = f"{choice.time:.0f} µs expected, else {estimate_ordinary(build.target, product):.0f}"
    how = f"fp16 scaled by rows and columns, fp32 sums; {expected}"
    emit_product(
        build,
        writer,
        fragment,
        product,
        choice,
        files,
        how,
        outputs,
        epilogue,
        is_measured=not choice.has_pass,
    )
    return outputs


def emit_product(
    build: VulkanBuilder,
    writer: KernelWriter,
    fragment: Fragment,
    product: Product,
    choice: Choice,
    files: Iterable[str],
    how: str,
    outputs: list[View],
    epilogue: Epilogue | None,
    *,
    is_measured: bool = True,
) -> None:
    """Emits a product whose kernel knows its operands, and what adds up its ranges of K.

    Args:
        build: where the launches go.
        writer: of the kernel, after `define`.
        fragment: that it multiplies.
        product: its sizes.
        choice: tile and ranges of K.
        files: templates, in order, those that store rows among them.
        how: it is computed, for people.
        outputs: where results go,
        epilogue: by this.
        is_measured: see `range_sums.joins`.
    """
    tile, splits = choice.tile, choice.splits
    shape = tile.m, tile.n
    partials = emit_finish(
        build,
        writer,
        product,
        splits,
        shape,
        tile.threads(fragment),
        outputs,
        epilogue,
        is_measured=is_measured,
    )
    tiles = -(-product.m // tile.m) * -(-product.n // tile.n)
    across, rows = writer.grid(tiles, build.target.max_groups)
    batch = f"batch {product.batch}, " if product.batch != 1 else ""
    writer.need(*UNIT_NEEDS[fragment.element])
    writer.text("".join(map(template, files)))
    build.emit(
        writer.finish(
            product.label,
            (across, rows, product.batch * splits),
            variant=choice.label(),
            reason=f"{batch}M {product.m}, N {product.n}, K {product.k}: {how}",
            subgroup_size=fragment.lanes,
        )
    )
    if partials is not None:
        add_partials(build, product, partials, splits, outputs, epilogue)


def define(
    writer: KernelWriter,
    fragment: Fragment,
    choice: Choice,
    sizes: tuple[int, int, int],
    pointers: Mapping[str, str],
    batch_of_b: int | None = None,
) -> None:
    """Adds to a kernel the names that matrix_units.slang and how its rows are read want alike.

    Args:
        writer: of the kernel.
        fragment: of the device.
        choice: tile and ranges of K.
        sizes: m, n and k.
        pointers: by name.
        batch_of_b: words from one packed matrix to the next, 0 where there is one for all; None: one product.
    """
    tile = choice.tile
    for name, value in zip(("M", "N", "K", "SPLITS"), (*sizes, choice.splits), strict=True):
        writer.constant(value, name)
    numbers = {
        "FRAGMENT_M": fragment.m,
        "FRAGMENT_N": fragment.n,
        "FRAGMENT_K": fragment.k,
        "LANES": fragment.lanes,
        "TILE_M": tile.m,
        "TILE_N": tile.n,
        "SUB_M": tile.sub_m,
        "SUB_N": tile.sub_n,
        "SLICES": tile.slices,
        "STEP_K": tile.step_k,
        "AHEAD": tile.ahead,
        "BAND": BAND,
        "PIECES": tile.pieces,
        "PROMOTED": tile.promoted,
    }
    macros = "PIECES", "PROMOTED"
    writer.constant(batch_of_b or 0, "B_BATCH")
    lines = [f"static const bool IS_BATCHED = {boolean(batch_of_b is not None)};"]
    lines += [
        f"#define {name} {value}" if name in macros else f"static const int {name} = {value};"
        for name, value in numbers.items()
    ]
    lines.append(f"typealias Element = {fragment.slang_element};")
    lines += [f"#define {name} {pointer}" for name, pointer in pointers.items()]
    lines.append(f"#define N_BLOCKS ((N + {COLUMN_PADDING - 1}) / {COLUMN_PADDING} * {COLUMN_PADDING // 8})")
    writer.text("\n".join(lines))


def choose(
    target: Target,
    fragment: Fragment,
    product: Product,
    suits: Callable[[Tile], bool] = lambda tile: True,
    passes: tuple[bool, ...] = (),
    tiles: Sequence[Tile] = TILES,
) -> Choice | None:
    """The tile and number of K ranges with the least estimated time; None where no tile fits.

    Arguments are those of `choices`.
    """
    found = choices(target, fragment, product, suits, passes, tiles)
    return min(found, key=lambda choice: choice.time, default=None)


def choices(
    target: Target,
    fragment: Fragment,
    product: Product,
    suits: Callable[[Tile], bool] = lambda tile: True,
    passes: tuple[bool, ...] = (),
    tiles: Sequence[Tile] = TILES,
) -> list[Choice]:
    """All tiles that fit and numbers of K ranges, with the time that is estimated for each.

    Args:
        target: the device.
        fragment: its own.
        product: its sizes.
        suits: whether a tile is considered.
        passes: what `Choice.has_pass` may be, if the operand says so.
        tiles: those that there are where workgroups make halves of rows.
    """
    if forced is not None:
        fits = fits_lines if forced.has_pass else Tile.fits
        return [forced] if fits(forced.tile, fragment, target) and suits(forced.tile) else []
    m, n, k = (typical(size) for size in (product.m, product.n, product.k))
    found = [
        Choice(tile, splits, has_pass)
        for has_pass in passes or (True, False)
        for tile in (LINE_TILES if has_pass else tiles)
        if (fits_lines(tile, fragment, target) if has_pass else _fits_rows(tile, fragment, target))
        and suits(tile)
        for splits in ranges(target, tile, m, n, k)
    ]
    timed: list[Choice] = []
    for choice in found:
        tile = choice.tile
        adding = range_sums.microseconds(
            target,
            product,
            choice.splits,
            (tile.m, tile.n),
            tile.threads(fragment),
            is_measured=not choice.has_pass,
        )
        time = estimate(target, fragment, choice, m, n, k) + adding
        timed.append(Choice(tile, choice.splits, choice.has_pass, time))
    return timed


def _fits_rows(tile: Tile, fragment: Fragment, target: Target) -> bool:
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


def rule_of(build: VulkanBuilder, product: Product, a: View, b: View) -> Choice | None:
    """The choice with the least estimated time; None where no tile fits.

    Rows that several products read are made halves once: bert's queries, keys and values, which are
    computed beside each other, take longer with scales that each guesses (26 of 1000 µs, H200). So have those
    that meet weights of many magnitudes, which leave a guess too little room.
    """
    fragment = build.target.fragment
    assert fragment is not None
    if not build.ask(a, _has_several_products):
        found = choose(build.target, fragment, product)
        if found is None or found.has_pass or forced is not None or _leaves_room(build, b):
            return found
    return choose(build.target, fragment, product, passes=(True,))


def _leaves_room(build: VulkanBuilder, b: View) -> bool:
    least = build.ask(matrix_of(b), least_power)
    return isinstance(least, int) and leaves_room(least)


def leaves_room(least: int) -> bool:
    """Whether a guess may be off by eight powers of two, either way, from what `least_power` says."""
    return least <= LARGEST_POWER - 16


def _has_several_products(rows: View) -> bool:
    return rows.buffer.products > 1


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


def matrix_of(b: View) -> View:
    """(k, n) of a single (1, k, n)."""
    return View(b.buffer, b.dtype, b.shape[1:], b.strides[1:], b.offset)


def matrices_of(b: View) -> View:
    """(batch, k, n) of different matrices: one where all are the same."""
    return replace(b, shape=(1, *b.shape[1:])) if b.strides[0] == 0 else b


def _is_aligned(a: View) -> bool:
    """Whether four neighbours along k may be read at once, from any row."""
    return all(is_multiple(number, 4) for number in (a.shape[2], a.strides[1], a.offset))
