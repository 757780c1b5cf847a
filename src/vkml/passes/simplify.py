"""Rewrites that do less for the same result: identities dropped, normalisation folded into convolutions."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np

from vkml.ir import Constant, Graph, Node, dtypes


def simplify(graph: Graph) -> Graph:
    """All simplifications, in order. The graph is specialised: types are static."""
    return fold_batch_normalization(remove_identities(graph))


def remove_identities(graph: Graph) -> Graph:
    """Drops Identity, inference-time Dropout, and arithmetic that keeps shape and every number.

    x + 0 does not keep -0; x + -0 and x - 0 do.
    """
    outputs = {value.name for value in graph.outputs}
    renamed: dict[str, str] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        inputs = tuple(renamed.get(name, name) for name in node.inputs)
        kept = replace(node, inputs=inputs) if inputs != node.inputs else node
        source = _same_as(kept, graph)
        if source is not None and node.outputs[0] not in outputs:
            renamed[node.outputs[0]] = source
        else:
            nodes.append(kept)
    return replace(graph, nodes=tuple(nodes))


def _same_as(node: Node, graph: Graph) -> str | None:
    if node.domain:
        return None
    if node.op == "Identity":
        return node.inputs[0]
    if node.op == "Dropout" and not any(node.outputs[1:]) and len(node.inputs) < 3:
        return node.inputs[0]
    neutral = {"Add": -0.0, "Sub": 0.0, "Mul": 1.0, "Div": 1.0}.get(node.op)
    if neutral is None:
        return None
    for index in (0, 1) if node.op in ("Add", "Mul") else (1,):
        constant = graph.constants.get(node.inputs[index])
        other = node.inputs[1 - index]
        if (
            constant is not None
            and constant.array.size == 1
            and constant.dtype.is_native
            and _is_exactly(constant, neutral)
            and graph.types[other] == graph.types[node.outputs[0]]
        ):
            return other
    return None


def _is_exactly(constant: Constant, number: float) -> bool:
    """Whether a constant's one element is a number, for floats with that sign."""
    value = constant.array.reshape(-1)[0]
    has_sign = not constant.dtype.is_float or bool(np.signbit(value)) == (math.copysign(1.0, number) < 0)
    return bool(value == number) and has_sign


def fold_batch_normalization(graph: Graph) -> Graph:
    """Multiplies BatchNormalization into the weights of the Conv before it."""
    uses = Counter(name for node in graph.nodes for name in node.inputs)
    uses.update(value.name for value in graph.outputs)
    producers = {name: node for node in graph.nodes for name in node.outputs}
    constants = dict(graph.constants)
    replaced: dict[str, Node | None] = {}
    for node in graph.nodes:
        if node.op != "BatchNormalization" or node.domain or node.attributes.get("training_mode"):
            continue
        conv = producers.get(node.inputs[0])
        if conv is None or conv.op != "Conv" or uses[node.inputs[0]] != 1 or any(node.outputs[1:]):
            continue
        names = [*conv.inputs[1:3], *node.inputs[1:5]]
        found = [constants.get(name) for name in names]
        if any(c is None or c.dtype not in (dtypes.FLOAT32, dtypes.FLOAT64) for c in found):
            continue
        weight, bias = _folded(found, len(conv.inputs) > 2, float(node.attributes["epsilon"]))
        weight_name, bias_name = f"{conv.inputs[1]}*{node.outputs[0]}", f"{node.outputs[0]}+bias"
        constants[weight_name], constants[bias_name] = weight, bias
        replaced[conv.outputs[0]] = None
        replaced[node.outputs[0]] = replace(
            conv, inputs=(conv.inputs[0], weight_name, bias_name), outputs=node.outputs
        )
    nodes = []
    for node in graph.nodes:
        form = replaced.get(node.outputs[0], node)
        if form is not None:
            nodes.append(form)
    types = dict(graph.types)
    types.update({name: constant.type for name, constant in constants.items()})
    return replace(graph, nodes=tuple(nodes), constants=constants, types=types)


def _folded(found: list[Constant | None], has_bias: bool, epsilon: float) -> tuple[Constant, Constant]:
    arrays = [np.asarray(c.array, np.float64) for c in found if c is not None]
    weight = arrays[0]
    bias = arrays[1] if has_bias else np.zeros(weight.shape[0])
    scale, shift, mean, variance = arrays[2 if has_bias else 1 :]
    factor = scale / np.sqrt(variance + epsilon)
    dtype = found[0].dtype  # type: ignore[union-attr]
    new_weight = (weight * factor.reshape(-1, *[1] * (weight.ndim - 1))).astype(dtype.storage)
    new_bias = ((bias - mean) * factor + shift).astype(dtype.storage)
    return Constant(dtype, new_weight.shape, new_weight), Constant(dtype, new_bias.shape, new_bias)
