"""Attention as products and a Softmax."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Generic

import numpy as np

from vkml.dataclasses import dataclass
from vkml.ir.dtypes import BOOL, FLOAT32, INT64, DType
from vkml.ir.gradients import Emitter, T, converted, reshaped, transposed
from vkml.ir.size import is_number


@dataclass(frozen=True)
class AttentionScores:
    """What becomes of the products of queries and keys; see `vkml.ops.attention.Attention`."""

    scale: float
    softcap: float = 0.0
    group: int = 1
    is_key_transposed: bool = False
    is_mask_hiding: bool = False
    is_fill_added: bool = False
    is_empty_zero: bool = False
    is_nan_zero: bool = False
    fill: float = -math.inf
    causal_offset: int | None = None

    @staticmethod
    def of(attributes: Mapping[str, Any]) -> AttentionScores:
        """Those that a node states."""
        return AttentionScores(**attributes)


@dataclass(frozen=True)
class AttentionSteps(Generic[T]):
    """What attention makes, step by step."""

    products: T
    """Scaled."""
    capped: T
    biased: T
    """Masked, too."""
    weights: T
    results: T


def attention_steps(
    build: Emitter[T],
    how: AttentionScores,
    q: T,
    k: T,
    v: T,
    mask: T | None,
    bias: T | None,
    precision: DType | None = None,
    first_row: int = 0,
) -> AttentionSteps[T]:
    """Applies the steps of attention.

    Args:
        build: the emitter.
        how: scores are made.
        q: queries.
        k: keys.
        v: values.
        mask: of truth values, or None.
        bias: added to scores, or None.
        precision: of the Softmax; the queries' where it is None.
        first_row: what the first row counts as where it sees keys up to its own number.
    """
    dtype = build.type_of(q).dtype
    if not how.is_key_transposed:
        k = flipped(build, k)
    rows = build.type_of(q).dims
    if dtype.bits < FLOAT32.bits and how.scale != 1:
        # Half of it on either side, as ONNX has it: products of unscaled factors are sooner too large.
        root = build.constant(math.sqrt(how.scale), dtype)
        q, k = build.apply("Mul", q, root), build.apply("Mul", k, root)
    products = build.apply("MatMul", gathered(build, q, how.group), k)
    if dtype.bits >= FLOAT32.bits and how.scale != 1:
        products = build.apply("Mul", products, build.constant(how.scale, dtype))
    products = spread(build, products, how.group, rows)
    capped = products
    if how.softcap:
        cap = build.constant(how.softcap, dtype)
        capped = build.apply("Mul", build.apply("Tanh", build.apply("Div", products, cap)), cap)
    keeps = kept(build, how, capped, mask, first_row)
    biased = capped
    if keeps is not None:
        fill = build.constant(how.fill, dtype)
        biased = build.apply(
            "Where", keeps, biased, build.apply("Add", biased, fill) if how.is_fill_added else fill
        )
    if bias is not None:
        biased = build.apply("Add", biased, converted(build, bias, dtype))
    scores = biased if precision is None else converted(build, biased, precision)
    weights = converted(build, weights_of(build, how, scores), dtype)
    results = build.apply("MatMul", gathered(build, weights, how.group), v)
    return AttentionSteps(products, capped, biased, weights, spread(build, results, how.group, rows))


def weights_of(build: Emitter[T], how: AttentionScores, scores: T) -> T:
    """The Softmax of rows, zeros where that is wanted of what would be NaN."""
    weights = _seen(build, scores) if how.is_empty_zero else build.apply("Softmax", scores, axis=-1)
    if not how.is_nan_zero:
        return weights
    nothing = build.constant(0, build.type_of(weights).dtype)
    return build.apply("Where", build.apply("IsNaN", weights), nothing, weights)


def _seen(build: Emitter[T], scores: T) -> T:
    """The Softmax of rows, zeros where all scores of a row are -infinity: never NaN, nor are gradients."""
    dtype = build.type_of(scores).dtype
    largest = build.apply("ReduceMax", scores, build.constant([-1], INT64), keepdims=1)
    is_empty = build.apply("Equal", largest, build.constant(-math.inf, dtype))
    nothing = build.constant(0, dtype)
    weights = build.apply("Softmax", build.apply("Where", is_empty, nothing, scores), axis=-1)
    return build.apply("Where", is_empty, nothing, weights)


def row_sums(build: Emitter[T], how: AttentionScores, scores: T) -> T:
    """Of rows of scores, two float32 r and s, [..., rows, 2]: weights are exp(score - r) / s."""
    dtype = build.type_of(scores).dtype
    last = build.constant([-1], INT64)
    largest = build.apply("ReduceMax", scores, last, keepdims=1)
    infinity = build.constant(math.inf, dtype)
    is_empty = build.apply("Equal", largest, build.constant(-math.inf, dtype))
    reference = build.apply("Where", build.apply("IsInf", largest), build.constant(0, dtype), largest)
    sums = build.apply(
        "ReduceSum", build.apply("Exp", build.apply("Sub", scores, reference)), last, keepdims=1
    )
    nothing = infinity if how.is_empty_zero or how.is_nan_zero else build.constant(math.nan, dtype)
    sums = build.apply("Where", is_empty, nothing, sums)
    # The softmax of what has infinity or NaN in it is NaN.
    is_bad = build.apply("Equal", largest, infinity)
    is_bad = build.apply("Or", is_bad, build.apply("IsNaN", sums))
    bad = infinity if how.is_nan_zero else build.constant(math.nan, dtype)
    sums = build.apply("Where", is_bad, bad, sums)
    return converted(build, build.apply("Concat", reference, sums, axis=-1), FLOAT32)


def gathered(build: Emitter[T], x: T, group: int) -> T:
    """Rows of the heads that share one of keys and values below each other: one product has them all."""
    if group == 1:
        return x
    *batch, heads, rows, columns = build.type_of(x).dims
    return reshaped(build, x, [*batch, heads // group, group * rows, columns])


def spread(build: Emitter[T], x: T, group: int, rows: Sequence[int]) -> T:
    """Rows back in their heads, which were gathered from the shape `rows`."""
    if group == 1:
        return x
    *batch, _, _, columns = build.type_of(x).dims
    return reshaped(build, x, [*batch, rows[-3], rows[-2], columns])


def kept(build: Emitter[T], how: AttentionScores, scores: T, mask: T | None, first_row: int = 0) -> T | None:
    """Which scores stay what they are, of rows that begin with number `first_row`; None for all."""
    keeps = build.apply("Not", mask) if mask is not None and how.is_mask_hiding else mask
    if how.causal_offset is None:
        return keeps
    rows, columns = build.type_of(scores).dims[-2:]
    below = triangle(build, rows, columns, how.causal_offset + first_row)
    return below if keeps is None else build.apply("And", keeps, below)


def triangle(build: Emitter[T], rows: int, columns: int, offset: int) -> T:
    """Truth values of a matrix: whether a column is none behind its row's number + `offset`."""
    if is_number(rows) and is_number(columns):
        return build.constant(np.tri(rows, columns, offset, dtype=np.bool_), BOOL)
    last = build.apply("Add", positions(build, rows), build.constant(offset, INT64))
    return build.apply(
        "LessOrEqual", positions(build, columns), build.apply("Unsqueeze", last, build.constant([1], INT64))
    )


def positions(build: Emitter[T], count: int, dtype: DType = INT64) -> T:
    """0, 1, 2, … below a size, which may be open."""
    if is_number(count):
        return build.constant(np.arange(count), dtype)
    return build.apply("Range", *(build.constant(end, dtype) for end in (0, count, 1)))


def flipped(build: Emitter[T], x: T) -> T:
    """A matrix transposed, for each of a batch."""
    rank = build.type_of(x).rank
    return transposed(build, x, [*range(rank - 2), rank - 1, rank - 2])
