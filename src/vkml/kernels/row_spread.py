"""How rows are spread over threads, and functions by which these read and write vectors of a row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from vkml.dataclasses import dataclass
from vkml.ir import DType
from vkml.ir.size import Size, is_multiple, typical
from vkml.ir.wording import counted
from vkml.kernels.reduce import index_function
from vkml.kernels.views import View, collapse
from vkml.kernels.writer import (
    KernelWriter,
    compute_type,
    load_expression,
    loaded,
    storage_type,
    store_expression,
)

if TYPE_CHECKING:
    from vkml.lowering.target import Target

MOST_KEPT = 32
"""Elements of a thread in registers, of which a processor's 64 Ki are 64 each for 1024 threads."""
MOST_KEPT_BY_SOFTWARE = 16
"""Software drivers take long to compile what is unrolled."""
MOST_THREADS = 1024
"""Of a workgroup: rows of 32768 are read once;"""
MOST_SUBGROUPS = 32
"""and what devices allow, where threads count on the size of these."""
LEAST_KEPT = 8
"""Elements that threads have at the least before more of them share a row to fill the device."""
FILLED = 512
"""Threads that a processor has to have: half of those that registers leave room for."""
WORKGROUP = 128
"""Threads of several short rows together."""
SEGMENT = 64
"""Bytes of neighbouring rows at the least that memory is asked for at a time, where it runs across them;"""
MOST_COLUMNS = 32
"""and such rows at the most."""
STREAMING = 256
"""Threads of a workgroup that such rows go through in parts: while one workgroup computes, others read."""


@dataclass(frozen=True)
class Spread:
    """How rows are spread over threads; numbers are powers of two but for the last three."""

    lanes: int
    """Of a subgroup; 1 where the device has no shuffles."""
    columns: int
    """Neighbouring threads that have neighbouring rows, where memory runs across these; else 1."""
    row_threads: int
    """Threads that share a row."""
    blocks: int
    """Of so many columns, in a workgroup."""
    width: int
    """Elements of a vector in a row."""
    kept: int
    """Vectors that a thread holds in registers."""
    chunks: int
    """Parts of a row that go through registers one after the other."""
    is_whole: bool
    """Whether no thread's vectors lie behind the row."""

    @property
    def rows(self) -> int:
        """Of a workgroup."""
        return self.blocks * self.columns

    @property
    def threads(self) -> int:
        """Of a workgroup."""
        return self.rows * self.row_threads

    @property
    def is_kept(self) -> bool:
        """Whether rows fit into registers."""
        return not isinstance(self.chunks, Size) and self.chunks == 1

    @property
    def variant(self) -> str:
        """For people."""
        held = "in registers" if self.is_kept else f"in {self.chunks} parts"
        beside = f", {counted(self.columns, 'row')} beside each other" if self.columns > 1 else ""
        return (
            f"{counted(self.row_threads, 'thread')} a row, {counted(self.rows, 'row')} a workgroup{beside}, "
            f"{counted(self.kept * self.width, 'element')} a thread {held}"
        )

    def declare(self, writer: KernelWriter, count: int, length: int, shuffled: DType) -> None:
        """Adds the constants that templates go by, for so many rows of a length, and ``from_lane``, which
        reads a number of a type from another thread of the subgroup.

        Lanes of a subgroup are taken to be threads in order, as in workgroups of one dimension they are
        everywhere: the number of a subgroup would keep kernels from being phases (`kernels.phases`).
        """
        numbers = {
            "LANES": self.lanes, "COLUMNS": self.columns, "ROW_THREADS": self.row_threads,
            "BLOCKS": self.blocks, "THREADS": self.threads, "WIDTH": self.width, "KEPT": self.kept,
        }  # fmt: skip
        lines = [f"static const int {name} = {number};" for name, number in numbers.items()]
        for name, flag in (("IS_KEPT", self.is_kept), ("IS_WHOLE", self.is_whole)):
            lines.append(f"static const bool {name} = {'true' if flag else 'false'};")
        writer.text("\n".join(lines))
        for name, number in (("LENGTH", length), ("COUNT_ROWS", count), ("CHUNKS", self.chunks)):
            writer.constant(number, name)
        moved = "x"
        if self.lanes > 1:
            writer.need("subgroup_shuffle")
            moved = "WaveReadLaneAt(x, uint(thread % LANES))"
            if shuffled.bits == 64:
                # As two words: not all devices that shuffle do so with integers of 64 bits.
                word = "WaveReadLaneAt(bit_cast<uint2>(x), uint(thread % LANES))"
                moved = f"bit_cast<{compute_type(shuffled)}>({word})"
        type_ = compute_type(shuffled)
        writer.text(f"{type_} from_lane({type_} x, int thread) {{ return {moved}; }}")


def spread_of(
    target: Target, x: View, lead: int, *, is_streamed: bool = False, others: Sequence[View] = ()
) -> Spread:
    """The rule: a subgroup a row, more of them where registers are full, or the device would not be.

    Args:
        target: the device.
        x: rows, of any strides.
        lead: how many dimensions count rows.
        is_streamed: whether rows are read once however long they are.
        others: views of x's shape that are to have its vectors, too.
    """
    count, length = math.prod(x.shape[:lead]), math.prod(x.shape[lead:])
    many, long = typical(count), typical(length)
    is_gpu = target.processors > 1
    most = MOST_KEPT if is_gpu else MOST_KEPT_BY_SOFTWARE
    lanes = target.subgroup_size if "subgroup_shuffle" in target.capabilities else 1
    limit = min(target.max_invocations, MOST_THREADS if is_gpu else 256)
    if lanes > 1:
        limit = min(limit, MOST_SUBGROUPS * lanes)
    [kept_steps], [row_steps] = (collapse(x.shape[part], [x.strides[part]])[1] for part in _parts(lead))
    least_columns = max(1, min(SEGMENT // x.itemsize, limit))
    is_across = kept_steps[-1] == 1 and row_steps[-1] != 1 and many >= least_columns
    threads, columns, width = 1, 1, 1
    if is_across:
        fits = long <= limit // least_columns * most
        if is_streamed or not fits:
            limit = min(limit, STREAMING)
        groups = target.processors * (MOST_THREADS // STREAMING if limit <= STREAMING else 1)
        columns = min(MOST_COLUMNS, limit)
        while columns > least_columns and (
            many < columns * groups or (fits and not is_streamed and long > limit // columns * most)
        ):
            columns //= 2
    else:
        width = 4 if all(is_in_vectors(view, lead, 4) for view in (x, *others)) else 1
        while threads * 4 < long and threads < target.subgroup_size:
            threads *= 2
    while threads * most < long and threads * columns < limit:
        threads *= 2
    while (
        many * threads < target.processors * FILLED
        and threads * LEAST_KEPT < long
        and threads * columns < min(256, limit)
    ):
        threads *= 2
    step = threads * width
    most_steps = most // width
    if isinstance(length, Size):
        kept = max(1, min(most_steps, -(-long // step)))
        chunks = -(-length // (step * kept))
    else:
        steps = max(1, -(-length // step))
        chunks = -(-steps // most_steps)
        kept = -(-steps // chunks)
    return Spread(
        lanes=lanes,
        columns=columns,
        row_threads=threads,
        # Whole subgroups, so that a thread's lane is what its number leaves.
        blocks=max(1, max(min(WORKGROUP, limit), lanes) // (threads * columns)),
        width=width,
        kept=kept,
        chunks=chunks,
        is_whole=not isinstance(length, Size) and length == step * kept * chunks,
    )


def _parts(lead: int) -> tuple[slice, slice]:
    return slice(None, lead), slice(lead, None)


def element_function(writer: KernelWriter, name: str, view: View, lead: int) -> None:
    """Adds ``T NAME(int row, int column)``: of a view whose first `lead` dimensions count rows."""
    pointer = writer.read(view)
    element = load_expression(pointer, _offset(writer, name, view, lead), view.dtype)
    writer.text(f"{compute_type(view.dtype)} {name}(int row, int column) {{ return {element}; }}")


def vector_function(writer: KernelWriter, name: str, view: View, lead: int, width: int) -> None:
    """Adds ``vector<T, width> NAME(int row, int column)``: neighbours in a row; see `element_function`."""
    type_ = f"vector<{compute_type(view.dtype)}, {width}>"
    if width == 1 or not is_in_vectors(view, lead, width):
        element_function(writer, f"{name}_one", view, lead)
        # Of one number, where a vector lies within what repeats it.
        step = "" if width == 1 or _repeats(view, lead, width) else " + j"
        lines = [
            f"{type_} found;",
            f"[ForceUnroll] for (int j = 0; j < {width}; ++j)",
            f"found[j] = {name}_one(row, column{step});",
            "return found;",
        ]
        if not step:
            lines = [f"return {type_}({name}_one(row, column));"]
    else:
        pointer = writer.read(view, width=width)
        offset = _offset(writer, name, view, lead)
        vector = f"vector<{storage_type(view.dtype)}, {width}>"
        lines = [
            f"{vector} raw = loadAligned<{width * view.itemsize}>({pointer} + uint({offset}) / {width});",
            f"{type_} found;",
            f"[ForceUnroll] for (int j = 0; j < {width}; ++j)",
            f"found[j] = {loaded('raw[j]', view.dtype)};",
            "return found;",
        ]
    writer.text("\n".join([f"{type_} {name}(int row, int column)", "{", *lines, "}"]))


def vector_store(writer: KernelWriter, name: str, view: View, lead: int, width: int) -> None:
    """Adds ``void NAME(int row, int column, vector<T, width> x)``, which writes neighbours in a row."""
    if width == 1 or not is_in_vectors(view, lead, width):
        pointer = writer.write(view)
        offset = _offset(writer, name, view, lead, "column + j")
        lines = [
            f"[ForceUnroll] for (int j = 0; j < {width}; ++j)",
            f"{pointer}[{offset}] = {store_expression('x[j]', view.dtype)};",
        ]
    else:
        pointer = writer.write(view, width=width)
        offset = _offset(writer, name, view, lead)
        lines = [
            f"vector<{storage_type(view.dtype)}, {width}> raw;",
            f"[ForceUnroll] for (int j = 0; j < {width}; ++j)",
            f"raw[j] = {store_expression('x[j]', view.dtype)};",
            f"storeAligned<{width * view.itemsize}>({pointer} + uint({offset}) / {width}, raw);",
        ]
    arguments = f"int row, int column, vector<{compute_type(view.dtype)}, {width}> x"
    writer.text("\n".join([f"void {name}({arguments})", "{", *lines, "}"]))


def _offset(writer: KernelWriter, name: str, view: View, lead: int, column: str = "column") -> str:
    """Adds functions for the parts of an element's offset; their sum at a column."""
    for axis, part in zip(("row", "column"), _parts(lead), strict=True):
        index_function(writer, f"{name}_{axis}", *collapse(view.shape[part], [view.strides[part]]))
    return f"{name}_row(row) + {name}_column({column})"


def is_in_vectors(view: View, lead: int, width: int) -> bool:
    """Whether neighbours in a row, from each multiple of `width` on, are aligned vectors."""
    (_, [row_steps]), (sizes, [steps]) = (
        collapse(view.shape[part], [view.strides[part]]) for part in _parts(lead)
    )
    return (
        view.itemsize * width <= 16
        and steps[-1] == 1
        and is_multiple(sizes[-1], width)
        and all(is_multiple(number, width) for number in (*steps[:-1], *row_steps, view.offset))
    )


def _repeats(view: View, lead: int, width: int) -> bool:
    """Whether neighbours in a row, from each multiple of `width` on, are the same element."""
    sizes, [steps] = collapse(view.shape[lead:], [view.strides[lead:]])
    return steps[-1] == 0 and is_multiple(sizes[-1], width)
