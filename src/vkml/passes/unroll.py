"""Lays out loops of a few trips whose number is known, so that they become part of the plan around them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from vkml.dataclasses import dataclass
from vkml.ir import Constant, Graph, GraphIndex, Node, dtypes, every_node, unused, value_names
from vkml.ops.control import stated_shape
from vkml.ops.upgrading import NEWEST
from vkml.passes.inline import renamed

LARGEST_LOOP = 512
"""Nodes that the trips of one loop may have together."""
MOST_NODES = 4096
"""Nodes that all loops of a model may become: a file of a few loops in one another could fill any memory."""


@dataclass(eq=False)
class UnrollBudget:
    """How many nodes may still be made."""

    nodes: int = MOST_NODES

    def take(self, count: int) -> bool:
        """Whether so many are left, which then are gone."""
        if count > min(self.nodes, LARGEST_LOOP):
            return False
        self.nodes -= count
        return True


def unroll_loops(graph: Graph, budget: UnrollBudget) -> Graph:
    """The graph with the trips of such loops one after the other; itself where there are none.

    Args:
        graph: normalised; its constants are folded, its bodies prepared.
        budget: for all graphs of a model.
    """
    trips = [_trips(node, graph.constants) for node in graph.nodes]
    chosen = [
        count > 0 and budget.take(count * max(1, _size(node))) if count else False
        for node, count in zip(graph.nodes, trips, strict=True)
    ]
    if not any(chosen):
        return graph
    taken = value_names(graph)
    nodes: list[Node] = []
    constants = dict(graph.constants)
    for node, count, is_chosen in zip(graph.nodes, trips, chosen, strict=True):
        if is_chosen:
            _unroll(node, count, nodes, constants, taken)
        else:
            nodes.append(node)
    return replace(graph, nodes=tuple(nodes), constants=constants)


def _trips(node: Node, constants: Mapping[str, Constant]) -> int:
    """How many trips a node makes, in every run; 0 where that is not known, or it is no Loop."""
    if node.op != "Loop" or node.domain:
        return 0
    limit, condition = (constants.get(name) for name in node.inputs[:2])
    if limit is None or limit.array.size != 1 or (node.inputs[1] and not _is_true(condition)):
        return 0
    body: Graph = node.attributes["body"]
    index = GraphIndex.of(body)
    name = body.outputs[0].name
    while (made := index.producer(name)) is not None and made.op == "Identity" and not made.domain:
        name = made.inputs[0]
    goes_on = name == body.inputs[1].name or _is_true(body.constants.get(name))
    return max(0, int(limit.array.item())) if goes_on else 0


def _is_true(constant: Constant | None) -> bool:
    return constant is not None and constant.array.size == 1 and bool(constant.array.item())


def _size(node: Node) -> int:
    """The nodes of a loop's body, with those of bodies in it."""
    return sum(1 for _ in every_node(node.attributes["body"]))


def _unroll(
    node: Node, trips: int, nodes: list[Node], constants: dict[str, Constant], taken: set[str]
) -> None:
    """Adds a loop's trips to nodes and constants, whose names become `taken`."""
    body: Graph = node.attributes["body"]

    def name(wanted: str) -> str:
        found = unused(wanted, taken)
        taken.add(found)
        return found

    def constant(wanted: str, array: Sequence[int] | int | bool, shape: Sequence[int]) -> str:
        found = name(f"{node.outputs[0]}/{wanted}")
        value = np.asarray(array).reshape(tuple(shape))
        constants[found] = Constant(dtypes.from_numpy(value.dtype), value.shape, value)
        return found

    def apply(op: str, inputs: Sequence[str], made: str, **attributes: int) -> str:
        nodes.append(Node(op, tuple(inputs), (made,), attributes, f"{node.label}, {made}", version=NEWEST))
        return made

    number_shape, condition_shape = (stated_shape(body, at) for at in (0, 1))
    condition = constant("goes on", True, condition_shape)
    # Under names of their own: bodies within the body may call values of theirs like outer ones.
    carried = [apply("Identity", [outer], name(f"{outer}/carried")) for outer in node.inputs[2:]]
    stacked: list[list[str]] = [[] for _ in body.outputs[1 + len(carried) :]]
    for trip in range(trips):
        given = [constant(f"trip {trip}", trip, number_shape), condition, *carried]
        names = dict(zip((value.name for value in body.inputs), given, strict=True))
        for own in (*body.constants, *(own for inner in body.nodes for own in inner.outputs if own)):
            names[own] = name(f"{own}/trip {trip}")
        made = renamed(body, names)
        nodes += [
            replace(inner, name=f"{inner.name}, trip {trip}") if inner.name else inner for inner in made.nodes
        ]
        constants.update(made.constants)
        results = [value.name for value in made.outputs]
        carried = results[1 : 1 + len(carried)]
        for found, result in zip(stacked, results[1 + len(carried) :], strict=True):
            found.append(result)
    axis = constant("axis", [0], (1,))
    for output, last in zip(node.outputs, carried, strict=False):
        if output:
            apply("Identity", [last], output)
    for output, found in zip(node.outputs[len(carried) :], stacked, strict=False):
        if output:
            rows = [
                apply("Unsqueeze", [row, axis], name(f"{output}/row {at}")) for at, row in enumerate(found)
            ]
            apply("Concat", rows, output, axis=0)
