"""Bodies of pointwise nodes as scalar forms."""

from __future__ import annotations

import weakref
from typing import Any

from vkml.ir import scalar
from vkml.ir.dtypes import DType
from vkml.ir.graph import Constant, Graph
from vkml.ir.lowering import CannotLower
from vkml.ir.operator import find
from vkml.ir.scalar import Scalar

_results: weakref.WeakKeyDictionary[Graph, tuple[Scalar, ...]] = weakref.WeakKeyDictionary()


def scalar_results(body: Graph) -> tuple[Scalar, ...]:
    """One element of each output of a body; argument n is an element of the body's input n.

    Args:
        body: pointwise nodes of one output each; its constants are single elements.

    Raises:
        CannotLower: an operator has no scalar form for its types.
    """
    found = _results.get(body)
    if found is None:
        found = _results[body] = _made(body)
    return found


def _made(body: Graph) -> tuple[Scalar, ...]:
    types: dict[str, DType] = {value.name: value.tensor.dtype for value in (*body.outputs, *body.inputs)}
    types.update({name: type_.dtype for name, type_ in body.types.items()})
    types.update({name: constant.dtype for name, constant in body.constants.items()})
    values = {value.name: scalar.argument(n, value.tensor.dtype) for n, value in enumerate(body.inputs)}
    values.update({name: _number(constant) for name, constant in body.constants.items()})
    for node in body.nodes:
        result = types[node.outputs[0]]
        form = find(node).scalar(
            node,
            [values[name] if name else None for name in node.inputs],
            [types[name] if name else None for name in node.inputs],
            result,
        )
        if form is None:
            given = ", ".join(dict.fromkeys(types[name].name for name in node.inputs if name))
            raise CannotLower(f"{node.op} of {given} has no form for single elements")
        assert form.dtype == scalar.arithmetic_type(result), (node.label, form, result)
        values[node.outputs[0]] = form
    return tuple(values[value.name] for value in body.outputs)


def _number(constant: Constant) -> Scalar:
    if constant.array.size != 1:
        raise CannotLower("a constant of a body has more than one element")
    number: Any = constant.array.reshape(-1)[0]
    return scalar.constant(number.item(), constant.dtype)
