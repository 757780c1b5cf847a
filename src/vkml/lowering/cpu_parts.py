"""Groups that machine code refuses, cut into what it takes and single nodes that it does not."""

from __future__ import annotations

from collections.abc import Collection, Mapping, MutableMapping, Sequence
from dataclasses import replace

from vkml.ir import Constant, Graph, GraphIndex, Node, TensorType, find
from vkml.passes.fuse import fused_node


def members_of(
    node: Node,
    taken: Collection[str],
    types: MutableMapping[str, TensorType],
    constants: MutableMapping[str, Constant],
) -> list[Node]:
    """The nodes of a group with the names of the graph round it.

    Args:
        node: the group.
        taken: names that values have already; others of the body stay what they are.
        types: receives those of the body's values.
        constants: receives the body's.
    """
    body: Graph = node.attributes["body"]
    names = {value.name: outer for value, outer in zip(body.inputs, node.inputs, strict=True)}
    names |= {value.name: outer for value, outer in zip(body.outputs, node.outputs, strict=True)}
    known = {**body.types, **{name: constant.type for name, constant in body.constants.items()}}
    for name, type_ in known.items():
        if name not in names:
            names[name] = f"{node.outputs[0]}/{name}" if name in taken else name
            types[names[name]] = type_
    constants.update((names[name], constant) for name, constant in body.constants.items())
    return [
        replace(
            member,
            inputs=tuple(names[name] if name else "" for name in member.inputs),
            outputs=tuple(names[name] if name else "" for name in member.outputs),
        )
        for member in body.nodes
    ]


def parts_of(
    members: Sequence[Node],
    wanted: Collection[str],
    types: Mapping[str, TensorType],
    constants: Mapping[str, Constant],
) -> list[Node]:
    """Neighbours that machine code takes as groups of their own, other nodes by themselves.

    All of them by themselves where machine code takes each alone, or none: then it was the group that it
    refused, and nothing of it may come back as it was.

    Args:
        members: of the group, named like the graph round it.
        wanted: their results that others read.
        types: of all values.
        constants: values that are known.
    """
    from vkml.lowering.native_body import pointwise_refusal  # not for sessions on a GPU: 50 ms

    groups: list[list[Node]] = []
    is_open = False
    for node in members:
        is_taken = find(node).is_pointwise and pointwise_refusal(node, types, constants) is None
        if is_taken and is_open:
            groups[-1].append(node)
        else:
            groups.append([node])
        is_open = is_taken
    if len(groups) == 1:
        return list(members)
    graph = Graph((), (), (), constants, types)
    index = GraphIndex(members, outputs=wanted, constants=constants)
    parts = [group[0] if len(group) == 1 else fused_node(group, graph, index) for group in groups]
    return [part for part in parts if part.outputs]  # else nobody reads what it makes
