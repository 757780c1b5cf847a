"""Epilogues that begin with a scale and an addend."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from vkml.ir import Constant, Graph, Node, TensorType, Value, unused, value_names
from vkml.kernels.epilogue import Epilogue
from vkml.kernels.views import View


def begun_with(
    old: Epilogue | None, result: TensorType, scale: float, addend: View | None, addend_scale: float
) -> Epilogue | None:
    """An epilogue after ``scale * result + addend_scale * addend``; None where there is neither.

    Args:
        old: what follows.
        result: type of the template's own result.
        scale: factor of the template's result.
        addend: over the template's index space or the result's shape: a bias.
        addend_scale: factor of the addend.
    """
    nodes: list[Node] = []
    constants: dict[str, Constant] = {}
    types: dict[str, TensorType] = {}
    leaves: dict[str, View] = {}
    taken = value_names(old.body) if old is not None else set()

    def named(wanted: str) -> str:
        name = unused(wanted, taken)
        taken.add(name)
        return name

    def scaled(name: str, factor: float) -> str:
        if factor == 1.0:
            return name
        number, product = named(f"{name}~factor"), named(f"{name}~scaled")
        constants[number] = Constant(result.dtype, (), np.full((), factor, result.dtype.storage))
        nodes.append(Node("Mul", (name, number), (product,)))
        types[product] = result
        return product

    source = named("~product")
    inputs = [Value(source, result)]
    value = scaled(source, scale)
    if addend is not None and addend_scale != 0.0:
        operand, total = named("~addend"), named("~sum")
        inputs.append(Value(operand, addend.type))
        leaves[operand] = addend
        nodes.append(Node("Add", (value, scaled(operand, addend_scale)), (total,)))
        types[total] = result
        value = total
    if not nodes:
        return old
    if old is None:
        body = Graph(tuple(inputs), (Value(value, result),), tuple(nodes), constants, types)
        return Epilogue(body, source, leaves)
    nodes[-1] = replace(nodes[-1], outputs=(old.result,))
    body = replace(
        old.body,
        inputs=(*inputs, *(value for value in old.body.inputs if value.name != old.result)),
        nodes=(*nodes, *old.body.nodes),
        constants={**old.body.constants, **constants},
        types={**old.body.types, **types, old.result: result},
    )
    return Epilogue(body, source, {**leaves, **old.leaves})
