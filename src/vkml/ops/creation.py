"""Operators that make tensors from attributes or sizes: Constant, ConstantOfShape, Range, EyeLike."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from vkml.errors import InvalidGraph, ModelError, NotImplemented, ShapeError
from vkml.ir.dtypes import (
    FLOAT32,
    FLOAT64,
    FLOATS,
    INT16,
    INT32,
    INT64,
    STRING,
    DType,
    from_code,
    from_numpy,
)
from vkml.ir.gradients import Emitter, T
from vkml.ir.graph import Constant as ConstantValue
from vkml.ir.graph import Node
from vkml.ir.lowering import BodyWriter, Lowering, V, all_given
from vkml.ir.operator import (
    FLOAT,
    INT,
    INTS,
    STRINGS,
    TENSOR,
    Array,
    AttributeType,
    Operator,
    operator,
)
from vkml.ir.scalar import arithmetic_type
from vkml.ir.size import plain
from vkml.ir.types import Known, TensorType, static
from vkml.ops.checks import (
    has_unknown_value,
    integers,
    list_value,
    present,
    require_dtype,
    require_rank,
    require_same_dtype,
    required,
    unknown_shape,
)
from vkml.ops.limits import check_size
from vkml.ops.pointwise import widened

_CONSTANT_FORMS = {
    "value_float": (FLOAT32, 0),
    "value_floats": (FLOAT32, 1),
    "value_int": (INT64, 0),
    "value_ints": (INT64, 1),
    "value_string": (STRING, 0),
    "value_strings": (STRING, 1),
}


def constant_value(node: Node) -> ConstantValue:
    """The tensor that a Constant node holds, whichever attribute it is in.

    Raises:
        InvalidGraph: None or several of the attributes are set.
        NotImplemented: The value is sparse.
    """
    given = [key for key in Constant.attributes if node.attributes[key] is not None]
    if len(given) != 1:
        raise InvalidGraph(f"{node.label}: exactly one value attribute is needed, it has {given or 'none'}")
    key, value = given[0], node.attributes[given[0]]
    if isinstance(value, ConstantValue):
        return value
    if key not in _CONSTANT_FORMS:
        raise NotImplemented(
            f"{node.label}: attribute {key!r} holds a {type(value).__name__}; a dense tensor is needed"
        )
    dtype, rank = _CONSTANT_FORMS[key]
    array = np.array(value, dtype=dtype.storage).reshape((-1,) * rank)
    return ConstantValue(dtype, array.shape, array)


@operator()
class Constant(Operator):
    """A tensor written into the model."""

    inputs = (0, 0)
    attributes: dict[str, Any] = {"value": None, "sparse_value": None, **dict.fromkeys(_CONSTANT_FORMS)}
    attribute_types = {
        "value": TENSOR,
        "value_float": FLOAT,
        "value_floats": AttributeType.FLOATS,
        "value_int": INT,
        "value_ints": INTS,
        "value_string": AttributeType.STRING,
        "value_strings": STRINGS,
    }

    def stated_constant(self, node: Node) -> ConstantValue:
        return constant_value(node)

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        value = constant_value(node)
        return [check_size(node, value.dtype, value.shape)]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        return [constant_value(node).array]


def fill_value(node: Node) -> ConstantValue:
    """The one element that ConstantOfShape repeats."""
    value = node.attributes["value"]
    if value is None:
        return ConstantValue(FLOAT32, (1,), np.zeros(1, np.float32))
    if not isinstance(value, ConstantValue) or math.prod(value.shape) != 1:
        raise InvalidGraph(f"{node.label}: value must be a tensor of one element")
    return value


@operator()
class ConstantOfShape(Operator):
    """A tensor of a given shape, filled with one value."""

    attributes = {"value": None}
    value_inputs = (0,)
    attribute_types = {"value": TENSOR}

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        target, fill = required(node, inputs, 0), fill_value(node)
        shape = list_value(node, target, "the shape")
        if shape is None:
            return [unknown_shape(fill.dtype, target.type.elements)]
        return [check_size(node, fill.dtype, shape)]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        fill = fill_value(node).array
        return [np.full(integers(present(inputs, 0)), fill.reshape(()), dtype=fill.dtype)]

    def lower(self, build: Lowering[V], node: Node, inputs: Sequence[V | None]) -> Sequence[V | None] | None:
        one = build.reshape(build.constant(fill_value(node), "fill"), ())
        return [one.expand(build.result().dims)]


def range_count(node: Node, start: Any, limit: Any, delta: Any) -> int:
    """How many elements Range makes; the arguments are NumPy scalars of one type.

    That is ONNX's formula, of which the difference is taken in float64, as in onnxruntime: an infinite step
    makes none. Ends whose difference overflows their type are too far apart: what lies between would, too.

    Raises:
        ShapeError: The step is zero or NaN, or an end is not finite.
    """
    if isinstance(start, np.floating):
        first, last, step = float(start), float(limit), float(delta)
        if not (math.isfinite(first) and math.isfinite(last)) or step == 0 or math.isnan(step):
            raise ShapeError(
                f"{node.label}: start {start} and limit {limit} must be finite, delta {delta} a number, not 0"
            )
        with np.errstate(over="ignore"):
            ratio = (last - first) / step if np.isfinite(limit - start) else math.inf
        return max(math.ceil(ratio), 0) if math.isfinite(ratio) else 2**63
    start, limit, delta = plain(start), plain(limit), plain(delta)
    if delta == 0:
        raise ShapeError(f"{node.label}: delta is 0")
    count: int = max(-((start - limit) // delta), 0)
    return count


@operator()
class Range(Operator):
    """start, start + delta, start + 2·delta, … while below (or above) limit."""

    inputs = (3, 3)
    attributes = {"stash_type": FLOAT32.code}
    value_inputs = (0, 1, 2)

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        stash = node.attributes["stash_type"]
        if stash not in (FLOAT32.code, FLOAT64.code):
            raise InvalidGraph(f"{node.label}: stash_type {stash} is neither 1 (float) nor 11 (double)")
        found = [required(node, inputs, index) for index in range(3)]
        require_dtype(node, found[0], (*FLOATS, INT16, INT32, INT64), "start")
        for value, what in zip(found, ("start", "limit", "delta"), strict=True):
            require_same_dtype(node, found[0], value, what)
            if value.type.elements != 1:
                raise ShapeError(f"{node.label}: {what} must be a scalar, its shape is {list(value.dims)}")
        if has_unknown_value(inputs, (0, 1, 2)):
            return [unknown_shape(found[0].dtype, 1)]
        scalars = [widened(value.value).reshape(())[()] for value in found if value.value is not None]
        return [check_size(node, found[0].dtype, (range_count(node, *scalars),))]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        dtype = present(inputs, 0).dtype
        start, limit, delta = (widened(present(inputs, index)).reshape(())[()] for index in range(3))
        count = range_count(node, start, limit, delta)
        is_narrow = start.dtype != dtype
        wide = from_code(node.attributes["stash_type"]).storage if is_narrow else dtype
        with np.errstate(over="ignore"):
            made = wide.type(start) + np.arange(count, dtype=wide) * wide.type(delta)
        return [made.astype(dtype, copy=False)]

    def lower(self, build: Lowering[V], node: Node, inputs: Sequence[V | None]) -> Sequence[V | None] | None:
        start, _, delta = (build.reshape(view, ()) for view in all_given(inputs))
        result = build.result()
        wide = arithmetic_type(result.dtype)
        steps = build.positions(result.dims[0])

        def write(body: BodyWriter, step: str, start: str, delta: str) -> str:
            return str(body("Add", start, body("Mul", body.cast(step, wide), delta)))

        return [build.compute(write, [steps, start, delta], build.output(result), label="range")]


@operator()
class EyeLike(Operator):
    """A matrix of the input's shape with ones on one diagonal."""

    attributes = {"dtype": None, "k": 0}
    attribute_types = {"dtype": INT}
    type_inputs = (0,)

    def _dtype(self, node: Node, otherwise: DType) -> DType:
        code = node.attributes["dtype"]
        try:
            dtype = otherwise if code is None else from_code(int(code))
        except ModelError as error:
            raise type(error)(f"{node.label}: {error}") from None
        if dtype.kind == "s":
            raise NotImplemented(f"{node.label}: element type {dtype.name} is not supported")
        return dtype

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        x = required(node, inputs, 0)
        require_rank(node, x, 2, 2)
        return [static(self._dtype(node, x.dtype), x.dims)]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        x = present(inputs, 0)
        dtype = self._dtype(node, from_numpy(x.dtype))
        rows, columns = x.shape
        # Clamped: a hostile k near the ends of int64 would overflow.
        diagonal = max(min(int(node.attributes["k"]), columns), -rows)
        return [np.eye(rows, columns, diagonal, dtype=dtype.storage)]

    def vjp(
        self,
        build: Emitter[T],
        node: Node,
        inputs: Sequence[T | None],
        outputs: Sequence[T],
        cotangents: Sequence[T | None],
        needed: Sequence[bool],
    ) -> Sequence[T | None]:
        return [None]  # it reads no element
