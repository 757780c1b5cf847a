"""Blocks of neighbouring windows that a thread has: how many, and how it reads the rows that they share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from vkml.dataclasses import dataclass
from vkml.ir.size import Size, is_multiple, typical
from vkml.ir.windows import Windows
from vkml.ir.wording import counted
from vkml.kernels.items import rows_a_thread
from vkml.kernels.pointwise import emit_store, emit_vector_store
from vkml.kernels.views import View
from vkml.kernels.writer import KernelWriter, load_expression, loaded, storage_type

if TYPE_CHECKING:
    from vkml.kernels.epilogue import Epilogue

MOST_OF_A_ROW = 64
"""Elements of a row of the input that a thread has at a time."""


@dataclass(frozen=True)
class Block:
    """Windows of a thread, and how it reads the input."""

    rows: int
    columns: int
    vector: int
    """Elements that are read at a time."""

    @property
    def variant(self) -> str:
        """For people."""
        return f"{self.rows} × {counted(self.columns, 'result')} a thread"


forced: Block | None = None
"""What tests and benchmarks have taken instead of the rule's choice, where it can be."""


def block_of(x: View, planes: int, windows: Windows, fits: Callable[[Block], bool], most_apart: int) -> Block:
    """The rule: columns where rows of the input are whole vectors; as many rows as keep the device full.

    Windows that are further apart have less in common: of these, fewer are better.

    Args:
        x: (batch, channels, depth, height, width).
        planes: of windows.
        windows: over the last three axes.
        fits: whether a thread whose loops are laid out may have such a block.
        most_apart: windows of a thread in several rows, where these are no neighbours.
    """
    if forced is not None and is_possible(x, windows, forced, fits):
        return forced
    _, height, width = windows.output
    chosen = Block(1, 1, 1)
    # The first is one for every other column alone: a vector of the input for two results.
    for block in (Block(1, 2, 4), Block(1, 4, 4), Block(1, 2, 2)):
        lacking = -(-typical(width) // block.columns) * block.columns
        if is_possible(x, windows, block, fits) and 8 * lacking <= 9 * typical(width):
            chosen = block
            break

    def fit(count: int) -> bool:
        block = Block(count, chosen.columns, chosen.vector)
        is_near = typical(windows.strides[1]) == 1 or count * chosen.columns <= most_apart
        return is_near and is_possible(x, windows, block, fits)

    rows = rows_a_thread(height, planes * -(-width // chosen.columns), fit)
    return Block(rows, chosen.columns, chosen.vector)


def is_possible(x: View, windows: Windows, block: Block, fits: Callable[[Block], bool]) -> bool:
    """Whether a thread can have a block."""
    if block == Block(1, 1, 1):
        return True
    if not keeps_rows(windows, block.columns) or not (block.rows == 1 or fits(block)):
        return False
    if block.vector == 1:
        return block.columns == 1
    return (
        not isinstance(windows.pads_begin[2], Size)
        and block.columns * windows.strides[2] % block.vector == 0
        and block.vector * x.itemsize <= 16
        and x.strides[4] == 1
        and is_multiple(x.shape[4], block.vector)
        and all(is_multiple(number, block.vector) for number in (*x.strides[:4], x.offset))
    )


def keeps_rows(windows: Windows, columns: int) -> bool:
    """Whether a thread holds what it reads of a row: sizes of windows are known, and small."""
    known = (windows.kernel[2], windows.strides[2], windows.dilations[2])
    return not any(isinstance(number, Size) for number in known) and span(windows, columns) <= MOST_OF_A_ROW


def is_known_below(windows: Windows) -> bool:
    """Whether how windows lie below one another is known."""
    return not any(isinstance(each[1], Size) for each in (windows.kernel, windows.strides, windows.dilations))


def emit_block(writer: KernelWriter, windows: Windows, block: Block, *, is_laid_out: bool) -> None:
    """Adds what templates go by, as numbers that the compiler knows where loops are laid out."""
    keeps = keeps_rows(windows, block.columns)
    shift = -windows.pads_begin[2] % block.vector if block.vector > 1 else 0
    vectors = -(-(shift + span(windows, block.columns)) // block.vector) if keeps else 1
    along = (windows.strides[2], windows.dilations[2], windows.kernel[2]) if keeps else (1, 1, 1)
    numbers: dict[str, int] = {
        "ROWS": block.rows, "COLUMNS": block.columns,
        "VECTOR": block.vector, "VECTORS": vectors, "SHIFT": shift,
        **dict(zip(("COLUMN_STEP", "COLUMN_DISTANCE", "WINDOW_COLUMNS"), along, strict=True)),
    }  # fmt: skip
    below: dict[str, int] = {
        "ROW_STEP": windows.strides[1],
        "ROW_DISTANCE": windows.dilations[1],
        "WINDOW_ROWS": windows.kernel[1],
        # Rows of the input that the block's windows span; those of its window where it has one row.
        "STEPS": windows.kernel[1] if block.rows == 1 else input_rows(windows, block.rows),
    }
    if is_laid_out:
        numbers |= below
    else:
        for name, number in below.items():
            writer.constant(number, name)
    writer.text("\n".join(f"static const int {name} = {number};" for name, number in numbers.items()))
    flags = {"IS_LAID_OUT": is_laid_out, "KEEPS_ROWS": keeps}
    writer.text("\n".join(f"static const bool {name} = {str(flag).lower()};" for name, flag in flags.items()))
    writer.text(f"#define LOOP {'[ForceUnroll]' if is_laid_out else ''}")
    writer.constant(-(-windows.output[1] // block.rows), "BLOCKS")
    writer.constant(-(-windows.output[2] // block.columns), "COLUMN_BLOCKS")


def items_of(planes: int, windows: Windows, block: Block) -> int:
    """Threads for so many planes of windows."""
    _, height, width = windows.output
    return planes * -(-height // block.rows) * -(-width // block.columns)


def emit_vectors(writer: KernelWriter, x: View, width: int, channel: str = "channel") -> None:
    """Adds ``int plane_start(int image, int channel)`` and ``load_vector(start, d, h, w)``.

    Args:
        writer: of the kernel, whose source calls the type of elements ``Accumulator``.
        x: (batch, channels, depth, height, width).
        width: elements of a vector.
        channel: of the input, by the one that is asked for.
    """
    pointer, steps = writer.read(x, width=width), tuple(step // width for step in x.strides[:4])
    start = writer.offset(("image", channel), steps[:2])
    place = writer.offset(("d", "h"), steps[2:])
    column = f"uint(w) / {width}" if width > 1 else writer.offset(("w",), x.strides[4:])
    at = f"start + {place} + {column}"
    lines = [f"return vector<Accumulator, 1>({load_expression(pointer, at, x.dtype)});"]
    if width > 1:
        raw = f"vector<{storage_type(x.dtype)}, {width}> raw"
        lines = [
            f"{raw} = loadAligned<{width * x.itemsize}>({pointer} + ({at}));",
            f"vector<Accumulator, {width}> found;",
            f"[ForceUnroll] for (int j = 0; j < {width}; ++j) found[j] = {loaded('raw[j]', x.dtype)};",
            "return found;",
        ]
    writer.text(f"int plane_start(int image, int channel) {{ return {start}; }}")
    arguments = "int start, int d, int h, int w"
    writer.text("\n".join([f"vector<Accumulator, {width}> load_vector({arguments})", "{", *lines, "}"]))


def emit_line_store(
    writer: KernelWriter,
    space: tuple[int, int, int, int],
    outputs: Sequence[View],
    epilogue: Epilogue | None,
    accumulator: str,
    columns: int,
) -> None:
    """Adds ``void store_line(int image, int channel, int row, int column, Line x)``, of so many columns.

    Args:
        writer: of the kernel, whose source calls vectors of results ``Line``.
        space: images, channels, rows and columns.
        outputs: views of the node's outputs.
        epilogue: what is applied first.
        accumulator: Slang type of a result.
        columns: of a line.
    """
    if columns == 1:
        emit_store(writer, space, outputs, epilogue, accumulator)
        line = "store(image, channel, row, column, x[0]);"
    else:
        emit_vector_store(writer, space, outputs, epilogue, accumulator, "store_vector", columns)
        line = "store_vector(image, channel, row, column, x);"
    writer.text(f"void store_line(int image, int channel, int row, int column, Line x) {{ {line} }}")


def span(windows: Windows, columns: int) -> int:
    """Columns of the input that so many windows beside each other hold."""
    return (columns - 1) * windows.strides[2] + windows.extents[2]


def input_rows(windows: Windows, rows: int) -> int:
    """Rows of the input that so many windows below each other span."""
    return (rows - 1) * windows.strides[1] + windows.extents[1]
