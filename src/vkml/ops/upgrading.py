"""Builders for `Operator.upgrade`: what rewrites a node of an old opset into the newest form."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vkml.ir.dtypes import INT64, DType
from vkml.ir.graph import Constant, Node
from vkml.ir.names import unused

NEWEST = 28
"""The opset whose operator forms `infer`, `evaluate` and `lower` speak."""


def renew(
    node: Node,
    *,
    op: str | None = None,
    inputs: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
    drop: Sequence[str] = (),
    attributes: Mapping[str, Any] | None = None,
) -> Node:
    """The node in its newest form: some attributes dropped, others set, inputs or outputs replaced."""
    kept = {key: value for key, value in node.attributes.items() if key not in drop}
    return dataclasses.replace(
        node,
        op=node.op if op is None else op,
        inputs=node.inputs if inputs is None else tuple(inputs),
        outputs=node.outputs if outputs is None else tuple(outputs),
        attributes={**kept, **(attributes or {})},
        version=NEWEST,
    )


def constant_node(name: str, array: Any, dtype: DType = INT64) -> Node:
    """A Constant node whose output is called `name`."""
    stored = np.asarray(array, dtype=dtype.storage)
    return Node("Constant", (), (name,), {"value": Constant(dtype, stored.shape, stored)}, version=NEWEST)


def fresh_name(node: Node, purpose: str) -> str:
    """A name for a value that a rewrite makes: the node's first output with a suffix.

    It is none of the node's own values; `normalise` replaces it where another node's value has it.
    """
    stem = next((output for output in node.outputs if output), node.name)
    return unused(f"{stem}/{purpose}", (*node.inputs, *node.outputs))


def attributes_to_inputs(
    node: Node, moves: Sequence[tuple[str, int, DType]], attributes: Mapping[str, Any] | None = None
) -> list[Node]:
    """Turns attributes into constant inputs.

    Args:
        node: A node of an opset in which these were attributes.
        moves: (attribute, input index, dtype); absent attributes leave the input absent.
        attributes: Attributes to set besides.

    Returns:
        Constant nodes, then the node.
    """
    made: list[Node] = []
    inputs = list(node.inputs)
    for key, index, dtype in moves:
        value = node.attributes.get(key)
        if value is None:
            continue
        inputs.extend("" for _ in range(index + 1 - len(inputs)))
        inputs[index] = fresh_name(node, key)
        made.append(constant_node(inputs[index], value, dtype))
    made.append(renew(node, inputs=inputs, drop=[key for key, _, _ in moves], attributes=attributes))
    return made
