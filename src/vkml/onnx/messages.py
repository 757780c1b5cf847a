"""ONNX's messages as dataclasses, each with the table that reads and writes it.

Names and numbers are those of the public ONNX protobuf definition. A field that is absent is None, "" or ();
presence matters for the ones whose default is None.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar, dataclass_transform

from vkml.dataclasses import dataclass
from vkml.onnx import wire
from vkml.onnx.wire import Buffer

TABLES: dict[str, wire.MessageType] = {}
"""Message name → table."""

_T = TypeVar("_T")
_Specification = tuple[int, int, bool, str | None]


def _one(number: int, kind: int, default: Any = None, message: str | None = None) -> Any:
    return dataclasses.field(default=default, metadata={"wire": (number, kind, False, message)})


def _many(number: int, kind: int, message: str | None = None) -> Any:
    return dataclasses.field(default=(), metadata={"wire": (number, kind, True, message)})


def _data(number: int, kind: int) -> Any:
    return dataclasses.field(default=b"", repr=False, metadata={"wire": (number, kind, True, None)})


def _text(number: int) -> Any:
    return _one(number, wire.STRING, "")


@dataclass_transform(frozen_default=True)
def _message(cls: type[_T]) -> type[_T]:
    """A message: frozen for the type checker, plain at run time (see `vkml.ir.described`), with its table."""
    made = dataclass(slots=True)(cls)
    TABLES[cls.__name__] = wire.MessageType(cls.__name__, made)
    return made


@_message
class StringStringEntryProto:
    key: str = _text(1)
    value: str = _text(2)


@_message
class OperatorSetIdProto:
    domain: str = _text(1)
    version: int = _one(2, wire.INT64, 0)


@_message
class Segment:
    begin: int | None = _one(1, wire.INT64)
    end: int | None = _one(2, wire.INT64)


@_message
class TensorProto:
    """A tensor as the file has it; numbers in typed fields stay the packed bytes they are."""

    dims: tuple[int, ...] = _many(1, wire.INT64)
    data_type: int = _one(2, wire.INT32, 0)
    segment: Segment | None = _one(3, wire.MESSAGE, message="Segment")
    float_data: Buffer = _data(4, wire.DATA_FIXED32)
    int32_data: Buffer = _data(5, wire.DATA_VARINT)
    string_data: tuple[Buffer, ...] = _many(6, wire.BYTES)
    int64_data: Buffer = _data(7, wire.DATA_VARINT)
    name: str = _text(8)
    double_data: Buffer = _data(10, wire.DATA_FIXED64)
    uint64_data: Buffer = _data(11, wire.DATA_VARINT)
    doc_string: str = _text(12)
    external_data: tuple[StringStringEntryProto, ...] = _many(13, wire.MESSAGE, "StringStringEntryProto")
    data_location: int = _one(14, wire.INT32, 0)
    metadata_props: tuple[StringStringEntryProto, ...] = _many(16, wire.MESSAGE, "StringStringEntryProto")
    raw_data: Buffer | None = _one(9, wire.BYTES)


@_message
class SparseTensorProto:
    values: TensorProto | None = _one(1, wire.MESSAGE, message="TensorProto")
    indices: TensorProto | None = _one(2, wire.MESSAGE, message="TensorProto")
    dims: tuple[int, ...] = _many(3, wire.INT64)


@_message
class Dimension:
    dim_value: int | None = _one(1, wire.INT64)
    dim_param: str | None = _one(2, wire.STRING)
    denotation: str = _text(3)


@_message
class TensorShapeProto:
    dim: tuple[Dimension, ...] = _many(1, wire.MESSAGE, "Dimension")


@_message
class Tensor:
    elem_type: int = _one(1, wire.INT32, 0)
    shape: TensorShapeProto | None = _one(2, wire.MESSAGE, message="TensorShapeProto")


@_message
class SparseTensor:
    elem_type: int = _one(1, wire.INT32, 0)
    shape: TensorShapeProto | None = _one(2, wire.MESSAGE, message="TensorShapeProto")


@_message
class Sequence:
    elem_type: TypeProto | None = _one(1, wire.MESSAGE, message="TypeProto")


@_message
class Optional:
    elem_type: TypeProto | None = _one(1, wire.MESSAGE, message="TypeProto")


@_message
class Map:
    key_type: int = _one(1, wire.INT32, 0)
    value_type: TypeProto | None = _one(2, wire.MESSAGE, message="TypeProto")


@_message
class Opaque:
    domain: str = _text(1)
    name: str = _text(2)


@_message
class TypeProto:
    tensor_type: Tensor | None = _one(1, wire.MESSAGE, message="Tensor")
    sequence_type: Sequence | None = _one(4, wire.MESSAGE, message="Sequence")
    map_type: Map | None = _one(5, wire.MESSAGE, message="Map")
    denotation: str = _text(6)
    opaque_type: Opaque | None = _one(7, wire.MESSAGE, message="Opaque")
    sparse_tensor_type: SparseTensor | None = _one(8, wire.MESSAGE, message="SparseTensor")
    optional_type: Optional | None = _one(9, wire.MESSAGE, message="Optional")


@_message
class ValueInfoProto:
    name: str = _text(1)
    type: TypeProto | None = _one(2, wire.MESSAGE, message="TypeProto")
    doc_string: str = _text(3)
    metadata_props: tuple[StringStringEntryProto, ...] = _many(4, wire.MESSAGE, "StringStringEntryProto")


@_message
class AttributeProto:
    name: str = _text(1)
    f: float | None = _one(2, wire.FLOAT)
    i: int | None = _one(3, wire.INT64)
    s: Buffer | None = _one(4, wire.BYTES)
    t: TensorProto | None = _one(5, wire.MESSAGE, message="TensorProto")
    g: GraphProto | None = _one(6, wire.MESSAGE, message="GraphProto")
    floats: tuple[float, ...] = _many(7, wire.FLOAT)
    ints: tuple[int, ...] = _many(8, wire.INT64)
    strings: tuple[Buffer, ...] = _many(9, wire.BYTES)
    tensors: tuple[TensorProto, ...] = _many(10, wire.MESSAGE, "TensorProto")
    graphs: tuple[GraphProto, ...] = _many(11, wire.MESSAGE, "GraphProto")
    doc_string: str = _text(13)
    tp: TypeProto | None = _one(14, wire.MESSAGE, message="TypeProto")
    type_protos: tuple[TypeProto, ...] = _many(15, wire.MESSAGE, "TypeProto")
    type: int = _one(20, wire.INT32, 0)
    ref_attr_name: str = _text(21)
    sparse_tensor: SparseTensorProto | None = _one(22, wire.MESSAGE, message="SparseTensorProto")
    sparse_tensors: tuple[SparseTensorProto, ...] = _many(23, wire.MESSAGE, "SparseTensorProto")


@_message
class NodeProto:
    input: tuple[str, ...] = _many(1, wire.STRING)
    output: tuple[str, ...] = _many(2, wire.STRING)
    name: str = _text(3)
    op_type: str = _text(4)
    attribute: tuple[AttributeProto, ...] = _many(5, wire.MESSAGE, "AttributeProto")
    doc_string: str = _text(6)
    domain: str = _text(7)
    overload: str = _text(8)
    metadata_props: tuple[StringStringEntryProto, ...] = _many(9, wire.MESSAGE, "StringStringEntryProto")


@_message
class TensorAnnotation:
    tensor_name: str = _text(1)
    quant_parameter_tensor_names: tuple[StringStringEntryProto, ...] = _many(
        2, wire.MESSAGE, "StringStringEntryProto"
    )


@_message
class GraphProto:
    node: tuple[NodeProto, ...] = _many(1, wire.MESSAGE, "NodeProto")
    name: str = _text(2)
    initializer: tuple[TensorProto, ...] = _many(5, wire.MESSAGE, "TensorProto")
    doc_string: str = _text(10)
    input: tuple[ValueInfoProto, ...] = _many(11, wire.MESSAGE, "ValueInfoProto")
    output: tuple[ValueInfoProto, ...] = _many(12, wire.MESSAGE, "ValueInfoProto")
    value_info: tuple[ValueInfoProto, ...] = _many(13, wire.MESSAGE, "ValueInfoProto")
    quantization_annotation: tuple[TensorAnnotation, ...] = _many(14, wire.MESSAGE, "TensorAnnotation")
    sparse_initializer: tuple[SparseTensorProto, ...] = _many(15, wire.MESSAGE, "SparseTensorProto")
    metadata_props: tuple[StringStringEntryProto, ...] = _many(16, wire.MESSAGE, "StringStringEntryProto")


@_message
class FunctionProto:
    name: str = _text(1)
    input: tuple[str, ...] = _many(4, wire.STRING)
    output: tuple[str, ...] = _many(5, wire.STRING)
    attribute: tuple[str, ...] = _many(6, wire.STRING)
    node: tuple[NodeProto, ...] = _many(7, wire.MESSAGE, "NodeProto")
    doc_string: str = _text(8)
    opset_import: tuple[OperatorSetIdProto, ...] = _many(9, wire.MESSAGE, "OperatorSetIdProto")
    domain: str = _text(10)
    attribute_proto: tuple[AttributeProto, ...] = _many(11, wire.MESSAGE, "AttributeProto")
    value_info: tuple[ValueInfoProto, ...] = _many(12, wire.MESSAGE, "ValueInfoProto")
    overload: str = _text(13)
    metadata_props: tuple[StringStringEntryProto, ...] = _many(14, wire.MESSAGE, "StringStringEntryProto")


@_message
class TrainingInfoProto:
    initialization: GraphProto | None = _one(1, wire.MESSAGE, message="GraphProto")
    algorithm: GraphProto | None = _one(2, wire.MESSAGE, message="GraphProto")
    initialization_binding: tuple[StringStringEntryProto, ...] = _many(
        3, wire.MESSAGE, "StringStringEntryProto"
    )
    update_binding: tuple[StringStringEntryProto, ...] = _many(4, wire.MESSAGE, "StringStringEntryProto")


@_message
class ModelProto:
    ir_version: int = _one(1, wire.INT64, 0)
    producer_name: str = _text(2)
    producer_version: str = _text(3)
    domain: str = _text(4)
    model_version: int = _one(5, wire.INT64, 0)
    doc_string: str = _text(6)
    opset_import: tuple[OperatorSetIdProto, ...] = _many(8, wire.MESSAGE, "OperatorSetIdProto")
    metadata_props: tuple[StringStringEntryProto, ...] = _many(14, wire.MESSAGE, "StringStringEntryProto")
    functions: tuple[FunctionProto, ...] = _many(25, wire.MESSAGE, "FunctionProto")
    training_info: tuple[TrainingInfoProto, ...] = _many(20, wire.MESSAGE, "TrainingInfoProto")
    graph: GraphProto | None = _one(7, wire.MESSAGE, message="GraphProto")


@dataclass(frozen=True, slots=True)
class ModelHeader:
    """A model without its graphs: those are (start, stop) positions, for reading when they are wanted."""

    ir_version: int = 0
    producer_name: str = ""
    producer_version: str = ""
    domain: str = ""
    model_version: int = 0
    doc_string: str = ""
    opset_import: tuple[OperatorSetIdProto, ...] = ()
    metadata_props: tuple[StringStringEntryProto, ...] = ()
    functions: tuple[tuple[int, int], ...] = ()
    training_info: tuple[tuple[int, int], ...] = ()
    graph: tuple[tuple[int, int], ...] = ()


def _fill_tables() -> wire.MessageType:
    for table in TABLES.values():
        build: Callable[..., Any] = table.build
        for item in dataclasses.fields(build):  # type: ignore[arg-type]
            specification: _Specification = item.metadata["wire"]
            number, kind, is_repeated, nested = specification
            message = TABLES[nested] if nested else None
            table.add(wire.Field(number, item.name, kind, is_repeated, message, item.default))
    header = wire.MessageType("ModelProto", ModelHeader)
    for entry in TABLES["ModelProto"].fields:
        if entry.name in ("graph", "functions", "training_info"):
            entry = entry._replace(kind=wire.SPAN, is_repeated=True)
        header.add(entry)
    return header


HEADER = _fill_tables()
"""The table that reads a `ModelHeader`."""
GRAPH = TABLES["GraphProto"]
FUNCTION = TABLES["FunctionProto"]
MODEL = TABLES["ModelProto"]
TENSOR = TABLES["TensorProto"]
