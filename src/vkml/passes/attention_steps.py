"""Writes attention that is one node as products and a Softmax, where no kernel takes it as a whole."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from vkml.ir import Constant, DType, Graph, Known, Node, dtypes, find, unused, value_names
from vkml.ir.operator import normalise_attributes


def expand_attention(graph: Graph, accepted: Callable[[Sequence[Node]], Collection[str]]) -> Graph:
    """The graph without the attentions that no back end takes.

    Args:
        graph: specialised, not fused.
        accepted: says of nodes which are taken as they are, by the names of their results.
    """
    found = [node for node in graph.nodes if _is_attention(node)]
    if not found:
        return graph
    kept = accepted(found)
    steps = _Steps(graph)
    for node in graph.nodes:
        if _is_attention(node) and node.key not in kept:
            steps.expand(node)
        else:
            steps.nodes.append(node)
    return replace(graph, nodes=tuple(steps.nodes), constants=steps.constants, types=steps.types)


def _is_attention(node: Node) -> bool:
    return node.op == "Attention" and node.domain == "vkml"


class _Steps:
    def __init__(self, graph: Graph) -> None:
        self.nodes: list[Node] = []
        self.constants, self.types = dict(graph.constants), dict(graph.types)
        self._taken = value_names(graph)

    def expand(self, node: Node) -> None:
        """Adds the nodes that compute an attention."""
        attributes = node.attributes
        q, k, v, mask, bias = (*node.inputs, "", "")[:5]
        dtype, rank = self.types[q].dtype, self.types[k].rank
        if not attributes["is_key_transposed"]:
            k = self._apply(node, "Transpose", [k], perm=(*range(rank - 2), rank - 1, rank - 2))
        scores = self._apply(node, "MatMul", [q, k])
        if attributes["scale"] != 1:
            scale = self._constant(node, "scale", np.asarray(attributes["scale"]), dtype)
            scores = self._apply(node, "Mul", [scores, scale])
        is_hiding = attributes["is_mask_hiding"]
        if attributes["causal_offset"] is not None:
            rows, columns = self.types[scores].dims[-2:]
            kept = np.tri(rows, columns, attributes["causal_offset"], dtype=np.bool_)
            mask, is_hiding = self._constant(node, "triangle", kept, dtypes.BOOL), False
        if mask:
            fill = self._constant(node, "fill", np.asarray(attributes["fill"]), dtype)
            other = self._apply(node, "Add", [scores, fill]) if attributes["is_fill_added"] else fill
            pair = [other, scores] if is_hiding else [scores, other]
            scores = self._apply(node, "Where", [mask, *pair])
        if bias:
            if self.types[bias].dtype != dtype:
                bias = self._apply(node, "Cast", [bias], to=dtype.code)
            scores = self._apply(node, "Add", [scores, bias])
        weights = self._apply(node, "Softmax", [scores], axis=-1)
        self._apply(node, "MatMul", [weights, v], made=node.outputs[0])

    def _constant(self, node: Node, what: str, array: np.ndarray[Any, Any], dtype: DType) -> str:
        name = self._name(f"{node.key}/{what}")
        self.constants[name] = found = Constant(dtype, array.shape, array.astype(dtype.storage))
        self.types[name] = found.type
        return name

    def _name(self, wanted: str) -> str:
        name = unused(wanted, self._taken)
        self._taken.add(name)
        return name

    def _apply(self, of: Node, op: str, inputs: Sequence[str], *, made: str = "", **attributes: Any) -> str:
        made = made or self._name(f"{of.key}/{op}")
        node = Node(op, tuple(inputs), (made,), attributes, f"{of.name or of.key}/{op}", version=of.version)
        operator = find(node)
        node = replace(node, attributes=normalise_attributes(node, operator))
        known = [
            Known(self.types[name], self.constants[name].array if name in self.constants else None)
            for name in inputs
        ]
        [type_] = operator.infer(node, known)
        self.nodes.append(node)
        self.types[made] = type_.tensor
        return made
