"""Running totals along an axis of any strided view."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from vkml.ir import TensorType
from vkml.ir.scalar import arithmetic_type
from vkml.ir.wording import counted
from vkml.kernels.row_spread import spread_of, vector_function, vector_store
from vkml.kernels.scalar_text import literal
from vkml.kernels.views import View
from vkml.kernels.writer import compute_type, template

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
    order = [*(a for a in range(len(x.shape)) if a != axis), axis]
    lead, length = len(order) - 1, x.shape[axis]
    count = math.prod(x.shape[a] for a in order[:-1])
    accumulator = arithmetic_type(x.dtype)
    target = build.output(result)
    source, sink = x.transpose(order), target.transpose(order)
    spread = spread_of(build.target, source, lead, is_streamed=True, others=[sink])
    scanned = 1 if spread.columns > 1 else min(spread.lanes, spread.row_threads)
    writer = build.writer()
    spread.declare(writer, count, length, accumulator)
    writer.text(
        f"typealias Accumulator = {compute_type(accumulator)};\nstatic const int SCANNED = {scanned};"
    )
    for name, flag in (("IS_EXCLUSIVE", is_exclusive), ("IS_REVERSE", is_reverse)):
        writer.text(f"static const bool {name} = {'true' if flag else 'false'};")
    vector_function(writer, "load", source, lead, spread.width)
    vector_store(writer, "finish", sink, lead, spread.width)
    writer.text(
        f"Accumulator combine(Accumulator a, Accumulator b) {{ return a {'*' if is_product else '+'} b; }}\n"
        f"Accumulator initial() {{ return {literal(int(is_product), accumulator)}; }}"
    )
    across, high = writer.grid(-(-count // spread.rows), build.target.max_groups)
    writer.text(template("scan"))
    build.emit(
        writer.finish(
            "scan",
            (across, high, 1),
            variant=spread.variant,
            reason=f"{counted(count, 'row')} of {length}",
            subgroup_size=spread.lanes if spread.lanes > 1 else None,
        )
    )
    return [target]
