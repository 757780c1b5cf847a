"""Names for the values that rewrites make: none that a graph has already."""

from __future__ import annotations

from collections.abc import Container
from itertools import count

from vkml.ir.graph import Graph


def value_names(graph: Graph) -> set[str]:
    """The names of a graph's values and of those in its subgraphs, which may not be called alike."""
    names = {value.name for value in graph.inputs}
    names.update(graph.constants)
    for node in graph.nodes:
        names.update(node.outputs)
        if node.attributes:
            for body in node.subgraphs:
                names |= value_names(body)
    return names


def unused(wanted: str, taken: Container[str]) -> str:
    """The name that is wanted, with a number behind it where it is taken."""
    if wanted not in taken:
        return wanted
    return next(name for number in count(1) if (name := f"{wanted}.{number}") not in taken)
