"""FlexAttention: attention whose scores and weights a model's own graphs change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from vkml.errors import InvalidGraph
from vkml.ir.dtypes import BFLOAT16, BOOL, FLOAT16, FLOAT32, FLOAT64, FLOATS, INT64
from vkml.ir.gradients import Emitter, T
from vkml.ir.graph import Graph, Node, Value
from vkml.ir.names import unused, value_names
from vkml.ir.operator import FLOAT, GRAPH, INT, OPTIONAL, Array, Operator, operator, register
from vkml.ir.types import Known, TensorType
from vkml.ops.checks import present, require_dtype, required
from vkml.ops.extension import Extension, Writer
from vkml.ops.stepwise import evaluate_steps, infer_steps
from vkml.ops.upgrading import NEWEST

_PRECISIONS = (FLOAT32, FLOAT16, FLOAT64, BFLOAT16)


@operator()
class Widened(Operator):
    """Floats of 16 bits as float32, others as they are."""

    domain = "vkml"
    is_stepwise = True

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        require_dtype(node, required(node, inputs, 0), FLOATS, "the input")
        return infer_steps(node, inputs)

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        return evaluate_steps(node, inputs)

    def steps(self, build: Emitter[T], node: Node, inputs: Sequence[T | None]) -> Sequence[T | None]:
        x = present(inputs, 0)
        dtype = build.type_of(x).dtype
        return [build.apply("Cast", x, to=(dtype if dtype.bits > 16 else FLOAT32).code)]


def _changed(build: Writer, x: str, key: str) -> str:
    """What a graph among the attributes makes of a value: a Loop of one trip, whose place that takes."""
    body: Graph | None = build.stated(key, None)
    if body is None:
        return x
    if len(body.inputs) != 1 or len(body.outputs) != 1:
        raise InvalidGraph(
            f"{build.node.label}: {key} has {len(body.inputs)} inputs and {len(body.outputs)} outputs; it "
            "takes one tensor and gives one"
        )
    taken = {*value_names(body), *body.captures}
    number, condition = (unused(f"{key}/{what}", taken) for what in ("number", "condition"))
    goes_on = unused(f"{key}/goes on", taken)
    trip = replace(
        body,
        inputs=(
            Value(number, TensorType(INT64, ())),
            Value(condition, TensorType(BOOL, ())),
            *body.inputs,
        ),
        outputs=(Value(goes_on, TensorType(BOOL, ())), *body.outputs),
        nodes=(*body.nodes, Node("Identity", (condition,), (goes_on,), version=NEWEST)),
    )
    once, forever = build.constant(np.array(1), INT64), build.constant(np.array(True), BOOL)
    return build.apply("Loop", once, forever, x, body=trip)


def _flex_attention(build: Writer) -> Sequence[Node]:
    q, k, v = map(build.given, range(3))
    scale, code = build.stated("scale", None), build.stated("softmax_precision", None)
    if code is not None and code not in [each.code for each in _PRECISIONS]:
        names = ", ".join(f"{each.code} ({each.name})" for each in _PRECISIONS)
        raise InvalidGraph(f"{build.node.label}: softmax_precision {code} is none of {names}")
    if not any(build.stated(key, None) for key in ("score_mod", "prob_mod")):
        build.apply("Attention", q, k, v, made=build.wanted(0), scale=scale, softmax_precision=code)
        return build.nodes

    def wide(x: str) -> str:
        return build.apply("Widened", x, domain="vkml") if code is None else build.apply("Cast", x, to=code)

    def shaped(x: str, *sizes: str) -> str:
        return build.apply("Reshape", x, build.apply("Concat", *sizes, axis=0))

    def sizes(x: str, start: int, end: int) -> str:
        return build.apply("Shape", x, start=start, end=end)

    if scale is None:
        columns = build.apply("Cast", sizes(q, 3, 4), to=FLOAT32.code)
        factor = build.apply("Reciprocal", build.apply("Sqrt", columns))
    else:
        factor = build.constant(scale, FLOAT32)
    # Heads that share keys and values are rows below each other, so that one product has them all.
    rest = build.constant([-1], INT64)
    grouped = shaped(
        build.apply("Mul", q, build.apply("CastLike", factor, q)), sizes(k, 0, 2), rest, sizes(q, 3, 4)
    )
    product = build.apply("MatMul", grouped, build.apply("Transpose", k, perm=(0, 1, 3, 2)))
    scores = _changed(build, wide(shaped(product, sizes(q, 0, 3), sizes(k, 2, 3))), "score_mod")
    weights = _changed(build, build.apply("Softmax", scores, axis=-1), "prob_mod")
    mixed = build.apply("MatMul", shaped(weights, sizes(k, 0, 2), rest, sizes(k, 2, 3)), wide(v))
    build.apply("CastLike", shaped(mixed, sizes(q, 0, 3), sizes(v, 3, 4)), v, made=build.wanted(0))
    return build.nodes


register(
    Extension(
        "FlexAttention",
        (3, 3),
        _flex_attention,
        {"prob_mod": OPTIONAL, "scale": OPTIONAL, "score_mod": OPTIONAL, "softmax_precision": OPTIONAL},
        {"prob_mod": GRAPH, "scale": FLOAT, "score_mod": GRAPH, "softmax_precision": INT},
        domain="ai.onnx.preview",
    )
)
