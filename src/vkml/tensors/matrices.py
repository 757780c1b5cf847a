"""Functions of matrices under the names that they have beside those of `vkml.linalg`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vkml.tensors.elementwise import add, log

if TYPE_CHECKING:
    from vkml.tensors.tensor import Tensor


def det(x: Tensor) -> Tensor:
    """`vkml.linalg.det`.

    Args:
        x: [..., n, n].
    """
    from vkml import linalg

    return linalg.det(x)


def slogdet(x: Tensor) -> Any:
    """`vkml.linalg.slogdet`.

    Args:
        x: [..., n, n].
    """
    from vkml import linalg

    return linalg.slogdet(x)


def logdet(x: Tensor) -> Tensor:
    """The logarithm of the determinant; NaN where that is negative.

    Args:
        x: [..., n, n].

    Returns:
        [...].
    """
    if x.dtype.is_complex:
        return log(det(x))
    sign, size = slogdet(x)
    return add(log(sign), size)


def inverse(x: Tensor) -> Tensor:
    """`vkml.linalg.inv`.

    Args:
        x: [..., n, n].
    """
    from vkml import linalg

    return linalg.inv(x)


def pinverse(x: Tensor, rcond: float = 1e-15) -> Tensor:
    """`vkml.linalg.pinv`, of matrices that need not be square.

    Args:
        x: [..., m, n].
        rcond: singular values up to this part of the greatest count as 0.

    Returns:
        [..., n, m].
    """
    from vkml import linalg

    return linalg.pinv(x, rtol=rcond)


def matrix_exp(x: Tensor) -> Tensor:
    """`vkml.linalg.matrix_exp`.

    Args:
        x: [..., n, n].
    """
    from vkml import linalg

    return linalg.matrix_exp(x)


def cholesky(x: Tensor, upper: bool = False) -> Tensor:
    """`vkml.linalg.cholesky`.

    Args:
        x: [..., n, n], positive definite.
        upper: whether the upper factor is wanted.
    """
    from vkml import linalg

    return linalg.cholesky(x, upper=upper)
