"""Writes attention that is one node as products and a Softmax, where no kernel takes it as a whole."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np

from vkml.ir import Graph, Node, dtypes
from vkml.passes.rewriting import Rewriting

Triangle = Callable[[Rewriting, str, int], str]
"""Names which scores of each row a causal attention keeps: of the steps, the scores and the offset."""


def constant_triangle(to: Rewriting, scores: str, offset: int) -> str:
    """Truth values of the scores' shape, which are a constant."""
    rows, columns = to.types[scores].dims[-2:]
    return to.constant(np.tri(rows, columns, offset, dtype=np.bool_), dtypes.BOOL, "triangle")


def expand_attention(
    graph: Graph,
    accepted: Callable[[Sequence[Node]], Collection[str]],
    triangle: Triangle = constant_triangle,
) -> Graph:
    """The graph without the attentions that no back end takes.

    Args:
        graph: specialised, not fused.
        accepted: says of nodes which are taken as they are, by the names of their results.
        triangle: makes the mask of causal ones.
    """
    found = [node for node in graph.nodes if _is_attention(node)]
    if not found:
        return graph
    kept = accepted(found)
    steps = _Steps(graph, triangle)
    for node in graph.nodes:
        if _is_attention(node) and node.key not in kept:
            steps.expand(node)
        else:
            steps.nodes.append(node)
    return steps.finish()


def _is_attention(node: Node) -> bool:
    return node.op == "Attention" and node.domain == "vkml"


class _Steps(Rewriting):
    def __init__(self, graph: Graph, triangle: Triangle) -> None:
        super().__init__(graph)
        self._triangle = triangle

    def expand(self, node: Node) -> None:
        """Adds the nodes that compute an attention."""
        self.stem = node.name or node.key
        attributes = node.attributes
        q, k, v, mask, bias = (*node.inputs, "", "")[:5]
        dtype, rank = self.types[q].dtype, self.types[k].rank
        if not attributes["is_key_transposed"]:
            k = self.apply("Transpose", [k], perm=(*range(rank - 2), rank - 1, rank - 2))
        scores = self.apply("MatMul", [q, k])
        if attributes["scale"] != 1:
            scores = self.apply("Mul", [scores, self.constant(attributes["scale"], dtype, "scale")])
        is_hiding = attributes["is_mask_hiding"]
        if attributes["causal_offset"] is not None:
            mask, is_hiding = self._triangle(self, scores, attributes["causal_offset"]), False
        if mask:
            fill = self.constant(attributes["fill"], dtype, "fill")
            other = self.apply("Add", [scores, fill]) if attributes["is_fill_added"] else fill
            pair = [other, scores] if is_hiding else [scores, other]
            scores = self.apply("Where", [mask, *pair])
        if bias:
            if self.types[bias].dtype != dtype:
                bias = self.apply("Cast", [bias], to=dtype.code)
            scores = self.apply("Add", [scores, bias])
        weights = self.apply("Softmax", [scores], axis=-1)
        self.apply("MatMul", [weights, v], made=node.outputs[0])
