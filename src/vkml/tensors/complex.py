"""Complex tensors: their parts, and tensors made of parts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from vkml.ir import dtypes
from vkml.tensors.elementwise import cos, eq, lt, mul, ne, sign, sin, where
from vkml.tensors.operands import floating, of_complex, wrap
from vkml.tensors.shapes import transpose
from vkml.tensors.views import Joined, PartOfComplex, Parts
from vkml.tracing import apply

if TYPE_CHECKING:
    from vkml.tensors.tensor import Tensor


def is_complex(x: Tensor) -> bool:
    """Whether the elements are complex numbers.

    Args:
        x: any.
    """
    return x.dtype.is_complex


def real(x: Tensor) -> Tensor:
    """The real parts, a view; tensors of real numbers themselves.

    Args:
        x: numbers of any type and shape.
    """
    return x._shown(PartOfComplex(is_real=True)) if x.dtype.is_complex else x


def imag(x: Tensor) -> Tensor:
    """The imaginary parts, a view.

    Args:
        x: complex numbers of any shape.

    Raises:
        RuntimeError: the tensor is real.
    """
    if not x.dtype.is_complex:
        raise RuntimeError(f"imag is not implemented for tensors of {x.dtype.numpy_name}: they are real")
    return x._shown(PartOfComplex(is_real=False))


def conj(x: Tensor) -> Tensor:
    """The conjugates; tensors of real numbers themselves.

    Args:
        x: numbers of any type and shape.
    """
    return of_complex("Conj", x) if x.dtype.is_complex else x


def adjoint(x: Tensor) -> Tensor:
    """The last two axes exchanged, conjugated.

    Args:
        x: [..., n, m].

    Returns:
        [..., m, n].
    """
    return conj(transpose(x, -2, -1))


def resolve_conj(x: Tensor) -> Tensor:
    """Itself: conjugates are never put off.

    Args:
        x: numbers of any type and shape.
    """
    return x


def angle(x: Tensor) -> Tensor:
    """The angles to the axis of real numbers: of negative ones π, of NaN NaN.

    Args:
        x: numbers of any shape; integers become floats of the default type.

    Returns:
        Floats, in radians.
    """
    if x.dtype.is_complex:
        return of_complex("Angle", x)
    value = wrap(floating(x))
    return where(ne(value, value), value, mul(lt(value, 0).to(value.dtype), math.pi))


def sgn(x: Tensor) -> Tensor:
    """x / |x|, and 0 of 0.

    Args:
        x: numbers of any type and shape.
    """
    return sign(x)


def isreal(x: Tensor) -> Tensor:
    """Where imaginary parts are 0: everywhere in tensors of real numbers.

    Args:
        x: numbers of any type and shape.

    Returns:
        Bools.
    """
    return eq(imag(x), 0) if x.dtype.is_complex else eq(ne(x, x), eq(x, x)).logical_not()


def complex(real: Tensor, imag: Tensor) -> Tensor:
    """Complex numbers of their parts.

    Args:
        real: float32 or float64.
        imag: of the same type, broadcast with it.

    Raises:
        RuntimeError: of other types.
    """
    if real.dtype != imag.dtype or real.dtype not in (dtypes.FLOAT32, dtypes.FLOAT64):
        raise RuntimeError(
            "parts of complex numbers are both float32 or both float64, not "
            f"{real.dtype.numpy_name} and {imag.dtype.numpy_name}"
        )
    return wrap(apply("Complex", real.value, imag.value, domain="vkml"))


def of_parts(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Complex numbers of what a function of real tensors makes of the parts of others."""
    return complex(function(real(x)), function(imag(x)))


def polar(abs: Tensor, angle: Tensor) -> Tensor:
    """Complex numbers of their magnitudes and angles, both float32 or both float64.

    Args:
        abs: magnitudes, float32 or float64.
        angle: in radians, of the same type; broadcast with `abs`.

    Raises:
        RuntimeError: of other types.
    """
    return complex(mul(abs, cos(angle)), mul(abs, sin(angle)))


def view_as_real(x: Tensor) -> Tensor:
    """The parts along a new last axis: [..., 2], a view.

    Args:
        x: complex numbers of any shape.

    Raises:
        RuntimeError: they are real.
    """
    if not x.dtype.is_complex:
        raise RuntimeError(f"view_as_real is of complex tensors, not of {x.dtype.numpy_name}")
    return x._shown(Parts())


def view_as_complex(x: Tensor) -> Tensor:
    """Complex numbers of the last axis' two elements, a view.

    Args:
        x: float32 or float64 [..., 2].

    Returns:
        [...].

    Raises:
        RuntimeError: the last axis has not two elements, or they are of another type.
    """
    if not x.ndim or x.shape[-1] != 2:
        raise RuntimeError(f"view_as_complex: the last axis of {list(x.shape)} has not two elements")
    if x.dtype not in (dtypes.FLOAT32, dtypes.FLOAT64):
        raise RuntimeError(f"view_as_complex is of float32 or float64, not of {x.dtype.numpy_name}")
    return x._shown(Joined())


__all__ = [
    "adjoint", "angle", "complex", "conj", "imag", "is_complex", "isreal", "polar", "real", "resolve_conj",
    "sgn", "view_as_complex", "view_as_real",
]  # fmt: skip
