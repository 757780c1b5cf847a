"""Every operator that ONNX defines is known, or on a short list that says why not."""

from __future__ import annotations

from onnx import defs

import vkml.ops  # noqa: F401  (fills the registry)
from vkml.ir.graph import Node
from vkml.ir.operator import REGISTRY
from vkml.onnx.function_bodies import body_of
from vkml.ops.upgrading import NEWEST

STANDARD = ("", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training")
MISSING: dict[tuple[str, str], str] = {}


def is_known(domain: str, name: str) -> bool:
    """Whether there is an operator, or a body of others."""
    node = Node(name, (), ("y",), {}, domain=domain, version=1 if domain else NEWEST)
    return (domain, name) in REGISTRY or body_of(node) is not None


def test_every_operator_of_onnx_is_known_or_has_a_reason() -> None:
    stated = {(schema.domain, schema.name) for schema in defs.get_all_schemas_with_history()}
    unknown = {each for each in stated if each[0] in STANDARD and not is_known(*each)}
    assert unknown <= MISSING.keys(), "what is new in ONNX needs an operator, or a reason"
    assert not [each for each in MISSING if is_known(*each)]
