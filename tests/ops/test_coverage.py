"""Every operator that ONNX defines is known, or on a short list that says why not."""

from __future__ import annotations

from onnx import defs

import vkml.ops  # noqa: F401  (fills the registry)
from vkml.ir.operator import REGISTRY

STANDARD = ("", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training")


def test_every_operator_of_onnx_is_known_or_has_a_reason() -> None:
    newest = {
        (domain, schema.name): schema
        for schema in defs.get_all_schemas_with_history()
        for domain in [schema.domain]
        if domain in STANDARD
    }
    known = {(domain, name) for domain, name in REGISTRY if (domain, name) in newest}
    missing = {f"{domain}.{name}".lstrip(".") for domain, name in newest.keys() - known}
    assert missing <= MISSING, "what is new in ONNX needs an operator, or a reason"


FUNCTIONS = {
    "Attention", "CausalConvWithState", "DynamicQuantizeLinear", "LinearAttention",
    "NegativeLogLikelihoodLoss", "RotaryEmbedding", "SwiGLU", "ai.onnx.preview.FlexAttention",
}  # fmt: skip
"""ONNX gives bodies in other operators, by which they are to run."""
QUANTISED = {"DequantizeLinear", "QLinearConv", "QLinearMatMul", "QuantizeLinear"}
"""Not yet."""
MISSING = FUNCTIONS | QUANTISED
