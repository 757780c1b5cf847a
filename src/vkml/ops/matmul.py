"""Matrix products: MatMul, Gemm, MatMulInteger."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from vkml.dataclasses import dataclass
from vkml.errors import ShapeError
from vkml.ir.dtypes import (
    COMPLEXES,
    FLOATS,
    INT8,
    INT32,
    INT64,
    UINT8,
    UINT32,
    UINT64,
    DType,
)
from vkml.ir.gradients import Emitter, T, converted, reshaped, summed
from vkml.ir.graph import Node
from vkml.ir.lowering import CannotLower, Lowering, V, all_given, given
from vkml.ir.operator import INT, Array, Operator, operator
from vkml.ir.types import Known, TensorType
from vkml.ops.checks import optional, present, require_dtype, require_rank, require_same_dtype, required
from vkml.ops.limits import check_size
from vkml.ops.matmul_gradients import gemm_gradients, left_gradient, right_gradient
from vkml.ops.pointwise import widened
from vkml.ops.upgrading import renew

MATRIX_DTYPES: tuple[DType, ...] = (*FLOATS, INT32, INT64, UINT32, UINT64, *COMPLEXES)


@dataclass(frozen=True)
class MatMulGeometry:
    """A batched product ``[*batch_a, m, k] x [*batch_b, k, n]`` with everything broadcasting resolved."""

    m: int
    n: int
    k: int
    batch: tuple[int, ...]
    """The broadcast batch shape."""
    batch_a: tuple[int, ...]
    """The left operand's batch shape, as long as `batch`: missing axes are 1."""
    batch_b: tuple[int, ...]
    output: tuple[int, ...]
    """The output's shape; axes that a 1-D operand lent are gone."""


def matmul_geometry(node: Node, a: Sequence[int], b: Sequence[int]) -> MatMulGeometry:
    """Resolves NumPy's matmul rules for operands of shapes `a` and `b`.

    Raises:
        ShapeError: An operand is a scalar, the inner sizes differ, or the batches do not broadcast.
    """
    if not a or not b:
        raise ShapeError(
            f"{node.label}: operands must not be scalars, their shapes are {list(a)} and {list(b)}"
        )
    left = (1, *a) if len(a) == 1 else tuple(a)
    right = (*b, 1) if len(b) == 1 else tuple(b)
    m, k, n = left[-2], left[-1], right[-1]
    if right[-2] != k:
        raise ShapeError(
            f"{node.label}: the left operand has {k} columns, the right one {right[-2]} rows "
            f"(shapes {list(a)} and {list(b)})"
        )
    rank = max(len(left), len(right)) - 2
    batch_a = (1,) * (rank + 2 - len(left)) + left[:-2]
    batch_b = (1,) * (rank + 2 - len(right)) + right[:-2]
    batch = []
    for x, y in zip(batch_a, batch_b, strict=True):
        if x != y and 1 not in (x, y):
            raise ShapeError(
                f"{node.label}: batch sizes {x} and {y} do not broadcast (shapes {list(a)}, {list(b)})"
            )
        batch.append(y if x == 1 else x)
    output = (*batch, *((m,) if len(a) > 1 else ()), *((n,) if len(b) > 1 else ()))
    return MatMulGeometry(m, n, k, tuple(batch), batch_a, batch_b, output)


@operator()
class MatMul(Operator):
    """Matrix product with NumPy's rules for 1-D operands and batches."""

    inputs = (2, 2)
    is_anchor = True
    takes_prologue = True

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        a, b = required(node, inputs, 0), required(node, inputs, 1)
        require_dtype(node, a, MATRIX_DTYPES, "the left operand")
        require_same_dtype(node, a, b, "the right operand")
        return [check_size(node, a.dtype, matmul_geometry(node, a.dims, b.dims).output)]

    def multiply_adds(
        self, node: Node, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]
    ) -> int:
        return outputs[0].elements * present(inputs, 0).dims[-1]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        a, b = present(inputs, 0), present(inputs, 1)
        return [np.asarray(np.matmul(widened(a), widened(b))).astype(a.dtype, copy=False)]

    def lower(self, build: Lowering[V], node: Node, inputs: Sequence[V | None]) -> Sequence[V | None] | None:
        a, b = all_given(inputs)
        return _lowered(build, matmul_geometry(node, a.shape, b.shape), a, b, build.matmul)

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        a, b, cotangent = present(inputs, 0), present(inputs, 1), present(cotangents, 0)
        geometry = matmul_geometry(node, build.type_of(a).dims, build.type_of(b).dims)
        return [
            left_gradient(build, geometry, a, b, cotangent) if needed[0] else None,
            right_gradient(build, geometry, a, b, cotangent) if needed[1] else None,
        ]


def _lowered(
    build: Lowering[V], geometry: MatMulGeometry, a: V, b: V, multiply: Callable[[V, V], list[V]]
) -> list[V]:
    """A product of any operands as one of (batch, m, k) and (batch, k, n)."""
    left, right = build.reshape(a, (1, *a.shape)) if len(a.shape) == 1 else a, b
    if len(b.shape) == 1:
        right = build.reshape(b, (*b.shape, 1))
    if math.prod(geometry.batch_b) == 1:
        # One right operand for all: the batch is more rows.
        rows = math.prod(geometry.batch) * geometry.m
        return multiply(
            build.reshape(left, (1, rows, geometry.k)), build.reshape(right, (1, geometry.k, geometry.n))
        )
    batch = math.prod(geometry.batch)
    left = left.expand((*geometry.batch, geometry.m, geometry.k))
    right = right.expand((*geometry.batch, geometry.k, geometry.n))
    return multiply(
        build.reshape(left, (batch, geometry.m, geometry.k)),
        build.reshape(right, (batch, geometry.k, geometry.n)),
    )


@dataclass(frozen=True)
class GemmGeometry:
    """``alpha * op(A) op(B) + beta * C`` with op(A) of shape m×k and op(B) k×n."""

    m: int
    n: int
    k: int


def gemm_geometry(node: Node, a: Sequence[int], b: Sequence[int], c: Sequence[int] | None) -> GemmGeometry:
    """Resolves the transpositions and checks that `c` broadcasts to m×n.

    Raises:
        ShapeError: Ranks or inner sizes are wrong, or C does not broadcast one-way.
    """
    m, k = (a[1], a[0]) if node.attributes["transA"] else (a[0], a[1])
    rows, n = (b[1], b[0]) if node.attributes["transB"] else (b[0], b[1])
    if rows != k:
        raise ShapeError(
            f"{node.label}: A has {k} columns, B {rows} rows "
            f"(A is {list(a)} with transA={node.attributes['transA']}, "
            f"B is {list(b)} with transB={node.attributes['transB']})"
        )
    if c is not None:
        fits = len(c) <= 2 and all(size in (1, full) for size, full in zip(reversed(c), (n, m), strict=False))
        if not fits:
            raise ShapeError(f"{node.label}: C of shape {list(c)} does not broadcast to {[m, n]}")
    return GemmGeometry(m, n, k)


@operator()
class Gemm(Operator):
    """``alpha * A * B + beta * C`` on matrices, each factor optionally transposed."""

    inputs = (2, 3)
    attributes = {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 0}
    is_anchor = True
    takes_prologue = True
    attribute_types = {"broadcast": INT}

    def upgrade(self, node: Node) -> Node:
        # Before opset 7, `broadcast` allowed C to be smaller; the newest form always allows it.
        return renew(node, drop=["broadcast"]) if node.version < 7 else node

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        a, b = required(node, inputs, 0), required(node, inputs, 1)
        c: Known | None = optional(inputs, 2)
        require_dtype(node, a, MATRIX_DTYPES, "A")
        require_rank(node, a, 2, 2, "A")
        require_rank(node, b, 2, 2, "B")
        require_same_dtype(node, a, b, "B")
        if c is not None:
            require_same_dtype(node, a, c, "C")
        geometry = gemm_geometry(node, a.dims, b.dims, None if c is None else c.dims)
        return [check_size(node, a.dtype, (geometry.m, geometry.n))]

    def multiply_adds(
        self, node: Node, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]
    ) -> int:
        a = present(inputs, 0)
        return outputs[0].elements * a.dims[0 if node.attributes["transA"] else 1]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        a, b, c = present(inputs, 0), present(inputs, 1), optional(inputs, 2)
        alpha, beta = node.attributes["alpha"], node.attributes["beta"]
        left = widened(a.T if node.attributes["transA"] else a)
        right = widened(b.T if node.attributes["transB"] else b)
        product = left @ right
        if alpha != 1.0:
            product = (product * alpha).astype(product.dtype)
        if c is not None and beta != 0.0:
            addend = widened(c)
            product = product + (addend if beta == 1.0 else (addend * beta).astype(product.dtype))
        return [product.astype(a.dtype, copy=False)]

    def lower(self, build: Lowering[V], node: Node, inputs: Sequence[V | None]) -> Sequence[V | None] | None:
        a, b = given(inputs, 0), given(inputs, 1)
        c = optional(inputs, 2)
        if not (a.dtype.is_float or node.attributes["alpha"] == node.attributes["beta"] == 1.0):
            return None
        left = a.transpose((1, 0)) if node.attributes["transA"] else a
        right = b.transpose((1, 0)) if node.attributes["transB"] else b
        shape = (left.shape[0], right.shape[1])
        addend = None if c is None else c.expand(shape)
        build.before_epilogue(
            build.result(),
            scale=node.attributes["alpha"],
            addend=addend,
            addend_scale=node.attributes["beta"],
        )
        return build.matmul(build.reshape(left, (1, *left.shape)), build.reshape(right, (1, *right.shape)))

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        return gemm_gradients(
            build,
            present(inputs, 0),
            present(inputs, 1),
            optional(inputs, 2),
            present(cotangents, 0),
            needed,
            alpha=node.attributes["alpha"],
            beta=node.attributes["beta"],
            flips_a=int(bool(node.attributes["transA"])),
            flips_b=int(bool(node.attributes["transB"])),
        )


def zero_along(
    node: Node, found: Sequence[int], operand: Sequence[int], inner: int, what: str
) -> tuple[int, ...]:
    """The shape in which zero points or scales broadcast with an operand of a product.

    Args:
        node: the node.
        found: their shape: that of a number, of a vector with one for each row of A (column of B), or the
            operand's with 1 along the axis that is summed over.
        operand: its shape.
        inner: that axis, -1 for A, -2 for B.
        what: they are called.

    Raises:
        ShapeError: they are of none of these shapes.
    """
    if len(found) == 0 or tuple(found) == (1,):
        return ()
    sizes = list(operand) if len(operand) > 1 else [1]
    sizes[max(inner, -len(sizes))] = 1
    if len(found) == 1 and inner == -1 and len(operand) > 1:
        found = (*found, 1)
    fits = len(found) <= len(sizes) and all(
        size in (1, full) for size, full in zip(reversed(found), reversed(sizes), strict=False)
    )
    if not fits:
        raise ShapeError(
            f"{node.label}: {what} has the shape {list(found)}; a number, or one for each of {sizes}, is "
            "needed"
        )
    return tuple(found)


def integer_product(a: Array, b: Array, zero_a: Array | None, zero_b: Array | None) -> Array:
    """The product of matrices of 8-bit integers less their zero points, in int32.

    Args:
        a: [..., m, k].
        b: [..., k, n].
        zero_a: broadcasts with it; None for 0.
        zero_b: broadcasts with b.
    """
    left = a.astype(np.int32) if zero_a is None else a.astype(np.int32) - zero_a.astype(np.int32)
    right = b.astype(np.int32) if zero_b is None else b.astype(np.int32) - zero_b.astype(np.int32)
    if left.shape[-1] * 255 * 255 < 2**24:
        # Exact in float32, where NumPy has BLAS; its integer product is a plain loop.
        return np.asarray(np.matmul(left.astype(np.float32), right.astype(np.float32))).astype(np.int32)
    # Exact in float64 up to 2**53, then wrapped as int32 accumulation wraps.
    product = np.asarray(np.matmul(left.astype(np.float64), right.astype(np.float64)))
    return product.astype(np.int64).astype(np.int32)


@operator()
class MatMulInteger(Operator):
    """Product of 8-bit matrices less their zero points, in int32.

    A zero point is a number, or one a row of A (a column of B): as a vector, or of the operand's shape with
    the axis that is summed over being 1.
    """

    inputs = (2, 4)
    is_anchor = True

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        a, b = required(node, inputs, 0), required(node, inputs, 1)
        require_dtype(node, a, (INT8, UINT8), "A")
        require_dtype(node, b, (INT8, UINT8), "B")
        geometry = matmul_geometry(node, a.dims, b.dims)
        for index, operand, what in ((2, a, "a_zero_point"), (3, b, "b_zero_point")):
            zero: Known | None = optional(inputs, index)
            if zero is not None:
                require_same_dtype(node, operand, zero, what)
                zero_along(node, zero.dims, operand.dims, -1 if index == 2 else -2, what)
        return [check_size(node, INT32, geometry.output)]

    def multiply_adds(
        self, node: Node, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]
    ) -> int:
        return outputs[0].elements * present(inputs, 0).dims[-1]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        a, b = present(inputs, 0), present(inputs, 1)
        zeros: list[Array | None] = []
        for zero, operand, inner in ((optional(inputs, 2), a, -1), (optional(inputs, 3), b, -2)):
            found = None if zero is None else zero_along(node, zero.shape, operand.shape, inner, "it")
            zeros.append(None if zero is None or found is None else zero.reshape(found))
        return [integer_product(a, b, *zeros)]

    def lower(self, build: Lowering[V], node: Node, inputs: Sequence[V | None]) -> Sequence[V | None] | None:
        if any(zero is not None for zero in inputs[2:]):
            raise CannotLower("zero points of products of bytes have no kernel, but where B is constant")
        a, b = given(inputs, 0), given(inputs, 1)
        return _lowered(build, matmul_geometry(node, a.shape, b.shape), a, b, build.byte_matmul)

    def steps(self, build: Emitter[T], node: Node, inputs: Sequence[T | None]) -> Sequence[T] | None:
        a, b = present(inputs, 0), present(inputs, 1)
        zeros = [optional(inputs, 2), optional(inputs, 3)]
        if all(zero is None for zero in zeros):
            return [build.apply("MatMul", converted(build, a, INT32), converted(build, b, INT32))]
        return [integer_product_steps(build, node, a, b, *zeros)]


def integer_product_steps(build: Emitter[T], node: Node, a: T, b: T, zero_a: T | None, zero_b: T | None) -> T:
    """The product of matrices of 8-bit integers less their zero points, in int32.

    That of the bytes, less what zero points add to it: a row's and b's column's sums, times these.
    """
    zero_a, zero_b = (None if _is_zero(build, zero) else zero for zero in (zero_a, zero_b))
    dims_a, dims_b = build.type_of(a).dims, build.type_of(b).dims
    product = build.apply("MatMulInteger", a, b)

    def shape_of(zero: T, dims: Sequence[int], inner: int) -> list[int]:
        return list(zero_along(node, build.type_of(zero).dims, dims, inner, "it"))

    def beside_sums(zero: T, dims: Sequence[int], inner: int, other: Sequence[int]) -> T:
        """A zero point as it broadcasts with the result, which lacks an axis where the other is a vector."""
        shape = shape_of(zero, dims, inner)
        if len(other) == 1 and len(shape) >= -inner:
            del shape[inner]
        return reshaped(build, converted(build, zero, INT32), shape)

    if zero_a is not None:
        columns = _column_sums(
            build, b, zero_b, [] if zero_b is None else shape_of(zero_b, dims_b, -2), keep=len(dims_a) > 1
        )
        added = build.apply("Mul", columns, beside_sums(zero_a, dims_a, -1, dims_b))
        product = build.apply("Sub", product, added)
    if zero_b is not None:
        keep = len(dims_b) > 1 and len(dims_a) > 1
        rows = summed(build, converted(build, a, INT32), [len(dims_a) - 1], keep=keep)
        added = build.apply("Mul", rows, beside_sums(zero_b, dims_b, -2, dims_a))
        product = build.apply("Sub", product, added)
    return product


def _column_sums(build: Emitter[T], b: T, zero: T | None, shape: Sequence[int], *, keep: bool) -> T:
    """Sums along k of a right operand less its zero points, of a shape; known where both are."""
    rank = len(build.type_of(b).dims)
    axis, keep = max(rank - 2, 0), keep and rank > 1
    known = [build.elements_of(each) for each in (b, zero) if each is not None]
    arrays = [each.astype(np.int32) for each in known if each is not None]
    if len(arrays) < len(known):
        steps = converted(build, b, INT32)
        if zero is not None:
            steps = build.apply("Sub", steps, reshaped(build, converted(build, zero, INT32), shape))
        return summed(build, steps, [axis], keep=keep)
    steps_known = arrays[0] - arrays[1].reshape(shape) if zero is not None else arrays[0]
    return build.constant(steps_known.sum(axis, dtype=np.int32, keepdims=keep), INT32)


def _is_zero(build: Emitter[T], zero: T | None) -> bool:
    elements = None if zero is None else build.elements_of(zero)
    return elements is not None and not elements.any()
