"""Diagonals of matrices, and matrices made of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from vkml.tensors import tensor as core
from vkml.tensors.arranging import atleast_2d, numbers
from vkml.tensors.elementwise import where
from vkml.tensors.operands import BOOL, INT64, axis_of, value_as, wrap
from vkml.tensors.promotion import result_type
from vkml.tensors.reductions import sum
from vkml.tensors.shapes import cat, permute, reshape, unsqueeze
from vkml.tensors.views import Diagonal
from vkml.tracing import apply, constant, value_of

if TYPE_CHECKING:
    from vkml.tensors.tensor import Tensor


def diagonal(x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """The diagonal of two axes, last in the result: a view.

    Args:
        x: at least two axes.
        offset: 0 for the main one, above 0 for those above it.
        dim1: the axis of rows.
        dim2: the axis of columns.

    Raises:
        RuntimeError: the axes are the same.
    """
    first, second = axis_of(dim1, x.ndim), axis_of(dim2, x.ndim)
    if x.ndim < 2 or first == second:
        raise RuntimeError("diagonal needs two different axes")
    rest = [axis for axis in range(x.ndim) if axis not in (first, second)]
    rows, columns = x.shape[first], x.shape[second]
    start = offset if offset >= 0 else -offset * columns
    length = min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns)
    matrices = permute(x, *rest, first, second)
    return matrices._shown(Diagonal(start, length) if length > 0 else Diagonal(0, 0))


def diag_embed(x: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """Matrices with the elements of the last axis along a diagonal, zeros elsewhere.

    Args:
        x: [..., n].
        offset: 0 for the main diagonal, above 0 for those above it.
        dim1: where the axis of rows is to be.
        dim2: where the axis of columns is to be.

    Returns:
        Matrices of n + |offset| rows and columns.

    Raises:
        RuntimeError: the axes are the same.
    """
    size = x.shape[-1] + abs(offset)
    first, second = axis_of(dim1, x.ndim + 1), axis_of(dim2, x.ndim + 1)
    if first == second:
        raise RuntimeError("diag_embed needs two different axes")
    places = np.arange(size)
    is_on = places[:, None] + offset == places[None, :]
    at = np.clip(places - (0 if offset >= 0 else -offset), 0, x.shape[-1] - 1)
    if not x.shape[-1]:
        found = wrap(apply("Expand", value_as(0, x.dtype), constant([*x.shape[:-1], size, size], INT64)))
    else:
        rows = unsqueeze(x.index_select(-1, numbers(at)), -1)
        found = where(wrap(constant(is_on, BOOL)), rows, 0)
    order = [axis for axis in range(x.ndim + 1) if axis not in (first, second)]
    placed = {first: x.ndim - 1, second: x.ndim}
    rest = iter(range(len(order)))
    return permute(found, [placed[at] if at in placed else next(rest) for at in range(x.ndim + 1)])


def diag(x: Tensor, diagonal: int = 0) -> Tensor:
    """The diagonal of a matrix, or a matrix with a vector along its diagonal.

    Args:
        x: [rows, columns] or [n].
        diagonal: 0 for the main one, above 0 for those above it.

    Raises:
        RuntimeError: it is neither a vector nor a matrix.
    """
    if x.ndim not in (1, 2):
        raise RuntimeError(f"diag is of a vector or a matrix, not of {x.ndim} axes")
    return diag_embed(x, diagonal) if x.ndim == 1 else _diagonal(x, diagonal).clone()


_diagonal = diagonal


def diagflat(x: Tensor, offset: int = 0) -> Tensor:
    """A matrix with all elements along a diagonal.

    Args:
        x: any.
        offset: 0 for the main diagonal, above 0 for those above it.
    """
    return diag_embed(reshape(x, -1), offset)


def trace(x: Tensor) -> Tensor:
    """The sum of a matrix's diagonal.

    Args:
        x: [rows, columns].

    Raises:
        RuntimeError: it is no matrix.
    """
    if x.ndim != 2:
        raise RuntimeError(f"trace is of a matrix, not of {x.ndim} axes")
    return sum(diagonal(x))


def block_diag(*tensors: Tensor) -> Tensor:
    """Matrices along the diagonal of one, zeros elsewhere.

    Args:
        *tensors: matrices; vectors are rows, numbers matrices of one element.
    """
    many = [atleast_2d(x) for x in tensors]
    kind = result_type(*many)
    width = int(np.sum([x.shape[1] for x in many]))
    rows, before = [], 0
    for x in many:
        pads = constant([0, before, 0, width - before - x.shape[1]], INT64)
        rows.append(wrap(apply("Pad", value_as(x, kind), pads)))
        before += x.shape[1]
    return cat(rows, 0)


def tril_indices(row: int, col: int, offset: int = 0, *, device: Any = None) -> Tensor:
    """Rows and columns of the places on and below a diagonal.

    Args:
        row: the number of rows.
        col: the number of columns.
        offset: 0 for the main diagonal, above 0 for those above it.
        device: where they are; the CPU where left out.

    Returns:
        int64 [2, places].
    """
    return _pair(np.tril_indices(row, offset, col), device)


def triu_indices(row: int, col: int, offset: int = 0, *, device: Any = None) -> Tensor:
    """Rows and columns of the places on and above a diagonal.

    Args:
        row: the number of rows.
        col: the number of columns.
        offset: 0 for the main diagonal, above 0 for those above it.
        device: where they are; the CPU where left out.

    Returns:
        int64 [2, places].
    """
    return _pair(np.triu_indices(row, offset, col), device)


def _pair(found: tuple[Any, ...], device: Any) -> Tensor:
    made = core.Tensor(value_of(np.stack(found).astype(np.int64)))
    return made if device is None else made.to(device)
