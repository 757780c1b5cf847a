"""Operators that cut, join and repeat tensors, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ops.checking import check_operator, inferred_types, random_array, run_operator
from vkml.errors import InvalidGraph, ShapeError
from vkml.ir import TensorType, dtypes, static


def _array(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return random_array(np.random.default_rng(0), dtype, shape)


def _list(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int64, np.uint8, np.bool_])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_concat(dtype: type, axis: int) -> None:
    shapes = [[2, 3, 4] for _ in range(3)]
    for index, length in enumerate((1, 5, 0)):
        shapes[index][axis] = length
    check_operator("Concat", [_array(*shape, dtype=dtype) for shape in shapes], {"axis": axis}, opset=13)


def test_concat_of_strings_and_of_opset_1() -> None:
    words = np.array([["a", "b"]], dtype=object)
    check_operator("Concat", [words, words], {"axis": 0}, opset=13)
    assert run_operator("Concat", [_array(2, 1), _array(2, 3)], opset=1)[0].shape == (2, 4)


def test_concat_errors() -> None:
    with pytest.raises(ShapeError, match=r"input 1 of shape \[2, 4\]"):
        inferred_types("Concat", [_array(3, 3), _array(2, 4)], {"axis": 0})
    with pytest.raises(ShapeError, match=r"input 1 of shape \[3\]"):
        inferred_types("Concat", [_array(3, 3), _array(3)], {"axis": 0})
    with pytest.raises(InvalidGraph, match="int64"):
        inferred_types("Concat", [_array(3), _array(3, dtype=np.int64)], {"axis": 0})


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_split(axis: int) -> None:
    x = _array(6, 6, 6)
    check_operator("Split", [x], {"axis": axis, "split": (1, 2, 3)}, opset=11, outputs=3)
    check_operator("Split", [x], {"axis": axis}, opset=11, outputs=3)
    check_operator("Split", [x, _list(4, 0, 2)], {"axis": axis}, opset=13, outputs=3)
    check_operator("Split", [_array(7, 7, 7)], {"axis": axis, "num_outputs": 4}, opset=18, outputs=4)
    check_operator("Split", [_array(7, 7, 7)], {"axis": axis, "num_outputs": 3}, opset=18, outputs=3)


def test_split_errors() -> None:
    with pytest.raises(ShapeError, match=r"\[1, 2\].*size 4"):
        inferred_types("Split", [_array(4), _list(1, 2)], outputs=2)
    with pytest.raises(ShapeError, match="-1"):
        inferred_types("Split", [_array(4), _list(5, -1)], outputs=2)
    with pytest.raises(InvalidGraph, match="num_outputs is 3"):
        inferred_types("Split", [_array(4)], {"num_outputs": 3}, outputs=2)
    unknown = inferred_types("Split", [_array(4, 3), static(dtypes.INT64, (2,))], outputs=2)
    assert unknown == [TensorType(dtypes.FLOAT32, (None, 3))] * 2


@pytest.mark.parametrize("seed", range(60))
def test_random_slice(seed: int) -> None:
    generator = np.random.default_rng(seed)
    rank = int(generator.integers(1, 5))
    shape = tuple(int(s) for s in generator.integers(0 if seed % 10 == 0 else 1, 7, rank))
    count = int(generator.integers(1, rank + 1))
    axes = generator.permutation(rank)[:count] - rank * generator.integers(0, 2, count)
    bounds = [*range(-9, 10), 2**31 - 1, -(2**31), 2**63 - 1, -(2**63)]
    starts, ends = (
        np.array([bounds[i] for i in generator.integers(0, len(bounds), count)]) for _ in range(2)
    )
    steps = np.array([[-3, -2, -1, 1, 2, 3][i] for i in generator.integers(0, 6, count)])
    # onnxruntime reads an end of INT_MAX as "to the end" backwards too, where the specification clamps it.
    ends = np.where((steps < 0) & (ends >= 2**31 - 1), 100, ends)
    x = random_array(generator, np.float32, shape)
    check_operator("Slice", [x, starts, ends, axes.astype(np.int64), steps], opset=13)
    if count == rank:
        check_operator("Slice", [x, starts, ends], opset=13)


def test_slice_clamps_by_the_specification() -> None:
    x = _array(5)
    backwards = [_list(-9), _list(-(2**63)), _list(0), _list(-1)]
    np.testing.assert_array_equal(run_operator("Slice", [x, *backwards])[0], x[:1])
    assert run_operator("Slice", [x, _list(1), _list(2**63 - 1), _list(0), _list(-1)])[0].size == 0


def test_slice_forms() -> None:
    x = _array(5, 6)
    check_operator("Slice", [x], {"starts": (1, -3), "ends": (4, 100)}, opset=9)
    check_operator("Slice", [x], {"starts": (-2,), "ends": (2**31,), "axes": (1,)}, opset=1)
    int32 = [np.array([value], np.int32) for value in (4, -100, 0, -2)]
    check_operator("Slice", [x, *int32], opset=10)
    words = np.array(["a", "b", "c"], dtype=object)
    check_operator("Slice", [words, _list(2), _list(-9), _list(0), _list(-1)], opset=13)
    assert run_operator("Slice", [x, _list(-1), _list(-9), _list(0), _list(-1)])[0].flags.c_contiguous


def test_slice_errors() -> None:
    x = _array(5, 6)
    with pytest.raises(ShapeError, match="step along axis 1 is 0"):
        inferred_types("Slice", [x, _list(0), _list(1), _list(1), _list(0)])
    with pytest.raises(ShapeError, match="equally many"):
        inferred_types("Slice", [x, _list(0), _list(1, 2), _list(1)])
    with pytest.raises(ShapeError, match="axis 2"):
        inferred_types("Slice", [x, _list(0), _list(1), _list(2)])
    unknown = inferred_types("Slice", [x, static(dtypes.INT64, (1,)), _list(3), _list(1)])
    assert unknown == [TensorType(dtypes.FLOAT32, (5, None))]
