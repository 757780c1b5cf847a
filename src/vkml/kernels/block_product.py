"""Launches of products with matrices of few bits: for few rows as they are, for more made floats of."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from vkml.ir import TensorType, dtypes
from vkml.ir.lowering import CannotLower
from vkml.ir.scalar import arithmetic_type
from vkml.ir.size import Size
from vkml.kernels.pointwise import emit_store
from vkml.kernels.views import View
from vkml.kernels.writer import KernelWriter, compute_type, load_expression, multiply_add, template

if TYPE_CHECKING:
    from vkml.lowering.vulkan_builder import VulkanBuilder

Array = np.ndarray[Any, Any]
MAX_ROWS = 8
"""Products of more rows read the matrix more than once: then it had better be floats."""
THREADS = 256
MOST_LANES = 64
"""That share a column."""
WORD_BITS = 32


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
    if isinstance(rows, Size) or rows > MAX_ROWS:
        return _by_floats(build, a, codes, scales, zeros, bits, block)
    columns, inner = scales.shape[0], a.shape[1]
    width = _width(codes.shape[1] * 8 // WORD_BITS, block * bits // WORD_BITS)
    if build.target.processors == 1:
        width = 1  # software drivers take minutes to compile what is unrolled
    per_vector = width * WORD_BITS // bits
    vectors = -(-inner // per_vector)
    lanes = 8
    while lanes < MOST_LANES and 2 * lanes <= vectors:
        lanes *= 2
    count = min(THREADS, build.target.max_invocations) // lanes
    accumulator = compute_type(arithmetic_type(a.dtype))
    epilogue, outputs = build.take_epilogue(build.result())
    writer = build.writer()
    writer.constant(columns, "N")
    writer.constant(inner, "K")
    writer.word("vectors", vectors)
    _write_matrix(writer, codes, scales, _zero_words(build, zeros, bits), bits, block, width, accumulator)
    numbers = (("M", rows), ("LANES", lanes), ("COLUMNS", count))
    left = writer.read(a)
    at = writer.offset(("m", "k"), a.strides)
    writer.text(
        "\n".join(
            [
                multiply_add(arithmetic_type(a.dtype)),
                *(f"static const int {name} = {value};" for name, value in numbers),
                f"static const bool IS_WHOLE = {'false' if inner % per_vector else 'true'};",
                f"Accumulator load_a(int m, int k) {{ return {load_expression(left, at, a.dtype)}; }}",
            ]
        )
    )
    emit_store(writer, (rows, columns), outputs, epilogue, accumulator)
    writer.text(template("block_product"))
    across, down = writer.grid(-(-columns // count), build.target.max_groups)
    build.emit(
        writer.finish(
            "block_product",
            (across, down, 1),
            variant=f"{bits} bits in blocks of {block}, {width} words, {lanes} lanes",
            reason=f"M {rows}, N {columns}, K {inner}",
        )
    )
    return outputs


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
    _write_matrix(writer, codes, scales, _zero_words(build, zeros, bits), bits, block, 1, accumulator)
    emit_store(writer, (columns, inner), [matrix], None, accumulator)
    writer.text(template("unpack_blocks"))
    across, down = writer.grid(-(-columns * words // 128), build.target.max_groups)
    build.emit(writer.finish("unpack_blocks", (across, down, 1), variant=f"{bits} bits in blocks of {block}"))
    right = matrix.transpose((1, 0)).reshape((1, inner, columns))
    assert right is not None
    return build.matmul(build.reshape(a, (1, *a.shape)), right)


def _width(words: int, of_block: int) -> int:
    """Words that are read as one vector: of one block, and aligned in every column."""
    return next(width for width in (4, 2, 1) if words % width == 0 and of_block % width == 0)


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
    width: int,
    accumulator: str,
) -> None:
    """Adds ``load_words``, ``load_scale`` and ``load_zero`` with what they need."""
    # Bytes as words: no device lacks those.
    words = replace(
        codes,
        dtype=dtypes.UINT32,
        shape=(codes.shape[0], codes.shape[1] // 4),
        strides=(codes.shape[1] // 4, 1),
    )
    pointer = writer.read(words, width=width)
    at = writer.offset(("n", "at"), (words.shape[1] // width, 1))
    loaded = f"{pointer}[{at}]" if width == 1 else f"loadAligned<{4 * width}>({pointer} + {at})"
    scale = load_expression(writer.read(scales), writer.offset(("n", "block"), scales.strides), scales.dtype)
    if zeros is None:
        zero = str(1 << bits - 1)
    elif zeros.dtype == dtypes.UINT32:
        lanes = WORD_BITS // bits
        word = f"{writer.read(zeros)}[{writer.offset(('n', f'block / {lanes}'), zeros.strides)}]"
        zero = f"({word} >> uint(block % {lanes} * {bits})) & {(1 << bits) - 1}u"
    else:
        zero = load_expression(writer.read(zeros), writer.offset(("n", "block"), zeros.strides), zeros.dtype)
    writer.text(
        "\n".join(
            [
                f"typealias Accumulator = {accumulator};",
                f"static const int WIDTH = {width};",
                f"static const int BITS = {bits};",
                f"static const int BLOCK = {block};",
                f"vector<uint, {width}> load_words(int n, int at)",
                f"{{ return vector<uint, {width}>({loaded}); }}",
                f"Accumulator load_scale(int n, int block) {{ return Accumulator({scale}); }}",
                f"Accumulator load_zero(int n, int block) {{ return Accumulator({zero}); }}",
            ]
        )
    )
