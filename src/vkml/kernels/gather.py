"""Gather: whole slices of a tensor picked by an index tensor."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from vkml.ir import TensorType, dtypes
from vkml.ir.lowering import CannotLower
from vkml.kernels.reduce import index_function
from vkml.kernels.views import View, collapse
from vkml.kernels.writer import KernelWriter, storage_type

if TYPE_CHECKING:
    from vkml.lowering.vulkan_builder import VulkanBuilder

WORKGROUP = 128


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
    data_type = storage_type(data.dtype)
    outer, size, inner = data.shape[:axis], data.shape[axis], data.shape[axis + 1 :]
    outer_count, index_count, inner_count = math.prod(outer), indices.elements, math.prod(inner)
    total = outer_count * index_count * inner_count
    target = build.output(result)
    writer = build.writer()
    source = writer.read(data)
    index_reader(build, writer, indices)
    for name, value in (("TOTAL", total), ("INNER", inner_count), ("INDICES", index_count), ("SIZE", size)):
        writer.constant(value, name)
    index_function(writer, "outer_offset", *collapse(outer, [data.strides[:axis]]))
    index_function(writer, "inner_offset", *collapse(inner, [data.strides[axis + 1 :]]))
    index_function(writer, "pick_offset", *collapse(indices.shape, [indices.strides]))
    step = writer.offset(("pick",), (data.strides[axis],))
    flat = target.reshape((outer_count, index_count, inner_count))
    if flat is None:
        raise CannotLower("Gather cannot write into these strides")
    output = writer.write(flat)
    place = writer.offset(("o", "i", "n"), flat.strides)
    across, high = writer.grid(-(-total // WORKGROUP), build.target.max_groups)
    writer.text(
        f"""
{data_type} read_element(int at) {{ return {source}[at]; }}

[shader("compute")] [numthreads({WORKGROUP}, 1, 1)]
void main(uint3 group : SV_GroupID, uint thread : SV_GroupIndex)
{{
    int item = int((group.x + group.y * ACROSS) * {WORKGROUP} + thread);
    if (item >= TOTAL) return;
    int n = item % INNER;
    int i = item / INNER % INDICES;
    int o = item / INNER / INDICES;
    int pick = max(checked(read_index(pick_offset(i)), SIZE), 0);
    {output}[{place}] = read_element(outer_offset(o) + inner_offset(n) + {step});
}}
"""
    )
    build.emit(writer.finish("gather", (across, high, 1), variant="slices"))
    return [target]
