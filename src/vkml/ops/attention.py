"""Scaled dot product attention as one node; a pass makes it of the nodes that exporters write."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from vkml.errors import ShapeError
from vkml.ir import gradients
from vkml.ir.dtypes import BOOL, FLOAT32, FLOATS
from vkml.ir.gradients import Emitter, T, behind
from vkml.ir.graph import Node
from vkml.ir.lowering import CannotLower, Lowering, Scoring, V, given
from vkml.ir.operator import OPTIONAL, Array, Operator, operator
from vkml.ir.types import Known, TensorType
from vkml.ops.attention_blocks import keys_of, row_blocks, rows_of, scores_of
from vkml.ops.attention_gradients import attention_gradients
from vkml.ops.attention_steps import AttentionScores, attention_steps, row_sums
from vkml.ops.checks import optional, present, require_dtype, require_same_dtype, required
from vkml.ops.matmul import MatMulGeometry, matmul_geometry
from vkml.ops.pointwise import widened


def attention_geometry(
    node: Node, q: Sequence[int], k: Sequence[int], v: Sequence[int]
) -> tuple[MatMulGeometry, MatMulGeometry]:
    """Of the products of queries and keys, and of probabilities and values.

    Raises:
        ShapeError: shapes do not fit.
    """
    if min(len(q), len(k), len(v)) < 2:
        raise ShapeError(
            f"{node.label}: queries, keys and values must be matrices, their shapes are {list(q)}, {list(k)} "
            f"and {list(v)}"
        )
    transposed = k if node.attributes["is_key_transposed"] else (*k[:-2], k[-1], k[-2])
    group = node.attributes["group"]
    if group != 1:
        if min(len(q), len(k), len(v)) < 3:
            raise ShapeError(f"{node.label}: heads that are shared are an axis of queries, keys and values")
        transposed, v = ((*dims[:-3], dims[-3] * group, *dims[-2:]) for dims in (transposed, v))
        if not q[-3] == transposed[-3] == v[-3]:
            raise ShapeError(
                f"{node.label}: {q[-3]} heads of queries, {group} of which share one of keys and values, do "
                f"not fit the shapes {list(k)} and {list(v)}"
            )
    scores = matmul_geometry(node, q, transposed)
    return scores, matmul_geometry(node, scores.output, v)


@operator("Attention")
class Attention(Operator):
    """softmax(scale · Q Kᵀ, masked) V.

    Inputs: queries [..., m, d], keys [..., n, d] ([..., d, n] where `is_key_transposed`), values [..., n, e],
    batches broadcasting; optionally a mask of truth values and a bias, which broadcast to the scores
    [..., m, n]. `group` heads of queries, the third axis from the end, share one of keys and values.

    A score is scaled, brought between ±`softcap` by tanh where that is not 0, becomes `fill` where the mask
    is false (true, where `is_mask_hiding`), or with `is_fill_added` has it added, and has the bias added.
    Where there is a `causal_offset`, row r keeps the scores of the keys up to r + `causal_offset` only. A row
    all of whose scores are -infinity is zero where `is_empty_zero`, else NaN. Where `is_nan_zero` rows of
    probabilities that are NaN, for whatever reason, count as zeros.

    For gradients the second output is two float32 r and s for each row, [..., m, 2]: the row's probabilities
    are exp(score - r) / s. All of them are 0 where s is infinite, NaN where it is NaN.
    """

    domain = "vkml"
    inputs = (3, 5)
    outputs = (1, 2)
    gradient_outputs = 1
    attributes = {
        "scale": 1.0,
        "softcap": 0.0,
        "group": 1,
        "is_key_transposed": 0,
        "is_mask_hiding": 0,
        "is_fill_added": 0,
        "is_empty_zero": 0,
        "is_nan_zero": 0,
        "fill": float("-inf"),
        "causal_offset": OPTIONAL,
    }
    is_anchor = True
    is_stepwise = True
    reads_parts = (1, 2)

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        q, k, v = (required(node, inputs, index) for index in range(3))
        require_dtype(node, q, FLOATS, "the queries")
        require_same_dtype(node, q, k, "the keys")
        require_same_dtype(node, q, v, "the values")
        scores, results = attention_geometry(node, q.dims, k.dims, v.dims)
        for index, what, dtypes in ((3, "the mask", (BOOL,)), (4, "the bias", FLOATS)):
            given: Known | None = optional(inputs, index)
            if given is None:
                continue
            require_dtype(node, given, dtypes, what)
            pairs = zip(reversed(given.dims), reversed(scores.output), strict=False)
            if given.rank > len(scores.output) or any(have not in (1, want) for have, want in pairs):
                raise ShapeError(
                    f"{node.label}: {what} of shape {list(given.dims)} does not broadcast to the scores' "
                    f"{list(scores.output)}"
                )
        sums = TensorType(FLOAT32, (*scores.output[:-1], 2))
        return [TensorType(q.dtype, results.output), sums][: len(node.outputs)]

    def multiply_adds(
        self, node: Node, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]
    ) -> int:
        q, k, v = (present(inputs, index) for index in range(3))
        scores, results = attention_geometry(node, q.dims, k.dims, v.dims)
        return math.prod(scores.output) * q.dims[-1] + math.prod(results.output) * scores.output[-1]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        q, k, v = (widened(present(inputs, index)) for index in range(3))
        mask, bias = optional(inputs, 3), optional(inputs, 4)
        attributes = node.attributes
        if not attributes["is_key_transposed"]:
            k = k.swapaxes(-1, -2)
        if attributes["group"] != 1:
            k, v = (np.repeat(x, attributes["group"], axis=-3) for x in (k, v))
        with np.errstate(all="ignore"):
            scores = np.matmul(q, k) * q.dtype.type(attributes["scale"])
            if attributes["softcap"]:
                cap = scores.dtype.type(attributes["softcap"])
                scores = np.tanh(scores / cap) * cap
            fill = scores.dtype.type(attributes["fill"])
            keeps: Array | None = mask
            if mask is not None and attributes["is_mask_hiding"]:
                keeps = ~mask
            if attributes["causal_offset"] is not None:
                rows, columns = scores.shape[-2:]
                triangle = np.tri(rows, columns, attributes["causal_offset"], dtype=np.bool_)
                keeps = triangle if keeps is None else keeps & triangle
            if keeps is not None:
                scores = np.where(keeps, scores, scores + fill if attributes["is_fill_added"] else fill)
            if bias is not None:
                scores = scores + bias.astype(scores.dtype)
            largest = scores.max(axis=-1, keepdims=True)
            weights = np.exp(scores - largest)
            weights /= weights.sum(axis=-1, keepdims=True)
            if attributes["is_empty_zero"]:
                weights = np.where(largest == -np.inf, weights.dtype.type(0), weights)
            if attributes["is_nan_zero"]:
                weights = np.where(np.isnan(weights), weights.dtype.type(0), weights)
            results = np.asarray(np.matmul(weights, v)).astype(present(inputs, 0).dtype, copy=False)
            if len(node.outputs) == 1:
                return [results]
            reference = np.where(np.isinf(largest), 0, largest)
            sums = np.exp(scores - reference).sum(axis=-1, keepdims=True)
            sums = np.where(np.isnan(weights).any(axis=-1, keepdims=True), np.nan, sums)
            sums = np.where((weights == 0).all(axis=-1, keepdims=True), np.inf, sums)
            return [results, np.concatenate([reference, sums], axis=-1).astype(np.float32)]

    def steps(self, build: Emitter[T], node: Node, inputs: Sequence[T | None]) -> Sequence[T | None]:
        how = AttentionScores.of(node.attributes)
        dtype = build.type_of(present(inputs, 0)).dtype
        # Rounded once, as by a kernel.
        q, k, v = (gradients.widened(build, present(inputs, index)) for index in range(3))
        mask, bias = optional(inputs, 3), optional(inputs, 4)
        if bias is not None:
            bias = gradients.widened(build, bias)
        made: list[T] = []
        sums: list[T] = []
        for block in row_blocks(build, how, q, k):
            seen = keys_of(build, k, block, is_transposed=how.is_key_transposed)
            read = rows_of(build, q, block), seen, keys_of(build, v, block)
            rows, seen, weighed = [behind(build, x, made[-1]) for x in read] if made else read
            steps = attention_steps(
                build,
                how,
                rows,
                seen,
                weighed,
                scores_of(build, mask, block),
                scores_of(build, bias, block),
                first_row=block.start,
            )
            made.append(steps.results)
            if len(node.outputs) > 1:
                sums.append(row_sums(build, how, steps.biased))
        results, *more = [
            parts[0] if len(parts) == 1 else build.apply("Concat", *parts[::-1], axis=-2)
            for parts in (made, sums)
            if parts
        ]
        return [gradients.converted(build, results, dtype), *more]

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        q, k, v = (present(inputs, index) for index in range(3))
        mask, bias = optional(inputs, 3), optional(inputs, 4)
        needed = [*needed, False, False]
        cotangent = present(cotangents, 0)
        # The sum of a row's weights times their cotangents (Dao et al., 2022).
        product = build.apply("Mul", *(gradients.widened(build, x) for x in (outputs[0], cotangent)))
        deltas = gradients.summed(build, product, [build.type_of(product).rank - 1], keep=True)
        if len(outputs) == 1 or needed[4]:
            given = (q, k, v, mask, bias)
            how = AttentionScores.of(node.attributes)
            return attention_gradients(build, how, given, cotangent, deltas, needed)[: len(inputs)]
        count = 3 if needed[1] or needed[2] else 1
        read = [q, k, v, cotangent, outputs[1], deltas, mask, bias]
        return build.apply_all("AttentionGradient", read, count, "vkml", **node.attributes)

    def lower(self, build: Lowering[V], node: Node, inputs: Sequence[V | None]) -> Sequence[V | None] | None:
        q, k, v = (given(inputs, index) for index in range(3))
        heads, how = heads_and_scoring(node, q, k, v, optional(inputs, 3), optional(inputs, 4))
        return build.attention(*heads, how, keeps_sums=any(node.outputs[1:]))


def heads_and_scoring(
    node: Node, q: V, k: V, v: V, mask: V | None, bias: V | None
) -> tuple[tuple[V, V, V], Scoring[V]]:
    """Queries, keys and values as (batch, heads, rows, columns), broadcast, and how scores are made of them.

    Raises:
        CannotLower: attention in one step knows no such.
    """
    attributes = node.attributes
    scores, results = attention_geometry(node, q.shape, k.shape, v.shape)
    if attributes["is_key_transposed"]:
        rank = len(k.shape)
        k = k.transpose((*range(rank - 2), rank - 1, rank - 2))
    if len(results.batch) > 2:
        raise CannotLower(f"attention over {len(results.batch)} axes of batches")
    batch = (1,) * (2 - len(results.batch)) + tuple(results.batch)
    group, offset, fill = (attributes[name] for name in ("group", "causal_offset", "fill"))
    is_added = bool(attributes["is_fill_added"])
    if offset is None and is_added:
        raise CannotLower("attention with numbers added where a mask says so")

    def heads(view: V, rows: int, columns: int, sharing: int = 1) -> V:
        return view.expand((batch[0], batch[1] // sharing, rows, columns))

    operands = (
        heads(q, scores.m, scores.k),
        heads(k, scores.n, scores.k, group),
        heads(v, scores.n, results.n, group),
    )
    return operands, Scoring(
        scale=attributes["scale"],
        mask=None if mask is None else heads(mask, scores.m, scores.n),
        keeps=not attributes["is_mask_hiding"],
        fill=fill,
        bias=None if bias is None else heads(bias, scores.m, scores.n),
        causal=None if offset is None else (offset, fill, is_added),
        softcap=attributes["softcap"],
        is_empty_zero=bool(attributes["is_empty_zero"]),
        is_nan_zero=bool(attributes["is_nan_zero"]),
    )
