"""Heads apart and together, caches that grow, and which keys a row sees: what forms of attention share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Literal

from vkml.ir import scalar
from vkml.ir.dtypes import FLOAT32, INT32, INT64, DType
from vkml.ir.gradients import Emitter, T, converted, expanded, expression, reshaped, sliced, transposed
from vkml.ops.attention_steps import AttentionScores, attention_steps, positions

Stage = Literal["products", "capped", "biased", "weights"]
"""Of scores; see `AttentionSteps`."""


def apart(build: Emitter[T], x: T, heads: int) -> T:
    """Heads side by side, (batch, rows, heads * columns), as the second of four axes."""
    batch, rows, columns = build.type_of(x).dims
    return transposed(build, reshaped(build, x, (batch, rows, heads, columns // heads)), (0, 2, 1, 3))


def together(build: Emitter[T], x: T) -> T:
    """Heads (batch, heads, rows, columns) side by side: (batch, rows, heads * columns)."""
    batch, heads, rows, columns = build.type_of(x).dims
    return reshaped(build, transposed(build, x, (0, 2, 1, 3)), (batch, rows, heads * columns))


def attended(
    build: Emitter[T],
    how: AttentionScores,
    heads: Sequence[T],
    mask: T | None,
    bias: T | None,
    *,
    precision: DType | None = None,
    stage: Stage | None = None,
) -> tuple[T, T | None]:
    """The results of attention, and the scores at a stage where that is wanted.

    Args:
        build: the emitter.
        how: scores are made.
        heads: queries, keys and values.
        mask: of truth values, or None.
        bias: added to scores, or None.
        precision: of the Softmax; the queries' where it is None.
        stage: of the scores; None where nobody wants them.
    """
    q, k, v = heads
    dtype = build.type_of(q).dtype
    wanted = precision or dtype
    if stage is None and (wanted == dtype or (wanted == FLOAT32 and dtype.bits < FLOAT32.bits)):
        stated = {key: int(value) if isinstance(value, bool) else value for key, value in asdict(how).items()}
        # The second output is for gradients: what nobody reads is not computed.
        made = build.apply_all("Attention", [q, k, v, mask, bias], 2, "vkml", **stated)
        return made[0], None
    steps = attention_steps(build, how, q, k, v, mask, bias, wanted)
    return steps.results, None if stage is None else getattr(steps, stage)


def seen_keys(
    build: Emitter[T], rows: int, keys: int, first: T, *, left: int | None = None, right: int | None = None
) -> T | None:
    """Which keys a row sees, of (rows, keys), or (batch, 1, rows, keys); None for all.

    Args:
        build: the emitter.
        rows: their number.
        keys: their number.
        first: the place of the first row among the keys: one number, or (batch, 1, 1, 1).
        left: how many keys before its own a row sees, None for all.
        right: how many behind its own.
    """
    if left is None and right is None:
        return None
    places = build.apply("Unsqueeze", positions(build, keys), build.constant([0], INT64))
    own = build.apply("Add", reshaped(build, positions(build, rows), (rows, 1)), first)
    mask: T | None = None
    for op, width in (("GreaterOrEqual", left), ("LessOrEqual", right)):
        if width is None:
            continue
        bound = own
        if width:
            away = build.constant(width if op == "LessOrEqual" else -width, INT64)
            bound = build.apply("Add", own, away)
        mask = both(build, mask, build.apply(op, places, bound))
    return mask


def both(build: Emitter[T], first: T | None, second: T | None) -> T | None:
    """What two masks keep."""
    if first is None or second is None:
        return second if first is None else first
    return build.apply("And", first, second)


def either_bias(build: Emitter[T], first: T | None, second: T | None) -> T | None:
    """The sum of what is added to scores."""
    if first is None or second is None:
        return second if first is None else first
    return build.apply("Add", first, second)


def padding_bias(
    build: Emitter[T], mask: T, rows: int, keys: int, batch: int, number: float, dtype: DType
) -> T:
    """What is added to scores for a mask of com.microsoft's: 0 where a key counts, else a number.

    Args:
        build: the emitter.
        mask: whether a key counts: (batch, keys), (batch, rows, keys), or (batch, 1, most, most) of all rows
            and keys; or how many keys count, (batch), followed by how many of these do not, being before the
            others (2 batch), or by numbers that follow from these (3 batch + 2).
        rows: their number.
        keys: their number.
        batch: the number of batches.
        number: what hides a key.
        dtype: of the scores.
    """
    dims, kind = build.type_of(mask).dims, build.type_of(mask).dtype
    if len(dims) == 1:
        places = reshaped(build, positions(build, keys, INT32), (1, 1, 1, keys))
        bounds = [converted(build, sliced(build, mask, 0, 0, batch), INT32)]
        if dims[0] == 2 * batch:
            bounds.append(converted(build, sliced(build, mask, 0, batch, 2 * batch), INT32))
        values = [places, *(reshaped(build, each, (batch, 1, 1, 1)) for each in bounds)]
        place, *ends = (scalar.argument(at, INT32) for at in range(len(values)))
        counts = place < ends[0]
        if len(ends) > 1:
            counts = counts & (place >= ends[1])
    else:
        if len(dims) == 2:
            mask = reshaped(build, mask, (dims[0], 1, 1, dims[1]))
        elif len(dims) == 3:
            mask = reshaped(build, mask, (dims[0], 1, *dims[1:]))
        else:
            mask = sliced(build, sliced(build, mask, 2, keys - rows, keys), 3, 0, keys)
        values, counts = [mask], scalar.argument(0, kind) > 0
    zero = scalar.constant(0, FLOAT32)
    bias = expression(build, scalar.where(counts, zero, number), values, dtype)
    found = build.type_of(bias).dims[-1]
    return bias if found == keys else lengthened(build, bias, keys, number)


def lengthened(build: Emitter[T], mask: T, keys: int, value: float) -> T:
    """A mask that ends before the last key, with what hides the others behind it."""
    dims = build.type_of(mask).dims
    if dims[-1] == keys:
        return mask
    dtype: DType = build.type_of(mask).dtype
    rest = expanded(build, build.constant(value, dtype), (*dims[:-1], keys - dims[-1]))
    return build.apply("Concat", mask, rest, axis=-1)


def root_scale(build: Emitter[T], q: T, scale: float | None) -> float:
    """What scores are scaled by: what is stated, or one over the root of the columns."""
    return scale or 1 / math.sqrt(build.type_of(q).dims[-1])
