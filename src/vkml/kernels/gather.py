"""Gather: whole slices of a tensor picked by an index tensor."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from vkml.ir import TensorType, dtypes
from vkml.ir.lowering import CannotLower
from vkml.kernels.moves import launch_moves, unit_of
from vkml.kernels.reduce import index_function
from vkml.kernels.views import View, collapse
from vkml.kernels.writer import KernelWriter

if TYPE_CHECKING:
    from vkml.lowering.vulkan_builder import VulkanBuilder


def index_reader(build: VulkanBuilder, writer: KernelWriter, indices: View) -> None:
    """Adds ``int read_index(int at)`` and ``int checked(int pick, int size)`` for indices from the data.

    `checked` counts negative indices from the end; for one outside the axis it reports the node through the
    status word and returns -1. 64-bit indices are read as two words: devices without 64-bit integers gather,
    too.
    """
    if indices.dtype not in (dtypes.INT32, dtypes.INT64):
        raise CannotLower(f"indices of {indices.dtype.name} have no kernel")
    picks = writer.read(indices, reinterpreted_as="int")
    if indices.dtype == dtypes.INT64:
        lines = [
            f"    int low = {picks}[at * 2];",
            f"    return {picks}[at * 2 + 1] == (low < 0 ? -1 : 0) ? low : 0x7fffffff;",
        ]
    else:
        lines = [f"    return {picks}[at];"]
    writer.constant(build.error_code(), "ERROR")
    status = writer.buffer(build.status, "uint", "status")
    writer.text(
        "\n".join(
            [
                "int read_index(int at)",
                "{",
                *lines,
                "}",
                "int checked(int pick, int size)",
                "{",
                "    if (pick < 0) pick += size;",
                "    if (uint(pick) < uint(size)) return pick;",
                f"    {status}[0] = ERROR;",
                "    return -1;",
                "}",
            ]
        )
    )


def gather(build: VulkanBuilder, data: View, indices: View, axis: int, result: TensorType) -> list[View]:
    """``result[o, i, n] = data[o, indices[i], n]`` with `axis` between o and n.

    Indices count from the end where negative. One outside the axis is reported through the status word and
    reads element 0 instead, so nothing outside the tensor is ever read.
    """
    outer, size, inner = data.shape[:axis], data.shape[axis], data.shape[axis + 1 :]
    outer_count, index_count, inner_count = math.prod(outer), indices.elements, math.prod(inner)
    target = build.output(result)
    flat = target.reshape((outer_count, index_count, inner_count))
    if flat is None:
        raise CannotLower("Gather cannot write into these strides")
    sizes, [strides] = collapse(inner, [data.strides[axis + 1 :]])
    around = (*data.strides[: axis + 1], *flat.strides[:2])
    unit = unit_of((data, flat), sizes, (strides, flat.strides[2:]), around)
    writer = build.writer()
    index_reader(build, writer, indices)
    for name, value in (("INNER", inner_count // unit.elements), ("INDICES", index_count), ("SIZE", size)):
        writer.constant(value, name)
    outer_sizes, [outer_strides] = collapse(outer, [unit.steps(data.strides[:axis])])
    index_function(writer, "outer_offset", outer_sizes, [outer_strides])
    unit.index_function(writer, "inner_offset", sizes, strides)
    index_function(writer, "pick_offset", *collapse(indices.shape, [indices.strides]))
    step = writer.offset(("pick",), unit.steps(data.strides[axis : axis + 1]))
    place = writer.offset(("o", "i", "n"), (*unit.steps(flat.strides[:2]), flat.strides[2]))
    writer.text(
        f"""
int source_at(int item)
{{
    int n = item % INNER;
    int i = item / INNER % INDICES;
    int o = item / INNER / INDICES;
    int pick = max(checked(read_index(pick_offset(i)), SIZE), 0);
    return outer_offset(o) + inner_offset(n) + {step};
}}
int target_at(int item)
{{
    int n = item % INNER;
    int i = item / INNER % INDICES;
    int o = item / INNER / INDICES;
    return {place};
}}
"""
    )
    total = outer_count * index_count * (inner_count // unit.elements)
    launch_moves(build, writer, "gather", unit, (data, flat), total, "slices")
    return [target]
