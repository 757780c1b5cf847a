"""CausalConvWithState: a convolution along a sequence that goes on where an earlier one ended."""

from __future__ import annotations

from collections.abc import Sequence

from vkml.errors import InvalidGraph, ShapeError
from vkml.ir.dtypes import FLOATS
from vkml.ir.gradients import Emitter, T, sliced, zeros
from vkml.ir.graph import Node
from vkml.ir.operator import Array, Operator, operator
from vkml.ir.types import Known, TensorType
from vkml.ops.checks import optional, present, require_dtype, require_rank, require_same_dtype, required
from vkml.ops.stepwise import evaluate_steps


@operator()
class CausalConvWithState(Operator):
    """Each channel of (batch, channels, length) with k weights of its own, of an element and those before it.

    Inputs: the sequence, weights (channels, 1, k), optionally a bias (channels) and the last k - 1 elements
    of before (batch, channels, k - 1), else zeros. Outputs: a sequence as long, and what the next one needs
    of this.
    """

    inputs = (2, 4)
    outputs = (1, 2)
    written_outputs = 2
    attributes = {"activation": "none"}
    is_stepwise = True

    def check(self, node: Node) -> None:
        if node.attributes["activation"] not in ("none", "silu", "swish"):
            raise InvalidGraph(f"{node.label}: activation is {node.attributes['activation']!r}")

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x, weight = required(node, inputs, 0), required(node, inputs, 1)
        require_dtype(node, x, FLOATS, "the input")
        require_rank(node, x, 3, 3)
        require_rank(node, weight, 3, 3, "the weight")
        batch, channels, _ = x.dims
        if weight.dims[:2] != (channels, 1) or weight.dims[2] == 0:
            raise ShapeError(f"{node.label}: weights of {list(weight.dims)} for {channels} channels")
        state = (batch, channels, weight.dims[2] - 1)
        bias: Known | None = optional(inputs, 2)
        past: Known | None = optional(inputs, 3)
        for known, what, wanted in (
            (weight, "the weight", weight.dims),
            (bias, "the bias", (channels,)),
            (past, "the past state", state),
        ):
            if known is not None:
                require_same_dtype(node, x, known, what)
                if known.dims != wanted:
                    raise ShapeError(f"{node.label}: {what} must be {list(wanted)}, it is {list(known.dims)}")
        return [x.type, TensorType(x.dtype, state)][: len(node.outputs)]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        return evaluate_steps(node, inputs)

    def steps(self, build: Emitter[T], node: Node, inputs: Sequence[T | None]) -> Sequence[T | None]:
        x, weight, bias, past = (
            present(inputs, 0),
            present(inputs, 1),
            optional(inputs, 2),
            optional(inputs, 3),
        )
        type_, kernel = build.type_of(x), build.type_of(weight).dims[2]
        state = TensorType(type_.dtype, (*type_.dims[:2], kernel - 1))
        whole = build.apply("Concat", zeros(build, state) if past is None else past, x, axis=2)
        made = build.apply("Conv", whole, weight, bias, group=type_.dims[1], kernel_shape=(kernel,))
        if node.attributes["activation"] != "none":
            made = build.apply("Swish", made)
        return [made, sliced(build, whole, 2, type_.dims[2], type_.dims[2] + kernel - 1)]
