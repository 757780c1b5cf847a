"""ONNX's Attention: heads, caches, masks and windows round `vkml.Attention`, which is what kernels know."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from vkml.errors import InvalidGraph, ShapeError
from vkml.ir import dtypes
from vkml.ir.dtypes import BOOL, FLOATS, INT64
from vkml.ir.gradients import Emitter, T, converted, reshaped
from vkml.ir.graph import Node
from vkml.ir.operator import FLOAT, INT, OPTIONAL, Array, Operator, operator
from vkml.ir.size import is_number
from vkml.ir.types import Known, TensorType
from vkml.ops.attention_heads import Stage, apart, attended, both, lengthened, seen_keys, together
from vkml.ops.attention_steps import AttentionScores, positions
from vkml.ops.checks import (
    optional,
    present,
    require_dtype,
    require_rank,
    require_same_dtype,
    required,
)
from vkml.ops.stepwise import evaluate_steps

_PRECISIONS = (dtypes.FLOAT32, dtypes.FLOAT16, dtypes.FLOAT64, dtypes.BFLOAT16)
_STAGES: tuple[Stage, ...] = ("products", "capped", "biased", "weights")
_NAMES = ("the queries", "the keys", "the values")


@operator("Attention")
class OnnxAttention(Operator):
    """softmax(scale · Q Kᵀ, masked) V of heads, several of which may share keys and values.

    Inputs: queries, keys and values of (batch, heads, rows, columns), or (batch, rows, heads · columns) with
    the numbers of heads; a mask of bools, or numbers that are added; keys and values of before, which those
    given follow; how many keys of each batch count, where the keys are a whole cache. Outputs: the results in
    the queries' form, keys and values with those of before, and the scores at a stage of their making.

    A row that sees no key is zero.
    """

    inputs = (3, 7)
    outputs = (1, 4)
    attributes = {
        "is_causal": 0,
        "kv_num_heads": OPTIONAL,
        "left_window_size": -1,
        "q_num_heads": OPTIONAL,
        "qk_matmul_output_mode": 0,
        "right_window_size": -1,
        "scale": OPTIONAL,
        "softcap": 0.0,
        "softmax_precision": OPTIONAL,
    }
    attribute_types = {"kv_num_heads": INT, "q_num_heads": INT, "scale": FLOAT, "softmax_precision": INT}
    is_stepwise = True

    def check(self, node: Node) -> None:
        attributes = node.attributes
        if attributes["is_causal"] not in (0, 1):
            raise InvalidGraph(f"{node.label}: is_causal is 0 or 1, not {attributes['is_causal']}")
        if attributes["qk_matmul_output_mode"] not in (0, 1, 2, 3):
            raise InvalidGraph(
                f"{node.label}: qk_matmul_output_mode is 0 to 3, not {attributes['qk_matmul_output_mode']}"
            )
        for name in ("left_window_size", "right_window_size"):
            if attributes[name] < -1:
                raise InvalidGraph(f"{node.label}: {name} is -1 or a count, not {attributes[name]}")
        precision = attributes["softmax_precision"]
        if precision is not None and precision not in [each.code for each in _PRECISIONS]:
            names = ", ".join(f"{each.code} ({each.name})" for each in _PRECISIONS)
            raise InvalidGraph(f"{node.label}: softmax_precision {precision} is none of {names}")
        if not (attributes["softcap"] >= 0 and math.isfinite(attributes["softcap"])):
            raise InvalidGraph(f"{node.label}: softcap is {attributes['softcap']}")
        if (_is_there(node, 4)) != _is_there(node, 5):
            raise InvalidGraph(f"{node.label}: past keys and past values come together")
        if _is_there(node, 4) and _is_there(node, 6):
            raise InvalidGraph(
                f"{node.label}: there are past keys and a number of keys that count in a cache"
            )

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        given = [required(node, inputs, index) for index in range(3)]
        for known, what in zip(given, _NAMES, strict=True):
            require_dtype(node, known, FLOATS, what)
            require_rank(node, known, 3, 4, what)
            if known.rank != given[0].rank:
                raise ShapeError(f"{node.label}: the queries have {given[0].rank} axes, {what} {known.rank}")
        require_same_dtype(node, given[0], given[1], "the keys")
        q, k, v = (
            self._heads(node, known, "kv_num_heads" if at else "q_num_heads", _NAMES[at])
            for at, known in enumerate(given)
        )
        if not q[0] == k[0] == v[0]:
            raise ShapeError(f"{node.label}: batches of {q[0]} queries, {k[0]} keys and {v[0]} values")
        if k[1] != v[1] or not k[1] or q[1] % k[1]:
            raise ShapeError(f"{node.label}: {q[1]} heads of queries, {k[1]} of keys and {v[1]} of values")
        if q[3] != k[3]:
            raise ShapeError(f"{node.label}: heads of {q[3]} columns in queries, of {k[3]} in keys")
        if k[2] != v[2]:
            raise ShapeError(f"{node.label}: {k[2]} keys and {v[2]} values")
        past: list[Known] = [known for known in inputs[4:6] if known is not None]
        keys = k[2]
        if past:
            for known, now, what in zip(past, (k, v), ("past keys", "past values"), strict=True):
                if known.rank != 4 or [known.dims[at] for at in (0, 1, 3)] != [now[at] for at in (0, 1, 3)]:
                    raise ShapeError(
                        f"{node.label}: {what} of shape {list(known.dims)} do not go before {list(now)}"
                    )
            if past[0].dims[2] != past[1].dims[2]:
                raise ShapeError(
                    f"{node.label}: {past[0].dims[2]} past keys and {past[1].dims[2]} past values"
                )
            require_same_dtype(node, given[0], past[0], "past keys")
            require_same_dtype(node, given[2], past[1], "past values")
            keys = past[0].dims[2] + keys
        mask: Known | None = optional(inputs, 3)
        self._check_mask(node, mask, (q[0], q[1], q[2], keys))
        lengths: Known | None = optional(inputs, 6)
        if lengths is not None:
            require_dtype(node, lengths, (INT64,), "the numbers of keys")
            if lengths.dims != (q[0],):
                raise ShapeError(
                    f"{node.label}: numbers of keys of shape {list(lengths.dims)} for batches of {q[0]}"
                )
        result = (*q[:3], v[3]) if given[0].rank == 4 else (q[0], q[2], q[1] * v[3])
        return [
            TensorType(given[0].dtype, result),
            TensorType(given[1].dtype, (*k[:2], keys, k[3])),
            TensorType(given[2].dtype, (*v[:2], keys, v[3])),
            TensorType(given[0].dtype, (*q[:3], keys)),
        ][: len(node.outputs)]

    def _heads(self, node: Node, known: Known, attribute: str, what: str) -> tuple[int, int, int, int]:
        """The shape with the heads apart: (batch, heads, rows, columns)."""
        if known.rank == 4:
            batch, heads, rows, columns = known.dims
            stated = node.attributes[attribute]
            if stated is not None and stated != heads:
                raise ShapeError(f"{node.label}: {attribute} is {stated}, {what} have {heads} heads")
            return batch, heads, rows, columns
        batch, rows, columns = known.dims
        heads = node.attributes[attribute]
        if heads is None:
            raise InvalidGraph(f"{node.label}: {what} have three axes, so {attribute} has to be there")
        if heads < 1 or columns % heads:
            raise ShapeError(f"{node.label}: {columns} columns of {what} are no {heads} heads")
        return batch, heads, rows, columns // heads

    def _check_mask(self, node: Node, mask: Known | None, scores: tuple[int, ...]) -> None:
        if mask is None:
            return
        if mask.dtype != BOOL and not (mask.dtype in FLOATS or mask.dtype.is_integer):
            raise InvalidGraph(f"{node.label}: the mask has element type {mask.dtype.name}")
        fits = 1 <= mask.rank <= 4 and mask.dims[-1] <= scores[-1]
        pairs = zip(reversed(mask.dims[:-1]), reversed(scores[:-1]), strict=False)
        if not fits or any(have not in (1, want) for have, want in pairs):
            raise ShapeError(
                f"{node.label}: the mask of shape {list(mask.dims)} does not broadcast to the scores' "
                f"{list(scores)}"
            )

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        return evaluate_steps(node, inputs)

    def steps(self, build: Emitter[T], node: Node, inputs: Sequence[T | None]) -> Sequence[T | None]:
        attributes = node.attributes
        q: T = present(inputs, 0)
        k: T = present(inputs, 1)
        v: T = present(inputs, 2)
        is_flat = build.type_of(q).rank == 3
        if is_flat:
            q = apart(build, q, attributes["q_num_heads"])
            k, v = (apart(build, x, attributes["kv_num_heads"]) for x in (k, v))
        past_key, past_value = optional(inputs, 4), optional(inputs, 5)
        past = 0
        if past_key is not None and past_value is not None:
            past = build.type_of(past_key).dims[2]
            k = build.apply("Concat", past_key, k, axis=2)
            v = build.apply("Concat", past_value, v, axis=2)
        dtype = build.type_of(q).dtype
        mask, bias, causal_offset = _masks(build, node, q, k, past, inputs)
        scale = attributes["scale"]
        how = AttentionScores(
            scale=1 / math.sqrt(build.type_of(q).dims[3]) if scale is None else scale,
            softcap=attributes["softcap"],
            group=build.type_of(q).dims[1] // build.type_of(k).dims[1],
            is_empty_zero=mask is not None or bias is not None,
            causal_offset=causal_offset,
        )
        value = converted(build, v, dtype)
        precision = attributes["softmax_precision"]
        is_kept = len(node.outputs) > 3 and bool(node.outputs[3])
        made, scores = attended(
            build,
            how,
            (q, k, value),
            mask,
            bias,
            precision=None if precision is None else dtypes.from_code(precision),
            stage=_STAGES[attributes["qk_matmul_output_mode"]] if is_kept else None,
        )
        if is_flat:
            made = together(build, made)
        return [made, k, v, scores]


def _is_there(node: Node, index: int) -> bool:
    return index < len(node.inputs) and bool(node.inputs[index])


def _masks(
    build: Any, node: Node, q: T, k: T, past: int, inputs: Sequence[T | None]
) -> tuple[T | None, T | None, int | None]:
    """Which scores count, what is added to them, and the offset of the triangle that causality leaves."""
    attributes = node.attributes
    dtype = build.type_of(q).dtype
    rows, keys = build.type_of(q).dims[2], build.type_of(k).dims[2]
    given, lengths = optional(inputs, 3), optional(inputs, 6)
    mask: T | None = None
    bias: T | None = None
    if given is not None and build.type_of(given).dtype == BOOL:
        mask = lengthened(build, given, keys, False)
    elif given is not None:
        bias = lengthened(build, converted(build, given, dtype), keys, -math.inf)
    sizes = [attributes[f"{name}_window_size"] for name in ("left", "right")]
    left, right = (size if size >= 0 else None for size in sizes)
    causal_offset: int | None = None
    if attributes["is_causal"]:
        if lengths is None and is_number(past):
            causal_offset = past
        else:
            right = 0
    first: T = build.constant(past, INT64)
    if lengths is not None:
        ends = reshaped(build, lengths, (-1, 1, 1, 1))
        first = build.apply("Sub", ends, build.constant(rows, INT64))
        places = build.apply("Unsqueeze", positions(build, keys), build.constant([0], INT64))
        mask = both(build, mask, build.apply("Less", places, ends))
    mask = both(build, mask, seen_keys(build, rows, keys, first, left=left, right=right))
    return mask, bias, causal_offset
