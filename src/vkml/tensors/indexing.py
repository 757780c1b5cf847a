"""Indices: numbers, ranges, `...`, None, bools and tensors of integers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from vkml.ir import dtypes
from vkml.ir.gradients import converted, expanded, reshaped, transposed
from vkml.ir.size import Size, integer, is_same
from vkml.tensors import tensor as core
from vkml.tensors.views import Reshaped, Sliced
from vkml.tracing import EMITTER, Traced, apply, value_of

if TYPE_CHECKING:
    from vkml.tensors.tensor import Tensor

Range = tuple[int, int, int]


def read(x: Tensor, index: Any) -> Tensor:
    """What an index selects: a view for numbers, ranges, `...` and None, a copy for tensors.

    Raises:
        IndexError: a number is outside its axis, there are more of them than axes, or it is no index.
    """
    ranges, shape, arrays = _parsed(x, index)
    found = x
    if any(one != (0, size, 1) for one, size in zip(ranges, x.shape, strict=True)):
        found = found._shown(Sliced(tuple(ranges)))
    if tuple(shape) != tuple(found.shape) or found is x:
        found = found._shown(Reshaped(tuple(shape)))
    return core.Tensor(_gathered(found.value, arrays)) if arrays else found


def write(x: Tensor, index: Any, value: Any) -> None:
    """Gives what an index selects other elements, which are broadcast and converted."""
    from vkml.tensors.operands import filled, value_as

    is_flag = _is_flag(index)
    if is_flag:
        index = _as_tensor(index).to(x.device)
    if is_flag or (isinstance(index, core.Tensor) and index.dtype == dtypes.BOOL and index.shape == x.shape):
        given = value_as(value, x.dtype)
        if is_flag or not given.type.shape:
            x._write(apply("Where", index.value, filled(given, x.shape) if is_flag else given, x.value))
            return
    _, _, arrays = _parsed(x, index)
    given = value_as(value, x.dtype)
    part = read(x, _plain(index)) if arrays else read(x, index)
    if arrays:
        part._write(_scattered(part.value, arrays, given))
    else:
        part._write(filled(given, part.shape))


def put(x: Tensor, index: tuple[Any, ...], given: Traced, accumulate: bool) -> Traced:
    """A tensor's value with other elements, or sums with them, where tensors select some."""
    ranges, _, arrays = _parsed(x, index)
    if not arrays or any(one != (0, size, 1) for one, size in zip(ranges, x.shape, strict=True)):
        raise IndexError("index_put takes tensors of integers or bools as indices")
    return _scattered(x.value, arrays, given, "add" if accumulate else "none")


def _plain(index: Any) -> Any:
    """An index with all of an axis in the places of tensors, and new axes in those of flags."""
    entries = index if isinstance(index, tuple) else (index,)
    found: list[Any] = []
    for entry in entries:
        if _is_flag(entry):
            found.append(None)
        elif _is_array(entry):
            found += [slice(None)] * _width(entry)
        else:
            found.append(entry)
    return tuple(found)


def _is_flag(index: Any) -> bool:
    """Whether an index is one bool."""
    if isinstance(index, bool | np.bool_):
        return True
    return (
        isinstance(index, core.Tensor | np.ndarray)
        and not index.ndim
        and index.dtype in (dtypes.BOOL, np.bool_)
    )


def _is_array(entry: Any) -> bool:
    return isinstance(entry, core.Tensor | np.ndarray | list) and not (
        isinstance(entry, core.Tensor) and not entry.ndim and entry.dtype.is_integer
    )


def _as_tensor(entry: Any) -> Tensor:
    if isinstance(entry, core.Tensor):
        found = entry
    else:
        array = np.array(entry)
        if isinstance(entry, list) and not array.size:
            array = array.astype(np.int64)  # a list of nothing has no type of its own
        found = core.Tensor(value_of(array))
    if not found.dtype.is_integer and found.dtype != dtypes.BOOL:
        raise IndexError(f"tensors that are indices hold integers or bools, not {found.dtype.numpy_name}")
    return found


def _parsed(x: Tensor, index: Any) -> tuple[list[Range], list[int], dict[int, Tensor]]:
    """The range of each axis, the shape of what they leave, and tensors by its axes."""
    entries = list(index) if isinstance(index, tuple) else [index]
    taken = sum(_width(entry) for entry in entries)
    if taken > x.ndim:
        raise IndexError(f"{taken} indices for a tensor of {x.ndim} axes")
    if not any(entry is Ellipsis for entry in entries):
        entries.append(Ellipsis)
    ranges: list[Range] = []
    shape: list[int] = []
    arrays: dict[int, Tensor] = {}
    for entry in entries:
        axis = len(ranges)
        if entry is None:
            shape.append(1)
        elif entry is Ellipsis:
            for size in x.shape[axis : axis + x.ndim - taken]:
                ranges.append((0, size, 1))
                shape.append(size)
        elif isinstance(entry, slice):
            start, stop, step = _bounds(entry, x.shape[axis])
            ranges.append((start, stop, step))
            shape.append((stop - start + step - 1) // step)
        elif _is_flag(entry):  # all or nothing, along a new axis
            flag = core.Tensor(reshaped(EMITTER, _as_tensor(entry).value, (1,)))
            arrays[len(shape)] = flag.to(x.device)
            shape.append(1)
        elif _is_array(entry):
            arrays[len(shape)] = _as_tensor(entry).to(x.device)
            for size in x.shape[axis : axis + _width(entry)]:
                ranges.append((0, size, 1))
                shape.append(size)
        else:
            at, size = _number(entry), x.shape[axis]
            if not -size <= at < size:
                raise IndexError(f"index {at} is out of bounds for axis {axis} of size {size}")
            first = at + size if at < 0 else at
            ranges.append((first, first + 1, 1))
    return ranges, shape, arrays


def _number(entry: Any) -> Any:
    try:
        return integer(entry)
    except TypeError:
        raise IndexError(
            "indices are integers, ranges, ..., None and tensors of integers or bools, not "
            f"{type(entry).__name__}"
        ) from None


def _bounds(entry: slice, size: int) -> Range:
    """Where a range begins and ends, the end not before the beginning, and its step."""
    if type(size) is int and not any(isinstance(end, Size) for end in (entry.start, entry.stop)):
        start, stop, step = entry.indices(size)
    else:
        # As `slice.indices`, which takes numbers alone.
        step = 1 if entry.step is None else int(entry.step)
        start = 0 if entry.start is None else _end(entry.start, size)
        stop = size if entry.stop is None else _end(entry.stop, size)
    if step < 1:
        raise ValueError("steps of ranges must be positive")
    return start, stop if stop > start else start, step


def _end(given: Any, size: int) -> int:
    """An end of a range, within the axis."""
    at = integer(given)
    if at < 0:
        at = at + size
        return at if at >= 0 else 0
    return size if is_same(at, size) or at > size else at


def _width(entry: Any) -> int:
    """How many axes an entry stands for."""
    if entry is None or entry is Ellipsis or _is_flag(entry):
        return 0
    if _is_array(entry):
        tensor = _as_tensor(entry)
        return tensor.ndim if tensor.dtype == dtypes.BOOL else 1
    return 1


def _numbers(
    arrays: dict[int, Tensor], dims: Sequence[int]
) -> tuple[list[int], list[Traced], tuple[int, ...]]:
    """The axes that tensors index, their indices broadcast to one shape, and that shape."""
    axes: list[int] = []
    found: list[Traced] = []
    for axis, tensor in arrays.items():
        if tensor.dtype == dtypes.BOOL:
            sizes = dims[axis : axis + tensor.ndim]
            # As NumPy, which lets a mask of no elements select nothing.
            if any(size not in (0, whole) for size, whole in zip(tensor.shape, sizes, strict=True)):
                raise IndexError(f"a mask of shape {list(tensor.shape)} for a tensor of shape {list(dims)}")
            # Their number is known when the mask is: it is computed now.
            for more, places in enumerate(np.nonzero(tensor._elements())):
                axes.append(axis + more)
                found.append(core.Tensor(value_of(places.astype(np.int64))).to(tensor.device).value)
        else:
            axes.append(axis)
            found.append(converted(EMITTER, tensor.value, dtypes.INT64))
    shape = np.broadcast_shapes(*(value.dims for value in found))
    return axes, [expanded(EMITTER, value, shape) for value in found], shape


def _gathered(base: Traced, arrays: dict[int, Tensor]) -> Traced:
    axes, indices, shape = _numbers(arrays, base.dims)
    if len(axes) == 1:
        return apply("Gather", base, indices[0], axis=axes[0])
    rest = [axis for axis in range(len(base.dims)) if axis not in axes]
    front = transposed(EMITTER, base, [*axes, *rest])
    found = apply("GatherND", front, _joined(indices))
    return _moved(found, axes, len(shape), back=False)


def _joined(indices: Sequence[Traced]) -> Traced:
    last = [reshaped(EMITTER, value, (*value.dims, 1)) for value in indices]
    return apply("Concat", *last, axis=-1)


def _moved(found: Traced, axes: Sequence[int], rank: int, back: bool) -> Traced:
    """The indexed axes from the front to where they belong, or back there: where the first tensor was.

    They stay in front where others lie between the tensors.
    """
    if list(axes) != list(range(axes[0], axes[0] + len(axes))) or not axes[0]:
        return found
    count, first = len(found.dims), axes[0]
    front = list(range(rank))
    order = [*range(rank, rank + first), *front, *range(rank + first, count)]
    if back:
        order = sorted(range(count), key=order.__getitem__)
    return transposed(EMITTER, found, order)


def _scattered(base: Traced, arrays: dict[int, Tensor], given: Traced, reduction: str = "none") -> Traced:
    from vkml.tensors.operands import filled

    axes, indices, shape = _numbers(arrays, base.dims)
    rest = [axis for axis in range(len(base.dims)) if axis not in axes]
    order = [*axes, *rest]
    front = transposed(EMITTER, base, order)
    shown = [*shape, *(base.dims[axis] for axis in rest)]
    is_together = list(axes) == list(range(axes[0], axes[0] + len(axes)))
    if is_together and axes[0]:
        before = [base.dims[axis] for axis in rest[: axes[0]]]
        shown = [*before, *shape, *(base.dims[axis] for axis in rest[axes[0] :])]
    updates = _moved(filled(given, shown), axes, len(shape), back=True)
    made = apply("ScatterND", front, _joined(indices), updates, reduction=reduction)
    return transposed(EMITTER, made, sorted(range(len(order)), key=order.__getitem__))
