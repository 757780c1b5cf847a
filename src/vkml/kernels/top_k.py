"""The first elements of rows in order, and their places."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from vkml.ir import TensorType, dtypes
from vkml.ir.size import typical
from vkml.kernels.index import WORKGROUP
from vkml.kernels.reduce import index_function
from vkml.kernels.row_spread import element_function
from vkml.kernels.selection import chunks_of, is_selected, select, worst
from vkml.kernels.views import View, collapse
from vkml.kernels.writer import KernelWriter, compute_type, load_expression, store_expression, template

if TYPE_CHECKING:
    from vkml.lowering.vulkan_builder import VulkanBuilder

CHUNK = 1024
"""Elements that a workgroup sorts: with their places 12 KiB at most, of the 16 that every device has."""
_THREADS = 256
LEAST_COPIED = 1 << 16
"""Elements from which rows that memory runs across are copied first.

Threads beside each other would read a line each, for one element of it.
"""


def top_k(
    build: VulkanBuilder,
    x: View,
    axis: int,
    k: int,
    *,
    is_largest: bool,
    values: View | None,
    places: View | None,
) -> None:
    """The `k` greatest or least elements along `axis`, best first, of equals the first; NaN is the greatest.

    Args:
        build: where launches go.
        x: any strides.
        axis: that the rows lie along.
        k: at most the axis' size.
        is_largest: whether the greatest are wanted.
        values: where elements go, k in the place of the axis; None where they are not wanted.
        places: where their places along the axis go, int64; None likewise.
    """
    length = x.shape[axis]
    others = [a for a in range(len(x.shape)) if a != axis]
    rows = math.prod(x.shape[a] for a in others)
    if is_selected(build.target, x.dtype, length, k):
        _select(build, x, axis, k, is_largest, (values, places))
        return
    chunk = 2
    while chunk < min(typical(length), CHUNK):
        chunk *= 2
    threads = min(chunk // 2, _THREADS, build.target.max_invocations)
    runs, covered = -(-length // chunk), chunk
    is_last = not runs > 1
    writer = _begin(build, x, length, k, is_largest)
    source = writer.read(x)
    index_function(
        writer, "input_row", *collapse([x.shape[a] for a in others], [[x.strides[a] for a in others]])
    )
    place = writer.offset(("place",), (x.strides[axis],))
    element = load_expression(source, f"input_row(row) + {place}", x.dtype)
    writer.text(f"Value load(int row, int place) {{ return {element}; }}")
    made = (values, places) if is_last else _scratch(build, x, rows, runs, min(chunk, k))
    _emit_keep(writer, axis, made, is_last)
    writer.text(f"#define CHUNK {chunk}\nstatic const int THREADS = {threads};")
    writer.constant(runs, "RUNS")
    writer.constant(rows * runs, "TOTAL")
    network = writer.word("chunk", chunk)
    across, high = writer.grid(rows * runs, build.target.max_groups)
    writer.text(template("top_k"))
    writer.text(
        "\n".join(
            [
                '[shader("compute")] [numthreads(THREADS, 1, 1)]',
                "void main(uint3 group : SV_GroupID, uint thread : SV_GroupIndex)",
                "{",
                "    int item = int(group.x + group.y * ACROSS);",
                "    if (item >= TOTAL) return;",
                f"    sort_chunk(item / RUNS, item % RUNS, int(thread), {network});",
                "}",
            ]
        )
    )
    reason = f"{rows} rows of {length}"
    build.emit(writer.finish("top_k_sort", (across, high, 1), variant=f"chunks of {chunk}", reason=reason))
    while not is_last:
        is_last = not runs > 2
        more = -(-runs // 2)
        result = (values, places) if is_last else _scratch(build, x, rows, more, min(2 * covered, k))
        _merge(build, x, axis, k, made, result, (rows, runs, covered), is_largest, is_last)
        made, runs, covered = result, more, covered * 2


def _select(
    build: VulkanBuilder,
    x: View,
    axis: int,
    k: int,
    is_largest: bool,
    targets: tuple[View | None, View | None],
) -> None:
    """Thins rows chunk by chunk, then what chunks leave, until a row is one chunk."""
    others = [a for a in range(len(x.shape)) if a != axis]
    elements = x.transpose((*others, axis))
    if x.strides[axis] != 1 and typical(math.prod(x.shape)) >= LEAST_COPIED:
        elements = build.contiguous(elements)
    rows = math.prod(x.shape[a] for a in others)
    places: View | None = None
    while True:
        length = elements.shape[-1]
        chunks = chunks_of(build.target, rows, length, k, is_of_runs=places is not None)
        runs = -(-length // chunks.size)
        is_last = not runs > 1
        made = targets if is_last else _scratch(build, x, rows, runs, k)
        keep = _keeper(elements, places, axis, made, is_last, is_largest)
        select(
            build, elements, k, chunks,
            is_largest=is_largest, keep=keep, runs=runs, is_of_runs=places is not None,
        )  # fmt: skip
        if is_last:
            return
        flat = [view.reshape((rows, runs * k)) for view in made if view is not None]
        assert flat[0] is not None and flat[1] is not None
        elements, places = flat[0], flat[1]


def _keeper(
    elements: View,
    places: View | None,
    axis: int,
    targets: tuple[View | None, View | None],
    is_last: bool,
    is_largest: bool,
) -> Callable[[KernelWriter], None]:
    """What adds ``keep``, by which the element at a place of a row is stored, and where that lay at first."""

    def emit(writer: KernelWriter) -> None:
        element_function(writer, "element", elements, len(elements.shape) - 1)
        found = "place"
        if places is not None:
            element_function(writer, "element_place", places, 1)
            found = "element_place(row, place)"
        _emit_keep(writer, axis, targets, is_last, "store_kept")
        lines = [
            f"Value x = place < LENGTH ? element(row, place) : {worst(elements.dtype, is_largest)};",
            f"int at = place < LENGTH ? {found} : 0;",
            "store_kept(row, run, i, x, at);",
        ]
        writer.text("\n".join(["void keep(int row, int run, int i, int place)", "{", *lines, "}"]))

    return emit


def _merge(
    build: VulkanBuilder,
    x: View,
    axis: int,
    k: int,
    given: tuple[View | None, View | None],
    result: tuple[View | None, View | None],
    sizes: tuple[int, int, int],
    is_largest: bool,
    is_last: bool,
) -> None:
    """Merges pairs of runs; `sizes` are the rows, the runs of each, and the elements that a run covers."""
    rows, runs, covered = sizes
    elements, places = given
    assert elements is not None and places is not None
    kept = elements.shape[2]
    writer = _begin(build, x, x.shape[axis], k, is_largest)
    at = f"(row * RUNS + run) * {writer.constant(kept)} + i"
    for name, view, type_ in (("value", elements, "Value"), ("place", places, "int")):
        element = load_expression(writer.read(view), at, view.dtype)
        writer.text(f"{type_} run_{name}(int row, int run, int i) {{ return {element}; }}")
    _emit_keep(writer, axis, result, is_last)
    for name, number in (("RUNS", runs), ("COVERED", covered), ("KEPT", kept), ("TOTAL", rows * runs * kept)):
        writer.constant(number, name)
    across, high = writer.grid(-(-rows * runs * kept // WORKGROUP), build.target.max_groups)
    writer.text(template("top_k"))
    writer.text(
        "\n".join(
            [
                f'[shader("compute")] [numthreads({WORKGROUP}, 1, 1)]',
                "void main(uint3 group : SV_GroupID, uint thread : SV_GroupIndex)",
                "{",
                f"    int item = int((group.x + group.y * ACROSS) * {WORKGROUP} + thread);",
                "    if (item >= TOTAL) return;",
                "    merge_runs(item / KEPT / RUNS, item / KEPT % RUNS, item % KEPT);",
                "}",
            ]
        )
    )
    build.emit(writer.finish("top_k_merge", (across, high, 1), reason=f"{runs} runs of {kept}"))


def _begin(build: VulkanBuilder, x: View, length: int, k: int, is_largest: bool) -> KernelWriter:
    """A writer that knows how elements compare."""
    writer = build.writer()
    writer.math()
    writer.constant(length, "LENGTH")
    writer.constant(k, "K")
    better = f"a {'>' if is_largest else '<'} b"
    if x.dtype.is_float:
        first, second = ("a", "b") if is_largest else ("b", "a")
        better = f"is_nan({first}) ? !is_nan({second}) : {better}"
    writer.text(
        f"typealias Value = {compute_type(x.dtype)};\n"
        f"bool before_value(Value a, Value b) {{ return {better}; }}"
    )
    return writer


def _scratch(build: VulkanBuilder, x: View, rows: int, runs: int, kept: int) -> tuple[View, View]:
    elements = build.scratch(TensorType(x.dtype, (rows, runs, kept)))
    return elements, build.scratch(TensorType(dtypes.INT32, (rows, runs, kept)))


def _emit_keep(
    writer: KernelWriter,
    axis: int,
    targets: tuple[View | None, View | None],
    is_last: bool,
    name: str = "keep",
) -> None:
    """Adds ``keep``, or another name, by which an element and its place are stored as number `i` of a run."""
    lines = []
    for view, value in zip(targets, ("x", "at"), strict=True):
        if view is None:
            continue
        stored = store_expression(value, view.dtype)
        if is_last:
            others = [a for a in range(len(view.shape)) if a != axis]
            row = f"{value}_row"
            index_function(
                writer, row, *collapse([view.shape[a] for a in others], [[view.strides[a] for a in others]])
            )
            place = f"{row}(row) + {writer.offset(('i',), (view.strides[axis],))}"
        else:
            place = writer.offset(("row", "run", "i"), view.strides)
        lines.append(f"    {writer.write(view)}[{place}] = {stored};")
    writer.text("\n".join([f"void {name}(int row, int run, int i, Value x, int at)", "{", *lines, "}"]))
