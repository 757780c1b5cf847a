"""Nodes written by passes in the places of others: named, completed and typed as they are added."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from vkml.ir import Constant, DType, Graph, Known, Node, find, unused, value_names
from vkml.ir.operator import normalise_attributes
from vkml.ops.upgrading import NEWEST


class Rewriting:
    """The nodes of a graph that is being written anew.

    Args:
        graph: the one before, whose constants and types are kept; all of its tensors have types, where `add`
            is to know those of others.
    """

    def __init__(self, graph: Graph) -> None:
        self.nodes: list[Node] = []
        self.constants, self.types = dict(graph.constants), dict(graph.types)
        tensors = [value for value in graph.inputs if not value.type.is_container]
        self.types.update((value.name, value.tensor) for value in tensors)
        self.types.update((name, constant.type) for name, constant in graph.constants.items())
        self.stem = ""
        """What names of values and nodes that are made begin with."""
        self.within = ""
        """The label of the node in whose place those that are made stand."""
        self._graph = graph
        self._taken = value_names(graph)

    def name(self, wanted: str) -> str:
        """A name that no value has."""
        name = unused(f"{self.stem}/{wanted}" if self.stem else wanted, self._taken)
        self._taken.add(name)
        return name

    def constant(self, array: Any, dtype: DType, what: str = "constant") -> str:
        """The name of a tensor of known elements; of objects, where open sizes are among them."""
        name, found = self.name(what), np.asarray(array)
        if found.dtype != object:
            found = found.astype(dtype.storage)
        self.constants[name] = made = Constant(dtype, found.shape, found)
        self.types[name] = made.type
        return name

    def apply(
        self, op: str, inputs: Sequence[str], *, made: str = "", domain: str = "", **attributes: Any
    ) -> str:
        """The name of the first output of an operator; `made`, where that is stated."""
        return self.apply_all(op, inputs, [made or self.name(op)], domain, **attributes)[0]

    def apply_all(
        self, op: str, inputs: Sequence[str], made: Sequence[str], domain: str = "", **attributes: Any
    ) -> list[str]:
        """The outputs of an operator, which are called as `made` says."""
        version = 1 if domain else NEWEST
        given = tuple(inputs)
        while given and not given[-1]:
            given = given[:-1]
        node = Node(op, given, tuple(made), attributes, made[0], domain, version, self.within)
        self.add(replace(node, attributes=normalise_attributes(node, find(node))))
        return [*made]

    def add(self, node: Node) -> None:
        """Adds a node that is normalised, and notes the types of what it makes."""
        known = [
            Known(self.types[name], self.constants[name].array if name in self.constants else None)
            if name
            else None
            for name in node.inputs
        ]
        for name, type_ in zip(node.outputs, find(node).infer(node, known), strict=False):
            if name:
                self.types[name] = type_.tensor
        self.nodes.append(node)

    def finish(self) -> Graph:
        """The graph with the nodes that have been added."""
        return replace(self._graph, nodes=tuple(self.nodes), constants=self.constants, types=self.types)
