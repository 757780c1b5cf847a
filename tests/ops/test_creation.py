"""Operators that make tensors, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vkml
from tests.ops.checking import build_model, check_operator, inferred_types, run_operator
from vkml.errors import InvalidGraph, NotImplemented, ShapeError
from vkml.ir import Constant, Node, TensorType, dtypes, find, static
from vkml.ir.operator import normalise_attributes


def _evaluate_constant(attributes: dict[str, Any]) -> tuple[TensorType, np.ndarray]:
    node = Node("Constant", (), ("y",), attributes)
    spec = find(node)
    node = Node("Constant", (), ("y",), normalise_attributes(node, spec))
    return spec.infer(node, [])[0], spec.evaluate(node, [])[0]


@pytest.mark.parametrize(
    ("attributes", "dtype", "value"),
    [
        ({"value_float": 1.5}, dtypes.FLOAT32, 1.5),
        ({"value_floats": (1.0, 2.0)}, dtypes.FLOAT32, [1.0, 2.0]),
        ({"value_int": -3}, dtypes.INT64, -3),
        ({"value_ints": ()}, dtypes.INT64, []),
        ({"value_string": "a"}, dtypes.STRING, "a"),
        ({"value_strings": ("a", "bc")}, dtypes.STRING, ["a", "bc"]),
        ({"value": Constant(dtypes.BOOL, (1,), np.array([True]))}, dtypes.BOOL, [True]),
    ],
)
def test_constant(attributes: dict[str, Any], dtype: dtypes.DType, value: Any) -> None:
    inferred, found = _evaluate_constant(attributes)
    assert inferred == static(dtype, np.shape(value))
    assert found.dtype == dtype.storage
    assert found.tolist() == value


def test_constant_errors() -> None:
    with pytest.raises(InvalidGraph, match="exactly one"):
        _evaluate_constant({})
    with pytest.raises(InvalidGraph, match="exactly one"):
        _evaluate_constant({"value_int": 1, "value_float": 1.0})
    with pytest.raises(NotImplemented, match="sparse_value"):
        _evaluate_constant({"sparse_value": object()})


@pytest.mark.parametrize("dtype", [None, np.float32, np.float16, np.int64, np.uint8, np.bool_])
@pytest.mark.parametrize("shape", [(2, 3), (0, 2), (), (4,)])
def test_constant_of_shape(dtype: type | None, shape: tuple[int, ...]) -> None:
    attributes = {} if dtype is None else {"value": np.array([1], dtype)}
    check_operator("ConstantOfShape", [np.array(shape, np.int64)], attributes, opset=9)


@pytest.mark.parametrize("shape", [(2**40,), (2**62, 2**62), (2**62, 0), (-1,)])
def test_hostile_constant_of_shape(shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match="'checked'"):
        inferred_types("ConstantOfShape", [np.array(shape, np.int64)])


def test_constant_of_unknown_shape() -> None:
    found = inferred_types("ConstantOfShape", [static(dtypes.INT64, (2,))])
    assert found == [TensorType(dtypes.FLOAT32, (None, None))]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int16, np.int32, np.int64])
@pytest.mark.parametrize(
    ("start", "limit", "delta"), [(0, 5, 1), (1, 10, 3), (10, 0, -3), (0, 0, 1), (5, 1, 1), (-4, 3, 2)]
)
def test_range(dtype: type, start: int, limit: int, delta: int) -> None:
    check_operator("Range", [np.array(value, dtype) for value in (start, limit, delta)], opset=11)


def test_range_of_fractions() -> None:
    many = ((0.0, 1.0, 0.1), (1.0, 0.0, -0.3), (0.1, 0.7, 0.2), (0.0, 1e-30, 1e30))
    # Floats of which the differences are not: rounded to float32, they are a whole number of steps.
    inexact = ((-2e-9, 1.0, 0.25), (2e-9, 1.0, 0.25))
    for values in (*many, *inexact):
        check_operator("Range", [np.array(value, np.float32) for value in values], opset=11, rtol=1e-6)


@pytest.mark.parametrize("values", [(1, 1, -np.inf), (1, 3, np.inf), (3, 1, np.inf), (1, 3, -np.inf)])
def test_a_range_of_infinite_steps_is_empty(values: tuple[float, ...], device_name: str) -> None:
    arrays = [np.array(value, np.float32) for value in values]
    check_operator("Range", arrays, opset=11)
    model = build_model("Range", arrays, opset=11).SerializeToString()
    with vkml.InferenceSession(model, devices=device_name) as session:
        assert session.run(None, {f"x{i}": array for i, array in enumerate(arrays)})[0].shape == (0,)


@pytest.mark.parametrize("stash", [None, 1, 11])
def test_range_in_halves_counts_in_a_wider_type(stash: int | None) -> None:
    values = [np.array(value, np.float16) for value in (1000, 3000, 0.75)]
    check_operator("Range", values, {"stash_type": stash}, opset=27, against="onnx", atol=0)


def test_stash_types_of_range() -> None:
    with pytest.raises(InvalidGraph, match="stash_type 10 is neither 1"):
        inferred_types("Range", [np.array(value, np.float16) for value in (0, 3, 1)], {"stash_type": 10})


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ((0, 2**62, 1), np.int64),
        ((-(2**63), 2**63 - 1, 1), np.int64),
        ((0, 5, 0), np.int64),
        ((0, np.inf, 1), np.float32),
        ((0, np.nan, 1), np.float32),
        ((0, 1, np.nan), np.float32),
        ((-np.inf, 0, -1), np.float32),
        ((0, np.inf, np.inf), np.float32),
        ((0, 1, 1e-30), np.float32),
        ((-3e38, 3e38, 1), np.float32),
        ((-3e38, 3e38, 1e38), np.float32),
        ((0, 1, 0), np.float32),
    ],
)
def test_hostile_range(values: tuple[float, ...], dtype: type) -> None:
    with pytest.raises(ShapeError, match="'checked'"):
        inferred_types("Range", [np.array(value, dtype) for value in values])


@pytest.mark.parametrize("k", [0, 1, -2, 9])
@pytest.mark.parametrize("dtype", [None, 1, 7, 11])
def test_eye_like(k: int, dtype: int | None) -> None:
    check_operator("EyeLike", [np.zeros((3, 4), np.int32)], {"k": k, "dtype": dtype}, opset=9)


@pytest.mark.parametrize(
    ("dtype", "error", "said"),
    [
        (99, InvalidGraph, "element type 99"),
        (27, NotImplemented, "float6e2m3"),
        (8, NotImplemented, "string"),
    ],
)
def test_eye_like_in_types_that_are_not_there(dtype: int, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=f"EyeLike node 'checked': .*{said}"):
        inferred_types("EyeLike", [np.zeros((2, 2), np.float32)], {"dtype": dtype})


def test_eye_like_in_other_types_and_with_hostile_diagonals() -> None:
    found = run_operator("EyeLike", [np.zeros((2, 2), np.float32)], {"dtype": dtypes.BFLOAT16.code})[0]
    np.testing.assert_array_equal(found, np.eye(2))
    for k in (2**63 - 1, -(2**63)):
        assert not run_operator("EyeLike", [np.zeros((2, 3), np.float32)], {"k": k})[0].any()
