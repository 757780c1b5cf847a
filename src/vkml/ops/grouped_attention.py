"""GroupQueryAttention of com.microsoft, as steps round `vkml.Attention`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Generic

from vkml.dataclasses import dataclass
from vkml.errors import InvalidGraph, NotImplemented, ShapeError
from vkml.ir import scalar
from vkml.ir.dtypes import BOOL, FLOATS, INT32, INT64
from vkml.ir.gradients import Emitter, T, converted, expanded, expression, padded, reshaped, sliced, zeros
from vkml.ir.graph import Node
from vkml.ir.operator import FLOAT, INT, OPTIONAL, REQUIRED, Array, Operator, operator
from vkml.ir.size import is_number
from vkml.ir.types import Known, TensorType
from vkml.ops.attention_heads import Stage, apart, attended, lengthened, root_scale, seen_keys, together
from vkml.ops.attention_steps import AttentionScores
from vkml.ops.checks import (
    integers,
    optional,
    present,
    require_dtype,
    require_rank,
    require_same_dtype,
    required,
)
from vkml.ops.quantized_cache import (
    cache_dtype,
    check_quantization,
    dequantized,
    packed_columns,
    quantized,
    scale_count,
    with_room,
)
from vkml.ops.stepwise import evaluate_steps, infer_steps

_STAGES: tuple[Stage | None, ...] = (None, "biased", "weights")
_NAMES = (
    "the queries", "the keys", "the values", "past keys", "past values", "", "", "the cosines", "the sines",
    "", "the added numbers", "the sinks", "", "", "the queries' scale", "the keys' scale",
)  # fmt: skip


@dataclass(frozen=True)
class _Cached(Generic[T]):
    """Keys or values, with those of before."""

    seen: T
    """What rows look at."""
    kept: T
    """What the next call is given."""


@operator()
class GroupQueryAttention(Operator):
    """Causal attention of heads, several of which share keys and values that are kept from call to call.

    Inputs: queries (batch, rows, heads * columns), keys and values likewise, of fewer heads, or all three
    side by side as the first; keys and values of before, (batch, heads, places, columns), behind which there
    may be room for more; for each batch, how many keys it has with those of this call, less 1; how many the
    longest has; tables of cosines and sines [positions, pairs], for `do_rotary`; the position of each row;
    numbers that are added to scores, (batch or 1, heads or 1, rows, keys); for each head a score of what is
    nothing; scales of kept keys and values that are quantised (`ops/quantized_cache.py`); scales of queries
    and keys, whose root mean square becomes 1 before they turn; how many of each batch's rows count, the
    first ones. Outputs: (batch, rows, heads * columns), keys and values with those of before, the scores
    before (`qk_output` 1) or behind (2) their Softmax.

    A row sees the last `local_window_size` keys, its own among them; all before it, where that is -1. Where
    only some rows count, the number of the longest batch's keys is one that none has more than, and what
    comes of other rows is not said.
    """

    domain = "com.microsoft"
    inputs = (7, 17)
    outputs = (1, 4)
    attributes = {
        "causal": 1,
        "do_rotary": 0,
        "k_norm_epsilon": OPTIONAL,
        "k_quant_type": "NONE",
        "kv_cache_bit_width": 0,
        "kv_num_heads": REQUIRED,
        "local_window_size": -1,
        "num_heads": REQUIRED,
        "q_norm_epsilon": OPTIONAL,
        "qk_norm_epsilon": 1e-6,
        "qk_output": 0,
        "rotary_interleaved": 0,
        "scale": OPTIONAL,
        "sliding_window_cache": 0,
        "smooth_softmax": -1,
        "softcap": 0.0,
        "v_quant_type": "NONE",
    }
    attribute_types = {
        "k_norm_epsilon": FLOAT,
        "kv_num_heads": INT,
        "num_heads": INT,
        "q_norm_epsilon": FLOAT,
        "scale": FLOAT,
    }
    value_inputs = (6,)
    is_stepwise = True

    def check(self, node: Node) -> None:
        attributes = node.attributes
        heads, shared = attributes["num_heads"], attributes["kv_num_heads"]
        if heads < 1 or shared < 1 or heads % shared:
            raise InvalidGraph(f"{node.label}: {heads} heads of queries share {shared} of keys")
        if attributes["qk_output"] not in (0, 1, 2):
            raise InvalidGraph(f"{node.label}: qk_output is 0 to 2, not {attributes['qk_output']}")
        if attributes["local_window_size"] != -1 and attributes["local_window_size"] < 1:
            raise InvalidGraph(f"{node.label}: local_window_size is {attributes['local_window_size']}")
        if not attributes["causal"] and attributes["local_window_size"] != -1:
            raise InvalidGraph(f"{node.label}: a window (local_window_size) with causal=0")
        if attributes["sliding_window_cache"]:
            raise NotImplemented(f"{node.label}: caches that forget (sliding_window_cache) are not supported")
        for at, what in enumerate("kv"):
            check_quantization(node, what, bool(node.inputs[12 + at : 13 + at] and node.inputs[12 + at]))

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        heads, shared = node.attributes["num_heads"], node.attributes["kv_num_heads"]
        q, k, v = required(node, inputs, 0), optional(inputs, 1), optional(inputs, 2)
        require_dtype(node, q, FLOATS, "the queries")
        kinds = [cache_dtype(node, what, q.dtype) for what in "kv"]
        for at, known in enumerate(inputs):
            if known is None or at >= len(_NAMES) or not _NAMES[at]:
                continue
            if at in (3, 4) and kinds[at - 3] != q.dtype:
                require_dtype(node, known, (kinds[at - 3],), _NAMES[at])
            else:
                require_same_dtype(node, q, known, _NAMES[at])
        for index, other in ((1, 2), (3, 4), (7, 8)):
            if (optional(inputs, index) is None) != (optional(inputs, other) is None):
                raise InvalidGraph(f"{node.label}: {_NAMES[index]} and {_NAMES[other][4:]} come together")
        if node.attributes["do_rotary"] and optional(inputs, 7) is None:
            raise InvalidGraph(f"{node.label}: do_rotary=1 without tables of cosines and sines")
        total = 2 * shared + heads if k is None else heads
        for known, count, what in ((q, total, "queries"), (k, shared, "keys"), (v, shared, "values")):
            if known is not None:
                require_rank(node, known, 3, 3, f"the {what}")
                if known.dims[2] % count:
                    raise ShapeError(f"{node.label}: {known.dims[2]} columns of {what} are no {count} heads")
                if known.dims[:2] != q.dims[:2]:
                    raise ShapeError(
                        f"{node.label}: {what} are {list(known.dims)}, which does not fit queries of "
                        f"{list(q.dims)}"
                    )
        batch, rows, columns = *q.dims[:2], q.dims[2] // total
        lengths = required(node, inputs, 5)
        require_dtype(node, lengths, (INT32, INT64), "the numbers of keys")
        if lengths.type.elements != batch:
            raise ShapeError(
                f"{node.label}: numbers of keys of shape {list(lengths.dims)} for {batch} batches"
            )
        past: Known | None = optional(inputs, 3)
        widths = [packed_columns(node, what, columns) for what in "kv"]
        if past is not None:
            room = past.dims[2] if past.rank > 2 else 0
            for known, what, width in (
                (past, "past keys", widths[0]),
                (required(node, inputs, 4), "past values", widths[1]),
            ):
                wanted = (batch, shared, room, width)
                if known.dims != wanted:
                    raise ShapeError(f"{node.label}: {what} are {list(known.dims)}, not {list(wanted)}")
        for at, what in ((12, "k"), (13, "v")):
            scale: Known | None = optional(inputs, at)
            if scale is not None:
                require_dtype(node, scale, FLOATS, f"{what}_scale")
                count = scale_count(node, what, shared * columns)
                if scale.type.elements != count:
                    raise ShapeError(
                        f"{node.label}: {what}_scale has {scale.type.elements} elements, not {count}"
                    )
        counts: Known | None = optional(inputs, 16)
        if counts is not None:
            require_dtype(node, counts, (INT32, INT64), "the numbers of rows that count")
            if counts.type.elements != batch:
                raise ShapeError(
                    f"{node.label}: query_seqlens of shape {list(counts.dims)} for {batch} batches"
                )
        longest = required(node, inputs, 6)
        require_dtype(node, longest, (INT32, INT64), "the number of keys of the longest batch")
        if longest.type.elements != 1:
            raise ShapeError(f"{node.label}: the number of keys of the longest batch is one number")
        if longest.value is None:
            caches = [
                TensorType(kind, (batch, shared, None, width))
                for kind, width in zip(kinds, widths, strict=True)
            ]
            results = (TensorType(q.dtype, (batch, rows, heads * columns)), *caches)
            return [*results, TensorType(q.dtype, (batch, heads, rows, None))][: len(node.outputs)]
        room = 0 if past is None else past.dims[2]
        [keys] = integers(longest.value)
        if counts is None and (keys < rows or room < keys - rows):
            raise ShapeError(
                f"{node.label}: {keys} keys, of which {rows} are this call's, with {room} of before"
            )
        return infer_steps(node, inputs)

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        return evaluate_steps(node, inputs)

    def steps(self, build: Emitter[T], node: Node, inputs: Sequence[T | None]) -> Sequence[T | None] | None:
        attributes = node.attributes
        given = build.elements_of(present(inputs, 6))
        if given is None:
            return None
        [keys] = integers(given)
        q, k, v = self._heads(build, node, inputs)
        batch, _, rows, _ = build.type_of(q).dims
        # The place of the first row: one number, or one for each of several batches that have a past.
        first: T | None = None
        before = keys - rows
        stated: T = present(inputs, 5)
        lengths: T = converted(build, reshaped(build, stated, (batch,)), INT64)
        counts: T | None = optional(inputs, 16)
        if counts is not None:
            counts = converted(build, reshaped(build, counts, (batch,)), INT64)
            keys_of = build.apply("Add", lengths, build.constant(1, INT64))
            first = build.apply("Sub", keys_of, counts)
            k, v = (_counted(build, x, counts) for x in (k, v))
        elif batch != 1 and before != 0:
            first = build.apply("Add", lengths, build.constant(1 - rows, INT64))
        if attributes["do_rotary"]:
            q, k = self._turned(build, node, inputs, (q, k), keys, first, counts is not None)
        caches = []
        for at, x in ((3, k), (4, v)):
            past, scale = optional(inputs, at), optional(inputs, at + 9)
            if scale is not None:
                x = quantized(build, node, x, scale)
            if counts is not None:
                past = with_room(build, past, x, keys)
            cache = _cached(build, past, x, keys, first)
            if counts is not None:
                end = build.type_of(cache.kept).dims[2] - rows
                cache = replace(cache, kept=sliced(build, cache.kept, 2, 0, end))
            if scale is not None:
                cache = replace(cache, seen=dequantized(build, node, cache.seen, scale, q))
            caches.append(cache)
        mask, causal_offset = self._mask(build, node, lengths, batch, rows, keys, first)
        bias = optional(inputs, 10)
        if bias is not None:
            bias = lengthened(build, bias, keys, -math.inf)
        seen = [cache.seen for cache in caches]
        sink = optional(inputs, 11)
        if sink is None and attributes["smooth_softmax"] == 1:
            sink = build.constant([0.0] * attributes["num_heads"], build.type_of(q).dtype)
        if sink is not None:
            mask, bias, seen = _with_sink(build, sink, mask, bias, seen)
            causal_offset = None if causal_offset is None else causal_offset + 1
        how = AttentionScores(
            scale=root_scale(build, q, attributes["scale"]),
            softcap=attributes["softcap"],
            group=attributes["num_heads"] // attributes["kv_num_heads"],
            is_empty_zero=mask is not None,
            causal_offset=causal_offset,
        )
        stage = _STAGES[attributes["qk_output"]] if len(node.outputs) > 3 and node.outputs[3] else None
        made, scores = attended(build, how, (q, *seen), mask, bias, stage=stage)
        if scores is not None:
            scores = _shown(build, scores, keys)
        results = [together(build, made), *(cache.kept for cache in caches), scores]
        return results[: len(node.outputs)]

    def _heads(self, build: Emitter[T], node: Node, inputs: Sequence[T | None]) -> list[T]:
        """Queries, keys and values, (batch, heads, rows, columns), of root mean square 1 where that is so."""
        heads, shared = node.attributes["num_heads"], node.attributes["kv_num_heads"]
        q, k, v = present(inputs, 0), optional(inputs, 1), optional(inputs, 2)
        parts = [q, k, v]
        if k is None:
            width = build.type_of(q).dims[2] // (heads + 2 * shared)
            ends = [0, *(count * width for count in (heads, heads + shared, heads + 2 * shared))]
            parts = [sliced(build, q, 2, *ends[at : at + 2]) for at in range(3)]
        made = []
        for part, count, at, which in zip(parts, (heads, shared, shared), (14, 15, 16), "qkv", strict=True):
            assert part is not None
            x = apart(build, part, count)
            scale = optional(inputs, at) if which != "v" else None
            if scale is not None:
                stated = node.attributes[f"{which}_norm_epsilon"]
                epsilon = node.attributes["qk_norm_epsilon"] if stated is None else stated
                x = build.apply("RMSNormalization", x, scale, axis=-1, epsilon=epsilon)
            made.append(x)
        return made

    def _turned(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        heads: Sequence[T],
        keys: int,
        first: T | None,
        is_short: bool,
    ) -> list[T]:
        """Queries and keys, turned; of some rows the places may be behind the tables (`is_short`)."""
        batch, _, rows, columns = build.type_of(heads[0]).dims
        tables, places = [present(inputs, at) for at in (7, 8)], optional(inputs, 9)
        pairs = build.type_of(tables[0]).dims[1]
        if places is None and first is not None:
            own = build.constant(list(range(rows)), INT64)
            places = build.apply("Add", reshaped(build, first, (batch, 1)), reshaped(build, own, (1, rows)))
            if is_short:
                last = build.constant(build.type_of(tables[0]).dims[0] - 1, INT64)
                places = build.apply("Min", places, last)
        if places is None:
            own_rows = (sliced(build, table, 0, keys - rows, keys) for table in tables)
            whole = (batch, rows, pairs)
            tables = [expanded(build, reshaped(build, x, (1, rows, pairs)), whole) for x in own_rows]
        return [
            build.apply(
                "RotaryEmbedding", x, *tables, places,
                interleaved=node.attributes["rotary_interleaved"],
                rotary_embedding_dim=0 if 2 * pairs == columns else 2 * pairs,
            )
            for x in heads
        ]  # fmt: skip

    def _mask(
        self, build: Any, node: Node, lengths: T, batch: int, rows: int, keys: int, first: T | None
    ) -> tuple[T | None, int | None]:
        """Which keys rows see, where more than causality decides, and the offset of the triangle.

        Args:
            build: the emitter.
            node: that is written.
            lengths: the keys of each batch less 1, (batch).
            batch: their number.
            rows: of queries.
            keys: of the longest batch.
            first: see `_cached`.
        """
        window, is_causal = node.attributes["local_window_size"], bool(node.attributes["causal"])
        left = window - 1 if window > 0 and window < keys else None
        if not is_causal:
            if batch == 1:
                return None, None
            ends = reshaped(build, lengths, (batch, 1, 1, 1))
            return seen_keys(build, 1, keys, ends, right=0), None
        if first is not None:
            place = reshaped(build, first, (batch, 1, 1, 1))
            return seen_keys(build, rows, keys, place, left=left, right=0), None
        before = keys - rows
        place = build.constant(before, INT64)
        if rows == 1:  # it sees all that is before it
            return seen_keys(build, rows, keys, place, left=left), None
        if is_number(before):
            return seen_keys(build, rows, keys, place, left=left), before
        return seen_keys(build, rows, keys, place, left=left, right=0), None


def _counted(build: Emitter[T], x: T, counts: T) -> T:
    """The first rows of each batch, zeros in the place of others: what is there must not be NaN."""
    batch, _, rows, _ = build.type_of(x).dims
    own = reshaped(build, build.constant(list(range(rows)), INT64), (1, 1, rows, 1))
    is_row = build.apply("Less", own, reshaped(build, counts, (batch, 1, 1, 1)))
    return build.apply("Where", is_row, x, build.constant(0, build.type_of(x).dtype))


def _cached(build: Emitter[T], past: T | None, now: T, keys: int, first: T | None) -> _Cached[T]:
    """Keys or values with those of before.

    Args:
        build: the emitter.
        past: (batch, heads, places, columns), of which the first ones count.
        now: the rows of this call.
        keys: how many there are then.
        first: where rows begin in each batch, (batch), else they are the last of the keys.
    """
    if past is None:
        return _Cached(now, now)
    room, rows = build.type_of(past).dims[2], build.type_of(now).dims[2]
    if first is not None:
        if room < keys:
            past = padded(build, past, (0, 0, 0, 0), (0, 0, keys - room, 0))
        kept = build.apply("TensorScatter", past, now, first, axis=2)
        return _Cached(sliced(build, kept, 2, 0, keys), kept)
    seen = now
    if keys != rows:
        seen = build.apply("Concat", sliced(build, past, 2, 0, keys - rows), now, axis=2)
    if room <= keys:
        return _Cached(seen, seen)
    return _Cached(seen, build.apply("Concat", seen, sliced(build, past, 2, keys, room), axis=2))


def _with_sink(
    build: Emitter[T], sink: T, mask: T | None, bias: T | None, seen: Sequence[T]
) -> tuple[T | None, T, list[T]]:
    """Mask, added numbers, keys and values with a first key of zeros, whose score is the sink's number."""
    batch, shared, keys, columns = build.type_of(seen[0]).dims
    heads = build.type_of(sink).elements
    nothing = zeros(build, TensorType(build.type_of(sink).dtype, (batch, shared, 1, columns)))
    made = [build.apply("Concat", nothing, each, axis=2) for each in seen]
    numbers = bias
    if numbers is None:
        numbers = zeros(build, TensorType(build.type_of(sink).dtype, (1, heads, 1, keys)))
    dims = build.type_of(numbers).dims
    numbers = expanded(build, numbers, (dims[0], heads, *dims[2:]))
    column = expanded(build, reshaped(build, sink, (1, heads, 1, 1)), (dims[0], heads, dims[2], 1))
    if mask is not None:
        ones = expanded(build, build.constant(True, BOOL), (*build.type_of(mask).dims[:-1], 1))
        mask = build.apply("Concat", ones, mask, axis=-1)
    return mask, build.apply("Concat", column, numbers, axis=-1), made


def _shown(build: Emitter[T], scores: T, keys: int) -> T:
    """Scores as an output: without that of a sink, 0 where a key is hidden."""
    dims, dtype = build.type_of(scores).dims, build.type_of(scores).dtype
    own = sliced(build, scores, 3, dims[3] - keys, dims[3])
    x = scalar.convert(scalar.argument(0, dtype), scalar.arithmetic_type(dtype))
    return expression(build, scalar.where(scalar.test("isneginf", x), 0.0, x), [own], dtype)
