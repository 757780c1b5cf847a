"""Tensors from numbers, lists, arrays and counters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vkml.engine.array_likes import as_array
from vkml.engine.ort_value import device_of, dtype_of
from vkml.ir import DType, dtypes
from vkml.ir.gradients import converted, expanded
from vkml.ir.size import Size as OpenSize
from vkml.ir.size import is_deciding
from vkml.tensors.promotion import checked, default_complex, get_default_dtype, number_type
from vkml.tensors.tensor import Tensor, device_name
from vkml.tracing import EMITTER, Traced, apply, constant, value_of
from vkml.tracing.meta import absent, is_meta

Array = np.ndarray[Any, Any]


def tensor(
    data: Any, *, dtype: DType | None = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """A tensor with a copy of some elements.

    Args:
        data: a number, nested lists, an array, anything that `numpy.asarray` takes, or a tensor.
        dtype: of its elements; as they come where left out: floats of Python's become the default type.
        device: its name, as in ``"vulkan:0"``; the CPU where left out.
        requires_grad: whether gradients by it are wanted.
    """
    if isinstance(data, Tensor):
        made = data.detach().to(device, dtype)
        made = made.clone()
    else:
        sizes = _open_sizes(data) if is_deciding() else None
        if sizes is None:
            made = _of_array(_array(data, dtype), device)
        else:
            kind = checked(dtype) or dtypes.INT64
            made = Tensor(_there(converted(EMITTER, constant(sizes, dtypes.INT64), kind), device))
    return made.requires_grad_() if requires_grad else made


def _open_sizes(data: Any) -> Array | None:
    """Open sizes, alone or among integers, as an array of objects; None where there are none.

    Raises:
        TooOpen: they are among floats.
    """
    array = np.asarray(data)
    if array.dtype != object:
        return None
    elements = array.reshape(-1).tolist()
    if not any(isinstance(element, OpenSize) for element in elements):
        return None
    if not all(isinstance(element, OpenSize | int | np.integer) for element in elements):
        array.astype(np.float64)
    return array


def _array(data: Any, dtype: DType | None) -> Array:
    checked(dtype)
    is_own = isinstance(data, np.ndarray | np.generic) or hasattr(data, "__array__")
    array = np.array(data)
    if dtype is None and not is_own:
        dtype = {
            "f": get_default_dtype(),
            "i": dtypes.INT64,
            "b": dtypes.BOOL,
            "c": default_complex(),
        }.get(array.dtype.kind)
        if array.dtype.kind == "f" and not array.size:
            dtype = get_default_dtype()
    if array.dtype.kind in "OUSmM":
        raise TypeError(f"a tensor is made of numbers, not of {type(data).__name__} of {array.dtype}")
    return array if dtype is None else array.astype(dtype.storage)


def _of_array(array: Array, device: Any) -> Tensor:
    if is_meta(device):
        return Tensor(absent(dtypes.from_numpy(array.dtype), array.shape))
    where = None if device is None else device_of(device_name(device))
    array = as_array(array, "the value", "C")
    if not array.dtype.isnative or array.dtype.kind not in "fiubc":
        array = array.astype(dtype_of(array.dtype).storage, copy=False)
    return Tensor(value_of(array, where))


def as_tensor(data: Any, *, dtype: DType | None = None, device: Any = None) -> Tensor:
    """A tensor of some elements; itself where it is one, on that device and of that type, already.

    Args:
        data: as for `tensor`.
        dtype: of its elements; None: as they come.
        device: its name; None: where a tensor is, else the CPU.
    """
    return data.to(device, dtype) if isinstance(data, Tensor) else tensor(data, dtype=dtype, device=device)


def asarray(
    obj: Any, *, dtype: DType | None = None, device: Any = None, copy: bool | None = None,
    requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """A tensor of some elements; itself where it is one already and no copy is asked for.

    Args:
        obj: what `vkml.tensor` takes.
        dtype: of its elements; None: as they come.
        device: its name; where they are, or the CPU.
        copy: whether elements are copied in any case; False: never.
        requires_grad: whether gradients by it are wanted.

    Raises:
        ValueError: the elements are copied, and `copy` is False.
    """
    found = as_tensor(obj, dtype=dtype, device=device)
    if copy is False and found is not obj:
        raise ValueError("elements are copied to become a tensor, of this type or device: copy=False")
    if copy and found is obj:
        found = found.detach().clone()
    return found.requires_grad_() if requires_grad else found


def scalar_tensor(
    s: Any, *, dtype: DType | None = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """A tensor of one number, without axes.

    Args:
        s: the number.
        dtype: of the element; None: the default type.
        device: its name; the CPU where left out.
        requires_grad: whether gradients by it are wanted.
    """
    return tensor(s, dtype=dtype or get_default_dtype(), device=device, requires_grad=requires_grad)


def from_numpy(array: Array) -> Tensor:
    """A tensor of the CPU with an array's elements, copied: operations read them when they are computed.

    Args:
        array: of numbers.

    Raises:
        TypeError: it is no array, or not of numbers.
    """
    if not isinstance(array, np.ndarray):
        raise TypeError(f"an array is needed, not {type(array).__name__}")
    return tensor(array)


def full(
    size: Sequence[int], fill_value: Any, *, dtype: DType | None = None, device: Any = None,
    requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """A tensor of one number throughout.

    Args:
        size: its shape.
        fill_value: the number.
        dtype: of its elements; None: the type that the number has: int64, bool, or the default type.
        device: its name; the CPU where left out.
        requires_grad: whether gradients by it are wanted.

    Raises:
        RuntimeError: a size is below 0.
    """
    kind = checked(dtype) or number_type(fill_value)
    dims = tuple(size)
    if any(isinstance(one, int) and one < 0 for one in dims):
        raise RuntimeError(f"sizes are not negative: {list(dims)}")
    if any(isinstance(one, OpenSize) for one in (fill_value, *dims)):
        is_size = isinstance(fill_value, OpenSize)
        value = tensor(fill_value, dtype=kind).value if is_size else constant(fill_value, kind)
        made = Tensor(_there(expanded(EMITTER, value, dims), device))
    else:
        # Broadcast, where nobody needs the elements.
        number = np.asarray(fill_value, kind.storage)
        made = _of_array(np.broadcast_to(number, dims) if is_meta(device) else np.full(dims, number), device)
    return made.requires_grad_() if requires_grad else made


def _there(value: Traced, device: Any) -> Traced:
    """What is made of open sizes alone, on a device: it is computed wherever it is needed."""
    if device is None or device_name(device) == "cpu":
        return value
    made = apply("Identity", value)
    made.device = device_of(device_name(device))
    return made


def _sizes(size: Sequence[Any]) -> tuple[int, ...]:
    return tuple(size[0]) if len(size) == 1 and isinstance(size[0], tuple | list) else tuple(size)


def zeros(*size: Any, dtype: DType | None = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor of zeros.

    Args:
        *size: its shape, one by one or as one sequence.
        dtype: of its elements; None: the default type.
        device: its name; the CPU where left out.
        requires_grad: whether gradients by it are wanted.

    Raises:
        RuntimeError: a size is below 0.
    """
    kind = checked(dtype) or get_default_dtype()
    return full(_sizes(size), 0, dtype=kind, device=device, requires_grad=requires_grad)


def ones(*size: Any, dtype: DType | None = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor of ones.

    Args:
        *size: its shape, one by one or as one sequence.
        dtype: of its elements; None: the default type.
        device: its name; the CPU where left out.
        requires_grad: whether gradients by it are wanted.

    Raises:
        RuntimeError: a size is below 0.
    """
    kind = checked(dtype) or get_default_dtype()
    return full(_sizes(size), 1, dtype=kind, device=device, requires_grad=requires_grad)


def empty(*size: Any, dtype: DType | None = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor to be written.

    Args:
        *size: its shape, one by one or as one sequence.
        dtype: of its elements; None: the default type.
        device: its name; the CPU where left out.
        requires_grad: whether gradients by it are wanted.

    Returns:
        Zeros.
    """
    return zeros(*size, dtype=dtype, device=device, requires_grad=requires_grad)


_LIKE_ARGUMENTS = """

Args:
    x: whose shape it is.
    dtype: of its elements; None: that of `x`.
    device: where it is; None: where `x` is.
    requires_grad: whether gradients by it are wanted.
"""


def _like(make: Any, doc: str) -> Any:
    def like(
        x: Tensor, *, dtype: DType | None = None, device: Any = None, requires_grad: bool = False
    ) -> Tensor:
        made: Tensor = make(
            *x.shape, dtype=dtype or x.dtype, device=device or x.device, requires_grad=requires_grad
        )
        return made

    like.__name__ = like.__qualname__ = f"{make.__name__}_like"
    like.__doc__ = doc + _LIKE_ARGUMENTS
    return like


zeros_like = _like(zeros, "Zeros, of the shape, type and device of another tensor where none are stated.")
ones_like = _like(ones, "Ones, of the shape, type and device of another tensor where none are stated.")


def full_like(
    x: Tensor, fill_value: Any, *, dtype: DType | None = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """A tensor of one number of the shape of another.

    Args:
        x: whose shape it is.
        fill_value: the number.
        dtype: of its elements; None: that of `x`.
        device: where it is; None: where `x` is.
        requires_grad: whether gradients by it are wanted.
    """
    kind, place = dtype or x.dtype, device or x.device
    return full(x.shape, fill_value, dtype=kind, device=place, requires_grad=requires_grad)


def arange(
    start: Any = 0, end: Any = None, step: Any = 1, *, dtype: DType | None = None, device: Any = None,
    requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """The numbers from `start` up to `end`, without it.

    Args:
        start: the first number; the end where it is the only one, and the first number is 0.
        end: where they stop.
        step: from each number to the next; may be below 0.
        dtype: of its elements; None: int64, or the default type where one of the three is a float.
        device: its name; the CPU where left out.
        requires_grad: whether gradients by it are wanted.

    Returns:
        One axis.

    Raises:
        RuntimeError: the steps do not lead there.
    """
    if end is None:
        start, end = 0, start
    is_float = any(isinstance(one, float) for one in (start, end, step))
    kind = checked(dtype) or (get_default_dtype() if is_float else dtypes.INT64)
    is_open = any(isinstance(one, OpenSize) for one in (start, end, step))
    if is_open:
        start, end, step = map(_whole, (start, end, step))
    if not step or (end - start) * step < 0:
        raise RuntimeError(f"arange: steps of {step} do not lead from {start} to {end}")
    if is_open:
        ends = [constant(one, dtypes.INT64) for one in (start, end, step)]
        made = Tensor(_there(converted(EMITTER, apply("Range", *ends), kind), device))
    else:
        made = _of_array(np.arange(start, end, step).astype(kind.storage), device)
    return made.requires_grad_() if requires_grad else made


def _whole(number: Any) -> Any:
    """A float that is a whole number as that: with others open sizes are not computed."""
    return int(number) if isinstance(number, float) and number.is_integer() else number


def linspace(
    start: complex, end: complex, steps: int, *, dtype: DType | None = None, device: Any = None,
    requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """So many numbers from `start` to `end`, both among them.

    Args:
        start: the first number.
        end: the last number.
        steps: how many numbers.
        dtype: of its elements; None: the default type.
        device: its name; the CPU where left out.
        requires_grad: whether gradients by it are wanted.

    Returns:
        [steps].

    Raises:
        RuntimeError: their number is below 0.
    """
    if steps < 0:
        raise RuntimeError(f"linspace: the number of steps is not negative, as {steps} is")
    is_complex = isinstance(start, complex) or isinstance(end, complex)
    kind = checked(dtype) or (default_complex() if is_complex else get_default_dtype())
    made = _of_array(np.linspace(start, end, steps).astype(kind.storage), device)
    return made.requires_grad_() if requires_grad else made


def logspace(
    start: float,
    end: float,
    steps: int,
    base: float = 10.0,
    *,
    dtype: DType | None = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """So many powers of a base, of exponents from `start` to `end`, both among them.

    Args:
        start: the exponent of the first number.
        end: the exponent of the last one.
        steps: how many numbers.
        base: what is raised to these powers.
        dtype: of its elements; None: the default type.
        device: its name; the CPU where left out.
        requires_grad: whether gradients by it are wanted.

    Returns:
        [steps].
    """
    kind = checked(dtype) or get_default_dtype()
    made = _of_array(np.logspace(start, end, steps, base=base).astype(kind.storage), device)
    return made.requires_grad_() if requires_grad else made


def empty_like(
    x: Tensor, *, dtype: DType | None = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """A tensor to be written, of the shape of another.

    Args:
        x: whose shape it is.
        dtype: of its elements; None: that of `x`.
        device: where it is; None: where `x` is.
        requires_grad: whether gradients by it are wanted.

    Returns:
        Zeros.
    """
    made: Tensor = zeros_like(x, dtype=dtype, device=device, requires_grad=requires_grad)
    return made


def from_dlpack(ext_tensor: Any) -> Tensor:
    """A tensor of the CPU with the elements of what exports them by DLPack on the host, copied.

    Args:
        ext_tensor: what has `__dlpack__`, such as arrays and tensors of other libraries.
    """
    return tensor(np.from_dlpack(ext_tensor))


def is_tensor(obj: Any) -> bool:
    """Whether something is a tensor.

    Args:
        obj: anything.
    """
    return isinstance(obj, Tensor)


def numel(x: Tensor) -> int:
    """How many elements a tensor has.

    Args:
        x: any.
    """
    return x.numel()


def eye(
    n: int, m: int | None = None, *, dtype: DType | None = None, device: Any = None,
    requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """Ones along the diagonal, zeros elsewhere.

    Args:
        n: the number of rows.
        m: the number of columns; as many as rows where left out.
        dtype: of its elements; None: the default type.
        device: its name; the CPU where left out.
        requires_grad: whether gradients by it are wanted.

    Returns:
        [n, m].
    """
    kind = checked(dtype) or get_default_dtype()
    if isinstance(n, OpenSize) or isinstance(m, OpenSize):
        rows, columns = (arange(size, device=device) for size in (n, n if m is None else m))
        made = (rows.unsqueeze(1) == columns).to(kind)
    else:
        made = _of_array(np.eye(n, m, dtype=kind.storage), device)
    return made.requires_grad_() if requires_grad else made
