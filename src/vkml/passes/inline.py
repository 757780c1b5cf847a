"""Puts the branch of an If whose condition is known in the If's place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from vkml.ir import Constant, Graph, Node, unused, value_names, with_bodies
from vkml.ops.upgrading import NEWEST


def inline_branches(graph: Graph) -> Graph:
    """The graph with the branches in it that are taken always; itself where there are none.

    Args:
        graph: normalised; constants are folded.
    """
    known = [_taken(node, graph.constants) for node in graph.nodes]
    if not any(known):
        return graph
    taken = value_names(graph)
    nodes: list[Node] = []
    constants = dict(graph.constants)
    for node, branch in zip(graph.nodes, known, strict=True):
        if branch is None:
            nodes.append(node)
            continue
        inside = _renamed_apart(branch, taken)
        nodes += inside.nodes
        constants.update(inside.constants)
        # An Identity each: a branch may give one value twice, and nested bodies may use the outer name.
        nodes += [
            Node("Identity", (value.name,), (name,), name=f"{node.label}, {name}", version=NEWEST)
            for name, value in zip(node.outputs, inside.outputs, strict=True)
            if name
        ]
    return replace(graph, nodes=tuple(nodes), constants=constants)


def _taken(node: Node, constants: Mapping[str, Constant]) -> Graph | None:
    """The branch that a node takes in every run; None where that is not known, or it is no If."""
    if node.op != "If" or node.domain:
        return None
    condition = constants.get(node.inputs[0])
    if condition is None or condition.array.size != 1:
        return None
    branch: Graph = node.attributes["then_branch" if condition.array.item() else "else_branch"]
    return branch


def _renamed_apart(branch: Graph, taken: set[str]) -> Graph:
    """The branch with names of its own that nothing else has; these become `taken`."""
    names: dict[str, str] = {}
    for name in (*branch.constants, *(name for node in branch.nodes for name in node.outputs if name)):
        names[name] = unused(f"{name}/inlined", taken)
        taken.add(names[name])
    return renamed(branch, names)


def renamed(graph: Graph, names: Mapping[str, str]) -> Graph:
    """The graph with values under other names, those that bodies capture included; inputs stay as listed."""

    def of(name: str) -> str:
        return names.get(name, name)

    return replace(
        graph,
        nodes=tuple(renamed_node(node, names) for node in graph.nodes),
        outputs=tuple(replace(value, name=of(value.name)) for value in graph.outputs),
        constants={of(name): constant for name, constant in graph.constants.items()},
        types={of(name): type_ for name, type_ in graph.types.items()},
    )


def renamed_node(node: Node, names: Mapping[str, str]) -> Node:
    """The node with values under other names, those that its bodies capture included."""

    def body(inner: Graph) -> Graph:
        captured = {name: names[name] for name in inner.captures if name in names}
        return renamed(inner, captured) if captured else inner

    inputs, outputs = (tuple([names.get(name, name) for name in own]) for own in (node.inputs, node.outputs))
    return replace(with_bodies(node, body), inputs=inputs, outputs=outputs)
