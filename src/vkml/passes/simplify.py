"""Rewrites that do less for the same result: identities dropped, normalisation folded into convolutions."""

from __future__ import annotations

import math
from collections.abc import Set
from dataclasses import replace
from typing import Any

import numpy as np

from vkml.ir import Constant, Graph, GraphIndex, Node, dtypes, find, unused, value_names
from vkml.ir.file_constant import OWNED_BYTES, release_pages
from vkml.ir.graph import CACHED, ScaledConstant, scaled
from vkml.passes.convolution_pads import fold_pads
from vkml.passes.dead_taps import drop_dead_taps
from vkml.passes.parallel_convolutions import add_parallel_convolutions
from vkml.passes.pointwise_quantization import state_quantization


def simplify(graph: Graph) -> Graph:
    """All simplifications, in order. The graph is specialised: types are static."""
    graph = drop_dead_taps(fold_pads(remove_identities(state_quantization(state_casts(graph)))))
    return add_parallel_convolutions(fold_batch_normalization(graph))


def state_casts(graph: Graph) -> Graph:
    """CastLike as a Cast to the type of its second input, which nothing then has to make."""
    if not any(node.op == "CastLike" and not node.domain for node in graph.nodes):
        return graph
    nodes = [
        replace(
            node,
            op="Cast",
            inputs=node.inputs[:1],
            attributes={**node.attributes, "to": graph.types[node.inputs[1]].dtype.code},
        )
        if node.op == "CastLike" and not node.domain
        else node
        for node in graph.nodes
    ]
    return replace(graph, nodes=tuple(nodes))


def remove_identities(graph: Graph) -> Graph:
    """Drops Identity, inference-time Dropout, known choices, arithmetic that keeps shape and every number.

    x + 0 does not keep -0; x + -0 and x - 0 do, and x + 0 where x is a sum with another constant, which is
    never -0. What subgraphs read keeps its name. An output that is the same as a value of a node is made by
    that node.
    """
    index = GraphIndex.of(graph)
    renamed: dict[str, str] = {}
    made: dict[str, str] = {}
    """Value → the output that it becomes."""
    nodes: list[Node] = []
    unsigned: set[str] = set()
    """Values none of whose elements is -0."""
    for node in graph.nodes:
        kept = node
        if renamed and not renamed.keys().isdisjoint(node.inputs):
            kept = replace(node, inputs=tuple(renamed.get(name, name) for name in node.inputs))
        source, result = _same_as(kept, graph, unsigned), node.outputs[0]
        if source is None and _is_never_minus_zero(kept, graph):
            unsigned.add(result)
        if source is None or index.is_captured(result):
            nodes.append(kept)
        elif not index.is_output(result):
            renamed[result] = source
        elif _may_become_output(source, index) and source not in made:
            made[source] = result
        else:
            nodes.append(kept)
    if not renamed and not made:
        return graph
    if made:
        nodes = [
            node
            if made.keys().isdisjoint((*node.inputs, *node.outputs))
            else replace(
                node,
                inputs=tuple(made.get(name, name) for name in node.inputs),
                outputs=tuple(made.get(name, name) for name in node.outputs),
            )
            for node in nodes
        ]
    return replace(graph, nodes=tuple(nodes))


def _may_become_output(name: str, index: GraphIndex) -> bool:
    """Whether a value is a node's, with a name that nobody outside of the graph's nodes knows."""
    return index.position(name) is not None and not index.is_output(name) and not index.is_captured(name)


def _is_never_minus_zero(node: Node, graph: Graph) -> bool:
    """Whether a node is a sum with a number other than -0: two numbers that cancel each other leave 0."""
    constants = [graph.constants.get(name) for name in node.inputs]
    return (
        node.op == "Add"
        and not node.domain
        and any(
            constant is not None
            and constant.array.size == 1
            and constant.dtype.is_native
            and not constant.is_open
            and not _is_exactly(constant, -0.0)
            for constant in constants
        )
    )


def _same_as(node: Node, graph: Graph, unsigned: Set[str]) -> str | None:
    """The operand that a node's result equals.

    Args:
        node: the node.
        graph: of constants and types.
        unsigned: values none of whose elements is -0.
    """
    operator = find(node)
    if operator.is_identity(node):
        return node.inputs[0]
    chosen = operator.chosen_input(node, graph.constants)
    if chosen is not None and graph.types[node.inputs[chosen]] == graph.types[node.outputs[0]]:
        return node.inputs[chosen]
    for index, neutral in operator.neutral_elements.items():
        constant = graph.constants.get(node.inputs[index])
        other = node.inputs[1 - index]
        if (
            constant is not None
            and constant.array.size == 1
            and constant.dtype.is_native
            and not constant.is_open
            and (
                _is_exactly(constant, neutral)
                or (neutral == 0 and other in unsigned and _is_exactly(constant, -neutral))
            )
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
    """Multiplies BatchNormalization into the weights of the Conv before it.

    Types need not be known: constants that do not fit, which inference refuses, are left alone. The operators
    are named here, for the rewrite is about these two alone.
    """
    if not any(node.op == "BatchNormalization" for node in graph.nodes):
        return graph
    index = GraphIndex.of(graph)
    constants = dict(graph.constants)
    types = dict(graph.types)
    taken = value_names(graph)
    nodes: list[Node | None] = list(graph.nodes)
    for at, node in enumerate(graph.nodes):
        if node.op != "BatchNormalization" or node.domain or node.attributes["training_mode"]:
            continue
        source = node.inputs[0]
        before = index.position(source)
        if before is None or index.uses(source) != 1 or not node.outputs[0] or any(node.outputs[1:]):
            continue
        conv = graph.nodes[before]
        if conv.op != "Conv" or conv.domain:
            continue
        folded = _folded(conv, node, graph)
        if folded is None:
            continue
        names = []
        for purpose, constant in zip(("weight", "bias"), folded, strict=True):
            name = unused(f"{node.outputs[0]}+{purpose}", taken)
            taken.add(name)
            constants[name], types[name] = constant, constant.type
            names.append(name)
        nodes[before] = None
        nodes[at] = replace(conv, inputs=(conv.inputs[0], *names), outputs=node.outputs)
    return replace(
        graph, nodes=tuple(node for node in nodes if node is not None), constants=constants, types=types
    )


def _folded(conv: Node, normalisation: Node, graph: Graph) -> tuple[Constant, Constant] | None:
    """Weight and bias that do what both nodes do; None where constants do not fit or results overflow."""
    found = [graph.constants.get(name) for name in (*conv.inputs[1:], *normalisation.inputs[1:])]
    constants = [constant for constant in found if constant is not None]
    if len(constants) < len(found):
        return None
    weight, *vectors = constants
    dtype = weight.dtype
    if dtype not in (dtypes.FLOAT32, dtypes.FLOAT64) or len(weight.shape) < 3:
        return None
    if any(vector.dtype != dtype or vector.shape != weight.shape[:1] for vector in vectors):
        return None
    arrays = [np.asarray(vector.array, np.float64) for vector in vectors]
    scale, shift, mean, variance = arrays[-4:]
    bias = arrays[0] if len(arrays) > 4 else 0.0
    with np.errstate(all="ignore"):
        factor = scale / np.sqrt(variance + normalisation.attributes["epsilon"])
        new_bias = ((bias - mean) * factor + shift).astype(dtype.storage)
        largest = _largest(weight.array, factor)
    # Half of the greatest number, for products here are not rounded as those of the weight will be.
    if not ((largest < np.finfo(dtype.storage).max / 2).all() and np.isfinite(new_bias).all()):
        return None
    folded: Constant
    if weight.type.bytes > OWNED_BYTES:
        # Made where it is read, which takes less than 1 ms for 1 Mi elements: nobody keeps a copy.
        folded = ScaledConstant(dtype, weight.shape, weight, factor, largest)
        release_pages(weight)
    else:
        folded = Constant(dtype, weight.shape, scaled(weight.array, factor))
    return folded, Constant(dtype, new_bias.shape, new_bias)


def _largest(weight: np.ndarray[Any, Any], factors: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Of a weight times factors of its filters, which is not made: the largest magnitudes along these, flat.

    NaN where there is one.
    """
    lines = weight.reshape(weight.shape[0], math.prod(weight.shape[1:]))
    along = np.abs(factors).astype(weight.dtype)[:, None]
    largest: np.ndarray[Any, Any] = np.zeros(lines.shape[1], weight.dtype)
    step = max(1, CACHED // max(1, lines.shape[1]))
    with np.errstate(all="ignore"):
        for first in range(0, len(lines), step):
            piece = np.abs(lines[first : first + step])
            piece *= along[first : first + step]
            np.maximum(largest, piece.max(axis=0, initial=0), out=largest)
    return largest
