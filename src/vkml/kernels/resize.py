"""Resize by tables: each output coordinate's source places and weights, computed on the host."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from vkml.ir import Constant, TensorType, dtypes
from vkml.ir.scalar import arithmetic_type
from vkml.kernels.pointwise import emit_store
from vkml.kernels.views import View
from vkml.kernels.writer import compute_type, load_expression, multiply_add

if TYPE_CHECKING:
    from vkml.lowering.vulkan_builder import VulkanBuilder

WORKGROUP = 128


def resize(
    build: VulkanBuilder,
    x: View,
    result: TensorType,
    tables: Sequence[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]] | None],
) -> list[View]:
    """``result[i…] = sum over taps of x[places…] * weights…``, separable over the axes.

    Args:
        build: where the launch goes.
        x: any strides.
        result: of x's rank.
        tables: for each axis the places (output size, taps) and weights of the same shape, or None where the
            axis keeps its size. Places lie inside the axis.
    """
    writer = build.writer()
    accumulator = arithmetic_type(x.dtype)
    type_ = compute_type(accumulator)
    epilogue, outputs = build.take_epilogue(result)
    pointer = writer.read(x)
    rank = len(result.dims)
    lines: list[str] = []
    closing = 0
    coordinates, weights = [], []
    for axis in range(rank):
        table = tables[axis]
        if table is None:
            coordinates.append(f"c{axis}")
            continue
        places, factors = table
        taps = places.shape[1]
        at = writer.read(_table(build, places.astype(np.int32), "places"))
        lines.append(f"    for (int t{axis} = 0; t{axis} < {writer.constant(taps)}; ++t{axis})\n    {{")
        lines.append(f"    int p{axis} = {at}[c{axis} * {writer.constant(taps)} + t{axis}];")
        coordinates.append(f"p{axis}")
        if taps > 1 or (factors != 1).any():
            by = writer.read(_table(build, factors.astype(np.float32), "weights"))
            weights.append(f"{type_}({by}[c{axis} * {writer.constant(taps)} + t{axis}])")
        closing += 1
    offset = writer.offset(tuple(coordinates), x.strides)
    element = load_expression(pointer, offset, x.dtype)
    if weights:
        writer.text(multiply_add(accumulator))
        lines.append(f"    value = multiply_add({' * '.join(weights)}, {element}, value);")
    else:
        lines.append(f"    value = {element};")
    lines.append("    " + "}" * closing)
    total = math.prod(result.dims)
    writer.constant(total, "TOTAL")
    emit_store(writer, result.dims, outputs, epilogue, type_)
    split = ["    int rest = item;"]
    for axis in range(rank - 1, 0, -1):
        size = writer.constant(result.dims[axis])
        split.append(f"    int c{axis} = rest % {size}; rest /= {size};")
    split.append("    int c0 = rest;")
    across, high = writer.grid(-(-total // WORKGROUP), build.target.max_groups)
    arguments = ", ".join(f"c{axis}" for axis in range(rank))
    writer.text(
        "\n".join(
            [
                f'[shader("compute")] [numthreads({WORKGROUP}, 1, 1)]',
                "void main(uint3 group : SV_GroupID, uint thread : SV_GroupIndex)",
                "{",
                f"    int item = int((group.x + group.y * ACROSS) * {WORKGROUP} + thread);",
                "    if (item >= TOTAL) return;",
                *split,
                f"    {type_} value = {type_}(0);",
                *lines,
                f"    store({arguments}, value);",
                "}",
            ]
        )
    )
    build.emit(writer.finish("resize", (across, high, 1), variant="tables"))
    return outputs


def _table(build: VulkanBuilder, array: np.ndarray[Any, Any], name: str) -> View:
    return build.constant(Constant(dtypes.from_numpy(array.dtype), array.shape, array), name)
