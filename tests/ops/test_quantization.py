"""QuantizeLinear, DequantizeLinear, DynamicQuantizeLinear, QLinearMatMul and QLinearConv."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.ops.checking import Array, check_operator, inferred_types, run_operator
from vkml.errors import InvalidGraph, ShapeError

RANDOM = np.random.default_rng(90)


def integers(dtype: Any, *shape: int) -> Array:
    bounds = ml_dtypes.iinfo(dtype)
    return RANDOM.integers(int(bounds.min), int(bounds.max) + 1, shape).astype(dtype)


def reals(*shape: int, dtype: Any = np.float32) -> Array:
    return (RANDOM.standard_normal(shape) * 40).astype(dtype)


def scales(*shape: int, dtype: Any = np.float32) -> Array:
    return (RANDOM.random(shape) + 0.25).astype(dtype)


LAYOUTS: list[tuple[tuple[int, ...], dict[str, int]]] = [
    ((), {}),
    ((1,), {}),
    ((3,), {}),
    ((3,), {"axis": -3}),
    ((5,), {"axis": -1}),
    ((2, 3, 4, 2), {"axis": 3, "block_size": 3}),
    ((1, 3, 4, 5), {"axis": 0, "block_size": 2}),
]


@pytest.mark.parametrize(("layout", "attributes"), LAYOUTS)
def test_scales(layout: tuple[int, ...], attributes: dict[str, int]) -> None:
    x, scale, zero = reals(2, 3, 4, 5), scales(*layout), integers(np.uint8, *layout)
    check_operator("QuantizeLinear", [x, scale, zero], attributes, opset=21)
    check_operator("QuantizeLinear", [x, scale], attributes, opset=21)
    steps = integers(np.uint8, 2, 3, 4, 5)
    check_operator("DequantizeLinear", [steps, scale, zero], attributes, opset=21)
    check_operator("DequantizeLinear", [steps, scale], attributes, opset=21)


@pytest.mark.parametrize("name", ["int4", "uint4", "int8", "uint8", "int16", "uint16", "int2", "uint2"])
def test_integers(name: str) -> None:
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    zero = integers(dtype)
    for x in (reals(4, 9), reals(4, 9, dtype=np.float16)):
        scale = scales(dtype=x.dtype)
        check_operator("QuantizeLinear", [x, scale, zero], opset=25, against="onnx")
        found = check_operator(
            "DequantizeLinear", [integers(dtype, 4, 9), scale, zero], opset=25, against="onnx"
        )
        assert found[0].dtype == x.dtype


@pytest.mark.parametrize("saturate", [0, 1])
@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"])
def test_float8(name: str, saturate: int) -> None:
    dtype = np.dtype(getattr(ml_dtypes, name))
    x = np.array([0, 1.3, -2.7, 500, -1e6, 1e-9, 3.0625, -0.0], np.float32)
    found = check_operator(
        "QuantizeLinear",
        [x, np.float32(0.5), np.zeros((), dtype)],
        {"saturate": saturate},
        opset=23,
        against="onnx",
    )
    check_operator("DequantizeLinear", [found[0], np.float32(0.5)], opset=23, against="onnx")


def test_what_is_outside_is_the_nearest_step() -> None:
    x = np.array([np.inf, -np.inf, 1e30, -1e30, np.nan, 0.5, 1.5, 2.5], np.float32)
    [found] = run_operator("QuantizeLinear", [x, np.float32(1), np.uint8(3)])
    np.testing.assert_array_equal(found, [255, 0, 255, 0, 0, 3, 5, 5])
    [found] = run_operator("QuantizeLinear", [x, np.float32(1), np.int8(-1)])
    np.testing.assert_array_equal(found, [127, -128, 127, -128, -128, -1, 1, 1])


def test_types_are_stated() -> None:
    x, scale = reals(2, 3), np.float32(0.5)
    [found] = run_operator("QuantizeLinear", [x, scale], {"output_dtype": 5}, opset=23)
    assert found.dtype == np.int16
    [found] = run_operator("DequantizeLinear", [found, scale], {"output_dtype": 10}, opset=23)
    assert found.dtype == np.float16
    wide = np.array([2049], np.float32)  # 2048 in float16
    [found] = run_operator("QuantizeLinear", [wide, np.float16(1), np.int16(0)], opset=23)
    [exact] = run_operator("QuantizeLinear", [wide, np.float16(1), np.int16(0)], {"precision": 1}, opset=23)
    assert (found[0], exact[0]) == (2048, 2049)


def test_a_scale_of_powers_of_two() -> None:
    scale = np.array([0.5, 4], ml_dtypes.float8_e8m0fnu)
    steps = np.array([[3, 6], [-2, 1.5]], ml_dtypes.float4_e2m1fn)
    attributes = {"axis": 0, "output_dtype": 1}
    [found] = run_operator("DequantizeLinear", [steps, scale], attributes, opset=25)
    np.testing.assert_array_equal(found, [[1.5, 3], [-8, 6]])


@pytest.mark.parametrize("shape", [(), (7,), (3, 4), (0,)])
def test_dynamic(shape: tuple[int, ...]) -> None:
    x = reals(*shape)
    if x.size:
        check_operator("DynamicQuantizeLinear", [x], opset=11, outputs=3)
        check_operator("DynamicQuantizeLinear", [np.abs(x)], opset=11, outputs=3)
    steps, scale, zero = run_operator("DynamicQuantizeLinear", [np.zeros_like(x)], outputs=3)
    assert scale == 1 and zero == 0 and not steps.any()


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize(
    ("a", "b", "rows", "columns"),
    [
        ((3, 7), (7, 5), (), ()),
        ((2, 3, 7), (7, 5), (), (5,)),
        ((2, 3, 7), (2, 7, 5), (2, 3, 1), (2, 1, 5)),
        ((3, 7), (7,), (3,), ()),
        ((7,), (7, 5), (), (1, 5)),
    ],
)
def test_products(
    dtype: Any, a: tuple[int, ...], b: tuple[int, ...], rows: tuple[int, ...], columns: tuple[int, ...]
) -> None:
    left, right = integers(dtype, *a), integers(dtype, *b)
    of_a = [scales(*rows), integers(dtype, *rows)]
    of_b = [scales(*columns), integers(dtype, *columns)]
    [found] = run_operator("QLinearMatMul", [left, *of_a, right, *of_b, np.float32(99), dtype(7)])
    if rows == (3,):
        of_a = [array[:, None] for array in of_a]
    factors = [(x.astype(np.float64) - zero) * scale for x, (scale, zero) in ((left, of_a), (right, of_b))]
    expected = np.clip(np.rint(factors[0] @ factors[1] / 99) + 7, *(np.iinfo(dtype).min, np.iinfo(dtype).max))
    np.testing.assert_array_equal(found, expected)
    if not rows:
        check_operator("QLinearMatMul", [left, *of_a, right, *of_b, np.float32(99), dtype(7)], opset=21)


def test_products_of_float8() -> None:
    a, b = (RANDOM.standard_normal(shape).astype(ml_dtypes.float8_e4m3fn) for shape in ((3, 4), (4, 5)))
    zero, scale = np.zeros((), a.dtype), np.float32(0.5)
    [found] = run_operator("QLinearMatMul", [a, scale, zero, b, scale, zero, np.float32(0.25), zero])
    expected = (a.astype(np.float32) @ b.astype(np.float32)).astype(a.dtype)
    np.testing.assert_array_equal(found.astype(np.float32), expected.astype(np.float32))


@pytest.mark.parametrize("columns", [(), (6,)])
def test_convolutions(columns: tuple[int, ...]) -> None:
    x, weight, bias = integers(np.uint8, 2, 4, 7, 6), integers(np.int8, 6, 2, 3, 2), integers(np.int16, 6)
    inputs = [x, np.float32(0.5), np.uint8(120), weight, scales(*columns), np.zeros(columns, np.int8)]
    attributes = {"group": 2, "pads": (1, 0, 2, 1), "strides": (2, 1)}
    result = [np.float32(70), np.uint8(111)]
    check_operator("QLinearConv", [*inputs, *result, bias.astype(np.int32)], attributes, opset=10)
    check_operator("QLinearConv", [*inputs, *result], attributes, opset=10)


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "error", "words"),
    [
        ("QuantizeLinear", [reals(2, 3), scales(2)], {}, ShapeError, r"scale of shape \[2\] .* \[2, 3\]"),
        ("QuantizeLinear", [reals(2, 3), scales(2, 2)], {"block_size": 3}, ShapeError, r"\[2, 1\] for"),
        ("QuantizeLinear", [reals(2), scales()], {"output_dtype": 1}, InvalidGraph, "float is none of"),
        ("DequantizeLinear", [integers(np.int8, 2), scales(), np.uint8(1)], {}, InvalidGraph, "uint8"),
        (
            "DequantizeLinear",
            [integers(np.int8, 2), np.ones((), ml_dtypes.float8_e8m0fnu)],
            {},
            InvalidGraph,
            "output_dtype",
        ),
    ],
)  # fmt: skip
def test_errors(op: str, inputs: list[Array], attributes: dict[str, Any], error: type, words: str) -> None:
    with pytest.raises(error, match=words):
        inferred_types(op, inputs, attributes, opset=25)
