"""Gradient of ai.onnx.preview.training: derivatives within a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vkml.errors import InvalidGraph
from vkml.ir.graph import Graph, Node
from vkml.ir.operator import GRAPH, MANY, OPTIONAL, REQUIRED, STRING, STRINGS, operator
from vkml.ir.types import Known, ValueType
from vkml.ops.control import ControlFlow, Host


@operator()
class Gradient(ControlFlow):
    """The derivatives of the tensor `y` of the graph around it by the tensors `xs`, at the inputs.

    `xs` and `zs` name what `y` is a function of; the inputs are their values. The function is put into the
    attribute `body` before anything else looks at the node (`passes.gradient_bodies`). Of a `y` of several
    elements it is the derivative of their sum.
    """

    domain = "ai.onnx.preview.training"
    inputs = (1, MANY)
    outputs = (1, MANY)
    attributes = {"xs": REQUIRED, "y": REQUIRED, "zs": OPTIONAL, "body": OPTIONAL}
    attribute_types = {"xs": STRINGS, "zs": STRINGS, "y": STRING, "body": GRAPH}

    def check(self, node: Node) -> None:
        named = len(node.attributes["xs"]) + len(node.attributes["zs"] or ())
        if named != len(node.inputs) or len(node.outputs) > len(node.attributes["xs"]):
            raise InvalidGraph(
                f"{node.label}: it names {named} tensors and has {len(node.inputs)} inputs; its outputs are "
                f"{len(node.outputs)}, of at most {len(node.attributes['xs'])}"
            )
        if not isinstance(node.attributes["body"], Graph):
            raise InvalidGraph(f"{node.label}: what makes '{node.attributes['y']}' is not known")
        super().check(node)

    def body_inputs(self, node: Node) -> Mapping[str, int]:
        return {"body": len(node.inputs)}

    def body_outputs(self, node: Node) -> Mapping[str, tuple[int, int]]:
        return {"body": (1, 1)}

    def body_types(self, node: Node, types: Sequence[ValueType]) -> Mapping[str, Sequence[ValueType]]:
        return {"body": list(types)}

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[ValueType]:
        found = [known.stated for known in inputs[: len(node.outputs)] if known is not None]
        if len(found) < len(node.outputs):
            raise InvalidGraph(f"{node.label}: an input is absent")
        return found

    def execute(self, node: Node, inputs: Sequence[Any], host: Host) -> list[Any]:
        return list(host.gradients("body", inputs, len(node.outputs)))
