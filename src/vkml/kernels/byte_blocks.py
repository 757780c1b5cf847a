"""Operands of products of bytes in blocks of whole lines for matrix units: constants, and by a pass."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from vkml.ir import TensorType, dtypes
from vkml.ir.size import Size
from vkml.kernels.padded_lines import can_be_padded, define_lines, many_or_few
from vkml.kernels.views import View
from vkml.kernels.writer import KernelWriter, template

if TYPE_CHECKING:
    from vkml.lowering.vulkan_builder import VulkanBuilder

Array = np.ndarray[Any, Any]
STEPS = 64
"""Of k in a block,"""
ROWS = 8
"""and rows: 16 bytes of each along k lie side by side."""
WORD = 16
"""Bytes that a thread reads at once."""
BLOCK = ROWS * STEPS // WORD
"""Such words of a block."""
TILE = 128
"""Blocks hold whole tiles of so many rows, and steps of so many k, where that adds little."""
SIDE = 64
"""Rows of which a workgroup of the pass makes blocks."""


def shape_of(batch: int, rows: int, k: int) -> tuple[int, int, int, int]:
    """Of the blocks of (batch, rows, k), in words of four bytes."""
    steps, rows = many_or_few(k, TILE, STEPS), many_or_few(rows, TILE, ROWS)
    return batch, steps // STEPS, rows // ROWS, STEPS * ROWS // 4


def in_blocks(array: Array) -> Array:
    """Bytes (batch, k, rows) in blocks of words of four; zeros behind the last k and the last row."""
    batch, k, rows = array.shape
    shape = shape_of(batch, rows, k)
    blocks, groups = shape[1:3]
    padded = np.zeros((batch, blocks * STEPS, groups * ROWS), array.dtype)
    padded[:, :k, :rows] = array
    parts = padded.reshape(batch, blocks, STEPS // WORD, WORD, groups, ROWS).transpose(0, 1, 4, 2, 5, 3)
    return np.ascontiguousarray(parts).view(np.int32).reshape(shape)


def can_be_blocks(view: View) -> bool:
    """Whether the pass can bring (batch, rows, k) into blocks: bytes whose number is known."""
    return view.itemsize == 1 and not isinstance(view.shape[1], Size) and can_be_padded(view)


def emit_byte_blocks(build: VulkanBuilder, view: View) -> View:
    """Emits the pass that brings an operand that `can_be_blocks` into blocks.

    Args:
        build: where the launch goes.
        view: (batch, rows, k) of bytes.
    """
    batch, rows, k = view.shape
    if batch != 1 and view.strides[0] == 0:
        one = emit_byte_blocks(build, replace(view, shape=(1, rows, k)))
        return one.expand((batch, *one.shape[1:]))
    shape = shape_of(batch, rows, k)
    copy = build.scratch(TensorType(dtypes.INT32, shape))
    writer = build.writer()
    is_along_k = view.strides[2] == 1
    text = define_lines(writer, view)
    writer.constant(shape[1], "BLOCKS")
    writer.constant(shape[2], "GROUPS")
    writer.text(f"{text}\n#define IS_ALONG_K {int(is_along_k)}")
    writer.text(f"#define COPY {writer.write(copy, width=4, reinterpreted_as='uint')}")
    writer.text(template("byte_lines") + template("byte_blocks"))
    build.emit(
        writer.finish(
            "byte_blocks",
            (-(-shape[2] * ROWS // SIDE), shape[1], batch),
            variant="along k" if is_along_k else "across k",
            reason="blocks of whole lines, for matrix units",
        )
    )
    return copy


def define_blocks(writer: KernelWriter, blocks: View, letter: str) -> str:
    """The names that byte_units.slang reads blocks by."""
    _, count, groups, _ = blocks.shape
    line = groups * BLOCK
    numbers = {
        "BATCH": blocks.strides[0] // 4 if blocks.shape[0] != 1 else 0,
        "LINE": line,
        "LINES": groups * ROWS,
        "LENGTH": count * (STEPS // WORD),
    }
    for name, value in numbers.items():
        writer.constant(value, f"{letter}_{name}")
    return f"#define {letter}_WORDS {writer.read_words(blocks, 4)}"


def define_lines_of(writer: KernelWriter, rows: View, letter: str) -> str:
    """The names that it reads (batch, rows, k) by, whose lines along k are whole words of 16 bytes."""
    numbers = {
        "BATCH": rows.strides[0] // WORD if rows.shape[0] != 1 else 0,
        "LINE": rows.strides[1] // WORD,
        "LINES": rows.shape[1],
        "LENGTH": rows.shape[2] // WORD,
    }
    for name, value in numbers.items():
        writer.constant(value, f"{letter}_{name}")
    return f"#define {letter}_WORDS {writer.read_words(rows, WORD)}"
