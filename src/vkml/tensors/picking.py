"""Elements picked and placed by index or by mask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from vkml.ir import dtypes
from vkml.tensors import tensor as core
from vkml.tensors.elementwise import mul, where
from vkml.tensors.index_checks import require_from_front
from vkml.tensors.indexing import put
from vkml.tensors.operands import BOOL, INT64, Operand, axis_of, filled, value_as, wrap
from vkml.tensors.promotion import category, result_type
from vkml.tensors.reductions import cumsum
from vkml.tensors.shapes import broadcast_to, gather, gather_from_both_ends, reshape
from vkml.tracing import apply, value_of

if TYPE_CHECKING:
    from vkml.tensors.tensor import Tensor

_REDUCTIONS = {
    None: "none",
    "add": "add",
    "sum": "add",
    "multiply": "mul",
    "prod": "mul",
    "amax": "max",
    "amin": "min",
}


def _scattered(x: Tensor, dim: int, index: Tensor, source: Operand, reduction: str) -> Tensor:
    if not index.dtype.is_integer:
        raise RuntimeError(f"an index is of integers, not of {index.dtype.numpy_name}")
    if not x.ndim:
        made = _scattered(reshape(x, 1), 0, reshape(index, 1), source, reduction)
        return reshape(made)
    axis = axis_of(dim, x.ndim)
    if isinstance(source, core.Tensor):
        if source.dtype != x.dtype:
            raise RuntimeError(
                f"what is scattered has the type {x.dtype.numpy_name}, not {source.dtype.numpy_name}"
            )
        if not source.ndim:
            source = reshape(source, 1)
        if source.ndim != index.ndim or any(a > b for a, b in zip(index.shape, source.shape, strict=True)):
            raise RuntimeError(
                f"an index of shape {list(index.shape)} for a source of shape {list(source.shape)}"
            )
        given = source[tuple(slice(0, size) for size in index.shape)].value
    else:
        given = filled(value_as(source, x.dtype), index.shape)
    if index.ndim != x.ndim or any(
        size > own for at, (size, own) in enumerate(zip(index.shape, x.shape, strict=True)) if at != axis
    ):
        raise RuntimeError(f"an index of shape {list(index.shape)} for a tensor of shape {list(x.shape)}")
    if not index.numel():
        return x.clone()
    return wrap(apply("ScatterElements", x.value, index.value, given, axis=axis, reduction=reduction))


def scatter(
    x: Tensor, dim: int, index: Tensor, src: Any = None, *, value: Any = None, reduce: str | None = None
) -> Tensor:
    """Elements of a source, or a number, placed at indices along an axis.

    Args:
        x: what others are placed in.
        dim: the axis.
        index: int64 [i, j, …]: where element [i, j, …] of the source goes along the axis.
        src: a tensor of at least the index's sizes, or a number.
        value: a number.
        reduce: "add" or "multiply" joins them with what is there.
    """
    source = value if src is None else src
    if source is None or reduce not in (None, "add", "multiply"):
        raise RuntimeError("scatter needs src or value, and reduce='add' or 'multiply' or none")
    return _scattered(x, dim, index, source, _REDUCTIONS[reduce])


def scatter_add(x: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """Elements added at indices along an axis.

    Args:
        x: what they are added to.
        dim: the axis.
        index: int64 [i, j, …]: where element [i, j, …] of `src` goes along the axis.
        src: of the type of `x`, and at least of the index's sizes.

    Raises:
        RuntimeError: shapes or types do not fit.
    """
    return _scattered(x, dim, index, src, "add")


def scatter_reduce(
    x: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """Elements joined at indices along an axis: "sum", "prod", "mean", "amax" or "amin".

    Args:
        x: what they are joined with.
        dim: the axis.
        index: as in `scatter`.
        src: the elements.
        reduce: how.
        include_self: whether what is there counts, where others come.
    """
    if reduce not in ("sum", "prod", "mean", "amax", "amin"):
        raise RuntimeError(f"scatter_reduce: reduce={reduce!r} is not known")
    start = x
    if not include_self:
        neutral = {"sum": 0, "mean": 0, "prod": 1, "amax": _end(x, True), "amin": _end(x, False)}[reduce]
        start = _scattered(x, dim, index, neutral, "none")
    if reduce != "mean":
        return _scattered(start, dim, index, src, _REDUCTIONS[reduce])
    total = _scattered(start, dim, index, src, "add")
    ones = x * 0 + (1 if include_self else 0)
    count = _scattered(ones.detach(), dim, index, 1, "add")
    count = where(count < 1, 1, count)
    return total / count if x.dtype.is_float else total.div(count, rounding_mode="floor")


def _end(x: Tensor, is_least: bool) -> float:
    """The number that every other of the type is greater, or smaller, than."""
    if x.dtype.is_float:
        return float("-inf" if is_least else "inf")
    least, most = (0, 1) if x.dtype == BOOL else dtypes.integer_bounds(x.dtype)
    return least if is_least else most


def _across(x: Tensor, axis: int, index: Tensor, shape: Sequence[int]) -> Tensor:
    """An index of one axis for slices of a shape."""
    if index.ndim > 1:
        raise IndexError(f"an index of one axis is needed, this has {index.ndim}")
    rows = reshape(index, *[1] * axis, -1, *[1] * (len(shape) - axis - 1))
    return broadcast_to(rows, shape)


def index_add(x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor:
    """Slices added to those of an axis at indices.

    Args:
        x: any.
        dim: the axis.
        index: integers of one axis: the places of the slices.
        source: of the type of `x`, and of its shape but for the axis, which is as long as the index.
        alpha: a factor of the source.

    Raises:
        RuntimeError: shapes or types do not fit.
    """
    return _by_slices(x, dim, index, mul(source, alpha) if alpha != 1 else source, "add")


def index_copy(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """Slices in the places of those of an axis at indices.

    Args:
        x: any.
        dim: the axis.
        index: integers of one axis: the places of the slices.
        source: of the type of `x`, and of its shape but for the axis, which is as long as the index.

    Raises:
        RuntimeError: shapes or types do not fit.
    """
    return _by_slices(x, dim, index, source, "none")


def index_fill(x: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    """A number throughout the slices of an axis at indices.

    Args:
        x: any.
        dim: the axis.
        index: integers of one axis: the places of the slices.
        value: a number, or a tensor that is broadcast with the slices.
    """
    if not x.ndim:
        return _by_slices(x, dim, index, wrap(value_as(value, x.dtype)), "none")
    axis = axis_of(dim, x.ndim)
    shape = [*x.shape[:axis], index.numel(), *x.shape[axis + 1 :]]
    return _scattered(
        x,
        axis,
        _across(x, axis, index, shape),
        value if not isinstance(value, core.Tensor) else broadcast_to(value, shape),
        "none",
    )


def _by_slices(x: Tensor, dim: int, index: Tensor, source: Tensor, reduction: str) -> Tensor:
    if not x.ndim:
        return reshape(_by_slices(reshape(x, 1), 0, index, reshape(source, 1), reduction))
    axis = axis_of(dim, x.ndim)
    shape = [*x.shape[:axis], index.numel(), *x.shape[axis + 1 :]]
    if list(source.shape) != shape:
        raise RuntimeError(f"the source has the shape {list(source.shape)}, the index needs {shape}")
    return _scattered(x, axis, _across(x, axis, index, shape), source, reduction)


def index_put(x: Tensor, indices: Sequence[Any], values: Operand, accumulate: bool = False) -> Tensor:
    """With other elements, or sums with them, where indices are as in `x[indices]`.

    Args:
        x: any.
        indices: for each of the first axes a tensor of integers, or one of bools for several; broadcast with
            each other.
        values: a tensor or a number; broadcast with what is picked.
        accumulate: whether they are added to what is there, several at one place all of them.
    """
    return wrap(put(x, tuple(indices), value_as(values, x.dtype), accumulate))


def masked_fill(x: Tensor, mask: Tensor, value: Operand) -> Tensor:
    """A number where a mask is true.

    Args:
        x: any.
        mask: bools; broadcast with `x`.
        value: a number, or a tensor without axes, that fits the type of `x`.

    Raises:
        RuntimeError: the mask is not of bools, or the value does not fit.
    """
    if mask.dtype != BOOL:
        raise RuntimeError(f"a mask is of bools, not of {mask.dtype.numpy_name}")
    if isinstance(value, core.Tensor) and value.ndim:
        raise RuntimeError("masked_fill takes a number or a tensor of one element without axes")
    if not isinstance(value, core.Tensor) and category(result_type(x, value)) > category(x.dtype):
        raise RuntimeError(f"{value} does not fit {x.dtype.numpy_name}")
    return where(mask, wrap(value_as(value, x.dtype)), x)


def masked_select(x: Tensor, mask: Tensor) -> Tensor:
    """The elements where a mask is true; their number is looked at.

    Args:
        x: any.
        mask: bools; broadcast with `x`.

    Returns:
        The elements along one axis.

    Raises:
        RuntimeError: the mask is of numbers.
    """
    if mask.dtype not in (BOOL, dtypes.UINT8):
        raise RuntimeError(f"masked_select: a mask is a tensor of bools, not of {mask.dtype.numpy_name}")
    shape = np.broadcast_shapes(tuple(x.shape), tuple(mask.shape))
    return broadcast_to(x, shape)[broadcast_to(mask, shape)]


def masked_scatter(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """The elements of a source, in order, where a mask is true.

    Args:
        x: any.
        mask: bools; broadcast with `x`.
        source: at least as many elements as the mask has true ones.
    """
    shape = np.broadcast_shapes(tuple(x.shape), tuple(mask.shape))
    is_taken = reshape(broadcast_to(mask, shape), -1)
    order = (cumsum(is_taken.to(INT64), 0) - 1).clamp(min=0, max=source.numel() - 1)
    given = gather(reshape(source, -1), 0, order)
    return reshape(where(is_taken, given, reshape(broadcast_to(x, shape), -1)), *shape)


def nonzero(x: Tensor, *, as_tuple: bool = False) -> Any:
    """Where elements are not 0, a row for each; or, as a tuple, the places along each axis.

    Their number is looked at, and the places are found on the CPU.

    Args:
        x: any.
        as_tuple: whether each axis has a tensor of its own.

    Returns:
        int64 [elements, axes]; as a tuple [elements] for each axis.
    """
    found = (
        np.nonzero(x._elements().astype(np.bool_))
        if x.ndim
        else np.nonzero(x._elements().reshape(1).astype(np.bool_))
    )
    if as_tuple:
        return tuple(core.Tensor(value_of(places.astype(np.int64))).to(x.device) for places in found)
    rows = np.stack(found, 1) if x.ndim else np.zeros((len(found[0]), 0))
    return core.Tensor(value_of(np.ascontiguousarray(rows.astype(np.int64)))).to(x.device)


def argwhere(x: Tensor) -> Tensor:
    """Where elements are not 0, a row for each.

    Args:
        x: any.

    Returns:
        int64 [elements, axes].
    """
    found: Tensor = nonzero(x)
    return found


def take(x: Tensor, index: Tensor) -> Tensor:
    """Elements by number, as if all lay along one axis.

    Args:
        x: any.
        index: int32 or int64 of any shape; below 0 counted from the end.

    Returns:
        The index's shape.
    """
    flat = x.value if x.ndim == 1 else reshape(x, -1).value
    return wrap(apply("Gather", flat, index.value, axis=0))


def take_along_dim(x: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
    """Elements at indices along an axis, other axes broadcast; of all as one axis where none is named.

    Args:
        x: any.
        indices: int32 or int64 of as many axes as `x`.
        dim: the axis.

    Raises:
        RuntimeError: shapes do not fit.
        IndexError: an index is negative (where the host has them) or too large.
    """
    if dim is None:
        return gather(reshape(x, -1), 0, reshape(indices, -1))
    require_from_front(indices, "take_along_dim")
    return take_along_from_both_ends(x, indices, dim)


def take_along_from_both_ends(x: Tensor, indices: Tensor, dim: int) -> Tensor:
    """As `take_along_dim`; negative indices count from the end."""
    axis = axis_of(dim, x.ndim)
    if indices.ndim != x.ndim:
        raise RuntimeError(f"take_along_dim: {indices.ndim} axes for a tensor of {x.ndim}")
    sizes = np.broadcast_shapes(
        *([size if at != axis else 1 for at, size in enumerate(one.shape)] for one in (x, indices))
    )
    wide, at = ([*sizes[:axis], one.shape[axis], *sizes[axis + 1 :]] for one in (x, indices))
    return gather_from_both_ends(broadcast_to(x, wide), axis, broadcast_to(indices, at))


@overload
def where_or_places(condition: Tensor) -> tuple[Tensor, ...]: ...


@overload
def where_or_places(condition: Tensor, input: Any, other: Any) -> Tensor: ...


def where_or_places(condition: Tensor, input: Any = None, other: Any = None) -> Any:
    """`input` where the condition is true, `other` elsewhere; with that alone, the places where it is.

    Args:
        condition: bools.
        input: a tensor or a number; broadcast with the condition.
        other: likewise.

    Raises:
        RuntimeError: the condition is of numbers.
    """
    if input is None and other is None:
        return nonzero(condition, as_tuple=True)
    if condition.dtype not in (BOOL, dtypes.UINT8):
        raise RuntimeError(f"where: a condition is a tensor of bools, not of {condition.dtype.numpy_name}")
    return where(condition, input, other)


where_or_places.__name__ = "where"  # as programs call it


def _written(x: Tensor, part: Any, src: Tensor, function: str) -> Tensor:
    """A copy of a tensor with other elements in a part of it."""
    made = x.clone()
    shown = part(made)
    if shown.shape != src.shape:
        raise RuntimeError(
            f"{function}: the shape is {list(src.shape)}, that of the part {list(shown.shape)}"
        )
    shown.copy_(src)
    return made


def select_scatter(x: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    """A copy with other elements at one place of an axis.

    Args:
        x: is copied.
        src: the elements, of the shape of that place.
        dim: the axis.
        index: the place.

    Raises:
        RuntimeError: the shapes differ.
    """
    return _written(x, lambda made: made.select(dim, index), src, "select_scatter")


def slice_scatter(
    x: Tensor, src: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Tensor:
    """A copy with other elements at some places of an axis.

    Args:
        x: is copied.
        src: the elements, of the shape of these places.
        dim: the axis.
        start: the first place.
        end: the place behind the last.
        step: from one to the next.

    Raises:
        RuntimeError: the shapes differ.
    """
    index = (slice(None),) * axis_of(dim, x.ndim) + (slice(start, end, step),)
    return _written(x, lambda made: made[index], src, "slice_scatter")


def diagonal_scatter(x: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """A copy with other elements on a diagonal.

    Args:
        x: is copied.
        src: the elements, of the shape of `vkml.diagonal`.
        offset: as there.
        dim1: as there.
        dim2: as there.

    Raises:
        RuntimeError: the shapes differ.
    """
    return _written(x, lambda made: made.diagonal(offset, dim1, dim2), src, "diagonal_scatter")
