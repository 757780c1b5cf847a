"""Attention and MultiHeadAttention of com.microsoft, as steps round `vkml.Attention`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic

import numpy as np

from vkml.dataclasses import dataclass
from vkml.errors import InvalidGraph, NotImplemented, ShapeError
from vkml.ir.dtypes import FLOAT32, FLOATS, INT64
from vkml.ir.gradients import Emitter, T, converted, expanded, reshaped, sliced
from vkml.ir.graph import Node
from vkml.ir.operator import FLOAT, INT, INTS, OPTIONAL, REQUIRED, Array, Operator, operator, register
from vkml.ir.size import is_number
from vkml.ir.types import Known, TensorType
from vkml.ops.attention_heads import (
    apart,
    attended,
    either_bias,
    padding_bias,
    root_scale,
    seen_keys,
    together,
)
from vkml.ops.attention_steps import AttentionScores, positions
from vkml.ops.checks import optional, present, require_dtype, require_rank, require_same_dtype, required
from vkml.ops.extension import Extension, Writer
from vkml.ops.stepwise import evaluate_steps, infer_steps

_HIDING = -10000.0
"""What is added to the scores of keys that a mask hides, where nothing else is stated."""


@dataclass(frozen=True)
class _Scores(Generic[T]):
    """What decides scores besides queries and keys."""

    is_causal: bool
    scale: float | None
    hiding: float | None
    mask: T | None
    """See `padding_bias`."""
    bias: T | None


@dataclass(frozen=True)
class _Attended(Generic[T]):
    results: T
    keys: T
    """With those of before."""
    values: T
    scores: T | None


def _attended(
    build: Emitter[T],
    heads: Sequence[T],
    past: Sequence[T] | None,
    count: T | None,
    how: _Scores[T],
    is_kept: bool,
) -> _Attended[T]:
    """Attention of heads to those of before and their own.

    Args:
        build: the emitter.
        heads: queries, keys and values, (batch, heads, rows, columns).
        past: keys and values of before.
        count: how many of these there are, where they are buffers with room for more; else None.
        how: scores are made.
        is_kept: whether the scores are wanted.
    """
    q, k, v = heads
    batch, _, rows, _ = build.type_of(q).dims
    before = 0
    first: T | None = None
    if past is not None and count is not None:
        first = expanded(build, converted(build, reshaped(build, count, (1,)), INT64), (batch,))
        k, v = (
            build.apply("TensorScatter", whole, x, first, axis=2)
            for whole, x in zip(past, (k, v), strict=True)
        )
    elif past is not None:
        before = build.type_of(past[0]).dims[2]
        k, v = (build.apply("Concat", old, x, axis=2) for old, x in zip(past, (k, v), strict=True))
    keys, dtype = build.type_of(k).dims[2], build.type_of(q).dtype
    mask: T | None = None
    causal_offset: int | None = None
    if first is not None:
        # Of a buffer only what has been written counts, so causality for one row, and more for others.
        last = reshaped(build, first, (batch, 1, 1, 1))
        if not how.is_causal:
            more = build.constant(rows - 1, INT64)
            own = reshaped(build, positions(build, rows), (rows, 1))
            last = build.apply("Sub", build.apply("Add", last, more), own)
        mask = seen_keys(build, rows, keys, last, right=0)
    elif how.is_causal and is_number(before):
        causal_offset = before
    elif how.is_causal and keys != before + 1:  # the only row sees all that is before it
        mask = seen_keys(build, rows, keys, build.constant(before, INT64), right=0)
    bias = None if how.bias is None else converted(build, how.bias, dtype)
    if how.mask is not None:
        hiding = _HIDING if how.hiding is None else how.hiding
        bias = either_bias(build, bias, padding_bias(build, how.mask, rows, keys, batch, hiding, dtype))
    scores = AttentionScores(scale=root_scale(build, q, how.scale), causal_offset=causal_offset)
    results, kept = attended(build, scores, (q, k, v), mask, bias, stage="biased" if is_kept else None)
    return _Attended(results, k, v, kept)


def _check_heads(node: Node) -> None:
    if node.attributes["num_heads"] < 1:
        raise InvalidGraph(f"{node.label}: num_heads is {node.attributes['num_heads']}")


def _check_columns(node: Node, columns: int, what: str) -> None:
    heads = node.attributes["num_heads"]
    if columns % heads:
        raise ShapeError(f"{node.label}: {columns} columns of {what} are no {heads} heads")


def _check_mask(
    node: Node, mask: Known | None, batch: int, rows: int, keys: int | None, counted: Sequence[int]
) -> None:
    """Whether a mask is one of `padding_bias`.

    Args:
        node: that has it.
        mask: as it is known.
        batch: the number of batches.
        rows: of queries.
        keys: their number; None where only a run knows how many of a buffer count.
        counted: the lengths that a list of numbers of keys may have.
    """
    if mask is None:
        return
    if not mask.dtype.is_integer:
        raise InvalidGraph(f"{node.label}: the mask has element type {mask.dtype.name}")
    dims, last = mask.dims, mask.dims[-1] if keys is None else keys
    shapes = [(batch, last), (batch, rows, last)]
    if mask.rank == 1:
        fits = any(dims[0] == count for count in counted)
    elif mask.rank == 4:
        fits = dims[:2] == (batch, 1) and keys is not None and dims[2] == dims[3] and dims[2] >= keys
    else:
        fits = dims in shapes
    if not fits:
        raise ShapeError(
            f"{node.label}: the mask has the shape {list(dims)}; for {batch} batches, {rows} rows and "
            f"{'a buffer of' if keys is None else keys} keys it must be {list(shapes[0])}, {list(shapes[1])} "
            f"or a list of {' or '.join(map(str, counted))}"
        )


@operator()
class MultiHeadAttention(Operator):
    """softmax(scale · Q Kᵀ, masked) V of heads, between products that are nodes of their own.

    Inputs: queries (batch, rows, columns), keys and values likewise; or keys and values of heads, (batch,
    heads, keys, columns); or keys and values of each head side by side, (batch, keys, heads, 2, columns); or
    all three, (batch, rows, heads, 3, columns). A bias that is added to all columns of the three; a mask (see
    `padding_bias`); numbers that are added to scores; keys and values of before, (batch, heads, keys,
    columns), with how many of them count where there is room for more behind. Outputs: (batch, rows,
    columns), keys and values with those of before, and the scores before their Softmax.
    """

    domain = "com.microsoft"
    inputs = (1, 10)
    outputs = (1, 4)
    attributes = {
        "mask_filter_value": OPTIONAL,
        "num_heads": REQUIRED,
        "scale": OPTIONAL,
        "unidirectional": 0,
    }
    attribute_types = {"mask_filter_value": FLOAT, "num_heads": INT, "scale": FLOAT}
    is_stepwise = True

    def check(self, node: Node) -> None:
        _check_heads(node)
        if any(node.inputs[9:]):
            raise NotImplemented(
                f"{node.label}: caches of several beams (cache_indirection) are not supported"
            )

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        q, k, v = required(node, inputs, 0), optional(inputs, 1), optional(inputs, 2)
        require_dtype(node, q, FLOATS, "the queries")
        if k is None or k.rank == 5:
            require_rank(node, q, 3, 3 if k is not None else 5, "the queries")
            if v is not None:
                raise InvalidGraph(
                    f"{node.label}: values besides those in the {'queries' if k is None else 'keys'}"
                )
        elif v is None:
            raise InvalidGraph(f"{node.label}: there are keys and no values")
        else:
            require_rank(node, q, 3, 3, "the queries")
            require_rank(node, k, 3, 4, "the keys")
            require_rank(node, v, k.rank, k.rank, "the values")
        for at, known in enumerate(inputs[:8]):
            if known is not None and at != 4:
                require_same_dtype(node, q, known, _NAMES[at])
        heads = node.attributes["num_heads"]
        for known, parts, what in ((q, 3, "queries"), (k, 2, "keys"), (v, 1, "values")):
            if known is None:
                continue
            if known.rank == 5 and known.dims[2:4] != (heads, parts):
                raise ShapeError(
                    f"{node.label}: {what} are {list(known.dims)}, (…, {heads}, {parts}, columns) is needed"
                )
            if known.rank == 4 and known.dims[1] != heads:
                raise ShapeError(
                    f"{node.label}: {what} are {list(known.dims)}, (…, {heads}, keys, columns) is needed"
                )
            if known.rank == 3:
                _check_columns(node, known.dims[2] // (3 if k is None else 1), what)
        if (optional(inputs, 6) is None) != (optional(inputs, 7) is None):
            raise InvalidGraph(f"{node.label}: past keys and past values come together")
        _check_mask(node, *self._mask_shapes(node, inputs))
        return infer_steps(node, inputs)

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        return evaluate_steps(node, inputs)

    def _mask_shapes(
        self, node: Node, inputs: Sequence[Known | None]
    ) -> tuple[Known | None, int, int, int | None, Sequence[int]]:
        """The mask, and by what it is judged; see `_check_mask`."""
        q, k, past = required(node, inputs, 0), optional(inputs, 1), optional(inputs, 6)
        batch, rows = q.dims[:2]
        own = rows if k is None else k.dims[2 if k.rank == 4 else 1]
        before = 0 if past is None else past.dims[2]
        keys = None if optional(inputs, 8) is not None else before + own
        return optional(inputs, 4), batch, rows, keys, (batch, 2 * batch, 3 * batch + 2)

    def _heads(self, build: Emitter[T], node: Node, inputs: Sequence[T | None]) -> list[T]:
        """Queries, keys and values, (batch, heads, rows, columns), biased."""
        q, bias = present(inputs, 0), optional(inputs, 3)
        k, v = optional(inputs, 1), optional(inputs, 2)
        done: list[T] = []
        if k is None:
            flat = _columns(build, q) if build.type_of(q).rank == 3 else _packed(build, q)
        elif v is None:
            flat = [q, *_packed(build, k)]
        elif build.type_of(k).rank == 4:
            flat, done = [q], [k, v]  # of a cache, which has been biased
        else:
            flat = [q, k, v]
        made: list[T] = []
        start = 0
        for part in flat:
            width = build.type_of(part).dims[2]
            if bias is not None:
                part = build.apply("Add", part, sliced(build, bias, 0, start, start + width))
                start += width
            made.append(apart(build, part, node.attributes["num_heads"]))
        return made + done

    def steps(self, build: Emitter[T], node: Node, inputs: Sequence[T | None]) -> Sequence[T | None]:
        past_key, past_value = optional(inputs, 6), optional(inputs, 7)
        how = _Scores(
            bool(node.attributes["unidirectional"]),
            node.attributes["scale"],
            node.attributes["mask_filter_value"],
            optional(inputs, 4),
            optional(inputs, 5),
        )
        past = None if past_key is None or past_value is None else (past_key, past_value)
        is_kept = len(node.outputs) > 3 and bool(node.outputs[3])
        heads = self._heads(build, node, inputs)
        made = _attended(build, heads, past, optional(inputs, 8), how, is_kept)
        results = [together(build, made.results), made.keys, made.values, made.scores]
        return results[: len(node.outputs)]


def _columns(build: Emitter[T], x: T) -> list[T]:
    """Thirds of the columns."""
    width = build.type_of(x).dims[2] // 3
    return [sliced(build, x, 2, at * width, (at + 1) * width) for at in range(3)]


def _packed(build: Emitter[T], x: T) -> list[T]:
    """What lies side by side in each head: (batch, rows, heads, parts, columns) with heads side by side."""
    batch, rows, heads, parts, columns = build.type_of(x).dims
    flat = (batch, rows, heads * columns)
    return [reshaped(build, sliced(build, x, 3, at, at + 1), flat) for at in range(parts)]


@operator("Attention")
class ProjectedAttention(Operator):
    """MultiHeadAttention of products of an input with one matrix of weights.

    Inputs: (batch, rows, columns), weights (columns, those of queries, keys and values side by side), a bias
    of as many, a mask (see `padding_bias`), keys and values of before, (2, batch, heads, keys, columns),
    numbers that are added to scores, and how many keys of before there are, where these are buffers with room
    for more. Outputs: (batch, rows, columns of values), and keys and values with those of before.
    """

    domain = "com.microsoft"
    inputs = (2, 7)
    outputs = (1, 2)
    attributes = {
        "do_rotary": 0,
        "mask_filter_value": OPTIONAL,
        "num_heads": REQUIRED,
        "past_present_share_buffer": 0,
        "qkv_hidden_sizes": OPTIONAL,
        "rotary_embedding_dim": 0,
        "scale": OPTIONAL,
        "unidirectional": 0,
    }
    attribute_types = {
        "mask_filter_value": FLOAT, "num_heads": INT, "qkv_hidden_sizes": INTS, "scale": FLOAT,
    }  # fmt: skip
    is_stepwise = True

    def check(self, node: Node) -> None:
        _check_heads(node)
        shares = bool(node.attributes["past_present_share_buffer"])
        if shares != any(node.inputs[6:]):
            raise InvalidGraph(
                f"{node.label}: past_present_share_buffer=1 and a past_sequence_length come together"
            )

    def _widths(self, node: Node, columns: int) -> tuple[int, int, int]:
        """Columns of queries, keys and values."""
        stated = node.attributes["qkv_hidden_sizes"]
        widths = (columns // 3,) * 3 if not stated else tuple(stated)
        if len(widths) != 3 or sum(widths) != columns or widths[0] != widths[1]:
            raise ShapeError(f"{node.label}: {columns} columns of weights for sizes {list(widths)}")
        for width, what in zip(widths, ("queries", "keys", "values"), strict=True):
            _check_columns(node, width, what)
        return widths

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x, weights = required(node, inputs, 0), required(node, inputs, 1)
        require_dtype(node, x, FLOATS, "the input")
        require_rank(node, x, 3, 3)
        require_rank(node, weights, 2, 2, "the weights")
        widths = self._widths(node, weights.dims[1])
        past: Known | None = optional(inputs, 4)
        batch, rows, _ = x.dims
        before = 0
        if past is not None:
            require_rank(node, past, 5, 5, "past keys and values")
            before = past.dims[3]
        if (past is not None or len(node.outputs) > 1) and widths[1] != widths[2]:
            raise ShapeError(
                f"{node.label}: keys of {widths[1]} columns and values of {widths[2]} in one cache"
            )
        keys = None if optional(inputs, 6) is not None else before + rows
        _check_mask(node, optional(inputs, 3), batch, rows, keys, (batch, 2 * batch, 3 * batch + 2))
        return infer_steps(node, inputs)

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        return evaluate_steps(node, inputs)

    def steps(self, build: Emitter[T], node: Node, inputs: Sequence[T | None]) -> Sequence[T | None]:
        x, weights, bias = present(inputs, 0), present(inputs, 1), optional(inputs, 2)
        product = build.apply("MatMul", x, weights)
        if bias is not None:
            product = build.apply("Add", product, bias)
        heads: list[T] = []
        start = 0
        for width in self._widths(node, build.type_of(weights).dims[1]):
            part = sliced(build, product, 2, start, start + width)
            heads.append(apart(build, part, node.attributes["num_heads"]))
            start += width
        whole, count = optional(inputs, 4), optional(inputs, 6)
        past: list[T] | None = None
        if whole is not None:
            dims = build.type_of(whole).dims
            past = [reshaped(build, sliced(build, whole, 0, at, at + 1), dims[1:]) for at in (0, 1)]
        if node.attributes["do_rotary"]:
            before = count
            if before is None:
                before = build.constant([0 if whole is None else build.type_of(whole).dims[3]], INT64)
            heads[:2] = (_turned(build, node, each, before) for each in heads[:2])
        how = _Scores(
            bool(node.attributes["unidirectional"]),
            node.attributes["scale"],
            node.attributes["mask_filter_value"],
            optional(inputs, 3),
            optional(inputs, 5),
        )
        made = _attended(build, heads, past, count, how, is_kept=False)
        results = [together(build, made.results)]
        if len(node.outputs) > 1:
            axis = build.constant([0], INT64)
            caches = [build.apply("Unsqueeze", each, axis) for each in (made.keys, made.values)]
            results.append(build.apply("Concat", *caches, axis=0))
        return results


def _turned(build: Emitter[T], node: Node, x: T, before: T) -> T:
    """Rotary embeddings of a head's first columns, by halves, for rows behind `before` others."""
    batch, _, rows, columns = build.type_of(x).dims
    width = node.attributes["rotary_embedding_dim"] or columns
    dtype = build.type_of(x).dtype
    steps = build.constant(10000.0 ** -(np.arange(0, width, 2) / width), FLOAT32)
    offset = converted(build, reshaped(build, before, (1,)), INT64)
    places = converted(build, build.apply("Add", positions(build, rows), offset), FLOAT32)
    angles = build.apply("Mul", reshaped(build, places, (rows, 1)), steps)
    tables = [
        expanded(build, converted(build, build.apply(op, angles), dtype), (batch, rows, width // 2))
        for op in ("Cos", "Sin")
    ]
    return build.apply("RotaryEmbedding", x, *tables, rotary_embedding_dim=0 if width == columns else width)


def _decoder(build: Writer) -> Sequence[Node]:
    """MultiHeadAttention with its inputs in another order."""
    node = build.node
    if build.given(8) or build.given(9):
        raise NotImplemented(f"{node.label}: caches of several beams (cache_indirection) are not supported")
    inputs = [build.given(at) for at in (0, 1, 2, 10, 3, 4, 5, 6, 7)]
    keys = ("mask_filter_value", "num_heads", "scale")
    stated: dict[str, Any] = {key: node.attributes[key] for key in keys if key in node.attributes}
    build.apply_to(node.outputs, "MultiHeadAttention", *inputs, domain="com.microsoft", **stated)
    return build.nodes


_NAMES = (
    "the queries", "the keys", "the values", "the bias", "", "the added numbers", "past keys", "past values",
)  # fmt: skip

register(
    Extension(
        "DecoderMaskedMultiHeadAttention",
        (1, 11),
        _decoder,
        {
            "mask_filter_value": OPTIONAL,
            "num_heads": REQUIRED,
            "output_qk": 0,
            "past_present_share_buffer": 0,
            "scale": OPTIONAL,
        },
        {"mask_filter_value": FLOAT, "num_heads": INT, "scale": FLOAT},
        outputs=(1, 4),
    )
)
