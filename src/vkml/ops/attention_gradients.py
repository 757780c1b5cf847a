"""Gradients of attention: the scores are made again, from which those of queries, keys and values follow."""

from __future__ import annotations

from collections.abc import Sequence

from vkml.ir import scalar
from vkml.ir.dtypes import BOOL
from vkml.ir.gradients import (
    Emitter,
    T,
    converted,
    expression,
    pointwise,
    sum_to,
    summed,
    transposed,
    widened,
)
from vkml.ir.scalar import arithmetic_type
from vkml.ops.attention_steps import AttentionScores, kept


def attention_gradients(
    build: Emitter[T],
    how: AttentionScores,
    inputs: tuple[T, T, T, T | None, T | None],
    output: T,
    cotangent: T,
    needed: Sequence[bool],
) -> list[T | None]:
    """The cotangents of queries, keys, values, the mask (none) and the bias.

    A row's weights and their cotangents are not multiplied to sum them up: that sum is the output times its
    cotangent (Dao et al., 2022).

    Args:
        build: the emitter.
        how: scores are made.
        inputs: queries, keys, values, the mask, the bias.
        output: of the node.
        cotangent: of the output.
        needed: which are wanted.
    """
    q, k, v, mask, bias = inputs
    dtype = build.type_of(q).dtype
    if build.type_of(q).dims[-2] == 0 or build.type_of(k).dims[-1 if how.is_key_transposed else -2] == 0:
        return [None] * 5
    query, key, value, made, incoming = (widened(build, x) for x in (q, k, v, output, cotangent))
    if how.is_key_transposed:
        key = _flipped(build, key)
    scores = build.apply("MatMul", query, _flipped(build, key))
    keeps = kept(build, how, scores, mask)
    weights = build.apply("Softmax", _masked(build, how, scores, keeps, bias), axis=-1)
    found: list[T | None] = [None] * 5
    if needed[2]:
        found[2] = _fitted(build, build.apply("MatMul", _flipped(build, weights), incoming), v)
    if not (needed[0] or needed[1] or needed[4]):
        return found
    per_row = summed(build, build.apply("Mul", made, incoming), [build.type_of(made).rank - 1], keep=True)
    of_weights = build.apply("MatMul", incoming, _flipped(build, value))
    of_scores = pointwise(build, lambda w, x, total: w * (x - total), weights, of_weights, per_row)
    if bias is not None and needed[4]:
        found[4] = _fitted(build, of_scores, bias)
    if needed[0] or needed[1]:
        of_products = _scaled(build, how, of_scores, keeps)
        if needed[0]:
            found[0] = _fitted(build, build.apply("MatMul", of_products, key), q)
        if needed[1]:
            of_key = build.apply("MatMul", _flipped(build, of_products), query)
            found[1] = _fitted(build, _flipped(build, of_key) if how.is_key_transposed else of_key, k)
    assert all(x is None or build.type_of(x).dtype == dtype for x in found[:3])
    return found


def _flipped(build: Emitter[T], x: T) -> T:
    rank = build.type_of(x).rank
    return transposed(build, x, [*range(rank - 2), rank - 1, rank - 2])


def _fitted(build: Emitter[T], x: T, original: T) -> T:
    """A cotangent of the shape and type of what it is of."""
    type_ = build.type_of(original)
    return converted(build, sum_to(build, x, type_.dims), type_.dtype)


def _masked(build: Emitter[T], how: AttentionScores, scores: T, keeps: T | None, bias: T | None) -> T:
    """The scores that weights are made of."""
    given = [scores, *(x for x in (keeps, bias) if x is not None)]
    elements = [scalar.argument(at, arithmetic_type(build.type_of(x).dtype)) for at, x in enumerate(given)]
    dtype = elements[0].dtype
    form = elements.pop(0) * how.scale
    if keeps is not None:
        fill = scalar.constant(how.fill, dtype)
        form = scalar.where(elements.pop(0), form, form + fill if how.is_fill_added else fill)
    if bias is not None:
        form = form + scalar.convert(elements.pop(0), dtype)
    return expression(build, form, given, dtype)


def _scaled(build: Emitter[T], how: AttentionScores, of_scores: T, keeps: T | None) -> T:
    """The cotangent of the products: nothing where a number has taken a score's place."""
    dtype = build.type_of(of_scores).dtype
    form = scalar.argument(0, dtype) * how.scale
    if keeps is None or how.is_fill_added:
        return expression(build, form, [of_scores], dtype)
    form = scalar.where(scalar.argument(1, BOOL), form, 0.0)
    return expression(build, form, [of_scores, keeps], dtype)
