"""Statistics along axes: extremes with their places, medians, quantiles, cumulative sums, moments."""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vkml.ir import DType, dtypes
from vkml.ir.gradients import converted
from vkml.tensors import tensor as core
from vkml.tensors.complex import adjoint, of_parts
from vkml.tensors.elementwise import (
    add,
    div,
    exp,
    isfinite,
    isnan,
    log,
    maximum,
    minimum,
    mul,
    ne,
    sqrt,
    sub,
    where,
)
from vkml.tensors.operands import BOOL, INT64, axis_of, floating, value_as, wrap
from vkml.tensors.products import matmul
from vkml.tensors.reductions import amax, amin, argmax, argmin, corrected, cumsum, mean, std, sum, var
from vkml.tensors.shapes import ValuesAndIndices, cat, gather, reshape, sort, squeeze, transpose, unsqueeze
from vkml.tracing import EMITTER, apply, constant

if TYPE_CHECKING:
    from vkml.tensors.tensor import Tensor


def _picked(x: Tensor, dim: int, places: Tensor, keepdim: bool) -> ValuesAndIndices:
    """Elements at places [..., 1, ...] of an axis; gradients flow to these alone."""
    values = gather(x, dim, places)
    return (
        ValuesAndIndices(values, places)
        if keepdim
        else ValuesAndIndices(squeeze(values, dim), squeeze(places, dim))
    )


def _extreme(x: Tensor, dim: Any, keepdim: bool, is_max: bool) -> Any:
    pair, whole, place = (maximum, amax, argmax) if is_max else (minimum, amin, argmin)
    if isinstance(dim, core.Tensor):
        return pair(x, dim)
    if dim is None:
        if not x.numel():
            raise RuntimeError("the greatest or smallest of no elements: name an axis that has some")
        return whole(x)
    axis = axis_of(dim, x.ndim)
    if not x.ndim:
        return ValuesAndIndices(x, wrap(constant(0, INT64)))
    if not x.shape[axis]:
        raise IndexError(f"axis {dim} has no elements")
    whole_numbers = x.to(dtypes.INT32) if x.dtype == BOOL else x
    return _picked(x, dim, place(whole_numbers, dim, True), keepdim)


def max(x: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
    """The greatest of all elements; along an axis with its place; or, with a tensor, of each pair.

    Args:
        x: integers or floats.
        dim: an axis; or a tensor that is broadcast with `x`. None: all elements.
        keepdim: whether the axis stays, with one element.

    Returns:
        Along an axis a pair `values`, `indices` (int64), else one tensor; NaN where there is one.

    Raises:
        RuntimeError: there are no elements.
        IndexError: the axis has none.
    """
    return _extreme(x, dim, keepdim, True)


def min(x: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
    """The smallest of all elements; along an axis with its place; or, with a tensor, of each pair.

    Args:
        x: integers or floats.
        dim: an axis; or a tensor that is broadcast with `x`. None: all elements.
        keepdim: whether the axis stays, with one element.

    Returns:
        Along an axis a pair `values`, `indices` (int64), else one tensor; NaN where there is one.

    Raises:
        RuntimeError: there are no elements.
        IndexError: the axis has none.
    """
    return _extreme(x, dim, keepdim, False)


def aminmax(x: Tensor, *, dim: int | None = None, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The smallest and the greatest, of all or along an axis.

    Args:
        x: integers or floats.
        dim: the axis; None: all.
        keepdim: whether the axis stays, with one element.
    """
    return amin(x, dim, keepdim), amax(x, dim, keepdim)


def argsort(x: Tensor, dim: int = -1, descending: bool = False, stable: bool = False) -> Tensor:
    """The places of an axis's elements in their order; of equals, the first comes first.

    Args:
        x: integers or floats.
        dim: the axis.
        descending: whether the greatest comes first.
        stable: accepted; equal elements always stay in order.

    Returns:
        int64 of the same shape.
    """
    return sort(x, dim, descending)[1]


def msort(x: Tensor) -> Tensor:
    """In order along the first axis.

    Args:
        x: integers or floats.
    """
    return sort(x, 0)[0]


def kthvalue(x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> ValuesAndIndices:
    """The k-th smallest element along an axis, counted from 1.

    Args:
        x: integers or floats.
        k: from 1 to the axis's size.
        dim: the axis.
        keepdim: whether the axis stays, with one element.

    Returns:
        A pair `values`, `indices` (int64).

    Raises:
        RuntimeError: there is no such element.
    """
    size = x.shape[dim] if x.ndim else 1
    if not 1 <= k <= size:
        raise RuntimeError(f"kthvalue: k is {k}, the axis has {size} elements")
    if not x.ndim:
        return ValuesAndIndices(x, wrap(constant(0, INT64)))
    places = sort(x, dim)[1].narrow(dim, k - 1, 1)
    return _picked(x, dim, places, keepdim)


def median(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """The middle element, the lower of two, along an axis with its place; NaN where there is one.

    Args:
        x: integers or floats.
        dim: the axis; None: all elements.
        keepdim: whether the axis stays, with one element.

    Returns:
        Along an axis a pair `values`, `indices` (int64), else one tensor.

    Raises:
        IndexError: the axis has no elements.
    """
    return _middle(x, dim, keepdim, skips_nan=False)


def nanmedian(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """The middle of the elements that are not NaN, the lower of two.

    Args:
        x: integers or floats.
        dim: the axis; None: all elements.
        keepdim: whether the axis stays, with one element.

    Returns:
        Along an axis a pair `values`, `indices` (int64), else one tensor.

    Raises:
        IndexError: the axis has no elements.
    """
    return _middle(x, dim, keepdim, skips_nan=True)


def _middle(x: Tensor, dim: int | None, keepdim: bool, skips_nan: bool) -> Any:
    if dim is None:
        if not x.numel():
            return wrap(constant(math.nan, x.dtype)) if x.dtype.is_float else x.sum().to(x.dtype)
        return _middle(reshape(x, -1), 0, False, skips_nan).values
    if not x.ndim:
        return ValuesAndIndices(x, wrap(constant(0, INT64)))
    axis = axis_of(dim, x.ndim)
    size = x.shape[axis]
    if not size:
        raise IndexError(f"axis {dim} has no elements")
    order = sort(x, axis)[1]  # NaN comes last
    if not x.dtype.is_float:
        return _picked(x, axis, order.narrow(axis, (size - 1) // 2, 1), keepdim)
    missing = sum(isnan(x), axis, True)
    if skips_nan:
        count = sub(size, missing)
        at = div(maximum(sub(count, 1), count * 0), 2, rounding_mode="floor")
    else:
        at = where(missing > 0, size - missing, (size - 1) // 2).to(INT64)
    return _picked(x, axis, gather(order, axis, at), keepdim)


def quantile(
    x: Tensor, q: Any, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear"
) -> Tensor:
    """The value below which a share `q` of the elements lies.

    Args:
        x: floats.
        q: the part, from 0 to 1, or a tensor of parts, which become the first axis of the result.
        dim: along which; all elements where left out.
        keepdim: whether the axis stays, with one element.
        interpolation: between two elements: "linear", "lower", "higher", "midpoint" or "nearest".
    """
    return _quantile(x, q, dim, keepdim, interpolation, False)


def nanquantile(
    x: Tensor, q: Any, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear"
) -> Tensor:
    """`quantile` of the elements that are not NaN.

    Args:
        x: floats.
        q: the share, from 0 to 1, or a tensor of shares.
        dim: the axis; None: all elements.
        keepdim: whether the axis stays, with one element.
        interpolation: as for `quantile`.
    """
    return _quantile(x, q, dim, keepdim, interpolation, True)


def _quantile(
    x: Tensor, q: Any, dim: int | None, keepdim: bool, interpolation: str, skips_nan: bool
) -> Tensor:
    if not x.dtype.is_float:
        raise RuntimeError(f"quantiles are of floats, not of {x.dtype.numpy_name}")
    if interpolation not in ("linear", "lower", "higher", "midpoint", "nearest"):
        raise RuntimeError(f"quantile: interpolation {interpolation!r} is not known")
    parts = q if isinstance(q, core.Tensor) else wrap(value_as(float(q), x.dtype)).to(x.device)
    if not isinstance(q, core.Tensor) and not 0 <= q <= 1:
        raise RuntimeError(f"quantile: q lies in [0, 1], {q} does not")
    if parts.ndim > 1:
        raise RuntimeError("quantile: q is a number or of one axis")
    if not x.numel():
        raise RuntimeError("quantile: there are no elements")
    rank = x.ndim
    axis = 0 if dim is None else axis_of(dim, rank)
    rows = reshape(x, 1, -1) if dim is None else transpose(x, axis, -1) if rank else reshape(x, 1)
    ordered = sort(rows, -1)[0]
    size = rows.shape[-1]
    missing = sum(isnan(ordered), -1, True)
    last = sub(size, missing) - 1 if skips_nan else missing * 0 + (size - 1)
    flat = reshape(parts, -1).to(rows.dtype)
    ranks = mul(flat, last.to(rows.dtype))
    if interpolation == "nearest":
        ranks = ranks.round()
    elif interpolation == "lower":
        ranks = ranks.floor()
    elif interpolation == "higher":
        ranks = ranks.ceil()
    below = maximum(ranks.floor(), ranks * 0)
    low = gather(ordered, -1, below.to(INT64))
    high = gather(ordered, -1, minimum(below + 1, maximum(last.to(rows.dtype), ranks * 0)).to(INT64))
    weight = sub(ranks, below)
    if interpolation == "midpoint":
        weight = where(weight > 0, weight * 0 + 0.5, weight)
    found = where(weight > 0, add(low, mul(sub(high, low), weight)), low)
    gone = missing > 0 if not skips_nan else last < 0
    found = where(gone, math.nan, found)  # [..., parts]
    if dim is None:
        found = reshape(found, -1, *([1] * rank if keepdim else []))
    elif rank:
        found = unsqueeze(found, 0)
        found = transpose(found, 0, -1)  # [parts, ..., 1]
        found = transpose(found, axis + 1, -1)
        found = found if keepdim else squeeze(found, axis + 1)
    return found if isinstance(q, core.Tensor) and q.ndim else squeeze(found, 0)


def _places(x: Tensor, dim: int, function: str) -> Tensor:
    value = x.to(dtypes.UINT8).value if x.dtype == BOOL else x.value
    return wrap(apply("PlacesAlong", value, domain="vkml", axis=axis_of(dim, x.ndim), function=function))


def mode(x: Tensor, dim: int = -1, keepdim: bool = False) -> ValuesAndIndices:
    """The most frequent element along an axis, the smallest of several; found on the CPU.

    Args:
        x: bools, integers or floats.
        dim: the axis.
        keepdim: whether the axis stays, with one element.

    Returns:
        A pair `values`, `indices` (int64).
    """
    if not x.ndim:
        return ValuesAndIndices(x, wrap(constant(0, INT64)))
    return _picked(x, axis_of(dim, x.ndim), unsqueeze(_places(x, dim, "mode"), axis_of(dim, x.ndim)), keepdim)


def cummax(x: Tensor, dim: int) -> ValuesAndIndices:
    """The greatest element up to each along an axis, and where it is; found on the CPU.

    Args:
        x: bools, integers or floats.
        dim: the axis.

    Returns:
        A pair `values`, `indices` (int64), both of the input's shape.
    """
    return _cumulative(x, dim, "cummax")


def cummin(x: Tensor, dim: int) -> ValuesAndIndices:
    """The smallest element up to each along an axis, and where it is; found on the CPU.

    Args:
        x: bools, integers or floats.
        dim: the axis.

    Returns:
        A pair `values`, `indices` (int64), both of the input's shape.
    """
    return _cumulative(x, dim, "cummin")


def _cumulative(x: Tensor, dim: int, function: str) -> ValuesAndIndices:
    if not x.ndim:
        return ValuesAndIndices(x, wrap(constant(0, INT64)))
    places = _places(x, dim, function)
    return ValuesAndIndices(gather(x, dim, places), places)


def cumprod(x: Tensor, dim: int, *, dtype: DType | None = None) -> Tensor:
    """Products of all elements up to each, along an axis.

    Args:
        x: numbers of any type and shape.
        dim: the axis.
        dtype: in which it is computed; None: the input's, of integers and bools int64.

    Returns:
        The input's shape.
    """
    kind = dtype or (x.dtype if x.dtype.is_inexact else INT64)
    value = converted(EMITTER, x.value, kind)
    axis = axis_of(dim, x.ndim)
    return wrap(apply("CumProd", value, constant(axis, INT64))) if x.ndim else wrap(value)


def logcumsumexp(x: Tensor, dim: int) -> Tensor:
    """log Σ exp of all elements up to each, along an axis, relative to the greatest so far.

    Args:
        x: floats.
        dim: the axis.

    Returns:
        The input's shape.
    """
    if not x.ndim:
        return x
    top = amax(x, dim, True).detach()
    shift = where(isfinite(top), top, 0)
    return add(log(cumsum(exp(sub(x, shift)), dim)), shift)


def nansum(
    x: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False, *, dtype: DType | None = None
) -> Tensor:
    """The sum of the elements that are not NaN.

    Args:
        x: numbers of any type and shape.
        dim: an axis, or several; None: all.
        keepdim: whether these axes stay, with one element.
        dtype: in which it is computed; None: the input's, of integers and bools int64.
    """
    return sum(where(isnan(x), 0, x) if x.dtype.is_float else x, dim, keepdim, dtype=dtype)


def nanmean(
    x: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False, *, dtype: DType | None = None
) -> Tensor:
    """The mean of the elements that are not NaN.

    Args:
        x: floats.
        dim: an axis, or several; None: all.
        keepdim: whether these axes stay, with one element.
        dtype: in which it is computed; None: the input's.
    """
    count = sum(isnan(x) == False, dim, keepdim)  # noqa: E712
    return div(nansum(x, dim, keepdim, dtype=dtype), count)


def count_nonzero(x: Tensor, dim: int | Sequence[int] | None = None) -> Tensor:
    """How many elements are not 0, over axes.

    Args:
        x: numbers of any type and shape.
        dim: an axis, or several; None: all.

    Returns:
        int64.
    """
    return sum(ne(x, 0), dim)


def var_mean(
    x: Tensor, dim: int | Sequence[int] | bool | None = None, unbiased: bool | None = None,
    keepdim: bool = False, *, correction: float | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`var` and `mean`.

    Args:
        x: floats or complex numbers.
        dim: an axis, or several; None: all. A bool stands for `unbiased`.
        unbiased: a correction of 1, or of 0.
        keepdim: whether these axes stay, with one element.
        correction: taken off the number of elements by which the sum of squares is divided.
    """
    axes, less = corrected(dim, unbiased, correction)
    return var(x, axes, correction=less, keepdim=keepdim), mean(x, axes, keepdim)


def std_mean(
    x: Tensor, dim: int | Sequence[int] | bool | None = None, unbiased: bool | None = None,
    keepdim: bool = False, *, correction: float | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`std` and `mean`.

    Args:
        x: floats or complex numbers.
        dim: an axis, or several; None: all. A bool stands for `unbiased`.
        unbiased: a correction of 1, or of 0.
        keepdim: whether these axes stay, with one element.
        correction: taken off the number of elements by which the sum of squares is divided.
    """
    axes, less = corrected(dim, unbiased, correction)
    return std(x, axes, correction=less, keepdim=keepdim), mean(x, axes, keepdim)


def diff(
    x: Tensor, n: int = 1, dim: int = -1, prepend: Tensor | None = None, append: Tensor | None = None
) -> Tensor:
    """Differences of neighbours along an axis, taken n times.

    Args:
        x: at least one axis.
        n: how often.
        dim: the axis.
        prepend: put in front along the axis, before differences are taken.
        append: put behind it.

    Returns:
        n elements fewer along the axis; of bools where neighbours differ.

    Raises:
        RuntimeError: there are no axes.
    """
    if not x.ndim:
        raise RuntimeError("diff needs at least one axis")
    parts = [part for part in (prepend, x, append) if part is not None]
    found = cat(parts, dim) if len(parts) > 1 else x
    for _ in range(n):
        size = found.shape[dim]
        if not size:
            break
        late, early = found.narrow(dim, 1, size - 1), found.narrow(dim, 0, size - 1)
        found = ne(late, early) if found.dtype == BOOL else sub(late, early)
    return found


def cov(x: Tensor, *, correction: int = 1) -> Tensor:
    """The covariance of variables [variables, observations].

    Args:
        x: floats or integers [variables, observations], or [observations].
        correction: taken off the number of observations by which sums are divided.

    Returns:
        [variables, variables].
    """
    rows = wrap(floating(x)) if x.ndim > 1 else reshape(wrap(floating(x)), 1, -1)
    off = sub(rows, mean(rows, 1, True))
    found = div(matmul(off, adjoint(off)), builtins.max(rows.shape[1] - correction, 0))
    return found if x.ndim > 1 else reshape(found)


def corrcoef(x: Tensor) -> Tensor:
    """The correlation of variables [variables, observations].

    Args:
        x: floats or integers [variables, observations], or [observations].

    Returns:
        [variables, variables], from -1 to 1.
    """
    found = cov(x)
    if not found.ndim:
        return div(found, found)
    deviation = sqrt(found.diagonal())
    found = div(div(found, unsqueeze(deviation, 1)), unsqueeze(deviation, 0))
    return of_parts(_within_one, found) if found.dtype.is_complex else _within_one(found)


def _within_one(x: Tensor) -> Tensor:
    return x.clamp(-1, 1)


def trapezoid(y: Tensor, x: Tensor | None = None, *, dx: float = 1.0, dim: int = -1) -> Tensor:
    """The integral along an axis by the trapezoidal rule.

    Args:
        y: heights.
        x: where they are: as many numbers as the axis has, or of the shape of `y`.
        dx: how far they are apart, where `x` is left out.
        dim: the axis.

    Returns:
        Without the axis.
    """
    size = y.shape[dim]
    heights = add(y.narrow(dim, 1, size - 1), y.narrow(dim, 0, size - 1))
    if x is None:
        return mul(sum(heights, dim), dx / 2)
    steps = diff(x, dim=-1 if x.ndim == 1 else dim)
    if x.ndim == 1:
        steps = reshape(
            steps, *([1] * (axis_of(dim, y.ndim))), -1, *([1] * (y.ndim - axis_of(dim, y.ndim) - 1))
        )
    return div(sum(mul(heights, steps), dim), 2)
