"""Functions of the array API that make arrays, and those about element types."""

from __future__ import annotations

from typing import Any

import numpy as np

from vkml.ir import DType, dtypes
from vkml.ir.gradients import converted
from vkml.tensors import Tensor, creation, type_information
from vkml.tensors import operations as op
from vkml.tensors.promotion import default_complex, get_default_dtype, number_type
from vkml.tracing import EMITTER, value_of
from vkml.xp.array import Array, as_array, joined_type, of_type, scalar_type

__all__ = [
    "arange", "asarray", "astype", "broadcast_arrays", "broadcast_shapes", "broadcast_to", "can_cast",
    "empty", "empty_like", "eye", "finfo", "from_dlpack", "full", "full_like", "iinfo", "isdtype",
    "linspace", "meshgrid", "ones", "ones_like", "result_type", "tril", "triu", "zeros", "zeros_like",
]  # fmt: skip


def _made(array: Any, dtype: DType, device: Any) -> Array:
    with np.errstate(all="ignore"):
        elements = np.asarray(array).astype(dtype.storage)
    return as_array(creation.tensor(elements, device=device))


def asarray(
    obj: Any, /, *, dtype: DType | None = None, device: Any = None, copy: bool | None = None
) -> Array:
    """An array of some elements: an array's, nested lists', a number's, or those of what has a buffer.

    Args:
        obj: the elements.
        dtype: of the array; None: as they come.
        device: its name; None: where an array is, else the CPU.
        copy: True: always; False: never; None: where it is needed.

    Raises:
        ValueError: a copy is needed and was refused.
    """
    kind = None if dtype is None else of_type(dtype, dtypes.FLOAT32)
    if isinstance(obj, Tensor):
        found: Tensor = obj.to(device, kind) if device is not None or kind is not None else obj
        if copy is False and found is not obj:
            raise ValueError("a copy is needed for another type or device, and copy=False")
        return as_array(
            found.clone() if copy or (not isinstance(found, Array) and found is obj and copy) else found
        )
    if copy is False:
        raise ValueError("elements that are no array's are always copied, and copy=False")
    if isinstance(obj, list | tuple) and any(isinstance(one, Tensor) for one in _leaves(obj)):
        obj = _plain(obj)
    is_own = isinstance(obj, np.ndarray | np.generic) or hasattr(obj, "__array__")
    # Numbers of the program as that type at once: float64, which lists of large integers become, rounds them.
    array = np.asarray(obj) if kind is None or is_own else np.asarray(obj, kind.storage)
    if kind is None and not isinstance(obj, np.ndarray | np.generic):
        natural = {
            "f": get_default_dtype(), "i": dtypes.INT64, "b": dtypes.BOOL, "u": dtypes.UINT64,
            "c": default_complex(),
        }  # fmt: skip
        if array.dtype.kind not in natural:
            raise TypeError(f"an array is made of bools and numbers, not of {array.dtype}")
        kind = natural[array.dtype.kind]
    if array.dtype.kind not in "biufc" and kind is None:
        kind = of_type(dtypes.from_numpy(array.dtype), dtypes.FLOAT32)
    return _made(array, kind or dtypes.from_numpy(array.dtype), device)


def _leaves(value: Any) -> list[Any]:
    return [leaf for one in value for leaf in _leaves(one)] if isinstance(value, list | tuple) else [value]


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value.tolist() if isinstance(value, Tensor) else value


def arange(
    start: float,
    /,
    stop: float | None = None,
    step: float = 1,
    *,
    dtype: DType | None = None,
    device: Any = None,
) -> Array:
    """The numbers from `start` up to `stop`, without it; from 0 where only one is given.

    Args:
        start: the first number; the end where it is the only one.
        stop: where they stop.
        step: from each number to the next.
        dtype: None: int64 where all three are whole, else the default type.
        device: its name; the CPU where left out.
    """
    if stop is None:
        start, stop = 0, start
    is_whole = all(isinstance(one, int) for one in (start, stop, step))
    kind = of_type(dtype, dtypes.INT64 if is_whole else get_default_dtype())
    if is_whole:
        numbers = np.array(range(int(start), int(stop), int(step)), np.object_ if kind.is_float else None)
        return _made(numbers.astype(np.float64) if kind.is_float else numbers, kind, device)
    return _made(np.arange(start, stop, step), kind, device)


def linspace(
    start: complex,
    stop: complex,
    /,
    num: int,
    *,
    dtype: DType | None = None,
    device: Any = None,
    endpoint: bool = True,
) -> Array:
    """So many numbers from `start` to `stop`, which is among them unless `endpoint` is False.

    Args:
        start: the first number.
        stop: the last number.
        num: how many.
        dtype: None: the default type; of complex numbers the complex type of two such.
        device: its name; the CPU where left out.
        endpoint: whether `stop` is among them.
    """
    is_complex = isinstance(start, complex) or isinstance(stop, complex)
    natural = default_complex() if is_complex else get_default_dtype()
    return _made(np.linspace(start, stop, num, endpoint=endpoint), of_type(dtype, natural), device)


def eye(
    n_rows: int, n_cols: int | None = None, /, *, k: int = 0, dtype: DType | None = None, device: Any = None
) -> Array:
    """Ones along a diagonal, zeros elsewhere.

    Args:
        n_rows: the number of rows.
        n_cols: the number of columns; as many as rows where left out.
        k: 0 for the main diagonal, above 0 for those above it.
        dtype: None: the default type.
        device: its name; the CPU where left out.
    """
    columns = n_rows if n_cols is None else n_cols
    return _made(
        np.eye(n_rows, columns, max(min(k, columns), -n_rows)), of_type(dtype, get_default_dtype()), device
    )


def full(shape: Any, fill_value: Any, *, dtype: DType | None = None, device: Any = None) -> Array:
    """One number throughout.

    Args:
        shape: sizes, or one number.
        fill_value: the number.
        dtype: None: the type that the number has.
        device: its name; the CPU where left out.
    """
    natural = number_type(fill_value)
    sizes = (shape,) if isinstance(shape, int) else tuple(int(size) for size in shape)
    return as_array(creation.full(sizes, fill_value, dtype=of_type(dtype, natural), device=device))


def zeros(shape: Any, *, dtype: DType | None = None, device: Any = None) -> Array:
    """Zeros.

    Args:
        shape: sizes, or one number.
        dtype: None: the default type.
        device: its name; the CPU where left out.
    """
    return full(shape, 0, dtype=of_type(dtype, get_default_dtype()), device=device)


def ones(shape: Any, *, dtype: DType | None = None, device: Any = None) -> Array:
    """Ones.

    Args:
        shape: sizes, or one number.
        dtype: None: the default type.
        device: its name; the CPU where left out.
    """
    return full(shape, 1, dtype=of_type(dtype, get_default_dtype()), device=device)


empty = zeros


def full_like(x: Any, /, fill_value: Any, *, dtype: DType | None = None, device: Any = None) -> Array:
    """One number throughout, of the shape of another array.

    Args:
        x: whose shape it is.
        fill_value: the number.
        dtype: None: that of `x`.
        device: None: that of `x`.
    """
    return full(tuple(x.shape), fill_value, dtype=of_type(dtype, x.dtype), device=device or x.device)


def zeros_like(x: Any, /, *, dtype: DType | None = None, device: Any = None) -> Array:
    """Zeros of the shape of another array.

    Args:
        x: whose shape it is.
        dtype: None: that of `x`.
        device: None: that of `x`.
    """
    return full_like(x, 0, dtype=dtype, device=device)


def ones_like(x: Any, /, *, dtype: DType | None = None, device: Any = None) -> Array:
    """Ones of the shape of another array.

    Args:
        x: whose shape it is.
        dtype: None: that of `x`.
        device: None: that of `x`.
    """
    return full_like(x, 1, dtype=dtype, device=device)


empty_like = zeros_like


def from_dlpack(x: Any, /, *, device: Any = None, copy: bool | None = None) -> Array:
    """The elements of what exports them by DLPack on the host: copied, unless `copy` is False.

    What shares its memory must not be written any more.

    Args:
        x: what has `__dlpack__`.
        device: where the elements are to be; None: where they are.
        copy: False: they stay in the memory in which they are.

    Raises:
        ValueError: `copy` is False, and the device another.
    """
    if copy is False and isinstance(x, Tensor):  # by way of the host it would be copied
        return asarray(x, device=device, copy=False)
    if copy is False:
        if device not in (None, "cpu"):
            raise ValueError(f"elements are copied to {device}, and copy=False")
        return Array(value_of(np.from_dlpack(x, copy=False)))
    found = np.from_dlpack(x)
    place = x.device if device is None and isinstance(x, Tensor) else device
    return _made(found, dtypes.from_numpy(found.dtype), place)


def tril(x: Any, /, *, k: int = 0) -> Array:
    """The elements on and below a diagonal, zeros elsewhere.

    Args:
        x: [..., rows, columns].
        k: 0 for the main diagonal, above 0 for those above it.
    """
    return as_array(op.tril(x, k))


def triu(x: Any, /, *, k: int = 0) -> Array:
    """The elements on and above a diagonal, zeros elsewhere.

    Args:
        x: [..., rows, columns].
        k: 0 for the main diagonal, above 0 for those above it.
    """
    return as_array(op.triu(x, k))


def meshgrid(*arrays: Any, indexing: str = "xy") -> tuple[Array, ...]:
    """Coordinates of all combinations.

    Args:
        *arrays: of one axis each, and of one type.
        indexing: "xy"; "ij" has the axes in the order of the arrays.

    Returns:
        As many arrays of as many axes.

    Raises:
        ValueError: their types differ.
    """
    if len({x.dtype for x in arrays}) > 1:
        raise ValueError("arrays of a grid have one type")
    return tuple(as_array(x) for x in op.meshgrid(*arrays, indexing=indexing)) if arrays else ()


# -- types -------------------------------------------------------------------------------------------------


def astype(x: Any, dtype: DType, /, *, copy: bool = True, device: Any = None) -> Array:
    """The elements in another type.

    Args:
        x: any.
        dtype: the other type.
        copy: whether an array that is of it already is copied.
        device: where it is to be; None: where `x` is.

    Raises:
        TypeError: complex numbers are to be real.
    """
    kind = of_type(dtype, dtype)
    if x.dtype.is_complex and kind.kind in "iuf":
        raise TypeError(f"{x.dtype.numpy_name} does not become {kind.numpy_name}: use real, imag or abs")
    found = as_array(Tensor(converted(EMITTER, x.value, kind))) if x.dtype != kind else x
    if found is x and copy:
        found = x.clone()
    return as_array(found if device is None else found.to(device=device))


def finfo(type: Any, /) -> type_information.finfo:
    """What floats of a type, or of an array, can be; of complex numbers what their parts can be.

    Args:
        type: of floats or complex numbers, or an array of it.
    """
    return type_information.finfo(type.dtype if isinstance(type, Tensor) else type)


def iinfo(type: Any, /) -> type_information.iinfo:
    """What integers of a type, or of an array, can be.

    Args:
        type: of integers, or an array of it.
    """
    return type_information.iinfo(type.dtype if isinstance(type, Tensor) else type)


def broadcast_arrays(*arrays: Any) -> tuple[Array, ...]:
    """Arrays broadcast to one shape.

    Args:
        *arrays: whose sizes, counted from the last axis, are equal or 1.
    """
    return tuple(as_array(x) for x in op.broadcast_tensors(*arrays)) if arrays else ()


def broadcast_shapes(*shapes: Any) -> tuple[int, ...]:
    """The shape that arrays of some shapes are broadcast to.

    Args:
        *shapes: whose sizes, counted from the last axis, are equal or 1.
    """
    return tuple(op.broadcast_shapes(*shapes))


def broadcast_to(x: Any, /, shape: Any) -> Array:
    """An array broadcast to a shape.

    Args:
        x: whose sizes, counted from the last axis, are those of the shape, or 1.
        shape: sizes.
    """
    return as_array(op.broadcast_to(x, tuple(shape)))


def can_cast(from_: Any, to: DType, /) -> bool:
    """Whether a type becomes another by the rules by which types are joined.

    Args:
        from_: a type, or an array of it.
        to: the other type.
    """
    source = from_.dtype if isinstance(from_, Tensor) else from_
    if {source.kind, to.kind} <= {"i", "u"} or source.kind == to.kind:
        try:
            return joined_type(source, to) == to
        except TypeError:
            return False
    return bool(source.is_integer and to.is_float)


def isdtype(dtype: DType, kind: Any) -> bool:
    """Whether a type is of a kind, another type, or one of several.

    Args:
        dtype: a type.
        kind: another one, or "bool", "signed integer", "unsigned integer", "integral", "real floating",
            "complex floating" or "numeric"; or a tuple of such.

    Raises:
        ValueError: there is no such kind.
    """
    if isinstance(kind, tuple):
        return any(isdtype(dtype, one) for one in kind)
    if isinstance(kind, DType):
        return dtype is kind
    kinds = {
        "bool": "b", "signed integer": "i", "unsigned integer": "u", "integral": "iu", "real floating": "f",
        "complex floating": "c", "numeric": "iufc",
    }  # fmt: skip
    if kind not in kinds:
        raise ValueError(f"{kind!r} is no kind of types: {', '.join(kinds)}")
    return dtype.kind in kinds[kind]


def result_type(*arrays_and_dtypes: Any) -> DType:
    """The type that arrays, types and numbers of the program are joined in.

    Args:
        *arrays_and_dtypes: at least one array or type.

    Raises:
        ValueError: there is none.
        TypeError: types cannot be joined.
    """
    kinds = [
        one.dtype if isinstance(one, Tensor) else one
        for one in arrays_and_dtypes
        if isinstance(one, Tensor | DType)
    ]
    if not kinds:
        raise ValueError("at least one array or type is needed")
    found = kinds[0]
    for kind in kinds[1:]:
        found = joined_type(found, kind)
    for one in arrays_and_dtypes:
        if not isinstance(one, Tensor | DType):
            found = scalar_type(one, found)
    return found
