"""Fixes all shapes: binds input shapes, infers every type, folds what is constant on the way."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from vkml.errors import InvalidGraph
from vkml.ir import Constant, Graph, Known, Node, Operator, TensorType, Value, find
from vkml.ir.graph import MadeConstant
from vkml.ir.size import is_deciding
from vkml.passes.explain import explained
from vkml.passes.folding import Folding, decide_types, is_foldable
from vkml.passes.open_values import evaluate_open, is_open

Array = np.ndarray[Any, Any]


def specialise(
    graph: Graph,
    shapes: Mapping[str, tuple[int, ...]],
    values: Mapping[str, Any] | None = None,
    arithmetic: Collection[str] = (),
    check_memory: Callable[[Node, int], None] | None = None,
) -> Graph:
    """The graph for one signature of inputs: static types everywhere, shape arithmetic folded away.

    Args:
        graph: normalised.
        shapes: input name → shape.
        values: inputs whose values are known too; they become constants, which keep the arrays.
        arithmetic: values that may be computed from these. Nothing else is: it would be running the model.
        check_memory: called before a value that decides types is computed though folding has nothing left,
            with the node that makes it and the bytes beyond; may refuse.

    Raises:
        InvalidGraph: a node whose inputs do not fit, with the node's label.
    """
    values = values or {}
    inputs = tuple(Value(v.name, TensorType(v.tensor.dtype, shapes[v.name])) for v in graph.inputs)
    types: dict[str, TensorType] = {v.name: v.tensor for v in inputs}
    constants: dict[str, Constant] = dict(graph.constants)
    for name, value in values.items():
        array = np.asarray(value)
        constants[name] = Constant(types[name].dtype, array.shape, array)
    given = set(values)
    """Values, and what is computed from them."""
    types.update({name: constant.type for name, constant in constants.items()})
    folding = Folding(graph, constants, lambda: decide_types(graph, values.keys(), arithmetic), check_memory)
    nodes: list[Node] = []
    is_static = True
    """Whether all types are so far: nothing is refused for its size then."""
    for node in graph.nodes:
        operator = find(node)
        inferred = None
        if is_static:
            inferred = _inferred_before(node, operator, [name and types[name] for name in node.inputs])
        if inferred is None:
            known = [_known(name, types, folding.constants) for name in node.inputs]
            _check_sizes(node, known)
            _check_values(node, operator.value_inputs, known)
            inferred = infer_types(node, known)
            del known  # which would hold arrays that nothing reads any more
        for name, type_ in zip(node.outputs, inferred, strict=False):
            if name:
                types[name] = type_
                is_static = is_static and type_.is_static
        if len(inferred) < len(node.outputs):
            missing = [name for name in node.outputs if name and name not in types]
            if missing:
                raise InvalidGraph(f"{node.label}: has no output number {node.outputs.index(missing[0])}")
        is_given = bool(given) and any(name in given for name in node.reads)
        if is_given and not any(name in arithmetic for name in node.outputs):
            folded = None
        else:
            folded = _fold(node, operator, types, folding)
        if folded is None:
            nodes.append(node)
            continue
        folding.fold(node, folded)
        if is_given:
            given.update(folded)
    _check_outputs(graph, types)
    outputs = tuple(Value(v.name, types[v.name]) for v in graph.outputs)
    return replace(folding.finish(graph, nodes), inputs=inputs, outputs=outputs, types=types)


_FORMS_KEPT = 8192
_inferred: dict[Hashable, list[TensorType]] = {}
"""Output types of nodes that need no values, by form and input types; nodes of a model are alike."""


def infer_types(node: Node, known: Sequence[Known | None]) -> list[TensorType]:
    """The types of a node's outputs, which are tensors."""
    operator = find(node)
    types = [None if given is None else given.type for given in known]
    found = _inferred_before(node, operator, types)
    if found is None:
        found = _infer(node, known)
        form = _typed_form(node, operator, types)
        if form is not None:
            if len(_inferred) >= _FORMS_KEPT:
                _inferred.clear()
            _inferred[form] = found
    return found


def _inferred_before(
    node: Node, operator: Operator, types: Sequence[TensorType | Literal[""] | None]
) -> list[TensorType] | None:
    """Output types where those of a node like it with these input types are known."""
    form = _typed_form(node, operator, types)
    return None if form is None else _inferred.get(form)


def _typed_form(
    node: Node, operator: Operator, types: Sequence[TensorType | Literal[""] | None]
) -> Hashable | None:
    """What decides the output types; None where more does, values for one."""
    if operator.value_inputs or operator.sizing_inputs or node.form is None or is_deciding():
        return None
    return node.form, *[type_.key if type_ else None for type_ in types]


def _infer(node: Node, known: Sequence[Known | None]) -> list[TensorType]:
    with np.errstate(all="ignore"), explained(node, "its types cannot be inferred"):
        return [type_.tensor for type_ in find(node).infer(node, known)]


def evaluate_constant(node: Node, inputs: Sequence[Any]) -> list[Any]:
    """The outputs of a node of constants. Numbers that overflow are what the model states: no warning."""
    with np.errstate(all="ignore"), explained(node, "it cannot be computed from its constants"):
        return find(node).evaluate(node, inputs)


def _known(name: str, types: Mapping[str, TensorType], constants: Mapping[str, Constant]) -> Known | None:
    if not name:
        return None
    constant = constants.get(name)
    is_known = constant is not None and not isinstance(constant, MadeConstant)
    return Known(types[name], constant.array if constant is not None and is_known else None)


def _check_sizes(node: Node, known: Sequence[Known | None]) -> None:
    for name, given in zip(node.inputs, known, strict=True):
        if given is not None and not given.type.is_static:
            raise InvalidGraph(
                f"{node.label}: the size of its input '{name}' is decided by values that are not known "
                "before the model runs"
            )


def _check_values(node: Node, positions: tuple[int, ...], known: list[Known | None]) -> None:
    for position in positions:
        if position < len(known):
            given = known[position]
            if given is not None and given.value is None:
                raise InvalidGraph(
                    f"{node.label}: its input '{node.inputs[position]}' decides shapes and is computed from "
                    "values that are not known before the model runs"
                )


def _fold(
    node: Node, operator: Operator, types: Mapping[str, TensorType], folding: Folding
) -> dict[str, Constant] | None:
    constants = folding.constants
    if not (operator.is_shape_only or operator.type_inputs):
        for name in node.inputs:
            if name not in constants and name:
                return None
    known = [_known(name, types, constants) for name in node.inputs]
    outputs = [name for name in node.outputs if name]
    if operator.is_shape_only and known[0] is not None and known[0].type.is_static:
        value = operator.evaluate_shape(node, known[0].dims)
        return {outputs[0]: Constant(types[outputs[0]].dtype, value.shape, value)}
    if not is_foldable(node):
        return None
    made = [types[name] for name in outputs]
    if not all(type_.is_static and not type_.is_open for type_ in made) or not folding.admits(node, made):
        return None
    values = [_value(given, at in operator.type_inputs) for at, given in enumerate(known)]
    if any(value is None and given is not None for value, given in zip(values, known, strict=True)):
        return None
    arrays = _evaluated(node, known, values, made)
    if arrays is None:
        return None
    return {
        name: Constant(types[name].dtype, types[name].dims, array)
        for name, array in zip(node.outputs, arrays, strict=False)
        if name
    }


def _evaluated(
    node: Node, known: Sequence[Known | None], values: Sequence[Array | None], types: Sequence[TensorType]
) -> list[Any] | None:
    if not any(is_open(value) for value in values):
        return evaluate_constant(node, values)
    with explained(node, "it cannot be computed from its sizes"):
        return evaluate_open(node, known, types)


def _value(given: Known | None, only_type: bool) -> Array | None:
    """An input's value; where only its type matters, an array of that type that takes no memory.

    It has the input's shape where that can be had. Shapes that are open, or larger than any array's, decide
    nothing: the results' are known, and within what is folded.
    """
    if given is None or given.value is not None or not only_type:
        return None if given is None else given.value
    one = np.zeros((), given.dtype.storage)
    is_possible = not given.type.is_open and given.type.host_bytes <= sys.maxsize
    return np.broadcast_to(one, given.dims) if is_possible else one


def _check_outputs(graph: Graph, types: Mapping[str, TensorType]) -> None:
    """Types are what the model states; shapes that it states wrongly are the session's to warn of."""
    for output in graph.outputs:
        found, stated = types[output.name], output.tensor
        if stated.dtype.kind != "?" and found.dtype != stated.dtype:
            raise InvalidGraph(
                f"the output '{output.name}' is stated to be {stated.dtype.name} and computes to "
                f"{found.dtype.name}"
            )
