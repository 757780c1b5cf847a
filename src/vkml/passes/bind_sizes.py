"""Open sizes bound to values: nodes, types and constants as they are for these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from vkml.dataclasses import dataclass
from vkml.ir import Constant, Graph, Node, TensorType, Value
from vkml.ir.size import Size, concrete
from vkml.ir.size_terms import Symbol


@dataclass(frozen=True)
class Bound:
    """A part of a graph whose sizes are all numbers."""

    nodes: tuple[Node, ...]
    types: dict[str, TensorType]
    constants: dict[str, Constant]


def bind_sizes(
    nodes: Sequence[Node],
    types: Mapping[str, TensorType],
    constants: Mapping[str, Constant],
    values: Mapping[Symbol, int],
) -> Bound:
    """What nodes of a graph with open sizes are for certain sizes.

    Args:
        nodes: fused or not.
        types: of all values.
        constants: of the graph.
        values: of the open sizes.
    """
    if not values:
        return Bound(tuple(nodes), dict(types), dict(constants))
    known: dict[TensorType, TensorType] = {}

    def bound(type_: TensorType) -> TensorType:
        if not type_.is_open:
            return type_
        made = known.get(type_)
        if made is None:
            dims = tuple(concrete(d, values) if isinstance(d, Size) else d for d in type_.shape or ())
            made = known[type_] = TensorType(type_.dtype, dims)
        return made

    def value(stated: Value) -> Value:
        return Value(stated.name, bound(stated.tensor))

    def body(graph: Graph) -> Graph:
        return replace(
            graph,
            inputs=tuple(map(value, graph.inputs)),
            outputs=tuple(map(value, graph.outputs)),
            types={name: bound(type_) for name, type_ in graph.types.items()},
        )

    def node(stated: Node) -> Node:
        if not any(isinstance(attribute, Graph) for attribute in stated.attributes.values()):
            return stated
        attributes = {
            key: body(attribute) if isinstance(attribute, Graph) else attribute
            for key, attribute in stated.attributes.items()
        }
        return replace(stated, attributes=attributes)

    return Bound(
        tuple(map(node, nodes)),
        {name: bound(type_) for name, type_ in types.items()},
        {name: bound_constant(constant, values) for name, constant in constants.items()},
    )


def bound_constant(constant: Constant, values: Mapping[Symbol, int]) -> Constant:
    """A constant with numbers in the place of open sizes."""
    if not constant.is_open:
        return constant
    numbers = [concrete(element, values) for element in constant.array.reshape(-1)]
    array = np.array(numbers, constant.dtype.storage).reshape(constant.shape)
    return Constant(constant.dtype, constant.shape, array)
