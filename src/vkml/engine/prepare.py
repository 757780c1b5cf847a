"""From a loaded graph to one that only waits for its input shapes: what is done once a session."""

from __future__ import annotations

import vkml.ops  # noqa: F401  fills the registry of operators
from vkml.ir import Constant, Graph, Known, Node
from vkml.passes import normalise, remove_dead
from vkml.passes.folding import Folding, is_foldable
from vkml.passes.simplify import fold_batch_normalization
from vkml.passes.specialise import evaluate_constant, infer_types


def prepare(graph: Graph, *, optimise: bool = True) -> Graph:
    """Normalises a graph and folds what needs no input shape, so that all plans share the same constants."""
    graph = fold_constants(normalise(graph))
    if optimise:
        graph = fold_batch_normalization(graph)
    return remove_dead(graph)


def fold_constants(graph: Graph) -> Graph:
    """Evaluates nodes all of whose inputs are constants, as far as memory allows."""
    folding = Folding(graph, graph.constants)
    nodes: list[Node] = []
    for node in graph.nodes:
        folded = _evaluate(node, folding)
        if folded is None:
            nodes.append(node)
        else:
            folding.fold(node, folded)
    return folding.finish(graph, nodes)


def _evaluate(node: Node, folding: Folding) -> dict[str, Constant] | None:
    constants = folding.constants
    if any(name not in constants for name in node.reads) or not is_foldable(node):
        return None
    known = [Known(constants[n].type, constants[n].array) if n else None for n in node.inputs]
    types = infer_types(node, known)
    if not all(type_.is_static for type_ in types) or not folding.admits(types):
        return None
    arrays = evaluate_constant(node, [None if k is None else k.value for k in known])
    return {
        name: Constant(type_.dtype, type_.dims, array)
        for name, type_, array in zip(node.outputs, types, arrays, strict=False)
        if name
    }
