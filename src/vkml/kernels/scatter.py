"""Scatters: a copy of a tensor with elements, or slices picked by index tuples, replaced or accumulated.

Without a reduction every update is written by a thread of its own, so of equal indices any may win (ONNX
forbids them). With one, updates that meet in an element are combined by one thread, in their order: exact,
and the same each run. It walks all updates that may; or, of slices, its workgroup finds those that do
(scatter.slang).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from vkml.ir import TensorType, dtypes
from vkml.ir.lowering import CannotLower
from vkml.ir.scalar import arithmetic_type
from vkml.ir.size import Size
from vkml.kernels.gather import index_reader
from vkml.kernels.index import decompose, launch
from vkml.kernels.moves import launch_moves, unit_of
from vkml.kernels.reduce import index_function
from vkml.kernels.views import View, collapse
from vkml.kernels.writer import KernelWriter, compute_type, load_expression, store_expression, template

if TYPE_CHECKING:
    from vkml.lowering.vulkan_builder import VulkanBuilder

LEAST_SLICE = 16
"""Elements of slices from which on a workgroup an update is worth it;"""
_THREADS = 256
"""Of a workgroup."""
MOST_UPDATES = 1 << 16
"""how many updates there may be, for each looks at all others."""
_COMBINE = {"add": "{a} + {b}", "mul": "{a} * {b}", "max": "maximum({a}, {b})", "min": "minimum({a}, {b})"}


def scatter_elements(
    build: VulkanBuilder, x: View, indices: View, updates: View, axis: int, reduction: str, result: TensorType
) -> list[View]:
    """``result = x; result[i, indices[i, j, k], k] = updates[i, j, k]`` for `axis` 1.

    An index outside the axis is reported through the status word and its update dropped.
    """
    target, writer, sink = _begin(build, x, indices, reduction, result)
    source = writer.read(updates)
    lanes = (
        indices.shape
        if reduction == "none"
        else tuple(1 if a == axis else d for a, d in enumerate(indices.shape))
    )
    lines, coordinates = decompose(writer, lanes, "item")
    if reduction != "none":
        steps = writer.constant(indices.shape[axis])
        coordinates = tuple("step" if a == axis else c for a, c in enumerate(coordinates))
        lines.append(f"    for (int step = 0; step < {steps}; ++step)")
    at = writer.offset(coordinates, indices.strides)
    moved = tuple("pick" if a == axis else c for a, c in enumerate(coordinates))
    update = load_expression(source, writer.offset(coordinates, updates.strides), x.dtype)
    lines += [
        "    {",
        f"        int pick = checked(read_index({at}), {writer.constant(x.shape[axis])});",
        "        if (pick >= 0)",
        f"            {_assign(sink, writer.offset(moved, target.strides), update, reduction, target)}",
        "    }",
    ]
    launch(build, writer, "scatter_elements", math.prod(lanes), lines, reduction)
    return [target]


def scatter_tuples(
    build: VulkanBuilder, x: View, indices: View, updates: View, reduction: str, result: TensorType
) -> list[View]:
    """``result = x; result[*indices[t], n] = updates[t, n]``: each tuple picks a slice.

    An index outside its axis is reported through the status word and its update dropped.
    """
    length = indices.shape[-1]
    tuples, slices = indices.shape[:-1], x.shape[length:]
    count, size = math.prod(tuples), math.prod(slices)
    is_known = not isinstance(count, Size) and not isinstance(size, Size)
    if reduction != "none" and is_known and 1 < count <= MOST_UPDATES and size >= LEAST_SLICE:
        return _scatter_slices(build, x, indices, updates, reduction, result)
    if reduction == "none":
        return _move_slices(build, x, indices, updates, result)
    target, writer, sink = _begin(build, x, indices, reduction, result)
    source = writer.read(updates)
    index_function(writer, "tuple_offset", *collapse(tuples, [indices.strides[:-1]]))
    index_function(writer, "slice_offset", *collapse(slices, [target.strides[length:]]))
    index_function(writer, "update_tuple", *collapse(tuples, [updates.strides[: len(tuples)]]))
    index_function(writer, "update_slice", *collapse(slices, [updates.strides[len(tuples) :]]))
    lines = ["    int n = item;", f"    for (int t = 0; t < {writer.constant(count)}; ++t)", "    {"]
    lines += ["        int at = slice_offset(n);"]
    lines += ["    " + line for line in _picked(writer, x, indices, target.strides, "t")]
    update = load_expression(source, "update_tuple(t) + update_slice(n)", x.dtype)
    lines += [f"        if (is_inside) {_assign(sink, 'at', update, reduction, target)}", "    }"]
    launch(build, writer, "scatter_tuples", size, lines, reduction)
    return [target]


def _picked(writer: KernelWriter, x: View, indices: View, strides: Sequence[int], number: str) -> list[str]:
    """Statements that add to ``at`` where the slice of a tuple begins, and find whether it ``is_inside``.

    Args:
        writer: has `index_reader`'s functions and ``tuple_offset``.
        x: whose slices are picked.
        indices: the tuples.
        strides: of what is written along the axes that are picked on.
        number: of the tuple.
    """
    lines = ["    bool is_inside = true; int pick;"]
    for axis in range(indices.shape[-1]):
        index = f"tuple_offset({number}) + {writer.constant(axis * indices.strides[-1])}"
        lines += [
            f"    pick = checked(read_index({index}), {writer.constant(x.shape[axis])});",
            "    is_inside = is_inside && pick >= 0;",
            f"    at += pick * {writer.constant(strides[axis])};",
        ]
    return lines


def _move_slices(
    build: VulkanBuilder, x: View, indices: View, updates: View, result: TensorType
) -> list[View]:
    """`scatter_tuples` without a reduction: slices are moved as they are."""
    target = _copied(build, x, "none", result)
    length, inner = indices.shape[-1], len(indices.shape) - 1
    tuples, slices = indices.shape[:-1], x.shape[length:]
    sizes, (from_, to) = collapse(slices, [updates.strides[inner:], target.strides[length:]])
    around = (*updates.strides[:inner], *target.strides[:length])
    unit = unit_of((updates, target), sizes, (from_, to), around)
    writer = build.writer()
    index_reader(build, writer, indices)
    index_function(writer, "tuple_offset", *collapse(tuples, [indices.strides[:-1]]))
    index_function(writer, "update_tuple", *collapse(tuples, [unit.steps(updates.strides[:inner])]))
    unit.index_function(writer, "update_slice", sizes, from_)
    unit.index_function(writer, "slice_offset", sizes, to)
    each = math.prod(slices) // unit.elements
    width = writer.constant(each)
    lines = [
        f"    int t = item / {width}; int at = slice_offset(item % {width});",
        *_picked(writer, x, indices, unit.steps(target.strides[:length]), "t"),
        "    return is_inside ? at : -1;",
    ]
    writer.text(
        f"int source_at(int item) {{ return update_tuple(item / {width}) + update_slice(item % {width}); }}"
    )
    writer.text("\n".join(["int target_at(int item)", "{", *lines, "}"]))
    launch_moves(build, writer, "scatter_tuples", unit, (updates, target), math.prod(tuples) * each, "none")
    return [target]


def _scatter_slices(
    build: VulkanBuilder, x: View, indices: View, updates: View, reduction: str, result: TensorType
) -> list[View]:
    """`scatter_tuples` with a reduction, a workgroup for each update and 256 elements."""
    target = _copied(build, x, reduction, result)
    length = indices.shape[-1]
    tuples, slices = indices.shape[:-1], x.shape[length:]
    count, size = math.prod(tuples), math.prod(slices)
    offsets = build.scratch(TensorType(dtypes.INT32, (count,)))
    writer = build.writer()
    index_reader(build, writer, indices)
    sink = writer.write(offsets)
    index_function(writer, "tuple_offset", *collapse(tuples, [indices.strides[:-1]]))
    lines = ["    int at = 0;", *_picked(writer, x, indices, target.strides, "item")]
    launch(build, writer, "scatter_places", count, [*lines, f"    {sink}[item] = is_inside ? at : -1;"])

    writer = build.writer()
    writer.math()
    places, source = writer.read(offsets), writer.read(updates)
    writer.read(target)
    sink = writer.write(target)
    value = compute_type(x.dtype)
    index_function(writer, "slice_offset", *collapse(slices, [target.strides[length:]]))
    index_function(writer, "update_tuple", *collapse(tuples, [updates.strides[: len(tuples)]]))
    index_function(writer, "update_slice", *collapse(slices, [updates.strides[len(tuples) :]]))
    writer.constant(count, "COUNT")
    writer.constant(size, "SIZE")
    across, high = writer.grid(count, build.target.max_groups)
    update = load_expression(source, "update_tuple(update) + update_slice(element)", x.dtype)
    combined = _COMBINE[reduction].format(a="a", b="b")
    writer.text(
        "\n".join(
            [
                f"#define OFFSETS {places}",
                f"typealias Value = {value};",
                f"Value load(int at) {{ return {load_expression(sink, 'at', x.dtype)}; }}",
                f"void store(int at, Value x) {{ {sink}[at] = {store_expression('x', x.dtype)}; }}",
                f"Value load_update(int update, int element) {{ return {update}; }}",
                f"Value combine(Value a, Value b) {{ return {combined}; }}",
            ]
        )
    )
    writer.text(template("scatter"))
    groups = (across, high, -(-size // _THREADS))
    build.emit(writer.finish("scatter_slices", groups, variant=reduction))
    return [target]


def _copied(build: VulkanBuilder, x: View, reduction: str, result: TensorType) -> View:
    """A copy of the tensor, to be changed."""
    if reduction != "none" and (x.dtype == dtypes.BOOL or arithmetic_type(x.dtype) != x.dtype):
        # Sums of 16 bits would round at every update.
        raise CannotLower(f"scattering {x.dtype.name} with reduction {reduction} has no kernel")
    target = build.output(result)
    build.copy(x, target)
    return target


def _begin(
    build: VulkanBuilder, x: View, indices: View, reduction: str, result: TensorType
) -> tuple[View, KernelWriter, str]:
    """Copies the tensor; returns the copy and the writer of the second launch, which changes it."""
    target = _copied(build, x, reduction, result)
    writer = build.writer()
    if reduction != "none":
        writer.read(target)
    sink = writer.write(target)
    index_reader(build, writer, indices)
    writer.math()
    return target, writer, sink


def _assign(sink: str, place: str, update: str, reduction: str, target: View) -> str:
    there = f"{sink}[{place}]"
    if reduction == "none":
        return f"{there} = {store_expression(update, target.dtype)};"
    value = _COMBINE[reduction].format(a=load_expression(sink, place, target.dtype), b=update)
    return f"{there} = {store_expression(f'({value})', target.dtype)};"
