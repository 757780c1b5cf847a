"""Types of graph inputs, outputs and values: from ONNX's messages to `ValueType`, and back."""

from __future__ import annotations

from vkml.errors import InvalidGraph, ModelError
from vkml.ir import dtypes
from vkml.ir.types import UNKNOWN, Dim, MapType, OptionalType, SequenceType, TensorType, ValueType
from vkml.onnx.messages import (
    Dimension,
    Map,
    Optional,
    Sequence,
    Tensor,
    TensorShapeProto,
    TypeProto,
    ValueInfoProto,
)

MAX_NESTING = 8
"""Sequences and optionals within one another; ONNX's operators make three."""


def read_type(proto: TypeProto | None, where: str, depth: int = 0) -> ValueType | None:
    """The type that a message states; None where it states none, or one that vkml does not have."""
    if proto is None:
        return None
    for container, make in ((proto.sequence_type, SequenceType), (proto.optional_type, OptionalType)):
        if container is not None:
            if depth == MAX_NESTING:
                raise InvalidGraph(f"{where}: sequences and optionals are nested more than {depth} deep")
            element = read_type(container.elem_type, where, depth + 1)
            if element is None and kind_of(container.elem_type) not in ("nothing", "tensor"):
                return None
            return make(element or UNKNOWN)
    if proto.map_type is not None:
        return _read_map(proto.map_type, where)
    if proto.tensor_type is None or proto.tensor_type.elem_type == 0:
        return None
    try:
        dtype = dtypes.from_code(proto.tensor_type.elem_type)
    except ModelError as error:
        raise type(error)(f"{where}: {error}") from None
    shape = proto.tensor_type.shape
    if shape is None:
        return TensorType(dtype, None)
    return TensorType(dtype, tuple(_read_dimension(dimension, where) for dimension in shape.dim))


def _read_map(proto: Map, where: str) -> MapType:
    held = proto.value_type.tensor_type if proto.value_type is not None else None
    if held is None or proto.key_type == 0 or held.elem_type == 0:
        raise InvalidGraph(f"{where}: a map must be of keys to elements, both of types that are stated")
    try:
        return MapType(dtypes.from_code(proto.key_type), dtypes.from_code(held.elem_type))
    except ModelError as error:
        raise type(error)(f"{where}: {error}") from None


def kind_of(proto: TypeProto | None) -> str:
    """What a type message describes, in words: "tensor", "sequence", …; "nothing" where it is empty."""
    for kind in ("tensor", "sparse_tensor", "sequence", "map", "optional", "opaque"):
        if proto is not None and getattr(proto, f"{kind}_type") is not None:
            return kind.replace("_", " ")
    return "nothing"


def write_type(type_: ValueType) -> TypeProto | None:
    """The message of a type; None for a type left to inference."""
    if isinstance(type_, SequenceType):
        return TypeProto(sequence_type=Sequence(write_type(type_.element)))
    if isinstance(type_, OptionalType):
        return TypeProto(optional_type=Optional(write_type(type_.element)))
    if isinstance(type_, MapType):
        held = TypeProto(tensor_type=Tensor(type_.element.code, None))
        return TypeProto(map_type=Map(type_.key.code, held))
    stated = type_.tensor
    if stated.is_unknown:
        return None
    shape = None
    if stated.shape is not None:
        shape = TensorShapeProto(tuple(_write_dimension(size) for size in stated.shape))
    return TypeProto(tensor_type=Tensor(stated.dtype.code, shape))


def write_value(name: str, type_: ValueType) -> ValueInfoProto:
    """The message of a named, typed value."""
    return ValueInfoProto(name, write_type(type_))


def _read_dimension(dimension: Dimension, where: str) -> Dim:
    if dimension.dim_value is None:
        return dimension.dim_param or None
    # Some exporters write -1 for a size that is not known.
    if dimension.dim_value == -1:
        return None
    if dimension.dim_value < -1:
        raise InvalidGraph(f"{where}: the type has a dimension of {dimension.dim_value}")
    return dimension.dim_value


def _write_dimension(size: Dim) -> Dimension:
    if size is None:
        return Dimension()
    if isinstance(size, str):
        return Dimension(dim_param=size)
    return Dimension(dim_value=int(size))
