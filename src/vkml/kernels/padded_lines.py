"""Passes that copy lines of memory which begin anywhere to where each begins at a multiple of 16 bytes."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from vkml.ir import TensorType
from vkml.ir.size import Size, typical
from vkml.kernels.views import View
from vkml.kernels.writer import KernelWriter, template

if TYPE_CHECKING:
    from vkml.lowering.vulkan_builder import VulkanBuilder

WORD = 16
"""Bytes."""
THREADS = 256
MOST_ELEMENTS = 1 << 31
"""From the first to the last of an operand: kernels count them in 32 bits."""
LARGEST_COPY = 1 << 31
"""Bytes: an operand whose copy would have more is not copied."""
BLOCK = 64
"""Steps of k that products take at once, or a multiple of it,"""
TILE = 128
"""and rows: a copy has whole ones where that adds a quarter at the most, so that nobody looks for its end."""
COPIED = 2.8e6
"""Bytes that are read and written in a microsecond: a prediction, by what other passes reach on an H200."""


def is_aligned(view: View) -> bool:
    """Whether each line of (batch, rows, k), along k or across it, begins at a multiple of 16 bytes."""
    batch, row, k = view.strides
    numbers = (batch if view.shape[0] != 1 else 0, row if k == 1 else k, view.offset)
    return all(number * view.itemsize % WORD == 0 for number in numbers)


def has_lines(view: View) -> bool:
    """Whether memory runs along k or rows of (batch, rows, k), and kernels can count its elements.

    The number of rows of a single matrix may be open.
    """
    batch, row, k = view.strides
    batch = 0 if view.shape[0] == 1 else batch
    numbers = (view.shape[0], view.shape[2], batch, row, k, view.offset)
    if any(isinstance(number, Size) for number in numbers) or view.is_reversed or 1 not in (row, k):
        return False
    shape = view.shape[0], typical(view.shape[1]), view.shape[2]
    known = replace(view, shape=shape, strides=(batch, row, k))
    return known.byte_range[1] // view.itemsize <= MOST_ELEMENTS


def can_be_padded(view: View) -> bool:
    """Whether the pass can copy lines of (batch, rows, k): their length is known, they are not too many."""
    return (
        has_lines(view)
        and (view.strides[2] == 1 or not isinstance(view.shape[1], Size))
        and _bytes_of_copy(view) <= LARGEST_COPY
    )


def microseconds(view: View) -> float:
    """What the pass is expected to take, without what a launch does."""
    return (view.itemsize * math.prod(map(typical, view.shape)) + _bytes_of_copy(view)) / COPIED


def _bytes_of_copy(view: View) -> int:
    return view.itemsize * typical(view.shape[0]) * math.prod(map(typical, _copied(view)))


def _copied(view: View) -> tuple[int, int]:
    """Rows and steps of k of a copy. Its lines, along k or across it, are whole words."""
    _, rows, k = view.shape
    word = WORD // view.itemsize
    return many_or_few(rows, TILE, 1 if view.strides[2] == 1 else word), many_or_few(k, BLOCK, word)


def many_or_few(count: int, many: int, few: int) -> int:
    """The next multiple of one of two divisors: of the larger one where it is little to that."""
    if isinstance(count, Size):
        return count
    divisor = many if count >= 4 * many else few
    return -(-count // divisor) * divisor


def emit_padded_lines(build: VulkanBuilder, view: View) -> View:
    """Emits the copy of an operand that `can_be_padded`.

    Args:
        build: where the launch goes.
        view: (batch, rows, k), of elements of 1, 2 or 4 bytes.

    Returns:
        (batch, rows or more, k or more): zeros behind the last k, anything behind the last row.
    """
    batch, rows, k = view.shape
    if batch != 1 and view.strides[0] == 0:
        return _for_all(batch, emit_padded_lines(build, replace(view, shape=(1, rows, k))))
    is_along_k = view.strides[2] == 1
    whole = WORD // view.itemsize
    all_rows, steps = _copied(view)
    written, words = (rows, steps // whole) if is_along_k else (steps, all_rows // whole)
    shape = (batch, all_rows, steps) if is_along_k else (batch, steps, all_rows)
    copy = build.scratch(TensorType(view.dtype, shape))
    writer = build.writer()
    text = define_lines(writer, view)
    sizes = {
        "ALL_LINES": written,
        "ALL_WORDS": words,
        "BATCH_WORDS": (all_rows if is_along_k else steps) * words,
    }
    for name, value in sizes.items():
        writer.constant(value, name)
    writer.text(f"{text}\n#define COPY {writer.write(copy, width=4, reinterpreted_as='uint')}")
    across, down = writer.grid(-(-written * words // THREADS), build.target.max_groups)
    writer.text(template("byte_lines") + template("padded_lines"))
    build.emit(
        writer.finish(
            "padded_lines",
            (across, down, batch),
            variant="along k" if is_along_k else "across k",
            reason="lines that begin at multiples of 16 bytes",
        )
    )
    return copy if is_along_k else copy.transpose((0, 2, 1))


def _for_all(batch: int, one: View) -> View:
    """What has been made of the one matrix that all batches have."""
    return one.expand((batch, *one.shape[1:]))


def define_lines(writer: KernelWriter, view: View) -> str:
    """The names that byte_lines.slang wants to know."""
    batch, rows, k = view.shape
    is_along_k = view.strides[2] == 1
    lines, length, line = (rows, k, view.strides[1]) if is_along_k else (k, rows, view.strides[2])
    whole = WORD // view.itemsize
    numbers = {
        "BEFORE": view.offset % whole,
        "BATCH": view.strides[0] if batch != 1 else 0,
        "LINE": line,
        "LINES": lines,
        "LENGTH": length,
    }
    for name, value in numbers.items():
        writer.constant(value, name)
    return f"#define WORDS {writer.read_words(view, whole)}\n#define BYTES {view.itemsize}"
