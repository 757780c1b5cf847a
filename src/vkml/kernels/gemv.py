"""Launches of products with few rows: how threads share the matrix."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from vkml.dataclasses import dataclass
from vkml.ir.lowering import CannotLower
from vkml.ir.size import Size, typical
from vkml.ir.wording import counted
from vkml.kernels import range_sums
from vkml.kernels.candidates import Candidate
from vkml.kernels.gemm import Product, aligned, load_vector
from vkml.kernels.pointwise import emit_store
from vkml.kernels.results import add_partials, emit_ranges
from vkml.kernels.views import View
from vkml.kernels.writer import compute_type, load_expression, multiply_add, template

if TYPE_CHECKING:
    from vkml.lowering.target import Target
    from vkml.lowering.vulkan_builder import VulkanBuilder

MAX_ROWS = 4
"""Products of more rows are tiled: their matrix is no longer read once for each result."""
LEAST_ELEMENTS = 1024
"""Of the matrix: a product of fewer is nothing but a launch."""
THREADS = 256
"""Of a workgroup whose columns lie along k, whose rows are normalised on the way, whose matrix is small;"""
MANY_THREADS = 1024
"""others may have these."""
SMALL = 1 << 18
"""Bytes of a matrix that is read in no time: smaller workgroups begin sooner, and may be phases of one."""
LINES = 512, 128, 64
"""Bytes of a row of the matrix that a workgroup may read: whole lines, or half of one,"""
HALVED = 1 << 24
"""which memory is too slow for where a matrix has more bytes than this;"""
FAR = 1 << 18
"""the most where the rows of a matrix are so many bytes apart, and each is on a page of its own."""
LEAST_LANES = 8
"""Threads that share the range of k of a vector of columns."""
UNROLL = 4, 8
"""Vectors of the matrix that a thread waits for together; the latter where it has twice as many."""

RESIDENT = 1024
"""Threads of a multiprocessor that have 64 registers each."""
SHARE = 3.25e4
"""Bytes a microsecond that memory brings a multiprocessor where all of them read (H200: 4.3 TB/s),"""
ALONE = 5.2e4
"""and where few do,"""
WAITING = 1.2, 1.5
"""as far as enough are under way: microseconds until loads of 16 bytes have come, and shorter ones."""
BENT = 2.5
"""How sharply that and what memory brings bound one another: 64 KiB under way bring 0.9 of `SHARE`."""
ISSUED = 1.05e5
"""Instructions of a thread that a multiprocessor does in one, while it waits for memory."""
WAVE = 1.0
"""Microseconds in which workgroups that have ended are followed by others."""


@dataclass(frozen=True)
class Shape:
    """How the threads of a workgroup share its part of the matrix."""

    threads: int
    lanes: int
    """Threads that share the range of k of a vector of columns."""
    unroll: int
    """Vectors of the matrix that a thread waits for together."""
    splits: int
    """Ranges of K."""

    def label(self) -> str:
        return (
            f"gemv, {self.lanes} of {self.threads} threads along k, {self.unroll} at once, "
            f"{counted(self.splits, 'K range')}"
        )


forced: Shape | None = None
"""For tests and tuning runs: how all products of few rows are shared."""


def fits(a: View, b: View) -> bool:
    """Whether the product of (batch, m, k) and (batch, k, n) has few rows and a matrix worth vectors."""
    if isinstance(a.shape[1], Size) or a.shape[1] > MAX_ROWS:
        return False
    return typical(b.shape[1] * b.shape[2]) >= LEAST_ELEMENTS and (b.strides[2] == 1 or b.strides[1] == 1)


def candidates(build: VulkanBuilder, product: Product, a: View, b: View) -> Iterator[Candidate]:
    """How threads may share the matrix: the rule's choice first, then others."""
    along_n = b.strides[2] == 1 and typical(product.n) >= 8
    if not along_n and b.strides[1] != 1:
        raise CannotLower("the matrix is contiguous along neither index")
    if along_n:
        is_wide = aligned(b, product.n, (b.strides[0], b.strides[1]))
    else:
        is_wide = aligned(b, product.k, (b.strides[0], b.strides[2]))
    width = 4 if is_wide else 1
    if forced is not None:
        shapes = [forced]
    elif along_n:
        shapes = _along_n(build, product, b, width)
    else:
        shapes = _along_k(build, product, width)
    for shape in shapes:
        emit = functools.partial(_emit, build, product, a, b, along_n, width, shape)
        yield Candidate(shape.label(), None, emit)


def _emit(
    build: VulkanBuilder,
    product: Product,
    a: View,
    b: View,
    along_n: bool,
    width: int,
    shape: Shape,
) -> list[View]:
    """Emits the product with the epilogue on offer; returns the views of its results."""
    lanes, splits, columns = shape.lanes, shape.splits, shape.threads // shape.lanes
    own = width if along_n else 1
    wide_groups = -(-product.n // (columns * own))
    step = lanes if along_n else lanes * width
    k_range = -(-product.k // (splits * step)) * step
    splits = splits if isinstance(product.k, Size) else -(-product.k // k_range)
    prologue = build.stand_ins.take_prologue(a)
    if prologue is not None:
        room = 4 * lanes * columns * own * product.m
        why = prologue.refusal(
            build.target, a, lanes * columns, room, typical(wide_groups * product.batch) * splits
        )
        if why:
            raise CannotLower(f"a product that would normalise its rows: {why}")
    epilogue, outputs = build.take_epilogue(product.result)
    accumulator = compute_type(product.accumulator)
    writer = build.writer()
    writer.constant(product.n, "N")
    writer.constant(splits, "SPLITS")
    writer.word("steps", product.k)
    writer.word("steps_a_split", k_range)
    text = [f"typealias Accumulator = {accumulator};", multiply_add(product.accumulator)]
    parts = _parts(lanes, lanes // (own * product.m))
    numbers = (
        ("M", product.m),
        ("WIDTH", width),
        ("LANES", lanes),
        ("COLUMNS", columns),
        ("PARTS", parts),
    )
    text += [f"static const int {name} = {value};" for name, value in numbers]
    # Software drivers take minutes to compile what is unrolled.
    text.append(f"#define UNROLL {1 if build.target.processors == 1 else shape.unroll}")
    text.append(f"static const bool B_ALONG_N = {'true' if along_n else 'false'};")
    right = writer.read(b, width=width)
    if along_n:
        at_b = writer.offset(("batch", "k"), (b.strides[0] // width, b.strides[1] // width))
        at_b += f" + n / {width}"
    else:
        at_b = writer.offset(("batch", "n"), (b.strides[0] // width, b.strides[2] // width))
        at_b += f" + k / {width}"
    text += [
        f"vector<Accumulator, {width}> load_b(int batch, int k, int n)",
        f"{{ int at = {at_b}; return {load_vector(right, 'at', b, width)}; }}",
    ]
    writer.text("\n".join(text))
    if prologue is not None:
        prologue.declare(writer, build.target, a, lanes * columns)
    else:
        at_a = writer.offset(("batch", "m", "k"), a.strides)
        element = load_expression(writer.read(a), at_a, a.dtype)
        writer.text(
            f"static const int THREADS = {lanes * columns};\n"
            f"Accumulator load_a(int batch, int m, int k) {{ return {element}; }}\n"
            "void prepare_rows(int thread) {}"
        )
    partials = None
    if splits > 1:
        tile = product.m, columns * own
        word = "shared_sums[0]", "Accumulator"
        partials = emit_ranges(build, writer, product, splits, tile, lanes * columns, word, outputs, epilogue)
    else:
        emit_store(writer, product.space, outputs, epilogue, accumulator)
        writer.text(
            "void finish(int batch, int split, int m, int n, Accumulator x)\n"
            f"{{ store({product.coordinates}, x); }}"
        )
    across, rows = writer.grid(wide_groups, build.target.max_groups)
    writer.text(template("gemv"))
    where = "n" if along_n else "k"
    build.emit(
        writer.finish(
            "gemv",
            (across, rows, product.batch * splits),
            variant=f"{width} wide along {where}, {lanes} lanes, {columns} columns, "
            f"{shape.unroll} at once, {counted(splits, 'K range')}",
            reason=f"batch {product.batch}, M {product.m}, N {product.n}, K {product.k}"
            + (", rows normalised on the way" if prologue is not None else ""),
            subgroup_size=None if prologue is None else build.target.subgroup_size,
        )
    )
    if partials is not None:
        add_partials(build, product, partials, splits, outputs, epilogue)
    return outputs


def _along_k(build: VulkanBuilder, product: Product, width: int) -> list[Shape]:
    """Of matrices whose columns are whole in memory: neighbouring threads share one."""
    k = typical(product.k)
    lanes = LEAST_LANES
    while lanes < 64 and lanes * 16 < k:
        lanes *= 2
    found = []
    for each in (lanes, 2 * lanes, lanes // 2):
        if LEAST_LANES <= each <= 64:
            threads = min(THREADS, build.target.max_invocations)
            groups = typical(-(-product.n // (threads // each)) * product.batch)
            # About eight workgroups of 256 a processor keep memory busy.
            most = 1 if build.target.processors == 1 else build.target.processors * 8 // max(1, groups)
            splits = max(1, min(most, k // (8 * each * width), 64))
            found += [Shape(threads, each, UNROLL[0], count) for count in sorted({splits, 1}, reverse=True)]
    return found


def _along_n(build: VulkanBuilder, product: Product, b: View, width: int) -> list[Shape]:
    """Of matrices whose rows are whole in memory: those of least estimated time first."""
    target, k = build.target, typical(product.k)
    if target.processors == 1:
        return [Shape(min(THREADS, target.max_invocations), LEAST_LANES, UNROLL[0], 1)]
    size = b.itemsize * k * typical(product.n * product.batch)
    is_normalised = build.stand_ins.normalised_rows is not None
    itemsize = product.accumulator.itemsize
    found: dict[Shape, float] = {}
    # Elements of A are loaded for each vector of the matrix, the same ones by a subgroup that has one row.
    is_long = typical(b.strides[1]) * b.itemsize >= FAR or (b.itemsize < 4 and product.m > 2)
    for line in LINES[: 1 if is_long else 3 if size <= HALVED else 2]:
        across = max(1, line // (width * b.itemsize))
        for threads in (THREADS,) if is_normalised or size < SMALL else (THREADS, MANY_THREADS):
            threads = min(threads, target.max_invocations)
            lanes = threads // across
            # Each lane has some steps of k, and there is room for what they have of all columns.
            while lanes > LEAST_LANES and (
                lanes * UNROLL[0] > k or lanes * across * width * product.m * itemsize > target.shared_bytes
            ):
                lanes //= 2
            unroll = UNROLL[k >= 2 * lanes * UNROLL[1] and line < LINES[0]]
            columns = across * width
            groups = typical(-(-product.n // columns) * product.batch)
            places = target.processors * max(1, RESIDENT // (lanes * across))
            counts = {max(1, min(each // groups, k // (lanes * unroll))) for each in (places, places // 2)}
            # Each range's workgroups would normalise all of the rows.
            for splits in sorted({1} if is_normalised else {1, *counts}):
                shape = Shape(lanes * across, lanes, unroll, splits)
                time = _estimate(
                    target, shape, product.m, groups, columns * b.itemsize * k, width, b.itemsize
                )
                if splits > 1:
                    tile = product.m, columns
                    time += range_sums.microseconds(target, product, splits, tile, shape.threads)
                found.setdefault(shape, time)
    return sorted(found, key=lambda shape: found[shape])


def _estimate(
    target: Target, shape: Shape, rows: int, groups: int, bytes_: int, width: int, itemsize: int
) -> float:
    """Microseconds in which the matrix is read, once workgroups have begun.

    Args:
        target: the device.
        shape: of the workgroups.
        rows: of results.
        groups: of columns, whose ranges of k are split.
        bytes_: of the matrix for each of these.
        width: elements of one load,
        itemsize: and bytes of each.
    """
    own, count, load = bytes_ / shape.splits, groups * shape.splits, width * itemsize
    # Products and conversions of a load's elements, loads of the rows' own, and what finds both.
    instructions = width * (rows + (itemsize < 4)) + rows + 4
    resident = max(1, RESIDENT // shape.threads)
    full, rest = divmod(count, target.processors * resident)
    # Of a workgroup, bytes a microsecond that its loads under way could bring.
    asked = shape.threads * shape.unroll * load / WAITING[load < 16]

    def reading(groups: int, beside: float) -> float:
        """Microseconds in which workgroups read what is theirs, so many of them on a multiprocessor."""
        share = math.pow(math.pow(SHARE, -BENT) + math.pow(beside * asked, -BENT), -1 / BENT)
        return groups * own / (share * target.processors)

    time = (full - (rest == 0)) * WAVE + full * reading(target.processors * resident, resident)
    if full > 1:
        time += reading(rest, resident)  # by then they no longer end together
    elif rest:
        beside = math.ceil(rest / target.processors)
        busy = beside * own / load * instructions / ISSUED
        time += max(reading(rest, rest / target.processors), beside * own / min(ALONE, beside * asked), busy)
    return time


def _parts(lanes: int, most: int) -> int:
    """Threads that add up what lanes have for one item: a power of two, as `lanes` is."""
    parts = 1
    while 2 * parts <= min(most, lanes // 2):
        parts *= 2
    return parts
