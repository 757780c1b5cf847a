"""Scan of opset 8, which has a batch axis: written with Scans of today."""

from __future__ import annotations

from typing import Any

from vkml.ir.dtypes import INT64
from vkml.ir.graph import Graph, Node, Value
from vkml.ir.names import unused, value_names
from vkml.ir.types import TensorType, ValueType
from vkml.ops.collecting import stacked
from vkml.ops.upgrading import NEWEST, constant_node, renew


def without_batch(node: Node) -> Node:
    """Scan of opset 8, which has a batch axis before the scanned one, as a Scan over the batch of Scans.

    Sequences shorter than the longest are cut for the inner Scan, and what it collects is padded.
    """
    body: Graph = node.attributes["body"]
    lengths, given = node.inputs[0], node.inputs[1:]
    states = len(given) - node.attributes["num_scan_inputs"]
    taken = {*value_names(body), *body.captures}

    def name(purpose: str) -> str:
        found = unused(f"{node.outputs[0]}/{purpose}", taken)
        taken.add(found)
        return found

    nodes: list[Node] = []

    def apply(op: str, *inputs: str, **attributes: Any) -> str:
        made = name(f"{op} {len(nodes)}")
        nodes.append(Node(op, inputs, (made,), attributes, made, version=NEWEST))
        return made

    items = [
        Value(name(f"item {at}"), _item_type(value, at >= states)) for at, value in enumerate(body.inputs)
    ]
    results = [name(f"result {at}") for at in range(len(body.outputs))]
    inner_inputs, inner_outputs = [value.name for value in items], results
    pads = zero = ""
    if lengths:
        items.append(Value(name("length"), TensorType(INT64, ())))
        zero = name("zero")
        nodes.append(constant_node(zero, [0]))
        length = apply("Unsqueeze", items[-1].name, zero)
        total = apply("Shape", inner_inputs[states], start=0, end=1)
        pads = apply("Concat", zero, apply("Sub", total, length), axis=0)
        inner_inputs = [
            apply("Slice", item, zero, length, zero) if at >= states else item
            for at, item in enumerate(inner_inputs)
        ]
        inner_outputs = [name(f"made {at}") if at >= states else made for at, made in enumerate(results)]
    inner = {key: value for key, value in node.attributes.items() if key != "directions"}
    if "directions" in node.attributes:
        inner["scan_input_directions"] = node.attributes["directions"]
    nodes.append(Node("Scan", tuple(inner_inputs), tuple(inner_outputs), inner, node.name, version=NEWEST))
    if lengths:
        nodes += [
            Node("Pad", (inner_outputs[at], pads, "", zero), (results[at],), version=NEWEST)
            for at in range(states, len(results))
        ]
    outputs = [
        Value(made, _item_type(value, at >= states))
        for at, (made, value) in enumerate(zip(results, body.outputs, strict=True))
    ]
    outer = Graph(tuple(items), tuple(outputs), tuple(nodes), {}, name=body.name)
    # All inputs have the batch as their first axis, the states, too: each item begins with its own.
    scanned = (*given, lengths) if lengths else given
    return renew(
        node,
        inputs=scanned,
        drop=["directions"],
        attributes={"body": outer, "num_scan_inputs": len(scanned)},
    )


def _item_type(value: Value, is_scanned: bool) -> ValueType:
    type_ = value.type
    return stacked(type_, None, 0) if is_scanned and isinstance(type_, TensorType) else type_
