"""Reductions over any axes of what pointwise nodes make of strided views, in one pass or two."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from vkml.dataclasses import dataclass
from vkml.ir import DType, Graph, TensorType
from vkml.ir.scalar import Scalar, argument
from vkml.ir.scalar_body import scalar_results
from vkml.ir.size import Size, is_multiple, typical
from vkml.ir.wording import counted
from vkml.kernels.pointwise import emit_results, emit_store
from vkml.kernels.reduction import Folding, Moments
from vkml.kernels.scalar_text import write_statements
from vkml.kernels.views import View, collapse
from vkml.kernels.writer import (
    NEEDS,
    KernelWriter,
    compute_type,
    load_expression,
    loaded,
    storage_type,
    template,
)

if TYPE_CHECKING:
    from vkml.lowering.vulkan_builder import VulkanBuilder

UNROLLED = 4
"""Accesses of a thread that are under way at a time: memory answers late."""
LEAST_ELEMENTS = 16
"""Of a thread, where a row is cut into ranges: a second launch takes a level."""
COLUMNS = 32
"""Threads beside each other along what is kept, where that is what lies together."""
MOST_THREADS = 1024
"""Of a workgroup where that spares a second launch, 256 elsewhere;"""
MOST_ELEMENTS = 32
"""Of a thread, up to which it does: eight turns of four accesses take as long as four and a level."""
LEAST_BUSY = 0.9
"""Of the processors, that have such workgroups to do, from which on no second launch is needed either."""


@dataclass(frozen=True)
class Elements:
    """What is reduced: what forms make of the elements of views at each place of an index space."""

    views: tuple[View, ...]
    """Of one shape; strides may be 0."""
    forms: tuple[Scalar, ...]
    """One for each folding; argument n is an element of view n."""
    dtypes: tuple[DType, ...]
    """Of what the forms make."""

    @classmethod
    def of(cls, view: View) -> Elements:
        """A view's own."""
        return cls((view,), (argument(0, view.dtype),), (view.dtype,))

    @classmethod
    def made(cls, body: Graph, views: Sequence[View]) -> Elements:
        """What a body makes of views, which correspond to its inputs."""
        return cls(tuple(views), scalar_results(body), tuple(value.tensor.dtype for value in body.outputs))

    @property
    def shape(self) -> tuple[int, ...]:
        return self.views[0].shape


Store = Callable[[KernelWriter, int, Sequence[str]], list[View]]
"""Adds ``void store(int row, …)``, which takes a row's results, of these types; the views that it writes."""


def reduce(
    build: VulkanBuilder, x: View, axes: Sequence[int], how: Folding, result: TensorType
) -> list[View]:
    """Reduces `axes` of `x`; `result` has the remaining elements in order."""

    def store(writer: KernelWriter, rows: int, types: Sequence[str]) -> list[View]:
        epilogue, views = build.take_epilogue(result)
        [type_] = types
        emit_store(writer, (rows,), views, epilogue, type_)
        return views

    return reduce_together(build, Elements.of(x), axes, [how], store)


def moments(build: VulkanBuilder, x: View, axes: Sequence[int], result: TensorType) -> list[View]:
    """Mean and variance over axes of `x`, both of the type `result`."""
    outputs = [build.output(result, index) for index in range(2)]

    def store(writer: KernelWriter, rows: int, types: Sequence[str]) -> list[View]:
        emit_results(writer, (rows,), outputs, dict(zip(("mean", "variance"), types, strict=True)), None, {})
        return outputs

    return reduce_together(build, Elements.of(x), axes, [Moments(result.dtype)], store)


def reduce_together(
    build: VulkanBuilder, elements: Elements, axes: Sequence[int], hows: Sequence[Folding], store: Store
) -> list[View]:
    """Reduces the same axes of several values that are made of the same views.

    A single pass where there are enough rows to fill the device, otherwise rows are cut into ranges and a
    second launch joins what comes of these.

    Args:
        build: where the launches go.
        elements: what is reduced; none of the sizes is 0.
        axes: of the index space.
        hows: what is done to each of the values.
        store: what is done with the results.
    """
    kept = [axis for axis in range(len(elements.shape)) if axis not in axes]
    length = math.prod(elements.shape[axis] for axis in axes)
    folded = _Folded(hows, elements.dtypes, length)
    walk = _Walk(build, elements.views, kept, list(axes), accumulator_bytes=8 * len(folded.flat))
    splits = _splits(build, walk)
    range_ = -(-walk.length // splits)
    if splits > 1:
        range_ = -(-range_ // walk.width) * walk.width
        splits = -(-walk.length // range_)
    writer = build.writer()
    folded.declare(writer)
    _emit_loads(writer, walk, elements, folded, range_)
    if splits > 1:
        parts = [build.scratch(TensorType(type_, (walk.outputs, splits))) for type_ in folded.flat]
        number = writer.constant(splits, "SPLITS")
        lines = [f"{writer.write(part)}[row * {number} + split] = x.f{at};" for at, part in enumerate(parts)]
        writer.text(f"void finish(int row, int split, Accumulator x) {{ {' '.join(lines)} }}")
        _launch(build, writer, walk, splits)
        walk = _Walk(build, parts, [0], [1], widest=1)
        writer = build.writer()
        folded.declare(writer)
        _emit_loads_of_parts(writer, walk)
    views = store(writer, walk.outputs, folded.result_types)
    results = ", ".join(folded.results)
    writer.text(f"void finish(int row, int split, Accumulator x) {{ store(row, {results}); }}")
    _launch(build, writer, walk, 1)
    return views


class _Folded:
    """The accumulator of several foldings: a struct of all their numbers, f0, f1, ….

    Args:
        hows: the foldings.
        dtypes: of the elements of each.
        length: how many elements meet in each result.
    """

    def __init__(self, hows: Sequence[Folding], dtypes: Sequence[DType], length: int) -> None:
        self.hows, self.dtypes, self.length = hows, dtypes, length
        self.fields = [how.fields(dtype) for how, dtype in zip(hows, dtypes, strict=True)]
        self.flat = [type_ for types in self.fields for type_ in types]
        self.result_types: list[str] = []
        self.results: list[str] = []
        for at, (how, dtype) in enumerate(zip(hows, dtypes, strict=True)):
            types = [compute_type(type_) for type_ in how.result_types(dtype)]
            self.result_types += types
            made = how.results(at, self.names(at, "x"))
            self.results += [f"{type_}({result})" for type_, result in zip(types, made, strict=True)]

    def names(self, at: int, of: str) -> list[str]:
        """The numbers of one of the foldings in an accumulator."""
        first = sum(len(types) for types in self.fields[:at])
        return [f"{of}.f{first + number}" for number in range(len(self.fields[at]))]

    def declare(self, writer: KernelWriter) -> None:
        """Adds ``Accumulator``, ``initial`` and ``combine``."""
        writer.constant(self.length, "COUNT")
        members = [f"{compute_type(type_)} f{at};" for at, type_ in enumerate(self.flat)]
        lines = [f"struct Accumulator {{ {' '.join(members)} }};"]
        initial, join = [], []
        for at, (how, dtype) in enumerate(zip(self.hows, self.dtypes, strict=True)):
            lines.append(how.functions(at, dtype))
            numbers = self.names(at, "c")
            initial += [f"{to} = {n};" for to, n in zip(numbers, how.initial(dtype), strict=True)]
            join += how.joined(at, numbers, self.names(at, "a"), self.names(at, "b"))
        lines.append(f"Accumulator initial() {{ Accumulator c; {' '.join(initial)} return c; }}")
        lines += ["Accumulator combine(Accumulator a, Accumulator b)", "{", "    Accumulator c;"]
        lines += [*[f"    {line}" for line in join], "    return c;", "}"]
        writer.text("\n".join(lines))
        for type_ in self.flat:
            writer.need(*NEEDS.get(type_, ()))


def _splits(build: VulkanBuilder, walk: _Walk) -> int:
    if isinstance(walk.outputs, Size) or isinstance(walk.length, Size):
        return 1
    wanted = build.target.processors * MOST_THREADS // max(256, walk.rows * walk.row_threads)
    groups = -(-walk.outputs // walk.rows)
    least = LEAST_ELEMENTS * walk.row_threads
    if build.target.processors == 1 or groups >= wanted or walk.length < 4 * least:
        return 1
    return max(1, min(wanted // groups, walk.length // least, 65535))


class _Walk:
    """How rows are spread over threads.

    Args:
        build: where the launch goes.
        views: what is read, of one shape.
        kept: the axes along which rows are numbered, ...
        axes: ... and those along which the elements of a row are.
        widest: neighbours that may be read at once.
        accumulator_bytes: shared memory of a thread, at most.
    """

    def __init__(
        self, build: VulkanBuilder, views: Sequence[View], kept: Sequence[int], axes: Sequence[int],
        widest: int = 4, accumulator_bytes: int = 8,
    ) -> None:  # fmt: skip
        shape = views[0].shape
        self.views = views
        self.outputs = math.prod(shape[axis] for axis in kept)
        self.length = math.prod(shape[axis] for axis in axes)
        self.kept = collapse([shape[a] for a in kept], [[v.strides[a] for a in kept] for v in views])
        self.reduced = collapse([shape[a] for a in axes], [[v.strides[a] for a in axes] for v in views])
        most = min(build.target.max_invocations, 256)
        outputs, length = typical(self.outputs), typical(self.length)
        self.is_column = (
            outputs >= COLUMNS
            and any(strides[-1] == 1 for strides in self.kept[1])
            and not any(strides[-1] == 1 for strides in self.reduced[1])
        )
        """Whether threads beside each other are so along what is kept."""
        self.width = 1 if self.is_column else self._width(widest)
        if self.is_column:
            self.rows = min(COLUMNS, most)
            self.row_threads = min(_threads_a_row(length, most), most // self.rows)
            if _splits(build, self) > 1:
                threads = min(build.target.max_invocations, MOST_THREADS) // self.rows
                shared = threads * self.rows * accumulator_bytes
                is_enough = length <= threads * MOST_ELEMENTS or self._is_even(build.target.processors)
                if is_enough and shared <= build.target.shared_bytes:
                    self.row_threads = threads
        else:
            self.row_threads = _threads_a_row(-(-length // self.width), most)
            self.rows = max(1, most // self.row_threads)
            if outputs < build.target.processors * self.rows:
                self.rows = max(1, 64 // self.row_threads)

    def _is_even(self, processors: int) -> bool:
        """Whether about as many workgroups fall to each processor, so that no rows have to be cut."""
        groups = -(-self.outputs // self.rows)
        return bool(groups >= LEAST_BUSY * processors * -(-groups // processors))

    def _width(self, widest: int) -> int:
        """Neighbours in a row that a thread reads at once: as many as 16-byte accesses allow."""
        width = min(widest, 16 // max(view.itemsize for view in self.views))
        if not any(strides[-1] == 1 for strides in self.reduced[1]):
            return 1
        while width > 1 and not all(
            is_multiple(self.reduced[0][-1], width)
            and (
                strides[-1] == 0
                or (
                    strides[-1] == 1
                    and all(is_multiple(step, width) for step in (*strides[:-1], *kept, view.offset))
                )
            )
            for view, strides, kept in zip(self.views, self.reduced[1], self.kept[1], strict=True)
        ):
            width //= 2
        return width

    def declare(self, writer: KernelWriter, range_: int, unrolled: int) -> None:
        """Adds the constants that the template goes by."""
        threads = (self.rows, self.row_threads) if self.is_column else (self.row_threads, self.rows)
        numbers = {
            "ROW_THREADS": self.row_threads, "ROWS": self.rows, "THREADS_X": threads[0],
            "THREADS_Y": threads[1], "WIDTH": self.width, "UNROLLED": unrolled,
            "STEP": self.row_threads * self.width,
        }  # fmt: skip
        lines = [f"static const int {name} = {number};" for name, number in numbers.items()]
        writer.text("\n".join([*lines, f"static const bool IS_COLUMN = {str(self.is_column).lower()};"]))
        for value, name in ((self.outputs, "OUTPUTS"), (self.length, "LENGTH"), (range_, "RANGE")):
            writer.constant(value, name)


class _Loads:
    """Statements that read the elements of a walk's views at ``row`` and ``at``, the column.

    Args:
        writer: of the kernel.
        walk: over the views.
    """

    def __init__(self, writer: KernelWriter, walk: _Walk) -> None:
        self._width = walk.width
        self.of_row = _coordinates(writer, walk.kept[0], "row", "k", 1)
        """Of the row: coordinates."""
        self.of_column = _coordinates(writer, walk.reduced[0], "at", "c", walk.width)
        """Of the column: coordinates, and the vectors there."""
        self.of_lane: list[str] = []
        """Of a lane: each view's element, x0, x1, …."""
        kept = tuple(f"k{axis}" for axis in range(len(walk.kept[0])))
        reduced = tuple(f"c{axis}" for axis in range(len(walk.reduced[0])))
        for number, view in enumerate(walk.views):
            steps = (*walk.kept[1][number], *walk.reduced[1][number])
            type_, name = compute_type(view.dtype), f"x{number}"
            if walk.width > 1 and steps[-1] == 1:
                pointer, storage = writer.read(view, width=walk.width), storage_type(view.dtype)
                in_vectors = (*kept, *reduced[:-1], f"uint({reduced[-1]}) / {walk.width}")
                offset = writer.offset(in_vectors, (*(step // walk.width for step in steps[:-1]), 1))
                load = f"loadAligned<{walk.width * view.itemsize}>({pointer} + ({offset}))"
                self.of_column.append(f"vector<{storage}, {walk.width}> v{number} = {load};")
                self.of_lane.append(f"{type_} {name} = {loaded(f'v{number}[lane]', view.dtype)};")
            else:
                offset = writer.offset((*kept, *reduced), steps)
                value = load_expression(writer.read(view), offset, view.dtype)
                self.of_column.append(f"{type_} {name} = {value};")


def _coordinates(writer: KernelWriter, sizes: Sequence[int], index: str, stem: str, width: int) -> list[str]:
    """Coordinates of a flat index, of the first of so many neighbours."""
    lines = [f"int {stem}rest = {index};"]
    for axis in range(len(sizes) - 1, 0, -1):
        size = writer.constant(sizes[axis])
        lines.append(f"int {stem}{axis} = {stem}rest % {size}; {stem}rest /= {size};")
    return [*lines, f"int {stem}0 = {stem}rest;"]


def _emit_loads(writer: KernelWriter, walk: _Walk, elements: Elements, folded: _Folded, range_: int) -> None:
    """Adds ``load``, which brings `WIDTH` elements into an accumulator, and ``load_many``, of more."""
    unrolled = _unrolled(walk, range_)
    walk.declare(writer, range_, unrolled)
    loads = _Loads(writer, walk)
    names = [f"x{number}" for number in range(len(walk.views))]
    statements, results = write_statements(writer, elements.forms, names, "")
    types = [compute_type(types[0]) for types in folded.fields]
    for name, turns in (("load", 1), ("load_many", unrolled))[: 1 if unrolled == 1 else 2]:
        count = turns * walk.width
        lines = ["Accumulator c;", *loads.of_row]
        lines += [f"{type_} e{at}[{count}];" for at, type_ in enumerate(types)]
        lines += [
            f"[ForceUnroll] for (int turn = 0; turn < {turns}; ++turn)",
            "{",
            "int at = column + turn * STEP;",
        ]
        lines += [*loads.of_column, f"[ForceUnroll] for (int lane = 0; lane < {walk.width}; ++lane)", "{"]
        lines += [*loads.of_lane, *statements]
        lines += [
            f"e{at}[turn * {walk.width} + lane] = {type_}({result});"
            for at, (type_, result) in enumerate(zip(types, results, strict=True))
        ]
        lines += ["}", "}"]
        for at, how in enumerate(folded.hows):
            lines += how.gathered(at, folded.names(at, "c"), [f"e{at}[{number}]" for number in range(count)])
        writer.text("\n".join([f"Accumulator {name}(int row, int column)", "{", *lines, "return c;", "}"]))
    if unrolled == 1:
        writer.text(_LOAD_MANY)
    writer.math()


def _unrolled(walk: _Walk, range_: int) -> int:
    """Accesses of a thread that are under way at a time, of so many columns."""
    each = typical(range_) // (walk.row_threads * walk.width)
    if walk.is_column and len(walk.views) == 1:
        # Of one element each. What is left at the end comes one by one: fewer than the turns that are spared.
        for unrolled in (4 * UNROLLED, 2 * UNROLLED):
            if each >= unrolled * unrolled:
                return unrolled
    return UNROLLED if each >= UNROLLED else 1


_LOAD_MANY = "Accumulator load_many(int row, int column) { return load(row, column); }"


def _emit_loads_of_parts(writer: KernelWriter, walk: _Walk) -> None:
    """Adds ``load``, which reads an accumulator, each of whose numbers is one of the views'."""
    walk.declare(writer, walk.length, 1)
    loads = _Loads(writer, walk)
    lines = ["Accumulator c;", "int at = column;", *loads.of_row, *loads.of_column]
    lines += [f"c.f{number} = x{number};" for number in range(len(walk.views))]
    writer.text(
        "\n".join(["Accumulator load(int row, int column)", "{", *lines, "return c;", "}", _LOAD_MANY])
    )
    writer.math()


def _launch(
    build: VulkanBuilder, writer: KernelWriter, walk: _Walk, splits: int, label: str = "reduce"
) -> None:
    across, high = writer.grid(-(-walk.outputs // walk.rows), build.target.max_groups)
    writer.text(template("reduce"))
    threads, rows = counted(walk.row_threads, "thread"), counted(walk.rows, "row")
    variant = f"{threads} a row, {rows}, {counted(splits, 'range')}"
    reason = f"{counted(walk.outputs, 'row')} of {walk.length}"
    build.emit(writer.finish(label, (across, splits, high), variant=variant, reason=reason))


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
    walk = _Walk(build, [x], [a for a in range(len(x.shape)) if a != axis], [axis])
    writer = build.writer()
    unrolled = _unrolled(walk, walk.length)
    walk.declare(writer, walk.length, unrolled)
    loads = _Loads(writer, walk)
    writer.math()
    type_ = compute_type(x.dtype)
    beats = f"a {'>' if is_max else '<'} b"
    if x.dtype.is_float:
        beats = f"{beats} || (is_nan(a) && !is_nan(b))"
    writer.text(
        f"""
struct Accumulator {{ {type_} value; int index; }};

bool beats({type_} a, {type_} b) {{ return {beats}; }}
"""
    )
    # A thread meets columns in their order: of equal ones the first stays, or the last comes.
    replaces = "!beats(c.value, found)" if takes_last else "beats(found, c.value)"
    for name, turns in (("load", 1), ("load_many", unrolled)):
        lines = [f"{type_} e[{turns * walk.width}];", *loads.of_row]
        lines += [
            f"[ForceUnroll] for (int turn = 0; turn < {turns}; ++turn)",
            "{",
            "int at = column + turn * STEP;",
            *loads.of_column,
            f"[ForceUnroll] for (int lane = 0; lane < {walk.width}; ++lane)",
            "{",
            *loads.of_lane,
            f"e[turn * {walk.width} + lane] = x0;",
            "}",
            "}",
            "Accumulator c;",
            "c.value = e[0];",
            "c.index = column;",
            f"[ForceUnroll] for (int number = 1; number < {turns * walk.width}; ++number)",
            "{",
            f"{type_} found = e[number];",
            f"int place = column + number / {walk.width} * STEP + number % {walk.width};",
            f"if ({replaces}) {{ c.value = found; c.index = place; }}",
            "}",
            "return c;",
        ]
        writer.text("\n".join([f"Accumulator {name}(int row, int column)", "{", *lines, "}"]))
    writer.text(
        f"""
Accumulator initial() {{ Accumulator x; x.value = {type_}(0); x.index = -1; return x; }}

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
    emit_store(writer, (walk.outputs,), views, epilogue, stored)
    writer.text(f"void finish(int row, int split, Accumulator x) {{ store(row, {stored}(x.index)); }}")
    _launch(build, writer, walk, 1, "arg_max" if is_max else "arg_min")
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
