"""What is known of products and recurrent layers."""

from __future__ import annotations

from typing import Any

from tests.fuzz.known.conditions import ONNX, ORT, Freedom, is_wide_whole
from tests.fuzz.tensors import Array
from vkml.ir import Node


def _weights_an_old_term(node: Node, inputs: list[Array | None], result: Array) -> Any:
    return node.version < 7 and node.attributes["beta"] != 1


def _has_zero_points_of_rows(node: Node, inputs: list[Array | None], result: Array) -> Any:
    zero = inputs[2] if len(inputs) > 2 else None
    return zero is not None and zero.ndim == 1 and zero.size > 1


def _scales_whole(node: Node, inputs: list[Array | None], result: Array) -> Any:
    is_whole_factor = all(float(node.attributes[key]).is_integer() for key in ("alpha", "beta"))
    return result.dtype.kind in "iu" and not is_whole_factor


def _has_no_steps(node: Node, inputs: list[Array | None], result: Array) -> Any:
    return inputs[0] is not None and inputs[0].shape[1 if node.attributes["layout"] else 0] == 0


def _is_beyond_the_evaluator(node: Node, inputs: list[Array | None], result: Array) -> Any:
    has_lengths = len(inputs) > 4 and inputs[4] is not None
    is_clipped = node.attributes["clip"] is not None  # by 0, too, which leaves the activations of 0
    return (
        has_lengths
        or is_clipped
        or bool(node.attributes.get("activations"))
        or bool(node.attributes.get("input_forget"))
    )


FREEDOMS = (
    Freedom("Gemm", _scales_whole, "integers times a fraction: when they are truncated, ONNX does not say"),
    Freedom("MatMulInteger", _has_zero_points_of_rows, "onnx's evaluator takes them for columns'", ONNX),
    Freedom("Gemm", _weights_an_old_term, "onnx's evaluator forgets beta without broadcast=1", ONNX),
    Freedom("Gemm MatMul Einsum", is_wide_whole, "onnx's evaluator computes integers in float64", ONNX),
    Freedom("LSTM GRU RNN", _has_no_steps, "onnxruntime's states are then what was in memory", ORT),
    Freedom(
        "LSTM GRU RNN",
        _is_beyond_the_evaluator,
        "onnx's evaluator knows neither lengths nor activations, clips and coupled gates",
        ONNX,
    ),
)
