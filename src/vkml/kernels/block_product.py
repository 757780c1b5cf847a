"""Launches of products with matrices of few bits: for few rows as they are, for more made floats of."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from vkml.ir import TensorType, dtypes
from vkml.ir.lowering import CannotLower
from vkml.ir.scalar import arithmetic_type
from vkml.ir.size import Size
from vkml.ir.wording import counted
from vkml.kernels.gemm import aligned, load_vector
from vkml.kernels.pointwise import emit_store
from vkml.kernels.views import View
from vkml.kernels.writer import KernelWriter, compute_type, load_expression, multiply_add, template

if TYPE_CHECKING:
    from vkml.lowering.vulkan_builder import VulkanBuilder

Array = np.ndarray[Any, Any]
MAX_ROWS = 8
"""Of a workgroup. Products of more rows read the matrix more than once: then it had better be floats,"""
MOST_FLOAT_BYTES = 1 << 28
"""unless there were too many."""
THREADS = 256
MOST_LANES = 64
"""That share a column."""
MOST_OWN = 4
"""Columns of a thread."""
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
    columns, inner = scales.shape[0], a.shape[1]
    is_large = a.itemsize * columns * inner > MOST_FLOAT_BYTES
    if (isinstance(rows, Size) or rows > MAX_ROWS) and not is_large:
        return _by_floats(build, a, codes, scales, zeros, bits, block)
    together = MAX_ROWS if isinstance(rows, Size) else max(1, min(rows, MAX_ROWS))
    words = -(-inner * bits // WORD_BITS)
    lanes = 8
    while lanes < MOST_LANES and 2 * lanes <= words:
        lanes *= 2
    count = min(THREADS, build.target.max_invocations) // lanes
    own = _columns_of_thread(build, together, columns, count)
    accumulator = compute_type(arithmetic_type(a.dtype))
    epilogue, outputs = build.take_epilogue(build.result())
    writer = build.writer()
    writer.constant(columns, "N")
    writer.constant(inner, "K")
    writer.constant(rows, "ROWS")
    writer.word("words", words)
    _write_matrix(writer, codes, scales, _zero_words(build, zeros, bits), bits, block, accumulator)
    numbers = (("M", together), ("LANES", lanes), ("COLUMNS", count), ("OWN", own))
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
    emit_store(writer, (columns, inner), [matrix], None, accumulator)
    writer.text(template("unpack_blocks"))
    across, down = writer.grid(-(-columns * words // 128), build.target.max_groups)
    build.emit(writer.finish("unpack_blocks", (across, down, 1), variant=f"{bits} bits in blocks of {block}"))
    right = matrix.transpose((1, 0)).reshape((1, inner, columns))
    assert right is not None
    return build.matmul(build.reshape(a, (1, *a.shape)), right)


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
) -> None:
    """Adds ``load_word``, ``load_scale`` and ``load_zero`` with what they need."""
    # Bytes as words: no device lacks those.
    step = codes.shape[1] // 4
    words = replace(codes, dtype=dtypes.UINT32, shape=(codes.shape[0], step), strides=(step, 1))
    word = f"{writer.read(words)}[{writer.offset(('n', 'at'), words.strides)}]"
    scale = load_expression(writer.read(scales), writer.offset(("n", "block"), scales.strides), scales.dtype)
    if zeros is None:
        zero = str(1 << bits - 1)
    elif zeros.dtype == dtypes.UINT32:
        lanes = WORD_BITS // bits
        packed = f"{writer.read(zeros)}[{writer.offset(('n', f'block / {lanes}'), zeros.strides)}]"
        zero = f"({packed} >> uint(block % {lanes} * {bits})) & {(1 << bits) - 1}u"
    else:
        zero = load_expression(writer.read(zeros), writer.offset(("n", "block"), zeros.strides), zeros.dtype)
    writer.text(
        "\n".join(
            [
                f"typealias Accumulator = {accumulator};",
                f"static const int BITS = {bits};",
                f"static const int BLOCK = {block};",
                f"uint load_word(int n, int at) {{ return {word}; }}",
                f"Accumulator load_scale(int n, int block) {{ return Accumulator({scale}); }}",
                f"Accumulator load_zero(int n, int block) {{ return Accumulator({zero}); }}",
            ]
        )
    )
