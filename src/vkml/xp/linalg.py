"""The linear algebra extension of the array API; see `vkml.linalg` for where what is computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from vkml import linalg as _linalg
from vkml.ir import DType
from vkml.tensors import Tensor
from vkml.tensors import operations as op
from vkml.xp.array import Array, alike, as_array
from vkml.xp.elementwise import multiply
from vkml.xp.manipulation import matrix_transpose
from vkml.xp.reductions import matmul, sum, tensordot, vecdot

__all__ = [
    "cholesky", "cross", "det", "diagonal", "eig", "eigh", "eigvals", "eigvalsh", "inv", "matmul",
    "matrix_norm", "matrix_power", "matrix_rank", "matrix_transpose", "outer", "pinv", "qr", "slogdet",
    "solve", "svd", "svdvals", "tensordot", "trace", "vecdot", "vector_norm",
]  # fmt: skip


class Eig(NamedTuple):
    eigenvalues: Array
    eigenvectors: Array


class Eigh(NamedTuple):
    eigenvalues: Array
    eigenvectors: Array


class QR(NamedTuple):
    Q: Array
    R: Array


class SlogDet(NamedTuple):
    sign: Array
    logabsdet: Array


class SVD(NamedTuple):
    U: Array
    S: Array
    Vh: Array


def _arrays(found: Sequence[Any]) -> list[Array]:
    return [as_array(one) for one in found]


def cholesky(x: Any, /, *, upper: bool = False) -> Array:
    """The lower triangle L of L Lᵀ, or the upper one."""
    return as_array(_linalg.cholesky(x, upper=upper))


def cross(x1: Any, x2: Any, /, *, axis: int = -1) -> Array:
    """The vector product along an axis of three elements."""
    a, b = alike(x1, x2)
    return as_array(op.cross(a, b, axis))


def det(x: Any, /) -> Array:
    """The determinants of matrices."""
    return as_array(_linalg.det(x))


def diagonal(x: Any, /, *, offset: int = 0) -> Array:
    """The diagonals of the last two axes."""
    return as_array(op.diagonal(x, offset, -2, -1))


def eig(x: Any, /) -> Eig:
    """Eigenvalues of square matrices, in no order, and eigenvectors as columns: complex."""
    return Eig(*_arrays(_linalg.eig(x)))


def eigvals(x: Any, /) -> Array:
    """Eigenvalues of square matrices, in no order: complex."""
    return as_array(_linalg.eigvals(x))


def eigh(x: Any, /) -> Eigh:
    """Eigenvalues of symmetric matrices, ascending, and eigenvectors as columns."""
    return Eigh(*_arrays(_linalg.eigh(x)))


def eigvalsh(x: Any, /) -> Array:
    """Eigenvalues of symmetric matrices, ascending."""
    return as_array(_linalg.eigvalsh(x))


def inv(x: Any, /) -> Array:
    """The inverses of matrices."""
    return as_array(_linalg.inv(x))


def matrix_norm(x: Any, /, *, keepdims: bool = False, ord: Any = "fro") -> Array:
    """The norm of matrices."""
    return as_array(_linalg.matrix_norm(x, ord, keepdim=keepdims))


def matrix_power(x: Any, n: int, /) -> Array:
    """A square matrix multiplied by itself n times."""
    return as_array(op.matrix_power(x, n))


def _of_each(rtol: Any) -> Any:
    """One tolerance a matrix, beside all of its singular values."""
    return op.unsqueeze(rtol, -1) if isinstance(rtol, Tensor) else rtol


def matrix_rank(x: Any, /, *, rtol: Any = None) -> Array:
    """How many singular values are not small beside the greatest."""
    return as_array(_linalg.matrix_rank(x, rtol=_of_each(rtol)))


def outer(x1: Any, x2: Any, /) -> Array:
    """The products of each element of a vector with each of another."""
    return as_array(multiply(op.unsqueeze(x1, 1), op.unsqueeze(x2, 0)))


def pinv(x: Any, /, *, rtol: Any = None) -> Array:
    """The inverse of E. Moore and R. Penrose."""
    return as_array(_linalg.pinv(x, _of_each(rtol)))


def qr(x: Any, /, *, mode: str = "reduced") -> QR:
    """Q of orthonormal columns and R, an upper triangle."""
    return QR(*_arrays(_linalg.qr(x, mode)))


def slogdet(x: Any, /) -> SlogDet:
    """The sign of the determinants, and the logarithm of their sizes."""
    return SlogDet(*_arrays(_linalg.slogdet(x)))


def solve(x1: Any, x2: Any, /) -> Array:
    """X of `x1` X = `x2`; a vector where `x2` has one axis."""
    a, b = alike(x1, x2)
    # Not `solve` of more axes: it takes [..., n] beside [..., n, n] for vectors, the standard for matrices.
    return as_array(_linalg.solve(a, b) if b.ndim == 1 else _linalg._solved(a, b))


def svd(x: Any, /, *, full_matrices: bool = True) -> SVD:
    """U, singular values and Vᵀ."""
    return SVD(*_arrays(_linalg.svd(x, full_matrices)))


def svdvals(x: Any, /) -> Array:
    """Singular values, descending."""
    return as_array(_linalg.svdvals(x))


def trace(x: Any, /, *, offset: int = 0, dtype: DType | None = None) -> Array:
    """The sums of diagonals of the last two axes."""
    return sum(diagonal(x, offset=offset), axis=-1, dtype=dtype)


def vector_norm(x: Any, /, *, axis: Any = None, keepdims: bool = False, ord: float = 2) -> Array:
    """The norm of vectors along axes, of all elements where `axis` is None."""
    if isinstance(axis, tuple) and not axis:  # to `vkml.linalg` as to PyTorch that is None
        return as_array(_linalg.vector_norm(op.unsqueeze(x, -1), ord, -1))
    return as_array(_linalg.vector_norm(x, ord, axis, keepdims))
