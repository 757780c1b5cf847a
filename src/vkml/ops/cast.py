"""Conversion between element types: Cast, CastLike."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vkml import errors
from vkml.errors import InvalidArgument, InvalidGraph
from vkml.ir import dtypes, scalar
from vkml.ir.dtypes import BOOL, FLOAT16, FLOAT32, NUMBERS, STRING, DType
from vkml.ir.graph import Node
from vkml.ir.operator import INT, OPTIONAL, REQUIRED, Array, Operator, operator
from vkml.ir.scalar import Scalar
from vkml.ir.types import Known, TensorType
from vkml.ops.checks import present, required
from vkml.ops.limits import check_size
from vkml.ops.number_formats import CONVERTIBLE, decode, encode
from vkml.ops.upgrading import renew

CASTABLE: tuple[DType, ...] = (*NUMBERS, BOOL, STRING, *CONVERTIBLE)

_NAMES_OF_OPSET_1 = {dtype.name.upper(): dtype.code for dtype in dtypes.ALL}


def convert(
    node: Node, array: Array, source: DType, target: DType, shape: Sequence[int] | None = None
) -> Array:
    """A tensor's elements as another type.

    Integers that do not fit keep their low bits; floats lose their fraction, and those that do not fit an
    integer type give an unspecified number, never an error.

    Args:
        node: gives `saturate` and `round_mode`, and a name to error messages.
        array: in the storage of `source`.
        source: element type of `array`.
        target: element type wanted.
        shape: shape of the tensor, for packed sources.

    Raises:
        InvalidArgument: a string that is no number.
    """
    if source == target:
        return array
    values = array if source.is_native else decode(array, source, shape)
    if source == STRING:
        values = _numbers(node, values, target)
    elif target == STRING:
        return _strings(values)
    if not target.is_native:
        attributes: Mapping[str, Any] = node.attributes
        return encode(
            values, target, saturate=bool(attributes["saturate"]), round_mode=attributes["round_mode"]
        )
    with np.errstate(all="ignore"):
        if values.dtype.kind == "f" and target.is_integer:
            # Through 64 bits, so that the low bits are kept on every machine, whatever its conversion does.
            wide = np.uint64 if target == dtypes.UINT64 else np.int64
            values = values.astype(wide)
        return np.asarray(values.astype(target.storage))


def _numbers(node: Node, texts: Array, target: DType) -> Array:
    """Strings as float64, or as exact integers where they are spelt so and integers are wanted."""
    flat = [text.decode() if isinstance(text, bytes) else str(text) for text in texts.reshape(-1).tolist()]
    try:
        if target.is_integer and target.is_native:
            try:
                whole = [int(text) & 0xFFFFFFFFFFFFFFFF for text in flat]
                return np.array(whole, np.uint64).reshape(texts.shape)
            except ValueError:
                pass
        return np.array([float(text) for text in flat], np.float64).reshape(texts.shape)
    except ValueError as error:
        raise InvalidArgument(f"{node.label}: a string is not a number: {error}") from None


def _strings(values: Array) -> Array:
    if values.dtype == np.bool_:
        values = values.astype(np.uint8)
    return np.asarray(values.astype(np.str_).astype(np.object_))


def converted(x: Scalar, source: DType, target: DType) -> Scalar | None:
    """An element of `source` as one of `target`; None where a type has no arithmetic."""
    if not {source, target} <= {*NUMBERS, BOOL}:
        return None
    if source == target:
        return x
    if target == FLOAT16:
        return scalar.round_to_half(x if x.dtype.is_float else scalar.convert(x, FLOAT32))
    return scalar.convert(x, target)


class _Conversion(Operator):
    """What Cast and CastLike share.

    `evaluate` sees arrays, not element types, so nodes whose input NumPy has no type for must carry that type
    in the internal attribute `source` (and, for packed types, `source_shape`). `resolve` puts them there.
    """

    attributes = {
        "saturate": 1,
        "round_mode": "up",
        "source": OPTIONAL,
        "source_shape": OPTIONAL,
    }
    is_pointwise = True
    internal_attributes = frozenset({"source", "source_shape"})

    def target(self, node: Node, inputs: Sequence[Known | None]) -> DType:
        """The element type converted to."""
        raise NotImplementedError

    def resolve(self, node: Node, inputs: Sequence[Known | None]) -> Node:
        """The node as a Cast that states its input's type; for use before `infer`, types being known."""
        data = required(node, inputs, 0)
        attributes = {
            **node.attributes,
            "to": self.target(node, inputs).code,
            "source": data.dtype.code,
            "source_shape": data.dims if data.dtype.bits < 8 else None,
        }
        return dataclasses.replace(node, op="Cast", inputs=node.inputs[:1], attributes=attributes)

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        data = required(node, inputs, 0)
        target = self.target(node, inputs)
        for dtype, what in ((data.dtype, "from"), (target, "to")):
            if dtype not in CASTABLE:
                names = ", ".join(allowed.name for allowed in CASTABLE)
                raise InvalidGraph(f"{node.label}: cannot convert {what} {dtype.name}; known are {names}")
        if not data.dtype.is_native and node.attributes["source"] is None:
            raise errors.NotImplemented(
                f"{node.label}: its input is {data.dtype.name}, which travels as raw bits; "
                "resolve the node first"
            )
        if node.attributes["round_mode"] not in ("up", "down", "nearest"):
            raise InvalidGraph(
                f"{node.label}: round_mode must be up, down or nearest, not {node.attributes['round_mode']!r}"
            )
        return [check_size(node, target, data.dims)]


@operator()
class Cast(_Conversion):
    """Converts elements to the type that attribute `to` names."""

    attributes = {**_Conversion.attributes, "to": REQUIRED}
    retyped_attributes = frozenset({"to"})
    attribute_types = {"to": INT}

    def upgrade(self, node: Node) -> Node | Sequence[Node]:
        target = node.attributes.get("to")
        if not isinstance(target, str):
            return node
        code = _NAMES_OF_OPSET_1.get(target.upper())
        if code is None:
            raise InvalidGraph(f"{node.label}: {target!r} is not an element type")
        return renew(node, attributes={"to": code})

    def target(self, node: Node, inputs: Sequence[Known | None]) -> DType:
        return dtypes.from_code(int(node.attributes["to"]))

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        array = present(inputs, 0)
        code = node.attributes["source"]
        source = dtypes.from_numpy(array.dtype) if code is None else dtypes.from_code(code)
        return [convert(node, array, source, self.target(node, ()), node.attributes["source_shape"])]

    def scalar(
        self, node: Node, arguments: Sequence[Scalar | None], types: Sequence[DType | None], result: DType
    ) -> Scalar | None:
        return converted(present(arguments, 0), present(types, 0), result)


@operator()
class CastLike(_Conversion):
    """Converts elements to the type of the second input, whose values do not matter."""

    inputs = (2, 2)

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        target = self.target(node, inputs)
        if not target.is_native:
            raise errors.NotImplemented(
                f"{node.label}: its second input is {target.name}, which travels as raw bits; "
                "resolve the node first"
            )
        return super().infer(node, inputs)

    def target(self, node: Node, inputs: Sequence[Known | None]) -> DType:
        return required(node, inputs, 1).dtype

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        array, like = present(inputs, 0), present(inputs, 1)
        source, target = dtypes.from_numpy(array.dtype), dtypes.from_numpy(like.dtype)
        return [convert(node, array, source, target)]

    def scalar(
        self, node: Node, arguments: Sequence[Scalar | None], types: Sequence[DType | None], result: DType
    ) -> Scalar | None:
        return converted(present(arguments, 0), present(types, 0), result)
