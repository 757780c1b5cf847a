"""Conversion between element types: Cast, CastLike, BitCast."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vkml.errors import InvalidArgument, InvalidGraph, ModelError
from vkml.ir import dtypes, gradients, scalar
from vkml.ir.dtypes import BOOL, FLOAT8E8M0, FLOAT16, FLOAT32, FLOAT64, STRING, DType
from vkml.ir.gradients import Emitter, T
from vkml.ir.graph import Node
from vkml.ir.lowering import Lowering, V, given
from vkml.ir.number_forms import ROUNDED, power_of_two, rounded
from vkml.ir.operator import INT, REQUIRED, Array, Operator, operator
from vkml.ir.packing import from_bytes, to_bytes
from vkml.ir.scalar import Scalar
from vkml.ir.types import Known, TensorType
from vkml.ops.checks import present, required
from vkml.ops.limits import check_size
from vkml.ops.number_formats import SATURATING, limited, powers_of_two
from vkml.ops.upgrading import renew

CASTABLE = dtypes.ALL
"""All: ONNX casts no complex numbers, tensors do. What becomes real loses its imaginary part."""

_NAMES_OF_OPSET_1 = {dtype.name.upper(): dtype.code for dtype in dtypes.ALL}


def convert(node: Node, array: Array, target: DType) -> Array:
    """A tensor's elements as another type.

    Integers that do not fit keep their low bits; floats lose their fraction, and those that do not fit an
    integer type give an unspecified number, never an error.

    Args:
        node: gives `saturate` and `round_mode`, and a name to error messages.
        array: in the storage of its element type.
        target: element type wanted.

    Raises:
        InvalidArgument: a string that is no number.
    """
    source = dtypes.from_numpy(array.dtype)
    if source == target and target not in SATURATING:  # of these, infinity does not stay
        return array
    if source == STRING:
        array = _numbers(node, array, target)
    elif source.is_float and not source.is_native:
        array = array.astype(np.float32)
    elif source.is_packed:
        array = array.astype(np.int8)
    if target == STRING:
        return _strings(array)
    if source.is_complex and not target.is_complex:
        array = array != 0 if target == BOOL else array.real
    saturate = bool(node.attributes["saturate"])
    with np.errstate(all="ignore"):
        if target == dtypes.FLOAT8E8M0:
            return powers_of_two(array, saturate=saturate, round_mode=node.attributes["round_mode"])
        if saturate and target in SATURATING:
            array = limited(array, target)
        elif array.dtype.kind == "f" and target.is_integer:
            # Through 64 bits, so that the low bits are kept on every machine, whatever its conversion does.
            array = array.astype(np.uint64 if target == dtypes.UINT64 else np.int64)
        return np.asarray(array.astype(target.storage))


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


def converted(
    x: Scalar, source: DType, target: DType, *, saturate: bool = True, round_mode: str = "up"
) -> Scalar | None:
    """An element of `source` as one of `target`; None where a type has no arithmetic."""
    if {source.kind, target.kind} & {"c", "s"}:
        return None
    if source == target and target not in SATURATING:  # of these, infinity does not stay
        return x
    if target == FLOAT16:
        return scalar.round_to_half(x if x.dtype.is_float else scalar.convert(x, FLOAT32))
    if target in ROUNDED:
        # From float64 and long integers by way of float32, as ml_dtypes has it.
        return rounded(scalar.convert(x, FLOAT32), target, saturate=saturate)
    if target == FLOAT8E8M0:
        if source == FLOAT64 or (source.is_integer and source.bits > 16):
            return None  # what float32 rounds may be the other power
        return power_of_two(scalar.convert(x, FLOAT32), saturate=saturate, round_mode=round_mode)
    return scalar.convert(x, target)


class _Conversion(Operator):
    """What Cast and CastLike share."""

    attributes = {"saturate": 1, "round_mode": "up"}

    def target(self, node: Node, inputs: Sequence[Known | None]) -> DType:
        """The element type converted to."""
        raise NotImplementedError

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        data = required(node, inputs, 0)
        target = self.target(node, inputs)
        for dtype, what in ((data.dtype, "from"), (target, "to")):
            if dtype not in CASTABLE:
                names = ", ".join(allowed.name for allowed in CASTABLE)
                raise InvalidGraph(f"{node.label}: cannot convert {what} {dtype.name}; known are {names}")
        if {data.dtype.kind, target.kind} == {"c", "s"}:
            raise InvalidGraph(f"{node.label}: cannot convert from {data.dtype.name} to {target.name}")
        if node.attributes["round_mode"] not in ("up", "down", "nearest"):
            raise InvalidGraph(
                f"{node.label}: round_mode must be up, down or nearest, not {node.attributes['round_mode']!r}"
            )
        return [check_size(node, target, data.dims)]

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        # Not from the scalar form, which not all types have.
        return [gradients.converted(build, present(cotangents, 0), build.type_of(present(inputs, 0)).dtype)]


@operator()
class Cast(_Conversion):
    """Converts elements to the type that attribute `to` names."""

    attributes = {**_Conversion.attributes, "to": REQUIRED}
    retyped_attributes = frozenset({"to"})
    attribute_types = {"to": INT}
    is_pointwise = True

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
        return [convert(node, present(inputs, 0), self.target(node, ()))]

    def scalar(
        self, node: Node, arguments: Sequence[Scalar | None], types: Sequence[DType | None], result: DType
    ) -> Scalar | None:
        saturate, round_mode = bool(node.attributes["saturate"]), str(node.attributes["round_mode"])
        return converted(
            present(arguments, 0), present(types, 0), result, saturate=saturate, round_mode=round_mode
        )


@operator()
class CastLike(_Conversion):
    """Converts elements to the type of the second input, whose values do not matter."""

    inputs = (2, 2)
    type_inputs = (1,)
    is_shape_arithmetic = True

    def target(self, node: Node, inputs: Sequence[Known | None]) -> DType:
        return required(node, inputs, 1).dtype

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        return [convert(node, present(inputs, 0), dtypes.from_numpy(present(inputs, 1).dtype))]

    def lower(self, build: Lowering[V], node: Node, inputs: Sequence[V | None]) -> Sequence[V | None] | None:
        output = build.result()
        stated = {key: node.attributes[key] for key in _Conversion.attributes}
        return [
            build.compute(
                lambda body, x: body("Cast", x, to=output.dtype.code, **stated),
                [given(inputs, 0)],
                build.output(output),
                label="cast",
            )
        ]


@operator()
class BitCast(Operator):
    """The bits of each element as a number of another type that has as many."""

    attributes = {"to": REQUIRED}
    attribute_types = {"to": INT}

    def _target(self, node: Node) -> DType:
        try:
            return dtypes.from_code(int(node.attributes["to"]))
        except ModelError as error:
            raise type(error)(f"{node.label}: {error}") from None

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x, target = required(node, inputs, 0), self._target(node)
        if STRING in (x.dtype, target) or x.dtype.bits != target.bits:
            raise InvalidGraph(
                f"{node.label}: {target.name} of {target.bits} bits cannot be made of the bits of "
                f"{x.dtype.name}, which has {x.dtype.bits}"
            )
        return [TensorType(target, x.type.shape)]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x, target = present(inputs, 0), self._target(node)
        return [from_bytes(to_bytes(x, dtypes.from_numpy(x.dtype)), target, x.shape)]

    def lower(self, build: Lowering[V], node: Node, inputs: Sequence[V | None]) -> Sequence[V | None] | None:
        return [given(inputs, 0).seen_as(self._target(node))]

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        return [None]  # bits are no numbers that change by a little
