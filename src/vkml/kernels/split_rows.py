"""Launches that scale the rows of matrices of floats and split them into pieces of float16."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vkml.dataclasses import dataclass
from vkml.ir import TensorType, dtypes
from vkml.ir.size import is_multiple
from vkml.ir.wording import counted
from vkml.kernels.packed_weights import K_PADDING, padded
from vkml.kernels.views import View
from vkml.kernels.writer import CODED, KernelWriter, load_expression, loaded, template

if TYPE_CHECKING:
    from vkml.lowering.vulkan_builder import VulkanBuilder

SLACK = 128
"""Lines behind the last that tiles may read."""
BLOCK = 32
"""Steps of k whose pieces lie together."""
_TURNED = 32
"""Rows, and steps of k, that a workgroup turns round at a time."""
_SUBGROUPS = 8
_LOADS_ALONE = 8
"""Vectors of four that a lane keeps of a row that is one subgroup's,"""
_LOADS = 16
"""and of one that is a workgroup's."""
_LEAST_RANGE = 256
"""Of k, of which a workgroup finds the largest magnitudes;"""
_MOST_RANGES = 16
"""the most of such ranges: every workgroup that splits looks at what all of them have found."""
_GROUPS = 4
"""Workgroups that a processor should have."""
_MOST_BLOCKS = 16
"""Of k, which one of them splits."""


@dataclass(frozen=True)
class SplitRows:
    """Rows of (batch, rows, k) in pieces."""

    info: View
    """int32, (batch, rows, 2): a scale's exponent, and how many elements pieces hold fewer bits of."""
    pieces: View
    """float16, a line of whole steps of k a row, in blocks of 32, these in pieces; then slack."""
    count: int
    """Of pieces: 2 hold what float32 does, 1 what TF32 does."""

    def define(self, writer: KernelWriter, rows: View, batch: int = 1) -> str:
        """The names that a kernel reads it by.

        Args:
            writer: of the kernel.
            rows: (batch, rows, k) that were split.
            batch: of the product.
        """
        count, line = rows.shape[1], self.pieces.shape[1]
        is_one = batch == 1 or rows.shape[0] == 1
        numbers = {
            "A_BATCH": 0 if is_one else count * line,
            "A_LINE": line,
            "A_LINES": count + SLACK,
            "A_LENGTH": line,
            "INFO_BATCH": 0 if is_one else count,
        }
        for name, number in numbers.items():
            writer.constant(number, name)
        names = {
            "SCALED": 1,
            "A_ALONG_K": 1,
            "A_WORDS": writer.read(self.pieces, width=4, reinterpreted_as="uint"),
            "A_INFO": writer.read(self.info, width=2, reinterpreted_as="uint"),
        }
        text = [f"#define {name} {value}" for name, value in names.items()]
        return "\n".join([*text, "static const bool IS_WHOLE = true;"])


def emit_split_rows(build: VulkanBuilder, rows: View, count_of_pieces: int) -> SplitRows:
    """Emits the launches that split rows of floats (batch, rows, k) into one or two pieces."""
    batch, count, k = rows.shape
    line = count_of_pieces * padded(k, K_PADDING)
    pieces = build.scratch(TensorType(dtypes.FLOAT16, (batch * count + SLACK, line)))
    info = build.scratch(TensorType(dtypes.INT32, (batch, count, 2)))
    split = SplitRows(info, pieces, count_of_pieces)
    if rows.strides[1] == 1 and rows.strides[2] != 1:
        _emit_columns(build, rows, split, _emit_ranges(build, rows, split))
    else:
        _emit_rows(build, rows, split)
    return split


def _emit_rows(build: VulkanBuilder, rows: View, split: SplitRows) -> None:
    """Emits the one launch for rows that memory runs along."""
    batch, count, k = rows.shape
    lanes = build.target.subgroup_size
    writer = build.writer()
    for name, number in zip(
        ("steps", "batch_stride", "row_stride", "k_stride"), (k, *rows.strides), strict=True
    ):
        writer.word(name, number)
    writer.word("k_padded", padded(k, K_PADDING))
    writer.constant(count, "ROWS")
    subgroups, loads = _share_of_row(padded(k, K_PADDING), lanes)
    across, down = writer.grid(-(-count // (_SUBGROUPS // subgroups)), build.target.max_groups)
    is_vector = rows.strides[2] == 1 and all(
        is_multiple(number, 4) for number in (k, rows.offset, *rows.strides[:2])
    )
    _finish(
        build,
        writer,
        {
            "LANES": lanes,
            "SUBGROUPS": subgroups,
            "LOADS": loads,
            **_source(writer, rows, 4 if is_vector else 1),
            "INFO": writer.write(split.info, width=2, reinterpreted_as="uint"),
            "PIECES": split.count,
            "SPLIT": writer.write(split.pieces, width=2, reinterpreted_as="uint"),
        },
        "split_rows",
        (across, down, batch),
        f"{counted(subgroups, 'subgroup')} a row",
    )


def _share_of_row(k: int, lanes: int) -> tuple[int, int]:
    """Subgroups of a row, and how many vectors of four a lane keeps in registers; 0: it reads twice."""
    for subgroups, most in ((1, _LOADS_ALONE), (_SUBGROUPS, _LOADS)):
        loads = -(-k // (4 * lanes * subgroups))
        if loads <= most:
            return subgroups, loads
    return _SUBGROUPS, 0


def _emit_ranges(build: VulkanBuilder, rows: View, split: SplitRows) -> View:
    """Emits the launch that finds magnitudes of rows that memory runs across: (batch, ranges, rows)."""
    batch, count, k = rows.shape
    lanes = build.target.subgroup_size
    is_vector = all(
        is_multiple(number, 4) for number in (count, rows.offset, rows.strides[0], rows.strides[2])
    )
    width = 4 if is_vector else 1
    blocks = -(-count // (lanes * width))
    wanted = _GROUPS * build.target.processors // max(1, blocks * batch)
    ranges = max(1, min(_MOST_RANGES, wanted, k // _LEAST_RANGE))
    found = build.scratch(TensorType(dtypes.UINT32, (batch, ranges, count)))
    writer = build.writer()
    for name, number in (
        ("steps", k),
        ("share", -(-k // ranges)),
        ("batch_stride", rows.strides[0]),
        ("k_stride", rows.strides[2]),
    ):
        writer.word(name, number)
    writer.constant(count, "ROWS")
    _finish(
        build,
        writer,
        {
            "LANES": lanes,
            "RANGES": ranges,
            **_source(writer, rows, width),
            "FOUND": writer.write(found),
            "INFO": writer.write(split.info),
        },
        "column_ranges",
        (blocks, ranges, batch),
        counted(width, "row") + " a lane",
    )
    return found


def _emit_columns(build: VulkanBuilder, rows: View, split: SplitRows, found: View) -> None:
    """Emits the launch that splits rows that memory runs across."""
    batch, count, k = rows.shape
    blocks, row_blocks = padded(k, K_PADDING) // _TURNED, -(-count // _TURNED)
    share = blocks * row_blocks * batch // (2 * _GROUPS * build.target.processors)
    share = max(1, min(_MOST_BLOCKS, share))
    writer = build.writer()
    for name, number in (
        ("steps", k),
        ("k_padded", padded(k, K_PADDING)),
        ("blocks", share),
        ("batch_stride", rows.strides[0]),
        ("k_stride", rows.strides[2]),
    ):
        writer.word(name, number)
    writer.constant(count, "ROWS")
    _finish(
        build,
        writer,
        {
            "LANES": build.target.subgroup_size,
            **_source(writer, rows, 1),
            "FOUND": writer.read(found),
            "RANGES": found.shape[1],
            "INFO": writer.write(split.info),
            "PIECES": split.count,
            "SPLIT": writer.write(split.pieces, width=2, reinterpreted_as="uint"),
        },
        "split_columns",
        (row_blocks, -(-blocks // share), batch),
        "32 rows a workgroup",
    )


def _source(writer: KernelWriter, rows: View, width: int) -> dict[str, object]:
    """How `width` neighbours are read as fp32: LOAD takes a vector's number, from the view's start."""
    pointer = writer.read(rows, width=width)
    if width == 1:
        load = load_expression(pointer, "(at)", rows.dtype)
    else:
        load = f"loadAligned<{width * rows.itemsize}>({pointer} + (at))"
        load = f"float{width}({loaded(load, rows.dtype) if rows.dtype in CODED else load})"
    return {"WIDTH": width, "LOAD(at)": load}


def _finish(
    build: VulkanBuilder,
    writer: KernelWriter,
    names: dict[str, object],
    kernel: str,
    groups: tuple[int, int, int],
    variant: str,
) -> None:
    writer.text("\n".join(f"#define {name} {value}" for name, value in names.items()))
    writer.need("float16", "storage_16bit")
    common = ("scales", "split_common", "split_lines") if "PIECES" in names else ()
    writer.text("".join(map(template, (*common, kernel))))
    build.emit(
        writer.finish(
            kernel,
            groups,
            variant=variant,
            reason="pieces of fp16 for matrix units",
            subgroup_size=build.target.subgroup_size,
        )
    )
