"""Finds scaled dot product attention in the nodes that exporters write it in, and makes one node of each."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np

from vkml.dataclasses import dataclass
from vkml.ir import Constant, DType, Graph, GraphIndex, Node, dtypes

DTYPES = (dtypes.FLOAT16, dtypes.FLOAT32)
LEAST_HIDING = -1e8
"""A score that is so low, or that so much is added to, weighs nothing beside any other of a usual size."""


@dataclass
class Candidate:
    """An attention that was found."""

    members: list[Node]
    """The nodes that compute it now; nobody else reads what they make but the last one's result."""
    node: Node
    """What may stand in their place."""
    dtype: DType
    """Of queries, keys, values and the result."""


def fuse_attention(graph: Graph, accepted: Callable[[Sequence[Candidate]], Collection[str]]) -> Graph:
    """The graph with the attentions that the back end takes as one node each.

    Args:
        graph: specialised, not fused.
        accepted: says of attentions which are to be fused, by the names of their results. What it does not
            take stays as it is.
    """
    index = GraphIndex.of(graph)
    finder = _Finder(graph, index)
    found = [each for node in graph.nodes if (each := finder.candidate(node)) is not None]
    if not found:
        return graph
    names = accepted(found)
    if not names:
        return graph
    made: dict[int, Node] = {}
    dropped: set[int] = set()
    for each in found:
        # The last product of one may be the first of another, which then stays as it is.
        if each.node.outputs[0] in names and dropped.isdisjoint(map(id, each.members)):
            made[id(each.members[-1])] = each.node
            dropped.update(map(id, each.members))
    nodes = [made.get(id(node), node) for node in graph.nodes if id(node) in made or id(node) not in dropped]
    return replace(graph, nodes=tuple(nodes))


@dataclass
class _Scores:
    """What is known of scores on the way back from Softmax to their product."""

    members: list[Node] = field(default_factory=list)
    q: str = ""
    k: str = ""
    scale: float = 1.0
    mask: str = ""
    is_mask_hiding: bool = False
    fill: float = float("-inf")
    bias: str = ""


class _Finder:
    def __init__(self, graph: Graph, index: GraphIndex) -> None:
        self._graph = graph
        self._index = index
        self._offsets: dict[tuple[int, bool], tuple[int, float] | None] = {}

    def candidate(self, softmax: Node) -> Candidate | None:
        """The attention that a node is the Softmax of."""
        if softmax.op != "Softmax" or softmax.domain:
            return None
        types = self._graph.types
        rank = types[softmax.inputs[0]].rank
        if rank < 2 or softmax.attributes["axis"] not in (-1, rank - 1):
            return None
        scores = self._scores(softmax.inputs[0], _Scores())
        if scores is None:
            return None
        members, name = [*scores.members, softmax], softmax.outputs[0]
        cleared = self._cleared(name)
        if cleared:
            members += cleared
            name = cleared[-1].outputs[0]
        while (reader := self._reader(name)) is not None and self._is_cast(reader):
            members.append(reader)
            name = reader.outputs[0]
        if reader is None or reader.op != "MatMul" or reader.domain or reader.inputs[0] != name:
            return None
        v = reader.inputs[1]
        if v == name or types[v].rank < 2:
            return None
        dtype = types[reader.outputs[0]].dtype
        # Of float16 nobody looks for infinities among values, which zeros make NaN of.
        accepted = (dtypes.FLOAT32,) if cleared else DTYPES
        if dtype not in accepted or any(types[each].dtype != dtype for each in (scores.q, scores.k, v)):
            return None
        inputs = [scores.q, scores.k, v, scores.mask, scores.bias]
        attributes: dict[str, Any] = {
            "scale": scores.scale,
            "softcap": 0.0,
            "group": 1,
            "is_empty_zero": 0,
            "is_nan_zero": int(bool(cleared)),
            "is_key_transposed": 1,
            "is_mask_hiding": int(scores.is_mask_hiding),
            "is_fill_added": 0,
            "fill": scores.fill,
            "causal_offset": None,
        }
        causal = self._causal(scores) if dtype == dtypes.FLOAT32 else None
        if causal is not None:
            offset, fill = causal
            attributes |= {"causal_offset": offset, "fill": fill, "is_fill_added": int(bool(scores.bias))}
            attributes["is_mask_hiding"] = 0
            inputs[3:] = ["", ""]
        while not inputs[-1]:
            inputs.pop()
        node = Node("Attention", tuple(inputs), reader.outputs, attributes, reader.name, "vkml")
        return Candidate([*members, reader], node, dtype)

    def _cleared(self, name: str) -> list[Node]:
        """The nodes that make zeros of a value's NaN, for nobody else reads it: IsNaN and Where."""
        if self._index.uses(name) != 2 or self._index.is_output(name) or self._index.is_captured(name):
            return []
        for is_nan, where in itertools.permutations(self._index.consumers(name), 2):
            if is_nan.op == "IsNaN" and where.op == "Where" and not (is_nan.domain or where.domain):
                test, zero, kept = where.inputs
                is_only = self._index.uses(test) == 1 and not self._index.is_output(test)
                if is_only and test == is_nan.outputs[0] and kept == name and self._number(zero) == 0:
                    return [is_nan, where] if self._keeps_shape(name, where) else []
        return []

    def _scores(self, name: str, found: _Scores) -> _Scores | None:
        """Follows scores back to their product, through what scales, masks and converts them."""
        node = self._producer(name)
        if node is None or node.domain:
            return None
        found = replace(found, members=[node, *found.members])
        if node.op == "MatMul":
            return self._product(node, found)
        if self._is_cast(node):
            return self._scores(node.inputs[0], found)
        # Steps come in this order: scaled, masked, biased.
        if node.op == "Add" and not (found.bias or found.mask) and found.scale == 1.0:
            for scores, bias in (node.inputs, node.inputs[::-1]):
                if self._keeps_shape(scores, node) and self._graph.types[bias].dtype in DTYPES:
                    followed = self._scores(scores, replace(found, bias=bias))
                    if followed is not None:
                        return followed
            return None
        if node.op == "Where" and not found.mask and found.scale == 1.0:
            mask, first, second = node.inputs
            for scores, other, is_hiding in ((first, second, False), (second, first, True)):
                fill = self._number(other)
                if fill is not None and self._keeps_shape(scores, node):
                    masked = replace(found, mask=mask, fill=fill, is_mask_hiding=is_hiding)
                    followed = self._scores(scores, masked)
                    if followed is not None:
                        return followed
            return None
        scaled = self._scaled(node)
        if scaled is not None:
            return self._scores(scaled[0], replace(found, scale=found.scale * scaled[1]))
        return None

    def _product(self, node: Node, found: _Scores) -> _Scores | None:
        types = self._graph.types
        q, k = node.inputs
        if types[q].rank < 2 or types[k].rank < 2:
            return None
        scale, members = found.scale, list(found.members)
        operands = []
        for name in (q, k):
            # Factors of an operand; where somebody else reads it, too, it stays scaled.
            producer = self._producer(name) if q != k else None
            scaled = self._scaled(producer) if producer is not None else None
            if producer is not None and scaled is not None:
                members.insert(0, producer)
                name, scale = scaled[0], scale * scaled[1]
            operands.append(name)
        if not 0 < scale < float("inf"):
            return None
        return replace(found, q=operands[0], k=operands[1], scale=scale, members=members)

    def _scaled(self, node: Node) -> tuple[str, float] | None:
        """What a node multiplies with a positive number, and the number."""
        if node.op not in ("Mul", "Div") or node.domain:
            return None
        pairs = [node.inputs] if node.op == "Div" else [node.inputs, node.inputs[::-1]]
        for value, number in pairs:
            factor = self._number(number)
            if factor is not None and 0 < factor < float("inf") and self._keeps_shape(value, node):
                return value, factor if node.op == "Mul" else 1 / factor
        return None

    def _causal(self, scores: _Scores) -> tuple[int, float] | None:
        """The offset and the fill of a mask or bias that is a constant lower triangle."""
        if bool(scores.mask) == bool(scores.bias):
            return None
        constant = self._graph.constants.get(scores.mask or scores.bias)
        if constant is None or constant.is_open:
            return None
        types = self._graph.types
        sizes = (types[scores.q].dims[-2], types[scores.k].dims[-1])
        shape = constant.shape
        if len(shape) < 2 or shape[-2:] != sizes or any(size != 1 for size in shape[:-2]) or sizes[1] < 2:
            return None
        key = id(constant), scores.is_mask_hiding
        if key not in self._offsets:
            self._offsets[key] = _triangle(constant, is_hiding=scores.is_mask_hiding)
        found = self._offsets[key]
        if found is None:
            return None
        offset, fill = found[0], scores.fill if scores.mask else found[1]
        return (offset, fill) if fill <= LEAST_HIDING else None

    def _producer(self, name: str) -> Node | None:
        """The node that makes a value for one reader alone."""
        return self._index.producer(name) if self._index.uses(name) == 1 else None

    def _reader(self, name: str) -> Node | None:
        """The only node that reads a value, which nobody else needs."""
        if self._index.uses(name) != 1 or self._index.is_output(name):
            return None
        return self._index.consumers(name)[0]

    def _is_cast(self, node: Node) -> bool:
        if node.op != "Cast" or node.domain:
            return False
        return all(self._graph.types[name].dtype in DTYPES for name in (node.inputs[0], node.outputs[0]))

    def _keeps_shape(self, name: str, node: Node) -> bool:
        """Whether an operand has the shape of a node's result: others broadcast to it."""
        return self._graph.types[name].dims == self._graph.types[node.outputs[0]].dims

    def _number(self, name: str) -> float | None:
        """The one element of a constant."""
        constant = self._graph.constants.get(name)
        if constant is None or constant.is_open or constant.dtype not in DTYPES or constant.array.size != 1:
            return None
        return float(constant.array.reshape(-1)[0])


def _triangle(constant: Constant, *, is_hiding: bool) -> tuple[int, float] | None:
    """How far row 0 of a lower triangle sees, and what a bias of zeros adds elsewhere; None for all else."""
    array = constant.array.reshape(constant.shape[-2:])
    fill = 0.0
    if constant.dtype == dtypes.BOOL:
        seen = ~array if is_hiding else array
    else:
        seen = array == 0
        fill = float(array[0, -1])
    offset = int(seen[0].sum()) - 1
    if (
        offset < 0
        or not np.array_equal(seen, np.tri(array.shape[0], array.shape[1], offset, dtype=np.bool_))
        or seen.all()
    ):
        return None
    if constant.dtype != dtypes.BOOL and (array[~seen] != fill).any():
        return None
    return offset, fill
