"""Gradients of attention: the scores are made again, from which those of queries, keys and values follow."""

from __future__ import annotations

from collections.abc import Sequence

from vkml.ir import scalar
from vkml.ir.dtypes import BOOL
from vkml.ir.gradients import (
    Emitter,
    T,
    behind,
    converted,
    expression,
    padded,
    pointwise,
    sum_to,
    widened,
)
from vkml.ir.scalar import Scalar, arithmetic_type
from vkml.ops.attention_blocks import RowBlock, keys_of, row_blocks, rows_of, scores_of
from vkml.ops.attention_steps import AttentionScores, flipped, gathered, kept, spread, weights_of


def attention_gradients(
    build: Emitter[T],
    how: AttentionScores,
    inputs: tuple[T, T, T, T | None, T | None],
    cotangent: T,
    deltas: T,
    needed: Sequence[bool],
) -> list[T | None]:
    """The cotangents of queries, keys, values, the mask (none) and the bias.

    Many rows are done in blocks, each behind the one before it.

    Args:
        build: the emitter.
        how: scores are made.
        inputs: queries, keys, values, the mask, the bias.
        cotangent: of the results.
        deltas: the sum of each row's weights times their cotangents, [..., rows, 1]: its result times its
            cotangent.
        needed: which are wanted.
    """
    q, k, v, mask, bias = inputs
    key_axis = -1 if how.is_key_transposed else -2
    if build.type_of(q).dims[-2] == 0 or build.type_of(k).dims[key_axis] == 0:
        return [None] * 5
    query, key, value, incoming = (widened(build, x) for x in (q, k, v, cotangent))
    parts: list[tuple[RowBlock, list[T | None]]] = []
    before: T | None = None
    for block in row_blocks(build, how, q, k):
        given = [
            rows_of(build, query, block),
            keys_of(build, key, block, is_transposed=how.is_key_transposed),
            keys_of(build, value, block),
            rows_of(build, incoming, block),
        ]
        if before is not None:
            given = [behind(build, x, before) for x in given]
        rows, seen, weighed, of_results = given
        adjusting = scores_of(build, mask, block), scores_of(build, bias, block)
        per_row = rows_of(build, deltas, block)
        found = _of_block(build, how, block, (rows, seen, weighed, *adjusting), of_results, per_row, needed)
        parts.append((block, found))
        before = next((x for x in found if x is not None), None)
    axes = (None, key_axis, -2)
    joined: list[T | None] = [None] * 5
    for at, x in enumerate(inputs):
        if x is None or parts[0][1][at] is None:
            continue
        type_ = build.type_of(x)
        by_rows = at == 0 or (at == 4 and type_.rank > 1 and type_.dims[-2] != 1)
        each = [(block, found[at]) for block, found in parts]
        axis = axes[at] if at < 3 else -1 if type_.rank and type_.dims[-1] != 1 else None
        size = None if axis is None else type_.dims[axis]
        whole = _stacked(build, each, axis, size) if by_rows else _summed(build, each, axis, size)
        joined[at] = converted(build, whole, type_.dtype)
    return joined


def _of_block(
    build: Emitter[T],
    how: AttentionScores,
    block: RowBlock,
    inputs: tuple[T, T, T, T | None, T | None],
    incoming: T,
    per_row: T,
    needed: Sequence[bool],
) -> list[T | None]:
    """The cotangents of what a block reads, of the types that are computed in."""
    query, key, value, mask, bias = inputs
    given, group = build.type_of(query).dims, how.group
    if how.is_key_transposed:
        key = flipped(build, key)
    queries, weighed = gathered(build, query, group), gathered(build, incoming, group)
    scores = spread(build, build.apply("MatMul", queries, flipped(build, key)), group, given)
    keeps = kept(build, how, scores, mask, block.start)
    masked = _masked(build, how, scores, keeps, bias)
    weights = weights_of(build, how, masked)
    found: list[T | None] = [None] * 5
    if needed[2]:
        of_value = build.apply("MatMul", flipped(build, gathered(build, weights, group)), weighed)
        found[2] = sum_to(build, of_value, build.type_of(value).dims)
    if not (needed[0] or needed[1] or needed[4]):
        return found
    of_weights = spread(build, build.apply("MatMul", weighed, flipped(build, value)), group, given)
    of_scores = pointwise(build, lambda w, x, total: w * (x - total), weights, of_weights, per_row)
    if bias is not None and needed[4]:
        found[4] = sum_to(build, of_scores, build.type_of(bias).dims)
    if needed[0] or needed[1]:
        of_products = gathered(build, _scaled(build, how, of_scores, scores, keeps), group)
        if needed[0]:
            of_query = spread(build, build.apply("MatMul", of_products, key), group, given)
            found[0] = sum_to(build, of_query, given)
        if needed[1]:
            of_key = build.apply("MatMul", flipped(build, of_products), queries)
            of_key = sum_to(build, of_key, build.type_of(key).dims)
            found[1] = flipped(build, of_key) if how.is_key_transposed else of_key
    return found


def _summed(
    build: Emitter[T], parts: Sequence[tuple[RowBlock, T | None]], axis: int | None, size: int | None
) -> T:
    """The sum over blocks; those that see fewer keys along an axis have nothing for the others."""
    total: T | None = None
    for _, part in parts:
        assert part is not None
        filled = _filled(build, part, axis, size)
        total = filled if total is None else build.apply("Add", total, filled)
    assert total is not None
    return total


def _stacked(
    build: Emitter[T], parts: Sequence[tuple[RowBlock, T | None]], axis: int | None, size: int | None
) -> T:
    """The rows of all blocks."""
    rows = []
    for _, part in parts[::-1]:
        assert part is not None
        rows.append(_filled(build, part, axis, size))
    return rows[0] if len(rows) == 1 else build.apply("Concat", *rows, axis=-2)


def _filled(build: Emitter[T], part: T, axis: int | None, size: int | None) -> T:
    """A part with zeros behind it, up to a size along an axis."""
    dims = build.type_of(part).dims
    if axis is None or size is None or dims[axis] is size:
        return part
    ends = [0] * len(dims)
    ends[axis] = size - dims[axis]
    return padded(build, part, [0] * len(dims), ends)


def _capped(form: Scalar, how: AttentionScores) -> Scalar:
    """The tanh of a scaled score over the cap."""
    return scalar.unary("tanh", form / how.softcap)


def _masked(build: Emitter[T], how: AttentionScores, scores: T, keeps: T | None, bias: T | None) -> T:
    """The scores that weights are made of."""
    given = [scores, *(x for x in (keeps, bias) if x is not None)]
    elements = [scalar.argument(at, arithmetic_type(build.type_of(x).dtype)) for at, x in enumerate(given)]
    dtype = elements[0].dtype
    form = elements.pop(0) * how.scale
    if how.softcap:
        form = _capped(form, how) * how.softcap
    if keeps is not None:
        fill = scalar.constant(how.fill, dtype)
        form = scalar.where(elements.pop(0), form, form + fill if how.is_fill_added else fill)
    if bias is not None:
        form = form + scalar.convert(elements.pop(0), dtype)
    return expression(build, form, given, dtype)


def _scaled(build: Emitter[T], how: AttentionScores, of_scores: T, scores: T, keeps: T | None) -> T:
    """The cotangent of the products: nothing where a number has taken a score's place."""
    dtype = build.type_of(of_scores).dtype
    given = [of_scores]
    form = scalar.argument(0, dtype) * how.scale
    if how.softcap:
        cap = _capped(scalar.argument(1, dtype) * how.scale, how)
        form = form * (1 - cap * cap)
        given.append(scores)
    if keeps is not None and not how.is_fill_added:
        form = scalar.where(scalar.argument(len(given), BOOL), form, 0.0)
        given.append(keeps)
    return expression(build, form, given, dtype)
