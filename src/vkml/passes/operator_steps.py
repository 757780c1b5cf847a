"""Writes nodes that no kernel takes in other operators, where theirs states such steps."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from vkml.ir import Constant, DType, Graph, Node, TensorType, find
from vkml.ir.gradients import Emitter
from vkml.ir.operator import Operator
from vkml.ir.size import TooOpen
from vkml.passes.dead import remove_dead
from vkml.passes.rewriting import Rewriting

_DEPTH = 8
"""Steps are written in steps of their own; more often than this nothing sensible is."""


def expand_steps(
    graph: Graph, accepted: Callable[[Graph, Sequence[Node]], Collection[str]], *, on_host: bool = False
) -> Graph:
    """The graph without the nodes that no back end takes as they are, as far as their operators state steps.

    Args:
        graph: specialised, not fused.
        accepted: says of nodes of a graph which are taken as they are, by the names of their results.
        on_host: whether only the CPU runs the graph, which computes others in one go by their `evaluate`.
    """

    def has_steps(node: Node) -> bool:
        operator = find(node)
        if not on_host:
            return operator.is_stepwise or type(operator).steps is not Operator.steps
        return operator.has_host_steps(node, [graph.types.get(name) for name in node.inputs])

    kept: set[str] = set()
    for _ in range(_DEPTH):
        found = [node for node in graph.nodes if node.key not in kept and has_steps(node)]
        if not found:
            break
        kept.update(accepted(graph, found))
        steps = _Steps(graph)
        for node in graph.nodes:
            if node.key in kept or not has_steps(node) or not steps.expand(node):
                kept.add(node.key)
                steps.nodes.append(node)
        # Steps may make what nobody wants of this node.
        graph = remove_dead(steps.finish())
    return graph


class _Steps(Rewriting):
    def expand(self, node: Node) -> bool:
        """Adds the nodes that compute a node; False, having added none, where there are no such."""
        self.stem = node.name or node.key
        self.within = node.within or node.label
        before = len(self.nodes)
        try:
            made = find(node).steps(_Emitter(self), node, [name or None for name in node.inputs])
        except TooOpen:
            made = None
        finally:
            self.within = ""
        if made is None:
            del self.nodes[before:]
            return False
        for name, wanted in zip(made, node.outputs, strict=False):
            if wanted:
                assert name is not None, "a result that is wanted is made"
                self._call(name, wanted, before)
        return True

    def _call(self, name: str, wanted: str, first: int) -> None:
        """Gives a value another name, that of which it is the place."""
        for at in range(first, len(self.nodes)):
            node = self.nodes[at]
            if name in node.outputs:
                outputs = tuple(wanted if output == name else output for output in node.outputs)
                self.nodes[at] = replace(node, outputs=outputs)
                self.types[wanted] = self.types[name]
                for later in range(at + 1, len(self.nodes)):
                    reader = self.nodes[later]
                    inputs = tuple(wanted if x == name else x for x in reader.inputs)
                    self.nodes[later] = replace(reader, inputs=inputs)
                return
        self.apply("Identity", [name], made=wanted)


class _Emitter(Emitter[str]):
    """Applies operators to values of a graph, by their names."""

    def __init__(self, to: Rewriting) -> None:
        self._to = to

    def apply(self, op: str, *inputs: str | None, domain: str = "", **attributes: Any) -> str:
        return self.apply_all(op, inputs, 1, domain, **attributes)[0]

    def apply_all(
        self, op: str, inputs: Sequence[str | None], outputs: int, domain: str = "", **attributes: Any
    ) -> list[str]:
        made = [self._to.name(op) for _ in range(outputs)]
        return self._to.apply_all(op, [name or "" for name in inputs], made, domain, **attributes)

    def constant(self, value: Any, dtype: DType) -> str:
        return self._to.constant(value, dtype)

    def type_of(self, value: str) -> TensorType:
        return self._to.types[value]

    def elements_of(self, value: str) -> np.ndarray[Any, Any] | None:
        found: Constant | None = self._to.constants.get(value)
        return None if found is None else found.array

    def note_sum(self, value: str, axis: int, total: str) -> None:
        """Of use where gradients are recorded alone."""

    def known_sum(self, value: str, axis: int) -> str | None:
        return None

    def pulled_back(self, *_: Any) -> list[str | None]:
        raise NotImplementedError("steps of operators are no gradients")
