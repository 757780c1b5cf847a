"""Launches of products of float32 on matrix units: whether, and in which tiles."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from vkml.dataclasses import dataclass
from vkml.ir import dtypes
from vkml.ir.size import Size, is_multiple, typical
from vkml.kernels import range_sums
from vkml.kernels.epilogue import Epilogue
from vkml.kernels.fragment_layout import Layout
from vkml.kernels.gemm import Product, estimate_ordinary
from vkml.kernels.matrix_tiles import (
    LEAST_FRAGMENT,
    LINE_TILES,
    LONGEST_SUM,
    TILES,
    Choice,
    Tile,
    estimate,
    fits_lines,
    fits_rows,
    guesses,
    ranges,
)
from vkml.kernels.packed_codes import define_columns, number_of
from vkml.kernels.packed_weights import (
    COLUMN_PADDING,
    LARGEST_POWER,
    MATRIX_UNIT_NEEDS,
    UNIT_NEEDS,
    Fragment,
    boolean,
    define_guess,
    exponents_of,
    fragments_of,
    has_holes,
    least_power,
)
from vkml.kernels.results import add_partials, emit_finish
from vkml.kernels.views import View
from vkml.kernels.writer import KernelWriter, template

if TYPE_CHECKING:
    from vkml.lowering.target import Target
    from vkml.lowering.vulkan_builder import VulkanBuilder

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
    if build.ask(matrix_of(b), least_power) is None:
        return "weights that one scale a column does not suit"
    return "columns of next to nothing, mostly" if build.ask(matrix_of(b), has_holes) else ""


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
class Codes:
    """What makes numbers of codes of few bits in the order of fragments, which are words then."""

    bits: int
    block: int
    """Of k, whose numbers have a scale and a zero point in common,"""
    scales: View
    """(blocks, n) of float32, times the columns' powers of two,"""
    zeros: View | None
    """(blocks, n) of float32; None: 2^(bits - 1)."""
    layout: Layout
    """Of fragments."""

    def define(self, writer: KernelWriter) -> None:
        """Adds what few_bit_weights.slang wants."""
        scale = f"{writer.read(self.scales)}[block * N + n]"
        zero = str(1 << self.bits - 1)
        if self.zeros is not None:
            zero = f"{writer.read(self.zeros)}[block * N + n]"
        writer.text(
            "\n".join(
                [
                    f"static const int BITS = {self.bits};",
                    f"static const int BLOCK = {self.block};",
                    f"float load_scale(int n, int block) {{ return {scale}; }}",
                    f"float load_zero(int n, int block) {{ return {zero}; }}",
                    *number_of("float", is_whole=True),
                    define_columns(self.layout),
                ]
            )
        )


@dataclass(frozen=True)
class Weights:
    """Those of a product (k, n) in the order of fragments, with columns scaled."""

    exponents: View
    """Of columns."""
    fragments: View
    least: int | None
    """See `packed_weights.least_power`; None: scales of rows are found by a pass."""
    codes: Codes | None = None
    """Where the fragments are not of halves."""


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
    codes = weights.codes
    pointers = {
        "B_POINTER": writer.read(weights.fragments, width=4 if codes is None else 1),
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
    files = (
        "scales",
        *files,
        "matrix_units_results",
        "unit_weights" if codes is None else "few_bit_weights",
        "tile_bands",
        "matrix_units",
        "shared_results",
    )
    define(writer, fragment, choice, (product.m, product.n, product.k), pointers)
    if codes is not None:
        codes.define(writer)
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
    slower: float = 1.0,
) -> Choice | None:
    """The tile and number of K ranges with the least estimated time; None where no tile fits.

    Arguments are those of `choices`.
    """
    found = choices(target, fragment, product, suits, passes, tiles, slower)
    return min(found, key=lambda choice: choice.time, default=None)


def choices(
    target: Target,
    fragment: Fragment,
    product: Product,
    suits: Callable[[Tile], bool] = lambda tile: True,
    passes: tuple[bool, ...] = (),
    tiles: Sequence[Tile] = TILES,
    slower: float = 1.0,
) -> list[Choice]:
    """All tiles that fit and numbers of K ranges, with the time that is estimated for each.

    Args:
        target: the device.
        fragment: its own.
        product: its sizes.
        suits: whether a tile is considered.
        passes: what `Choice.has_pass` may be, if the operand says so.
        tiles: those that there are where workgroups make halves of rows.
        slower: by what steps take longer than tiles know.
    """
    if forced is not None:
        fits = fits_lines if forced.has_pass else Tile.fits
        return [forced] if fits(forced.tile, fragment, target) and suits(forced.tile) else []
    m, n, k = (typical(size) for size in (product.m, product.n, product.k))
    found = [
        Choice(tile, splits, has_pass)
        for has_pass in passes or (True, False)
        for tile in (LINE_TILES if has_pass else tiles)
        if (fits_lines(tile, fragment, target) if has_pass else fits_rows(tile, fragment, target))
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
        timed_as = replace(choice, tile=replace(tile, step=slower * tile.step))
        time = estimate(target, fragment, timed_as, m, n, k) + adding
        timed.append(Choice(tile, choice.splits, choice.has_pass, time))
    return timed


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


def matrix_of(b: View) -> View:
    """(k, n) of a single (1, k, n)."""
    return View(b.buffer, b.dtype, b.shape[1:], b.strides[1:], b.offset)


def matrices_of(b: View) -> View:
    """(batch, k, n) of different matrices: one where all are the same."""
    return replace(b, shape=(1, *b.shape[1:])) if b.strides[0] == 0 else b


def _is_aligned(a: View) -> bool:
    """Whether four neighbours along k may be read at once, from any row."""
    return all(is_multiple(number, 4) for number in (a.shape[2], a.strides[1], a.offset))
