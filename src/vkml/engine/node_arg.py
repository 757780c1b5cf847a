"""Inputs and outputs of models as onnxruntime describes them."""

from __future__ import annotations

from vkml.dataclasses import dataclass
from vkml.ir import MapType, OptionalType, SequenceType, TensorType, Value, ValueType


@dataclass(frozen=True)
class NodeArg:
    """An input or output of a model."""

    name: str
    """In the model."""
    shape: list[int | str | None]
    """Sizes, names of open sizes, or None; empty of what is no tensor."""
    type: str
    """As onnxruntime writes it: ``tensor(float)``."""

    def __str__(self) -> str:
        return f"NodeArg(name={self.name!r}, type={self.type!r}, shape={self.shape})"


def node_arg(value: Value) -> NodeArg:
    """The description of a value of the model."""
    shape = value.type.shape if isinstance(value.type, TensorType) else None
    return NodeArg(value.name, list(shape or ()), type_name(value.type))


def type_name(type_: ValueType) -> str:
    """A type as onnxruntime writes it."""
    if isinstance(type_, SequenceType):
        return f"seq({type_name(type_.element)})"
    if isinstance(type_, OptionalType):
        return f"optional({type_name(type_.element)})"
    if isinstance(type_, MapType):
        return f"map({type_.key.name},tensor({type_.element.name}))"
    return f"tensor({type_.tensor.dtype.name})"
