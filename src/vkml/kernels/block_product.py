"""Launches of products with matrices of few bits: for few rows as they are, for more made floats of."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from vkml.ir import TensorType, dtypes
from vkml.ir.lowering import CannotLower
from vkml.ir.packing import unpacked
from vkml.ir.scalar import arithmetic_type
from vkml.ir.size import Size, typical
from vkml.ir.wording import counted
from vkml.kernels import half_weights, matrix_units
from vkml.kernels.gemm import LAUNCH, Product, aligned, estimate_ordinary, load_vector, matrix_product
from vkml.kernels.matrix_tiles import Tile
from vkml.kernels.matrix_units import (
    Codes,
    Weights,
    choose,
    launch_with,
    leaves_room,
    why_no_units,
    why_not_chosen,
)
from vkml.kernels.packed_codes import (
    WORD_BITS,
    fragment_bytes,
    number_of,
    why_no_codes,
    write_fragments,
)
from vkml.kernels.packed_weights import COLUMN_PADDING, LARGEST_RANGE, SPARE_POWERS, Fragment, padded
from vkml.kernels.pointwise import emit_store, emit_vector_store
from vkml.kernels.views import View
from vkml.kernels.writer import KernelWriter, compute_type, load_expression, multiply_add, template

if TYPE_CHECKING:
    from vkml.lowering.vulkan_builder import VulkanBuilder

Array = np.ndarray[Any, Any]
MOST_DIRECT = 4
"""Rows up to which matrix units gain nothing, where codes in the order of fragments are for them."""
MAX_ROWS = 8
"""Of a workgroup. Products of more rows read the matrix more than once: then it had better be floats,"""
MOST_FLOAT_BYTES = 1 << 28
"""unless there were too many."""
THREADS = 256
FEWEST_LANES = 8
SOME_LANES = 16
"""For which fewer words at a time are taken: 8 rows of 8192² with 4 bits take 76 µs so, not 93."""
MOST_LANES = 64
"""That share a column."""
MOST_OWN = 4
"""Columns of a thread."""
DIRECT = 7e6
"""Products of numbers that the kernel of few rows does in a microsecond, of more than four rows (H200)."""
MOST_CODED = 128
"""Rows of products that make numbers of codes where they multiply, once for each tile of rows: of 8192² with
4 bits, 16 rows take 39 µs so and 102 with halves that a launch makes, 128 rows 95 and 130, 512 rows 302 and
238 (H200)."""
CODED_LONGER = 1.8
"""How much longer steps take that make numbers of codes (144 figures of an H200)."""
SEEN = 256
"""Columns whose numbers are looked at, of each step of k."""


def block_product(
    build: VulkanBuilder, a: View, codes: View, scales: View, zeros: View | None, bits: int, block: int
) -> list[View]:
    """Emits the product with the epilogue on offer; operands as for `Lowering.block_matmul`."""
    if bits not in (2, 4, 8) or block * bits % WORD_BITS:
        raise CannotLower(f"weights of {bits} bits in blocks of {block} have no Vulkan kernel")
    given = [codes, scales, *([] if zeros is None else [zeros])]
    if not all(build.is_whole_constant(view) for view in given):
        raise CannotLower("products with computed weights of few bits have no Vulkan kernel")
    rows = a.shape[0]
    columns, inner = scales.shape[0], a.shape[1]
    is_large = a.itemsize * columns * inner > MOST_FLOAT_BYTES
    are_many = isinstance(rows, Size) or rows > MAX_ROWS
    # A matrix of so many floats, or for so few rows, is not made; codes are for rows that are known.
    is_apart = is_large or not are_many
    if (are_many or rows > MOST_DIRECT) and not (is_apart and isinstance(rows, Size)):
        on_units = _by_fragments(build, a, codes, scales, zeros, bits, block, takes_halves=not is_apart)
        if on_units or not is_apart:
            return on_units or _by_floats(build, a, codes, scales, zeros, bits, block)
    together = MAX_ROWS if isinstance(rows, Size) else max(1, min(rows, MAX_ROWS))
    words, lanes = _shares(build, codes, together, bits, block)
    vectors = -(-inner * bits // (WORD_BITS * words))
    count = min(THREADS, build.target.max_invocations) // lanes
    own = _columns_of_thread(build, together, columns, count)
    accumulator = compute_type(arithmetic_type(a.dtype))
    epilogue, outputs = build.take_epilogue(build.result())
    writer = build.writer()
    writer.constant(columns, "N")
    writer.constant(inner, "K")
    writer.constant(rows, "ROWS")
    writer.word("vectors", vectors)
    _write_matrix(writer, codes, scales, _zero_words(build, zeros, bits), bits, block, accumulator, words)
    numbers = (("M", together), ("LANES", lanes), ("COLUMNS", count), ("OWN", own), ("WORDS", words))
    writer.text(
        "\n".join(
            [
                multiply_add(arithmetic_type(a.dtype)),
                *(f"static const int {name} = {value};" for name, value in numbers),
                "vector<Accumulator, 4> load_a(int m, int k)",
                "{",
                *(f"    {line}" for line in _four_of(writer, a)),
                "}",
            ]
        )
    )
    emit_store(writer, (rows, columns), outputs, epilogue, accumulator)
    writer.text(template("block_product"))
    across, down = writer.grid(-(-columns // (count * own)), build.target.max_groups)
    build.emit(
        writer.finish(
            "block_product",
            (across, down, -(-rows // together)),
            variant=f"{bits} bits in blocks of {block}, {lanes} lanes, {counted(own, 'column')} a thread",
            reason=f"M {rows}, N {columns}, K {inner}",
        )
    )
    return outputs


def _by_fragments(
    build: VulkanBuilder,
    a: View,
    codes: View,
    scales: View,
    zeros: View | None,
    bits: int,
    block: int,
    *,
    takes_halves: bool,
) -> list[View]:
    """The product on matrix units, of codes in the order of fragments or halves that are made for it, scaled
    by powers of two a column as constant weights are; no results where it is none for them."""
    (columns, _), inner = scales.shape, a.shape[1]
    target, rows = build.target, replace(a, shape=(1, *a.shape), strides=(0, *a.strides))
    fragment = target.fragment
    is_packed = zeros is None or zeros.dtype == dtypes.UINT8
    is_forced = any(module.forced is not None for module in (matrix_units, half_weights))
    if fragment is None or why_no_units(target, is_forced=is_forced) or not is_packed:
        return []
    if a.strides[1] != 1 or a.is_reversed:
        return []
    right = View(codes.buffer, a.dtype, (1, inner, columns), (0, 1, inner), 0)
    product = matrix_product(rows, right, build.result())
    otherwise = None if takes_halves else LAUNCH + typical(product.m) * columns * inner / DIRECT
    has_few_rows = not takes_halves or typical(product.m) <= MOST_CODED
    has_codes = a.dtype in (dtypes.FLOAT16, dtypes.FLOAT32) and has_few_rows
    has_codes = has_codes and not why_no_codes(target, bits, block)
    if a.dtype == dtypes.FLOAT16 and has_codes:
        return _by_codes_of_halves(build, product, rows, right, codes, scales, zeros, bits, block, otherwise)
    if a.dtype != dtypes.FLOAT32:
        return []
    suits = partial(_takes_codes, inner=inner)
    if has_codes:
        as_codes = choose(target, fragment, product, suits, slower=CODED_LONGER)
        has_codes = not why_not_chosen(target, product, as_codes, ordinary=otherwise)
    if not (has_codes or takes_halves):
        return []
    least = _least_power(build, codes, scales, zeros, bits, block, inner)
    if least is None:
        return []
    has_passes = a.buffer.products > 1 or not leaves_room(least)
    passes = (True,) if has_passes else ()
    names = f"{bits} bits"
    exponents = build.prepared(scales, f"exponents of {names}", partial(_exponents, bits=bits), dtypes.INT32)
    if has_codes:
        as_codes = choose(target, fragment, product, suits, passes, slower=CODED_LONGER)
        if as_codes is not None:
            codes_ = _codes(build, scales, zeros, bits, block, inner)
            packed = build.packed_codes(codes, inner, bits, fragment)
            weights = Weights(exponents, packed, None if as_codes.has_pass else least, codes_)
            return launch_with(build, product, rows, weights, as_codes)
    if not takes_halves:
        return []
    choice = choose(target, fragment, product, passes=passes)
    if why_not_chosen(target, product, choice):
        return []
    assert choice is not None
    writer = build.writer()
    scaled = build.prepared(scales, f"scaled for {names}", partial(_scaled, bits=bits))
    _write_matrix(writer, codes, scaled, _zero_words(build, zeros, bits), bits, block, "float")
    fragments = _emit_fragments(build, writer, inner, columns, fragment)
    weights = Weights(exponents, fragments, None if choice.has_pass else least)
    return launch_with(build, product, rows, weights, choice)


def _by_codes_of_halves(
    build: VulkanBuilder,
    product: Product,
    rows: View,
    right: View,
    codes: View,
    scales: View,
    zeros: View | None,
    bits: int,
    block: int,
    otherwise: float | None,
) -> list[View]:
    """The product of rows of float16: numbers are rounded to that, as the operator says.

    Nothing where it takes no less than `otherwise` (microseconds; None: than ordinary arithmetic).
    """
    target, fragment, inner = build.target, build.target.fragment, rows.shape[2]
    assert fragment is not None
    found = half_weights.choices(target, product, rows, right, CODED_LONGER)
    found = [choice for choice in found if _takes_codes(choice.tile, inner)]
    choice = min(found, key=lambda each: each.time, default=None)
    otherwise = estimate_ordinary(target, product) if otherwise is None else otherwise
    if choice is None or (half_weights.forced is None and choice.time >= otherwise):
        return []
    packed = build.packed_codes(codes, inner, bits, fragment)
    given = _codes(build, scales, zeros, bits, block, inner, is_scaled=False)
    return half_weights.launch_with(build, product, rows, right, packed, choice, given)


def _takes_codes(tile: Tile, inner: int) -> bool:
    """Whether a tile's subgroups have whole groups of packed columns, and its steps are whole."""
    return tile.sub_n % COLUMN_PADDING == 0 and inner % tile.step_k == 0


def _codes(
    build: VulkanBuilder,
    scales: View,
    zeros: View | None,
    bits: int,
    block: int,
    inner: int,
    *,
    is_scaled: bool = True,
) -> Codes:
    """What makes numbers of codes, times the powers of two of their columns if there are such."""
    fragment = build.target.fragment
    assert fragment is not None
    layouts = build.target.fragment_layouts(fragment)
    assert layouts is not None and layouts.b is not None
    if is_scaled:
        scaled = partial(_scaled_by_blocks, bits=bits)
        scales = build.prepared(scales, f"scaled for {bits} bits, by blocks", scaled, dtypes.FLOAT32)
    else:
        scales = build.prepared(scales, "by blocks", _by_blocks, dtypes.FLOAT32)
    if zeros is not None:
        blocks = -(-inner // block)
        change = partial(_zeros_by_blocks, bits=bits, blocks=blocks)
        zeros = build.prepared(zeros, f"of {bits} bits, {blocks} blocks", change, dtypes.FLOAT32)
    return Codes(bits, block, scales, zeros, layouts.b)


def _by_blocks(scales: Array) -> Array:
    return np.ascontiguousarray(scales.T, np.float32)


def _scaled_by_blocks(scales: Array, bits: int) -> Array:
    return _by_blocks(_scaled(scales, bits))


def _zeros_by_blocks(zeros: Array, bits: int, blocks: int) -> Array:
    return _by_blocks(unpacked(zeros, bits, blocks))


def _emit_fragments(
    build: VulkanBuilder, writer: KernelWriter, k: int, columns: int, fragment: Fragment
) -> View:
    """Emits the launch that makes halves in the order of fragments.

    Returns:
        These, and room behind them that kernels may read.
    """
    halves = fragment_bytes(k, columns, 16)
    packed = build.scratch(TensorType(dtypes.UINT32, (halves // 4,)))
    pointer = writer.write(packed, width=4)
    build.emit(write_fragments(writer, k, columns, fragment, pointer, "unpack_fragments"))
    return packed


def _exponents(scales: Array, bits: int) -> Array:
    """Of the columns' powers of two, which bring the largest magnitude that each may have, less than 2^bits
    times its largest scale, below 2^15."""
    largest = np.frexp(np.abs(scales.astype(np.float32)).max(axis=1))[1] + bits
    found = np.zeros(padded(len(scales), COLUMN_PADDING), np.int32)
    found[: len(scales)] = np.clip(15 - largest, -126, 126)
    return found


def _scaled(scales: Array, bits: int) -> Array:
    """Scales times their columns' powers of two, which is exact; those that fp16 is too short for become the
    least that it has, lest numbers that are not 0 become so."""
    exponents = _exponents(scales, bits)[: len(scales), None]
    scaled = np.ldexp(scales.astype(np.float32), exponents)
    least = np.copysign(np.finfo(np.float16).smallest_subnormal, scales)
    return np.where((scales != 0) & (np.abs(scaled) < np.abs(least)), least, scaled).astype(np.float32)


def _least_power(
    build: VulkanBuilder, codes: View, scales: View, zeros: View | None, bits: int, block: int, inner: int
) -> int | None:
    """As `packed_weights.least_power`, from bounds: of each step of k, some column has a number that lies so
    far from its zero point, times one of the least scales."""
    if zeros is None:
        reach = build.ask(codes, partial(_reach, bits=bits, inner=inner))
    else:
        array, points = build.contents(codes), build.contents(zeros)
        assert array is not None and points is not None
        reach = _reach_from(array.reshape(codes.shape), points.reshape(zeros.shape), bits, block, inner)
    spread = build.ask(scales, _spread)
    assert isinstance(reach, int) and isinstance(spread, float)
    found = spread * 2**bits / reach if reach else math.inf
    return math.ceil(math.log2(found)) - SPARE_POWERS if found <= LARGEST_RANGE else None


def _spread(scales: View) -> float:
    """The largest scale over the least that `_reach` looks at; infinite where one is 0 or no number."""
    constant = scales.buffer.constant
    assert constant is not None
    array = np.abs(constant.array.reshape(scales.shape).astype(np.float32))
    low, high = float(array[:SEEN].min()), float(array.max())
    return high / low if np.isfinite(high) and low > 0 else math.inf


def _reach(codes: View, bits: int, inner: int) -> int:
    constant = codes.buffer.constant
    assert constant is not None
    return _reach_from(constant.array.reshape(codes.shape), None, bits, inner, inner)


def _reach_from(codes: Array, zeros: Array | None, bits: int, block: int, inner: int) -> int:
    """How far from their zero points numbers are: the least over k of the most of some columns."""
    numbers = unpacked(codes[:SEEN], bits, inner).astype(np.int16)
    if zeros is None:
        middles = np.full((1, 1), 1 << bits - 1, np.int16)
    else:
        points = unpacked(zeros[:SEEN], bits, -(-inner // block)).astype(np.int16)
        middles = np.repeat(points, block, 1)[:, :inner]
    return int(np.abs(numbers - middles).max(axis=0).min())


def _by_floats(
    build: VulkanBuilder, a: View, codes: View, scales: View, zeros: View | None, bits: int, block: int
) -> list[View]:
    """The product with a matrix of floats that is made for it."""
    columns, inner = scales.shape[0], a.shape[1]
    words = -(-inner * bits // WORD_BITS)
    matrix = build.scratch(TensorType(a.dtype, (columns, inner)))
    accumulator = compute_type(arithmetic_type(a.dtype))
    writer = build.writer()
    for name, value in (("N", columns), ("K", inner), ("WORDS", words)):
        writer.constant(value, name)
    _write_matrix(writer, codes, scales, _zero_words(build, zeros, bits), bits, block, accumulator)
    stores_four = inner % 4 == 0
    emit = emit_vector_store if stores_four else emit_store
    emit(writer, (columns, inner), [matrix], None, accumulator)
    writer.text(f"#define STORES_FOUR {int(stores_four)}\n{template('unpack_blocks')}")
    across, down = writer.grid(-(-columns * words // 128), build.target.max_groups)
    build.emit(writer.finish("unpack_blocks", (across, down, 1), variant=f"{bits} bits in blocks of {block}"))
    right = matrix.transpose((1, 0)).reshape((1, inner, columns))
    assert right is not None
    return build.matmul(build.reshape(a, (1, *a.shape)), right)


def _shares(build: VulkanBuilder, codes: View, rows: int, bits: int, block: int) -> tuple[int, int]:
    """How many words of a column a thread reads at a time, and how many threads share one.

    Words are whole blocks, or a part of one; threads are as many as have words and find room for what of the
    rows they meet.
    """
    length = codes.shape[1]
    start = codes.offset * codes.itemsize
    # Software drivers take minutes to compile what is unrolled.
    for words in (4, 2, 1) if build.target.processors > 1 else (1,):
        numbers = words * WORD_BITS // bits
        are_whole = start % (4 * words) == 0 == length % (4 * words)
        if words > 1 and not (are_whole and 0 in (numbers % block, block % numbers)):
            continue
        room = rows * (numbers // 4 | 1) * 16
        vectors = -(-length // (4 * words))
        lanes = FEWEST_LANES
        while (
            lanes < MOST_LANES and 2 * lanes <= vectors and 2 * lanes * room <= build.target.shared_bytes // 2
        ):
            lanes *= 2
        if words == 1:
            return words, lanes
        if lanes * room <= build.target.shared_bytes and (lanes >= SOME_LANES or 2 * lanes > vectors):
            return words, lanes
    raise AssertionError("a word at a time always finds room")


def _columns_of_thread(build: VulkanBuilder, rows: int, columns: int, across: int) -> int:
    """How many columns share what a thread reads of A: as leave two workgroups for each processor."""
    if build.target.processors == 1:
        return 1  # software drivers take minutes to compile what is unrolled
    own = MOST_OWN
    # All sums of a workgroup are in shared memory.
    while own > 1 and 4 * THREADS * own * rows > build.target.shared_bytes:
        own //= 2
    while own > 1 and -(-columns // (across * own)) < 2 * build.target.processors:
        own //= 2
    return own


def _four_of(writer: KernelWriter, a: View) -> list[str]:
    """Statements that return four neighbours along k of a row, zeros in the place of those from K on."""
    inner = a.shape[1]
    if a.strides[1] == 1 and aligned(a, inner, a.strides[:1]):
        at = writer.offset(("m",), (a.strides[0] // 4,))
        read = load_vector(writer.read(a, width=4), f"{at} + k / 4", a, 4)
        return ["if (k >= K) return vector<Accumulator, 4>(Accumulator(0));", f"return {read};"]
    read = load_expression(writer.read(a), writer.offset(("m", "at"), a.strides), a.dtype)
    return [
        "vector<Accumulator, 4> found = vector<Accumulator, 4>(Accumulator(0));",
        "[ForceUnroll] for (int i = 0; i < 4; ++i)",
        "{",
        "    int at = k + i;",
        f"    if (at < K) found[i] = {read};",
        "}",
        "return found;",
    ]


def _zero_words(build: VulkanBuilder, zeros: View | None, bits: int) -> View | None:
    """Packed zero points as whole words a column, others as they are."""
    if zeros is None or zeros.dtype != dtypes.UINT8:
        return zeros

    def change(array: Array) -> Array:
        return np.pad(array, ((0, 0), (0, -array.shape[1] % 4))).view("<u4")

    return build.prepared(zeros, f"words of zero points of {bits} bits", change, dtypes.UINT32)


def _write_matrix(
    writer: KernelWriter,
    codes: View,
    scales: View,
    zeros: View | None,
    bits: int,
    block: int,
    accumulator: str,
    words: int = 1,
) -> None:
    """Adds ``load_word`` or, of vectors of several words, ``load_words``, ``load_scale``, ``load_zero`` and
    ``number_of`` with what they need."""
    # Bytes as words: no device lacks those.
    step = codes.shape[1] // 4
    view = replace(codes, dtype=dtypes.UINT32, shape=(codes.shape[0], step), strides=(step, 1))
    pointer = writer.read(view, width=words)
    scale = load_expression(writer.read(scales), writer.offset(("n", "block"), scales.strides), scales.dtype)
    is_whole = zeros is None or zeros.dtype == dtypes.UINT32
    if zeros is None:
        zero = str(1 << bits - 1)
    elif zeros.dtype == dtypes.UINT32:
        lanes = WORD_BITS // bits
        packed = f"{writer.read(zeros)}[{writer.offset(('n', f'block / {lanes}'), zeros.strides)}]"
        zero = f"({packed} >> uint(block % {lanes} * {bits})) & {(1 << bits) - 1}u"
    else:
        zero = load_expression(writer.read(zeros), writer.offset(("n", "block"), zeros.strides), zeros.dtype)
    at = writer.offset(("n", "at"), (step // words, 1))
    if words > 1:
        load = f"vector<uint, {words}> load_words(int n, int at)"
        load += f" {{ return loadAligned<{4 * words}>({pointer} + ({at})); }}"
    else:
        load = f"uint load_word(int n, int at) {{ return {pointer}[{at}]; }}"
        load += "\nvector<uint, 1> load_words(int n, int at) { return vector<uint, 1>(load_word(n, at)); }"
    writer.text(
        "\n".join(
            [
                f"typealias Accumulator = {accumulator};",
                f"static const int BITS = {bits};",
                f"static const int BLOCK = {block};",
                load,
                f"Accumulator load_scale(int n, int block) {{ return Accumulator({scale}); }}",
                f"Accumulator load_zero(int n, int block) {{ return Accumulator({zero}); }}",
                *number_of(accumulator, is_whole=is_whole),
            ]
        )
    )
