"""The intermediate representation: ONNX operators over typed values."""

from vkml.ir.dtypes import DType
from vkml.ir.graph import Constant, Graph, Node, Value
from vkml.ir.names import unused, value_names
from vkml.ir.operator import MANY, OPTIONAL, REQUIRED, Operator, find, operator, register
from vkml.ir.types import Dim, Known, TensorType, static

__all__ = [
    "MANY",
    "OPTIONAL",
    "REQUIRED",
    "Constant",
    "DType",
    "Dim",
    "Graph",
    "Known",
    "Node",
    "Operator",
    "TensorType",
    "Value",
    "find",
    "operator",
    "register",
    "static",
    "unused",
    "value_names",
]
