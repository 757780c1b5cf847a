"""Arithmetic of two or more numbers: Add, Sub, Mul, Div, Mod, Pow, Max, Min, Mean, Sum, Clip."""

from __future__ import annotations

import functools
import math
import operator as operators
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from vkml.errors import ShapeError
from vkml.ir import scalar
from vkml.ir.dtypes import (
    FLOAT32,
    FLOAT64,
    FLOATS,
    INT32,
    INT64,
    NUMBERS,
    UINT32,
    UINT64,
    DType,
    finfo,
    from_numpy,
)
from vkml.ir.graph import Node
from vkml.ir.operator import FLOAT, INTS, Array, Operator, operator, register
from vkml.ir.scalar import Scalar
from vkml.ir.types import Known, TensorType
from vkml.ops.broadcasting import broadcast_shapes, require_types
from vkml.ops.checks import optional, present, require_dtype, required
from vkml.ops.limits import check_size
from vkml.ops.pointwise import Binary, Form, Variadic, widened
from vkml.ops.upgrading import attributes_to_inputs, renew


def divide(a: Array, b: Array) -> Any:
    """True division of floats; division of integers truncates toward zero and gives 0 for a divisor of 0."""
    if a.dtype.kind in "fc":
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
    if base.dtype.kind == "c":
        return np.power(base, exponent)
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
    if exponent.dtype.kind != "f":
        # What float holds of a large odd exponent is even.
        size = np.power(np.abs(base), exact)
        return np.where(np.signbit(base) & (exponent & 1 != 0), -size, size)
    value = np.power(base, exact)
    is_half = exact == 0.5
    # Where it is repeated, NumPy takes the square root, which differs at -0 and minus infinity.
    return np.where(is_half, _root_power(base), value) if is_half.any() else value


def _root_power(base: Array) -> Any:
    return np.where(np.isneginf(base), math.inf, np.sqrt(base + 0.0)).astype(base.dtype)


_PERIOD = 2**62
"""Exponents that differ by a multiple of it raise odd integers of 64 bits, or fewer, to the same; those of 64
and more raise even ones to 0. So exponents beyond int64 have equals within it."""
_SHORT_PERIOD = 2**30
"""The same of integers of 32 bits and int32."""


def _integer_power(base: Array, exponent: Array) -> Any:
    wide = exponent.astype(np.int64)
    if exponent.dtype == np.uint64:
        wide = np.where(wide < 0, wide & _PERIOD - 1 | _PERIOD, wide)
    raised = np.power(base.astype(np.int64), np.maximum(wide, 0)).astype(base.dtype)
    if not (wide < 0).any():
        return raised
    odd = np.where(wide & 1, base, base * base)
    return np.where(wide >= 0, raised, np.where(np.abs(base) == 1, odd, 0))


def _power_form(base: Scalar, exponent: Scalar) -> Scalar | None:
    if base.dtype.is_complex:
        return scalar.power(base, exponent)
    if base.dtype.is_integer:
        if exponent.dtype.is_float:
            return None
        # Not 64 bits for the sake of an exponent of 32: not every device has them.
        is_wide = exponent.dtype.bits == 64 or (exponent.dtype == UINT32 and base.dtype.bits == 64)
        times = scalar.convert(exponent, INT64 if is_wide else INT32)
        if exponent.dtype in (UINT32, UINT64):
            period = _PERIOD if is_wide else _SHORT_PERIOD
            times = scalar.where(times < 0, times & period - 1 | period, times)
        return scalar.power(base, times)
    if exponent.is_constant and exponent.value in _SHORT_POWERS:
        return _SHORT_POWERS[exponent.value](base)
    if exponent.dtype == FLOAT64 and base.dtype != FLOAT64:
        return scalar.convert(scalar.power(scalar.convert(base, FLOAT64), exponent), base.dtype)
    times = scalar.convert(exponent, base.dtype)
    most = 2 ** (53 if base.dtype == FLOAT64 else 24)
    is_small = exponent.is_constant and abs(exponent.value) <= most
    if exponent.dtype.is_float or exponent.dtype.bits < 32 or is_small:
        return scalar.power(base, times)
    # What float holds of a larger odd exponent is even.
    size = scalar.power(scalar.absolute(base), times)
    is_odd = scalar.compare("not_equal", exponent & 1, 0)
    is_negative = scalar.view(base, INT64 if base.dtype == FLOAT64 else INT32) < 0
    return scalar.where(is_odd & is_negative, -size, size)


def _root(x: Scalar) -> Scalar:
    """The power of a half, which differs from the square root at -0 and minus infinity."""
    return scalar.where(scalar.test("isneginf", x), math.inf, scalar.unary("sqrt", x + 0.0))


def _reciprocal_root(x: Scalar) -> Scalar:
    return scalar.where(scalar.test("isneginf", x), 0.0, 1 / scalar.unary("sqrt", x + 0.0))


_SHORT_POWERS: Mapping[float, Callable[[Scalar], Scalar]] = {
    -1.0: lambda x: 1 / x,
    -0.5: _reciprocal_root,
    0.5: _root,
    1.0: lambda x: x,
    2.0: lambda x: x * x,
    3.0: lambda x: x * x * x,
}


class _Div(Binary):
    """Quotients; those of integers are rounded toward 0."""

    def saved(self, node: Node, tracks: Sequence[bool]) -> tuple[Collection[int], Collection[int]]:
        return (0, 1) if tracks[1] else (1,), ()


class _Pow(Binary):
    """Power; base and exponent may have different types. Short known powers are products and roots."""

    form_hangs_on_numbers = True

    def saved(self, node: Node, tracks: Sequence[bool]) -> tuple[Collection[int], Collection[int]]:
        return (0, 1), (0,) if tracks[1] else ()

    def infer(self, node: Node, inputs: Sequence[Known | None]) -> list[TensorType]:
        base, exponent = required(node, inputs, 0), required(node, inputs, 1)
        require_types(node, [base], self.taken)
        require_types(node, [exponent], (base.dtype,) if base.dtype.is_complex else NUMBERS)
        return [check_size(node, base.dtype, broadcast_shapes(node, base.dims, exponent.dims))]


def _remainder_form(x: Scalar, y: Scalar, fmod: int) -> Scalar:
    return scalar.binary("fmod" if fmod else "mod", x, y)


def _folded(operation: str) -> Form:
    """The form of an operation of two inputs applied from left to right."""
    return lambda *inputs: functools.reduce(lambda x, y: scalar.binary(operation, x, y), inputs)


def _mean_form(*inputs: Scalar) -> Scalar:
    return functools.reduce(operators.add, inputs) / len(inputs)


def _sum(*arrays: Array) -> Any:
    return functools.reduce(np.add, arrays)


register(
    Binary("Add", np.add, operators.add, NUMBERS, neutral_elements={0: -0.0, 1: -0.0}, takes_complex=True)
)
register(Binary("Sub", np.subtract, operators.sub, NUMBERS, neutral_elements={1: 0.0}, takes_complex=True))
register(
    Binary("Mul", np.multiply, operators.mul, NUMBERS, neutral_elements={0: 1.0, 1: 1.0}, takes_complex=True)
)
register(_Div("Div", divide, operators.truediv, NUMBERS, neutral_elements={1: 1.0}, takes_complex=True))
register(Binary("Mod", remainder, _remainder_form, NUMBERS, attributes={"fmod": 0}))
register(_Pow("Pow", power, _power_form, (*FLOATS, INT32, INT64), takes_complex=True))
register(Variadic("Max", lambda *arrays: functools.reduce(np.maximum, arrays), _folded("maximum"), NUMBERS))
register(Variadic("Min", lambda *arrays: functools.reduce(np.minimum, arrays), _folded("minimum"), NUMBERS))
register(Variadic("Sum", _sum, _folded("add"), FLOATS, takes_complex=True))
register(Variadic("Mean", lambda *arrays: _sum(*arrays) / len(arrays), _mean_form, FLOATS))


def clip_limits(dtype: DType) -> tuple[float, float] | None:
    """What Clip limits floats to where a bound is absent: the type's finite numbers; None for other types."""
    if not dtype.is_float:
        return None
    largest = float(finfo(dtype).max)
    return -largest, largest


@operator()
class Clip(Operator):
    """Limits to [min, max]; NaN stays NaN, and where min > max everything becomes max.

    Without a bound infinity becomes the type's largest number, as ONNX says.
    """

    inputs = (1, 3)
    is_pointwise = True
    attribute_types = {"consumed_inputs": INTS, "max": FLOAT, "min": FLOAT}

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
        data = widened(present(inputs, 0))
        low, high = optional(inputs, 1), optional(inputs, 2)
        dtype = present(inputs, 0).dtype
        limits = clip_limits(from_numpy(dtype)) or (None, None)
        with np.errstate(all="ignore"):
            bounds: list[Any] = [
                limit if bound is None else bound.astype(data.dtype)
                for bound, limit in zip((low, high), limits, strict=True)
            ]
            if all(bound is None for bound in bounds):
                return [present(inputs, 0)]
            # A bound is one number, which comes as a scalar, as [1] or, in fused chains, many times.
            return [np.asarray(np.clip(data, *bounds)).reshape(data.shape).astype(dtype, copy=False)]

    def scalar(
        self, node: Node, arguments: Sequence[Scalar | None], types: Sequence[DType | None], result: DType
    ) -> Scalar | None:
        value = present(arguments, 0)
        limits = clip_limits(result)
        for index, operation in ((1, "maximum"), (2, "minimum")):
            bound = optional(arguments, index)
            if bound is not None:
                value = scalar.binary(operation, value, scalar.convert(bound, value.dtype))
            elif limits is not None:
                value = scalar.binary(operation, value, limits[index - 1])
        return value

    def slope(
        self, node: Node, form: Scalar, arguments: Sequence[Scalar | None], position: int
    ) -> Scalar | None:
        value = present(arguments, 0)
        low, high = (
            None if bound is None else scalar.convert(bound, value.dtype)
            for bound in (optional(arguments, 1), optional(arguments, 2))
        )
        if position == 0:
            # What lies on a bound passes.
            tests = [
                scalar.compare(operation, value, bound)
                for operation, bound in (("greater_equal", low), ("less_equal", high))
                if bound is not None
            ]
        elif position == 1:
            assert low is not None
            tests = [value < low] if high is None else [value < low, low < high]
        else:
            assert high is not None
            above = value > high
            tests = [above] if low is None else [above | (high < low)]
        one = scalar.constant(1.0, form.dtype)
        return scalar.where(functools.reduce(operators.and_, tests), one, 0.0) if tests else one
