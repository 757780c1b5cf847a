"""From a loaded graph to one that only waits for its input shapes: what is done once a session."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial

import vkml.ops  # noqa: F401  fills the registry of operators
from vkml.ir import Constant, Graph, Known, Node, with_bodies
from vkml.passes import normalise, remove_dead
from vkml.passes.few_bits import use_few_bits
from vkml.passes.folding import Folding, is_foldable
from vkml.passes.inline import inline_branches
from vkml.passes.integer_products import use_integer_products
from vkml.passes.simplify import fold_batch_normalization
from vkml.passes.specialise import evaluate_constant, infer_types
from vkml.passes.unroll import UnrollBudget, unroll_loops

_ROUNDS = 8
"""How often branches are put in their places and folded: a condition may follow from a branch before it."""

_DEQUANTIZING = ("DequantizeLinear",)
"""What makes floats of weights, before it is known who wants them as floats."""


def prepare(
    graph: Graph,
    *,
    optimise: bool = True,
    multiplies_bytes: bool = False,
    keeps_few_bits: bool = False,
    stores_bytes: bool = True,
    multiplies_depthwise_bytes: bool = False,
) -> Graph:
    """Normalises a graph and folds what needs no input shape, so that all plans share the same constants.

    Bodies are prepared in the same way; constants that they capture become their own.

    Args:
        graph: as loaded.
        optimise: whether it may be changed for speed.
        multiplies_bytes: whether products of quantised numbers are faster as such.
        keeps_few_bits: whether products read weights of few bits as they are.
        stores_bytes: whether every device does, which rows gathered from such weights take.
        multiplies_depthwise_bytes: whether that is so of depthwise convolutions and three axes, too.
    """
    return prepare_normalised(
        normalise(graph),
        optimise,
        multiplies_bytes,
        keeps_few_bits,
        stores_bytes,
        multiplies_depthwise_bytes,
    )


def prepare_normalised(
    graph: Graph,
    optimise: bool = True,
    multiplies_bytes: bool = False,
    keeps_few_bits: bool = False,
    stores_bytes: bool = True,
    multiplies_depthwise_bytes: bool = False,
) -> Graph:
    """The same for a graph whose nodes are in their newest form, with all attributes."""
    products: list[Callable[[Graph], Graph]] = []
    if optimise and multiplies_bytes:
        products.append(partial(use_integer_products, has_depthwise=multiplies_depthwise_bytes))
    if optimise and keeps_few_bits:
        products.append(partial(use_few_bits, gathers=stores_bytes))
    return _prepared(graph, optimise, products, UnrollBudget())


def _prepared(
    graph: Graph, optimise: bool, products: Sequence[Callable[[Graph], Graph]], budget: UnrollBudget
) -> Graph:
    """Prepares a graph; `products` are passes that want to see what is dequantised."""
    if products:  # before weights are folded to floats
        graph = fold_constants(graph, _DEQUANTIZING)
        for rewrite in products:
            graph = rewrite(graph)
        graph = remove_dead(graph)
    graph = fold_constants(graph)
    for _ in range(_ROUNDS if optimise else 0):
        inlined = inline_branches(graph)
        if inlined is graph:
            break
        graph = fold_constants(inlined)
    if optimise:
        graph = fold_batch_normalization(graph)
    graph = remove_dead(graph)
    if not any(node.attributes and node.subgraphs for node in graph.nodes):
        return graph
    constants, allowance = graph.constants, graph.fold_allowance

    def body(inner: Graph) -> Graph:
        nonlocal allowance
        known = {name: constants[name] for name in inner.captures if name in constants}
        whole = replace(inner, constants={**inner.constants, **known}, fold_allowance=allowance)
        if not known:
            Graph.captures.know(whole, inner.captures)
        made = _prepared(whole, optimise, products, budget)
        allowance = made.fold_allowance
        return made

    nodes = tuple(with_bodies(node, body) for node in graph.nodes)
    graph = remove_dead(replace(graph, nodes=nodes, fold_allowance=allowance))
    unrolled = unroll_loops(graph, budget) if optimise else graph
    return graph if unrolled is graph else _prepared(unrolled, optimise, products, budget)


def fold_constants(graph: Graph, left: Collection[str] = ()) -> Graph:
    """Evaluates nodes all of whose inputs are constants, as far as memory allows.

    Args:
        graph: normalised.
        left: operators whose nodes stay.

    Returns:
        The graph with its `fold_allowance`; itself where that is stated and there is nothing to evaluate.
    """
    folding = Folding(graph, graph.constants)
    nodes: list[Node] = []
    for node in graph.nodes:
        folded = None if node.op in left else _evaluate(node, folding)
        if folded is None:
            nodes.append(node)
        else:
            folding.fold(node, folded)
    if len(nodes) == len(graph.nodes) and graph.fold_allowance is not None:
        return graph
    return folding.finish(graph, nodes)


def _evaluate(node: Node, folding: Folding) -> dict[str, Constant] | None:
    constants = folding.constants
    if any(name not in constants for name in node.reads) or not is_foldable(node):
        return None
    known = [Known(constants[n].type, constants[n].array) if n else None for n in node.inputs]
    types = infer_types(node, known)
    if not all(type_.is_static for type_ in types) or not folding.admits(node, types):
        return None
    arrays = evaluate_constant(node, [None if k is None else k.value for k in known])
    return {
        name: Constant(type_.dtype, type_.dims, array)
        for name, type_, array in zip(node.outputs, types, arrays, strict=False)
        if name
    }
