"""Operations that give tensors other shapes, join and divide them, pick and order their elements."""

from __future__ import annotations

import itertools
import math
from builtins import any as any_of
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from vkml.ir import dtypes
from vkml.ir.gradients import reshaped
from vkml.ir.size import Size, integer, is_deciding
from vkml.tensors import tensor as core
from vkml.tensors.index_checks import require_from_front
from vkml.tensors.operands import INT64, axes_of, axis_of, check_broadcast, value_as, wrap
from vkml.tensors.promotion import result_type
from vkml.tensors.views import Expanded, Permuted, Reshaped, reshaped_strides
from vkml.tracing import EMITTER, apply, apply_all, constant

if TYPE_CHECKING:
    from vkml.tensors.tensor import Tensor


def _dims_of(given: Sequence[Any]) -> tuple[int, ...]:
    """Sizes given one by one, or as one sequence."""
    if len(given) == 1 and isinstance(given[0], tuple | list):
        given = given[0]
    return tuple(integer(size) for size in given)


def reshape(x: Tensor, *shape: Any) -> Tensor:
    """The elements under another shape, of which one size may be -1.

    Args:
        x: any.
        *shape: sizes, one by one or as one sequence; their product is the number of elements.

    Returns:
        A view of the same elements: what is written to it is written to `x`. A copy where elements that lie
        as in memory of `x` cannot be shown so, as those of a transposed tensor along one axis.

    Raises:
        RuntimeError: it is no shape for so many elements.
    """
    dims, count = list(_dims_of(shape)), x.numel()
    if dims.count(-1) > 1:
        raise RuntimeError("only one size can be -1")
    if -1 in dims:
        rest = -math.prod(dims)
        if not rest or count % rest:
            raise RuntimeError(f"the shape {dims} is not one for {count} elements")
        dims[dims.index(-1)] = count // rest
    if any_of(size < 0 for size in dims) or math.prod(dims) != count:
        raise RuntimeError(f"the shape {dims} is not one for {count} elements")
    # A loop's or a capture's open sizes are not asked which they are.
    if x._base is None or is_deciding() or reshaped_strides(x.shape, x._strides(), tuple(dims)) is not None:
        return x._shown(Reshaped(tuple(dims)))
    made = reshaped(EMITTER, x.value, dims)
    made.shared_version()  # with nobody
    return core.Tensor(made)


def permute(x: Tensor, *order: Any) -> Tensor:
    """The axes in another order.

    Args:
        x: any.
        *order: of each axis of the result, the axis of `x`; one by one or as one sequence.

    Returns:
        A view.

    Raises:
        RuntimeError: it names not each axis once.
    """
    axes = tuple(axis_of(axis, x.ndim) for axis in _dims_of(order))
    if sorted(axes) != list(range(x.ndim)):
        raise RuntimeError(f"{list(order)} is no order of {x.ndim} axes")
    return x._shown(Permuted(axes))


def transpose(x: Tensor, dim0: int, dim1: int) -> Tensor:
    """Two axes exchanged.

    Args:
        x: any.
        dim0: an axis; below 0 counted from the end.
        dim1: the other.

    Returns:
        A view.

    Raises:
        IndexError: there is no such axis.
    """
    order = list(range(x.ndim))
    if order:
        a, b = axis_of(dim0, x.ndim), axis_of(dim1, x.ndim)
        order[a], order[b] = order[b], order[a]
    return permute(x, order)


def flatten(x: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """A range of axes as one.

    Args:
        x: any.
        start_dim: the first axis of the range.
        end_dim: the last one.

    Returns:
        A view of one axis fewer for each further one in the range.

    Raises:
        RuntimeError: the range ends before it starts.
    """
    if not x.ndim:
        return reshape(x, 1)
    start, end = axis_of(start_dim, x.ndim), axis_of(end_dim, x.ndim)
    if start > end:
        raise RuntimeError("flatten: start_dim lies behind end_dim")
    return reshape(x, *x.shape[:start], math.prod(x.shape[start : end + 1]), *x.shape[end + 1 :])


def squeeze(x: Tensor, dim: int | Sequence[int] | None = None) -> Tensor:
    """Without axes of one element.

    Args:
        x: any.
        dim: an axis, or several; those of more elements stay. None: all.

    Returns:
        A view.
    """
    axes = axes_of(dim, x.ndim) if dim is not None else range(x.ndim)
    return reshape(x, *(size for at, size in enumerate(x.shape) if size != 1 or at not in axes))


def unsqueeze(x: Tensor, dim: int) -> Tensor:
    """One more axis, of one element.

    Args:
        x: any.
        dim: where the axis is to be, from -(rank + 1) to rank.

    Returns:
        A view.
    """
    at = axis_of(dim, x.ndim + 1)
    return reshape(x, *x.shape[:at], 1, *x.shape[at:])


def expand(x: Tensor, *sizes: Any) -> Tensor:
    """Repeated along axes of one element; -1 leaves a size as it is.

    Args:
        x: any.
        *sizes: the shape that is shown, one by one or as one sequence; new axes come in front.

    Returns:
        A view: repeated elements are the same ones.

    Raises:
        RuntimeError: an axis of more than one element would have another size.
    """
    wanted = _dims_of(sizes)
    more = len(wanted) - x.ndim
    dims = tuple(x.shape[at - more] if size == -1 and at >= more else size for at, size in enumerate(wanted))
    check_broadcast(x.shape, dims)
    if more < 0 or [size for size, own in zip(dims[more:], x.shape, strict=True) if own not in (1, size)]:
        raise RuntimeError(f"a tensor of shape {list(x.shape)} does not expand to {list(wanted)}")
    return x._shown(Expanded(dims))


def broadcast_to(x: Tensor, shape: Sequence[int]) -> Tensor:
    """`expand` to a shape.

    Args:
        x: any.
        shape: sizes; axes of one element take any, new axes come in front.

    Returns:
        A view; see `expand`.
    """
    return expand(x, *shape)


def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Tensors one behind the other along an axis.

    Args:
        tensors: of the same sizes but along the axis; promoted to a common type.
        dim: the axis.

    Raises:
        RuntimeError: there are none, or they do not fit each other.
    """
    if not tensors:
        raise RuntimeError("cat needs at least one tensor")
    kind = result_type(*tensors)
    axis = axis_of(dim, tensors[0].ndim)
    for other in tensors[1:]:
        if other.ndim != tensors[0].ndim or [
            at for at in range(other.ndim) if at != axis and other.shape[at] != tensors[0].shape[at]
        ]:
            raise RuntimeError(
                f"tensors of the shapes {list(tensors[0].shape)} and {list(other.shape)} do not join along "
                f"axis {dim}"
            )
    return wrap(apply("Concat", *(value_as(tensor, kind) for tensor in tensors), axis=axis))


def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Tensors one behind the other along a new axis.

    Args:
        tensors: of the same shape; promoted to a common type.
        dim: where the new axis is.

    Raises:
        RuntimeError: there are none, or their shapes differ.
    """
    return cat([unsqueeze(tensor, dim) for tensor in tensors], dim)


def split(x: Tensor, size: int | Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """Parts along an axis, of one size, or of sizes that are named.

    Args:
        x: any.
        size: elements of each part, the last one smaller where need be; or the sizes of all parts.
        dim: the axis.

    Returns:
        Views.

    Raises:
        RuntimeError: the parts are not the axis.
    """
    axis = axis_of(dim, x.ndim)
    whole, each = x.shape[axis], cast(Any, size)
    if isinstance(each, int) and (each < 0 or (not each and whole)):
        raise RuntimeError(f"split: parts of {each} are not an axis of {whole}")
    if isinstance(each, Size) or (isinstance(each, int) and isinstance(cast(Any, whole), Size)):
        count = int(whole // each)  # as many parts as the program goes through
        sizes = [each] * count
        if whole != each * count:
            sizes.append(whole - each * count)
    elif isinstance(size, int):
        sizes = [min(size, whole - at) for at in range(0, whole, size or 1)] or [0]
    else:
        sizes = list(size)
    ends = list(itertools.accumulate(sizes))
    if not ends or ends[-1] != whole or any_of(part < 0 for part in sizes):
        raise RuntimeError(f"parts of {sizes} are not an axis of {whole}")
    index: list[Any] = [slice(None)] * x.ndim
    parts = []
    for end, part in zip(ends, sizes, strict=True):
        index[axis] = slice(end - part, end)
        parts.append(x[tuple(index)])
    return tuple(parts)


def chunk(x: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """Splits into so many parts along an axis, the last one smaller where need be.

    Args:
        x: any.
        chunks: how many, at most.
        dim: the axis.

    Returns:
        Views.

    Raises:
        RuntimeError: there are no parts.
    """
    if chunks < 1:
        raise RuntimeError(f"chunk: {chunks} parts; there is one at least")
    whole = x.shape[axis_of(dim, x.ndim)]
    if isinstance(cast(Any, whole), Size):
        each = -(-whole // chunks)
        return split(x, [*[each] * (chunks - 1), whole - each * (chunks - 1)], dim)
    return split(x, -(-whole // chunks) if whole else [0] * chunks, dim)


def gather(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """Elements at indices along an axis.

    Args:
        x: any.
        dim: the axis.
        index: int32 or int64 of as many axes; along others than `dim` no longer than `x`.

    Returns:
        The shape of the index: element [i, j, …] is that of `x` with the index's element in the place of the
        axis's number.

    Raises:
        RuntimeError: the index is not of integers, or does not fit the other axes.
        IndexError: an element of it is negative (where the host has them) or too large.
    """
    require_from_front(index, "gather")
    return gather_from_both_ends(x, dim, index)


def gather_from_both_ends(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """As `gather`; negative indices count from the end."""
    axis = axis_of(dim, x.ndim)
    _check_index("gather", index)
    if not x.ndim or not index.ndim:
        return reshape(gather_from_both_ends(reshape(x, -1), 0, reshape(index, -1)), *index.shape)
    if index.ndim != x.ndim or any_of(
        size > own for at, (size, own) in enumerate(zip(index.shape, x.shape, strict=True)) if at != axis
    ):
        raise RuntimeError(f"gather: an index of shape {list(index.shape)} for shape {list(x.shape)}")
    return wrap(apply("GatherElements", x.value, index.value, axis=axis))


def _check_index(function: str, index: Tensor) -> None:
    if index.dtype not in (dtypes.INT64, dtypes.INT32):
        raise RuntimeError(f"{function}: an index is of int64 or int32, not of {index.dtype.numpy_name}")


def index_select(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """Rows of an axis by number.

    Args:
        x: any.
        dim: the axis.
        index: int32 or int64 of one axis.

    Raises:
        RuntimeError: the index is not of integers.
    """
    _check_index("index_select", index)
    if not x.ndim:
        return reshape(index_select(reshape(x, 1), 0, reshape(index, -1)))
    return wrap(apply("Gather", x.value, index.value, axis=axis_of(dim, x.ndim)))


def tril(x: Tensor, diagonal: int = 0) -> Tensor:
    """The elements on and below a diagonal, zeros elsewhere.

    Args:
        x: [..., rows, columns].
        diagonal: 0 for the main one, above 0 for those above it.
    """
    return wrap(apply("Trilu", x.value, constant(diagonal, INT64), upper=0))


def triu(x: Tensor, diagonal: int = 0) -> Tensor:
    """The elements on and above a diagonal, zeros elsewhere.

    Args:
        x: [..., rows, columns].
        diagonal: 0 for the main one, above 0 for those above it.
    """
    return wrap(apply("Trilu", x.value, constant(diagonal, INT64), upper=1))


class ValuesAndIndices(NamedTuple):
    """Elements, and where along the axis they are."""

    values: Tensor
    indices: Tensor


def topk(x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> ValuesAndIndices:
    """The greatest or smallest elements along an axis, and where they are.

    Args:
        x: integers or floats.
        k: how many; at most the axis's size.
        dim: the axis.
        largest: whether the greatest are wanted; else the smallest.
        sorted: whether they come in order.

    Returns:
        The elements, and int64 places: both with k elements along the axis.
    """
    values, places = apply_all(
        "TopK", [x.value, constant([k], INT64)], 2,
        axis=axis_of(dim, x.ndim), largest=int(largest), sorted=int(sorted),
    )  # fmt: skip
    return ValuesAndIndices(wrap(values), wrap(places))


def t(x: Tensor) -> Tensor:
    """A matrix with rows and columns exchanged; what has fewer axes as it is.

    Args:
        x: of two axes at most.

    Raises:
        RuntimeError: it has more.
    """
    if x.ndim > 2:
        raise RuntimeError(f"t: a tensor of {x.ndim} axes is no matrix: use .mT, or transpose")
    return permute(x, *range(x.ndim)[::-1])


def split_with_sizes(x: Tensor, split_sizes: Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """`split` into parts of sizes that are named.

    Args:
        x: any.
        split_sizes: of the parts, which are the axis together.
        dim: the axis.
    """
    return split(x, list(split_sizes), dim)


def clone(x: Tensor) -> Tensor:
    """`Tensor.clone`.

    Args:
        x: any.
    """
    return x.clone()


def sort(x: Tensor, dim: int = -1, descending: bool = False, stable: bool = True) -> ValuesAndIndices:
    """All elements along an axis in order, and where they were.

    Args:
        x: integers or floats.
        dim: the axis.
        descending: whether the greatest comes first.
        stable: for PyTorch's sake: equal elements stay in order in any case.

    Returns:
        The elements, and int64 places; equal elements stay in order.
    """
    if not x.ndim:
        return ValuesAndIndices(x, wrap(constant(0, INT64)))
    return topk(x, x.shape[axis_of(dim, x.ndim)], dim, descending)


def detach(x: Tensor) -> Tensor:
    """`Tensor.detach`.

    Args:
        x: any.
    """
    return x.detach()
