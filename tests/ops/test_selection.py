"""Operators that choose or mark elements by value, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vkml
from tests.ops.checking import check_operator, inferred_types, random_array, run_operator
from vkml.engine.sketch import Sketch
from vkml.errors import ShapeError
from vkml.ir import TensorType, dtypes, static
from vkml.onnx import save_graph


def _array(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return random_array(np.random.default_rng(0), dtype, shape)


def _list(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


@pytest.mark.parametrize("axis", [-1, 0, 1])
@pytest.mark.parametrize(
    ("index_type", "value_type"), [(np.int64, np.float32), (np.float32, np.int64), (np.int64, np.int64)]
)
def test_one_hot(axis: int, index_type: type, value_type: type) -> None:
    indices = np.array([[0, 3, -1], [7, -5, 2]]).astype(index_type)
    depth, values = np.array(4, np.int64), np.array([2, 5], value_type)
    check_operator("OneHot", [indices, depth, values], {"axis": axis}, opset=11)


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_one_hot_of_what_is_no_number(device_name: str, dtype: type, depth: int) -> None:
    sketch = Sketch("one_hot")
    x = sketch.input("x", (5,), dtypes.from_numpy(np.dtype(dtype)))
    values = sketch.constant(np.array([-1, 1], np.float32))
    hot = sketch.node("OneHot", x, sketch.constant(np.array(depth)), values)
    model = save_graph(sketch.finish(hot))
    assert model is not None
    indices = np.array([np.nan, 0, np.inf, -np.inf, -1], dtype)
    [found] = vkml.InferenceSession(model, devices=device_name).run(None, {"x": indices})
    wanted = np.full((5, depth), -1, np.float32)
    wanted[1, 0] = wanted[4, depth - 1] = 1
    np.testing.assert_array_equal(found, wanted)


def test_one_hot_scalar_and_errors() -> None:
    found = run_operator("OneHot", [np.array(1), np.array([3]), np.array([0, 1], np.float32)])[0]
    np.testing.assert_array_equal(found, [0, 1, 0])
    unknown = inferred_types("OneHot", [_list(1, 2), static(dtypes.INT64, ()), np.array([0, 1])])
    assert unknown == [TensorType(dtypes.INT64, (2, None))]
    with pytest.raises(ShapeError, match="depth is -2"):
        inferred_types("OneHot", [_list(1), np.array(-2), np.array([0, 1])])
    with pytest.raises(ShapeError, match="bytes"):
        inferred_types("OneHot", [_list(1), np.array(2**50), np.array([0, 1])])


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.bool_, np.uint8])
@pytest.mark.parametrize("shape", [(7,), (3, 4), (2, 3, 4), (0, 3)])
def test_non_zero(dtype: type, shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(6).integers(0, 2, shape).astype(dtype)
    check_operator("NonZero", [x], opset=13)
    unknown = inferred_types("NonZero", [static(dtypes.from_numpy(x.dtype), shape)])
    assert unknown == [TensorType(dtypes.INT64, (len(shape), None))]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.int32, np.uint8])
@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_top_k(dtype: type, largest: int, axis: int) -> None:
    # Few distinct values: ties must be won by the first.
    x = np.random.default_rng(7).integers(0, 5, (6, 5, 7)).astype(dtype)
    check_operator("TopK", [x, _list(4)], {"axis": axis, "largest": largest}, opset=11, outputs=2)


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.uint8])
@pytest.mark.parametrize("largest", [0, 1])
def test_top_k_of_long_rows_selects_before_it_sorts(dtype: type, largest: int) -> None:
    x = np.random.default_rng(9).integers(0, 40, (3, 200, 2)).astype(dtype)
    check_operator("TopK", [x, _list(17)], {"axis": 1, "largest": largest}, opset=11, outputs=2)


def test_top_k_counts_what_is_not_a_number_as_greatest() -> None:
    x = np.arange(40, dtype=np.float32)
    x[7] = np.nan
    values, places = run_operator("TopK", [x, _list(2)], outputs=2)
    assert places.tolist() == [7, 39]
    assert values[1] == 39


def test_top_k_forms_and_errors() -> None:
    x = _array(3, 6)
    check_operator("TopK", [x], {"k": 2, "axis": 1}, opset=1, outputs=2)
    check_operator("TopK", [x, _list(2)], {"axis": 0}, opset=10, outputs=2)
    check_operator("TopK", [x, _list(0)], opset=11, outputs=2)
    unknown = inferred_types("TopK", [x, static(dtypes.INT64, (1,))], outputs=2)
    assert [found.shape for found in unknown] == [(3, None)] * 2
    for k in (7, -1):
        with pytest.raises(ShapeError, match=f"k is {k}, axis 1 has 6"):
            inferred_types("TopK", [x, _list(k)])


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_compress(axis: int | None) -> None:
    check_operator("Compress", [_array(3, 4), np.array([True, False, True])], {"axis": axis}, opset=11)
    longer = np.array([True] * 20)
    assert run_operator("Compress", [_array(3, 4), longer], {"axis": axis})[0].size == 12


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("is_sorted", [0, 1])
def test_unique(axis: int | None, is_sorted: int) -> None:
    x = np.random.default_rng(8).integers(0, 2, (4, 4)).astype(np.float32)
    check_operator("Unique", [x], {"axis": axis, "sorted": is_sorted}, opset=11, outputs=4)


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("is_sorted", [0, 1])
def test_unique_texts(axis: int | None, is_sorted: int) -> None:
    texts = np.array([["b", "a", "b"], ["", "c", ""]], object)
    attributes = {"axis": axis, "sorted": is_sorted}
    for x in (texts, texts[[1, 0, 1]]):
        check_operator("Unique", [x], attributes, opset=11, outputs=4)
