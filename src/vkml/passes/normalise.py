"""Brings every node into its operator's newest form, with all attributes present."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from vkml.errors import InvalidGraph, UnsupportedOperator
from vkml.ir import Constant, Graph, Node, find
from vkml.ir.operator import normalise_attributes


def normalise(graph: Graph) -> Graph:
    """The graph with nodes upgraded and completed, Constant nodes turned into constants.

    Raises:
        UnsupportedOperator: one report of every operator that is not known.
        InvalidGraph: a node with unknown or missing attributes, too few or too many inputs or outputs.
    """
    _report_unknown(graph)
    nodes: list[Node] = []
    constants: dict[str, Constant] = dict(graph.constants)
    for node in graph.nodes:
        for form in _upgraded(node):
            _place(form, nodes, constants)
    return replace(graph, nodes=tuple(nodes), constants=constants)


def _report_unknown(graph: Graph) -> None:
    unknown: dict[str, list[str]] = {}
    for node in graph.nodes:
        try:
            find(node)
        except UnsupportedOperator:
            key = f"{node.domain or 'ai.onnx'}.{node.op} (opset {node.version})"
            unknown.setdefault(key, []).append(node.name or next((o for o in node.outputs if o), "?"))
    if unknown:
        lines = [
            f"  {key}: {len(names)} node{'s' if len(names) > 1 else ''}, first '{names[0]}'"
            for key, names in sorted(unknown.items())
        ]
        raise UnsupportedOperator(
            f"the model uses {len(unknown)} operator{'s' if len(unknown) > 1 else ''} unknown to vkml:\n"
            + "\n".join(lines)
        )


def _upgraded(node: Node) -> list[Node]:
    operator = find(node)
    upgraded = operator.upgrade(node)
    forms = [upgraded] if isinstance(upgraded, Node) else list(upgraded)
    # A rewrite may name other operators, which are then in their newest form already.
    complete = []
    for form in forms:
        spec = find(form)
        inputs = form.inputs
        while inputs and not inputs[-1]:
            inputs = inputs[:-1]
        _check_count(form, "inputs", len(inputs), spec.inputs)
        _check_count(form, "outputs", len(form.outputs), spec.outputs)
        complete.append(replace(form, inputs=inputs, attributes=normalise_attributes(form, spec)))
    return complete


def _check_count(node: Node, what: str, found: int, allowed: tuple[int, int]) -> None:
    low, high = allowed
    if not low <= found <= high:
        wanted = str(low) if low == high else f"{low} to {high}" if high < 2**31 else f"at least {low}"
        raise InvalidGraph(f"{node.label}: takes {wanted} {what}, has {found}")


def _place(node: Node, nodes: list[Node], constants: dict[str, Constant]) -> None:
    if node.op == "Constant" and node.domain == "":
        constants[node.outputs[0]] = constant_of(node)
    else:
        nodes.append(node)


def constant_of(node: Node) -> Constant:
    """The value of a (normalised) Constant node."""
    value = node.attributes.get("value")
    if isinstance(value, Constant):
        return value
    import numpy as np

    from vkml.ir import dtypes

    given: Mapping[str, object] = {k: v for k, v in node.attributes.items() if v is not None}
    kinds = {"float": np.float32, "int": np.int64}
    for key, raw in given.items():
        stem = key.removeprefix("value_")
        if stem.rstrip("s") in kinds:
            array = np.asarray(raw, kinds[stem.rstrip("s")])
            return Constant(dtypes.from_numpy(array.dtype), array.shape, array)
        if stem.rstrip("s") == "string":
            array = np.asarray(raw, object)
            return Constant(dtypes.STRING, array.shape, array)
    raise InvalidGraph(f"{node.label}: no attribute holds its value (has {sorted(given) or 'none'})")
