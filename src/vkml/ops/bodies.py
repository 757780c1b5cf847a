"""Subgraphs of operators: their types as far as these are known, and their evaluation with NumPy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vkml.errors import Error, InvalidGraph
from vkml.ir.graph import Graph, Node
from vkml.ir.operator import find
from vkml.ir.types import UNKNOWN, Known, MapType, OptionalType, SequenceType, TensorType, ValueType


def infer_body(body: Graph, inputs: Sequence[ValueType], outer: Mapping[str, ValueType]) -> list[ValueType]:
    """The types of a body's outputs, with unknown sizes where only a run can know them.

    Args:
        body: normalised.
        inputs: types of its inputs.
        outer: types of what it captures.
    """
    types = infer_values(body, dict(zip((v.name for v in body.inputs), inputs, strict=True)), outer)
    return [better_type(types.get(value.name, UNKNOWN), value.type) for value in body.outputs]


def infer_values(
    graph: Graph, inputs: Mapping[str, ValueType], outer: Mapping[str, ValueType]
) -> dict[str, ValueType]:
    """The types of a graph's values, UNKNOWN or with unknown sizes where only a run can know them.

    Args:
        graph: normalised.
        inputs: types of its inputs; the graph's own word stands where they say nothing.
        outer: types of what it captures.
    """
    constants = graph.constants
    types: dict[str, ValueType] = dict(outer)
    types.update(
        (value.name, better_type(inputs.get(value.name, UNKNOWN), value.type)) for value in graph.inputs
    )
    types.update((name, constant.type) for name, constant in constants.items())
    stated = {**graph.types, **{value.name: value.type for value in graph.outputs}}
    for node in graph.nodes:
        known = [
            Known(types.get(name, UNKNOWN), constants[name].array if name in constants else None)
            if name
            else None
            for name in node.operands
        ]
        for name, type_ in zip(node.outputs, _inferred(node, known), strict=False):
            types[name] = better_type(type_, stated.get(name, UNKNOWN))
    return types


def _inferred(node: Node, known: Sequence[Known | None]) -> Sequence[ValueType]:
    """What an operator says of its outputs; nothing where it cannot without static types."""
    operator = find(node)
    unknown = [UNKNOWN] * len(node.outputs)
    is_static = all(
        each is None or (isinstance(each.stated, TensorType) and each.stated.is_static) for each in known
    )
    if not is_static and not operator.stands_alone and node.op != "Identity":
        return unknown
    try:
        return operator.infer(node, known)
    except (Error, ArithmeticError, LookupError, ValueError):
        # What is wrong in a branch that is never taken is no error.
        return unknown


def better_type(found: ValueType, stated: ValueType) -> ValueType:
    """What is known of a value by inference, and by the model's own word where that says more."""
    if found.is_unknown:
        return stated
    if isinstance(found, TensorType) and isinstance(stated, TensorType):
        return stated if found.shape is None and found.dtype == stated.dtype else found
    if isinstance(found, SequenceType) and isinstance(stated, SequenceType):
        return SequenceType(better_type(found.element, stated.element))
    if isinstance(found, OptionalType) and isinstance(stated, OptionalType):
        return OptionalType(better_type(found.element, stated.element))
    return found


def of_any_shape(type_: ValueType) -> ValueType:
    """The type without its sizes."""
    if isinstance(type_, SequenceType | OptionalType):
        return type(type_)(of_any_shape(type_.element))
    if isinstance(type_, MapType):
        return type_
    return TensorType(type_.tensor.dtype, None)


def common_type(a: ValueType, b: ValueType) -> ValueType:
    """The type that values of both types have: sizes that differ are unknown."""
    if a.is_unknown or b.is_unknown or a == b:
        return b if a.is_unknown else a
    if isinstance(a, TensorType) and isinstance(b, TensorType) and a.dtype == b.dtype:
        if a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
            return TensorType(a.dtype, None)
        return TensorType(
            a.dtype, tuple(x if x == y else None for x, y in zip(a.shape, b.shape, strict=True))
        )
    if isinstance(a, SequenceType) and isinstance(b, SequenceType):
        return SequenceType(common_type(a.element, b.element))
    if isinstance(a, OptionalType) and isinstance(b, OptionalType):
        return OptionalType(common_type(a.element, b.element))
    raise InvalidGraph(f"{a} and {b} are of different types")


def evaluate_body(body: Graph, inputs: Sequence[Any], outer: Mapping[str, Any]) -> list[Any]:
    """Runs a body with its operators' own `evaluate`.

    Args:
        body: normalised.
        inputs: of its inputs.
        outer: values that it captures, others among them.
    """
    values = {name: outer[name] for name in body.captures}
    values.update((name, constant.array) for name, constant in body.constants.items())
    values.update(zip((value.name for value in body.inputs), inputs, strict=True))
    for node in body.nodes:
        made = find(node).evaluate(node, [values[name] if name else None for name in node.operands])
        for name, value in zip(node.outputs, made, strict=False):
            values[name] = np.asarray(value) if isinstance(value, np.generic) else value
    return [values[value.name] for value in body.outputs]
