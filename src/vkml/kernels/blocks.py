"""Elementwise kernels of operands that lie along different axes, such as transposes: a block a thread.

A thread has a block of rows and columns. It reads each operand along the axis along which this lies, in
vectors, and writes results along theirs: what changes places does so in registers, without shared memory or
barriers. A warp of 32 threads has 8 × 4 blocks: of float32 it reads lines of 128 bytes and writes pieces of
64, of float16 half of that or, where large tensors are copied as bits, as much: whole sectors all of them. A
workgroup has 16 × 16 blocks, so that the rest of a line is written by its neighbours at about the time. Where
rows or columns are no multiple of a vector, a thread has single elements that lie as far apart as there are
threads in its tile, so that neighbours still read and write neighbouring elements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from vkml.dataclasses import dataclass
from vkml.ir import Graph
from vkml.ir.scalar_body import scalar_results
from vkml.ir.size import Size, is_deciding, is_multiple, typical
from vkml.kernels.items import WORKGROUP, finish_items
from vkml.kernels.scalar_text import write_statements
from vkml.kernels.spec import Dispatch
from vkml.kernels.views import View
from vkml.kernels.writer import (
    NEEDS,
    KernelWriter,
    compute_type,
    is_packed_constant,
    loaded,
    storage_type,
    store_expression,
)

LEAST_ELEMENTS = 1 << 16
"""Of tensors from which on a thread has a block: of fewer, multiprocessors lack work, caches hold them. On an
H200 matrices of 256 × 256 take as long with blocks as without."""
LEAST_SIDE = 4
"""Of rows and columns: below, a sector that is read for one element has few others."""
_SIDE = 4
"""Of a block, in elements."""
_WORD = 4
_WIDE_SIDE = 8
"""Of a block of elements of one or two bytes that are copied as bits of words: of two in vectors of 16 bytes,
so that a warp reads and writes pieces as long as of float32;"""
LEAST_IN_WORDS = 1 << 22
"""of tensors of so many elements: a thread has 64."""
_VECTOR = 4
"""Elements of a vector, at the most."""
_MOST_WHOLE = 4
"""Operands of which a thread keeps whole blocks of `_SIDE` in registers; of more, those are smaller."""
_WARP = 32
forced: bool | None = None
"""For tests: whether threads have blocks wherever operands lie along different axes, whatever their sizes."""
_NEAR_COLUMNS = 4
"""Threads of a warp that are beside one another along columns, where these are vectors."""


@dataclass(frozen=True)
class Direction:
    """How threads' blocks lie along an axis of the index space."""

    axis: int
    width: int
    """Elements of a vector."""
    count: int
    """Vectors that a thread has, `lanes` vectors apart."""
    lanes: int
    """Threads of a tile."""

    @property
    def side(self) -> int:
        """Elements of a block."""
        return self.width * self.count

    def tiles(self, sizes: Sequence[int]) -> int:
        """How many tiles there are along the axis."""
        return -(-sizes[self.axis] // (self.side * self.lanes))


@dataclass(frozen=True)
class Blocks:
    """The blocks of a launch's threads."""

    rows: Direction
    """Along the axis along which some operands lie that are read;"""
    columns: Direction
    """along the one along which the results do."""
    is_in_words: bool = False
    """Whether elements are moved as bits of words of 4 bytes."""

    @property
    def items(self) -> int:
        """Threads of a tile."""
        return self.rows.lanes * self.columns.lanes


def blocks_of(
    leaves: Sequence[View],
    outputs: Sequence[View],
    sizes: tuple[int, ...],
    strides: Sequence[tuple[int, ...]],
    *,
    is_copy: bool,
) -> Blocks | None:
    """The blocks for an index space; None where threads had better have elements along its last axis.

    Args:
        leaves: what is read.
        outputs: what is written.
        sizes: the index space.
        strides: of leaves and outputs over it.
        is_copy: whether elements are written as they are read.
    """
    total = typical(math.prod(sizes))
    if (total < LEAST_ELEMENTS and not forced) or any(is_packed_constant(view) for view in leaves):
        return None
    views, read, written = [*leaves, *outputs], strides[: len(leaves)], strides[len(leaves) :]
    columns = _lies_along(written[0])
    if columns is None or any(stride[columns] != 1 for stride in written):
        return None
    turned = [stride for stride in read if stride[columns] not in (-1, 0, 1)]
    rows = next((axis for axis in map(_lies_along, turned) if axis is not None), None)
    if rows is None:
        return None
    if not forced and any(typical(sizes[axis]) < LEAST_SIDE for axis in (rows, columns)):
        return None
    whole = sum(any(stride[axis] != 0 for axis in (rows, columns)) for stride in read)
    widest = max(view.itemsize for view in views)

    def spread(side: int, vector: int) -> Blocks:
        def lanes_for(axis: int) -> int:
            return _power_of_two(-(-typical(sizes[axis]) // side))

        even = round(WORKGROUP**0.5)
        many_columns = min(even, lanes_for(columns))
        many_rows = min(WORKGROUP // many_columns, lanes_for(rows))
        many_columns = min(WORKGROUP // many_rows, lanes_for(columns))

        def direction(axis: int, other: int, lanes: int, *, is_columns: bool) -> Direction:
            width = vector
            while width > 1 and not all(
                _is_aligned(view, stride, sizes, axis, width)
                for view, stride in zip(views, strides, strict=True)
                if _is_along(stride, axis, other, is_columns=is_columns)
            ):
                width //= 2
            return Direction(axis, width, side // width, lanes)

        return Blocks(
            direction(rows, columns, many_rows, is_columns=False),
            direction(columns, rows, many_columns, is_columns=True),
        )

    if is_copy and widest <= _WORD // 2 and (total >= LEAST_IN_WORDS or forced):
        wide = spread(_WIDE_SIDE, _WIDE_SIDE)
        if min(wide.rows.width, wide.columns.width) * widest >= _WORD:
            return replace(wide, is_in_words=True)
    side = _SIDE if whole <= _MOST_WHOLE and widest <= 4 else _SIDE // 2
    return spread(side, min(side, _VECTOR, 16 // widest))


def _lies_along(stride: tuple[int, ...]) -> int | None:
    """The axis along which an operand's neighbours in memory lie."""
    return next((axis for axis, step in enumerate(stride) if step == 1), None)


def _is_along(stride: tuple[int, ...], axis: int, other: int, *, is_columns: bool) -> bool:
    """Whether an operand is accessed in vectors along one of both axes; columns come first."""
    return stride[axis] == 1 and (is_columns or stride[other] != 1)


def _is_aligned(view: View, stride: tuple[int, ...], sizes: tuple[int, ...], axis: int, width: int) -> bool:
    others = (step for at, step in enumerate(stride) if at != axis)
    return all(is_multiple(number, width) for number in (sizes[axis], view.offset, *others))


def _power_of_two(number: int) -> int:
    """The least one that is no smaller."""
    return 1 << max(number - 1, 0).bit_length()


def generate_blocks(
    body: Graph,
    leaves: Sequence[View],
    outputs: Sequence[View],
    forwards: Sequence[tuple[View, int]],
    sizes: tuple[int, ...],
    strides: Sequence[tuple[int, ...]],
    blocks: Blocks,
    label: str,
    push_limit: int,
    max_groups: int,
) -> Dispatch:
    """The launch; its arguments are those of `pointwise`, and what this has found of them.

    Args:
        body: what is computed of each element.
        leaves: what is read.
        outputs: what is written.
        forwards: of all, the view with all dimensions forwards, and where the first element is in it.
        sizes: the index space.
        strides: of all over it.
        blocks: the threads' blocks.
        label: for profilers.
        push_limit: bytes of push constants the device offers.
        max_groups: workgroups a grid dimension may have.
    """
    rows, columns = blocks.rows, blocks.columns
    writer = KernelWriter(push_limit)
    names = _Constants(writer)
    lines = _coordinates(names, blocks, sizes)
    operands = [
        _Operand(
            f"x{index}" if index < len(leaves) else f"y{index - len(leaves)}", view, above, stride, blocks
        )
        for index, ((view, above), stride) in enumerate(zip(forwards, strides, strict=True))
    ]
    # Threads at the end read elements of others for those that they lack, which others may write meanwhile.
    is_alone = rows.count == columns.count == 1
    for index, operand in enumerate(operands):
        if index < len(leaves):
            pointer = operand.read(writer, in_place=is_alone)
            lines += [*operand.base(names), *operand.load(names, pointer)]
    elements = [operand.element for operand in operands[: len(leaves)]]
    statements: list[str] = []
    results = elements
    if not blocks.is_in_words:
        statements, results = write_statements(writer, scalar_results(body), elements, "            ")
        results = [store_expression(r, view.dtype) for r, view in zip(results, outputs, strict=True)]
    stores: list[str] = []
    for operand in operands[len(leaves) :]:
        pointer = operand.write(writer)
        lines += operand.base(names)
        stores += operand.store(names, pointer, sizes)
    lines += [f"    [ForceUnroll] for (int i = 0; i < {rows.side}; ++i)", "    {"]
    lines += [
        f"        {operand.stored} {operand.name}[{columns.side}];" for operand in operands[len(leaves) :]
    ]
    lines += [
        f"        [ForceUnroll] for (int j = 0; j < {columns.side}; ++j)",
        "        {",
        *statements,
        *[f"            y{index}[j] = {result};" for index, result in enumerate(results)],
        "        }",
        f"        int row = {_first('r', rows, 'i')};",
    ]
    if rows.count > 1:
        lines += [f"        if (row < {names(sizes[rows.axis])})", "        {"]
        stores = ["    " + line for line in stores] + ["        }"]
    lines += [*stores, "    }"]
    if body.nodes:
        writer.math()
    others = math.prod(size for axis, size in enumerate(sizes) if axis not in (rows.axis, columns.axis))
    items = blocks.items * rows.tiles(sizes) * columns.tiles(sizes) * others
    kind = "elements in words" if blocks.is_in_words else "elements"
    variant = f"{rows.side} × {columns.side} {kind} a thread, {len(sizes)}-D"
    form = None
    if not is_deciding():
        form = scalar_results(body), tuple([view.dtype for view in (*leaves, *outputs)])
    return finish_items(writer, items, lines, label, max_groups, variant, form)


class _Constants:
    """Numbers of a kernel's source, each a specialization constant once."""

    def __init__(self, writer: KernelWriter) -> None:
        self._writer = writer
        self._names: dict[int, str] = {}

    def __call__(self, value: int) -> str:
        if isinstance(value, Size):
            return self._writer.constant(value)  # which has one name for equal ones
        if value not in self._names:
            self._names[value] = self._writer.constant(value)
        return self._names[value]


def _coordinates(names: _Constants, blocks: Blocks, sizes: tuple[int, ...]) -> list[str]:
    """Statements that find a thread's first row r0 and column c0, and its place aN along each other axis."""
    rows, columns = blocks.rows, blocks.columns
    # Of a warp: fewer columns than rows where they are vectors, for a sector is full all the same.
    near_columns = min(_NEAR_COLUMNS * (1 if columns.width > 1 else 2), columns.lanes)
    near_rows = min(_WARP // near_columns, rows.lanes)
    lines = [
        f"    uint lane = uint(item) % {blocks.items};",
        f"    int rest = int(uint(item) / {blocks.items});",
        f"    int r0 = int(lane % {near_rows}"
        f" + lane / {near_rows * near_columns} % {rows.lanes // near_rows} * {near_rows});",
        f"    int c0 = int(lane / {near_rows} % {near_columns}"
        f" + lane / {rows.lanes * near_columns} * {near_columns});",
    ]
    for name, direction in (("c", columns), ("r", rows)):
        tiles = names(direction.tiles(sizes))
        span = direction.count * direction.lanes
        scale = f" * {direction.width}" if direction.width > 1 else ""
        lines.append(f"    {name}0 = (rest % {tiles} * {span} + {name}0){scale}; rest /= {tiles};")
        # The last vector begins at most here; only tiles at the end have threads beyond it.
        lines.append(f"    if ({name}0 >= {names(sizes[direction.axis])}) return;")
        for vector in range(1, direction.count):
            last = f"{names(sizes[direction.axis])} - {direction.width}"
            lines.append(f"    int {name}{vector} = min({_first(name, direction, vector)}, {last});")
    others = [axis for axis in range(len(sizes)) if axis not in (rows.axis, columns.axis)]
    for axis in reversed(others[1:]):
        lines.append(f"    int a{axis} = rest % {names(sizes[axis])}; rest /= {names(sizes[axis])};")
    if others:
        lines.append(f"    int a{others[0]} = rest;")
    return lines


def _behind(place: str, distance: int) -> str:
    return f"{place} + {distance}" if distance else place


def _first(name: str, direction: Direction, vector: int | str) -> str:
    """Where an element of a block is, which is counted in vectors; as text in elements."""
    step = direction.lanes * direction.width
    if not isinstance(vector, str):
        return _behind(f"{name}0", vector * step)
    if direction.width == 1:
        return f"{name}0 + {vector} * {step}"
    if direction.count == 1:
        return f"{name}0 + {vector}"
    return f"{name}0 + {vector} / {direction.width} * {step} + {vector} % {direction.width}"


class _Operand:
    """How a thread accesses its block of an operand.

    Args:
        name: of the block in the source.
        view: the operand, with all dimensions forwards.
        above: where its first element is in the view.
        stride: over the index space.
        blocks: the threads' blocks.
    """

    def __init__(self, name: str, view: View, above: int, stride: tuple[int, ...], blocks: Blocks) -> None:
        self.name, self.view, self._above, self._stride = name, view, above, stride
        self._rows, self._columns = blocks.rows, blocks.columns
        row, column = self._rows.axis, self._columns.axis
        self._has_rows, self._has_columns = stride[row] != 0, stride[column] != 0
        self._along: Direction | None = None
        if _is_along(stride, column, row, is_columns=True):
            self._along = self._columns
        elif _is_along(stride, row, column, is_columns=False):
            self._along = self._rows
        self.width = 1 if self._along is None else self._along.width
        """Elements of a vector."""
        self._a_word = _WORD // view.itemsize if blocks.is_in_words else 0
        """Elements of a word; 0: they are no words' bits."""

    @property
    def stored(self) -> str:
        """The type of elements as they are written."""
        return "uint" if self._a_word else storage_type(self.view.dtype)

    def read(self, writer: KernelWriter, *, in_place: bool) -> str:
        """A pointer to vectors that are read."""
        return writer.read(self.view, in_place=in_place, **self._pointed(writer))

    def write(self, writer: KernelWriter) -> str:
        """A pointer to vectors that are written."""
        return writer.write(self.view, **self._pointed(writer))

    def _pointed(self, writer: KernelWriter) -> dict[str, Any]:
        if not self._a_word:
            return {"width": self.width}
        # What a device takes does not hang on how large a tensor is.
        writer.need(*NEEDS.get(self.view.dtype, ()))
        return {"width": self.width // self._a_word, "reinterpreted_as": "uint"}

    @property
    def _vector(self) -> str:
        """Slang's name for a vector."""
        count = self.width // (self._a_word or 1)
        return f"vector<{self.stored}, {count}>" if count > 1 else self.stored

    def _lanes(self, vector: str) -> list[str]:
        """The elements of a vector, as they are computed with."""
        if not self._a_word:
            return [loaded(f"{vector}[{lane}]", self.view.dtype) for lane in range(self.width)]
        bits, found = 32 // self._a_word, []
        for lane in range(self.width):
            word = f"{vector}[{lane // self._a_word}]" if self.width > self._a_word else vector
            found.append(f"{word} >> {lane % self._a_word * bits} & {(1 << bits) - 1:#x}u")
        return found

    def _joined(self, elements: list[str]) -> str:
        """A vector of elements."""
        if self._a_word:
            bits = 32 // self._a_word
            elements = [
                " | ".join(
                    f"{element} << {at * bits}"
                    for at, element in enumerate(elements[first : first + self._a_word])
                )
                for first in range(0, len(elements), self._a_word)
            ]
        return f"{self._vector}({', '.join(elements)})"

    @property
    def element(self) -> str:
        """The block's element in row i and column j."""
        if self._has_rows:
            return f"{self.name}[i * {self._columns.side} + j]" if self._has_columns else f"{self.name}[i]"
        return f"{self.name}[j]" if self._has_columns else f"{self.name}[0]"

    def base(self, names: _Constants) -> list[str]:
        """Where its part for the places along other axes begins, in vectors."""
        terms = [
            f"a{axis} * {names(step // self.width)}"
            for axis, step in enumerate(self._stride)
            if axis not in (self._rows.axis, self._columns.axis) and step != 0
        ]
        if self._above:
            terms.append(names(self._above // self.width))
        return [f"    int {self.name}at = {' + '.join(terms) or '0'};"]

    def _place(self, names: _Constants, row: str, column: str) -> str:
        """The offset of the vector that begins in a row and a column."""
        terms = [f"{self.name}at"]
        for direction, coordinate in ((self._rows, row), (self._columns, column)):
            step = self._stride[direction.axis]
            if direction is self._along:
                terms.append(coordinate if self.width == 1 else f"uint({coordinate}) / {self.width}")
            elif step != 0:
                factor = f"({coordinate})" if " " in coordinate else coordinate
                terms.append(f"{factor} * {names(step // self.width)}")
        return " + ".join(terms)

    def load(self, names: _Constants, pointer: str) -> list[str]:
        """Statements that read the block."""
        rows = self._rows if self._has_rows else None
        columns = self._columns if self._has_columns else None
        count = (rows.side if rows else 1) * (columns.side if columns else 1)
        type_ = self.stored if self._a_word else compute_type(self.view.dtype)
        lines = [f"    {type_} {self.name}[{count}];"]
        pitch = columns.side if columns else 1
        for row, at_row in self._steps(rows, "r"):
            for column, at_column in self._steps(columns, "c"):
                place = self._place(names, at_row, at_column)
                first = row * pitch + column
                if self.width == 1:
                    value = loaded(f"{pointer}[{place}]", self.view.dtype)
                    lines.append(f"    {self.name}[{first}] = {value};")
                    continue
                vector, bytes_ = f"{self.name}v{first}", self.width * self.view.itemsize
                lines.append(f"    {self._vector} {vector} = loadAligned<{bytes_}>({pointer} + ({place}));")
                step = pitch if self._along is self._rows else 1
                for lane, value in enumerate(self._lanes(vector)):
                    lines.append(f"    {self.name}[{first + lane * step}] = {value};")
        return lines

    def _steps(self, direction: Direction | None, name: str) -> list[tuple[int, str]]:
        """The elements of a block, along one axis, at which reads begin, and where these are."""
        if direction is None:
            return [(0, f"{name}0")]
        if direction is self._along:
            return [(vector * direction.width, f"{name}{vector}") for vector in range(direction.count)]
        return [
            (element, _behind(f"{name}{element // direction.width}", element % direction.width))
            for element in range(direction.side)
        ]

    def store(self, names: _Constants, pointer: str, sizes: tuple[int, ...]) -> list[str]:
        """Statements that write the results of the row ``row``, which lie along columns."""
        columns = self._columns
        lines = []
        for vector in range(columns.count):
            place = self._place(names, "row", f"c{vector}")
            first = vector * columns.width
            if self.width == 1:
                line = f"{pointer}[{place}] = {self.name}[{first}];"
            else:
                made = self._joined([f"{self.name}[{first + lane}]" for lane in range(self.width)])
                bytes_ = self.width * self.view.itemsize
                line = f"storeAligned<{bytes_}>({pointer} + ({place}), {made});"
            if vector:
                guard = f"{_first('c', columns, vector)} < {names(sizes[columns.axis])}"
                line = f"if ({guard}) {line}"
            lines.append(f"        {line}")
        return lines
