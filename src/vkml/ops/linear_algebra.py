"""Factorisations of matrices by LAPACK, through NumPy: no kernel does them; their gradients are products."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from vkml.errors import LinAlgError, NotDifferentiable, ShapeError
from vkml.ir.dtypes import BOOL, COMPLEXES, FLOAT32, FLOAT64, FLOATS, DType, complex_of, real_of
from vkml.ir.gradients import (
    Emitter,
    T,
    conjugate,
    converted,
    expanded,
    pointwise,
    reshaped,
    sliced,
    sum_to,
    transposed,
)
from vkml.ir.gradients import widened as widened_value
from vkml.ir.graph import Node
from vkml.ir.operator import Array, Operator, operator
from vkml.ir.scalar import Scalar
from vkml.ir.types import Known, TensorType, static
from vkml.ops.checks import present, require_dtype, require_rank, required
from vkml.ops.pointwise import widened


def _matrix(
    node: Node,
    inputs: Sequence[Known | None],
    *,
    is_square: bool,
    allowed: Sequence[DType] = (FLOAT32, FLOAT64, *COMPLEXES),
) -> Known:
    x = required(node, inputs, 0)
    require_dtype(node, x, allowed, "the matrix")
    require_rank(node, x, 2)
    if is_square and x.dims[-1] != x.dims[-2]:
        raise ShapeError(f"{node.label}: a square matrix is needed, the shape is {list(x.dims)}")
    return x


def _computed(node: Node, function: Callable[..., Any], *arrays: Array) -> Any:
    """LAPACK's result.

    Raises:
        LinAlgError: there is none, as for a singular matrix.
    """
    try:
        with np.errstate(all="ignore"):
            return function(*arrays)
    except np.linalg.LinAlgError as error:
        text = str(error)
        raise LinAlgError(
            f"{node.label}: {text[:1].lower()}{text[1:]}, of shape {list(arrays[0].shape)}"
        ) from None


def _swapped(build: Emitter[T], x: T) -> T:
    rank = build.type_of(x).rank
    return transposed(build, x, [*range(rank - 2), rank - 1, rank - 2])


def _adjoint(build: Emitter[T], x: T) -> T:
    return conjugate(build, _swapped(build, x))


def _alike(build: Emitter[T], x: T, like: T) -> T:
    """Real numbers as complex ones, where others are."""
    return converted(build, x, build.type_of(like).dtype)


def _with_real_diagonal(build: Emitter[T], x: T, is_diagonal: Array) -> T:
    if not build.type_of(x).dtype.is_complex:
        return x
    return _choose(build, is_diagonal, _alike(build, build.apply("Real", x, domain="vkml"), x), x)


def _product(build: Emitter[T], x: T, y: T) -> T:
    return build.apply("MatMul", x, y)


def _solved(build: Emitter[T], a: T, b: T) -> T:
    return build.apply("Solve", a, b, domain="vkml")


def _column(build: Emitter[T], x: T, axis: int) -> T:
    """With an axis of one element more, in the place of an axis from the end."""
    dims = [*build.type_of(x).dims]
    dims.insert(len(dims) + 1 + axis, 1)
    return reshaped(build, x, dims)


def _choose(build: Emitter[T], mask: Array, x: T, y: T) -> T:
    return build.apply("Where", build.constant(mask, BOOL), x, y)


def _zero(build: Emitter[T], like: T) -> T:
    return build.constant(0, build.type_of(like).dtype)


def _half(build: Emitter[T], x: T) -> T:
    return build.apply("Mul", x, build.constant(0.5, build.type_of(x).dtype))


@operator("Solve")
class Solve(Operator):
    """X of A X = B: A [..., n, n], B [..., n, k], broadcast."""

    domain = "vkml"
    inputs = (2, 2)

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        a, b = _matrix(node, inputs, is_square=True), required(node, inputs, 1)
        require_rank(node, b, 2)
        if b.dtype != a.dtype or b.dims[-2] != a.dims[-1]:
            raise ShapeError(
                f"{node.label}: {a.dtype}{list(a.dims)} and {b.dtype}{list(b.dims)} are no equations"
            )
        batch = np.broadcast_shapes(a.dims[:-2], b.dims[:-2])
        return [static(a.dtype, (*batch, *b.dims[-2:]))]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        a, b = present(inputs, 0), present(inputs, 1)
        return [np.asarray(_computed(node, np.linalg.solve, a, b), a.dtype)]

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        a, b = present(inputs, 0), present(inputs, 1)
        by_b = _solved(build, _adjoint(build, a), present(cotangents, 0))
        made: list[T | None] = [None, sum_to(build, by_b, build.type_of(b).dims) if needed[1] else None]
        if needed[0]:
            by_a = build.apply("Neg", _product(build, by_b, _adjoint(build, outputs[0])))
            made[0] = sum_to(build, by_a, build.type_of(a).dims)
        return made


@operator("Inverse")
class Inverse(Operator):
    """The inverse of matrices [..., n, n]."""

    domain = "vkml"

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        return [_matrix(node, inputs, is_square=True).type]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        return [np.asarray(_computed(node, np.linalg.inv, present(inputs, 0)))]

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        across = _adjoint(build, outputs[0])
        return [build.apply("Neg", _product(build, _product(build, across, present(cotangents, 0)), across))]


@operator("SlogDet")
class SlogDet(Operator):
    """The sign of the determinants of [..., n, n] and the logarithm of their sizes."""

    domain = "vkml"
    outputs = (2, 2)

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x = _matrix(node, inputs, is_square=True)
        return [static(x.dtype, x.dims[:-2]), static(real_of(x.dtype), x.dims[:-2])]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x = present(inputs, 0)
        sign, size = _computed(node, np.linalg.slogdet, x)
        return [np.asarray(sign, x.dtype), np.asarray(size, x.real.dtype)]

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        x = present(inputs, 0)
        weight = None if cotangents[1] is None else _alike(build, cotangents[1], x)
        if cotangents[0] is not None and build.type_of(x).dtype.is_complex:
            # The sign turns by the imaginary part of what the logarithm changes by.
            turned = build.apply("Mul", conjugate(build, cotangents[0]), outputs[0])
            turn = _alike(build, build.apply("Imag", turned, domain="vkml"), x)
            turn = build.apply("Mul", turn, build.constant(-1j, build.type_of(x).dtype))
            weight = turn if weight is None else build.apply("Add", weight, turn)
        if weight is None:
            return [None]
        weight = _column(build, _column(build, weight, -1), -1)
        inverse = build.apply("Inverse", x, domain="vkml")
        return [build.apply("Mul", weight, _adjoint(build, inverse))]


@operator("Determinant")
class Determinant(Operator):
    """The determinants of matrices [..., n, n]."""

    domain = "vkml"

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x = _matrix(node, inputs, is_square=True)
        return [static(x.dtype, x.dims[:-2])]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x = present(inputs, 0)
        return [np.asarray(_computed(node, np.linalg.det, x), x.dtype)]

    def steps(self, build: Emitter[T], node: Node, inputs: Sequence[T | None]) -> Sequence[T] | None:
        x = present(inputs, 0)
        type_ = build.type_of(x)
        *outer, _, size = type_.dims
        if type_.dtype.is_complex or not 1 <= size <= _EXPANDED:
            return None
        flat = reshaped(build, x, [*outer, size * size])
        cells = [
            reshaped(build, sliced(build, flat, len(outer), at, at + 1), outer) for at in range(size * size)
        ]
        return [pointwise(build, lambda *found: _by_minors(found, size), *cells)]

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        scale = build.apply("Mul", present(cotangents, 0), conjugate(build, outputs[0]))
        inverse = build.apply("Inverse", present(inputs, 0), domain="vkml")
        weight = _column(build, _column(build, scale, -1), -1)
        return [build.apply("Mul", weight, _adjoint(build, inverse))]


_EXPANDED = 3
"""Rows up to which a determinant is a sum of few products; of more rows, LAPACK eliminates."""


def _by_minors(cells: Sequence[Scalar], size: int) -> Scalar:
    """The determinant of a matrix whose elements are given row by row, by those of smaller ones."""
    if size == 1:
        return cells[0]
    rows = [cells[at : at + size] for at in range(size, len(cells), size)]
    made: Scalar | None = None
    for column in range(size):
        minor = [row[at] for row in rows for at in range(size) if at != column]
        term = cells[column] * _by_minors(minor, size - 1)
        made = term if made is None else made - term if column % 2 else made + term
    assert made is not None
    return made


@operator("Det")
class Det(Determinant):
    """The determinants of matrices [..., n, n] of floats, by LU with pivoting."""

    domain = ""

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x = _matrix(node, inputs, is_square=True, allowed=FLOATS)
        return [static(x.dtype, x.dims[:-2])]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x = present(inputs, 0)
        return [np.asarray(_computed(node, np.linalg.det, widened(x))).astype(x.dtype)]

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        x = present(inputs, 0)
        values = [widened_value(build, found) for found in (x, outputs[0], present(cotangents, 0))]
        made = super().vjp(build, node, values[:1], values[1:2], values[2:], needed)
        return [converted(build, present(made, 0), build.type_of(x).dtype)]


@operator("Cholesky")
class Cholesky(Operator):
    """The lower triangles L of matrices L Lᵀ, symmetric and positive definite."""

    domain = "vkml"

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        return [_matrix(node, inputs, is_square=True).type]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        return [np.asarray(_computed(node, np.linalg.cholesky, present(inputs, 0)))]

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        """I. Murray, "Differentiation of the Cholesky decomposition", 2016."""
        factor = outputs[0]
        across = _adjoint(build, factor)
        inner = _product(build, across, present(cotangents, 0))
        size = build.type_of(factor).dims[-1]
        lower = _choose(build, np.tri(size, dtype=np.bool_), inner, _zero(build, inner))
        halved = _choose(build, np.eye(size, dtype=np.bool_), _half(build, lower), lower)
        found = _adjoint(build, _solved(build, across, halved))
        found = _solved(build, across, found)
        return [_half(build, build.apply("Add", found, _adjoint(build, found)))]


@operator("QR")
class QR(Operator):
    """Q R of matrices [..., m, n]: Q of orthonormal columns, min(m, n) of them or, ``complete``, m."""

    domain = "vkml"
    outputs = (2, 2)
    attributes = {"complete": 0}

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x = _matrix(node, inputs, is_square=False)
        rows, columns = x.dims[-2:]
        inner = rows if node.attributes["complete"] else min(rows, columns)
        batch = x.dims[:-2]
        return [static(x.dtype, (*batch, rows, inner)), static(x.dtype, (*batch, inner, columns))]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        mode: Literal["complete", "reduced"] = "complete" if node.attributes["complete"] else "reduced"
        found = _computed(node, lambda x: np.linalg.qr(x, mode), present(inputs, 0))
        return [np.asarray(part) for part in found]

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        """S. Walter, "Structured higher-order algorithmic differentiation …", 2012."""
        q, r = outputs
        rows, columns = build.type_of(present(inputs, 0)).dims[-2:]
        if rows < columns or (node.attributes["complete"] and rows != columns):
            raise NotDifferentiable("of matrices of fewer rows than columns, or with all columns of Q")
        by_q, by_r = cotangents
        size = build.type_of(r).dims[-1]
        parts = []
        if by_r is not None:
            parts.append(_product(build, r, _adjoint(build, by_r)))
        if by_q is not None:
            parts.append(build.apply("Neg", _product(build, _adjoint(build, by_q), q)))
        inner = parts[0] if len(parts) == 1 else build.apply("Add", *parts)
        lower = _choose(build, np.tri(size, dtype=np.bool_), inner, _adjoint(build, inner))
        lower = _with_real_diagonal(build, lower, np.eye(size, dtype=np.bool_))
        outer = _product(build, q, lower)
        if by_q is not None:
            outer = build.apply("Add", outer, by_q)
        return [_adjoint(build, _solved(build, r, _adjoint(build, outer)))]


@operator("EigH")
class EigH(Operator):
    """Eigenvalues of symmetric matrices [..., n, n], ascending, and eigenvectors as columns."""

    domain = "vkml"
    outputs = (2, 2)
    attributes = {"upper": 0}

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x = _matrix(node, inputs, is_square=True)
        return [static(real_of(x.dtype), x.dims[:-1]), x.type]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        part: Literal["U", "L"] = "U" if node.attributes["upper"] else "L"
        found = _computed(node, lambda x: np.linalg.eigh(x, part), present(inputs, 0))
        return [np.asarray(one) for one in found]

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        """M. Giles, "Collected matrix derivative results for forward and reverse mode", 2008, section 3.1."""
        values, vectors = outputs
        by_values, by_vectors = cotangents
        dims = build.type_of(vectors).dims
        is_diagonal = np.eye(dims[-1], dtype=np.bool_)
        across = _adjoint(build, vectors)
        inner = expanded(build, _zero(build, vectors), dims)
        if by_vectors is not None:
            apart = build.apply("Sub", _column(build, values, -2), _column(build, values, -1))
            one = build.constant(1, build.type_of(values).dtype)
            apart = _alike(build, _choose(build, is_diagonal, one, apart), vectors)
            inner = build.apply("Div", _product(build, across, by_vectors), apart)
        zero = _zero(build, vectors)
        diagonal = zero if by_values is None else _alike(build, _column(build, by_values, -1), vectors)
        inner = _choose(build, is_diagonal, diagonal, inner)
        found = _product(build, _product(build, vectors, inner), across)
        return [_half(build, build.apply("Add", found, _adjoint(build, found)))]


@operator("Eig")
class Eig(Operator):
    """Eigenvalues of square matrices [..., n, n], in no order, and eigenvectors as columns: both complex."""

    domain = "vkml"
    outputs = (2, 2)

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x = _matrix(node, inputs, is_square=True)
        kind = complex_of(x.dtype)
        return [static(kind, x.dims[:-1]), static(kind, x.dims)]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x = present(inputs, 0)
        found = _computed(node, np.linalg.eig, x)
        # Real where all eigenvalues are.
        return [np.asarray(part).astype(np.result_type(x.dtype, np.complex64)) for part in found]

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        """Of vectors of length 1, as LAPACK's: what turns them in the complex plane counts for nothing.

        C. Boeddeker, P. Hanebrink et al., "On the computation of complex-valued gradients with application to
        statistically optimum beamforming", 2017, section 4.
        """
        values, vectors = outputs
        by_values, by_vectors = cotangents
        dims = build.type_of(vectors).dims
        dtype = build.type_of(vectors).dtype
        is_diagonal = np.eye(dims[-1], dtype=np.bool_)
        across = _adjoint(build, vectors)
        inner = expanded(build, _zero(build, vectors), dims)
        if by_vectors is not None:
            turned = _product(build, across, by_vectors)
            kept = _choose(build, is_diagonal, turned, _zero(build, turned))
            kept = converted(build, build.apply("Real", kept, domain="vkml"), dtype)
            turned = build.apply("Sub", turned, _product(build, _product(build, across, vectors), kept))
            apart = build.apply("Sub", _column(build, values, -2), _column(build, values, -1))
            apart = _choose(build, is_diagonal, build.constant(1, dtype), conjugate(build, apart))
            inner = build.apply("Div", turned, apart)
        diagonal = _zero(build, vectors) if by_values is None else _column(build, by_values, -1)
        inner = _choose(build, is_diagonal, diagonal, inner)
        found = _solved(build, across, _product(build, inner, across))
        return [converted(build, found, build.type_of(present(inputs, 0)).dtype)]


@operator("SVD")
class SVD(Operator):
    """U, S and Vᵀ of matrices [..., m, n]: singular values descending, and orthonormal vectors.

    There are min(m, n) vectors, or, ``full``, m and n.
    """

    domain = "vkml"
    outputs = (3, 3)
    attributes = {"full": 0}

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x = _matrix(node, inputs, is_square=False)
        rows, columns = x.dims[-2:]
        least, batch = min(rows, columns), x.dims[:-2]
        left, right = (rows, columns) if node.attributes["full"] else (least, least)
        return [
            static(x.dtype, (*batch, rows, left)),
            static(real_of(x.dtype), (*batch, least)),
            static(x.dtype, (*batch, right, columns)),
        ]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        full = bool(node.attributes["full"])
        return [
            np.asarray(part) for part in _computed(node, lambda x: np.linalg.svd(x, full), present(inputs, 0))
        ]

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        """J. Townsend, "Differentiating the singular value decomposition", 2016.

        Of complex matrices with the term for the phases of the vectors, which the results that are
        differentiated must not hang on (Z. Wan and S. Zhang, "Automatic differentiation for complex valued
        SVD", 2019).
        """
        u, s, vh = outputs
        by_u, by_s, by_vh = cotangents
        rows, columns = build.type_of(present(inputs, 0)).dims[-2:]
        if node.attributes["full"] and rows != columns and (by_u is not None or by_vh is not None):
            raise NotDifferentiable("by all singular vectors of a matrix that is not square")
        if node.attributes["full"]:
            u, s, vh = build.apply_all("SVD", [present(inputs, 0)], 3, domain="vkml", full=0)
        size = build.type_of(s).dims[-1]
        is_diagonal = np.eye(size, dtype=np.bool_)
        is_complex = build.type_of(u).dtype.is_complex
        s = _alike(build, s, u)
        dtype: DType = build.type_of(s).dtype
        right, across = _column(build, s, -2), _column(build, s, -1)
        squares = build.apply("Mul", build.apply("Sub", right, across), build.apply("Add", right, across))
        apart = _choose(build, is_diagonal, build.constant(1, dtype), squares)
        diagonal = _zero(build, s) if by_s is None else _alike(build, _column(build, by_s, -1), s)
        dims = build.type_of(apart).dims
        inner = _choose(build, is_diagonal, diagonal, expanded(build, _zero(build, s), dims))
        v = _adjoint(build, vh)
        if by_u is not None:
            turned = _product(build, _adjoint(build, u), by_u)
            skew = build.apply("Div", build.apply("Sub", turned, _adjoint(build, turned)), apart)
            inner = build.apply("Add", inner, build.apply("Mul", skew, right))
            if is_complex:
                phases = _choose(
                    build, is_diagonal, _half(build, build.apply("Div", skew, right)), _zero(build, s)
                )
                inner = build.apply("Add", inner, phases)
        by_v = None if by_vh is None else _adjoint(build, by_vh)
        if by_v is not None:
            turned = _product(build, vh, by_v)
            skew = build.apply("Div", build.apply("Sub", turned, _adjoint(build, turned)), apart)
            inner = build.apply("Add", inner, build.apply("Mul", across, skew))
        found = _product(build, _product(build, u, inner), vh)
        if by_u is not None and rows > size:
            scaled = build.apply("Div", by_u, right)
            rest = build.apply("Sub", scaled, _product(build, u, _product(build, _adjoint(build, u), scaled)))
            found = build.apply("Add", found, _product(build, rest, vh))
        if by_v is not None and columns > size:
            scaled = build.apply("Div", by_v, right)
            rest = build.apply("Sub", scaled, _product(build, v, _product(build, vh, scaled)))
            found = build.apply("Add", found, _product(build, u, _adjoint(build, rest)))
        return [found]
