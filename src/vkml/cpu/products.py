"""Matrix products: stacks of matrices spread over blocks, and row blocks against one shared matrix."""

from __future__ import annotations

from typing import Any

import numpy as np

from vkml.cpu.blas import can_multiply_unaligned, multiply

Array = np.ndarray[Any, Any]


def product(a: Array, b: Array, out: Array) -> None:
    """a @ b into out, also for stacks of matrices and operands that are transposed views or not aligned."""
    if not b.flags.aligned:
        if b.ndim == 2 and a.ndim == 2 and b.dtype == np.float32 and can_multiply_unaligned():
            a, b = np.require(blas_ready(a), requirements="A"), blas_ready(b)
            if a.strides[1] == a.itemsize and not b.flags.aligned and out.strides[-1] == out.itemsize:
                multiply(a, b, out)
                return
        b = np.require(b, requirements="A")
    np.matmul(blas_ready(a), blas_ready(b), out=out)


def blas_ready(matrix: Array) -> Array:
    """The array itself where BLAS takes its last two axes as they lie, row- or column-major; else a copy.

    NumPy multiplies what BLAS refuses with a loop that is a hundred times slower.
    """
    if matrix.ndim < 2:
        return matrix if matrix.flags.c_contiguous else np.ascontiguousarray(matrix)
    row, column = matrix.strides[-2:]
    rows, columns = matrix.shape[-2:]
    item = matrix.itemsize
    row_major = column == item and row % item == 0 and row >= columns * item
    column_major = row == item and column % item == 0 and column >= rows * item
    return matrix if row_major or column_major else np.ascontiguousarray(matrix)
