"""Operations along axes of tensors: sums, means, extremes, norms, softmax."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from vkml.ir import DType, dtypes
from vkml.ir.gradients import converted, reshaped
from vkml.ir.size import Size
from vkml.tensors.elementwise import (
    abs,
    add,
    div,
    exp,
    gt,
    isfinite,
    log,
    mul,
    ne,
    pow,
    sqrt,
    sub,
    where,
)
from vkml.tensors.operands import BOOL, INT64, axes_of, axis_of, floating, of_complex, value_as, wrap
from vkml.tracing import EMITTER, Traced, apply, constant

if TYPE_CHECKING:
    from vkml.tensors.tensor import Tensor


def _reduced(op: str, x: Traced, axes: Sequence[int], keepdim: bool) -> Traced:
    if not x.type.shape:
        return x
    return apply(op, x, constant(list(axes), INT64), keepdims=int(keepdim))


def sum(
    x: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False, *, dtype: DType | None = None
) -> Tensor:
    """The sum over axes, over all where none are named; of integers in int64.

    Args:
        x: numbers of any type and shape.
        dim: an axis, or several; below 0 counted from the end. None: all.
        keepdim: whether these axes stay, with one element.
        dtype: in which it is computed; None: the input's, of integers and bools int64.
    """
    kind = dtype or (x.dtype if x.dtype.is_inexact else INT64)
    return wrap(_reduced("ReduceSum", converted(EMITTER, x.value, kind), axes_of(dim, x.ndim), keepdim))


def mean(
    x: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False, *, dtype: DType | None = None
) -> Tensor:
    """The mean over axes, of floats.

    Args:
        x: floats or complex numbers.
        dim: an axis, or several; None: all.
        keepdim: whether these axes stay, with one element.
        dtype: a floating type that `x` is converted to first.

    Raises:
        RuntimeError: integers, and no type is stated.
    """
    kind = dtype or x.dtype
    if not kind.is_inexact:
        raise RuntimeError(f"the mean of {kind.numpy_name}: convert it, or say dtype=")
    return wrap(_reduced("ReduceMean", converted(EMITTER, x.value, kind), axes_of(dim, x.ndim), keepdim))


def prod(x: Tensor, dim: int | None = None, keepdim: bool = False, *, dtype: DType | None = None) -> Tensor:
    """The product over an axis, or of all elements; of integers in int64.

    Args:
        x: numbers of any type and shape.
        dim: an axis, below 0 counted from the end; None: all.
        keepdim: whether these axes stay, with one element.
        dtype: in which it is computed; None: the input's, of integers and bools int64.
    """
    kind = dtype or (x.dtype if x.dtype.is_inexact else INT64)
    return wrap(_reduced("ReduceProd", converted(EMITTER, x.value, kind), axes_of(dim, x.ndim), keepdim))


def amax(x: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
    """The greatest over axes; NaN where there is one.

    Args:
        x: bools, integers or floats.
        dim: an axis, or several; None: all. Gradients are divided among equals.
        keepdim: whether these axes stay, with one element.
    """
    return _extreme("ReduceMax", x, dim, keepdim)


def amin(x: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
    """The smallest over axes; NaN where there is one.

    Args:
        x: bools, integers or floats.
        dim: an axis, or several; None: all. Gradients are divided among equals.
        keepdim: whether these axes stay, with one element.
    """
    return _extreme("ReduceMin", x, dim, keepdim)


def _extreme(op: str, x: Tensor, dim: int | Sequence[int] | None, keepdim: bool) -> Tensor:
    # ONNX reduces integers of 8, 32 and 64 bits.
    kind = dtypes.INT32 if x.dtype in (dtypes.INT16, dtypes.UINT16) else x.dtype
    found = _reduced(op, converted(EMITTER, x.value, kind), axes_of(dim, x.ndim), keepdim)
    return wrap(converted(EMITTER, found, x.dtype))


def argmax(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Where the greatest element is, along an axis or among all.

    Args:
        x: integers or floats.
        dim: the axis; None: the place among all elements in a row.
        keepdim: whether the axis stays, with one element.

    Returns:
        int64: the first place of several.

    Raises:
        IndexError: there are no elements.
    """
    return _place("ArgMax", x, dim, keepdim)


def argmin(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Where the smallest element is, along an axis or among all.

    Args:
        x: integers or floats.
        dim: the axis; None: the place among all elements in a row.
        keepdim: whether the axis stays, with one element.

    Returns:
        int64: the first place of several.

    Raises:
        IndexError: there are no elements.
    """
    return _place("ArgMin", x, dim, keepdim)


def _place(op: str, x: Tensor, dim: int | None, keepdim: bool) -> Tensor:
    value = x.value if dim is not None else reshaped(EMITTER, x.value, (x.numel(),))
    if not value.type.shape:
        return wrap(constant(0, INT64))
    if not value.dims[axis_of(dim or 0, len(value.dims))]:
        raise IndexError(f"{op} of a tensor of shape {list(x.shape)}: there are no elements")
    return wrap(apply(op, value, axis=axis_of(dim or 0, len(value.dims)), keepdims=int(keepdim)))


def var(
    x: Tensor, dim: int | Sequence[int] | bool | None = None, unbiased: bool | None = None,
    keepdim: bool = False, *, correction: float | None = None,
) -> Tensor:  # fmt: skip
    """The variance over axes, its divisor the number of elements less `correction`.

    Args:
        x: floats or complex numbers.
        dim: an axis, or several; None: all. A bool stands for `unbiased`.
        unbiased: a correction of 1, or of 0.
        keepdim: whether these axes stay, with one element.
        correction: taken off the number of elements by which the sum of squares is divided, 1 where
            nothing is said of it; 0 for a whole
            population.

    Raises:
        RuntimeError: of integers.
    """
    dim, correction = corrected(dim, unbiased, correction)
    axes = axes_of(dim, x.ndim)
    count = math.prod(x.shape[axis] for axis in axes)
    off = sub(x, mean(x, axes, True))
    if off.dtype.is_complex:
        off = abs(off)
    total = sum(mul(off, off), axes, keepdim)
    if isinstance(count, Size):
        return div(total, sub(wrap(value_as(count, x.dtype)), correction))
    return mul(total, 1 / (count - correction)) if count > correction else div(total, 0)


def corrected(
    dim: int | Sequence[int] | bool | None, unbiased: bool | None, correction: float | None
) -> tuple[int | Sequence[int] | None, float]:
    """Axes and correction of a variance, as PyTorch lets them be stated.

    Raises:
        TypeError: the correction is stated twice.
    """
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    if unbiased is not None and correction is not None:
        raise TypeError("unbiased and correction say the same: state one")
    return dim, (1 if unbiased in (None, True) else 0) if correction is None else correction


def std(
    x: Tensor, dim: int | Sequence[int] | bool | None = None, unbiased: bool | None = None,
    keepdim: bool = False, *, correction: float | None = None,
) -> Tensor:  # fmt: skip
    """The root of `var`.

    Args:
        x: floats or complex numbers.
        dim: an axis, or several; None: all. A bool stands for `unbiased`.
        unbiased: a correction of 1, or of 0.
        keepdim: whether these axes stay, with one element.
        correction: taken off the number of elements by which the sum of squares is divided, 1 where
            nothing is said of it; 0 for a whole
            population.

    Raises:
        RuntimeError: of integers.
    """
    return sqrt(var(x, dim, unbiased, keepdim, correction=correction))


def all(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Whether all elements along an axis are not 0.

    Args:
        x: numbers of any type and shape.
        dim: the axis; None: all.
        keepdim: whether the axis stays, with one element.

    Returns:
        Bools.
    """
    whole = converted(EMITTER, converted(EMITTER, x.value, BOOL), dtypes.INT32)
    return wrap(converted(EMITTER, _reduced("ReduceMin", whole, axes_of(dim, x.ndim), keepdim), BOOL))


def any(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Whether an element along an axis is not 0.

    Args:
        x: numbers of any type and shape.
        dim: the axis; None: all.
        keepdim: whether the axis stays, with one element.

    Returns:
        Bools.
    """
    whole = converted(EMITTER, converted(EMITTER, x.value, BOOL), dtypes.INT32)
    # Of no elements the greatest is the least number that there is.
    return gt(wrap(_reduced("ReduceMax", whole, axes_of(dim, x.ndim), keepdim)), 0)


def logsumexp(x: Tensor, dim: int | Sequence[int], keepdim: bool = False) -> Tensor:
    """log Σ exp over axes, without overflow.

    Args:
        x: numbers; integers become floats of the default type.
        dim: an axis, or several.
        keepdim: whether these axes stay, with one element.
    """
    if x.dtype.is_complex:
        axes = axes_of(dim, x.ndim)
        most = amax(of_complex("Real", x), axes, True)
        # Of no finite greatest part there is nothing to take out.
        most = where(isfinite(most), most, 0).detach()
        found = add(log(sum(exp(sub(x, most)), axes, True)), most)
        return found if keepdim else sum(found, axes)
    return wrap(_reduced("ReduceLogSumExp", floating(x), axes_of(dim, x.ndim), keepdim))


def norm(
    x: Tensor, p: float | str | None = 2, dim: int | Sequence[int] | None = None, keepdim: bool = False, *,
    dtype: DType | None = None,
) -> Tensor:  # fmt: skip
    """The p-norm over axes, of all elements where none are named: (Σ |x|ᵖ)^(1/p).

    That of 0 is the number of elements that are not 0, those of ±inf the greatest and the smallest |x|; "fro"
    is that of 2, "nuc" the sum of a matrix's singular values.

    Args:
        x: numbers; integers become floats of the default type.
        p: which norm: any number, or ±inf, "fro" or "nuc".
        dim: an axis, or several; None: all.
        keepdim: whether these axes stay, with one element.
        dtype: a floating type that `x` is converted to first.

    Returns:
        Floats.

    Raises:
        RuntimeError: the smallest of no elements.
    """
    if p == "nuc":
        from vkml.linalg import matrix_norm

        axes = axes_of((-2, -1) if dim is None else dim, x.ndim)
        return matrix_norm(x.to(dtype), "nuc", axes, keepdim)
    if isinstance(p, str) and p != "fro":
        raise RuntimeError(f"norm: p is a number, 'fro' or 'nuc', not {p!r}")
    p = 2 if p is None or isinstance(p, str) else p
    axes, given = axes_of(dim, x.ndim), wrap(floating(x.to(dtype)))
    if p == 0:
        return sum(ne(given, 0), axes, keepdim, dtype=dtypes.real_of(given.dtype))
    if given.dtype.is_complex or not x.ndim:
        given = abs(given)
    if not x.ndim:
        return given
    if p in (1, 2):
        return wrap(_reduced(f"ReduceL{int(p)}", given.value, axes, keepdim))
    if p in (math.inf, -math.inf):
        if math.prod(x.shape[axis] for axis in axes):
            return (amax if p > 0 else amin)(abs(given), axes, keepdim)
        if p < 0:
            raise RuntimeError("norm: the least of no elements")
        return sum(given, axes, keepdim)
    return pow(sum(pow(abs(given), p), axes, keepdim), 1 / p)


def softmax(x: Tensor, dim: int, dtype: DType | None = None) -> Tensor:
    """exp x / Σ exp x along an axis.

    Args:
        x: real numbers; integers become floats of the default type.
        dim: the axis.
        dtype: a type that `x` is converted to first.
    """
    return wrap(apply("Softmax", floating(x.to(dtype) if dtype else x), axis=axis_of(dim, x.ndim)))


def log_softmax(x: Tensor, dim: int, dtype: DType | None = None) -> Tensor:
    """The logarithm of `softmax`.

    Args:
        x: real numbers; integers become floats of the default type.
        dim: the axis.
        dtype: a type that `x` is converted to first.
    """
    return wrap(apply("LogSoftmax", floating(x.to(dtype) if dtype else x), axis=axis_of(dim, x.ndim)))


def cumsum(x: Tensor, dim: int, *, dtype: DType | None = None) -> Tensor:
    """Sums of all elements up to each, along an axis.

    Args:
        x: numbers of any type and shape.
        dim: the axis.
        dtype: in which it is computed; None: the input's, of integers and bools int64.

    Returns:
        The input's shape.
    """
    kind = dtype or (x.dtype if x.dtype.is_inexact else INT64)
    value, axis = converted(EMITTER, x.value, kind), axis_of(dim, x.ndim)
    return wrap(apply("CumSum", value, constant(axis, INT64))) if x.ndim else wrap(value)
