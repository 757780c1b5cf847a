"""Mixtures of experts of com.microsoft: each row goes through the few layers that a router finds best."""

from __future__ import annotations

import math
from collections.abc import Sequence

from vkml.errors import InvalidGraph, NotImplemented, ShapeError
from vkml.ir.dtypes import FLOATS, INT64
from vkml.ir.gradients import Emitter, T, converted, reshaped, sliced, transposed, widened, zeros
from vkml.ir.graph import Node
from vkml.ir.operator import FLOAT, OPTIONAL, Array, Operator, operator
from vkml.ir.size import is_number
from vkml.ir.types import Known, TensorType
from vkml.ops.checks import optional, present, require_dtype, require_rank, required
from vkml.ops.stepwise import evaluate_steps, infer_steps

_ACTIVATIONS = ("relu", "gelu", "silu", "swiglu", "identity")
_COPIES = 3
"""Times that gathered weights pass through memory: where experts are so many more than rows want, theirs
alone are read."""


@operator()
class MoE(Operator):
    """The sum of what a row's `k` best experts make of it, weighed by the Softmax of the router's scores.

    Inputs: rows [rows, columns] or [batch, rows, columns]; scores [rows, experts]; of each expert the weights
    of a first layer [experts, inner, columns] and its bias, of a second one [experts, columns, inner], and of
    a gate [experts, inner, columns], where that is no part of the first layer. An expert is second(act(first(
    row)) * gate(row)). For "swiglu" a first layer with `swiglu_fusion` 1 has columns of both in turns, with 2
    one behind the other.
    """

    domain = "com.microsoft"
    inputs = (5, 8)
    attributes = {
        "activation_alpha": 1.0,
        "activation_beta": 0.0,
        "activation_type": "relu",
        "k": 1,
        "normalize_routing_weights": 0,
        "swiglu_fusion": 0,
        "swiglu_limit": OPTIONAL,
        "swiglu_limit_after_activation": 0,
        "use_sparse_mixer": 0,
    }
    attribute_types = {"swiglu_limit": FLOAT}
    is_stepwise = True

    def check(self, node: Node) -> None:
        attributes = node.attributes
        if attributes["activation_type"] not in _ACTIVATIONS:
            raise InvalidGraph(
                f"{node.label}: activation_type is one of {', '.join(_ACTIVATIONS)}, not "
                f"{attributes['activation_type']!r}"
            )
        if attributes["k"] < 1 or attributes["swiglu_fusion"] not in (0, 1, 2):
            raise InvalidGraph(
                f"{node.label}: k={attributes['k']}, swiglu_fusion={attributes['swiglu_fusion']}"
            )
        for key in ("use_sparse_mixer", "swiglu_limit_after_activation"):
            if attributes[key]:
                raise NotImplemented(f"{node.label}: {key}=1 is not supported")
        is_gated = any(node.inputs[6:7])
        if attributes["activation_type"] == "swiglu" and is_gated != (attributes["swiglu_fusion"] == 0):
            raise InvalidGraph(f"{node.label}: swiglu wants a gate's weights, or swiglu_fusion of 1 or 2")

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x, scores, first, second = (required(node, inputs, at) for at in (0, 1, 2, 4))
        require_dtype(node, x, FLOATS, "the rows")
        require_rank(node, x, 2, 3, "the rows")
        require_rank(node, scores, 2, 2, "the scores")
        for known, what in ((first, "the first layers"), (second, "the second layers")):
            require_rank(node, known, 3, 3, what)
        experts, columns = first.dims[0], x.dims[-1]
        rows = math.prod(x.dims[:-1])
        inner = first.dims[1] // (2 if _is_fused(node) else 1)
        wanted = {
            1: (rows, experts),
            2: (experts, inner * (2 if _is_fused(node) else 1), columns),
            3: first.dims[:2],
            4: (experts, second.dims[1], inner),
            5: second.dims[:2],
            6: (experts, inner, columns),
            7: (experts, inner),
        }
        for at, dims in wanted.items():
            given: Known | None = optional(inputs, at)
            if given is not None and given.dims != dims:
                raise ShapeError(
                    f"{node.label}: input {at} has the shape {list(given.dims)}, not {list(dims)}"
                )
        if node.attributes["k"] > experts:
            raise ShapeError(f"{node.label}: {node.attributes['k']} of {experts} experts")
        return infer_steps(node, inputs)

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        return evaluate_steps(node, inputs)

    def steps(self, build: Emitter[T], node: Node, inputs: Sequence[T | None]) -> Sequence[T | None]:
        x = present(inputs, 0)
        dims, dtype = build.type_of(x).dims, build.type_of(x).dtype
        flat = reshaped(build, x, (math.prod(dims[:-1]), dims[-1]))
        shares, chosen = self._routed(build, node, present(inputs, 1))
        rows, k = build.type_of(shares).dims
        experts = build.type_of(present(inputs, 2)).dims[0]
        if is_number(rows) and _COPIES * rows * k < experts:
            made = self._few(build, node, inputs, flat, shares, chosen)
        else:
            made = self._all(build, node, inputs, flat, shares, chosen)
        return [converted(build, reshaped(build, made, (*dims[:-1], build.type_of(made).dims[-1])), dtype)]

    def _routed(self, build: Emitter[T], node: Node, scores: T) -> tuple[T, T]:
        """What each row's best experts count, and which these are: [rows, k]."""
        whole = build.apply("Softmax", widened(build, scores), axis=-1)
        k = build.constant([node.attributes["k"]], INT64)
        shares, chosen = build.apply_all("TopK", (whole, k), 2, axis=-1, largest=1, sorted=1)
        if node.attributes["normalize_routing_weights"]:
            total = build.apply("ReduceSum", shares, build.constant([1], INT64), keepdims=1)
            shares = build.apply("Div", shares, total)
        return shares, chosen

    def _all(
        self, build: Emitter[T], node: Node, inputs: Sequence[T | None], x: T, shares: T, chosen: T
    ) -> T:
        """All experts' results for all rows, of which those that are not chosen count nothing."""
        rows, experts = build.type_of(x).dims[0], build.type_of(present(inputs, 2)).dims[0]
        made = widened(build, self._through(build, node, list(inputs[2:]), x))
        nothing = zeros(build, TensorType(build.type_of(shares).dtype, (rows, experts)))
        weights = build.apply("ScatterElements", nothing, chosen, shares, axis=1)
        weights = reshaped(build, transposed(build, weights, (1, 0)), (experts, rows, 1))
        return build.apply(
            "ReduceSum", build.apply("Mul", made, weights), build.constant([0], INT64), keepdims=0
        )

    def _few(
        self, build: Emitter[T], node: Node, inputs: Sequence[T | None], x: T, shares: T, chosen: T
    ) -> T:
        """The chosen experts' results alone: their weights are gathered."""
        rows, k = build.type_of(shares).dims
        columns, every = build.type_of(x).dims[1], reshaped(build, chosen, (rows * k,))
        own = [None if w is None else build.apply("Gather", w, every, axis=0) for w in inputs[2:]]
        again = build.apply(
            "Expand", reshaped(build, x, (rows, 1, columns)), build.constant([rows, k, columns], INT64)
        )
        made = self._through(build, node, own, reshaped(build, again, (rows * k, 1, columns)))
        made = reshaped(build, widened(build, made), (rows, k, build.type_of(made).dims[-1]))
        weighed = build.apply("Mul", made, reshaped(build, shares, (rows, k, 1)))
        return build.apply("ReduceSum", weighed, build.constant([1], INT64), keepdims=0)

    def _through(self, build: Emitter[T], node: Node, layers: Sequence[T | None], x: T) -> T:
        """What layers, one of each expert, make of rows [rows, columns] or [experts, rows, columns]."""
        first, of_first, second, of_second, gate, of_gate = (*layers, None, None, None, None)[:6]
        assert first is not None and second is not None
        made = _linear(build, x, first, of_first)
        beside = None if gate is None else _linear(build, x, gate, of_gate)
        if _is_fused(node):
            made, beside = _halves(build, made, is_in_turns=node.attributes["swiglu_fusion"] == 1)
        return _linear(build, self._activated(build, node, made, beside), second, of_second)

    def _activated(self, build: Emitter[T], node: Node, x: T, beside: T | None) -> T:
        attributes, name = node.attributes, node.attributes["activation_type"]
        if name == "swiglu":
            assert beside is not None
            dtype, limit = build.type_of(x).dtype, attributes["swiglu_limit"]
            if limit is not None:
                most, least = (build.constant(each, dtype) for each in (limit, -limit))
                x, beside = build.apply("Min", x, most), build.apply("Clip", beside, least, most)
            if attributes["activation_beta"]:
                beside = build.apply("Add", beside, build.constant(attributes["activation_beta"], dtype))
            x = build.apply("Swish", x, alpha=attributes["activation_alpha"])
        elif name == "gelu":
            x = build.apply("Gelu", x, approximate="tanh")
        elif name != "identity":
            x = build.apply({"relu": "Relu", "silu": "Swish"}[name], x)
        return x if beside is None else build.apply("Mul", x, beside)


def _is_fused(node: Node) -> bool:
    """Whether a first layer makes what is gated and the gate."""
    return bool(node.attributes["activation_type"] == "swiglu" and node.attributes["swiglu_fusion"])


def _linear(build: Emitter[T], x: T, weights: T, bias: T | None) -> T:
    """Rows times each expert's matrix [out, in], and its bias."""
    made = build.apply("MatMul", x, transposed(build, weights, (0, 2, 1)))
    if bias is None:
        return made
    experts, columns = build.type_of(bias).dims
    return build.apply("Add", made, reshaped(build, bias, (experts, 1, columns)))


def _halves(build: Emitter[T], x: T, *, is_in_turns: bool) -> list[T]:
    """Columns of two kinds, in turns or one kind behind the other."""
    *dims, columns = build.type_of(x).dims
    if not is_in_turns:
        return [sliced(build, x, len(dims), at * columns // 2, (at + 1) * columns // 2) for at in range(2)]
    pairs = reshaped(build, x, (*dims, columns // 2, 2))
    return [
        reshaped(build, sliced(build, pairs, len(dims) + 1, at, at + 1), (*dims, columns // 2))
        for at in range(2)
    ]
