"""Gradients of matrix products, which are matrix products."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from vkml.ir.gradients import Emitter, T, conjugate, expanded, reshaped, sum_to, transposed

if TYPE_CHECKING:
    from vkml.ops.matmul import MatMulGeometry


def _flipped(build: Emitter[T], x: T) -> T:
    """`x` with its last two axes exchanged."""
    rank = build.type_of(x).rank
    return transposed(build, x, [*range(rank - 2), rank - 1, rank - 2])


def _product(build: Emitter[T], a: T, b: T, *, flips_a: bool = False, flips_b: bool = False) -> T:
    """The product of matrices, or of equally long batches of them, each factor optionally transposed."""
    rank = build.type_of(a).rank
    inner = build.type_of(a).dims[-2 if flips_a else -1]
    if rank == 2 and inner != 1:
        # Transposes for nothing, where transposing batches makes copies.
        return build.apply("Gemm", a, b, transA=int(flips_a), transB=int(flips_b))
    left, right = _flipped(build, a) if flips_a else a, _flipped(build, b) if flips_b else b
    # Of a column and a row there is one product an element.
    return build.apply("Mul" if inner == 1 else "MatMul", left, right)


def left_gradient(build: Emitter[T], geometry: MatMulGeometry, a: T, b: T, cotangent: T) -> T:
    """The cotangent of the left operand: that of the result times the other one, transposed.

    Args:
        build: the emitter.
        geometry: of the product.
        a: the left operand.
        b: the right operand.
        cotangent: of the product.
    """
    m, n, k, batch = geometry.m, geometry.n, geometry.k, geometry.batch
    b = conjugate(build, b)
    if math.prod(geometry.batch_b) == 1:
        # One right operand for all: the batch is more rows.
        full = reshaped(build, cotangent, (math.prod(batch) * m, n))
        made = _product(build, full, reshaped(build, b, (k, n)), flips_b=True)
        made = reshaped(build, made, (*batch, m, k))
    else:
        full = reshaped(build, cotangent, (*batch, m, n))
        made = _product(build, full, reshaped(build, b, (*geometry.batch_b, k, n)), flips_b=True)
    return reshaped(build, sum_to(build, made, (*geometry.batch_a, m, k)), build.type_of(a).dims)


def right_gradient(build: Emitter[T], geometry: MatMulGeometry, a: T, b: T, cotangent: T) -> T:
    """The cotangent of the right operand: the other one, transposed, times that of the result."""
    m, n, k, batch = geometry.m, geometry.n, geometry.k, geometry.batch
    left = reshaped(build, conjugate(build, a), (*geometry.batch_a, m, k))
    if math.prod(geometry.batch_b) == 1:
        # The batch is more rows, over which one product sums.
        rows = math.prod(batch) * m
        left = reshaped(build, expanded(build, left, (*batch, m, k)), (rows, k))
        made = _product(build, left, reshaped(build, cotangent, (rows, n)), flips_a=True)
    else:
        made = _product(build, left, reshaped(build, cotangent, (*batch, m, n)), flips_a=True)
        made = sum_to(build, made, (*geometry.batch_b, k, n))
    return reshaped(build, made, build.type_of(b).dims)


def gemm_gradients(
    build: Emitter[T], a: T, b: T, c: T | None, cotangent: T, needed: Sequence[bool], *,
    alpha: float, beta: float, flips_a: int, flips_b: int,
) -> list[T | None]:  # fmt: skip
    """The cotangents of Gemm's operands.

    Args:
        build: the emitter.
        a: the left factor.
        b: the right factor.
        c: what is added to their product; None where nothing is.
        cotangent: of the result.
        needed: which are wanted.
        alpha: what the product is multiplied by.
        beta: what `c` is multiplied by.
        flips_a: whether `a` is transposed.
        flips_b: whether `b` is transposed.
    """
    made: list[T | None] = [None, None, None]
    a, b = conjugate(build, a), conjugate(build, b)
    if needed[0]:
        pair, flips = ((b, cotangent), (flips_b, 1)) if flips_a else ((cotangent, b), (0, 1 - flips_b))
        made[0] = build.apply("Gemm", *pair, alpha=alpha, transA=flips[0], transB=flips[1])
    if needed[1]:
        pair, flips = ((cotangent, a), (1, flips_a)) if flips_b else ((a, cotangent), (1 - flips_a, 0))
        made[1] = build.apply("Gemm", *pair, alpha=alpha, transA=flips[0], transB=flips[1])
    if c is not None and needed[2] and beta != 0:
        total = sum_to(build, cotangent, build.type_of(c).dims)
        made[2] = (
            total if beta == 1 else build.apply("Mul", total, build.constant(beta, build.type_of(c).dtype))
        )
    return made
