"""Functions of the array API that arrange, pick, search and sort elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from vkml.ir import dtypes
from vkml.tensors import Tensor, creation
from vkml.tensors import operations as op
from vkml.tensors.operands import axes_of, axis_of
from vkml.tensors.picking import take_along_from_both_ends
from vkml.xp.array import Array, alike, as_array, joined_type

Axes = int | Sequence[int] | None
__all__ = [
    "argmax", "argmin", "argsort", "concat", "expand_dims", "flip", "isin", "matrix_transpose",
    "moveaxis", "nonzero", "permute_dims", "repeat", "reshape", "roll", "searchsorted", "sort", "squeeze",
    "stack", "take", "take_along_axis", "tile", "unique_all", "unique_counts", "unique_inverse",
    "unique_values", "unstack", "where",
]  # fmt: skip


def joined(arrays: Sequence[Any]) -> list[Tensor]:
    """Arrays in the type that theirs are joined in.

    Raises:
        ValueError: there are none.
    """
    if not arrays:
        raise ValueError("at least one array is needed")
    kind = arrays[0].dtype
    for other in arrays[1:]:
        kind = joined_type(kind, other.dtype)
    return [x.to(kind) for x in arrays]


# -- arranged ------------------------------------------------------------------------------------------------


def concat(arrays: Sequence[Any], /, *, axis: int | None = 0) -> Array:
    """One behind the other along an axis; with None, as arrays of one axis.

    Args:
        arrays: of the same sizes but along the axis; their types are joined.
        axis: the axis; None: all their elements in a row.

    Raises:
        ValueError: there are none.
    """
    many = joined(arrays)
    return as_array(op.cat([op.reshape(x, -1) for x in many], 0) if axis is None else op.cat(many, axis))


def stack(arrays: Sequence[Any], /, *, axis: int = 0) -> Array:
    """One behind the other along a new axis.

    Args:
        arrays: of the same shape; their types are joined.
        axis: where the new axis is.

    Raises:
        ValueError: there are none.
    """
    return as_array(op.stack(joined(arrays), axis))


def unstack(x: Any, /, *, axis: int = 0) -> tuple[Array, ...]:
    """The slices along an axis.

    Args:
        x: any.
        axis: the axis.
    """
    return tuple(as_array(one) for one in op.unbind(x, axis))


def expand_dims(x: Any, /, axis: int = 0) -> Array:
    """With an axis of one element more.

    Args:
        x: any.
        axis: where it is to be.
    """
    return as_array(op.unsqueeze(x, axis))


def squeeze(x: Any, /, axis: int | Sequence[int]) -> Array:
    """Without axes of one element.

    Args:
        x: any.
        axis: an axis, or several.

    Raises:
        ValueError: one has more.
    """
    for one in (axis,) if isinstance(axis, int) else axis:
        if x.shape[axis_of(one, x.ndim)] != 1:
            raise ValueError(f"axis {one} of {list(x.shape)} has not one element")
    return as_array(op.squeeze(x, axis) if not isinstance(axis, tuple | list) or axis else x.clone())


def permute_dims(x: Any, /, axes: Sequence[int]) -> Array:
    """The axes in another order.

    Args:
        x: any.
        axes: of each axis of the result, that of `x`.
    """
    return as_array(op.permute(x, *axes))


def moveaxis(x: Any, source: Any, destination: Any, /) -> Array:
    """Axes moved to other places.

    Args:
        x: any.
        source: an axis, or several.
        destination: where they are to be, as many.
    """
    return as_array(op.movedim(x, source, destination))


def matrix_transpose(x: Any, /) -> Array:
    """The last two axes exchanged.

    Args:
        x: [..., n, m].

    Raises:
        ValueError: it has fewer than two axes.
    """
    if x.ndim < 2:
        raise ValueError(f"a matrix has two axes, this array has {x.ndim}")
    return as_array(op.transpose(x, -2, -1))


def reshape(x: Any, /, shape: Sequence[int], *, copy: bool | None = None) -> Array:
    """The elements under another shape, of which one size may be -1.

    Args:
        x: any.
        shape: sizes.
        copy: whether elements are copied at once.
    """
    found = op.reshape(x, *shape)
    return as_array(found.clone() if copy else found)


def flip(x: Any, /, *, axis: Axes = None) -> Array:
    """In reverse order along axes, all where none are named.

    Args:
        x: any.
        axis: an axis, or several; None: all.
    """
    return as_array(op.flip(x, *axes_of(axis, x.ndim)) if x.ndim and axis != () else x.clone())


def roll(x: Any, /, shift: Any, *, axis: Axes = None) -> Array:
    """Shifted along axes, what leaves at one end entering at the other.

    Args:
        x: any.
        shift: by how many places; one number, or one for each axis.
        axis: an axis, or several; None: all elements in a row.
    """
    if axis is not None and isinstance(shift, int) and not isinstance(axis, int):
        shift = (shift,) * len(axis)
    return as_array(op.roll(x, shift, axis))


def repeat(x: Any, repeats: Any, /, *, axis: int | None = None) -> Array:
    """Each element along an axis so many times.

    Args:
        x: any.
        repeats: a number, or an array of one for each element.
        axis: the axis; None: all elements in a row.
    """
    return as_array(
        op.repeat_interleave(x if x.ndim or axis is not None else op.reshape(x, 1), repeats, axis)
    )


def tile(x: Any, repetitions: Sequence[int], /) -> Array:
    """So many copies along each axis.

    Args:
        x: any.
        repetitions: numbers of copies; the last axes' where they are fewer.
    """
    return as_array(op.tile(x, *repetitions) if tuple(repetitions) else x.clone())


# -- picked and searched -------------------------------------------------------------------------------------


def take(x: Any, indices: Any, /, *, axis: int | None = None) -> Array:
    """Slices of an axis by number; needed unless there is only one.

    Args:
        x: any.
        indices: integers of one axis.
        axis: the axis.

    Raises:
        ValueError: no axis is named, and there is not one alone.
    """
    if axis is None:
        if x.ndim != 1:
            raise ValueError("take needs an axis, as the array has not one")
        axis = 0
    return as_array(op.index_select(x, axis, indices))


def take_along_axis(x: Any, indices: Any, /, *, axis: int = -1) -> Array:
    """Elements at indices along an axis.

    Args:
        x: any.
        indices: integers of as many axes, below 0 counted from the end; broadcast with `x` along the others.
        axis: the axis.
    """
    return as_array(take_along_from_both_ends(x, indices.to(dtypes.INT64), axis))


def where(condition: Any, x1: Any, x2: Any, /) -> Array:
    """`x1` where the condition is true, `x2` elsewhere.

    Args:
        condition: bools.
        x1: an array, or a number; broadcast with the condition.
        x2: likewise.
    """
    a, b = alike(x1, x2)
    return as_array(op.where(condition, a, b))


def nonzero(x: Any, /) -> tuple[Array, ...]:
    """Where elements are not 0: the places along each axis.

    Args:
        x: at least one axis.

    Returns:
        int64, one array for each axis.

    Raises:
        ValueError: there are no axes.
    """
    if not x.ndim:
        raise ValueError("nonzero of an array without axes")
    return tuple(as_array(one) for one in op.nonzero(x, as_tuple=True))


def _extreme_place(function: Any, x: Any, axis: int | None, keepdims: bool) -> Array:
    if not x.numel():
        raise ValueError("the place of the greatest or smallest of no elements")
    found = function(x, axis, keepdims)
    return as_array(op.reshape(found, *[1] * x.ndim) if keepdims and axis is None else found)


def argmax(x: Any, /, *, axis: int | None = None, keepdims: bool = False) -> Array:
    """Where the greatest element is.

    Args:
        x: integers or floats.
        axis: the axis; None: the place among all elements in a row.
        keepdims: whether the axis stays, with one element.

    Returns:
        int64.

    Raises:
        ValueError: there are no elements.
    """
    return _extreme_place(op.argmax, x, axis, keepdims)


def argmin(x: Any, /, *, axis: int | None = None, keepdims: bool = False) -> Array:
    """Where the smallest element is.

    Args:
        x: integers or floats.
        axis: the axis; None: the place among all elements in a row.
        keepdims: whether the axis stays, with one element.

    Returns:
        int64.

    Raises:
        ValueError: there are no elements.
    """
    return _extreme_place(op.argmin, x, axis, keepdims)


def searchsorted(x1: Any, x2: Any, /, *, side: str = "left", sorter: Any = None) -> Array:
    """Where elements would go into a sorted array; found on the CPU.

    Args:
        x1: [n], ascending.
        x2: of any shape.
        side: "left": before what is equal; "right": behind it.
        sorter: the order of elements of `x1`, where they are in none.

    Returns:
        int64, of the shape of `x2`.
    """
    rows = x1 if sorter is None else op.index_select(x1, 0, sorter)
    return as_array(op.searchsorted(rows, x2, side=side))


def isin(x1: Any, x2: Any, /, *, invert: bool = False) -> Array:
    """Which elements are among others.

    Args:
        x1: an array, or a number.
        x2: an array, or a number.
        invert: whether those are wanted that are not among the others.

    Returns:
        Bools of the shape of `x1`.
    """
    return as_array(op.isin(*alike(x1, x2), invert=invert))


def _ordered(x: Tensor) -> Tensor:
    """Bools as numbers, which have an order on every device."""
    return x.to(dtypes.UINT8) if x.dtype == dtypes.BOOL else x


def argsort(x: Any, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Array:
    """The places of elements in their order.

    Args:
        x: bools, integers or floats.
        axis: the axis.
        descending: whether the greatest comes first.
        stable: accepted; equal elements always stay in order.
    """
    return as_array(op.sort(_ordered(x), axis, descending)[1])


def sort(x: Any, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Array:
    """The elements in order.

    Args:
        x: bools, integers or floats.
        axis: the axis.
        descending: whether the greatest comes first.
        stable: accepted; equal elements always stay in order.
    """
    return as_array(op.sort(_ordered(x), axis, descending)[0].to(x.dtype))


class UniqueAll(NamedTuple):
    values: Array
    indices: Array
    inverse_indices: Array
    counts: Array


class UniqueCounts(NamedTuple):
    values: Array
    counts: Array


class UniqueInverse(NamedTuple):
    values: Array
    inverse_indices: Array


def unique_all(x: Any, /) -> UniqueAll:
    """The elements, each once (every NaN by itself); where each is first, which each is, how often it is.

    Their number is looked at, on the CPU.

    Args:
        x: of any shape.
    """
    array = x._elements()
    found = np.unique(array, return_index=True, return_inverse=True, return_counts=True, equal_nan=False)
    values, indices, inverse, counts = found
    kinds = (array.dtype, np.int64, np.int64, np.int64)
    made = (values, indices, inverse.reshape(array.shape), counts)
    return UniqueAll(
        *(
            as_array(creation.tensor(one.astype(kind), device=x.device))
            for one, kind in zip(made, kinds, strict=True)
        )
    )


def unique_counts(x: Any, /) -> UniqueCounts:
    """The elements, each once, and how often each is.

    Args:
        x: of any shape.
    """
    found = unique_all(x)
    return UniqueCounts(found.values, found.counts)


def unique_inverse(x: Any, /) -> UniqueInverse:
    """The elements, each once, and which each is.

    Args:
        x: of any shape.
    """
    found = unique_all(x)
    return UniqueInverse(found.values, found.inverse_indices)


def unique_values(x: Any, /) -> Array:
    """The elements, each once.

    Args:
        x: of any shape.
    """
    return unique_all(x).values
