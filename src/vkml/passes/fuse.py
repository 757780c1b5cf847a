"""Groups nodes into `Fused` nodes: chains of pointwise nodes, alone or behind one heavy node (the anchor).

A fused node is ``Node(op="Fused", domain="vkml")`` whose attribute ``body`` is a graph: at most one anchor
first, then pointwise nodes. The body's inputs and outputs correspond to the node's by position. Every value
of the body has the shape of the group's result or one that broadcasts to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import replace

from vkml.dataclasses import dataclass
from vkml.ir import Constant, Graph, GraphIndex, Node, TensorType, Value, find
from vkml.passes.order import AcyclicOrder

MAX_OPERATIONS = 128
"""A node counts once, one of many inputs for each but the first: compilers take time and memory by these."""
MAX_LEAVES = 10
"""Operands besides the anchor's own: 128 bytes of push constants hold 16 addresses in all."""
MAX_OUTPUTS = 3
SEARCHED = 32
"""Edges between groups that searches for cycles may follow, for each node: bounds time on large graphs."""


@dataclass
class _Group:
    members: list[int]
    shape: tuple[int, ...] | None
    """Of the first member's result: what joins has the same. None: not known."""
    device: str
    is_open: bool
    """Whether pointwise nodes may join."""
    is_pointwise: bool
    """Whether the first member is pointwise, too."""
    leaves: set[str]
    """What is read from outside, but for the anchor's own operands and numbers."""
    operations: int
    depth: int
    """Groups on the longest way to it."""
    readers: set[int]
    """Groups that read what it makes."""


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
    index = GraphIndex.of(graph)
    numbers = numbers_of(graph)
    merged: list[Node] = []
    for group in _grow(graph, numbers, place, follows):
        if len(group) > 1:
            read, outputs = index.boundary(group)
        if len(group) == 1 or (
            len(outputs) <= MAX_OUTPUTS and len(read) - len(numbers.intersection(read)) <= MAX_LEAVES
        ):
            merged.append(group_node(group, graph, numbers, index))
            continue
        for part in _split(group, graph, numbers, index):
            merged.append(part[0] if len(part) == 1 else fused_node(part, graph, index))
    return replace(graph, nodes=tuple(_sorted(merged)))


def _grow(
    graph: Graph,
    numbers: Set[str],
    place: Callable[[Node], str] | None,
    follows: Callable[[Node, Node], bool] | None,
) -> list[list[Node]]:
    """Groups of nodes, each a single node or one that can run as a whole."""
    nodes, types = graph.nodes, graph.types
    order = AcyclicOrder(max(100_000, SEARCHED * len(nodes)))
    groups: list[_Group] = []
    group_of: dict[str, int] = {}
    """Value → number of the group that makes it."""
    for i, node in enumerate(nodes):
        operator, operations = find(node), max(1, len(node.inputs) - 1)
        is_pointwise = operator.is_pointwise and fits_body(node, types)
        leaves = set(node.reads).difference(numbers)
        sources: dict[int, int] = {}
        """Group → how many of the values read it makes."""
        for name in leaves:
            if name in group_of:
                sources[group_of[name]] = sources.get(group_of[name], 0) + 1
        result = node.outputs[0]
        shape = types[result].dims if result and types[result].is_static else None
        device = place(node) if place is not None else ""
        chosen = None
        candidates: list[int] = []
        if is_pointwise and shape is not None:
            # A node of many inputs fits only a group that makes nearly all of them: there are few of these.
            candidates = [at for at, count in sources.items() if len(leaves) - count <= MAX_LEAVES]
            if len(candidates) > 1:
                # With the one that ends last: what the others make need not wait for it.
                candidates.sort(key=lambda at: (groups[at].depth, groups[at].members[-1]), reverse=True)
        for at in candidates:
            group = groups[at]
            if not group.is_open or group.operations + operations > MAX_OPERATIONS:
                continue
            if (shape, device) != (group.shape, group.device):
                continue
            first = nodes[group.members[0]]
            if follows is not None and not group.is_pointwise and not follows(first, node):
                continue
            outside = {name for name in leaves if group_of.get(name) != at}
            if len(group.leaves | outside) > MAX_LEAVES:
                continue
            if len(sources) == 1 or order.connect(sources.keys() - {at}, at):
                chosen = at
                group.members.append(i)
                group.operations += operations
                group.leaves |= outside
                group.depth = max([group.depth, *[groups[g].depth + 1 for g in sources if g != at]])
                break
        if chosen is None:
            chosen = order.add(sources)
            is_open = is_pointwise or (operator.is_anchor and not any(node.outputs[1:]))
            reads = leaves if is_pointwise else set()
            depth = 1 + max([groups[at].depth for at in sources], default=0)
            groups.append(_Group([i], shape, device, is_open, is_pointwise, reads, operations, depth, set()))
        for name in node.outputs:
            if name:
                group_of[name] = chosen
        for at in sources.keys() - {chosen}:
            groups[at].readers.add(chosen)
    _merge(groups, nodes)
    return [[nodes[i] for i in group.members] for group in groups if group.members]


def _merge(groups: list[_Group], nodes: Sequence[Node]) -> None:
    """Has each pointwise group that one other group alone reads be part of that: no cycle comes of it.

    An operand of what joins two groups went to the later one; where the other has no use but this, such as a
    running mean's own product with a number, it would be a launch that only writes for the next one to read.
    """
    became = list(range(len(groups)))

    def now(at: int) -> int:
        while became[at] != at:
            at = became[at]
        return at

    for at in range(len(groups) - 1, -1, -1):
        taken = groups[at]
        readers = {now(reader) for reader in taken.readers}
        if not taken.is_pointwise or taken.shape is None or len(readers) != 1:
            continue
        into = readers.pop()
        group = groups[into]
        mine = {name for i in taken.members for name in nodes[i].outputs}
        leaves = (group.leaves | taken.leaves) - mine
        if (
            group.is_pointwise
            and (group.shape, group.device) == (taken.shape, taken.device)
            and group.operations + taken.operations <= MAX_OPERATIONS
            and len(leaves) <= MAX_LEAVES
        ):
            group.members = sorted((*group.members, *taken.members))
            group.operations += taken.operations
            group.leaves = leaves
            taken.members = []
            became[at] = into


def fits_body(node: Node, types: Mapping[str, TensorType]) -> bool:
    """Whether a node can be part of a group of pointwise ones."""
    if not find(node).is_pointwise or len(node.outputs) != 1:
        return False
    for name in (*node.inputs, *node.outputs):
        dtype = types[name].dtype if name else None
        if dtype is not None and not (dtype.is_native and dtype.kind in "fiub"):
            return False
    return True


def _hangs_on_numbers(node: Node, types: Mapping[str, TensorType], numbers: Set[str]) -> bool:
    """Whether a node is worth a body of its own, in which numbers are known."""
    return (
        find(node).form_hangs_on_numbers
        and fits_body(node, types)
        and bool(numbers & set(node.inputs))
        and not numbers >= set(node.inputs)
    )


def numbers_of(graph: Graph) -> frozenset[str]:
    """The constants that become part of a body."""
    return frozenset([name for name, constant in graph.constants.items() if _is_number(constant)])


def _is_number(constant: Constant) -> bool:
    return constant.type.elements == 1 and constant.dtype.is_native and not constant.is_open


def _split(
    group: Sequence[Node], graph: Graph, numbers: Set[str], index: GraphIndex
) -> Iterator[Sequence[Node]]:
    """Cuts a group where values that are needed outside of it would be too many.

    Which these are is known only when every node has its group. The start of a group and the rest of it can
    stand in its place without a cycle, for the rest never makes what the start reads.
    """
    while group:
        length = 1
        made: set[str] = set()
        leaves: set[str] = set()
        waiting: dict[str, int] = {}
        """Values made so far that are read outside → how many readers there are."""
        for at, node in enumerate(group, 1):
            if at > 1 or fits_body(node, graph.types):
                leaves |= set(node.reads) - numbers - made
            for name in waiting.keys() & {*node.reads}:
                waiting[name] -= 1
                if not waiting[name]:
                    del waiting[name]
            made.update(name for name in node.outputs if name)
            for name in node.outputs:
                if readers := index.readers(name):
                    waiting[name] = readers
            if len(waiting) <= MAX_OUTPUTS and len(leaves) <= MAX_LEAVES:
                length = at
        yield group[:length]
        group = group[length:]


def group_node(group: Sequence[Node], graph: Graph, numbers: Set[str], index: GraphIndex) -> Node:
    """Nodes as one: as they are where it is a single one that is worth no body of its own."""
    if len(group) == 1 and not _hangs_on_numbers(group[0], graph.types, numbers):
        return group[0]
    return fused_node(group, graph, index)


def fused_node(members: Sequence[Node], graph: Graph, index: GraphIndex) -> Node:
    """Nodes as one group, whose results are what the index knows to be read outside of it."""
    return _fused(members, graph, *index.boundary(members))


def prepended(first: Sequence[Node], reader: Node, graph: Graph) -> Node:
    """Nodes and what reads their results, which may be a group, as one group with the results of that."""
    made = {name for node in first for name in node.outputs if name}
    read = [name for node in first for name in node.reads if name not in made]
    names = tuple(dict.fromkeys([*read, *(name for name in reader.reads if name not in made)]))
    outputs = tuple(filter(None, reader.outputs))
    own = {name: graph.types[name] for name in made.union(outputs)}
    if is_fused(reader):
        body: Graph = reader.attributes["body"]
    else:
        results = tuple([Value(name, own[name]) for name in outputs])
        body = Graph((), results, (reader,), {}, {}, name=reader.op)
    whole = replace(
        body,
        inputs=tuple([Value(name, graph.types[name]) for name in names]),
        nodes=(*first, *body.nodes),
        types={**own, **body.types},
        name="+".join([*(node.op for node in first), body.name]),
    )
    Graph.captures.know(whole, ())  # all that is read outside is among its inputs
    return Node("Fused", names, outputs, {"body": whole}, name=reader.name or reader.key, domain="vkml")


def joined(nodes: Sequence[Node], graph: Graph) -> Node:
    """Nodes, which may be groups, as one group with the results of the last: all of whose results it has."""
    parts = [part for node in nodes for part in members(node)]
    made = {name for part in parts for name in part.outputs if name}
    read = [name for name in dict.fromkeys(name for part in parts for name in part.reads) if name not in made]
    return _fused(parts, graph, read, tuple(filter(None, nodes[-1].outputs)))


def _fused(members: Sequence[Node], graph: Graph, read: Sequence[str], outputs: Sequence[str]) -> Node:
    """Nodes as one group that reads these values and makes those."""
    types = graph.types
    kept_out = {name for node in members if not fits_body(node, types) for name in node.inputs}
    """Numbers among the operands of an anchor are operands, too."""
    constants = {}
    for name in read:
        constant = graph.constants.get(name)
        if constant is not None and _is_number(constant) and name not in kept_out:
            constants[name] = constant
    inputs = [name for name in read if name not in constants]
    body = Graph(
        tuple([Value(name, types[name]) for name in inputs]),
        tuple([Value(name, types[name]) for name in outputs]),
        tuple(members),
        constants,
        {name: types[name] for node in members for name in node.outputs if name},
        name="+".join([node.op for node in members[:8]]),
    )
    Graph.captures.know(body, ())  # all that is read outside is among its inputs
    label = members[0].name or members[0].outputs[0]
    return Node("Fused", tuple(inputs), tuple(outputs), {"body": body}, name=label, domain="vkml")


def _sorted(nodes: Sequence[Node]) -> list[Node]:
    """Topological order, stable."""
    made_late = {name for node in nodes for name in node.outputs}
    for node in nodes:
        if not made_late.isdisjoint(node.reads):
            break
        made_late.difference_update(node.outputs)
    else:
        return list(nodes)
    order = GraphIndex(nodes).topological_order()
    assert len(order) == len(nodes), "fusion made a cycle"
    return [nodes[at] for at in order]


def is_fused(node: Node) -> bool:
    """Whether a node stands for a group."""
    return node.op == "Fused" and node.domain == "vkml"


def members(node: Node) -> tuple[Node, ...]:
    """The nodes a (possibly fused) node stands for."""
    return node.attributes["body"].nodes if is_fused(node) else (node,)
