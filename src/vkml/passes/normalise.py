"""Brings every node, those of subgraphs included, into its operator's newest form, with all attributes."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vkml.errors import InvalidGraph, UnsupportedOperator
from vkml.ir import Constant, Graph, Node, every_node, find, unused, value_names, with_bodies
from vkml.ir.operator import REGISTRY, check_attributes, normalise_attributes
from vkml.ir.wording import counted
from vkml.onnx.function_bodies import body_of
from vkml.passes.explain import explained
from vkml.passes.gradient_bodies import state_gradient_bodies
from vkml.passes.inline import renamed_node


def normalise(graph: Graph) -> Graph:
    """The graph with nodes upgraded and completed, Constant nodes turned into constants.

    Raises:
        UnsupportedOperator: one report of every operator that is not known.
        InvalidGraph: a node with unknown or missing attributes, too few or too many inputs or outputs.
    """
    _report_unknown(graph)
    graph = state_gradient_bodies(graph)
    return _normalised(graph, value_names(graph))


def _normalised(graph: Graph, taken: set[str]) -> Graph:
    """A graph or a body, itself where it stays as it is; adds names of values it makes to those `taken`."""
    nodes: list[Node] = []
    constants: dict[str, Constant] = dict(graph.constants)
    for node in graph.nodes:
        for form in _named_apart(node, _upgraded(node), taken):
            stated = find(form).stated_constant(form)
            if stated is None:
                nodes.append(with_bodies(form, lambda body: _normalised(body, taken)))
            else:
                constants[form.outputs[0]] = stated
    if len(nodes) == len(graph.nodes) and all(map(operator.is_, nodes, graph.nodes)):
        return graph
    return replace(graph, nodes=tuple(nodes), constants=constants)


def _named_apart(node: Node, forms: list[Node], taken: set[str]) -> list[Node]:
    """The forms of a node, what they make besides its outputs under names not `taken`, which these become."""
    made = [name for form in forms for name in form.outputs if name and name not in node.outputs]
    renamed: dict[str, str] = {}
    for name in made:
        chosen = unused(name, taken)
        taken.add(chosen)
        if chosen != name:
            renamed[name] = chosen
    return [renamed_node(form, renamed) for form in forms] if renamed else forms


def unknown_nodes(graph: Graph) -> dict[str, list[Node]]:
    """Operators that vkml does not have, as ``domain.Name (opset N)``, and their nodes, bodies' included."""
    unknown: dict[str, list[Node]] = {}
    for node in every_node(graph):
        # vkml's own domain holds what passes make, never what a model states.
        if node.domain != "vkml" and _is_known(node):
            continue
        unknown.setdefault(f"{node.domain or 'ai.onnx'}.{node.op} (opset {node.version})", []).append(node)
    return dict(sorted(unknown.items()))


def _report_unknown(graph: Graph) -> None:
    unknown = unknown_nodes(graph)
    if unknown:
        first = {
            key: nodes[0].name or next(filter(None, nodes[0].outputs), "?") for key, nodes in unknown.items()
        }
        lines = [
            f"  {key}: {counted(len(nodes), 'node')}, first '{first[key]}'" for key, nodes in unknown.items()
        ]
        raise UnsupportedOperator(
            f"the model uses {counted(len(unknown), 'operator')} that vkml does not support:\n"
            + "\n".join(lines)
        )


def _is_known(node: Node) -> bool:
    """Whether there is an operator of a node, or a body of operators that there are."""
    if (node.domain, node.op) in REGISTRY:
        return True
    body = body_of(node)
    return body is not None and all(map(_is_known, body))


def _upgraded(node: Node) -> list[Node]:
    body = None if (node.domain, node.op) in REGISTRY else body_of(node)
    if body is not None:
        return [form for inner in body for form in _upgraded(inner)]
    spec = find(node)
    if node.attributes:
        hidden = sorted(spec.internal_attributes.intersection(node.attributes))
        if hidden:
            raise InvalidGraph(f"{node.label}: the attribute {hidden[0]!r} is not one of {node.op}'s")
        changed = spec.retyped_attributes if node.version < 6 else ()
        node = _with_attributes(node, {**node.attributes, **check_attributes(node, spec, changed)})
    with explained(node, f"its form of opset {node.version} cannot be understood"):
        upgraded = spec.upgrade(node)
    forms = [upgraded] if isinstance(upgraded, Node) else list(upgraded)
    # A rewrite may name other operators, which are then in their newest form already.
    complete = []
    for form in forms:
        spec = find(form)
        count = len(form.inputs)
        while count and not form.inputs[count - 1]:
            count -= 1
        _check_count(form, "inputs", count, spec.inputs)
        _check_count(form, "outputs", len(form.outputs), spec.outputs)
        if count < len(form.inputs):
            form = replace(form, inputs=form.inputs[:count])
        form = _with_attributes(form, normalise_attributes(form, spec))
        spec.check(form)
        complete.append(form)
    return complete


def _with_attributes(node: Node, attributes: Mapping[str, Any]) -> Node:
    """The node with these attributes; itself, with all that is known of it, where it has them already."""
    own = node.attributes
    if [*own] == [*attributes] and all(map(operator.is_, own.values(), attributes.values())):
        return node
    return replace(node, attributes=attributes)


def _check_count(node: Node, what: str, found: int, allowed: tuple[int, int]) -> None:
    low, high = allowed
    if not low <= found <= high:
        wanted = str(low) if low == high else f"{low} to {high}" if high < 2**31 else f"at least {low}"
        noun = what.removesuffix("s") if wanted.endswith(" 1") or wanted == "1" else what
        raise InvalidGraph(f"{node.label}: takes {wanted} {noun}, has {found}")
