"""Softmax and its logarithm along an axis that memory runs across, of rows too long for registers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from vkml.dataclasses import dataclass
from vkml.ir import TensorType, dtypes
from vkml.ir.size import typical
from vkml.ir.wording import counted
from vkml.kernels.pointwise import emit_vector_store
from vkml.kernels.row_spread import is_in_vectors, vector_function, vector_store
from vkml.kernels.views import View
from vkml.kernels.writer import KernelWriter, template

if TYPE_CHECKING:
    from vkml.lowering.target import Target
    from vkml.lowering.vulkan_builder import VulkanBuilder

THREADS = 256
"""Of a workgroup;"""
ACROSS_THREADS = 32
"""and those beside each other."""
WIDTH = 4
"""Columns of each of these."""
BATCH = 8
"""Vectors that a thread asks for at a time."""
FILLED = 8
"""Workgroups that a processor has room for."""


@dataclass(frozen=True)
class Powers:
    """Slang text of what is made of elements whose powers add up to 1, or their logarithms."""

    label: str
    factor: str
    """Of a row's greatest number and the sum of its powers."""
    result: str
    """Of x, the greatest number and the factor."""


# Stated, because exp of NaN is not NaN on every driver.
POWERS = Powers("softmax", "absolute(top) < INFINITE ? 1.0 / total : NOT_A_NUMBER", "exp(x - top) * factor")
LOGARITHMS = Powers(
    "log_softmax", "absolute(top) < INFINITE ? logarithm(total) : NOT_A_NUMBER", "x - top - factor"
)


def softmax_in_ranges(
    build: VulkanBuilder, x: View, axis: int, how: Powers, result: TensorType
) -> list[View] | None:
    """Softmax along an inner axis of `x`; None where its columns are no vectors in memory.

    Args:
        build: where the launches go.
        x: of any strides.
        axis: along which sums are 1.
        how: what is made of an element.
        result: type of the output, of x's shape.
    """
    outer, length = math.prod(x.shape[:axis]), x.shape[axis]
    inner = math.prod(x.shape[axis + 1 :])
    seen = x.reshape((outer, length, inner))
    if seen is None or not is_in_vectors(seen, 2, WIDTH):
        return None
    blocks = -(-inner // (ACROSS_THREADS * WIDTH))
    ranges = ranges_of(build.target, typical(outer * blocks), typical(length))
    partial = TensorType(dtypes.FLOAT32, (outer, ranges, inner))
    parts = build.scratch(partial), build.scratch(partial)
    sizes = {
        "LENGTH": length, "INNER": inner, "RANGES": ranges, "ROWS_OF_RANGE": -(-length // ranges),
        "BLOCKS": blocks, "TOTAL": outer * ranges * blocks,
    }  # fmt: skip

    def finish(writer: KernelWriter, label: str) -> None:
        writer.text(template("softmax_ranges"))
        across, high = writer.grid(sizes["TOTAL"], build.target.max_groups)
        variant = f"{counted(ranges, 'range')} of the axis, {counted(WIDTH, 'column')} a thread"
        reason = f"{counted(outer * inner, 'row')} of {length}, across memory"
        build.emit(writer.finish(label, (across, high, 1), variant=variant, reason=reason))

    writer = _begin(build, seen, sizes)
    writer.text("#define FIRST")
    for name, view in zip(("top", "total"), parts, strict=True):
        vector_store(writer, f"put_{name}", view, 2, WIDTH)
    finish(writer, f"{how.label}_sums")

    writer = _begin(build, seen, sizes)
    for name, view in zip(("top", "total"), parts, strict=True):
        vector_function(writer, f"partial_{name}", view, 2, WIDTH)
    epilogue, outputs = build.take_epilogue(result)
    emit_vector_store(writer, (outer, length, inner), outputs, epilogue, name="store")
    vectors = f"vector<float, {WIDTH}>"
    writer.text(
        f"float factor_of(float top, float total) {{ return {how.factor}; }}\n"
        f"void finish(int outer, int row, int column, {vectors} x, {vectors} top, {vectors} factor)\n"
        f"{{ {vectors} made = {how.result}; store(outer, row, column, made); }}"
    )
    finish(writer, how.label)
    return outputs


def _begin(build: VulkanBuilder, seen: View, sizes: dict[str, int]) -> KernelWriter:
    """A writer that knows sizes, and reads vectors of an axis' rows."""
    writer = build.writer()
    writer.math()
    numbers = {"THREADS": THREADS, "ACROSS_THREADS": ACROSS_THREADS, "WIDTH": WIDTH, "BATCH": BATCH}
    writer.text("\n".join(f"static const int {name} = {number};" for name, number in numbers.items()))
    for name, number in sizes.items():
        writer.constant(number, name)
    vector_function(writer, "load", seen, 2, WIDTH)
    return writer


def ranges_of(target: Target, beside: int, length: int) -> int:
    """Ranges of an axis of a length, so that they and what lies beside them fill the device, once."""
    least = THREADS // ACROSS_THREADS * BATCH
    return max(1, min(length // least, target.processors * FILLED // beside))
