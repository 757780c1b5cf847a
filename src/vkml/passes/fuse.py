"""Groups nodes into `Fused` nodes: chains of pointwise nodes, alone or behind one heavy node (the anchor).

A fused node is ``Node(op="Fused", domain="vkml")`` whose attribute ``body`` is a graph: at most one anchor
first, then pointwise nodes. The body's inputs and outputs correspond to the node's by position. Every value
of the body has the shape of the group's result or one that broadcasts to it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from vkml.ir import Dim, Graph, Node, TensorType, Value, find

ANCHORS = frozenset(
    {
        "Conv",
        "MatMul",
        "Gemm",
        "MaxPool",
        "AveragePool",
        "GlobalAveragePool",
        "Softmax",
        "LogSoftmax",
        "LayerNormalization",
        "RMSNormalization",
        "ReduceSum",
        "ReduceMean",
        "ReduceSumSquare",
        "ReduceL1",
        "ReduceL2",
        "ReduceMax",
        "ReduceMin",
        "ReduceProd",
        "Resize",
    }
)
MAX_NODES = 128
MAX_LEAVES = 10
"""Operands besides the anchor's own: 128 bytes of push constants hold 16 addresses in all."""
MAX_OUTPUTS = 3
SEARCH_LIMIT = 4000
"""Groups looked through for a cycle before fusion is given up: bounds the pass on graphs of many nodes."""


@dataclass
class _Group:
    index: int
    members: list[int] = field(default_factory=list)
    needs: set[int] = field(default_factory=set)
    """Groups that this one reads from."""
    shape: tuple[Dim, ...] | None = ()
    """Of what it makes; sizes are open behind nodes whose results data sizes, which nothing joins."""


def fuse(
    graph: Graph,
    place: Callable[[Node], str] | None = None,
    follows: Callable[[Node, Node], bool] | None = None,
) -> Graph:
    """The graph with groups of nodes replaced by `Fused` nodes.

    Args:
        graph: specialised.
        place: node → device; only nodes of one device are fused. None: all are on the same.
        follows: whether an anchor's group may take a pointwise node; None: always.
    """
    groups, group_of = _grow(graph, place, follows)
    return _rebuild(graph, groups, group_of)


def _grow(
    graph: Graph, place: Callable[[Node], str] | None, follows: Callable[[Node, Node], bool] | None
) -> tuple[list[_Group], list[int]]:
    nodes, types = graph.nodes, graph.types
    producer = {name: i for i, node in enumerate(nodes) for name in node.outputs if name}
    consumers: dict[str, list[int]] = defaultdict(list)
    for i, node in enumerate(nodes):
        for name in node.inputs:
            if name in producer:
                consumers[name].append(i)
    needed = {value.name for value in graph.outputs}
    groups: list[_Group] = []
    group_of: list[int] = []
    for i, node in enumerate(nodes):
        chosen = None
        if _is_pointwise(node, types):
            candidates = {group_of[producer[name]] for name in node.inputs if name in producer}
            for candidate in sorted(candidates, key=lambda g: -groups[g].members[-1]):
                if _may_join(
                    i, groups[candidate], graph, producer, consumers, needed, groups, group_of, place, follows
                ):
                    chosen = groups[candidate]
                    break
        if chosen is None:
            chosen = _Group(len(groups), shape=types[_first_output(node)].shape)
            groups.append(chosen)
        chosen.members.append(i)
        group_of.append(chosen.index)
        for name in node.inputs:
            if name in producer and group_of[producer[name]] != chosen.index:
                chosen.needs.add(group_of[producer[name]])
    return groups, group_of


def _is_pointwise(node: Node, types: Mapping[str, TensorType]) -> bool:
    operator = find(node)
    if not operator.is_pointwise or len(node.outputs) != 1:
        return False
    known = [types[name] for name in node.inputs if name]
    return all(t.dtype.is_native and t.dtype.kind in "fiub" for t in (*known, types[node.outputs[0]]))


def _may_join(
    i: int,
    group: _Group,
    graph: Graph,
    producer: Mapping[str, int],
    consumers: Mapping[str, Sequence[int]],
    needed: set[str],
    groups: Sequence[_Group],
    group_of: Sequence[int],
    place: Callable[[Node], str] | None,
    follows: Callable[[Node, Node], bool] | None,
) -> bool:
    nodes, types = graph.nodes, graph.types
    node, first = nodes[i], nodes[group.members[0]]
    head_is_pointwise = _is_pointwise(first, types)
    if not head_is_pointwise and not (first.op in ANCHORS and not first.domain and _single_output(first)):
        return False
    if types[node.outputs[0]].dims != group.shape or len(group.members) >= MAX_NODES:
        return False
    if place is not None and place(node) != place(first):
        return False
    if follows is not None and not head_is_pointwise and not follows(first, node):
        return False
    others = {group_of[producer[name]] for name in node.inputs if name in producer} - {group.index}
    if _reaches(others, group.index, groups):
        return False
    members = {*group.members, i}
    leaves = {
        name
        for m in members
        if m != group.members[0] or head_is_pointwise
        for name in nodes[m].inputs
        if name and producer.get(name) not in members and not _is_scalar_constant(name, graph)
    }
    outputs = {
        name
        for m in members
        for name in nodes[m].outputs
        if name in needed or any(c not in members and c < i for c in consumers[name])
    }
    return len(leaves) <= MAX_LEAVES and len(outputs) <= MAX_OUTPUTS


def _reaches(start: set[int], goal: int, groups: Sequence[_Group]) -> bool:
    """Whether a group in `start` depends on `goal` (a cycle); also True when the search grows long."""
    seen, waiting = set(start), list(start)
    while waiting:
        at = waiting.pop()
        if at == goal or len(seen) > SEARCH_LIMIT:
            return True
        fresh = groups[at].needs - seen
        seen |= fresh
        waiting.extend(fresh)
    return False


def _first_output(node: Node) -> str:
    return next(name for name in node.outputs if name)


def _single_output(node: Node) -> bool:
    return not any(node.outputs[1:])


def _is_scalar_constant(name: str, graph: Graph) -> bool:
    constant = graph.constants.get(name)
    return constant is not None and constant.array.size == 1 and constant.dtype.is_native


def _rebuild(graph: Graph, groups: Sequence[_Group], group_of: Sequence[int]) -> Graph:
    nodes = graph.nodes
    consumers: dict[str, set[int]] = defaultdict(set)
    for i, node in enumerate(nodes):
        for name in node.inputs:
            consumers[name].add(i)
    needed = {value.name for value in graph.outputs}
    merged: list[Node] = []
    for group in groups:
        if len(group.members) == 1:
            merged.append(nodes[group.members[0]])
        else:
            merged.append(_fused_node([nodes[m] for m in group.members], group, graph, consumers, needed))
    return replace(graph, nodes=tuple(_sorted(merged)))


def _fused_node(
    members: Sequence[Node],
    group: _Group,
    graph: Graph,
    consumers: Mapping[str, set[int]],
    needed: set[str],
) -> Node:
    made = {name for node in members for name in node.outputs if name}
    inside = set(group.members)
    inputs: list[str] = []
    constants = {}
    anchor = members[0] if not _is_pointwise(members[0], graph.types) else None
    for node in members:
        for name in node.inputs:
            if not name or name in made or name in inputs or name in constants:
                continue
            if _is_scalar_constant(name, graph) and (anchor is None or name not in anchor.inputs):
                constants[name] = graph.constants[name]
            else:
                inputs.append(name)
    outputs = [
        name
        for node in members
        for name in node.outputs
        if name and (name in needed or consumers[name] - inside)
    ]
    body = Graph(
        tuple(Value(name, graph.types[name]) for name in inputs),
        tuple(Value(name, graph.types[name]) for name in outputs),
        tuple(members),
        constants,
        {name: graph.types[name] for name in made},
        name="+".join(node.op for node in members[:8]),
    )
    label = members[0].name or members[0].outputs[0]
    return Node("Fused", tuple(inputs), tuple(outputs), {"body": body}, name=label, domain="vkml")


def _sorted(nodes: Sequence[Node]) -> list[Node]:
    """Topological order, stable."""
    producer = {name: i for i, node in enumerate(nodes) for name in node.outputs if name}
    waiting = [len({producer[n] for n in node.inputs if n in producer}) for node in nodes]
    users: dict[int, list[int]] = defaultdict(list)
    for i, node in enumerate(nodes):
        for at in {producer[n] for n in node.inputs if n in producer}:
            users[at].append(i)
    import heapq

    ready = [i for i, count in enumerate(waiting) if count == 0]
    heapq.heapify(ready)
    order = []
    while ready:
        i = heapq.heappop(ready)
        order.append(nodes[i])
        for user in users[i]:
            waiting[user] -= 1
            if waiting[user] == 0:
                heapq.heappush(ready, user)
    assert len(order) == len(nodes), "fusion made a cycle"
    return order


def members(node: Node) -> tuple[Node, ...]:
    """The nodes a (possibly fused) node stands for."""
    return node.attributes["body"].nodes if node.op == "Fused" and node.domain == "vkml" else (node,)
