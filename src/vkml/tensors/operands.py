"""What operations on tensors take: tensors, numbers and axes as values of a type and in a shape."""

from __future__ import annotations

from builtins import any as any_of
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from vkml.ir import DType, dtypes
from vkml.ir.gradients import converted, expanded
from vkml.ir.size import Size
from vkml.tensors import tensor as core
from vkml.tensors.promotion import get_default_dtype, result_type
from vkml.tracing import EMITTER, Traced, apply, constant, number, value_of

if TYPE_CHECKING:
    from vkml.tensors.tensor import Tensor

Operand: TypeAlias = "Tensor | bool | int | float | complex"
INT64, BOOL = dtypes.INT64, dtypes.BOOL


def wrap(value: Traced) -> Tensor:
    """A tensor of a value."""
    return core.Tensor(value)


def of_complex(op: str, x: Tensor) -> Tensor:
    """An operator of complex numbers alone."""
    return wrap(apply(op, x.value, domain="vkml"))


def value_as(operand: Operand, dtype: DType) -> Traced:
    """A tensor's value, or a number of the program, in an element type."""
    if isinstance(operand, core.Tensor):
        return converted(EMITTER, operand.value, dtype)
    if isinstance(operand, Size):
        return converted(EMITTER, constant(operand, INT64), dtype)
    if isinstance(operand, bool | int | float | complex | np.generic):
        return number(operand, dtype)
    if isinstance(operand, np.ndarray):
        return converted(EMITTER, core.Tensor(value_of(operand.copy())).value, dtype)
    raise TypeError(f"a tensor or a number is needed, not {type(operand).__name__}")


def pair(op: str, x: Operand, y: Operand, dtype: DType | None = None, **attributes: Any) -> Tensor:
    """An operator of two operands of a common type, broadcast with each other."""
    kind = dtype or result_type(x, y)
    return wrap(broadcast(op, promoted(x, kind), promoted(y, kind), **attributes))


def promoted(operand: Operand, dtype: DType) -> Traced:
    """As `value_as`, for an operator that takes operands of other types, too.

    What it converts is no copy to the program: it changes with the tensor.
    """
    if not isinstance(operand, core.Tensor):
        return value_as(operand, dtype)
    value = operand.value
    made = converted(EMITTER, value, dtype)
    if made is not value:
        made.share(value)
    return made


def broadcast(op: str, x: Traced, y: Traced, **attributes: Any) -> Traced:
    """An operator of two values of one type.

    Raises:
        RuntimeError: their shapes do not fit each other.
    """
    check_broadcast(x.dims, y.dims)
    return apply(op, x, y, **attributes)


def check_broadcast(x: Sequence[int], y: Sequence[int]) -> None:
    """Raises a RuntimeError where two shapes do not fit each other."""
    for axis in range(1, min(len(x), len(y)) + 1):
        a, b = x[-axis], y[-axis]
        if a != b and a != 1 and b != 1:
            raise RuntimeError(
                f"the size of tensor a ({a}) must match the size of tensor b ({b}) at axis "
                f"{max(len(x), len(y)) - axis}: the shapes are {list(x)} and {list(y)}"
            )


def filled(value: Traced, dims: Sequence[int]) -> Traced:
    """A value broadcast to a shape.

    Raises:
        RuntimeError: it does not fit.
    """
    own = value.dims
    more = len(dims) - len(own)
    if more < 0 or any_of(size not in (1, dims[more + at]) for at, size in enumerate(own)):
        raise RuntimeError(f"a value of shape {list(own)} does not fill the shape {list(dims)}")
    return expanded(EMITTER, value, dims)


def axis_of(dim: int, rank: int) -> int:
    """An axis counted from the front.

    Raises:
        IndexError: there is none.
    """
    most = max(rank, 1)
    if not -most <= dim < most:
        raise IndexError(f"axis {dim} is out of range: expected one of {-most} to {most - 1}")
    return dim % most


def axes_of(dim: int | Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """Axes counted from the front, all where none are named."""
    if dim is None:
        return tuple(range(rank))
    if isinstance(dim, int):
        return (axis_of(dim, rank),) if rank else ()
    return tuple(axis_of(one, rank) for one in dim) or tuple(range(rank))


def floating(x: Tensor) -> Traced:
    """A tensor's value as floats, or complex numbers: integers become the default type."""
    return x.value if x.dtype.is_inexact else converted(EMITTER, x.value, get_default_dtype())
