"""Attributes of nodes: from ONNX's messages to Python values, and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from vkml.errors import InvalidArgument, InvalidGraph
from vkml.ir import dtypes
from vkml.ir.graph import Constant, Graph
from vkml.ir.types import ValueType
from vkml.onnx.messages import AttributeProto, GraphProto, SparseTensorProto, TensorProto
from vkml.onnx.tensor import to_text
from vkml.onnx.value_types import read_type, write_type
from vkml.onnx.wire import encode_text

FLOAT, INT, STRING, TENSOR, GRAPH, FLOATS, INTS, STRINGS, TENSORS, GRAPHS = range(1, 11)
SPARSE_TENSOR, SPARSE_TENSORS, TYPE_PROTO, TYPE_PROTOS = range(11, 15)
"""Values of ``AttributeProto.AttributeType``."""

_FIELDS = {
    FLOAT: "f",
    INT: "i",
    STRING: "s",
    TENSOR: "t",
    GRAPH: "g",
    FLOATS: "floats",
    INTS: "ints",
    STRINGS: "strings",
    TENSORS: "tensors",
    GRAPHS: "graphs",
    SPARSE_TENSOR: "sparse_tensor",
    SPARSE_TENSORS: "sparse_tensors",
    TYPE_PROTO: "tp",
    TYPE_PROTOS: "type_protos",
}
_EMPTY_LISTS = {"value_floats": FLOATS, "value_strings": STRINGS}
"""An empty tuple does not say of what; these names do, every other is taken for integers."""

ReadTensor = Callable[[TensorProto | SparseTensorProto, str], Constant]
ReadGraph = Callable[[GraphProto, str], Graph]
WriteGraph = Callable[[Graph], GraphProto]
WriteTensor = Callable[[str, Constant], TensorProto]


def read_attribute(proto: AttributeProto, read_tensor: ReadTensor, read_graph: ReadGraph, where: str) -> Any:
    """An attribute's value as `vkml.ir.Node` holds it; None for a type that vkml does not have."""
    code = proto.type or _guess(proto)
    where = f"{where}: attribute {proto.name!r}"
    if code not in _FIELDS:
        raise InvalidGraph(f"{where} has the type {code}, which ONNX does not define")
    value = getattr(proto, _FIELDS[code])
    if code == FLOAT:
        return 0.0 if value is None else value
    if code == INT:
        return 0 if value is None else value
    if code == STRING:
        return "" if value is None else to_text(value, where)
    if code in (FLOATS, INTS):
        return value
    if code == STRINGS:
        return tuple(to_text(text, where) for text in value)
    if code in (TENSORS, SPARSE_TENSORS):
        return tuple(read_tensor(item, where) for item in value)
    if code == GRAPHS:
        return tuple(read_graph(item, where) for item in value)
    if code == TYPE_PROTOS:
        return tuple(read_type(item, where) for item in value)
    if value is None:
        raise InvalidGraph(f"{where} has no value")
    if code in (TENSOR, SPARSE_TENSOR):
        return read_tensor(value, where)
    return read_graph(value, where) if code == GRAPH else read_type(value, where)


def write_attribute(
    name: str, value: Any, write_graph: WriteGraph, write_tensor: WriteTensor, where: str
) -> AttributeProto:
    """The message of an attribute's value."""
    many = isinstance(value, tuple | list)
    items = list(value) if many else [value]
    code = _code(items, name)
    if code is None:
        raise InvalidArgument(
            f"{where}: attribute {name!r} is {type(value).__name__} {str(value)[:80]!r}, "
            "which no ONNX attribute can be"
        )
    converted: list[Any]
    if code == FLOAT:
        converted = [float(item) for item in items]
    elif code == INT:
        converted = [int(item) for item in items]
    elif code == STRING:
        converted = [encode_text(item) if isinstance(item, str) else bytes(item) for item in items]
    elif code == TENSOR:
        converted = [write_tensor("", _constant(item)) for item in items]
    elif code == GRAPH:
        converted = [write_graph(item) for item in items]
    else:
        converted = [write_type(item) for item in items]
    if many:
        code = TYPE_PROTOS if code == TYPE_PROTO else code + (FLOATS - FLOAT)
    fields: dict[str, Any] = {_FIELDS[code]: tuple(converted) if many else converted[0]}
    return AttributeProto(name=name, type=code, **fields)


def _constant(value: Constant | np.ndarray[Any, Any]) -> Constant:
    return (
        value if isinstance(value, Constant) else Constant(dtypes.from_numpy(value.dtype), value.shape, value)
    )


def _code(items: list[Any], name: str) -> int | None:
    if not items:
        return _EMPTY_LISTS.get(name, INTS) - (FLOATS - FLOAT)
    for kinds, code in (
        ((bool, np.bool_, int, np.integer), INT),
        ((bool, np.bool_, int, np.integer, float, np.floating), FLOAT),
        ((str, bytes), STRING),
        ((Constant, np.ndarray), TENSOR),
        ((Graph,), GRAPH),
        ((ValueType,), TYPE_PROTO),
    ):
        if all(isinstance(item, kinds) for item in items):
            return code
    return None


def _guess(proto: AttributeProto) -> int:
    # Files of IR version 1 state no type: the field that is there tells it.
    for code, name in _FIELDS.items():
        if getattr(proto, name) not in (None, ()):
            return code
    return 0
