"""Linear algebra, as `torch.linalg`.

Products and norms run where their tensors are. Factorisations, inverses, solutions and determinants are
LAPACK's on the CPU, of float32, float64 and complex numbers: values of a device come to the host and go back,
and one warning says so. They are recorded like any other operation, and have gradients.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from vkml.errors import LinAlgError
from vkml.ir import DType, dtypes
from vkml.tensors import Tensor
from vkml.tensors import saving as _saving
from vkml.tensors.arranging import movedim
from vkml.tensors.arranging import vander as powers
from vkml.tensors.complex import adjoint
from vkml.tensors.diagonals import diagonal
from vkml.tensors.elementwise import abs as abs_of
from vkml.tensors.elementwise import add, div, gt, maximum, mul, reciprocal, sub, where
from vkml.tensors.operands import axis_of, wrap
from vkml.tensors.products import cross as _cross
from vkml.tensors.products import matmul, matrix_power, multi_dot, tensordot, vecdot
from vkml.tensors.reductions import amax, amin, sum
from vkml.tensors.reductions import norm as _norm
from vkml.tensors.shapes import reshape, squeeze, transpose, tril, triu, unsqueeze
from vkml.tensors.statistics import count_nonzero
from vkml.tracing import apply_all, constant

__all__ = [
    "LinAlgError", "cholesky", "cholesky_ex", "cond", "cross", "det", "diagonal", "eig", "eigh", "eigvals",
    "eigvalsh", "householder_product", "inv", "inv_ex", "lstsq", "matmul", "matrix_exp", "matrix_norm",
    "matrix_power", "matrix_rank", "multi_dot", "norm", "pinv", "qr", "slogdet", "solve",
    "solve_triangular", "svd", "svdvals", "tensordot", "tensorinv", "tensorsolve", "vander", "vecdot",
    "vector_norm",
]  # fmt: skip


class SlogDet(NamedTuple):
    sign: Tensor
    logabsdet: Tensor


class QR(NamedTuple):
    Q: Tensor
    R: Tensor


class Eigh(NamedTuple):
    eigenvalues: Tensor
    eigenvectors: Tensor


class Eig(NamedTuple):
    eigenvalues: Tensor
    eigenvectors: Tensor


class SVD(NamedTuple):
    U: Tensor
    S: Tensor
    Vh: Tensor


class Lstsq(NamedTuple):
    solution: Tensor
    residuals: Tensor
    rank: Tensor
    singular_values: Tensor


def _matrices(function: str, x: Tensor, *, is_square: bool = False) -> Tensor:
    if x.ndim < 2:
        raise RuntimeError(f"linalg.{function}: a matrix has at least two axes, this tensor has {x.ndim}")
    if is_square and x.shape[-1] != x.shape[-2]:
        raise RuntimeError(f"linalg.{function}: a square matrix is needed, the shape is {list(x.shape)}")
    if x.dtype not in (dtypes.FLOAT32, dtypes.FLOAT64, *dtypes.COMPLEXES):
        raise RuntimeError(
            f"linalg.{function}: float32 or float64, or complex numbers, are needed, not {x.dtype.numpy_name}"
        )
    return x


def _applied(op: str, *inputs: Tensor, outputs: int = 1, **attributes: int) -> list[Tensor]:
    values = [x.value for x in inputs]
    return [wrap(one) for one in apply_all(op, values, outputs, domain="vkml", **attributes)]


# -- factorisations ------------------------------------------------------------------------------------------


def cholesky(A: Tensor, *, upper: bool = False) -> Tensor:
    """The lower triangle L of A = L Lᴴ, or the upper one.

    Args:
        A: symmetric or Hermitian, positive definite [..., n, n]; only its lower triangle is read.
        upper: whether Lᴴ is wanted.

    Raises:
        LinAlgError: when it is computed: A is not positive definite.
    """
    [found] = _applied("Cholesky", _matrices("cholesky", A, is_square=True))
    return adjoint(found) if upper else found


def qr(A: Tensor, mode: str = "reduced") -> QR:
    """A = Q R: Q of orthonormal columns, R an upper triangle.

    Args:
        A: [..., m, n].
        mode: "reduced" has min(m, n) columns in Q, "complete" m, "r" has no Q.
    """
    if mode not in ("reduced", "complete", "r"):
        raise RuntimeError(f"linalg.qr: mode is 'reduced', 'complete' or 'r', not {mode!r}")
    q, r = _applied("QR", _matrices("qr", A), outputs=2, complete=int(mode == "complete"))
    return QR(q if mode != "r" else q.new_zeros((0,)), r)


def eigh(A: Tensor, UPLO: str = "L") -> Eigh:
    """Eigenvalues of symmetric matrices [..., n, n], ascending, and eigenvectors as columns.

    Args:
        A: symmetric or Hermitian [..., n, n]; only one triangle is read.
        UPLO: "L" for the lower one, "U" for the upper one.

    Returns:
        `eigenvalues` [..., n], real, and `eigenvectors` [..., n, n].

    Raises:
        RuntimeError: no square matrices, other types than float32, float64 and complex ones, or another
            triangle.
    """
    if UPLO not in ("L", "U"):
        raise RuntimeError(f"linalg.eigh: UPLO is 'L' or 'U', not {UPLO!r}")
    return Eigh(*_applied("EigH", _matrices("eigh", A, is_square=True), outputs=2, upper=int(UPLO == "U")))


def eigvalsh(A: Tensor, UPLO: str = "L") -> Tensor:
    """Eigenvalues of symmetric matrices [..., n, n], ascending.

    Args:
        A: symmetric or Hermitian [..., n, n]; only one triangle is read.
        UPLO: "L" for the lower one, "U" for the upper one.

    Returns:
        [..., n], real.
    """
    return eigh(A, UPLO).eigenvalues


def eig(A: Tensor) -> Eig:
    """Eigenvalues of square matrices [..., n, n], in no order, and eigenvectors as columns; all complex.

    Args:
        A: [..., n, n].

    Returns:
        `eigenvalues` [..., n] and `eigenvectors` [..., n, n].

    Raises:
        RuntimeError: no square matrices, or other types than float32, float64 and complex ones.
    """
    return Eig(*_applied("Eig", _matrices("eig", A, is_square=True), outputs=2))


def eigvals(A: Tensor) -> Tensor:
    """Eigenvalues of square matrices [..., n, n], in no order; complex.

    Args:
        A: [..., n, n].

    Returns:
        [..., n].
    """
    return eig(A).eigenvalues


def svd(A: Tensor, full_matrices: bool = True) -> SVD:
    """A = U diag(S) Vh: singular values [..., min(m, n)], descending, and orthonormal vectors.

    Args:
        A: [..., m, n].
        full_matrices: whether U and Vh have all m and n vectors, or min(m, n).
    """
    return SVD(*_applied("SVD", _matrices("svd", A), outputs=3, full=int(full_matrices)))


def svdvals(A: Tensor) -> Tensor:
    """Singular values of [..., m, n], descending.

    Args:
        A: [..., m, n].

    Returns:
        [..., min(m, n)], real.
    """
    return svd(A, False).S


# -- systems of equations ------------------------------------------------------------------------------------


def solve(A: Tensor, B: Tensor, *, left: bool = True) -> Tensor:
    """X of A X = B, or, with `left=False`, of X A = B.

    Args:
        A: [..., n, n].
        B: [..., n, k], or vectors [n] or [..., n] with the other axes of A.
        left: where A stands.

    Raises:
        LinAlgError: when it is computed: A is singular.
    """
    _matrices("solve", A, is_square=True)
    if A.dtype != B.dtype:
        raise RuntimeError(f"linalg.solve: {A.dtype.numpy_name} and {B.dtype.numpy_name} differ")
    if B.ndim == 1 or (A.ndim - 1 == B.ndim and A.shape[:-1] == B.shape):
        return squeeze(_solved(A, unsqueeze(B, -1)), -1)
    if not left:
        return transpose(_solved(transpose(A, -2, -1), transpose(B, -2, -1)), -2, -1)
    return _solved(A, B)


def _solved(A: Tensor, B: Tensor) -> Tensor:
    if A.shape[-1] != B.shape[-2]:
        raise RuntimeError(f"linalg.solve: {list(A.shape)} and {list(B.shape)} are no system of equations")
    return _applied("Solve", A, B)[0]


def solve_triangular(
    A: Tensor, B: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Tensor:
    """X of A X = B, or X A = B, of which A's triangle alone is read.

    Args:
        A: [..., n, n].
        B: [..., n, k], or [..., k, n] with `left=False`.
        upper: whether it is the upper triangle.
        left: where A stands.
        unitriangular: whether A's diagonal counts as ones.

    Raises:
        LinAlgError: when it is computed: A is singular.
    """
    whole = triu(A) if upper else tril(A)
    if unitriangular:
        on = wrap(constant(np.eye(A.shape[-1], dtype=np.bool_), dtypes.BOOL))
        whole = where(on, 1, whole)
    return solve(whole, B, left=left)


def inv(A: Tensor) -> Tensor:
    """The inverse of [..., n, n].

    Args:
        A: float32, float64 or complex numbers [..., n, n].

    Raises:
        LinAlgError: when it is computed: A is singular.
    """
    return _applied("Inverse", _matrices("inv", A, is_square=True))[0]


def det(A: Tensor) -> Tensor:
    """The determinants of [..., n, n]; their gradient needs the inverse.

    Args:
        A: float32, float64 or complex numbers [..., n, n].

    Returns:
        [...].

    Raises:
        RuntimeError: no square matrices, or other types.
    """
    return _applied("Determinant", _matrices("det", A, is_square=True))[0]


def slogdet(A: Tensor) -> SlogDet:
    """The sign of the determinants of [..., n, n], and the logarithm of their sizes.

    Args:
        A: float32, float64 or complex numbers [..., n, n].

    Returns:
        `sign` and `logabsdet`, both [...].
    """
    return SlogDet(*_applied("SlogDet", _matrices("slogdet", A, is_square=True), outputs=2))


def matrix_exp(A: Tensor) -> Tensor:
    """The exponential of [..., n, n]: the sum of Aᵏ / k!, found on the CPU.

    Args:
        A: float32, float64 or complex numbers [..., n, n].
    """
    return _applied("MatrixExponential", _matrices("matrix_exp", A, is_square=True))[0]


def householder_product(A: Tensor, tau: Tensor) -> Tensor:
    """The first n columns of H₁ … Hₖ, of reflections Hᵢ = I - τᵢ vᵢ vᵢᴴ.

    Written as I - V T Vᴴ, which is two products (T. Joffrain et al., "Accumulating Householder
    transformations, revisited", 2006).

    Args:
        A: [..., m, n]; below the diagonal of its column i is vᵢ, whose element on the diagonal is 1.
        tau: [..., k], k ≤ n ≤ m.

    Raises:
        RuntimeError: the sizes do not fit.
    """
    _matrices("householder_product", A)
    rows, columns, count = A.shape[-2], A.shape[-1], tau.shape[-1] if tau.ndim else -1
    if not 0 <= count <= columns <= rows or tuple(tau.shape[:-1]) != tuple(A.shape[:-2]):
        raise RuntimeError(
            f"linalg.householder_product: reflections {list(A.shape)} and factors {list(tau.shape)} "
            "do not fit"
        )
    v = add(tril(A[..., :count], -1), _eye(rows, count, A.dtype))
    # (diag(1 / τ) + S)⁻¹ = (I + diag(τ) S)⁻¹ diag(τ), which may have a τ of 0.
    scale = unsqueeze(tau, -1)
    across = adjoint(v)
    t = _solved(add(mul(scale, triu(matmul(across, v), 1)), _eye(count, count, A.dtype)), mul(scale, across))
    return sub(_eye(rows, columns, A.dtype), matmul(v, t[..., :columns]))


def _eye(rows: int, columns: int, dtype: DType) -> Tensor:
    return wrap(constant(np.eye(rows, columns), dtype))


def pinv(A: Tensor, rtol: float | None = None, *, hermitian: bool = False) -> Tensor:
    """The Moore-Penrose pseudoinverse of [..., m, n], by singular values.

    Args:
        A: the matrices.
        rtol: singular values up to this part of the greatest count as 0; by default max(m, n) ε.
        hermitian: whether A is symmetric; it makes no difference.
    """
    if not A.numel():
        return transpose(A, -2, -1).clone()
    u, s, vh = svd(A, False)
    limit = _limit(A, rtol)
    kept = gt(s, mul(amax(s, -1, True), limit))
    inverse = where(kept, reciprocal(where(kept, s, 1)), 0)
    return matmul(mul(adjoint(vh), unsqueeze(inverse, -2).to(A.dtype)), adjoint(u))


def _limit(A: Tensor, rtol: float | None) -> float:
    return max(A.shape[-2:]) * float(np.finfo(A.dtype.storage).eps) if rtol is None else rtol


def lstsq(A: Tensor, B: Tensor, rcond: float | None = None, *, driver: str | None = None) -> Lstsq:
    """The least-squares solution: of all X that make ‖A X - B‖ least, that of least norm.

    Args:
        A: [..., m, n].
        B: [..., m, k], or [m] beside a single A.
        rcond: singular values up to this part of the greatest count as 0.
        driver: of torch's; singular values are used whatever it is.

    Returns:
        `solution` [..., n, k]; `residuals`, sums of squares [..., k] where m > n, else none; `rank`;
        `singular_values` [..., min(m, n)].
    """
    _matrices("lstsq", A)
    if B.ndim == 1 and A.ndim == 2:
        found = lstsq(A, unsqueeze(B, -1), rcond)
        return found._replace(solution=squeeze(found.solution, -1))
    solution = matmul(pinv(A, rcond), B)
    s = svdvals(A)
    off = add(matmul(A, solution), B, alpha=-1)
    residuals = sum(mul(off, off), -2) if A.shape[-2] > A.shape[-1] else A.new_zeros((0,))
    return Lstsq(solution, residuals, matrix_rank(A, rtol=rcond), s)


def tensorinv(A: Tensor, ind: int = 2) -> Tensor:
    """The inverse of a tensor as a matrix of its first `ind` axes and the others.

    Args:
        A: of as many elements along its first `ind` axes together as along the others.
        ind: above 0.

    Returns:
        The other axes, then the first ones.

    Raises:
        RuntimeError: it is no square matrix.
    """
    if ind <= 0:
        raise RuntimeError(f"linalg.tensorinv: ind is above 0, not {ind}")
    rows, columns = math.prod(A.shape[:ind]), math.prod(A.shape[ind:])
    if rows != columns:
        raise RuntimeError(f"linalg.tensorinv: {list(A.shape)} is no square matrix with ind={ind}")
    return reshape(inv(reshape(A, rows, columns)), *A.shape[ind:], *A.shape[:ind])


def tensorsolve(A: Tensor, B: Tensor, dims: Sequence[int] | None = None) -> Tensor:
    """X of tensordot(A, X, X.ndim) = B.

    Args:
        A: of as many elements along the first `B.ndim` axes together as along the others.
        B: the shape of these.
        dims: axes of A that come last first; None: none.

    Returns:
        The other axes of A.
    """
    if dims is not None:
        A = movedim(A, list(dims), [A.ndim - len(dims) + at for at in range(len(dims))])
    shape = A.shape[B.ndim :]
    found = solve(reshape(A, B.numel(), math.prod(shape)), reshape(B, -1))
    return reshape(found, *shape)


# -- norms ---------------------------------------------------------------------------------------------------


def vector_norm(
    x: Tensor, ord: float = 2, dim: int | Sequence[int] | None = None, keepdim: bool = False, *,
    dtype: DType | None = None,
) -> Tensor:  # fmt: skip
    """The norm of vectors along axes, of all elements where none are named: (Σ |x|ᵖ)^(1/p).

    Args:
        x: floats or complex numbers.
        ord: p: any number, or ±inf; 0 counts what is not 0.
        dim: an axis, or several; None: all.
        keepdim: whether these axes stay, with one element.
        dtype: a type that `x` is converted to first.

    Raises:
        RuntimeError: of integers.
    """
    if not (dtype or x.dtype).is_inexact:
        raise RuntimeError(
            f"linalg.vector_norm: floats or complex numbers are needed, not {x.dtype.numpy_name}"
        )
    return _norm(x if dtype is None else x.to(dtype), ord, dim, keepdim)


def matrix_norm(
    A: Tensor, ord: Any = "fro", dim: Sequence[int] = (-2, -1), keepdim: bool = False, *,
    dtype: DType | None = None,
) -> Tensor:  # fmt: skip
    """The norm of matrices: "fro", "nuc", ±inf (rows' sums), ±1 (columns') or ±2 (singular values).

    Args:
        A: at least two axes.
        ord: which norm.
        dim: the axes of rows and columns.
        keepdim: whether these axes stay, with one element.
        dtype: a type that `A` is converted to first.

    Raises:
        RuntimeError: fewer than two axes, one axis twice, or another norm.
    """
    if A.ndim < 2:
        raise RuntimeError(f"linalg.matrix_norm: a matrix has at least two axes, this tensor has {A.ndim}")
    given = A if dtype is None else A.to(dtype)
    first, second = (axis_of(axis, A.ndim) for axis in dim)
    if first == second:
        raise RuntimeError("linalg.matrix_norm needs two different axes")
    if ord == "fro":
        return vector_norm(given, 2, (first, second), keepdim)
    whole = movedim(given, (first, second), (-2, -1))
    if ord in ("nuc", 2, -2):
        s = svdvals(whole)
        found = sum(s, -1) if ord == "nuc" else (amax if ord > 0 else amin)(s, -1)
    elif ord in (1, -1, math.inf, -math.inf):
        totals = sum(abs_of(whole), -2 if abs(ord) == 1 else -1)
        found = (amax if ord > 0 else amin)(totals, -1)
    else:
        raise RuntimeError(f"linalg.matrix_norm: ord={ord!r} is not known")
    if keepdim:
        low, high = sorted((first, second))
        found = unsqueeze(unsqueeze(found, low), high)
    return found


def norm(
    A: Tensor, ord: Any = None, dim: int | Sequence[int] | None = None, keepdim: bool = False, *,
    dtype: DType | None = None,
) -> Tensor:  # fmt: skip
    """The norm of vectors or matrices, by how many axes are named; see `vector_norm` and `matrix_norm`.

    Args:
        A: floats or complex numbers.
        ord: which norm; None: the root of the sum of all squares.
        dim: an axis for vectors, two for matrices; None: all.
        keepdim: whether these axes stay, with one element.
        dtype: a type that `A` is converted to first.

    Raises:
        RuntimeError: the norm is not one for so many axes.
    """
    if ord is None:
        flat = A if dim is not None or A.ndim == 1 else reshape(A, -1)
        found = vector_norm(
            flat, 2, dim if dim is not None else None, keepdim and dim is not None, dtype=dtype
        )
        return reshape(found, *[1] * A.ndim) if keepdim and dim is None else found
    axes = tuple(range(A.ndim)) if dim is None else (dim,) if isinstance(dim, int) else tuple(dim)
    if len(axes) == 2 and (dim is None or not isinstance(dim, int)):
        return matrix_norm(A, ord, axes, keepdim, dtype=dtype)
    if len(axes) != 1 or isinstance(ord, str):
        raise RuntimeError(f"linalg.norm: ord={ord!r} of {len(axes)} axes")
    return vector_norm(A, ord, axes, keepdim, dtype=dtype)


def cond(A: Tensor, p: Any = None) -> Tensor:
    """The condition number: by how much a solution of A x = b may grow what is wrong in b.

    Args:
        A: [..., m, n]; square unless `p` is 2 or -2.
        p: the norm of both A and its inverse, as for `matrix_norm`; None: 2.
    """
    if p in (None, 2, -2):
        s = svdvals(A)
        most, least = amax(s, -1), amin(s, -1)
        return div(least, most) if p == -2 else div(most, least)
    return mul(matrix_norm(A, p), matrix_norm(inv(A), p))


def matrix_rank(
    A: Tensor, *, atol: float | None = None, rtol: float | None = None, hermitian: bool = False
) -> Tensor:
    """How many singular values are above max(atol, rtol · the greatest); by default max(m, n) ε of it.

    Args:
        A: float32, float64 or complex numbers [..., m, n].
        atol: the least that counts.
        rtol: the least that counts, as a part of the greatest singular value.
        hermitian: whether A is symmetric; it makes no difference.

    Returns:
        int64 [...].
    """
    if not A.numel():
        return count_nonzero(A, (-2, -1))
    s = svdvals(_matrices("matrix_rank", A))
    part = _limit(A, rtol) if rtol is not None or not atol else 0.0
    limit = mul(amax(s, -1, True), part)
    if atol is not None:
        limit = maximum(limit, limit * 0 + atol)
    return count_nonzero(gt(s, limit), -1)


# -- others --------------------------------------------------------------------------------------------------


def cross(x: Tensor, y: Tensor, *, dim: int = -1) -> Tensor:
    """The vector product along an axis of three elements.

    Args:
        x: three elements along the axis.
        y: likewise; broadcast with `x`.
        dim: the axis.

    Raises:
        RuntimeError: the axis has not three elements.
    """
    return _cross(x, y, dim)


def vander(x: Tensor, *, N: int | None = None) -> Tensor:
    """Powers of each element, from 0 on, along a new last axis.

    Args:
        x: [..., n].
        N: how many powers; as many as elements where left out.

    Returns:
        [..., n, N].
    """
    return powers(x, N, increasing=True)


def cholesky_ex(A: Tensor, *, upper: bool = False, check_errors: bool = False) -> tuple[Tensor, Tensor]:
    """`cholesky`, and a 0 for each matrix: what has no factor raises when it is computed.

    Args:
        A: as for `cholesky`.
        upper: whether Lᴴ is wanted.
        check_errors: accepted; it makes no difference.
    """
    return cholesky(A, upper=upper), A.new_zeros(A.shape[:-2], dtype=dtypes.INT32)


def inv_ex(A: Tensor, *, check_errors: bool = False) -> tuple[Tensor, Tensor]:
    """`inv`, and a 0 for each matrix: what is singular raises when it is computed.

    Args:
        A: as for `inv`.
        check_errors: accepted; it makes no difference.
    """
    return inv(A), A.new_zeros(A.shape[:-2], dtype=dtypes.INT32)


_saving.apply_saving(globals(), "linalg.")
