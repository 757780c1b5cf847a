"""RotaryEmbedding of com.microsoft: ONNX's, with its tables behind the positions."""

from __future__ import annotations

from collections.abc import Sequence

from vkml.errors import ShapeError
from vkml.ir.dtypes import FLOATS, INT64
from vkml.ir.gradients import Emitter, T, expanded, reshaped
from vkml.ir.graph import Node
from vkml.ir.operator import Array, Operator, operator
from vkml.ir.types import Known, TensorType
from vkml.ops.attention_steps import positions
from vkml.ops.checks import present, require_dtype, require_rank, required
from vkml.ops.stepwise import evaluate_steps, infer_steps


@operator("RotaryEmbedding")
class TabledRotaryEmbedding(Operator):
    """Pairs of columns turned by angles of tables [positions, pairs].

    Inputs: (batch, heads, rows, columns), or (batch, rows, heads * columns) where heads have as many columns
    as tables pairs, or `num_heads` says how many there are; the position of each row, (batch, rows), or of
    the first, (1); cosines and sines. `scale` and `is_packed_batching` change nothing, as in onnxruntime.
    """

    domain = "com.microsoft"
    inputs = (4, 4)
    attributes = {
        "interleaved": 0,
        "is_packed_batching": 0,
        "num_heads": 0,
        "rotary_embedding_dim": 0,
        "scale": 1.0,
    }
    is_stepwise = True

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x, places, cosines = (required(node, inputs, at) for at in range(3))
        require_dtype(node, x, FLOATS, "the input")
        require_dtype(node, places, (INT64,), "the positions")
        require_rank(node, x, 3, 4)
        require_rank(node, cosines, 2, 2, "the cosines")
        if places.dims not in ((1,), (x.dims[0], x.dims[-2])):
            raise ShapeError(
                f"{node.label}: positions must be [1] or {[x.dims[0], x.dims[-2]]}, they are "
                f"{list(places.dims)}"
            )
        return infer_steps(node, inputs)

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        return evaluate_steps(node, inputs)

    def steps(self, build: Emitter[T], node: Node, inputs: Sequence[T | None]) -> Sequence[T | None]:
        x, places, cosines, sines = (present(inputs, at) for at in range(4))
        dims = build.type_of(x).dims
        turned = 2 * build.type_of(cosines).dims[1]
        if build.type_of(places).rank == 1:
            rows = build.apply("Add", positions(build, dims[-2]), places)
            places = expanded(build, reshaped(build, rows, (1, dims[-2])), (dims[0], dims[-2]))
        heads = node.attributes["num_heads"] or dims[-1] // max(turned, 1)
        return [
            build.apply(
                "RotaryEmbedding", x, cosines, sines, places,
                interleaved=node.attributes["interleaved"],
                num_heads=heads if len(dims) == 3 else None,
                rotary_embedding_dim=turned,
            )
        ]  # fmt: skip
