"""Elementwise operators on Vulkan: every operator and element type, broadcasting, strides, special values."""

from __future__ import annotations

import numpy as np
import pytest

from tests.vulkan_cases import Array, Cases, Fixed
from vkml.ir.dtypes import DType
from vkml.ir.operator import REGISTRY
from vkml.ops.pointwise import Pointwise

FLOATS = ("float32", "float16")
NUMBERS = (*FLOATS, "int32", "int64", "uint32", "uint64", "int8", "uint8", "int16", "uint16")
BINARY = ("Add", "Sub", "Mul", "Div", "Max", "Min", "Mean", "Sum")
UNARY = (
    *(
        "Abs",
        "Neg",
        "Sign",
        "Ceil",
        "Floor",
        "Round",
        "Reciprocal",
        "Sqrt",
        "Exp",
        "Log",
        "Erf",
        "Sin",
        "Cos",
    ),
    *("Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Tanh", "Asinh", "Acosh", "Atanh", "IsNaN", "IsInf"),
    *("Relu", "LeakyRelu", "ThresholdedRelu", "Shrink", "Elu", "Celu", "Selu", "Sigmoid", "HardSigmoid"),
    *("HardSwish", "Swish", "Gelu", "Mish", "Softplus", "Softsign", "BitwiseNot", "Identity"),
)
COMPARISONS = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
BITWISE = ("BitwiseAnd", "BitwiseOr", "BitwiseXor")


def allows(op: str, name: str) -> bool:
    spec = REGISTRY["", op]
    if not isinstance(spec, Pointwise):
        return True
    allowed: tuple[DType, ...] = spec.allowed
    return any(dtype.storage == np.dtype(name) for dtype in allowed)


def two(cases: Cases, name: str, other: str = "") -> tuple[Array, Array]:
    """Two arrays that broadcast with each other."""
    shape = cases.shape()
    shapes = [cases.broadcastable(shape), shape]
    cases.random.shuffle(shapes)
    return cases.array(name, shapes[0], special=True), cases.array(other or name, shapes[1], special=True)


@pytest.mark.parametrize("is_strided", [False, True], ids=["dense", "strided"])
def test_arithmetic(device_name: str, is_strided: bool) -> None:
    cases = Cases(1)
    for op in BINARY:
        for name in NUMBERS:
            if allows(op, name):
                cases.add(op, *two(cases, name))
    cases.check(device_name, is_strided=is_strided)


def test_functions_of_one_number(device_name: str) -> None:
    cases = Cases(2)
    for op in UNARY:
        for name in FLOATS:
            if allows(op, name):
                cases.add(
                    op,
                    cases.array(name, cases.shape(), special=True),
                    atol=1e-6 if name == FLOATS[0] else None,
                )
    for op in ("LeakyRelu", "Elu", "Celu", "ThresholdedRelu", "Swish"):
        cases.add(op, cases.array("float32", (37,)), alpha=0.3, atol=1e-6)
    cases.add("Gelu", cases.array("float32", (37,)), approximate="tanh", atol=1e-6)
    cases.add("Shrink", cases.array("float32", (37,)), lambd=1.0, bias=0.5)
    cases.add("IsInf", cases.array("float32", (37,), special=True), detect_negative=0)
    cases.add("IsInf", cases.array("float32", (37,), special=True), detect_positive=0)
    cases.check(device_name)


def test_functions_of_one_integer(device_name: str) -> None:
    cases = Cases(3)
    for op in ("Abs", "Neg", "Sign", "Relu", "BitwiseNot", "Identity", "Shrink"):
        for name in NUMBERS[2:]:
            if allows(op, name):
                cases.add(op, cases.array(name, cases.shape(), special=True))
    cases.check(device_name, is_strided=True)


def test_comparisons_and_logic(device_name: str) -> None:
    cases = Cases(4)
    for op in COMPARISONS:
        for name in NUMBERS:
            a, b = two(cases, name)
            b = b.copy()
            b.reshape(-1)[::2] = a.reshape(-1)[0]
            cases.add(op, a, b)
    for op in ("And", "Or", "Xor", "Equal"):
        cases.add(op, *two(cases, "bool"))
    cases.add("Not", cases.array("bool", (3, 5, 7)))
    cases.check(device_name)


def test_bits(device_name: str) -> None:
    cases = Cases(5)
    for name in NUMBERS[2:]:
        for op in BITWISE:
            cases.add(op, *two(cases, name))
        for direction in ("LEFT", "RIGHT"):
            shift = cases.random.integers(0, np.dtype(name).itemsize * 8 + 2, (5, 6)).astype(name)
            cases.add("BitShift", cases.array(name, (5, 6), special=True), shift, direction=direction)
    cases.check(device_name, is_strided=True)


def test_powers_and_remainders(device_name: str) -> None:
    cases = Cases(6)
    for name in FLOATS:
        cases.add("Pow", *two(cases, name))
        for exponent in (2.0, 3.0, 0.5, -1.0, 0.0):
            # NumPy takes square roots for 0.5, of -inf too, where pow is infinite.
            base = cases.array(name, (5, 7), special=True)
            cases.add("Pow", np.abs(base) if exponent == 0.5 else base, Fixed(np.array(exponent, name)))
        cases.add("Mod", *two(cases, name), fmod=1)
    cases.add("Pow", cases.array("float32", (6, 5)), cases.random.integers(-3, 4, (6, 5)).astype("int32"))
    cases.add("Pow", cases.array("float32", (6, 5)), Fixed(np.array(2, np.int64)))
    for name in ("int32", "int64"):
        cases.add("Pow", *two(cases, name))
        for exponent in (np.uint32(2**32 - 2), np.uint64(2**64 - 1)):
            cases.add("Pow", cases.array(name, (4, 5)), np.full((4, 5), exponent))
    for name in NUMBERS[2:]:
        cases.add("Mod", *two(cases, name))
        if np.dtype(name).kind == "i":
            cases.add("Mod", *two(cases, name), fmod=1)
    cases.check(device_name)


def test_selection_and_limits(device_name: str) -> None:
    cases = Cases(7)
    for name in (*NUMBERS, "bool"):
        shape = cases.shape(3)
        parts = [cases.array(name, cases.broadcastable(shape), special=True) for _ in range(2)]
        cases.add("Where", cases.array("bool", shape), *parts)
    for name in NUMBERS:
        x = cases.array(name, cases.shape(), special=True)
        low, high = np.array(1, name), np.array(9, name)
        cases.add("Clip", x, low, high)
        cases.add("Clip", x, Fixed(low), Fixed(high))
    cases.add("Clip", cases.array("float32", (4, 5), special=True), None, Fixed(np.array(1, np.float32)))
    cases.add(
        "Clip", cases.array("float32", (4, 5), special=True), np.array(2, np.float32), np.array(1, np.float32)
    )
    cases.add("Clip", cases.array("int32", (4, 5)))
    for name in FLOATS:
        cases.add("PRelu", cases.array(name, (2, 3, 4), special=True), cases.array(name, (3, 1)))
    cases.check(device_name)


@pytest.mark.parametrize("source", [*NUMBERS, "bool"])
def test_casts(device_name: str, source: str) -> None:
    cases = Cases(8)
    for dtype in _castable():
        shape = cases.shape(2)
        x = cases.array(source, shape, special=True)
        if np.dtype(source).kind == "f" and dtype.kind in "iu":
            # What does not fit has no stated result.
            x = np.where(np.isfinite(x) & (np.abs(x) < 1000), x, np.array(3, source)).astype(source)
            if dtype.kind == "u":
                x = np.abs(x)
        cases.add("Cast", x, to=dtype.code)
    cases.add("CastLike", cases.array(source, (4, 3)), np.zeros((2,), np.float32))
    cases.check(device_name)


def _castable() -> list[DType]:
    from vkml.ir import dtypes

    return [dtypes.from_numpy(np.dtype(name)) for name in (*NUMBERS, "bool")]


def test_empty_scalar_and_single_tensors(device_name: str) -> None:
    cases = Cases(9)
    for name in ("float32", "int32", "int64", "float16"):
        cases.add("Add", cases.array(name, (0, 3)), cases.array(name, (3,)))
        cases.add("Add", cases.array(name, (2, 0, 3)), cases.array(name, ()))
        cases.add("Add", cases.array(name, ()), cases.array(name, ()))
        cases.add("Mul", cases.array(name, (1, 1, 1, 1, 1)), cases.array(name, (1,)))
        cases.add("Abs", cases.array(name, (0,)))
    cases.add("Max", cases.array("float32", (3, 4)))
    cases.add(
        "Sum", *(cases.array("float32", shape) for shape in ((3, 4), (4,), (1, 1), (), (3, 1), (2, 1, 4)))
    )
    cases.check(device_name)


def test_vector_widths_and_many_dimensions(device_name: str) -> None:
    """Sizes round the widths of vector accesses; ranks up to 6 that do not collapse."""
    cases = Cases(10)
    for name in ("float32", "float16", "int8", "int64"):
        for size in (1, 2, 3, 4, 8, 16, 17, 255, 256, 257):
            cases.add("Add", cases.array(name, (size,)), cases.array(name, (size,)))
    for name in ("float32", "float16"):
        shape = (2, 3, 2, 4, 2, 8)
        alternating = tuple(size if axis % 2 else 1 for axis, size in enumerate(shape))
        cases.add("Mul", cases.array(name, shape), cases.array(name, alternating))
        cases.add("Mul", cases.array(name, (5, 1, 8)), cases.array(name, (1, 3, 1)))
        cases.add("Sub", cases.array(name, (5, 6, 16)), cases.array(name, (6, 1)))
    cases.add("Add", cases.array("float32", (300, 1)), cases.array("float32", (1, 500)))
    cases.check(device_name)
