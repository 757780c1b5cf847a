"""Nodes that stand for several which run as one; vkml makes them, no file states them."""

from __future__ import annotations

from collections.abc import Sequence

from vkml.ir import MANY, REQUIRED, Graph, Known, Node, Operator, TensorType, find, operator
from vkml.ir.lowering import Lowering, V
from vkml.ir.operator import GRAPH, Array


@operator("Fused")
class Fused(Operator):
    """Runs the nodes of its attribute ``body`` in order; made by the fusion pass."""

    domain = "vkml"
    inputs = (0, MANY)
    outputs = (1, MANY)
    attributes = {"body": REQUIRED}
    attribute_types = {"body": GRAPH}

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        return [value.type for value in node.attributes["body"].outputs]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        body: Graph = node.attributes["body"]
        values: dict[str, Array | None] = {"": None}
        values.update((value.name, array) for value, array in zip(body.inputs, inputs, strict=True))
        values.update((name, constant.array) for name, constant in body.constants.items())
        for member in body.nodes:
            results = find(member).evaluate(member, [values[name] for name in member.inputs])
            values.update(zip(member.outputs, results, strict=False))
        return [values[value.name] for value in body.outputs]  # type: ignore[misc]

    def lower(self, build: Lowering[V], node: Node, inputs: Sequence[V | None]) -> Sequence[V | None] | None:
        return build.fused(node.attributes["body"], inputs)


@operator("Native")
class Native(Operator):
    """Stands, where the CPU's memory is planned, for nodes that machine code computes in one step."""

    domain = "vkml"
    inputs = (0, MANY)
    outputs = (0, MANY)
