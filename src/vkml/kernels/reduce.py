"""Reductions over any axes of any strided view, in one pass or two."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from vkml.ir import DType, TensorType, dtypes
from vkml.ir.lowering import CannotLower
from vkml.ir.scalar import arithmetic_type
from vkml.ir.size import Size, typical
from vkml.ir.wording import counted
from vkml.kernels.pointwise import emit_store
from vkml.kernels.scalar_text import literal
from vkml.kernels.views import View, collapse
from vkml.kernels.writer import NEEDS, KernelWriter, compute_type, load_expression, template

if TYPE_CHECKING:
    from vkml.lowering.vulkan_builder import VulkanBuilder


@dataclass(frozen=True)
class Reduction:
    """What is done to the elements, as Slang text over the accumulator's type."""

    map: str
    """Of one element x."""
    combine: str
    """Of two values a and b."""
    initial: str
    """The neutral value."""
    finalize: str = "x"
    """Of the combined value x; COUNT is the number of elements."""
    accumulator: DType | None = None
    """In which values are combined, where that is not the elements' own compute type."""


def reduction(name: str, dtype: DType) -> Reduction:
    """The reduction an ONNX operator ReduceNAME stands for on elements of `dtype`."""
    zero, one = literal(0, dtype), literal(1, dtype)
    accumulator = compute_type(dtype)
    if name in ("Max", "Min"):
        return Reduction("x", f"{name.lower()}imum(a, b)", extreme(dtype, lowest=name == "Max"))
    if name == "Prod":
        return Reduction("x", "a * b", one)
    finalize = {
        "Sum": "x",
        "SumSquare": "x",
        "L1": "x",
        "Mean": f"x / {accumulator}(COUNT)",
        "L2": "sqrt(x)",
        "LogSum": "logarithm(x)",
    }.get(name)
    if finalize is None:
        raise CannotLower(f"Reduce{name} has no reduction kernel")
    if not dtype.is_float and name in ("L2", "LogSum"):
        raise CannotLower(f"Reduce{name} of {dtype.name} has no kernel")
    if dtype == dtypes.FLOAT64 and name == "LogSum":
        raise CannotLower("Vulkan has no logarithm of float64")
    if name == "L1":
        mapped = "x" if dtype.kind == "u" else f"(x < {zero} ? -x : x)"
    else:
        mapped = "x * x" if name in ("SumSquare", "L2") else "x"
    if name == "Mean" and not dtype.is_float and dtype.bits < 64:
        # The sum may need more bits than the mean has.
        wide = dtypes.UINT64 if dtype.kind == "u" else dtypes.INT64
        return Reduction(mapped, "a + b", literal(0, wide), f"x / {compute_type(wide)}(COUNT)", wide)
    return Reduction(mapped, "a + b", zero, finalize)


def norm(p: float, dtype: DType) -> Reduction:
    """The p-norm of elements of `dtype`."""
    if p == 1:
        return Reduction("absolute(x)", "a + b", "0")
    if p == 2:
        return Reduction("x * x", "a + b", "0", "sqrt(x)")
    if dtype == dtypes.FLOAT64:
        raise CannotLower(f"Vulkan has no powers of float64, which the {p:g}-norm needs")
    return Reduction(f"power(absolute(x), {float(p)!r})", "a + b", "0", f"power(x, {1 / p!r})")


def extreme(dtype: DType, *, lowest: bool) -> str:
    """Slang text of the least (or greatest) value of a dtype."""
    if dtype == dtypes.BOOL:
        return "false" if lowest else "true"
    if dtype.is_float:
        return literal(-math.inf if lowest else math.inf, dtype)
    if dtype.kind == "u":
        return literal(0 if lowest else (1 << dtype.bits) - 1, dtype)
    return literal(-(1 << (dtype.bits - 1)) if lowest else (1 << (dtype.bits - 1)) - 1, dtype)


def reduce(
    build: VulkanBuilder, x: View, axes: Sequence[int], how: Reduction, result: TensorType
) -> list[View]:
    """Reduces `axes` of `x`; `result` has the remaining elements in order.

    A single pass where there are enough results to fill the device, otherwise the rows are cut into ranges
    and a second launch combines their partial results.
    """
    kept = [axis for axis in range(len(x.shape)) if axis not in axes]
    outputs = math.prod(x.shape[axis] for axis in kept)
    length = math.prod(x.shape[axis] for axis in axes)
    accumulator = how.accumulator or _accumulator(x.dtype)
    splits = _splits(build, outputs, length)
    if splits == 1:
        return _pass(build, x, kept, list(axes), how, result, accumulator, outputs, length, 1, length)
    range_ = -(-length // splits)
    splits = -(-length // range_)
    partial = TensorType(accumulator, (outputs, splits))
    first = replace(how, finalize="x")
    parts = build.scratch(partial)
    _pass(build, x, kept, list(axes), first, partial, accumulator, outputs, length, splits, range_, parts)
    second = Reduction("x", how.combine, how.initial, how.finalize.replace("COUNT", str(length)))
    return _pass(build, parts, [0], [1], second, result, accumulator, outputs, splits, 1, splits)


def _accumulator(dtype: DType) -> DType:
    return arithmetic_type(dtype)


def _splits(build: VulkanBuilder, outputs: int, length: int) -> int:
    if isinstance(outputs, Size) or isinstance(length, Size):
        return 1
    wanted = build.target.processors * 4
    if build.target.processors == 1 or outputs >= wanted or length < 16384:
        return 1
    return max(1, min(wanted // max(1, outputs), length // 4096, 65535))


def _pass(
    build: VulkanBuilder,
    x: View,
    kept: list[int],
    axes: list[int],
    how: Reduction,
    result: TensorType,
    accumulator: DType,
    outputs: int,
    length: int,
    splits: int,
    range_: int,
    parts: View | None = None,
) -> list[View]:
    writer = build.writer()
    type_ = compute_type(accumulator)
    writer.text(f"typealias Accumulator = {type_};")
    writer.need(*NEEDS.get(accumulator, ()))
    rows, row_threads, element = _rows(build, writer, x, kept, axes, outputs, length, range_)
    if accumulator != x.dtype and not x.dtype.is_float:
        element = f"{type_}({element})"
    writer.text(
        f"Accumulator load(int row, int column) {{ Accumulator x = {element}; return {how.map}; }}\n"
        f"Accumulator combine(Accumulator a, Accumulator b) {{ return {how.combine}; }}\n"
        f"Accumulator initial() {{ return {how.initial}; }}"
    )
    if parts is not None:
        target = writer.write(parts)
        count = writer.constant(splits, "SPLITS")
        writer.text(
            f"void finish(int row, int split, Accumulator x) {{ {target}[row * {count} + split] = x; }}"
        )
        views = [parts]
    else:
        epilogue, views = build.take_epilogue(result)
        stored = compute_type(result.dtype)
        emit_store(writer, (outputs,), views, epilogue, stored)
        writer.text(
            f"void finish(int row, int split, Accumulator x) {{ store(row, {stored}({how.finalize})); }}"
        )
    across, high = writer.grid(-(-outputs // rows), build.target.max_groups)
    writer.text(template("reduce"))
    variant = f"{counted(row_threads, 'thread')} a row, {counted(rows, 'row')}, {counted(splits, 'range')}"
    build.emit(
        writer.finish(
            "reduce", (across, splits, high), variant=variant, reason=f"{counted(outputs, 'row')} of {length}"
        )
    )
    return views


def _rows(
    build: VulkanBuilder,
    writer: KernelWriter,
    x: View,
    kept: list[int],
    axes: list[int],
    outputs: int,
    length: int,
    range_: int,
) -> tuple[int, int, str]:
    """How rows are spread over threads: rows a workgroup, threads a row, and the element of (row, column)."""
    kept_walk = collapse([x.shape[a] for a in kept], [[x.strides[a] for a in kept]])
    reduced_walk = collapse([x.shape[a] for a in axes], [[x.strides[a] for a in axes]])
    is_column = reduced_walk[1][0][-1] != 1 and kept_walk[1][0][-1] == 1 and typical(outputs) >= 1024
    row_threads = 1 if is_column else _threads_a_row(typical(range_), build.target.max_invocations)
    rows = max(1, min(build.target.max_invocations, 256) // row_threads)
    if typical(outputs) < build.target.processors * rows and not is_column:
        rows = max(1, 64 // row_threads)
    writer.text(f"static const int ROW_THREADS = {row_threads};\nstatic const int ROWS = {rows};")
    for name, value in (("OUTPUTS", outputs), ("LENGTH", length), ("RANGE", range_), ("COUNT", length)):
        writer.constant(value, name)
    pointer = writer.read(x)
    index_function(writer, "row_offset", *kept_walk)
    index_function(writer, "column_offset", *reduced_walk)
    writer.math()
    return rows, row_threads, load_expression(pointer, "row_offset(row) + column_offset(column)", x.dtype)


def arg_reduce(
    build: VulkanBuilder, x: View, axis: int, result: TensorType, *, is_max: bool, takes_last: bool
) -> list[View]:
    """The place along `axis` of the greatest or least element; NaN beats every number.

    Args:
        build: where the launch goes.
        x: any strides.
        axis: what is searched; it has elements.
        result: an integer type with the elements of the remaining axes, in order.
        is_max: whether the greatest is looked for.
        takes_last: which of equal elements counts.
    """
    kept = [a for a in range(len(x.shape)) if a != axis]
    outputs, length = math.prod(x.shape[a] for a in kept), x.shape[axis]
    writer = build.writer()
    type_ = compute_type(x.dtype)
    rows, row_threads, element = _rows(build, writer, x, kept, [axis], outputs, length, length)
    beats = f"a {'>' if is_max else '<'} b"
    if x.dtype.is_float:
        beats = f"{beats} || (is_nan(a) && !is_nan(b))"
    writer.text(
        f"""
struct Accumulator {{ {type_} value; int index; }};

Accumulator load(int row, int column) {{ Accumulator x; x.value = {element}; x.index = column; return x; }}
Accumulator initial() {{ Accumulator x; x.value = {type_}(0); x.index = -1; return x; }}
bool beats({type_} a, {type_} b) {{ return {beats}; }}

Accumulator combine(Accumulator a, Accumulator b)
{{
    if (a.index < 0 || b.index < 0) return a.index < 0 ? b : a;
    if (beats(a.value, b.value)) return a;
    if (beats(b.value, a.value)) return b;
    return a.index {">" if takes_last else "<"} b.index ? a : b;
}}
"""
    )
    epilogue, views = build.take_epilogue(result)
    stored = compute_type(result.dtype)
    emit_store(writer, (outputs,), views, epilogue, stored)
    writer.text(f"void finish(int row, int split, Accumulator x) {{ store(row, {stored}(x.index)); }}")
    across, high = writer.grid(-(-outputs // rows), build.target.max_groups)
    writer.text(template("reduce"))
    label = "arg_max" if is_max else "arg_min"
    variant = f"{counted(row_threads, 'thread')} a row, {counted(rows, 'row')}"
    build.emit(
        writer.finish(
            label, (across, 1, high), variant=variant, reason=f"{counted(outputs, 'row')} of {length}"
        )
    )
    return views


def _threads_a_row(length: int, limit: int) -> int:
    threads = 1
    while threads * 4 < length and threads < min(limit, 256):
        threads *= 2
    return threads


def index_function(
    writer: KernelWriter, name: str, sizes: tuple[int, ...], strides: Sequence[tuple[int, ...]]
) -> None:
    """Adds ``int NAME(int index)``: the offset of a flat index over a strided space."""
    lines = []
    for axis in range(len(sizes) - 1, 0, -1):
        size = writer.constant(sizes[axis])
        lines.append(f"    int c{axis} = index % {size}; index /= {size};")
    lines.append("    int c0 = index;")
    coordinates = tuple(f"c{axis}" for axis in range(len(sizes)))
    writer.text(
        "\n".join(
            [
                f"int {name}(int index)",
                "{",
                *lines,
                f"    return {writer.offset(coordinates, strides[0])};",
                "}",
            ]
        )
    )
