"""The exponential of matrices, through NumPy: no kernel does it, its gradient is one of twice the size."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vkml.errors import ShapeError
from vkml.ir.dtypes import COMPLEXES, FLOAT32, FLOAT64
from vkml.ir.gradients import Emitter, T, conjugate, sliced, transposed, zeros
from vkml.ir.graph import Node
from vkml.ir.operator import Array, Operator, operator
from vkml.ir.types import Known, TensorType
from vkml.ops.checks import present, require_dtype, require_rank, required

_PADE = (
    64764752532480000.0, 32382376266240000.0, 7771770303897600.0, 1187353796428800.0, 129060195264000.0,
    10559470521600.0, 670442572800.0, 33522128640.0, 1323241920.0, 40840800.0, 960960.0, 16380.0, 182.0, 1.0,
)  # fmt: skip
"""Coefficients of the approximant of degree 13, from the lowest power on (Higham, 2005)."""
_LARGEST = 5.371920351148152
"""The 1-norm up to which that is exact to float64's rounding."""


def matrix_exponential(x: Array) -> Array:
    """exp of matrices [..., n, n]: powers of two are taken out, the rest is a quotient of polynomials.

    Source: N. Higham, "The scaling and squaring method for the matrix exponential revisited", 2005.
    """
    if not x.size:
        return x.copy()
    a = x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)
    norms = np.abs(a).sum(-2).max(-1)
    finite = np.isfinite(norms)
    a = np.where(finite[..., None, None], a, 0.0)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        halvings = np.where(finite, np.maximum(np.ceil(np.log2(norms / _LARGEST)), 0), 0).astype(int)
        a = a * np.ldexp(1.0, -halvings)[..., None, None]
        b, one = _PADE, np.eye(x.shape[-1])
        a2 = a @ a
        a4 = a2 @ a2
        a6 = a2 @ a4
        odd = a6 @ (b[13] * a6 + b[11] * a4 + b[9] * a2) + b[7] * a6 + b[5] * a4 + b[3] * a2 + b[1] * one
        odd = a @ odd
        even = a6 @ (b[12] * a6 + b[10] * a4 + b[8] * a2) + b[6] * a6 + b[4] * a4 + b[2] * a2 + b[0] * one
        found = np.linalg.solve(even - odd, even + odd)
        for number in range(int(halvings.max())):
            found = np.where((number < halvings)[..., None, None], found @ found, found)
        return np.where(finite[..., None, None], found, np.nan).astype(x.dtype)


@operator("MatrixExponential")
class MatrixExponential(Operator):
    """exp of matrices [..., n, n]; NaN where one holds what is not finite."""

    domain = "vkml"

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x = required(node, inputs, 0)
        require_dtype(node, x, (FLOAT32, FLOAT64, *COMPLEXES), "the matrix")
        require_rank(node, x, 2)
        if x.dims[-1] != x.dims[-2]:
            raise ShapeError(f"{node.label}: a square matrix is needed, the shape is {list(x.dims)}")
        return [x.type]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        return [matrix_exponential(present(inputs, 0))]

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        """The upper right block of exp [[Xᴴ, G], [0, Xᴴ]] (R. Mathias, 1996)."""
        x, cotangent = present(inputs, 0), present(cotangents, 0)
        type_ = build.type_of(x)
        rank, size = type_.rank, type_.dims[-1]
        across = conjugate(build, transposed(build, x, [*range(rank - 2), rank - 1, rank - 2]))
        above = build.apply("Concat", across, cotangent, axis=rank - 1)
        below = build.apply("Concat", zeros(build, type_), across, axis=rank - 1)
        whole = build.apply("Concat", above, below, axis=rank - 2)
        found = build.apply("MatrixExponential", whole, domain="vkml")
        return [sliced(build, sliced(build, found, rank - 2, 0, size), rank - 1, size, 2 * size)]
