"""Pad in all its modes, by index arithmetic: each output element computes the place it copies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from vkml.ir import TensorType
from vkml.ir.lowering import CannotLower
from vkml.kernels.views import View
from vkml.kernels.writer import storage_type

if TYPE_CHECKING:
    from vkml.lowering.vulkan_builder import VulkanBuilder

WORKGROUP = 128


def pad(
    build: VulkanBuilder, x: View, begins: Sequence[int], mode: str, fill: View | None, result: TensorType
) -> list[View]:
    """Adds elements round a tensor.

    Args:
        build: where the launch goes.
        x: any strides.
        begins: how many elements come before the first, for each axis.
        mode: constant, edge, reflect or wrap.
        fill: the one element that constant mode adds; None: zero.
        result: of x's rank, at least as large.
    """
    if not x.elements and mode != "constant":
        raise CannotLower(f"Pad of an empty tensor with mode {mode} has no kernel")
    target = build.output(result)
    writer = build.writer()
    source, sink = writer.read(x), writer.write(target)
    type_ = storage_type(x.dtype)
    rank = len(x.shape)
    lines = ["    int rest = item;"]
    for axis in range(rank - 1, 0, -1):
        size = writer.constant(result.dims[axis])
        lines.append(f"    int c{axis} = rest % {size}; rest /= {size};")
    lines += ["    int c0 = rest;", "    bool is_inside = true;"]
    for axis in range(rank):
        begin, size = writer.constant(begins[axis]), writer.constant(x.shape[axis])
        if begins[axis] == 0 and x.shape[axis] == result.dims[axis]:
            lines.append(f"    int p{axis} = c{axis};")
            continue
        lines.append(f"    int p{axis} = c{axis} - {begin};")
        if mode == "constant":
            lines.append(f"    is_inside = is_inside && uint(p{axis}) < uint({size});")
        elif mode == "edge":
            lines.append(f"    p{axis} = clamp(p{axis}, 0, {size} - 1);")
        elif mode == "wrap":
            lines.append(f"    p{axis} = modulo(p{axis}, {size});")
        else:
            lines.append(f"    p{axis} = modulo(p{axis}, max(2 * {size} - 2, 1));")
            lines.append(f"    p{axis} = min(p{axis}, max(2 * {size} - 2, 1) - p{axis});")
            if x.shape[axis] == 1:
                lines.append(f"    p{axis} = 0;")
    place = writer.offset(tuple(f"p{axis}" for axis in range(rank)), x.strides)
    there = writer.offset(tuple(f"c{axis}" for axis in range(rank)), target.strides)
    if mode == "constant":
        filler = "0" if fill is None else f"{writer.read(fill)}[0]"
        lines.append(f"    {type_} value = {type_}({filler});")
        lines.append(f"    if (is_inside) value = {source}[{place}];")
    else:
        lines.append(f"    {type_} value = {source}[{place}];")
    total = math.prod(result.dims)
    writer.constant(total, "TOTAL")
    across, high = writer.grid(-(-total // WORKGROUP), build.target.max_groups)
    writer.text(
        "\n".join(
            [
                "int modulo(int a, int b) { return a < 0 ? b - 1 - (-1 - a) % b : a % b; }",
                f'[shader("compute")] [numthreads({WORKGROUP}, 1, 1)]',
                "void main(uint3 group : SV_GroupID, uint thread : SV_GroupIndex)",
                "{",
                f"    int item = int((group.x + group.y * ACROSS) * {WORKGROUP} + thread);",
                "    if (item >= TOTAL) return;",
                *lines,
                f"    {sink}[{there}] = value;",
                "}",
            ]
        )
    )
    build.emit(writer.finish("pad", (across, high, 1), variant=mode))
    return [target]
