"""Arithmetic of two or more numbers: Add, Sub, Mul, Div, Mod, Pow, Max, Min, Mean, Sum, Clip."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from vkml.errors import ShapeError
from vkml.ir.dtypes import FLOAT32, FLOAT64, FLOATS, INT32, INT64, NUMBERS, DType, from_numpy
from vkml.ir.graph import Node
from vkml.ir.operator import Array, Operator, operator, register
from vkml.ir.types import Known, TensorType
from vkml.ops.broadcasting import broadcast_shapes, require_types
from vkml.ops.checks import optional, present, require_dtype, required
from vkml.ops.limits import check_size
from vkml.ops.pointwise import Binary, Variadic
from vkml.ops.slang_literals import literal_value, slang_literal
from vkml.ops.upgrading import attributes_to_inputs, renew


def divide(a: Array, b: Array) -> Any:
    """True division of floats; division of integers truncates toward zero and gives 0 for a divisor of 0."""
    if a.dtype.kind == "f":
        return a / b
    quotient = a // b
    if a.dtype.kind == "u":
        return quotient
    # NumPy rounds toward minus infinity: one more where that cut something off a negative quotient.
    is_short = (quotient * b != a) & ((a ^ b) < 0) & (b != 0)
    return quotient + is_short


def remainder(a: Array, b: Array, fmod: int = 0) -> Any:
    """The remainder with the sign of the dividend (`fmod`) or the divisor; of an integer by 0 it is 0."""
    return np.fmod(a, b) if fmod else np.mod(a, b)


def power(base: Array, exponent: Array) -> Any:
    """`base` to the power of `exponent`, in the type of `base`; negative powers of integers truncate."""
    if base.dtype.kind != "f" and exponent.dtype.kind != "f":
        return _integer_power(base, exponent)
    if base.dtype.kind != "f":
        return np.power(base.astype(np.float64), exponent.astype(np.float64))
    if exponent.size == 1:
        # A square costs one multiplication; layer norms ask for it on whole tensors.
        shape = np.broadcast_shapes(base.shape, exponent.shape)
        factor = float(exponent.reshape(-1)[0])
        if factor == 2:
            return (base * base).reshape(shape)
        if factor == 3:
            return (base * base * base).reshape(shape)
    exact = exponent if exponent.dtype == np.float64 else exponent.astype(base.dtype)
    return np.power(base, exact)


def _integer_power(base: Array, exponent: Array) -> Any:
    wide = exponent.astype(np.int64)
    raised = np.power(base.astype(np.int64), np.maximum(wide, 0)).astype(base.dtype)
    if not (wide < 0).any():
        return raised
    odd = np.where(wide & 1, base, base * base)
    return np.where(wide >= 0, raised, np.where(np.abs(base) == 1, odd, 0))


def _pow_slang(arguments: Sequence[str], types: Sequence[DType]) -> str | None:
    base, exponent = arguments
    if types[0].is_integer:
        if types[1].is_float:
            return None
        signed = f"int64_t({exponent})" if types[1].bits == 64 else f"int({exponent})"
        return f"integer_power({base}, {signed})"
    literal = literal_value(exponent)
    if literal in _SHORT_POWERS:
        return _SHORT_POWERS[literal].format(x=base)
    if FLOAT64 in types:
        return None
    return f"power({base}, float({exponent}))"


_SHORT_POWERS = {2.0: "square({x})", 3.0: "cube({x})", 1.0: "{x}", -1.0: "(1 / {x})"}


class _Pow(Binary):
    """Power; base and exponent may have different types."""

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        base, exponent = required(node, inputs, 0), required(node, inputs, 1)
        require_types(node, [base], self.allowed)
        require_types(node, [exponent], NUMBERS)
        return [check_size(node, base.dtype, broadcast_shapes(node, base.dims, exponent.dims))]

    def expression(
        self, node: Node, arguments: Sequence[str], types: Sequence[DType], result: DType
    ) -> str | None:
        return _pow_slang(arguments, types)


def _mod_slang(arguments: Sequence[str], dtype: DType, attributes: Mapping[str, Any]) -> str:
    function = "remainder_of_dividend" if attributes["fmod"] else "remainder_of_divisor"
    return f"{function}({arguments[0]}, {arguments[1]})"


def _folded(function: str) -> Callable[..., str]:
    """The Slang of a two-argument function applied from left to right."""

    def slang(arguments: Sequence[str], dtype: DType, attributes: Mapping[str, Any]) -> str:
        return functools.reduce(lambda a, b: f"{function}({a}, {b})", arguments)

    return slang


def _sum_slang(arguments: Sequence[str], dtype: DType, attributes: Mapping[str, Any]) -> str:
    return f"({' + '.join(arguments)})"


def _mean_slang(arguments: Sequence[str], dtype: DType, attributes: Mapping[str, Any]) -> str:
    kind = "double" if dtype == FLOAT64 else "float"
    return f"(({' + '.join(arguments)}) / {kind}({len(arguments)}))"


def _sum(*arrays: Array) -> Any:
    return functools.reduce(np.add, arrays)


register(Binary("Add", np.add, "({x} + {y})", NUMBERS))
register(Binary("Sub", np.subtract, "subtract({x}, {y})", NUMBERS))
register(Binary("Mul", np.multiply, "({x} * {y})", NUMBERS))
register(Binary("Div", divide, "divide({x}, {y})", NUMBERS))
register(Binary("Mod", remainder, _mod_slang, NUMBERS, attributes={"fmod": 0}, has_double=False))
register(_Pow("Pow", power, "", (*FLOATS, INT32, INT64)))
register(Variadic("Max", lambda *arrays: functools.reduce(np.maximum, arrays), _folded("maximum"), NUMBERS))
register(Variadic("Min", lambda *arrays: functools.reduce(np.minimum, arrays), _folded("minimum"), NUMBERS))
register(Variadic("Sum", _sum, _sum_slang, FLOATS))
register(Variadic("Mean", lambda *arrays: _sum(*arrays) / len(arrays), _mean_slang, FLOATS))


def clip_limits(dtype: DType) -> tuple[float, float] | None:
    """What Clip limits floats to where a bound is absent: the type's finite numbers; None for other types."""
    if not dtype.is_float:
        return None
    largest = float(np.finfo(dtype.storage).max)
    return -largest, largest


@operator()
class Clip(Operator):
    """Limits to [min, max]; NaN stays NaN, and where min > max everything becomes max.

    Without a bound infinity becomes the type's largest number, as ONNX says.
    """

    inputs = (1, 3)
    is_pointwise = True

    def upgrade(self, node: Node) -> Node | Sequence[Node]:
        if node.version >= 11:
            return node
        # The bounds become float32 scalars whatever the input's type is; `infer` and `evaluate` convert them.
        cleaned = renew(node, drop=("consumed_inputs",))
        return attributes_to_inputs(cleaned, [("min", 1, FLOAT32), ("max", 2, FLOAT32)])

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        data = required(node, inputs, 0)
        dtype = require_types(node, [data], NUMBERS)
        for index, what in ((1, "min"), (2, "max")):
            bound = optional(inputs, index)
            if bound is None:
                continue
            require_dtype(node, bound, (dtype, FLOAT32) if dtype.is_float else (dtype,), what)
            # [1] is taken, too, which exporters write and ONNX Runtime takes.
            if bound.rank > 1 or bound.type.elements != 1:
                raise ShapeError(f"{node.label}: {what} must be a scalar, its shape is {list(bound.dims)}")
        return [data.type]

    def evaluate(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        data = present(inputs, 0)
        low, high = optional(inputs, 1), optional(inputs, 2)
        limits = clip_limits(from_numpy(data.dtype)) or (None, None)
        with np.errstate(all="ignore"):
            bounds: list[Any] = [
                limit if bound is None else bound.astype(data.dtype)
                for bound, limit in zip((low, high), limits, strict=True)
            ]
            if all(bound is None for bound in bounds):
                return [data]
            # A bound is one number, which comes as a scalar, as [1] or, in fused chains, many times.
            return [np.asarray(np.clip(data, *bounds)).reshape(data.shape).astype(data.dtype, copy=False)]

    def expression(
        self, node: Node, arguments: Sequence[str], types: Sequence[DType], result: DType
    ) -> str | None:
        value = arguments[0]
        kind = "double" if result == FLOAT64 else ""
        limits = clip_limits(result)
        for index, function in ((1, "maximum"), (2, "minimum")):
            if index < len(arguments) and arguments[index]:
                value = f"{function}({value}, {kind}({arguments[index]}))"
            elif limits is not None:
                value = f"{function}({value}, {slang_literal(limits[index - 1], result)})"
        return value
