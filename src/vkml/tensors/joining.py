"""Tensors joined side by side, and divided into parts."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from vkml.ir.size import plain
from vkml.tensors.arranging import atleast_1d, atleast_2d, atleast_3d
from vkml.tensors.operands import axis_of
from vkml.tensors.shapes import cat, reshape

if TYPE_CHECKING:
    from vkml.tensors.tensor import Tensor


def hstack(tensors: Sequence[Tensor]) -> Tensor:
    """Side by side: along the second axis, of vectors the first.

    Args:
        tensors: of the same sizes but along that axis.

    Raises:
        RuntimeError: they do not fit each other.
    """
    many = [atleast_1d(x) for x in tensors]
    return cat(many, 0 if many[0].ndim == 1 else 1)


def vstack(tensors: Sequence[Tensor]) -> Tensor:
    """One below the other, vectors as rows.

    Args:
        tensors: of the same sizes but along the first axis.

    Raises:
        RuntimeError: they do not fit each other.
    """
    return cat([atleast_2d(x) for x in tensors], 0)


def dstack(tensors: Sequence[Tensor]) -> Tensor:
    """One behind the other along the third axis.

    Args:
        tensors: of the same sizes but along the third axis; see `atleast_3d`.

    Raises:
        RuntimeError: they do not fit each other.
    """
    return cat([atleast_3d(x) for x in tensors], 2)


def column_stack(tensors: Sequence[Tensor]) -> Tensor:
    """Side by side, vectors as columns.

    Args:
        tensors: of the same sizes but along the second axis.

    Raises:
        RuntimeError: they do not fit each other.
    """
    return hstack([reshape(x, -1, 1) if x.ndim <= 1 else x for x in tensors])


def unbind(x: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """The slices along an axis.

    Args:
        x: any.
        dim: the axis.

    Returns:
        Views without the axis, as many as it has elements.

    Raises:
        IndexError: there are no axes.
    """
    axis = axis_of(dim, x.ndim)
    if not x.ndim:
        raise IndexError("unbind of a tensor without axes")
    return tuple(select(x, axis, at) for at in range(x.shape[axis]))


def select(x: Tensor, dim: int, index: int) -> Tensor:
    """The slice at a place of an axis: a view.

    Args:
        x: any.
        dim: the axis.
        index: the place; below 0 counted from the end.

    Returns:
        Without the axis.

    Raises:
        IndexError: there is no such place.
    """
    axis = axis_of(dim, x.ndim)
    if not x.ndim:
        raise IndexError("select of a tensor without axes")
    return x[(slice(None),) * axis + (plain(index),)]


def narrow(x: Tensor, dim: int, start: int, length: int) -> Tensor:
    """A range of an axis: a view.

    Args:
        x: any.
        dim: the axis.
        start: where it begins; below 0 counted from the end.
        length: how many elements.

    Raises:
        RuntimeError: the range is not in the axis.
    """
    if not x.ndim:
        raise RuntimeError("narrow of a tensor without axes")
    axis = axis_of(dim, x.ndim)
    size = x.shape[axis]
    first = plain(start) + size if start < 0 else plain(start)
    if not 0 <= first <= size or length < 0 or first + length > size:
        raise RuntimeError(f"narrow: {start} and {length} more are not in an axis of {size}")
    return x[(slice(None),) * axis + (slice(first, first + length),)]


def tensor_split(x: Tensor, indices_or_sections: int | Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """Parts along an axis, as equal as they can be, or divided at places.

    Args:
        x: any.
        indices_or_sections: how many parts, the first ones longer by one where need be; or the places where
            parts begin, but the first.
        dim: the axis.

    Returns:
        Views.

    Raises:
        RuntimeError: there are no parts, or no axes.
    """
    axis = axis_of(dim, x.ndim)
    if not x.ndim:
        raise RuntimeError("tensor_split of a tensor without axes")
    size = x.shape[axis]
    if isinstance(indices_or_sections, int):
        if indices_or_sections <= 0:
            raise RuntimeError("tensor_split needs at least one part")
        least, more = divmod(size, indices_or_sections)
        sizes = [least + (at < more) for at in range(indices_or_sections)]
        ends = [0, *itertools.accumulate(sizes)]
    else:
        ends = [0, *(slice(at).indices(size)[1] for at in indices_or_sections), size]
    return tuple(
        narrow(x, axis, start, end - start if end > start else 0) for start, end in itertools.pairwise(ends)
    )


def hsplit(x: Tensor, indices_or_sections: int | Sequence[int]) -> tuple[Tensor, ...]:
    """`tensor_split` along the second axis, of vectors the first.

    Args:
        x: as many axes as that takes.
        indices_or_sections: how many parts, or where they begin; see `tensor_split`.

    Returns:
        Views.
    """
    return tensor_split(x, indices_or_sections, 0 if x.ndim == 1 else 1)


def vsplit(x: Tensor, indices_or_sections: int | Sequence[int]) -> tuple[Tensor, ...]:
    """`tensor_split` along the first axis.

    Args:
        x: as many axes as that takes.
        indices_or_sections: how many parts, or where they begin; see `tensor_split`.

    Returns:
        Views.
    """
    return tensor_split(x, indices_or_sections, 0)


def dsplit(x: Tensor, indices_or_sections: int | Sequence[int]) -> tuple[Tensor, ...]:
    """`tensor_split` along the third axis.

    Args:
        x: as many axes as that takes.
        indices_or_sections: how many parts, or where they begin; see `tensor_split`.

    Returns:
        Views.
    """
    return tensor_split(x, indices_or_sections, 2)
