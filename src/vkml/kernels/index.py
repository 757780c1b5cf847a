"""Gathers of single elements and by index tuples."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from vkml.ir import TensorType
from vkml.ir.lowering import CannotLower
from vkml.kernels.gather import index_reader
from vkml.kernels.moves import launch_moves, unit_of
from vkml.kernels.reduce import index_function
from vkml.kernels.views import View, collapse
from vkml.kernels.writer import KernelWriter

if TYPE_CHECKING:
    from vkml.lowering.vulkan_builder import VulkanBuilder

WORKGROUP = 128


def gather_elements(
    build: VulkanBuilder, data: View, indices: View, axis: int, result: TensorType
) -> list[View]:
    """``result[i, j, k] = data[i, indices[i, j, k], k]`` for `axis` 1; on the other axes data may be larger.

    An index outside the axis is reported through the status word and reads element 0 instead.
    """
    target = build.output(result)
    writer = build.writer()
    source, sink = writer.read(data), writer.write(target)
    index_reader(build, writer, indices)
    lines, coordinates = decompose(writer, indices.shape, "item")
    at = writer.offset(coordinates, indices.strides)
    moved = tuple("pick" if a == axis else c for a, c in enumerate(coordinates))
    place = writer.offset(moved, data.strides)
    there = writer.offset(coordinates, target.strides)
    lines += [
        f"    int pick = max(checked(read_index({at}), {writer.constant(data.shape[axis])}), 0);",
        f"    {sink}[{there}] = {source}[{place}];",
    ]
    launch(build, writer, "gather_elements", indices.elements, lines)
    return [target]


def gather_tuples(
    build: VulkanBuilder, data: View, indices: View, batch_axes: int, result: TensorType
) -> list[View]:
    """``result[b, t, n] = data[b, *indices[b, t], n]``: each tuple picks a slice.

    An index outside its axis is reported through the status word and reads element 0 instead.
    """
    length = indices.shape[-1]
    end = batch_axes + length
    tuples, slices = indices.shape[:-1], data.shape[end:]
    count, size = math.prod(tuples), math.prod(slices)
    target = build.output(result)
    flat = target.reshape((count, size))
    if flat is None:
        raise CannotLower("GatherND cannot write into these strides")
    sizes, [strides] = collapse(slices, [data.strides[end:]])
    around = (*data.strides[:end], flat.strides[0])
    unit = unit_of((data, flat), sizes, (strides, flat.strides[1:]), around)
    writer = build.writer()
    index_reader(build, writer, indices)
    batch = unit.steps([*data.strides[:batch_axes], *(0 for _ in tuples[batch_axes:])])
    index_function(writer, "tuple_offset", *collapse(tuples, [indices.strides[:-1]]))
    index_function(writer, "batch_offset", *collapse(tuples, [batch]))
    unit.index_function(writer, "slice_offset", sizes, strides)
    width = writer.constant(size // unit.elements)
    lines = [
        f"    int t = item / {width}; int n = item % {width};",
        "    int at = batch_offset(t) + slice_offset(n);",
    ]
    step = indices.strides[-1]
    for position in range(length):
        axis = batch_axes + position
        index = f"tuple_offset(t) + {writer.constant(position * step)}"
        pick = f"max(checked(read_index({index}), {writer.constant(data.shape[axis])}), 0)"
        lines.append(f"    at += {pick} * {writer.constant(data.strides[axis] // unit.elements)};")
    place = writer.offset(("t", "n"), (flat.strides[0] // unit.elements, flat.strides[1]))
    writer.text("\n".join(["int source_at(int item)", "{", *lines, "    return at;", "}"]))
    writer.text(
        f"int target_at(int item) {{ int t = item / {width}; int n = item % {width}; return {place}; }}"
    )
    launch_moves(build, writer, "gather_tuples", unit, (data, flat), count * (size // unit.elements), "")
    return [target]


def decompose(writer: KernelWriter, shape: tuple[int, ...], flat: str) -> tuple[list[str], tuple[str, ...]]:
    """Statements that split a flat row-major index over `shape` into coordinates, and these."""
    lines = [f"    int rest = {flat};"]
    for axis in range(len(shape) - 1, 0, -1):
        size = writer.constant(shape[axis])
        lines.append(f"    int c{axis} = rest % {size}; rest /= {size};")
    if shape:
        lines.append("    int c0 = rest;")
    return lines, tuple(f"c{axis}" for axis in range(len(shape)))


def launch(
    build: VulkanBuilder, writer: KernelWriter, label: str, total: int, lines: list[str], variant: str = ""
) -> None:
    """Emits a kernel of one thread an `item` below `total`."""
    if not total:
        return
    writer.constant(total, "TOTAL")
    across, high = writer.grid(-(-total // WORKGROUP), build.target.max_groups)
    writer.text(
        "\n".join(
            [
                f'[shader("compute")] [numthreads({WORKGROUP}, 1, 1)]',
                "void main(uint3 group : SV_GroupID, uint thread : SV_GroupIndex)",
                "{",
                f"    int item = int((group.x + group.y * ACROSS) * {WORKGROUP} + thread);",
                "    if (item >= TOTAL) return;",
                *lines,
                "}",
            ]
        )
    )
    build.emit(writer.finish(label, (across, high, 1), variant=variant))
