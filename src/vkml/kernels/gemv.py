"""Launches of products with few rows: choice of lanes and of K ranges."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING

from vkml.ir import TensorType
from vkml.ir.lowering import CannotLower
from vkml.ir.size import Size, typical
from vkml.ir.wording import counted
from vkml.kernels.candidates import Candidate
from vkml.kernels.gemm import Product, aligned, load_vector
from vkml.kernels.pointwise import emit_store
from vkml.kernels.results import add_partials
from vkml.kernels.views import View
from vkml.kernels.writer import compute_type, load_expression, multiply_add, template

if TYPE_CHECKING:
    from vkml.lowering.vulkan_builder import VulkanBuilder

MAX_ROWS = 4
"""Products of more rows are tiled: their matrix is no longer read once for each result."""
LEAST_ELEMENTS = 1024
"""Of the matrix: a product of fewer is nothing but a launch."""
THREADS = 256
LANES_ALONG_N = 8
"""Threads that share the range of k of a vector of columns, at least;"""
MOST_LANES = ((4 << 20, 64), (16 << 20, 32))
"""and at most, for matrices of so many bytes. The fewer columns a workgroup has, the more workgroups there
are, and none needs a second launch; but larger matrices are read in long rows."""
SPLIT_BYTES = 1 << 16
"""Of the matrix for a workgroup, from twice which on ranges of k are worth a second launch: a processor reads
them in the time that this takes."""
UNROLL = 4
"""Vectors of the matrix that a thread waits for together."""


def fits(a: View, b: View) -> bool:
    """Whether the product of (batch, m, k) and (batch, k, n) has few rows and a matrix worth vectors."""
    if isinstance(a.shape[1], Size) or a.shape[1] > MAX_ROWS:
        return False
    return typical(b.shape[1] * b.shape[2]) >= LEAST_ELEMENTS and (b.strides[2] == 1 or b.strides[1] == 1)


def candidates(build: VulkanBuilder, product: Product, a: View, b: View) -> Iterator[Candidate]:
    """Numbers of lanes and K ranges: the rule's first, then those beside it."""
    along_n = b.strides[2] == 1 and typical(product.n) >= 8
    if not along_n and b.strides[1] != 1:
        raise CannotLower("the matrix is contiguous along neither index")
    if along_n:
        is_wide = aligned(b, product.n, (b.strides[0], b.strides[1]))
        lanes = _lanes_along_n(build, product, 4 if is_wide else 1, b.itemsize)
    else:
        is_wide = aligned(b, product.k, (b.strides[0], b.strides[2]))
        lanes = _lanes(typical(product.k))
    width = 4 if is_wide else 1

    def candidate(lanes: int, splits: int) -> Candidate:
        emit = functools.partial(_emit, build, product, a, b, along_n, width, lanes, splits)
        return Candidate(f"gemv, {lanes} lanes, {counted(splits, 'K range')}", None, emit)

    splits = _splits(build, product, b, along_n, width, lanes)
    yield candidate(lanes, splits)
    if splits > 1:
        yield candidate(lanes, 1)
    for other in (2 * lanes, lanes // 2):
        if LANES_ALONG_N <= other <= 64:
            splits = _splits(build, product, b, along_n, width, other)
            for each in sorted({splits, 1}, reverse=True):
                yield candidate(other, each)


def _emit(
    build: VulkanBuilder,
    product: Product,
    a: View,
    b: View,
    along_n: bool,
    width: int,
    lanes: int,
    splits: int,
) -> list[View]:
    """Emits the product with the epilogue on offer; returns the views of its results."""
    columns = _columns(build, lanes)
    own = width if along_n else 1
    wide_groups = -(-product.n // (columns * own))
    step = lanes * width
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
        # Software drivers take minutes to compile what is unrolled.
        ("UNROLL", 1 if build.target.processors == 1 else UNROLL),
        ("PARTS", parts),
    )
    text += [f"static const int {name} = {value};" for name, value in numbers]
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
        shape = (splits, product.batch, product.m, product.n)
        partials = build.scratch(TensorType(product.accumulator, shape))
        pointer = writer.write(partials)
        batch = writer.constant(product.batch, "BATCH")
        body = f"{pointer}[((split * {batch} + batch) * M + m) * N + n] = x;"
    else:
        emit_store(writer, product.space, outputs, epilogue, accumulator)
        body = f"store({product.coordinates}, x);"
    writer.text(f"void finish(int batch, int split, int m, int n, Accumulator x)\n{{\n    {body}\n}}")
    across, rows = writer.grid(wide_groups, build.target.max_groups)
    writer.text(template("gemv"))
    where = "n" if along_n else "k"
    build.emit(
        writer.finish(
            "gemv",
            (across, rows, product.batch * splits),
            variant=f"{width} wide along {where}, {lanes} lanes, {columns} columns, "
            f"{counted(splits, 'K range')}",
            reason=f"batch {product.batch}, M {product.m}, N {product.n}, K {product.k}"
            + (", rows normalised on the way" if prologue is not None else ""),
            subgroup_size=None if prologue is None else build.target.subgroup_size,
        )
    )
    if partials is not None:
        add_partials(build, product, partials, splits, outputs, epilogue)
    return outputs


def _lanes(k: int) -> int:
    lanes = 8
    while lanes < 64 and lanes * 16 < k:
        lanes *= 2
    return lanes


def _lanes_along_n(build: VulkanBuilder, product: Product, width: int, itemsize: int) -> int:
    """As few as give every processor two workgroups, each of them with some vectors to read."""
    lanes, k = LANES_ALONG_N, typical(product.k)
    size = itemsize * k * typical(product.n * product.batch)
    most = next((most for limit, most in MOST_LANES if size <= limit), lanes)
    while lanes < most and k >= 8 * lanes:
        groups = -(-product.n // (THREADS // lanes * width)) * product.batch
        if typical(groups) >= 2 * build.target.processors:
            break
        lanes *= 2
    return lanes


def _parts(lanes: int, most: int) -> int:
    """Threads that add up what lanes have for one item: a power of two, as `lanes` is."""
    parts = 1
    while 2 * parts <= min(most, lanes // 2):
        parts *= 2
    return parts


def _columns(build: VulkanBuilder, lanes: int) -> int:
    """Columns, or vectors of them, that a workgroup has at a time."""
    columns = THREADS // lanes
    while lanes * columns > build.target.max_invocations:
        columns //= 2
    return columns


def _splits(build: VulkanBuilder, product: Product, b: View, along_n: bool, width: int, lanes: int) -> int:
    """Ranges of k: about eight workgroups of 256 a processor keep memory busy."""
    if build.target.processors == 1:
        return 1
    columns = _columns(build, lanes)
    own = width if along_n else 1
    groups, k = typical(-(-product.n // (columns * own)) * product.batch), typical(product.k)
    most = k // (8 * lanes * (1 if along_n else width))
    if along_n:
        most = min(most, k * columns * own * b.itemsize // SPLIT_BYTES)
    return max(1, min(build.target.processors * 8 // max(1, groups), most, 64))
