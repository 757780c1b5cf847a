"""Constant matrices of bytes in the order of matrix units' fragments, which a kernel packs once."""

from __future__ import annotations

import copy
import math

from vkml.ir import Constant, TensorType, dtypes
from vkml.kernels.packed_weights import COLUMN_PADDING, MATRIX_UNIT_NEEDS, Fragment, PackedWeights, padded
from vkml.kernels.spec import Dispatch
from vkml.kernels.views import Buffer, BufferKind, View, contiguous
from vkml.kernels.writer import KernelWriter, template

K_PADDING = 128
"""Packed matrices hold zeros from K up to a multiple of this: what the longest step needs."""
MOST_AHEAD = 4
"""Steps of a fragment's k that products may read beyond that,"""
WIDEST_TILE = 512
"""and columns beyond the last."""
_CHUNK = 256
"""Steps of k that a workgroup packs."""


def line_words(columns: int, fragment: Fragment) -> int:
    """Words of 16 bytes of all columns in a step of a fragment's k."""
    return padded(columns, COLUMN_PADDING) * fragment.k // 16


def batch_words(k: int, columns: int, fragment: Fragment) -> int:
    """Words of 16 bytes of a matrix."""
    return padded(k, K_PADDING) // fragment.k * line_words(columns, fragment)


def fits(fragment: Fragment) -> bool:
    """Whether lanes hold whole words of the fragments of 16 columns."""
    return COLUMN_PADDING % fragment.n == 0 and fragment.k % 8 == 0 and fragment.k % fragment.lanes == 0


class ByteFragments(PackedWeights):
    """A matrix (batch, k, n) of int8 in the order of fragments, and room behind it that kernels may read."""

    def __init__(self, original: Constant, matrix: View, fragment: Fragment, push_bytes: int) -> None:
        batch, k, n = matrix.shape
        beyond = MOST_AHEAD * line_words(n, fragment) + WIDEST_TILE * fragment.k // 16
        words = 4 * (batch * batch_words(k, n, fragment) + beyond)
        put = object.__setattr__  # the base class is frozen
        put(self, "dtype", dtypes.UINT32)
        put(self, "shape", (words,))
        # A copy of the description: tables that have this one by its original keep no original alive.
        put(self, "original", copy.copy(original))
        put(self, "source", Buffer(BufferKind.CONSTANT, original.type.bytes, "original weights"))
        put(self, "target", Buffer(BufferKind.ACTIVATION, 4 * words, "packed weights"))
        view = contiguous(self.target, TensorType(dtypes.UINT32, (words,)))
        source = View(self.source, matrix.dtype, matrix.shape, matrix.strides, matrix.offset)
        put(self, "dispatch", _packing(source, view, fragment, push_bytes))


def _packing(matrix: View, packed: View, fragment: Fragment, push_bytes: int) -> Dispatch:
    batch, k, n = matrix.shape
    writer = KernelWriter(push_bytes)
    strides = dict(zip(("BATCH_STRIDE", "K_STRIDE", "COLUMN_STRIDE"), matrix.strides, strict=True))
    for name, value in {"K": k, "N": n, "K_PADDED": padded(k, K_PADDING), **strides}.items():
        writer.constant(value, name)
    numbers = {
        "FRAGMENT_N": fragment.n,
        "FRAGMENT_K": fragment.k,
        "LANES": fragment.lanes,
        "CHUNK": _CHUNK,
    }
    pointers = {
        "SOURCE": writer.read(matrix, reinterpreted_as="uint8_t"),
        "PACKED": writer.write(packed, width=4),
    }
    writer.need(*MATRIX_UNIT_NEEDS, "int8", "storage_8bit")
    writer.text("\n".join(f"static const int {name} = {value};" for name, value in numbers.items()))
    writer.text("\n".join(f"#define {name} {pointer}" for name, pointer in pointers.items()))
    writer.text(template("byte_fragments"))
    groups = math.ceil(n / COLUMN_PADDING), math.ceil(padded(k, K_PADDING) / _CHUNK), batch
    return writer.finish("pack_bytes", groups, subgroup_size=fragment.lanes)
