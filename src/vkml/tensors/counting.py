"""Values counted, found in order, and each once: histograms, ranges, sets."""

from __future__ import annotations

import builtins
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from vkml.ir import dtypes
from vkml.tensors import tensor as core
from vkml.tensors.elementwise import floor, ge, le, logical_and, minimum, mul, sub, where
from vkml.tensors.operands import INT64, value_as, wrap
from vkml.tensors.promotion import result_type
from vkml.tensors.reductions import amax, amin, any
from vkml.tensors.shapes import gather, reshape, unsqueeze
from vkml.tracing import apply, constant, value_of

if TYPE_CHECKING:
    from vkml.tensors.tensor import Tensor


def searchsorted(
    sorted_sequence: Tensor, values: Any, *, right: bool = False, side: str | None = None,
    out_int32: bool = False, sorter: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Where values would go into sorted rows; found on the CPU.

    Args:
        sorted_sequence: [n], or [..., n] with a row for each row of the values.
        values: a tensor or a number.
        right: whether behind their equals.
        side: "left" or "right", another way to say so.
        out_int32: whether the result is int32.
        sorter: the order of the elements, where the rows are not sorted.
    """
    given = values if isinstance(values, core.Tensor) else wrap(value_as(values, sorted_sequence.dtype))
    kind = result_type(sorted_sequence, given)
    rows = sorted_sequence if sorter is None else gather(sorted_sequence, -1, sorter)
    is_right = right or side == "right"
    if side not in (None, "left", "right") or (side == "left" and right):
        raise RuntimeError(f"searchsorted: side is 'left' or 'right', as right= says, not {side!r}")
    found = wrap(
        apply("SearchSorted", value_as(rows, kind), value_as(given, kind), domain="vkml", right=int(is_right))
    )
    return found.to(dtypes.INT32) if out_int32 else found


def bucketize(input: Any, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Tensor:
    """Which of the ranges between sorted boundaries each element lies in; found on the CPU.

    Args:
        input: a tensor or a number.
        boundaries: [n], ascending.
        out_int32: whether the result is int32; else int64.
        right: whether a boundary belongs to the range behind it; else to the one before it.

    Returns:
        From 0, below all boundaries, to n.
    """
    return searchsorted(boundaries, input, right=right, out_int32=out_int32)


def isin(elements: Any, test_elements: Any, *, assume_unique: bool = False, invert: bool = False) -> Tensor:
    """Which elements are among others.

    Args:
        elements: a tensor or a number.
        test_elements: a tensor or a number.
        assume_unique: accepted; it changes nothing.
        invert: whether those are wanted that are not among the others.

    Returns:
        Bools of the shape of `elements`.
    """
    kind = result_type(elements, test_elements)
    x, among = (wrap(value_as(one, kind)) for one in (elements, test_elements))
    found = any(unsqueeze(x, -1) == reshape(among, -1), -1)
    return found.logical_not() if invert else found


def bincount(x: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """How often each integer from 0 on occurs, or the sum of its weights. The elements are looked at.

    Args:
        x: integers [n], at least 0.
        weights: [n].
        minlength: the least number of counts.

    Returns:
        int64, or floats of weights: one more than the greatest element.

    Raises:
        RuntimeError: the elements are not such.
    """
    if x.ndim != 1 or not x.dtype.is_integer:
        raise RuntimeError("bincount takes integers of one axis")
    numbers = x._elements()
    if numbers.size and numbers.min() < 0:
        raise RuntimeError("bincount takes integers of at least 0")
    size = builtins.max(int(numbers.max(initial=-1)) + 1, minlength)
    kind = INT64 if weights is None else weights.dtype if weights.dtype.is_float else dtypes.FLOAT64
    counts = wrap(constant(1, INT64)).expand(x.shape) if weights is None else weights.to(kind)
    nothing = core.Tensor(value_of(np.zeros(size, kind.storage))).to(x.device)
    return nothing.scatter_add(0, x.to(INT64), counts.to(x.device)) if x.numel() else nothing


def histc(x: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """How many elements lie in each of equal ranges from `min` to `max`, the elements' ends where equal.

    Args:
        x: any shape.
        bins: how many ranges.
        min: the beginning of the first.
        max: the end of the last, in which elements lie that equal it.

    Returns:
        [bins] of the type of `x`.

    Raises:
        RuntimeError: there are no bins, or no range.
    """
    if bins <= 0:
        raise RuntimeError("histc needs at least one bin")
    flat = reshape(x, -1)
    low, high = float(min), float(max)
    if low == high and x.numel():
        low, high = float(amin(flat)), float(amax(flat))
    if low == high:
        low, high = low - 1, high + 1
    if not (math.isfinite(low) and math.isfinite(high)) or low > high:
        raise RuntimeError(f"histc: the range from {low} to {high} is none")
    inside = logical_and(ge(flat, low), le(flat, high))
    at = floor(mul(sub(flat, low), bins / (high - low))) if flat.dtype.is_float else None
    if at is None:
        at = floor(mul(sub(flat.to(dtypes.FLOAT64), low), bins / (high - low)))
    at = where(inside, minimum(at, at * 0 + (bins - 1)), 0).to(INT64)
    nothing = core.Tensor(value_of(np.zeros(bins, x.dtype.storage))).to(x.device)
    return nothing.scatter_add(0, at, inside.to(x.dtype)) if x.numel() else nothing


def unique(
    x: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False,
    dim: int | None = None,
) -> Any:  # fmt: skip
    """The elements, each once, in order; along an axis its slices. Their number is looked at, on the CPU.

    Args:
        x: any shape.
        sorted: accepted; the elements always come in order.
        return_inverse: whether, of each element of `x`, its place among these is wanted.
        return_counts: whether, of each of these, its number is wanted.
        dim: the axis whose slices are compared; None: elements.

    Returns:
        The elements, then, int64, what was asked for besides: a tensor, or a tuple of several.
    """
    array = x._elements()
    found, inverse, counts = np.unique(array, return_inverse=True, return_counts=True, axis=dim)
    if dim is None:
        inverse = inverse.reshape(array.shape)
    return _with_options(x, found, (inverse, return_inverse), (counts, return_counts))


def unique_consecutive(
    x: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Any:
    """Without elements (or slices of an axis) that equal the one before. Their number is looked at.

    Args:
        x: any shape.
        return_inverse: whether, of each element of `x`, its place in the result is wanted.
        return_counts: whether the numbers of equal neighbours are wanted.
        dim: the axis whose slices are compared; None: elements.

    Returns:
        The elements, then, int64, what was asked for besides: a tensor, or a tuple of several.
    """
    array = x._elements()
    rows = array.reshape(-1) if dim is None else np.moveaxis(array, dim, 0)
    is_new = np.ones(len(rows), np.bool_)
    if len(rows) > 1:
        is_new[1:] = (rows[1:] != rows[:-1]).reshape(len(rows) - 1, -1).any(1)
    found = rows[is_new] if dim is None else np.moveaxis(rows[is_new], 0, dim)
    inverse = np.cumsum(is_new) - 1
    counts = np.diff(np.append(np.flatnonzero(is_new), len(rows)))
    inverse = inverse.reshape(array.shape) if dim is None else inverse
    return _with_options(x, found, (inverse, return_inverse), (counts, return_counts))


def _with_options(x: Tensor, found: np.ndarray[Any, Any], *options: tuple[Any, bool]) -> Any:
    made = [found, *(array.astype(np.int64) for array, is_wanted in options if is_wanted)]
    tensors = [core.Tensor(value_of(np.ascontiguousarray(array))).to(x.device) for array in made]
    return tuple(tensors) if len(tensors) > 1 else tensors[0]
