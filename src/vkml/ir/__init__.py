"""The intermediate representation: ONNX operators over typed values."""

from vkml.ir.dtypes import DType
from vkml.ir.graph import Constant, Graph, Node, Value, every_node, with_bodies
from vkml.ir.index import GraphIndex
from vkml.ir.names import unused, value_names
from vkml.ir.operator import MANY, OPTIONAL, REQUIRED, Operator, find, operator, register
from vkml.ir.types import Dim, Known, MapType, OptionalType, SequenceType, TensorType, ValueType, static

__all__ = [
    "MANY",
    "OPTIONAL",
    "REQUIRED",
    "Constant",
    "DType",
    "Dim",
    "Graph",
    "GraphIndex",
    "Known",
    "MapType",
    "Node",
    "Operator",
    "OptionalType",
    "SequenceType",
    "TensorType",
    "Value",
    "ValueType",
    "every_node",
    "find",
    "operator",
    "register",
    "static",
    "unused",
    "value_names",
    "with_bodies",
]
