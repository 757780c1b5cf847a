"""Launches of the tiled product: choice of tile and split of K."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from vkml.dataclasses import dataclass
from vkml.ir import DType, TensorType
from vkml.ir.scalar import arithmetic_type
from vkml.ir.size import Size, is_multiple, typical
from vkml.ir.wording import counted
from vkml.kernels import bfloat16_units, byte_units, range_sums, unit_tiles
from vkml.kernels.candidates import Candidate
from vkml.kernels.epilogue import Epilogue
from vkml.kernels.pointwise import emit_store, emit_vector_store, on_space
from vkml.kernels.results import add_partials, emit_ranges
from vkml.kernels.unit_tiles import Choice as UnitChoice
from vkml.kernels.views import View
from vkml.kernels.writer import (
    CODED,
    KernelWriter,
    compute_type,
    load_expression,
    loaded,
    multiply_add,
    multiply_add_bytes,
    template,
)

if TYPE_CHECKING:
    from vkml.lowering.target import Target
    from vkml.lowering.vulkan_builder import VulkanBuilder


@dataclass(frozen=True)
class Tile:
    """How much of the product a workgroup and a thread own."""

    m: int
    n: int
    k: int
    thread_m: int
    thread_n: int
    efficiency: float
    """Share of the peak its inner loop reaches, for choosing (measured on an H200)."""

    @property
    def threads(self) -> int:
        return (self.m // self.thread_m) * (self.n // self.thread_n)

    def label(self) -> str:
        return f"{self.m}x{self.n}x{self.k} tile, {self.thread_m}x{self.thread_n} a thread"

    def shared_bytes(self, itemsize: int) -> int:
        return 2 * self.k * (self.m + 4 + self.n + 4) * itemsize


TILES = (
    Tile(128, 128, 16, 8, 8, 0.66),
    Tile(128, 64, 16, 8, 4, 0.66),
    Tile(64, 128, 16, 4, 8, 0.6),
    Tile(64, 64, 32, 4, 4, 0.55),
    Tile(64, 64, 16, 4, 4, 0.5),
    Tile(64, 32, 32, 4, 2, 0.35),
    Tile(32, 64, 32, 2, 4, 0.35),
    Tile(32, 128, 16, 4, 4, 0.52),
    Tile(32, 256, 16, 4, 8, 0.48),
    Tile(32, 32, 32, 2, 2, 0.22),
    Tile(32, 32, 16, 2, 2, 0.22),
    Tile(16, 64, 32, 1, 4, 0.2),
    Tile(16, 64, 16, 1, 4, 0.2),
)

TILE_K = 32
"""What every tile's k divides: operands whose tiles must not cross a border need a multiple of it."""

LANES = 128
"""Multiply-adds that a multiprocessor does in a cycle,"""
BYTE_LANES = 58
"""and those of four bytes each, times the root of a tile's efficiency: they are half as fast, and what else
takes time costs them less. Fitted to products from 128 × 512 × 2048 to 8192³ (H200)."""
LAUNCH = 1.9
"""Microseconds that a dependent dispatch takes on an H200,"""
CYCLES = unit_tiles.CYCLES
"""and cycles that its processors do in one."""

forced: tuple[Tile, int] | None = None
"""For tuning runs: the tile and K ranges that `choose` returns."""


@dataclass(frozen=True)
class Operand:
    """How a product's operand is read, as Slang source.

    `declare(writer, width)` adds to the writer whatever the source needs (pointers, constants, functions) and
    returns the text of ``struct Prepare{S}``, ``Prepare{S} prepare_{s}(int batch, int row)`` and
    ``vector<Accumulator, WIDTH_{S}> load_{s}(Prepare{S}, int k, int end_k)``; for B also of
    ``void enter_b(inout PrepareB, int k)``.
    """

    declare: Callable[[KernelWriter, int], str]
    along_inner: bool
    """Whether neighbouring memory runs along the inner index: k of A, n of B."""
    width: int = 1
    """Neighbours one load may fetch at the most."""
    form: str = "words"
    """How matrix units of bytes read it (`byte_units.FORMS`); the source of others is another one."""

    def width_for(self, elements: int, threads: int) -> int:
        """Neighbours a load fetches where `threads` together fetch a tile of `elements`."""
        width = self.width
        while width > 1 and elements % (threads * width):
            width //= 2
        return width


@dataclass(frozen=True)
class Product:
    """Sizes and results of one batched product."""

    batch: int
    m: int
    n: int
    k: int
    accumulator: DType
    result: TensorType
    space: tuple[int, ...]
    """Index space of the stored result; `coordinates` maps to it."""
    coordinates: str
    """Slang text of the store's arguments, from batch, m, n."""
    label: str
    sizes: tuple[tuple[str, int], ...] = ()
    """Further constants that `coordinates` names."""
    gathered: float = 1.0
    """The share of its speed that ordinary arithmetic keeps beside what reading the operands takes,"""
    gathered_units: float = 1.0
    """and the share that matrix units of bfloat16 keep."""
    why_strict: str = ""
    """Why it is not computed on matrix units, for people."""
    signs: tuple[bool, bool] | None = None
    """Of words of four bytes along k, which `k` counts: whether those of A and of B have signs."""

    turned: tuple[int, ...] = ()
    """How axes of what is stored and read by the epilogue change places to be those of `space`."""
    lies: tuple[int, ...] = ()
    """The order of the result's axes in which it had better lie in memory."""

    @property
    def stored_space(self) -> tuple[int, ...]:
        """`space`, with its axes where they are in what is stored."""
        order = self.turned or range(len(self.space))
        return tuple(self.space[order.index(axis)] for axis in range(len(self.space)))

    @property
    def terms(self) -> str:
        """The function ``multiply_add``."""
        return multiply_add(self.accumulator) if self.signs is None else multiply_add_bytes(*self.signs)


AnyTile = Tile | bfloat16_units.Tile | byte_units.Tile


def launch(
    build: VulkanBuilder,
    product: Product,
    a: Operand,
    b: Operand,
    chosen: tuple[AnyTile, int],
) -> list[View]:
    """Emits the product with the epilogue on offer; returns the views of its results.

    Args:
        build: where the launches go.
        product: what is computed.
        a: the left operand.
        b: the right one.
        chosen: the tile and number of K ranges.
    """
    fragment, word = None, ("tile_a[0][0][0]", "Accumulator")
    tile, splits = chosen
    epilogue, outputs = build.take_epilogue(product.result, product.lies or None, orders_all=True)
    results = outputs
    if product.turned:
        epilogue, outputs = _turned(product, epilogue, outputs)
    kernel, needs = "gemm", {"integer_dot"} if product.signs is not None else set()
    if isinstance(tile, bfloat16_units.Tile):
        fragment, kernel, needs = build.target.bfloat16_fragment, "bfloat16_units", set(bfloat16_units.NEEDS)
        assert fragment is not None
        # Four neighbours a load, in one instruction or four.
        width_a, width_b = (4 if operand.width == 4 else 1 for operand in (a, b))
        how, threads, word = tile.text(fragment), tile.threads(fragment), ("room[0].x", "uint")
    elif isinstance(tile, byte_units.Tile):
        fragment, kernel, needs = build.target.byte_fragment, "byte_units", set(byte_units.NEEDS)
        assert fragment is not None and product.signs is not None
        width_a, width_b = _widths(tile, a, b, tile.threads(fragment))
        along_k = a.along_inner, not b.along_inner
        how = tile.text(fragment, product.signs, (a.form, b.form), (width_a, width_b), along_k)
        threads, word = tile.threads(fragment), ("FIRST_WORD", "uint")
    else:
        width_a, width_b = _widths(tile, a, b, tile.threads)
        how = f"static const int THREAD_M = {tile.thread_m};\nstatic const int THREAD_N = {tile.thread_n};"
        threads = tile.threads
    k_range, splits = _ranges(product, tile, splits)
    accumulator = compute_type(product.accumulator)
    writer = build.writer()
    constants = {"M": product.m, "N": product.n, "SPLITS": splits}
    if isinstance(tile, byte_units.Tile):
        constants |= {"STEPS": product.k, "STEPS_A_SPLIT": k_range}
    else:
        # Pushed: SwiftShader unrolls a loop of few steps that it knows, and then compiles it for minutes.
        writer.word("steps", product.k)
        writer.word("steps_a_split", k_range)
    for name, value in constants.items():
        writer.constant(value, name)
    for name, value in product.sizes:
        writer.constant(value, name)
    writer.text(
        "\n".join(
            [
                f"typealias Accumulator = {accumulator};",
                f"static const int TILE_M = {tile.m};",
                f"static const int TILE_N = {tile.n};",
                f"static const int TILE_K = {tile.k};",
                how,
                f"static const bool A_ALONG_K = {_bool(a.along_inner)};",
                f"static const bool B_ALONG_N = {_bool(b.along_inner)};",
                f"#define WIDTH_A {width_a}",
                f"#define WIDTH_B {width_b}",
                product.terms,
            ]
        )
    )
    writer.need(*needs)
    writer.text(a.declare(writer, width_a))
    writer.text(b.declare(writer, width_b))
    partials, stores_four = None, False
    if splits > 1:
        shape = tile.m, tile.n
        partials = emit_ranges(
            build, writer, product, splits, shape, threads, word, outputs, epilogue, is_measured=False
        )
    else:
        # Neighbours' bytes would be stores of their own; of what leaves through shared memory all would be.
        has_four = (
            tile.thread_n % 4 == 0 and all(view.itemsize == 1 for view in outputs)
            if isinstance(tile, Tile)
            else isinstance(tile, byte_units.Tile)
        )
        # Columns of groups lie side by side where these are turned.
        stores_four = has_four and all(is_multiple(size, 4) for size in (product.space[-1], product.n))
        emit = emit_vector_store if stores_four else emit_store
        emit(writer, product.space, outputs, epilogue, accumulator)
        name, type_ = ("4", f"vector<{accumulator}, 4>") if stores_four else ("", accumulator)
        writer.text(
            f"void finish{name}(int batch, int split, int m, int n, {type_} x)\n{{\n"
            f"    store{name}({product.coordinates}, x);\n}}"
        )
    writer.text(f"#define STORES_FOUR {int(stores_four)}")
    windows = ("byte_windows",) if a.form == "windows" else ()
    files = {
        "bfloat16_units": ("bfloat16_units",),
        "byte_units": (*windows, "tile_bands", "byte_units", "tile_loads"),
        "gemm": ("gemm", "tile_loads"),
    }[kernel]
    writer.text("".join(map(template, files)))
    groups = (-(-product.n // tile.n), -(-product.m // tile.m), product.batch * splits)
    build.emit(
        writer.finish(
            product.label,
            groups,
            variant=f"{tile.label()}, {counted(splits, 'K range')}",
            reason=f"batch {product.batch}, M {product.m}, N {product.n}, K {product.k}"
            + (" words of four bytes" if product.signs is not None else "")
            + (f"; not in fp16: {product.why_strict}" if product.why_strict else ""),
            subgroup_size=None if fragment is None else fragment.lanes,
        )
    )
    if partials is not None:
        add_partials(build, product, partials, splits, outputs, epilogue)
    return results


def _turned(
    product: Product, epilogue: Epilogue | None, outputs: list[View]
) -> tuple[Epilogue | None, list[View]]:
    """What the epilogue reads and what is stored, over the product's space."""

    def turned(view: View) -> View:
        return on_space(view, product.stored_space).transpose(product.turned)

    if epilogue is not None:
        leaves = {name: turned(view) for name, view in epilogue.leaves.items()}
        epilogue = Epilogue(epilogue.body, epilogue.result, leaves)
    return epilogue, [turned(view) for view in outputs]


def _ranges(product: Product, tile: AnyTile, splits: int) -> tuple[int, int]:
    """Steps of a range of K, whole tiles, and how many ranges of so many there are."""
    k_range = -(-product.k // (splits * tile.k)) * tile.k
    if not isinstance(product.k, Size):
        splits = -(-product.k // k_range) if product.k else 1
    return k_range, splits


def _widths(tile: Tile | byte_units.Tile, a: Operand, b: Operand, threads: int) -> tuple[int, int]:
    """Neighbours that loads of A and of B fetch."""
    return a.width_for(tile.m * tile.k, threads), b.width_for(tile.n * tile.k, threads)


def ordinary_ranges(target: Target, product: Product) -> int:
    """The number of K ranges that ordinary arithmetic would take."""
    return forced[1] if forced is not None else _cheapest(target, product)[2]


def choose(target: Target, product: Product) -> tuple[AnyTile, int]:
    """The tile and number of K ranges with the least estimated time."""
    if forced is not None:
        return forced
    expected, tile, splits = _cheapest(target, product)
    units = _on_units(target, product)
    return (units.tile, units.splits) if units is not None and units.cycles < expected else (tile, splits)


def estimate_ordinary(target: Target, product: Product) -> float:
    """The microseconds that the tiled product is expected to take, on units as `cycles` or without."""
    return LAUNCH + cycles(target, product) / CYCLES


def cycles(target: Target, product: Product) -> float:
    """Cycles that the tiled product is expected to take, on units of bfloat16 or of bytes or without."""
    units = _on_units(target, product)
    ordinary = _cheapest(target, product)[0]
    return ordinary if units is None else min(ordinary, units.cycles)


def _on_units(
    target: Target, product: Product
) -> UnitChoice[bfloat16_units.Tile] | UnitChoice[byte_units.Tile] | None:
    """The rule's choice on matrix units, of floats or of bytes: the other one has nothing to offer."""
    return bfloat16_units.choose(target, product) or byte_units.choose(target, product)


def choices(target: Target, product: Product) -> list[tuple[float, AnyTile, int]]:
    """Tiles and numbers of K ranges with their estimated cycles: what `choose` returns, then all others."""
    first = choose(target, product)
    if forced is not None:
        return [(0.0, *first)]
    units: list[tuple[float, AnyTile, int]] = []
    units += [(each.cycles, each.tile, each.splits) for each in bfloat16_units.choices(target, product)]
    units += [(each.cycles, each.tile, each.splits) for each in byte_units.choices(target, product)]
    # Stable, and the rule's choice is of the least time.
    return sorted([*_estimates(target, product), *units], key=lambda each: (each[0], each[1:] != first))


def tiled_candidates(
    target: Target, product: Product, emit: Callable[[tuple[AnyTile, int]], list[View]]
) -> Iterator[Candidate]:
    """The tiled product in all its tiles and numbers of K ranges, `choose`'s first.

    Args:
        target: the device.
        product: its sizes.
        emit: emits it with what `launch` takes as `chosen`.
    """
    for cycles, tile, splits in choices(target, product):
        yield Candidate(
            f"{tile.label()}, {counted(_ranges(product, tile, splits)[1], 'K range')}",
            LAUNCH + cycles / CYCLES,
            functools.partial(emit, (tile, splits)),
            tile.label(),
        )


def _cheapest(target: Target, product: Product) -> tuple[float, Tile, int]:
    """The least estimated time, in cycles, and the tile and number of K ranges that take it."""
    return min(_estimates(target, product), key=lambda each: each[0])


def _estimates(target: Target, product: Product) -> Iterator[tuple[float, Tile, int]]:
    """Estimated times, in cycles, of all tiles and numbers of K ranges.

    The model: workgroups run in waves of `target.processors`; a workgroup's time is its multiply-adds over
    its tile's efficiency plus a fixed start; what adding up ranges of K takes is `range_sums`' affair.
    """
    itemsize = product.accumulator.itemsize
    batch, m, n, k = (typical(size) for size in (product.batch, product.m, product.n, product.k))
    for tile in TILES:
        if tile.threads > target.max_invocations or tile.shared_bytes(itemsize) > target.shared_bytes:
            continue
        if target.processors == 1 and max(tile.m, tile.n) * tile.k > 2 * tile.threads:
            # Software drivers: SwiftShader's compiler aborts or runs for minutes above two loads a thread.
            continue
        tiles = math.ceil(m / tile.m) * math.ceil(n / tile.n) * batch
        is_float = product.signs is None
        rate = LANES * tile.efficiency if is_float else BYTE_LANES * math.sqrt(tile.efficiency)
        for splits in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32):
            if splits > 1 and (target.processors == 1 or k < 64 * splits):
                break
            waves = math.ceil(tiles * splits / target.processors)
            work = math.ceil(k / splits) * tile.m * tile.n / (product.gathered * rate)
            time = waves * (work + 1500)
            adding = range_sums.microseconds(
                target, product, splits, (tile.m, tile.n), tile.threads, is_measured=False
            )
            time += CYCLES * adding
            yield time, tile, splits


def matrix_operand(view: View, letter: str, inner: int, outer: int, lanes: int = 1) -> Operand:
    """An operand that is a (batch, rows, columns) view.

    Args:
        view: 3-D: for A (batch, m, k), for B (batch, k, n).
        letter: "a" or "b".
        inner: stride along k.
        outer: stride along m or n.
        lanes: elements along k that are one step of the product: four bytes, gathered into a word.
    """
    batch_stride = view.strides[0]
    steps, rows = (view.shape[2], view.shape[1]) if letter == "a" else (view.shape[1], view.shape[2])
    runs_along_k = inner == 1 or (outer != 1 and letter == "a")
    width = 1
    if lanes > 1:
        if outer == 1 and fills_vectors(view, rows, (batch_stride, inner)):
            width, runs_along_k = 4, False
    elif inner == 1 and aligned(view, steps, (batch_stride, outer)):
        width = 4
    elif outer == 1 and aligned(view, rows, (batch_stride, inner)):
        width, runs_along_k = 4, False
    along_inner = runs_along_k if letter == "a" else not runs_along_k
    return Operand(_matrix_source(view, letter, inner, outer, runs_along_k, lanes), along_inner, width)


def _matrix_source(
    view: View, letter: str, inner: int, outer: int, runs_along_k: bool, lanes: int
) -> Callable[[KernelWriter, int], str]:
    size = "M" if letter == "a" else "N"
    big = letter.upper()
    count = view.shape[2 if letter == "a" else 1]

    def declare(writer: KernelWriter, width: int) -> str:
        element = emit_reader(writer, view, letter, width, "k", inner, count, lanes)
        if width > 1 and not runs_along_k:
            start = writer.offset(("batch", f"uint(row) / {width}"), (view.strides[0] // width, 1))
            step = writer.offset(("k",), (inner // width * lanes,))
        elif width > 1:
            start = writer.offset(("batch", "row"), (view.strides[0] // width, outer // width))
            step = f"uint(k) / {width}"
        else:
            start = writer.offset(("batch", "row"), (view.strides[0], outer))
            step = writer.offset(("k",), (inner * lanes,))
        enter = [f"void enter_{letter}(inout Prepare{big} p, int k) {{}}"] if letter == "b" else []
        return "\n".join(
            [
                f"struct Prepare{big} {{ int start; bool inside; }};",
                f"Prepare{big} prepare_{letter}(int batch, int row)",
                f"{{ Prepare{big} p; p.start = int({start}); p.inside = row < {size}; return p; }}",
                *enter,
                f"vector<Accumulator, {width}> load_{letter}(Prepare{big} p, int k, int end_k)",
                "{",
                f"    if (!p.inside || k >= end_k) return vector<Accumulator, {width}>(Accumulator(0));",
                f"    int at = int(p.start + {step});",
                f"    return {element};",
                "}",
            ]
        )

    return declare


def emit_reader(
    writer: KernelWriter, view: View, letter: str, width: int, step: str, stride: int, count: int, lanes: int
) -> str:
    """The expression that reads an operand's `width` neighbours at the variable ``at``, which counts vectors.

    Args:
        writer: of the product.
        view: the operand.
        letter: "a" or "b".
        width: neighbours; where bytes are gathered, along the other index than k.
        step: the variable that counts what is gathered together.
        stride: elements from one that is gathered to the next.
        count: elements that `step` counts through; behind them are zeros.
        lanes: 1, or 4 for words of four bytes each.
    """
    if lanes == 1:
        return load_vector(writer.read(view, width=width), "at", view, width)
    is_word = width == lanes
    pointer = writer.read(view, reinterpreted_as="uint" if is_word else "uint8_t")
    guard = "" if is_multiple(count, lanes) else "if (j < left) "
    if not is_word:
        writer.need("int8", "storage_8bit")
        byte = " + ".join([f"at * {width} + i", writer.offset(("j",), (stride,))])
        lines = [
            f"    vector<Accumulator, {width}> words;",
            f"    [ForceUnroll] for (int i = 0; i < {width}; ++i)",
            "    {",
            "        uint word = 0;",
            f"        [ForceUnroll] for (int j = 0; j < {lanes}; ++j)",
            f"            {guard}word |= uint({pointer}[{byte}]) << (8 * j);",
            "        words[i] = Accumulator(word);",
            "    }",
            "    return words;",
        ]
    else:
        apart = writer.offset(("j",), (stride // width,))
        # Rows of four neighbours become columns: bytes of two rows change places, then halves of words.
        lines = [
            f"    uint x[{lanes}];",
            f"    [ForceUnroll] for (int j = 0; j < {lanes}; ++j)",
            "    {",
            "        x[j] = 0;",
            f"        {guard}x[j] = {pointer}[at + {apart}];",
            "    }",
            "    uint even_low = (x[0] & 0x00ff00ffu) | ((x[1] & 0x00ff00ffu) << 8);",
            "    uint odd_low = ((x[0] >> 8) & 0x00ff00ffu) | (x[1] & 0xff00ff00u);",
            "    uint even_high = (x[2] & 0x00ff00ffu) | ((x[3] & 0x00ff00ffu) << 8);",
            "    uint odd_high = ((x[2] >> 8) & 0x00ff00ffu) | (x[3] & 0xff00ff00u);",
            "    return vector<Accumulator, 4>(",
            "        Accumulator((even_low & 0xffffu) | (even_high << 16)),",
            "        Accumulator((odd_low & 0xffffu) | (odd_high << 16)),",
            "        Accumulator((even_low >> 16) | (even_high & 0xffff0000u)),",
            "        Accumulator((odd_low >> 16) | (odd_high & 0xffff0000u)));",
        ]
    writer.text(
        "\n".join([f"vector<Accumulator, {width}> gather_{letter}(int at, int left)", "{", *lines, "}"])
    )
    return f"gather_{letter}(at, {writer.constant(count)} - {lanes} * {step})"


def aligned(view: View, count: int, strides: tuple[int, ...]) -> bool:
    """Whether four neighbours may be read as one vector anywhere."""
    return view.itemsize in (2, 4) and fills_vectors(view, count, strides)


def fills_vectors(view: View, count: int, strides: tuple[int, ...]) -> bool:
    """Whether sizes, strides and offset divide by four."""
    return all(is_multiple(number, 4) for number in (count, view.offset, *strides))


def load_vector(pointer: str, index: str, view: View, width: int) -> str:
    """`width` neighbours as a vector of accumulators; `index` counts vectors."""
    if width == 1:
        return f"vector<Accumulator, 1>(Accumulator({load_expression(pointer, index, view.dtype)}))"
    neighbours = f"loadAligned<{width * view.itemsize}>({pointer} + {index})"
    if view.dtype in CODED:
        neighbours = loaded(neighbours, view.dtype)
    return f"vector<Accumulator, {width}>({neighbours})"


def matrix_product(a: View, b: View, result: TensorType) -> Product:
    """The batched product of views (batch, m, k) and (batch, k, n); `result` has batch·m·n elements."""
    batch, m, k = a.shape
    n = b.shape[2]
    accumulator = arithmetic_type(a.dtype)
    return Product(batch, m, n, k, accumulator, result, (batch, m, n), "batch, m, n", "matmul")


def matmul(
    build: VulkanBuilder, product: Product, a: View, b: View, chosen: tuple[AnyTile, int]
) -> list[View]:
    """Emits a tiled matrix product."""
    left = matrix_operand(a, "a", a.strides[2], a.strides[1])
    right = matrix_operand(b, "b", b.strides[1], b.strides[2])
    return launch(build, product, left, right, chosen)


def _bool(value: bool) -> str:
    return "true" if value else "false"
