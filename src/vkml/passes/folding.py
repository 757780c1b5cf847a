"""How much memory the results of nodes may take that are computed before the model runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from vkml.dataclasses import dataclass
from vkml.ir import Constant, Graph, GraphIndex, Node, TensorType, find
from vkml.ir.graph import MadeConstant

Array = np.ndarray[Any, Any]

FOLD_LIMIT = 64 << 20
"""Bytes that folded constants may take in a model without constants: large fills are made at run time."""
SIZED_LIMIT = 64 << 20
"""Bytes beyond that which may be taken by what devices have no kernels for: places, as NonZero makes them."""
GROWTH = 8
"""Times the bytes of its own constants that a model may take besides: 4-bit weights become 32-bit floats."""
_ALWAYS_FOLDED = 1024
"""Bytes of a result that is folded however much there is already: types need the values of shapes."""


def is_foldable(node: Node) -> bool:
    """Whether a node's results may be computed before the model runs, once all of its inputs are known.

    Those with subgraphs are not: a loop of constants may take any time. Nor are those that make sequences.
    """
    operator = find(node)
    return (
        operator.is_deterministic and not operator.stands_alone and not (node.attributes and node.subgraphs)
    )


def decide_types(graph: Graph, values: Collection[str], arithmetic: Collection[str]) -> set[str]:
    """Values that types follow from, and what these are computed from, as far as planning may know them.

    Args:
        graph: whose nodes are folded.
        values: inputs whose values are known.
        arithmetic: values that may be computed from these.
    """
    known = {name for name, constant in graph.constants.items() if not isinstance(constant, MadeConstant)}
    known.update(values)
    given = set(values)
    for node in graph.nodes:
        is_given = not given.isdisjoint(node.reads)
        if is_given and not any(name in arithmetic for name in node.outputs):
            continue
        if find(node).is_shape_only or (is_foldable(node) and known.issuperset(_read_elements(node))):
            known.update(node.outputs)
            if is_given:
                given.update(node.outputs)
    deciding: set[str] = set()
    for node in reversed(graph.nodes):
        operator = find(node)
        if not operator.is_shape_only and not deciding.isdisjoint(node.outputs):
            deciding.update(_read_elements(node))
        for position in (*operator.value_inputs, *operator.sizing_inputs):
            if position < len(node.inputs) and node.inputs[position] in known:
                deciding.add(node.inputs[position])
    return deciding - {""}


def _read_elements(node: Node) -> Iterator[str]:
    """Inputs of which more than the type matters."""
    type_inputs = find(node).type_inputs
    return (name for at, name in enumerate(node.inputs) if name and at not in type_inputs)


@dataclass(eq=False)
class _Block:
    """Memory that folding has taken, and how many values lie in it."""

    bytes: int
    values: int = 0


class Folding:
    """The constants of a graph while a pass folds its nodes in order: adds results, drops what is dead.

    Attributes:
        constants: of the graph, and results so far that a node still to come or the graph's outputs read.
    """

    def __init__(
        self,
        graph: Graph,
        constants: Mapping[str, Constant],
        deciding: Callable[[], Collection[str]] = tuple,
        check_memory: Callable[[Node, int], None] | None = None,
    ) -> None:
        """Args:
        graph: whose nodes are folded; its `fold_allowance` is what may be taken.
        constants: known from the start; these stay.
        deciding: tells the values that are folded whatever is left; asked when results are larger.
        check_memory: called with the node that makes such a value, and the bytes beyond the allowance.
        """
        self.constants: dict[str, Constant] = dict(constants)
        allowance = graph.fold_allowance
        if allowance is None:
            own = {id(constant): constant.type.bytes for constant in graph.constants.values()}
            allowance = FOLD_LIMIT + GROWTH * sum(own.values())
        self._left = allowance
        """Less than nothing where values that decide types have taken more."""
        self._find_deciding = deciding
        self._check_memory = check_memory
        self._index = GraphIndex.of(graph)
        self._done: dict[str, int] = {}
        """How many of the uses of a value were by nodes that are folded."""
        self._blocks: dict[str, _Block | None] = {}
        """Of each result, what it takes; None: it lies in a constant known from the start."""

    def admits(self, node: Node, types: Sequence[TensorType]) -> bool:
        """Whether the results of a node of known inputs, of these static types, may be made.

        What types follow from is, as long as there is memory: it is no more than the run itself would need.
        """
        size = sum(type_.host_bytes for type_ in types)
        if size <= _ALWAYS_FOLDED or size <= self._left:
            return True
        if self._deciding.isdisjoint(node.outputs):
            return bool(find(node).sizing_inputs) and size <= self._left + SIZED_LIMIT
        if self._check_memory is not None:
            self._check_memory(node, size - self._left)
        return True

    def fold(self, node: Node, results: Mapping[str, Constant]) -> None:
        """Takes a node's results for constants and lets go of what only this node still read.

        Args:
            node: as it stands in the graph.
            results: by name.
        """
        for name, constant in results.items():
            block = self._block(node, constant.array)
            if block is not None:
                self._left -= 0 if block.values else block.bytes
                block.values += 1
            self._blocks[name] = block
            self.constants[name] = constant
        for name in node.reads:
            self._done[name] = self._done.get(name, 0) + 1
        for name in {*node.reads, *results}:
            if name in self._blocks and self._done.get(name, 0) == self._index.uses(name):
                self._drop(name)

    def finish(self, graph: Graph, nodes: Sequence[Node]) -> Graph:
        """The graph with the nodes that are left, its constants, and what later passes may still take."""
        return replace(graph, nodes=tuple(nodes), constants=self.constants, fold_allowance=max(0, self._left))

    @cached_property
    def _deciding(self) -> frozenset[str]:
        return frozenset(self._find_deciding())

    def _block(self, node: Node, array: Array) -> _Block | None:
        """Where an array lies: in that of an input, or in memory of its own."""
        for name in node.inputs:
            source = self.constants.get(name)
            # What is wider than its source (an Expand that repeats one element) is made whole by its readers.
            if source is not None and _lies_in(array, source.array):
                return self._blocks.get(name)
        return _Block(array.nbytes)

    def _drop(self, name: str) -> None:
        del self.constants[name]
        block = self._blocks.pop(name)
        if block is not None:
            block.values -= 1
            self._left += 0 if block.values else block.bytes


def _lies_in(array: Array, source: Array) -> bool:
    return array.nbytes <= source.nbytes and bool(np.may_share_memory(array, source))
