"""Resize by tables: each output coordinate's source places and weights, computed on the host."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from vkml.dataclasses import dataclass
from vkml.ir import Constant, DType, TensorType, dtypes
from vkml.ir.scalar import arithmetic_type
from vkml.ir.wording import counted
from vkml.kernels.items import rows_a_thread
from vkml.kernels.pointwise import emit_store
from vkml.kernels.scalar_text import literal
from vkml.kernels.views import View
from vkml.kernels.writer import KernelWriter, compute_type, load_expression, multiply_add

if TYPE_CHECKING:
    from vkml.lowering.vulkan_builder import VulkanBuilder

_Tables = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]

WORKGROUP = 128
_MOST_LAID_OUT = 16
"""Elements that a result is made of, up to which loops are laid out and a thread may have several results."""


def resize(
    build: VulkanBuilder,
    x: View,
    result: TensorType,
    tables: Sequence[_Tables | None],
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
    dims, rank = result.dims, len(result.dims)
    is_short = math.prod(table[0].shape[1] for table in tables if table is not None) <= _MOST_LAID_OUT
    rows = 1
    if rank > 1 and is_short:
        rows = rows_a_thread(dims[-2], math.prod(dims[:-2]) * dims[-1], lambda count: True)
    pattern = _pattern_of(tables, rows, x.shape[-2], accumulator) if rows > 1 else None
    first, lines = _taps(build, writer, x, tables, accumulator, pattern, is_short=is_short)
    spread = [*dims[:-2], -(-dims[-2] // rows), dims[-1]] if rank > 1 else [*dims]
    total = math.prod(spread)
    writer.constant(total, "TOTAL")
    emit_store(writer, dims, outputs, epilogue, type_)
    names = [f"c{axis}" for axis in range(rank)]
    if rank > 1:
        names[-2] = "block"
    split = ["    int rest = item;"]
    for axis in range(rank - 1, 0, -1):
        size = writer.constant(spread[axis])
        split.append(f"    int {names[axis]} = rest % {size}; rest /= {size};")
    split.append(f"    int {names[0]} = rest;")
    row, row_again, guard = "", "", ""
    if rank > 1:
        height = writer.constant(dims[-2])
        row_again = f"        int c{rank - 2} = block * {rows} + i;"
        # The last threads read the last row for those that they lack.
        row = row_again if rows == 1 else f"        int c{rank - 2} = min(block * {rows} + i, {height} - 1);"
        guard = "" if rows == 1 else f"if (c{rank - 2} < {height}) "
    summed = lines
    if pattern is None:
        summed = [
            f"    [ForceUnroll] for (int i = 0; i < {rows}; ++i)",
            "    {",
            row,
            f"        {type_} value = {type_}(0);",
            *lines,
            "        values[i] = value;",
            "    }",
        ]
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
                *first,
                f"    {type_} values[{rows}];",
                *summed,
                f"    [ForceUnroll] for (int i = 0; i < {rows}; ++i)",
                "    {",
                row_again,
                f"        {guard}store({arguments}, values[i]);",
                "    }",
                "}",
            ]
        )
    )
    variant = f"{'tables' if pattern is None else 'a pattern'}, {counted(rows, 'row')} a thread"
    build.emit(writer.finish("resize", (across, high, 1), variant=variant))
    return outputs


def _taps(
    build: VulkanBuilder,
    writer: KernelWriter,
    x: View,
    tables: Sequence[_Tables | None],
    accumulator: DType,
    pattern: _Pattern | None,
    *,
    is_short: bool,
) -> tuple[list[str], list[str]]:
    """Statements for all results of a column, and those that sum ``value`` of the one at c0, c1, ….

    By a pattern the latter sum ``values`` of all.

    Args:
        build: which constants belong to.
        writer: of the kernel.
        x: what is read.
        tables: for each axis.
        accumulator: the type of sums.
        pattern: of the last axis but one, if it has one and is resized beside the last alone.
        is_short: whether loops are laid out, and what the last axis' tables say is read once for a column.
    """
    type_ = compute_type(accumulator)
    loop = "[ForceUnroll] " if is_short else ""
    first: list[str] = []
    lines: list[str] = []
    closing = 0
    coordinates, weights = [], []
    for axis, table in enumerate(tables):
        if table is None or (pattern is not None and axis == len(tables) - 2):
            coordinates.append(f"c{axis}" if table is None else "row")
            continue
        places, factors = table
        taps = places.shape[1]
        begin = f"{loop}for (int t{axis} = 0; t{axis} < {taps}; ++t{axis})"
        at = f"c{axis} * {taps} + t{axis}"
        place = f"{writer.read(_table(build, places.astype(np.int32), 'places'))}[{at}]"
        weight = ""
        if taps > 1 or (factors != 1).any():
            by = writer.read(_table(build, factors.astype(np.float32), "weights"))
            weight = f"{type_}({by}[{at}])"
        if axis == len(tables) - 1 and is_short:
            first += [f"    int places[{taps}];", *([f"    {type_} weights[{taps}];"] if weight else [])]
            first += [f"    {begin}", "    {", f"        places[t{axis}] = {place};"]
            first += [*([f"        weights[t{axis}] = {weight};"] if weight else []), "    }"]
            place, weight = f"places[t{axis}]", f"weights[t{axis}]" if weight else ""
        lines.append(f"        {begin}\n        {{\n        int p{axis} = {place};")
        coordinates.append(f"p{axis}")
        if weight:
            weights.append(weight)
        closing += 1
    offset = writer.offset(tuple(coordinates), x.strides)
    element = load_expression(writer.read(x), offset, x.dtype)
    if weights or (pattern is not None and not pattern.is_plain):
        writer.text(multiply_add(accumulator))
    if weights:
        lines.append(f"        value = multiply_add({' * '.join(weights)}, {element}, value);")
    else:
        lines.append(f"        value = {element};")
    lines.append("        " + "}" * closing)
    if pattern is None:
        return first, lines
    height = writer.constant(x.shape[-2])
    seen = sorted({int(place) for place in pattern.places.flat})
    made = [f"    {type_} seen[{len(seen)}];"]
    for number, distance in enumerate(seen):
        made += [
            "    {",
            f"        int row = clamp(block * {pattern.step} + {distance}, 0, {height} - 1);",
            f"        {type_} value = {type_}(0);",
            *lines,
            f"        seen[{number}] = value;",
            "    }",
        ]
    for number, (places, factors) in enumerate(zip(pattern.places, pattern.weights, strict=True)):
        found = [f"seen[{seen.index(int(place))}]" for place in places]
        total = found[0] if pattern.is_plain else f"{type_}(0)"
        for element, factor in zip(found, factors, strict=True) if not pattern.is_plain else ():
            total = f"multiply_add({literal(float(factor), accumulator)}, {element}, {total})"
        made.append(f"    values[{number}] = {total};")
    return first, made


@dataclass(frozen=True)
class _Pattern:
    """What a thread's rows are made of, at places that move on by a step from thread to thread."""

    step: int
    places: np.ndarray[Any, Any]
    """Of the first thread's rows, as if the axis had no ends."""
    weights: np.ndarray[Any, Any]

    @property
    def is_plain(self) -> bool:
        """Whether rows are copies of others."""
        return self.weights.shape[1] == 1 and bool((self.weights == 1).all())


def _pattern_of(
    tables: Sequence[_Tables | None], rows: int, size: int, accumulator: DType
) -> _Pattern | None:
    """That of the last axis but one, where all threads have it and no axis but these two is resized."""
    table = tables[-2]
    if table is None or any(other is not None for other in tables[:-2]):
        return None
    places, weights = (np.asarray(each) for each in table)
    threads = len(places) // rows
    if threads < 3:
        return None
    middle = threads // 2 * rows
    step = int(places[middle, 0] - places[middle - rows, 0])
    numbers = np.arange(len(places))
    block, row = numbers // rows, numbers % rows
    first = places[middle : middle + rows] - middle // rows * step
    weights = weights.astype(np.float32)
    factors = weights[middle : middle + rows]
    is_same = np.array_equal(np.clip(block[:, None] * step + first[row], 0, size - 1), places)
    if not is_same or not np.array_equal(factors[row], weights):
        return None
    found = _Pattern(step, first, factors)
    return found if found.is_plain or accumulator.is_float else None


def _table(build: VulkanBuilder, array: np.ndarray[Any, Any], name: str) -> View:
    return build.constant(Constant(dtypes.from_numpy(array.dtype), array.shape, array), name)
