"""The gradients of scaled dot product attention as one node."""

from __future__ import annotations

import math
from collections.abc import Sequence

from vkml.ir.gradients import Emitter, T
from vkml.ir.graph import Node
from vkml.ir.lowering import CannotLower, Lowering, V, given
from vkml.ir.operator import Array, Operator, operator
from vkml.ir.types import Known, TensorType
from vkml.ops.attention import Attention, attention_geometry, heads_and_scoring
from vkml.ops.attention_gradients import attention_gradients
from vkml.ops.attention_steps import AttentionScores
from vkml.ops.checks import optional, present, required
from vkml.ops.stepwise import evaluate_steps


@operator("AttentionGradient")
class AttentionGradient(Operator):
    """The cotangents of the queries, the keys and the values of a node `vkml.Attention`.

    Inputs: its queries, keys and values; the cotangent of its results; its second output; the sum of each
    row of results times their cotangents, [..., m, 1]; its mask and bias. Attributes are those of the node.
    There is one output, of the queries, or there are all three.
    """

    domain = "vkml"
    inputs = (6, 8)
    outputs = (1, 3)
    attributes = Attention.attributes
    is_stepwise = True

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        return [required(node, inputs, index).type for index in range(3)]

    def multiply_adds(
        self, node: Node, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]
    ) -> int:
        scores, results = attention_geometry(node, *(present(inputs, index).dims for index in range(3)))
        # Scores again, their gradients, and those of both operands of the products.
        of_scores, of_results = math.prod(scores.output) * scores.k, math.prod(results.output) * scores.n
        return 3 * of_scores + 2 * of_results if len(node.outputs) > 1 else 2 * of_scores + of_results

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        return evaluate_steps(node, inputs)

    def steps(self, build: Emitter[T], node: Node, inputs: Sequence[T | None]) -> Sequence[T | None]:
        q, k, v, d_out, _, deltas = (present(inputs, index) for index in range(6))
        count = len(node.outputs)
        needed = [True, count > 1, count > 1, False, False]
        read = (q, k, v, optional(inputs, 6), optional(inputs, 7))
        how = AttentionScores.of(node.attributes)
        return attention_gradients(build, how, read, d_out, deltas, needed)[:count]

    def lower(self, build: Lowering[V], node: Node, inputs: Sequence[V | None]) -> Sequence[V | None] | None:
        q, k, v, d_out, row_sums, deltas = (given(inputs, index) for index in range(6))
        heads, how = heads_and_scoring(node, q, k, v, optional(inputs, 6), optional(inputs, 7))
        is_transposed = bool(node.attributes["is_key_transposed"])
        for whole, operand in zip(heads, (q, _flipped(k) if is_transposed else k, v), strict=True):
            if whole.shape != (1,) * (4 - len(operand.shape)) + tuple(operand.shape):
                raise CannotLower("gradients of operands of attention that are broadcast")
        batch, count, rows = heads[0].shape[:3]
        made = build.attention_gradients(
            *heads,
            how,
            d_out.expand(heads[0].shape[:3] + heads[2].shape[3:]),
            row_sums.expand((batch, count, rows, 2)),
            deltas.expand((batch, count, rows, 1)),
            len(node.outputs),
        )
        found: list[V | None] = []
        for view, x in zip(made, (q, _flipped(k) if is_transposed else k, v), strict=False):
            found.append(build.reshape(view, x.shape))
        if is_transposed and found[1:]:
            found[1] = _flipped(given(found, 1))
        return found


def _flipped(view: V) -> V:
    rank = len(view.shape)
    return view.transpose((*range(rank - 2), rank - 1, rank - 2))
