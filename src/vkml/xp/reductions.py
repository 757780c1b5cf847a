"""Functions of the array API that sum up elements, over axes, along them, or of products."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from vkml.ir import DType, dtypes
from vkml.tensors import Tensor, creation
from vkml.tensors import operations as op
from vkml.tensors.operands import axes_of
from vkml.xp.array import Array, as_array, of_type
from vkml.xp.manipulation import Axes, joined

__all__ = [
    "all", "any", "count_nonzero", "cumulative_prod", "cumulative_sum", "diff", "matmul", "max", "mean",
    "min", "prod", "std", "sum", "tensordot", "var", "vecdot",
]  # fmt: skip


def _total_type(x: Tensor, dtype: DType | None) -> DType:
    natural = x.dtype if x.dtype.is_inexact else dtypes.UINT64 if x.dtype.kind == "u" else dtypes.INT64
    return of_type(dtype, natural)


def _reduced(function: Any, x: Tensor, axis: Axes, keepdims: bool) -> Tensor:
    """A reduction over axes; over an empty tuple of them, each element's by itself."""
    if not isinstance(axis, int) and axis is not None and not len(axis):
        found: Tensor = function(op.unsqueeze(x, 0), (0,), False)
    else:
        found = function(x, axes_of(axis, x.ndim), keepdims)
    return found


def count_nonzero(x: Any, /, *, axis: Axes = None, keepdims: bool = False) -> Array:
    """How many elements are not 0.

    Args:
        x: any.
        axis: an axis, or several; None: all.
        keepdims: whether these axes stay, with one element.

    Returns:
        int64.
    """
    return as_array(_reduced(op.sum, op.ne(x, 0).to(dtypes.INT64), axis, keepdims))


def _whole(function: Any, x: Tensor, axis: Axes, keepdims: bool, kind: DType) -> Array:
    """A sum or product in a type: of integers in int64, whose low bits are any integer type's."""
    inner = dtypes.INT64 if kind.is_integer else kind

    def act(given: Tensor, axes: Any, keep: bool) -> Tensor:
        found: Tensor = function(given, axes, keep, dtype=inner)
        return found

    return as_array(_reduced(act, x.to(inner), axis, keepdims).to(kind))


def sum(x: Any, /, *, axis: Axes = None, dtype: DType | None = None, keepdims: bool = False) -> Array:
    """The sum over axes.

    Args:
        x: numbers.
        axis: an axis, or several; None: all.
        dtype: in which it is computed; None: int64 or uint64 of integers, else that of `x`.
        keepdims: whether these axes stay, with one element.
    """
    return _whole(op.sum, x, axis, keepdims, _total_type(x, dtype))


def prod(x: Any, /, *, axis: Axes = None, dtype: DType | None = None, keepdims: bool = False) -> Array:
    """The product over axes.

    Args:
        x: numbers.
        axis: an axis, or several; None: all.
        dtype: in which it is computed; None: int64 or uint64 of integers, else that of `x`.
        keepdims: whether these axes stay, with one element.
    """
    return _whole(op.prod, x, axis, keepdims, _total_type(x, dtype))


def _of_floats(x: Tensor, kinds: str = "f") -> Tensor:
    if x.dtype.kind not in kinds:
        raise TypeError(f"floats are needed, not {x.dtype.numpy_name}")
    return x


def mean(x: Any, /, *, axis: Axes = None, keepdims: bool = False) -> Array:
    """The mean over axes.

    Args:
        x: floats or complex numbers.
        axis: an axis, or several; None: all.
        keepdims: whether these axes stay, with one element.

    Raises:
        TypeError: of integers.
    """
    return as_array(_reduced(op.mean, _of_floats(x, "fc"), axis, keepdims))


def var(x: Any, /, *, axis: Axes = None, correction: float = 0.0, keepdims: bool = False) -> Array:
    """The variance over axes, its divisor the number of elements less `correction`.

    Args:
        x: floats.
        axis: an axis, or several; None: all.
        correction: taken off the number of elements by which the sum of squares is divided.
        keepdims: whether these axes stay, with one element.

    Raises:
        TypeError: of other types.
    """

    def act(given: Tensor, axes: Any, keep: bool) -> Tensor:
        return op.var(given, axes, correction=correction, keepdim=keep)

    return as_array(_reduced(act, _of_floats(x), axis, keepdims))


def std(x: Any, /, *, axis: Axes = None, correction: float = 0.0, keepdims: bool = False) -> Array:
    """The root of `var`.

    Args:
        x: floats.
        axis: an axis, or several; None: all.
        correction: taken off the number of elements by which the sum of squares is divided.
        keepdims: whether these axes stay, with one element.

    Raises:
        TypeError: of other types.
    """
    return as_array(op.sqrt(var(x, axis=axis, correction=correction, keepdims=keepdims)))


def max(x: Any, /, *, axis: Axes = None, keepdims: bool = False) -> Array:
    """The greatest over axes; NaN where there is one.

    Args:
        x: integers or floats.
        axis: an axis, or several; None: all.
        keepdims: whether these axes stay, with one element.

    Raises:
        TypeError: of other types.
        ValueError: there are no elements.
    """
    return _extreme(op.amax, x, axis, keepdims)


def min(x: Any, /, *, axis: Axes = None, keepdims: bool = False) -> Array:
    """The smallest over axes; NaN where there is one.

    Args:
        x: integers or floats.
        axis: an axis, or several; None: all.
        keepdims: whether these axes stay, with one element.

    Raises:
        TypeError: of other types.
        ValueError: there are no elements.
    """
    return _extreme(op.amin, x, axis, keepdims)


def _extreme(function: Any, x: Tensor, axis: Axes, keepdims: bool) -> Array:
    if x.dtype.kind in "bc":
        raise TypeError(f"max and min are not defined for {x.dtype.numpy_name}")
    over = axes_of(axis, x.ndim)
    if not math.prod(x.shape[at] for at in over) and x.ndim:
        raise ValueError("the greatest or smallest of no elements")
    return as_array(_reduced(function, x, axis, keepdims))


def all(x: Any, /, *, axis: Axes = None, keepdims: bool = False) -> Array:
    """Whether all elements over axes are not 0.

    Args:
        x: any type.
        axis: an axis, or several; None: all.
        keepdims: whether these axes stay, with one element.

    Returns:
        Bools.
    """
    return as_array(_reduced(op.all, x, axis, keepdims))


def any(x: Any, /, *, axis: Axes = None, keepdims: bool = False) -> Array:
    """Whether an element over axes is not 0.

    Args:
        x: any type.
        axis: an axis, or several; None: all.
        keepdims: whether these axes stay, with one element.

    Returns:
        Bools.
    """
    return as_array(_reduced(op.any, x, axis, keepdims))


def _cumulative(
    function: Any, x: Any, axis: int | None, dtype: DType | None, includes: bool, first: int
) -> Array:
    if axis is None:
        if x.ndim > 1:
            raise ValueError("cumulative sums and products need an axis, as the array has several")
        axis = 0
    if not x.ndim:
        x = op.reshape(x, 1)
    kind = _total_type(x, dtype)
    inner = dtypes.INT64 if kind.is_integer else kind
    found = function(x.to(inner), axis, dtype=inner)
    if includes:
        shape = list(found.shape)
        shape[axis] = 1
        start = creation.full(shape, first, dtype=inner, device=x.device)
        found = op.cat([start, found], axis)
    return as_array(found.to(kind))


def cumulative_sum(
    x: Any, /, *, axis: int | None = None, dtype: DType | None = None, include_initial: bool = False
) -> Array:
    """Sums of all elements up to each.

    Args:
        x: numbers.
        axis: the axis; may be left out where there is one alone.
        dtype: in which it is computed; None: int64 or uint64 of integers, else that of `x`.
        include_initial: whether the result of no elements comes first.

    Raises:
        ValueError: no axis is named, and there are several.
    """
    return _cumulative(op.cumsum, x, axis, dtype, include_initial, 0)


def cumulative_prod(
    x: Any, /, *, axis: int | None = None, dtype: DType | None = None, include_initial: bool = False
) -> Array:
    """Products of all elements up to each.

    Args:
        x: numbers.
        axis: the axis; may be left out where there is one alone.
        dtype: in which it is computed; None: int64 or uint64 of integers, else that of `x`.
        include_initial: whether the result of no elements comes first.

    Raises:
        ValueError: no axis is named, and there are several.
    """
    return _cumulative(op.cumprod, x, axis, dtype, include_initial, 1)


def diff(x: Any, /, *, axis: int = -1, n: int = 1, prepend: Any = None, append: Any = None) -> Array:
    """Differences of neighbours along an axis, taken n times.

    Args:
        x: at least one axis.
        axis: the axis.
        n: how often.
        prepend: put in front along the axis, before differences are taken.
        append: put behind it.
    """
    return as_array(op.diff(x, n, axis, prepend, append))


# -- products ------------------------------------------------------------------------------------------------


def _numeric(arrays: Sequence[Any]) -> tuple[list[Tensor], DType]:
    many = joined(arrays)
    kind = many[0].dtype
    if kind == dtypes.BOOL:
        raise TypeError("products are not defined for bools")
    inner = dtypes.INT64 if kind.is_integer else kind
    return [x.to(inner) for x in many], kind


def matmul(x1: Any, x2: Any, /) -> Array:
    """The product of matrices, batches of them, or vectors.

    Args:
        x1: numbers [..., n, k], or [k].
        x2: numbers [..., k, m], or [k]; types are joined, batches broadcast.

    Raises:
        ValueError: one has no axes.
        TypeError: both are bools.
    """
    (a, b), kind = _numeric((x1, x2))
    if not a.ndim or not b.ndim:
        raise ValueError("both factors of a matrix product need at least one axis")
    return as_array(op.matmul(a, b).to(kind))


def tensordot(x1: Any, x2: Any, /, *, axes: Any = 2) -> Array:
    """Sums of products over axes of both.

    Args:
        x1: numbers.
        x2: numbers.
        axes: how many: the last of `x1`, the first of `x2`; or two lists of axes.

    Raises:
        TypeError: both are bools.
    """
    (a, b), kind = _numeric((x1, x2))
    return as_array(op.tensordot(a, b, axes).to(kind))


def vecdot(x1: Any, x2: Any, /, *, axis: int = -1) -> Array:
    """The sums of products along an axis, the first factors conjugated.

    Args:
        x1: numbers.
        x2: numbers; broadcast with `x1`.
        axis: counted from the end.

    Raises:
        ValueError: sizes along the axis differ, or it is not below 0.
        TypeError: both are bools.
    """
    (a, b), kind = _numeric((x1, x2))
    if axis >= 0 or a.shape[axis] != b.shape[axis]:
        raise ValueError("vecdot is along an axis, counted from the end, of one size in both")
    return as_array(op.sum(op.mul(op.conj(a), b), axis, dtype=a.dtype).to(kind))
