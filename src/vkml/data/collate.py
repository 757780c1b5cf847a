"""Items joined to batches."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, MutableMapping, MutableSequence, Sequence
from typing import Any

import numpy as np

from vkml.data.placing import Place
from vkml.data.rows import Rows
from vkml.engine.array_likes import as_array
from vkml.ir import dtypes
from vkml.tensors import Tensor

Array = np.ndarray[Any, Any]
_HOST = Place()
_ARRAYS = (np.ndarray, np.generic, Tensor)
_NUMBERS = (bool, int, float)


def default_collate(batch: Sequence[Any]) -> Any:
    """Items as a batch: tensors and arrays behind a new first axis, numbers as tensors, the rest nested as it
    was.

    A list for a tuple; strings stay beside each other as they are; a mapping, a named tuple, a list as they
    are. Floats of Python's become float64, integers int64.

    Args:
        batch: the items, at least one.

    Raises:
        TypeError: an item holds something else.
        RuntimeError: items differ in their shape or length.

    Example:
        >>> import numpy as np
        >>> from vkml.data import default_collate
        >>> default_collate([{"x": np.arange(2), "name": "a"}, {"x": np.arange(2), "name": "b"}])
        {'x': tensor([[0, 1],
                [0, 1]]), 'name': ['a', 'b']}
    """
    return collated(batch, _HOST)


def collated(batch: Sequence[Any], place: Place) -> Any:
    """As `default_collate`, with tensors made at a place."""
    if not len(batch):
        raise RuntimeError("a batch of no items cannot be collated")
    return _joined(batch, place, "")


def _joined(items: Sequence[Any], place: Place, where: str) -> Any:
    first = items[0]
    if isinstance(first, _ARRAYS):
        return _stacked([_array(item, where) for item in items], place, where)
    if isinstance(first, _NUMBERS):
        return _numbers(items, place, where)
    if isinstance(first, str | bytes):
        return items

    def part(key: Any, values: Sequence[Any]) -> Any:
        return _joined(values, place, f"{where}[{key!r}]")

    if isinstance(first, Mapping):
        try:
            parts = {key: part(key, [item[key] for item in items]) for key in first}
        except (KeyError, TypeError) as error:
            if isinstance(error, KeyError):
                raise KeyError(f"not all items of a batch have the key {error} at the item{where}") from None
            raise
        return _like(first, parts)
    if isinstance(first, Sequence):
        kind = type(first)
        sizes = [len(item) if type(item) is kind or isinstance(item, Sequence) else None for item in items]
        if sizes.count(sizes[0]) < len(sizes):
            raise RuntimeError(f"each element in list of batch should be of equal size; they have {sizes}")
        found = [part(at, values) for at, values in enumerate(zip(*items, strict=True))]
        if isinstance(first, tuple):
            return type(first)(*found) if hasattr(first, "_fields") else found
        return _like(first, found)
    raise TypeError(
        "default_collate: batch must contain tensors, numpy arrays, numbers, dicts or lists; found "
        f"{type(first)} at the item{where}"
    )


def _like(first: Any, parts: Any) -> Any:
    """Parts in a mapping or sequence of another's type, with what else that has; or in a plain one."""
    try:
        if isinstance(first, MutableMapping):
            made = copy.copy(first)
            made.update(parts)
            return made
        if isinstance(first, MutableSequence):
            found = copy.copy(first)
            for at, part in enumerate(parts):
                found[at] = part
            return found
        return type(first)(parts)
    except TypeError:
        return parts


def _array(item: Any, where: str) -> Array:
    if isinstance(item, np.ndarray):
        return item
    if isinstance(item, Tensor):
        if item.requires_grad:
            item = item.detach()
        elements: Array = item._elements()
        return elements
    if not isinstance(item, np.generic):
        raise TypeError(f"items of one batch are an array and {type(item).__name__} at the item{where}")
    return np.asarray(item)


def _stacked(arrays: Sequence[Array], place: Place, where: str) -> Tensor:
    first = arrays[0]
    if first.dtype.kind in "OUSmMV" and not _is_number(first.dtype):
        raise TypeError(
            "default_collate: batch must contain tensors, numpy arrays, numbers, dicts or lists; found "
            f"{first.dtype} at the item{where}"
        )
    dtype = first.dtype
    for at, array in enumerate(arrays):
        if array.shape != first.shape:
            raise RuntimeError(
                f"stack expects each tensor to be equal size, but got {list(first.shape)} at entry 0 and "
                f"{list(array.shape)} at entry {at} of the item{where}"
            )
        if array.dtype != dtype:
            dtype = np.promote_types(dtype, array.dtype)

    def write(target: Array) -> None:
        np.stack(arrays, out=target, casting="unsafe")  # to their common type

    return place.make((len(arrays), *first.shape), dtype.newbyteorder("="), write)


def _is_number(dtype: np.dtype[Any]) -> bool:
    """Whether a type that NumPy has not by itself is one of vkml's."""
    try:
        return dtypes.from_numpy(dtype).kind != "s"
    except Exception:  # no element type at all
        return False


def _numbers(items: Sequence[Any], place: Place, where: str) -> Tensor:
    for item in items:
        if not isinstance(item, _NUMBERS) and not isinstance(item, np.generic):
            raise TypeError(f"items of one batch are a number and {type(item).__name__} at the item{where}")
    dtype: np.dtype[Any]
    if isinstance(items[0], float):
        dtype = np.dtype(np.float64)
    elif all(isinstance(item, bool) for item in items):
        dtype = np.dtype(np.bool_)
    elif any(isinstance(item, float) for item in items):
        dtype = np.dtype(np.float32)
    else:
        dtype = np.dtype(np.int64)
    array = np.asarray(items, dtype)
    return place.make(array.shape, dtype, _writing(array))


def _writing(array: Array) -> Callable[[Array], None]:
    def write(target: Array) -> None:
        target[...] = array

    return write


def gathered(form: Any, place: Place) -> Any:
    """Rows, nested as in one item, as a batch."""
    if isinstance(form, Rows):
        return place.make(form.shape, form.array.dtype.newbyteorder("="), form.write)
    if isinstance(form, dict):
        return {key: gathered(part, place) for key, part in form.items()}
    return [gathered(part, place) for part in form]


def default_convert(data: Any) -> Any:
    """Arrays and their scalars as tensors, in whatever they are nested in; the rest as it is.

    Args:
        data: an item, or part of one.

    Returns:
        Of the same form.
    """
    return converted(data, _HOST)


def converted(data: Any, place: Place) -> Any:
    """As `default_convert`, with tensors made at a place."""
    if isinstance(data, Tensor):
        return data if place is _HOST else placed(data, place)
    if isinstance(data, np.ndarray | np.generic):
        if data.dtype.kind in "OUSmMV" and not _is_number(data.dtype):
            return data
        array = as_array(np.asarray(data), "the item", "C")
        return place.make(array.shape, array.dtype.newbyteorder("="), _writing(array))
    if isinstance(data, Mapping):
        return _like(data, {key: converted(part, place) for key, part in data.items()})
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(converted(part, place) for part in data))
    if isinstance(data, tuple):
        return [converted(part, place) for part in data]
    if isinstance(data, Sequence) and not isinstance(data, str | bytes):
        return _like(data, [converted(part, place) for part in data])
    return data


def placed(tensor: Tensor, place: Place) -> Tensor:
    """A tensor with the elements of another, made at a place."""
    array = _array(tensor, "")
    return place.make(array.shape, array.dtype, _writing(array))
