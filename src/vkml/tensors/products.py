"""Products of matrices, vectors and tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from vkml.errors import ModelError
from vkml.ir.gradients import expanded
from vkml.tensors.arranging import broadcast_shapes, roll
from vkml.tensors.complex import conj
from vkml.tensors.elementwise import add, mul, sub
from vkml.tensors.operands import axis_of, wrap
from vkml.tensors.promotion import result_type
from vkml.tensors.reductions import norm, sum
from vkml.tensors.shapes import broadcast_to, permute, reshape, unsqueeze
from vkml.tracing import EMITTER, apply, constant

if TYPE_CHECKING:
    from vkml.tensors.tensor import Tensor


def matmul(x: Tensor, other: Tensor) -> Tensor:
    """The product of matrices, batches of them, or vectors.

    Args:
        x: [..., n, k], or [k].
        other: [..., k, m], or [k]; of the same type, batches broadcast.

    Returns:
        [..., n, m], without the axes that a vector lacks.

    Raises:
        RuntimeError: the shapes or types do not fit each other.
    """
    if not x.ndim or not other.ndim:
        raise RuntimeError("both factors of a matrix product need at least one axis")
    if x.shape[-1] != other.shape[-2 if other.ndim > 1 else 0]:
        raise RuntimeError(f"the shapes {list(x.shape)} and {list(other.shape)} cannot be multiplied")
    if x.dtype != other.dtype:
        found = f"{x.dtype.numpy_name} and {other.dtype.numpy_name}"
        raise RuntimeError(f"factors of a matrix product have one type, not {found}")
    return wrap(apply("MatMul", x.value, other.value))


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x Wᵀ + b.

    Args:
        x: [..., inputs].
        weight: [outputs, inputs].
        bias: [outputs].
    """
    if x.shape[-1] != weight.shape[-1]:
        raise RuntimeError(
            f"linear: the input has {x.shape[-1]} features, the weight {list(weight.shape)} takes "
            f"{weight.shape[-1]}"
        )
    if x.ndim == 2:
        given = [x.value, weight.value] + ([] if bias is None else [bias.value])
        return wrap(apply("Gemm", *given, transB=1))
    found = apply("MatMul", x.value, apply("Transpose", weight.value, perm=(1, 0)))
    return wrap(found if bias is None else apply("Add", found, bias.value))


def mm(x: Tensor, mat2: Tensor) -> Tensor:
    """The product of two matrices.

    Args:
        x: [n, k].
        mat2: [k, m], of the same type.

    Returns:
        [n, m].

    Raises:
        RuntimeError: the shapes or types do not fit each other.
    """
    return matmul(_of_rank("mm", x, 2), _of_rank("mm", mat2, 2))


def bmm(x: Tensor, mat2: Tensor) -> Tensor:
    """The products of a batch of matrices with another.

    Args:
        x: [batch, n, k].
        mat2: [batch, k, m], of the same type.

    Returns:
        [batch, n, m].

    Raises:
        RuntimeError: the shapes or types do not fit each other.
    """
    if x.ndim == mat2.ndim == 3 and x.shape[0] != mat2.shape[0]:
        raise RuntimeError(f"bmm: batches of {x.shape[0]} and {mat2.shape[0]} matrices")
    return matmul(_of_rank("bmm", x, 3), _of_rank("bmm", mat2, 3))


def mv(x: Tensor, vec: Tensor) -> Tensor:
    """The product of a matrix and a vector.

    Args:
        x: [n, k].
        vec: [k], of the same type.

    Returns:
        [n].

    Raises:
        RuntimeError: the shapes or types do not fit each other.
    """
    return matmul(_of_rank("mv", x, 2), _of_rank("mv", vec, 1))


def dot(x: Tensor, tensor: Tensor) -> Tensor:
    """The sum of the products of two vectors' elements.

    Args:
        x: [k].
        tensor: [k], of the same type.

    Returns:
        One number, without axes.

    Raises:
        RuntimeError: the shapes or types do not fit each other.
    """
    return matmul(_of_rank("dot", x, 1), _of_rank("dot", tensor, 1))


def vdot(x: Tensor, other: Tensor) -> Tensor:
    """`dot` of the conjugate of the first.

    Args:
        x: [k].
        other: [k], of the same type.

    Returns:
        One number, without axes.

    Raises:
        RuntimeError: the shapes or types do not fit each other.
    """
    return dot(conj(x), other)


def inner(x: Tensor, other: Tensor) -> Tensor:
    """The sums of products over the last axes of both.

    Args:
        x: [..., k], or one number.
        other: [..., k], of the same type, or one number.

    Returns:
        The axes of `x` but the last, then those of `other` but the last.

    Raises:
        RuntimeError: the last axes differ.
    """
    if not x.ndim or not other.ndim:
        return mul(x, other)
    if x.shape[-1] != other.shape[-1]:
        raise RuntimeError(f"inner: the last axes of {list(x.shape)} and {list(other.shape)} differ")
    return tensordot(x, other, ([-1], [-1]))


def outer(x: Tensor, vec2: Tensor) -> Tensor:
    """The products of each element of a vector with each of another.

    Args:
        x: [n].
        vec2: [m].

    Returns:
        [n, m].

    Raises:
        RuntimeError: they are no vectors.
    """
    return mul(reshape(_of_rank("outer", x, 1), -1, 1), _of_rank("outer", vec2, 1))


def _of_rank(function: str, x: Tensor, rank: int) -> Tensor:
    if x.ndim != rank:
        raise RuntimeError(f"{function} takes tensors of {rank} axes, this has {x.ndim}")
    return x


def _weighed(input: Tensor, product: Tensor, beta: float, alpha: float) -> Tensor:
    """beta · input + alpha · product; a beta of 0 leaves NaN of the input out."""
    scaled = product if alpha == 1 else mul(product, alpha)
    if beta == 0:
        return scaled
    return add(input if beta == 1 else mul(input, beta), scaled)


def addmm(input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """`beta` · `input` + `alpha` · `mat1` `mat2`.

    Args:
        input: broadcast with the product; left out where `beta` is 0.
        mat1: [n, k].
        mat2: [k, m].
        beta: a factor.
        alpha: a factor.

    Returns:
        [n, m].
    """
    return _weighed(input, mm(mat1, mat2), beta, alpha)


def addmv(input: Tensor, mat: Tensor, vec: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """`beta` · `input` + `alpha` · `mat` `vec`.

    Args:
        input: broadcast with the product; left out where `beta` is 0.
        mat: [n, k].
        vec: [k].
        beta: a factor.
        alpha: a factor.

    Returns:
        [n].
    """
    return _weighed(input, mv(mat, vec), beta, alpha)


def addr(input: Tensor, vec1: Tensor, vec2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """`beta` · `input` + `alpha` · the outer product of two vectors.

    Args:
        input: broadcast with the product; left out where `beta` is 0.
        vec1: [n].
        vec2: [m].
        beta: a factor.
        alpha: a factor.

    Returns:
        [n, m].
    """
    return _weighed(input, outer(vec1, vec2), beta, alpha)


def baddbmm(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """`beta` · `input` + `alpha` · the products of batches of matrices.

    Args:
        input: broadcast with the products; left out where `beta` is 0.
        batch1: [batch, n, k].
        batch2: [batch, k, m].
        beta: a factor.
        alpha: a factor.

    Returns:
        [batch, n, m].
    """
    return _weighed(input, bmm(batch1, batch2), beta, alpha)


def addbmm(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """`beta` · `input` + `alpha` · the sum of the products of a batch of matrices with another.

    Args:
        input: broadcast with the sum; left out where `beta` is 0.
        batch1: [batch, n, k].
        batch2: [batch, k, m].
        beta: a factor.
        alpha: a factor.

    Returns:
        [n, m].
    """
    return _weighed(input, sum(bmm(batch1, batch2), 0), beta, alpha)


def einsum(equation: str, *operands: Any) -> Tensor:
    """Sums of products by Einstein's notation, as in ``"bij,bjk->bik"``.

    Args:
        equation: a letter for each axis of each operand; those that are not behind the arrow are summed over.
        *operands: of one type; one by one or as one sequence.

    Raises:
        RuntimeError: types differ, or the equation does not fit the shapes.
    """
    many = operands[0] if len(operands) == 1 and isinstance(operands[0], tuple | list) else operands
    kind = result_type(*many)
    if any(x.dtype != kind for x in many):
        raise RuntimeError("einsum: the operands have different types")
    try:
        return wrap(apply("Einsum", *(x.value for x in many), equation=equation))
    except ModelError as error:
        raise RuntimeError(str(error)) from None


def tensordot(x: Tensor, other: Tensor, dims: Any = 2) -> Tensor:
    """Sums of products over axes of both.

    Args:
        x: any.
        other: any.
        dims: how many: the last of the first, the first of the second; or two lists of axes.
    """
    if isinstance(dims, int):
        first, second = list(range(x.ndim - dims, x.ndim)), list(range(dims))
        if not 0 <= dims <= min(x.ndim, other.ndim):
            raise RuntimeError(f"tensordot over {dims} axes of tensors of {x.ndim} and {other.ndim}")
    else:
        first, second = ([one] if isinstance(one, int) else list(one) for one in dims)
    first, second = [axis_of(axis, x.ndim) for axis in first], [axis_of(axis, other.ndim) for axis in second]
    if [x.shape[axis] for axis in first] != [other.shape[axis] for axis in second]:
        raise RuntimeError(
            f"tensordot: axes {first} of {list(x.shape)} are not as axes {second} of {list(other.shape)}"
        )
    rows = [axis for axis in range(x.ndim) if axis not in first]
    columns = [axis for axis in range(other.ndim) if axis not in second]
    inner_size = math.prod(x.shape[axis] for axis in first)
    left = reshape(permute(x, *rows, *first), math.prod(x.shape[axis] for axis in rows), inner_size)
    right = reshape(
        permute(other, *second, *columns), inner_size, math.prod(other.shape[axis] for axis in columns)
    )
    return reshape(
        matmul(left, right), *(x.shape[axis] for axis in rows), *(other.shape[axis] for axis in columns)
    )


def kron(x: Tensor, other: Tensor) -> Tensor:
    """The Kronecker product: each element of the first times all of the second.

    Args:
        x: any shape.
        other: any shape.

    Returns:
        Of each axis the product of both sizes; the shorter shape has axes of one element in front.
    """
    rank = max(x.ndim, other.ndim)
    first, second = ([1] * (rank - one.ndim) + list(one.shape) for one in (x, other))
    left = reshape(x, *(size for one in first for size in (one, 1)))
    right = reshape(other, *(size for one in second for size in (1, one)))
    return reshape(mul(left, right), *(a * b for a, b in zip(first, second, strict=True)))


def cross(x: Tensor, other: Tensor, dim: int | None = None) -> Tensor:
    """The vector product along an axis of three elements, the first such where none is named.

    Args:
        x: three elements along the axis.
        other: likewise; broadcast with `x`.
        dim: the axis.

    Raises:
        RuntimeError: the axis has not three elements.
    """
    rank = max(x.ndim, other.ndim)
    shape = broadcast_shapes(tuple(x.shape), tuple(other.shape))
    if dim is None:
        dim = next((at for at, size in enumerate(shape) if size == 3), -1)
    axis = axis_of(dim, rank)
    if not rank or shape[axis] != 3 or any(one.shape[axis - rank] != 3 for one in (x, other)):
        raise RuntimeError(
            f"cross: the axis {dim} of {list(x.shape)} and {list(other.shape)} has not three elements"
        )
    a, b = broadcast_to(x, shape), broadcast_to(other, shape)
    return sub(mul(roll(a, -1, axis), roll(b, -2, axis)), mul(roll(a, -2, axis), roll(b, -1, axis)))


def vecdot(x: Tensor, other: Tensor, *, dim: int = -1) -> Tensor:
    """The sums of products along an axis, the first factor conjugated.

    Args:
        x: [..., k].
        other: [..., k]; broadcast with `x`.
        dim: the axis.
    """
    return sum(mul(conj(x), other), dim)


def matrix_power(x: Tensor, n: int) -> Tensor:
    """A square matrix multiplied by itself n times; its inverse for negative n, found on the CPU.

    Args:
        x: [..., n, n].
        n: the power.

    Raises:
        RuntimeError: the matrices are not square.
    """
    if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        raise RuntimeError(f"matrix_power is of square matrices, not of {list(x.shape)}")
    if n < 0:
        return matrix_power(wrap(apply("Inverse", x.value, domain="vkml")), -n)
    if not n:
        size = x.shape[-1]
        return wrap(expanded(EMITTER, constant(np.eye(size), x.dtype), x.shape))
    found, square = None, x
    while True:
        if n & 1:
            found = square if found is None else matmul(found, square)
        n >>= 1
        if not n:
            assert found is not None
            return found
        square = matmul(square, square)


def chain_matmul(*matrices: Tensor) -> Tensor:
    """The product of matrices, in the order that takes the fewest multiplications.

    Args:
        *matrices: of which each has as many rows as the one before has columns.
    """
    return multi_dot(matrices)


def multi_dot(tensors: Sequence[Tensor]) -> Tensor:
    """The product of matrices in the order of the fewest multiplications; vectors may be at its ends.

    Args:
        tensors: matrices, of which each has as many rows as the one before has columns.

    Raises:
        RuntimeError: there are none, or they do not fit each other.
    """
    many = list(tensors)
    if not many:
        raise RuntimeError("multi_dot needs at least one matrix")
    is_row, is_column = many[0].ndim == 1, many[-1].ndim == 1
    if len(many) == 1:
        return many[0]
    many[0] = reshape(many[0], 1, -1) if is_row else many[0]
    many[-1] = reshape(many[-1], -1, 1) if is_column else many[-1]
    sizes = [many[0].shape[0], *(x.shape[1] for x in many)]
    best: dict[tuple[int, int], tuple[int, int]] = {(at, at): (0, at) for at in range(len(many))}
    for length in range(1, len(many)):
        for start in range(len(many) - length):
            end = start + length
            best[start, end] = min(
                (
                    best[start, cut][0]
                    + best[cut + 1, end][0]
                    + sizes[start] * sizes[cut + 1] * sizes[end + 1],
                    cut,
                )
                for cut in range(start, end)
            )

    def made(start: int, end: int) -> Tensor:
        if start == end:
            return many[start]
        cut = best[start, end][1]
        return matmul(made(start, cut), made(cut + 1, end))

    found = made(0, len(many) - 1)
    shape = [*([] if is_row else [found.shape[0]]), *([] if is_column else [found.shape[1]])]
    return reshape(found, *shape)


def cdist(x1: Tensor, x2: Tensor, p: float = 2.0) -> Tensor:
    """The p-norms of the differences of each row of [..., n, d] and each of [..., m, d].

    Args:
        x1: [..., n, d].
        x2: [..., m, d].
        p: which norm; see `norm`.

    Returns:
        [..., n, m].

    Raises:
        RuntimeError: rows differ in length.
    """
    if x1.ndim < 2 or x2.ndim < 2 or x1.shape[-1] != x2.shape[-1]:
        raise RuntimeError(f"cdist: rows of {list(x1.shape)} and {list(x2.shape)}")
    return norm(sub(unsqueeze(x1, -2), unsqueeze(x2, -3)), p, -1)
