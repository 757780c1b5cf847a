"""Cuts a graph where planning needs a value that only a run can know, so that planning computes no data.

A segment is an ordinary graph that can be planned once the segments before it have run. Between them lie

* results whose sizes depend on data (NonZero's): what reads them has no shape before they are there;
* values that decide shapes (a Reshape's second input) and are computed from data;
* nodes that stand alone, each a segment of its own: they run other graphs (If, Loop, Scan), or take and make
  sequences and optionals, which no plan knows.

What is computed from shapes alone (Shape → Gather → Concat → Reshape) cuts nothing: it is folded. Integer
arithmetic that joins such values with each other, or with inputs of the model that decide shapes, is repeated
by planning and cuts nothing either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace

from vkml.dataclasses import dataclass
from vkml.errors import InvalidGraph
from vkml.ir import Graph, GraphIndex, Node, Value, find
from vkml.ir.types import UNKNOWN, TensorType, ValueType
from vkml.ops.bodies import infer_values
from vkml.passes.folding import is_foldable

SHAPE_ELEMENTS = 16
"""Graph inputs of integers are taken for shapes up to this size; longer ones may be data."""


@dataclass(frozen=True, eq=False)
class Segment:
    """A part of a graph that can be planned once the parts before it have run."""

    graph: Graph
    """Its inputs are the model's and results of earlier segments, these of unknown types."""
    values: tuple[str, ...]
    """Inputs whose values decide shapes."""
    arithmetic: frozenset[str]
    """What planning computes from `values`, besides constants and shapes."""
    sized_by_data: tuple[Node, ...]
    """Nodes whose results have sizes that are not known before they have run."""
    alone: Node | None = None
    """The segment's only node, where that is one that no plan can have."""
    types: Mapping[str, ValueType] = field(default_factory=dict)
    """For such a node: types of the values around it, as far as they are known."""


def segments(graph: Graph) -> tuple[Segment, ...]:
    """The graph's segments, in the order in which they run; one that is the graph where nothing cuts it.

    Args:
        graph: normalised, without dead nodes.

    Raises:
        InvalidGraph: a node that needs a tensor is given a sequence or an optional.
    """
    places = _Places(graph)
    has_containers = any(value.type.is_container for value in graph.inputs)
    if len(places.members) == 1 and not places.alone[0] and not has_containers:
        return (_segment(graph, places, places.sized_by_data[0]),)
    return tuple(_parts(graph, places))


class _Places:
    """For every node, the first segment that it can be planned in."""

    def __init__(self, graph: Graph) -> None:
        self.anywhere = _known_from_shapes(graph)
        """Values that every segment knows by itself."""
        self.made_in: dict[str, int] = {}
        """Value → segment."""
        self.members: list[list[Node]] = [[]]
        """The nodes of each segment, without those whose results are known anywhere."""
        self.planned: set[str] = set()
        """Values that planning knows in the segment that makes them."""
        self.sized: set[str] = set()
        """Values whose sizes depend on data."""
        self.sized_by_data: list[list[Node]] = [[]]
        """The nodes of each segment that make such values."""
        self.alone: list[list[Node]] = [[]]
        """Nodes that run by themselves, one after the other, behind each segment."""
        self._late: set[str] = set()
        """What these make."""
        self._stands_alone, self.types = standing_alone(graph)
        self._small = _small_values(graph)
        self._folded: set[str] = set()
        """Of `planned`, those that need no value from outside of the segment, only types."""
        for node in graph.nodes:
            if not all(name in self.anywhere for name in node.outputs if name):
                self._place(node)

    def _place(self, node: Node) -> None:
        outputs = [name for name in node.outputs if name]
        names = [name for name in node.reads if name not in self.anywhere]
        if self._stands_alone(node):
            at = max((self.made_in.get(name, 0) for name in names), default=0)
            self.alone[at].append(node)
            self.made_in.update(dict.fromkeys(outputs, at))
            self._late.update(outputs)
            return
        at = max((self._readable(name) for name in names), default=0)
        for name in _deciding(node):
            if name in self.made_in and name not in self.planned:
                at = max(at, self.made_in[name] + 1)
        while at >= len(self.members):
            self.members.append([])
            self.sized_by_data.append([])
            self.alone.append([])
        self.members[at].append(node)
        self.made_in.update(dict.fromkeys(outputs, at))
        is_folded = _is_shape(node) or (
            is_foldable(node) and all(name in self._folded and self.made_in[name] == at for name in names)
        )
        if is_folded or (_is_arithmetic(node) and all(self._is_known(name, at) for name in names)):
            self.planned.update(outputs)
        if is_folded:
            self._folded.update(outputs)
        elif any(name in names for name in _positions(node, find(node).sizing_inputs)):
            self.sized.update(outputs)
            self.sized_by_data[at].append(node)

    def _readable(self, name: str) -> int:
        """The first segment that may read a value."""
        return self.made_in.get(name, 0) + (name in self.sized or name in self._late)

    def _is_known(self, name: str, at: int) -> bool:
        """Whether planning of segment `at` may know a value, given the small ones from outside of it."""
        if self.made_in.get(name) == at:
            return name in self.planned
        return name in self._small


def standing_alone(graph: Graph) -> tuple[Callable[[Node], bool], Mapping[str, ValueType]]:
    """Tells the nodes of a graph that no plan can have, and the types of its values where there may be any.

    Raises:
        InvalidGraph: a node that needs a tensor is given a sequence or an optional.
    """
    holds_any = any(value.type.is_container for value in (*graph.inputs, *graph.outputs))
    if not holds_any and not any(find(node).stands_alone for node in graph.nodes):
        return lambda node: False, {}
    types = infer_values(graph, {}, {})
    alone: set[int] = set()
    for node in graph.nodes:
        operator = find(node)
        if operator.stands_alone:
            alone.add(id(node))
            continue
        for name in node.inputs:
            type_ = types.get(name)
            if type_ is not None and type_.is_container:
                if not operator.takes_containers:
                    raise InvalidGraph(f"{node.label}: its input '{name}' must be a tensor, it is {type_}")
                alone.add(id(node))
    for output in graph.outputs:
        found, stated = types.get(output.name, UNKNOWN), output.type
        if type(found) is not type(stated) and not found.is_unknown and not stated.is_unknown:
            raise InvalidGraph(f"the output '{output.name}' is stated to be {stated} and computes to {found}")
    return lambda node: id(node) in alone, types


def _is_shape(node: Node) -> bool:
    return find(node).is_shape_only


def _is_arithmetic(node: Node) -> bool:
    operator = find(node)
    return operator.is_deterministic and (operator.is_pointwise or operator.is_shape_arithmetic)


def _positions(node: Node, positions: Sequence[int]) -> Iterator[str]:
    for position in positions:
        if position < len(node.inputs) and node.inputs[position]:
            yield node.inputs[position]


def _deciding(node: Node) -> Iterator[str]:
    """The inputs whose values inference needs."""
    return _positions(node, find(node).value_inputs)


def _known_from_shapes(graph: Graph) -> set[str]:
    """Constants, and what is computed from them and from the shapes of graph inputs."""
    known = set(graph.constants)
    inputs = {value.name for value in graph.inputs}
    for node in graph.nodes:
        if all(name in known or (name in inputs and _is_shape(node)) for name in node.reads) and (
            is_foldable(node)
        ):
            known.update(name for name in node.outputs if name)
    return known


def _small_values(graph: Graph) -> set[str]:
    """Values that are no larger than a shape, and no data: planning may look at them.

    Inputs of the model among them are integers: a float may take any value, each of which would be a plan.
    """
    small: set[str] = set()
    for node in reversed(graph.nodes):
        small.update(_deciding(node))
        operator = find(node)
        if (operator.is_pointwise or operator.keeps_elements) and any(name in small for name in node.outputs):
            small.update(name for name in node.inputs if name)
    for node in graph.nodes:
        if _is_shape(node):
            small.add(node.outputs[0])
    for value in graph.inputs:
        type_ = value.type
        if not isinstance(type_, TensorType):
            continue
        if type_.dtype.kind not in "iub":
            small.discard(value.name)
        elif type_.is_static and type_.elements <= SHAPE_ELEMENTS:
            small.add(value.name)
    return small


def _parts(graph: Graph, places: _Places) -> Iterator[Segment]:
    """The segments; a node whose result is known anywhere is in each that needs it."""
    inputs = {value.name: value for value in graph.inputs}
    index = GraphIndex.of(graph)
    last_read = {name: at for at, nodes in enumerate(places.members) for node in nodes for name in node.reads}
    alone = [node for nodes in places.alone for node in nodes]
    read_alone = dict.fromkeys(name for node in alone for name in node.reads)
    stated: list[list[Value]] = [[] for _ in places.members]
    """The graph's outputs that each segment makes."""
    made_alone = {name for node in alone for name in node.outputs}
    for value in graph.outputs:
        if value.name not in made_alone and value.name not in inputs:
            stated[places.made_in.get(value.name, 0)].append(value)
    # What planning knows by itself is made for nodes that stand alone, too.
    stated[0] += [
        Value(name, UNKNOWN)
        for name in read_alone
        if name in places.anywhere and name not in graph.constants and not index.is_output(name)
    ]

    def given(names: Iterable[str]) -> tuple[Value, ...]:
        return tuple(inputs.get(name, Value(name, UNKNOWN)) for name in names)

    for at, nodes in enumerate(places.members):
        outputs = list(stated[at])
        outputs += [
            Value(name, UNKNOWN)
            for node in nodes
            for name in node.outputs
            if name and (last_read.get(name, 0) > at or name in read_alone) and not index.is_output(name)
        ]
        made = {name for node in nodes for name in node.outputs}
        waiting = [*(name for node in nodes for name in node.reads), *(value.name for value in outputs)]
        repeated: set[int] = set()
        read: dict[str, None] = {}
        while waiting:
            name = waiting.pop()
            if name in made or name in read:
                continue
            read[name] = None
            position = index.position(name)
            if name in places.anywhere and position is not None and position not in repeated:
                repeated.add(position)
                waiting.extend(graph.nodes[position].reads)
        part = replace(
            graph,
            inputs=given(name for name in read if name not in places.anywhere),
            outputs=tuple(outputs),
            nodes=(*(graph.nodes[position] for position in sorted(repeated)), *nodes),
            constants={name: graph.constants[name] for name in read if name in graph.constants},
        )
        if outputs:
            yield _segment(part, places, places.sized_by_data[at])
        for node in places.alone[at]:
            part = replace(
                graph,
                inputs=given(dict.fromkeys(name for name in node.reads if name not in graph.constants)),
                outputs=tuple(Value(name, UNKNOWN) for name in node.outputs if name),
                nodes=(node,),
                constants={name: graph.constants[name] for name in node.reads if name in graph.constants},
            )
            yield Segment(part, (), frozenset(), (), node, places.types)


def _segment(graph: Graph, places: _Places, sized_by_data: Sequence[Node]) -> Segment:
    index = GraphIndex.of(graph)
    waiting = [name for node in graph.nodes for name in _deciding(node)]
    values: set[str] = set()
    arithmetic: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in values or name in arithmetic or name in places.anywhere:
            continue
        producer = index.producer(name)
        if producer is None:
            values.add(name)
            continue
        arithmetic.add(name)
        if not _is_shape(producer):
            waiting.extend(producer.reads)
    order = tuple(value.name for value in graph.inputs if value.name in values)
    return Segment(graph, order, frozenset(arithmetic), tuple(sized_by_data))
