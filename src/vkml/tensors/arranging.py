"""More shapes: axes moved, elements turned and repeated; windows, grids."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from vkml.ir.gradients import reversed_along
from vkml.ops.attention_steps import positions
from vkml.tensors import tensor as core
from vkml.tensors.elementwise import eq
from vkml.tensors.operands import INT64, axis_of, wrap
from vkml.tensors.shapes import (
    _dims_of,
    broadcast_to,
    cat,
    permute,
    reshape,
    stack,
    transpose,
    unsqueeze,
)  # fmt: skip
from vkml.tracing import EMITTER, apply, constant, value_of

if TYPE_CHECKING:
    from vkml.tensors.tensor import Tensor


def numbers(array: Any) -> Tensor:
    """Places that shapes decide: part of the structure."""
    return wrap(constant(np.asarray(array, np.int64), INT64))


# -- axes ----------------------------------------------------------------------------------------------------


def movedim(x: Tensor, source: int | Sequence[int], destination: int | Sequence[int]) -> Tensor:
    """Axes moved to other places, the rest in order.

    Args:
        x: any.
        source: an axis, or several.
        destination: where they are to be, as many.

    Returns:
        A view.

    Raises:
        RuntimeError: the numbers differ, or an axis is named twice.
    """
    froms = [source] if isinstance(source, int) else list(source)
    tos = [destination] if isinstance(destination, int) else list(destination)
    if len(froms) != len(tos):
        raise RuntimeError(f"movedim: {len(froms)} axes to {len(tos)} places")
    start, end = [axis_of(at, x.ndim) for at in froms], [axis_of(at, x.ndim) for at in tos]
    if len(set(start)) < len(start) or len(set(end)) < len(end):
        raise RuntimeError("movedim: an axis is named twice")
    if not x.ndim:
        return x
    placed = dict(zip(end, start, strict=True))
    rest = iter([axis for axis in range(x.ndim) if axis not in start])
    return permute(x, [placed[at] if at in placed else next(rest) for at in range(x.ndim)])


def swapaxes(x: Tensor, axis0: int, axis1: int) -> Tensor:
    """Two axes exchanged.

    Args:
        x: any.
        axis0: an axis.
        axis1: the other.

    Returns:
        A view.
    """
    return transpose(x, axis0, axis1)


def ravel(x: Tensor) -> Tensor:
    """All elements along one axis.

    Args:
        x: any.

    Returns:
        A view.
    """
    return reshape(x, -1)


def unflatten(x: Tensor, dim: int, sizes: Sequence[int]) -> Tensor:
    """An axis as several.

    Args:
        x: any.
        dim: the axis.
        sizes: of the new axes; one may be -1.

    Returns:
        A view.

    Raises:
        RuntimeError: their product is not the axis's size.
    """
    axis = axis_of(dim, x.ndim)
    found = list(sizes)
    if -1 in found:
        found[found.index(-1)] = x.shape[axis] // max(-math.prod(found), 1)
    if math.prod(found) != x.shape[axis]:
        raise RuntimeError(f"unflatten: sizes {list(sizes)} are not an axis of {x.shape[axis]}")
    return reshape(x, *x.shape[:axis], *found, *x.shape[axis + 1 :])


def _at_least(rank: int, before: int, given: tuple[Any, ...]) -> Any:
    """Tensors with axes of one element more, in front until they have `before` of them."""
    many = given[0] if len(given) == 1 and isinstance(given[0], tuple | list) else given
    made = []
    for x in many:
        missing = rank - x.ndim
        front = min(before - x.ndim, missing) if x.ndim < before else 0
        back = missing - front
        made.append(reshape(x, *[1] * front, *x.shape, *[1] * back) if missing > 0 else x)
    return made[0] if len(made) == 1 and many is given else tuple(made)


def atleast_1d(*tensors: Any) -> Any:
    """Tensors of at least one axis.

    Args:
        *tensors: one, several, or a sequence of them.

    Returns:
        A tensor of one; of several a tuple. Axes of one element are added.
    """
    return _at_least(1, 1, tensors)


def atleast_2d(*tensors: Any) -> Any:
    """Tensors of at least two axes, those of fewer as rows.

    Args:
        *tensors: one, several, or a sequence of them.

    Returns:
        A tensor of one; of several a tuple. Axes of one element are added.
    """
    return _at_least(2, 2, tensors)


def atleast_3d(*tensors: Any) -> Any:
    """Tensors of at least three axes.

    Args:
        *tensors: one, several, or a sequence of them.

    Returns:
        A tensor of one; of several a tuple. Axes of one element are added.
    """
    return _at_least(3, 2, tensors)


# -- order ---------------------------------------------------------------------------------------------------


def flip(x: Tensor, *dims: Any) -> Tensor:
    """In reverse order along axes.

    Args:
        x: any.
        *dims: axes, one by one or as one sequence.

    Raises:
        RuntimeError: an axis is named twice.
    """
    axes = [axis_of(axis, x.ndim) for axis in _dims_of(dims)]
    if len(set(axes)) < len(axes):
        raise RuntimeError("flip: an axis is named twice")
    return (
        wrap(reversed_along(EMITTER, x.value, axes)) if axes and x.ndim else wrap(apply("Identity", x.value))
    )


def fliplr(x: Tensor) -> Tensor:
    """In reverse order along the second axis.

    Args:
        x: at least two axes.
    """
    return flip(x, 1)


def flipud(x: Tensor) -> Tensor:
    """In reverse order along the first axis.

    Args:
        x: at least one axis.
    """
    return flip(x, 0)


def roll(x: Tensor, shifts: int | Sequence[int], dims: int | Sequence[int] | None = None) -> Tensor:
    """Shifted along axes, what leaves at one end entering at the other; all as one where none is named.

    Args:
        x: any.
        shifts: by how many places, towards the end; one for each axis.
        dims: an axis, or several.

    Raises:
        RuntimeError: shifts and axes are not as many.
    """
    if dims is None:
        if not isinstance(shifts, int) and len(shifts) != 1:
            raise RuntimeError("roll: several shifts need as many axes")
        return reshape(roll(reshape(x, -1), shifts, 0), *x.shape)
    moves = [shifts] if isinstance(shifts, int) else list(shifts)
    axes = [dims] if isinstance(dims, int) else list(dims)
    if len(moves) != len(axes):
        raise RuntimeError(f"roll: {len(moves)} shifts of {len(axes)} axes")
    found = x
    for by, dim in zip(moves, axes, strict=True):
        axis = axis_of(dim, x.ndim)
        size = x.shape[axis] if x.ndim else 0
        if size and by % size:
            cut = size - by % size
            found = cat([found.narrow(axis, cut, size - cut), found.narrow(axis, 0, cut)], axis)
    return found if found is not x else x.clone()


def rot90(x: Tensor, k: int = 1, dims: Sequence[int] = (0, 1)) -> Tensor:
    """Turned k times by 90° from the first towards the second of two axes.

    Args:
        x: at least two axes.
        k: how often; below 0 the other way.
        dims: the two axes.

    Raises:
        RuntimeError: the axes are the same.
    """
    first, second = (axis_of(axis, x.ndim) for axis in dims)
    if first == second or x.ndim < 2:
        raise RuntimeError("rot90 needs two different axes")
    if k % 4 == 2:
        return flip(x, first, second)
    if k % 4 == 0:
        return x.clone()
    return transpose(flip(x, second if k % 4 == 1 else first), first, second)


# -- repeated ------------------------------------------------------------------------------------------------


def tile(x: Tensor, *dims: Any) -> Tensor:
    """So many copies along each axis, the last ones where fewer are named.

    Args:
        x: any.
        *dims: numbers of copies, one by one or as one sequence.
    """
    counts = _dims_of(dims)
    return repeat(x, *[1] * (x.ndim - len(counts)), *counts)


def repeat(x: Tensor, *sizes: Any) -> Tensor:
    """So many copies along each axis, of which there may be new ones in front.

    Args:
        x: any.
        *sizes: numbers of copies, at least one for each axis; one by one or as one sequence.

    Raises:
        RuntimeError: there are fewer numbers than axes.
    """
    counts = _dims_of(sizes)
    more = len(counts) - x.ndim
    if more < 0:
        raise RuntimeError(f"repeat: {len(counts)} numbers for {x.ndim} axes")
    own = (*[1] * more, *x.shape)
    between = [size for pair in zip([1] * len(own), own, strict=True) for size in pair]
    wide = [size for pair in zip(counts, own, strict=True) for size in pair]
    shown = broadcast_to(reshape(x, *between), wide)
    # A copy: copies that are one element could not be written one by one.
    return reshape(shown, *(count * size for count, size in zip(counts, own, strict=True))).clone()


def repeat_interleave(
    x: Tensor, repeats: Any, dim: int | None = None, *, output_size: int | None = None
) -> Tensor:
    """Each element along an axis so many times.

    Args:
        x: any.
        repeats: a number, or a tensor of one for each element, which is looked at.
        dim: along which; all elements as one axis where left out.
        output_size: checked, where it is given.
    """
    whole = reshape(x, -1) if dim is None else x
    axis = axis_of(dim or 0, whole.ndim)
    size = whole.shape[axis]
    if not isinstance(repeats, core.Tensor):
        _check_repeats(repeats < 0, size * repeats, output_size)
        several = unsqueeze(whole, axis + 1)
        several = broadcast_to(several, (*whole.shape[: axis + 1], repeats, *whole.shape[axis + 1 :]))
        return reshape(several, (*whole.shape[:axis], size * repeats, *whole.shape[axis + 1 :])).clone()
    counts = np.broadcast_to(repeats._elements().reshape(-1), (size,))
    _check_repeats(bool((counts < 0).any()), int(counts.sum()), output_size)
    return whole.index_select(axis, numbers(np.repeat(np.arange(size), counts)))


def _check_repeats(is_negative: bool, made: int, output_size: int | None) -> None:
    if is_negative:
        raise RuntimeError("repeat_interleave: numbers of times are not negative")
    if output_size is not None and output_size != made:
        raise RuntimeError(f"repeat_interleave makes {made} elements, not {output_size}")


# -- broadcast -----------------------------------------------------------------------------------------------


def broadcast_tensors(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Tensors broadcast to one shape.

    Args:
        *tensors: whose sizes, counted from the last axis, are equal or 1.

    Returns:
        Views.

    Raises:
        RuntimeError: they do not fit each other.
    """
    shape = broadcast_shapes(*(tuple(x.shape) for x in tensors))
    return tuple(broadcast_to(x, shape) for x in tensors)


def broadcast_shapes(*shapes: Sequence[int]) -> Any:
    """The shape that tensors of some shapes are broadcast to.

    Args:
        *shapes: whose sizes, counted from the last axis, are equal or 1.

    Raises:
        RuntimeError: they do not fit each other.
    """
    try:
        return core.Size(np.broadcast_shapes(*(tuple(shape) for shape in shapes)))
    except ValueError:
        raise RuntimeError(f"the shapes {[list(shape) for shape in shapes]} do not fit each other") from None


# -- windows and grids ---------------------------------------------------------------------------------------


def unfold(x: Tensor, dimension: int, size: int, step: int) -> Tensor:
    """Windows of an axis, so many elements each and so many apart; the last axis is within them.

    Args:
        x: any.
        dimension: the axis.
        size: elements of each window.
        step: from the beginning of a window to that of the next.

    Returns:
        As many elements along the axis as there are windows, and `size` along a new last one.

    Raises:
        RuntimeError: no window fits.
    """
    axis = axis_of(dimension, x.ndim)
    whole = x.shape[axis] if x.ndim else 1
    if size < 0 or step < 1 or size > whole:
        raise RuntimeError(f"unfold: windows of {size} every {step} are not in an axis of {whole}")
    count = (whole - size) // step + 1
    rows = reshape(x, 1) if not x.ndim else x
    if not x.ndim:
        return rows[:size]
    places = np.arange(count)[:, None] * step + np.arange(size)
    found = rows.index_select(axis, numbers(places.reshape(-1)))
    return movedim(unflatten(found, axis, (count, size)), axis + 1, -1)


def meshgrid(*tensors: Any, indexing: str = "ij") -> tuple[Tensor, ...]:
    """Coordinates of all combinations: of each tensor, its elements along an axis of its own.

    Args:
        *tensors: of one axis each, or one number; one by one or as one sequence.
        indexing: "ij"; "xy" exchanges the first two axes.

    Returns:
        As many tensors of as many axes.

    Raises:
        RuntimeError: another indexing.
    """
    many = tensors[0] if len(tensors) == 1 and isinstance(tensors[0], tuple | list) else tensors
    if indexing not in ("ij", "xy"):
        raise RuntimeError(f"meshgrid: indexing is 'ij' or 'xy', not {indexing!r}")
    flat = [reshape(x, -1) for x in many]
    sizes = [x.shape[0] for x in flat]
    made = [
        broadcast_to(reshape(x, *[1] * at, -1, *[1] * (len(flat) - at - 1)), sizes)
        for at, x in enumerate(flat)
    ]
    return tuple(transpose(x, 0, 1) if indexing == "xy" and len(flat) > 1 else x for x in made)


def cartesian_prod(*tensors: Tensor) -> Tensor:
    """All combinations of one element of each, as rows.

    Args:
        *tensors: of one axis each.

    Returns:
        [combinations, tensors].
    """
    if len(tensors) == 1:
        return tensors[0]
    return stack([reshape(x, -1) for x in meshgrid(*tensors)], 1)


def combinations(x: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor:
    """All choices of r elements in order, as rows.

    Args:
        x: [n].
        r: elements of each choice.
        with_replacement: whether an element may be chosen more than once.

    Returns:
        [choices, r].
    """
    pick = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    places = np.array(list(pick(range(x.shape[0]), r)), np.int64).reshape(-1, r)
    return x[core.Tensor(value_of(places))]


def vander(x: Tensor, N: int | None = None, increasing: bool = False) -> Tensor:
    """Powers of each element, from 0 on, as columns.

    Args:
        x: [..., n].
        N: how many powers; as many as elements where left out.
        increasing: whether the power 0 comes first; else last.

    Returns:
        [..., n, N].
    """
    count = x.shape[-1] if N is None else N
    powers = [unsqueeze(x**at if at else x * 0 + 1, -1) for at in range(count)]
    if not powers:
        return unsqueeze(x, -1)[..., :0]
    return cat(powers if increasing else powers[::-1], -1)


def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    """1 at the place of each integer along a new last axis, 0 elsewhere.

    Args:
        tensor: classes, int64, of any shape.
        num_classes: the axis's size; one more than the greatest element, which is looked at, where it is -1.

    Raises:
        RuntimeError: the elements are no int64, the size is none, or one that is looked at is below 0.
    """
    if tensor.dtype != INT64:
        raise RuntimeError(f"one_hot takes int64, not {tensor.dtype.numpy_name}")
    count = num_classes
    if count == -1:
        if not tensor.numel():
            raise RuntimeError("one_hot of no elements needs num_classes")
        elements = tensor._elements()
        if elements.min() < 0:
            raise RuntimeError("one_hot: classes are not negative")
        count = int(elements.max()) + 1
    if count < 1:
        raise RuntimeError(f"one_hot: {count} classes, there is one at least")
    return eq(unsqueeze(tensor, -1), wrap(positions(EMITTER, count))).to(INT64)


def unravel_index(indices: Tensor, shape: int | Sequence[int]) -> tuple[Tensor, ...]:
    """The coordinates, in a tensor of a shape, of places among all of its elements.

    Args:
        indices: integers.
        shape: of the tensor.

    Returns:
        As many tensors of the indices' shape as it has axes.

    Raises:
        TypeError: the indices are no integers.
    """
    if not indices.dtype.is_integer:
        raise TypeError(f"unravel_index: indices are integers, not of {indices.dtype.numpy_name}")
    dims = (shape,) if isinstance(shape, int) else tuple(shape)
    found: list[Tensor] = []
    for size in reversed(dims):
        found.append(indices % size)
        indices = indices // size
    return tuple(found[::-1])
