"""The bodies of operators that ONNX defines as functions; made by `tools/generate_function_bodies.py`."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from vkml.ir.graph import Node
from vkml.onnx import reader
from vkml.onnx.load import function_body
from vkml.onnx.messages import FunctionProto
from vkml.onnx.model import Model

FILE = Path(__file__).with_name("function_bodies.onnx")


def body_of(node: Node) -> list[Node] | None:
    """The nodes that stand for a node whose operator ONNX defines as a function; None where it does not.

    They are of the opset that the body is written in, and are called by the node's label.

    Raises:
        InvalidGraph: the node has inputs, outputs or attributes that the function lacks.
    """
    function = _function(node)
    if function is None:
        return None
    model, _ = _read()
    within = node.within or node.label
    return [replace(inner, within=within) for inner in function_body(model, function, node)]


def _function(node: Node) -> FunctionProto | None:
    """The function that an operator is in the opset of a node."""
    versions = _read()[1].get((node.domain, node.op), {})
    since = max((version for version in versions if version <= node.version), default=None)
    return None if since is None else versions[since]


@functools.cache
def _read() -> tuple[Model, Mapping[tuple[str, str], Mapping[int, FunctionProto]]]:
    """The file, and its functions by domain and name, then by the opset that each came with."""
    model = reader.open(FILE)
    found: dict[tuple[str, str], dict[int, FunctionProto]] = {}
    for function in model.functions:
        found.setdefault((function.domain, function.name), {})[int(function.overload)] = function
    return model, found
