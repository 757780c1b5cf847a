"""Has equal nodes of small results be one: statistics that a normalisation and its gradient both ask for."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace

from vkml.ir import Constant, Graph, GraphIndex, Node, find

SMALL_ELEMENTS = 1 << 16
"""What is larger takes memory while it is kept: `checkpoint` has it computed again for that."""
SMALL_CONSTANT = 16
"""Elements of constants that are compared by what is in them: shapes, axes, numbers."""


def share_small(graph: Graph, place: Callable[[Node], Hashable] | None = None) -> Graph:
    """The graph without nodes that make what a node before them makes.

    Args:
        graph: specialised.
        place: what nodes have in common of which one may stand for the other; None: all have.
    """
    index = GraphIndex.of(graph)
    first: dict[Hashable, Node] = {}
    renamed: dict[str, str] = {}
    constants = {name: _contents(constant) for name, constant in graph.constants.items()}
    nodes: list[Node] = []
    for node in graph.nodes:
        if not renamed.keys().isdisjoint(node.inputs):
            node = replace(node, inputs=tuple([renamed.get(name, name) for name in node.inputs]))
        names = [name for name in node.outputs if name]
        if node.form is None or not _is_small(names, graph) or not find(node).is_deterministic:
            nodes.append(node)
            continue
        inputs = tuple([constants.get(name) or name for name in node.inputs])
        key = node.form, inputs, place(node) if place is not None else None
        known = first.setdefault(key, node)
        if known is node or any(index.is_output(name) or index.is_captured(name) for name in names):
            nodes.append(node)
        else:
            renamed.update(zip(node.outputs, known.outputs, strict=True))
    return replace(graph, nodes=tuple(nodes)) if renamed else graph


def _contents(constant: Constant) -> Hashable | None:
    """What tells a small constant from others."""
    if constant.is_open or constant.type.elements > SMALL_CONSTANT or not constant.dtype.is_native:
        return None
    return constant.dtype, constant.shape, constant.array.tobytes()


def _is_small(names: list[str], graph: Graph) -> bool:
    types = [graph.types.get(name) for name in names]
    return all(
        type_ is not None and type_.is_static and not type_.is_open and type_.elements <= SMALL_ELEMENTS
        for type_ in types
    )
