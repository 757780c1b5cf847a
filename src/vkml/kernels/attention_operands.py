"""The launch that brings two operands of attention to fp16 for matrix units."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vkml.dataclasses import dataclass
from vkml.ir import TensorType, dtypes
from vkml.kernels.attention_text import bool_text, is_aligned, write_strides
from vkml.kernels.attention_variants import OPERAND_ROWS
from vkml.kernels.packed_weights import MATRIX_UNIT_NEEDS
from vkml.kernels.views import View
from vkml.kernels.writer import storage_type, template

if TYPE_CHECKING:
    from vkml.lowering.vulkan_builder import VulkanBuilder


@dataclass(frozen=True)
class HalfOperands:
    """Two operands in tiles of `OPERAND_ROWS` rows, each with a power of two of its own."""

    first: View
    """(batch, heads, rows, columns that are computed); behind the last row there is room for whole tiles."""
    second: View
    statistics: View
    """Of each tile of each operand, what attention_operands.slang tells."""


def emit_operands(
    build: VulkanBuilder, first: View, second: View, head: int, checked: View | None = None
) -> HalfOperands:
    """Emits the pass over two operands of one shape and type.

    Args:
        build: the builder.
        first: (batch, heads, rows, columns).
        second: likewise.
        head: columns that are computed.
        checked: a float for each row, contiguous: where one is not finite, nor does its tile count as such.
    """
    batch, heads, rows, _ = first.shape
    tiles = -(-rows // OPERAND_ROWS)
    halves = build.scratch(TensorType(dtypes.FLOAT16, (2, batch, heads, tiles * OPERAND_ROWS, head)))
    statistics = build.scratch(TensorType(dtypes.INT32, (2 * batch * heads * tiles, 2)))
    writer = build.writer()
    values: dict[str, int | str] = {
        "FIRST_POINTER": writer.read(first),
        "SECOND_POINTER": writer.read(second),
        "HALVES_POINTER": writer.write(halves),
        "STATISTICS_POINTER": writer.write(statistics, width=2),
        "HEAD": head,
        "OPERAND_ROWS": OPERAND_ROWS,
        "ELEMENT": storage_type(first.dtype),
        "ELEMENT4": f"{storage_type(first.dtype)}4",
        "ELEMENT_BYTES": first.itemsize,
        "IS_CHECKED": int(checked is not None),
    }
    if checked is not None:
        values["CHECKED_POINTER"] = writer.read(checked)
    for name, size in zip(("BATCHES", "HEADS", "ROWS", "HEAD_SIZE"), first.shape, strict=True):
        writer.constant(size, name)
    for name, view in (("FIRST", first), ("SECOND", second)):
        write_strides(writer, name, view)
        writer.constant(view.strides[3], f"{name}_COLUMN")
        values[f"IS_{name}_ALIGNED"] = bool_text(is_aligned(view, 4))
    across, down = writer.grid(tiles * batch * heads, build.target.max_groups)
    writer.need(*MATRIX_UNIT_NEEDS)
    writer.text("\n".join(f"#define {name} {value}" for name, value in values.items()))
    writer.text(template("attention_operands"))
    build.emit(
        writer.finish(
            "attention_operands",
            (across, down, 2),
            variant=f"tiles of {OPERAND_ROWS} rows",
            reason="operands of attention in fp16 for matrix units",
        )
    )
    shape = (batch, heads, rows, head)
    strides = halves.strides[1:]
    return HalfOperands(
        View(halves.buffer, halves.dtype, shape, strides),
        View(halves.buffer, halves.dtype, shape, strides, halves.strides[0]),
        statistics,
    )
