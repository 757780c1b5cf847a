"""Attention in blocks of rows, one after the other: scores of one block are all that there is at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from vkml.dataclasses import dataclass
from vkml.ir.gradients import Emitter, T, sliced
from vkml.ir.size import is_number
from vkml.ops.attention_steps import AttentionScores

BLOCK_BYTES = 32 << 20
"""Of a block's scores, in float32. Keys and values are read, and their gradients added up, once a block: with
2048 rows and 8 heads of 64, both ways took 1.05 of the processor time in one piece, of 8 MiB 1.15;
under a causal mask 0.54 and 0.50."""
LEAST_ROWS = 32
"""Products of fewer are bound by memory."""
MOST_BLOCKS = 64
"""Each is some ten launches of a plan."""


@dataclass(frozen=True)
class RowBlock:
    """Queries `start` … `end` - 1, which see some of the first `keys` keys."""

    start: int
    end: int
    keys: int


def row_blocks(build: Emitter[T], how: AttentionScores, q: T, k: T) -> list[RowBlock]:
    """The rows of the queries in blocks, from the last to the first, which sees fewest keys.

    Args:
        build: the emitter.
        how: scores are made.
        q: queries.
        k: keys.

    Returns:
        one block where sizes are open.
    """
    dims, of_keys = build.type_of(q).dims, build.type_of(k).dims
    rows, keys = dims[-2], of_keys[-1 if how.is_key_transposed else -2]
    if not all(map(is_number, (*dims, *of_keys))):
        return [RowBlock(0, rows, keys)]
    # Of heads that are shared, each row has its own scores: batches are those of the queries.
    batch = dims[:-2] if how.group != 1 else np.broadcast_shapes(dims[:-2], of_keys[:-2])
    row_bytes = 4 * math.prod(batch) * keys
    count = min(MOST_BLOCKS, -(-rows * row_bytes // BLOCK_BYTES), rows // LEAST_ROWS)
    if count <= 1:
        return [RowBlock(0, rows, keys)]
    height = -(-rows // count)
    hides = how.causal_offset is not None and how.fill == -math.inf
    blocks = []
    for start in range(0, rows, height):
        end = min(rows, start + height)
        seen = min(keys, max(1, end + (how.causal_offset or 0))) if hides else keys
        blocks.append(RowBlock(start, end, seen))
    return blocks[::-1]


def rows_of(build: Emitter[T], x: T, block: RowBlock) -> T:
    """A block's rows of a value [..., rows, columns]."""
    return sliced(build, x, build.type_of(x).rank - 2, block.start, block.end)


def keys_of(build: Emitter[T], x: T, block: RowBlock, *, is_transposed: bool = False) -> T:
    """The keys, or values, that a block sees."""
    return sliced(build, x, build.type_of(x).rank - (1 if is_transposed else 2), 0, block.keys)


def scores_of(build: Emitter[T], x: T | None, block: RowBlock) -> T | None:
    """What of a mask or a bias, which broadcasts to all scores, is for a block."""
    if x is None:
        return None
    dims: Sequence[int] = build.type_of(x).dims
    if len(dims) > 1 and dims[-2] != 1:
        x = rows_of(build, x, block)
    if dims and dims[-1] != 1:
        x = sliced(build, x, len(dims) - 1, 0, block.keys)
    return x
