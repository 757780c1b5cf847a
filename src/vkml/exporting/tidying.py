"""A graph as it is written to a file: without copies, and what nobody reads."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from vkml.exporting.opsets import stated
from vkml.ir import MANY, Graph, Node, find

MOST_IN_NODES = 1 << 16
"""Bytes of constants that nodes state: attributes cannot be beside the model."""


def tidied(graph: Graph, opset: int, states: Collection[str]) -> Graph:
    """The graph without copies but those that outputs need, and without what nobody reads.

    Numbers of the program are stated by nodes: initializers are what a module has, which may be learned.

    Args:
        graph: in ONNX's operators.
        opset: that its nodes are to state.
        states: names of parameters and buffers.
    """
    nodes = _without_copies(graph)
    read = {value.name for value in graph.outputs}
    kept: list[Node] = []
    for node in reversed(nodes):
        if not any(name in read for name in node.outputs):
            continue
        read.update(node.inputs)
        operator = find(node)
        least, most = max(operator.outputs[0], operator.written_outputs), operator.outputs[1]
        if node.attributes.get("training_mode"):
            least = len(node.outputs)  # there are as many in training as ONNX says
        outputs = [
            name if at < least or most >= MANY or name in read else "" for at, name in enumerate(node.outputs)
        ]
        while not outputs[-1]:
            outputs.pop()
        kept.append(replace(node, outputs=tuple(outputs), attributes=stated(node), version=opset))
    kept.reverse()
    made = {name for node in kept for name in node.outputs}
    constants = {name: value for name, value in graph.constants.items() if name in read}
    numbers = [
        name
        for name, value in constants.items()
        if name not in states and value.dtype.bytes_for(value.array.size) <= MOST_IN_NODES
    ]
    stating = [
        Node("Constant", (), (name,), {"value": constants.pop(name)}, f"{name}/Constant", version=opset)
        for name in numbers
    ]
    return replace(
        graph,
        nodes=(*stating, *kept),
        constants=constants,
        types={name: type_ for name, type_ in graph.types.items() if name in made},
        opsets={"": opset},
    )


def _without_copies(graph: Graph) -> list[Node]:
    """The nodes but Identity, whose readers read what it copies."""
    sources: dict[str, str] = {}
    for node in graph.nodes:
        if node.op == "Identity" and not node.domain:
            sources[node.outputs[0]] = sources.get(node.inputs[0], node.inputs[0])
    given = {value.name for value in graph.inputs} | set(graph.constants)
    called: dict[str, str] = {}
    copies: list[Node] = []
    for value in graph.outputs:
        source = sources.get(value.name, value.name)
        if source != value.name and source not in given and source not in called:
            called[source] = value.name
        elif source != value.name:
            copies.append(Node("Identity", (source,), (value.name,), {}, f"/{value.name}"))

    def name(value: str) -> str:
        source = sources.get(value, value)
        return called.get(source, source)

    found = [
        replace(
            node,
            inputs=tuple(name(value) for value in node.inputs),
            outputs=tuple(called.get(value, value) for value in node.outputs),
        )
        for node in graph.nodes
        if node.op != "Identity" or node.domain
    ]
    return found + [replace(copy, inputs=(name(copy.inputs[0]),)) for copy in copies]
