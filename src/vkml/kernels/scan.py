"""Running totals along an axis of any strided view."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from vkml.ir import TensorType
from vkml.ir.scalar import arithmetic_type
from vkml.ir.size import typical
from vkml.ir.wording import counted
from vkml.kernels.reduce import index_function
from vkml.kernels.scalar_text import literal
from vkml.kernels.views import View, collapse
from vkml.kernels.writer import compute_type, load_expression, store_expression, template

if TYPE_CHECKING:
    from vkml.lowering.vulkan_builder import VulkanBuilder


def scan(
    build: VulkanBuilder,
    x: View,
    axis: int,
    result: TensorType,
    *,
    is_product: bool,
    is_exclusive: bool,
    is_reverse: bool,
) -> list[View]:
    """``result[o, i] = x[o, 0] + … + x[o, i]`` along `axis`, with its variants.

    Args:
        build: where the launch goes.
        x: any strides.
        axis: along which totals run.
        result: of x's shape.
        is_product: multiplies instead of adding.
        is_exclusive: leaves out the element itself.
        is_reverse: runs from the end.
    """
    kept = [a for a in range(len(x.shape)) if a != axis]
    outputs, length = math.prod(x.shape[a] for a in kept), x.shape[axis]
    accumulator = arithmetic_type(x.dtype)
    threads = 1
    while threads * 4 < typical(length) and threads < min(256, build.target.max_invocations):
        threads *= 2
    rows = max(1, 64 // threads)
    target = build.output(result)
    writer = build.writer()
    writer.text(f"typealias Accumulator = {compute_type(accumulator)};")
    writer.text(f"static const int ROW_THREADS = {threads};\nstatic const int ROWS = {rows};")
    for name, flag in (("IS_EXCLUSIVE", is_exclusive), ("IS_REVERSE", is_reverse)):
        writer.text(f"static const bool {name} = {'true' if flag else 'false'};")
    for name, value in (("OUTPUTS", outputs), ("LENGTH", length), ("CHUNK", -(-length // threads))):
        writer.constant(value, name)
    source, sink = writer.read(x), writer.write(target)
    for name, view in (("input", x), ("output", target)):
        kept_walk = collapse([view.shape[a] for a in kept], [[view.strides[a] for a in kept]])
        index_function(writer, f"{name}_row", *kept_walk)
        writer.text(
            f"int {name}_column(int column) {{ return {writer.offset(('column',), (view.strides[axis],))}; }}"
        )
    element = load_expression(source, "input_row(row) + input_column(column)", x.dtype)
    stored = store_expression("x", target.dtype)
    writer.text(
        f"Accumulator load(int row, int column) {{ return {element}; }}\n"
        f"Accumulator combine(Accumulator a, Accumulator b) {{ return a {'*' if is_product else '+'} b; }}\n"
        f"Accumulator initial() {{ return {literal(int(is_product), accumulator)}; }}\n"
        "void finish(int row, int column, Accumulator x)\n"
        f"{{ {sink}[output_row(row) + output_column(column)] = {stored}; }}"
    )
    across, high = writer.grid(-(-outputs // rows), build.target.max_groups)
    writer.text(template("scan"))
    variant = f"{counted(threads, 'thread')} a row, {counted(rows, 'row')}"
    build.emit(
        writer.finish(
            "scan", (across, high, 1), variant=variant, reason=f"{counted(outputs, 'row')} of {length}"
        )
    )
    return [target]
