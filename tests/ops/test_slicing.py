"""Operators that cut, join and repeat tensors, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ops.checking import check_operator, inferred_types, random_array, run_operator
from vkml.errors import IndexOutOfRange, InvalidGraph, ShapeError
from vkml.ir import Constant, TensorType, dtypes, static


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
    starts, ends = (np.array([bounds[i] for i in generator.integers(0, len(bounds), count)]) for _ in range(2))
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


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
def test_random_pad(seed: int, mode: str) -> None:
    generator = np.random.default_rng(seed)
    rank = int(generator.integers(1, 4))
    shape = tuple(int(s) for s in generator.integers(4, 7, rank))
    pads = generator.integers(-2 if mode == "constant" else 0, 4, 2 * rank).astype(np.int64)
    x = random_array(generator, np.float32, shape)
    fill = np.array(2.5, np.float32)
    opset = 19 if mode == "wrap" else 13
    check_operator("Pad", [x, pads, fill] if mode == "constant" else [x, pads], {"mode": mode}, opset=opset)


@pytest.mark.parametrize("mode", ["edge", "reflect"])
def test_pad_crops_before_it_repeats(mode: str) -> None:
    # One axis cut at one end and padded at the other: what is repeated is what is left.
    check_operator("Pad", [_array(6, 5), _list(-2, 1, 3, -1)], {"mode": mode}, opset=13)


def test_pad_forms() -> None:
    x = _array(2, 3)
    check_operator("Pad", [x], {"pads": (0, 1, 2, 0), "value": 1.5}, opset=2)
    old = run_operator("Pad", [x], {"paddings": (0, 1, 2, 0), "value": 1.5}, opset=1)[0]
    np.testing.assert_array_equal(old, np.pad(x, ((0, 2), (1, 0)), constant_values=1.5))
    half = run_operator("Pad", [x.astype(np.float16)], {"pads": (0, 1, 2, 0)}, opset=2)[0]
    assert half.dtype == np.float16
    check_operator("Pad", [x, _list(1, 2), None, _list(-1)], {"mode": "edge"}, opset=18)
    check_operator("Pad", [x, _list(1, 2), np.array(3, np.float32), _list(0)], opset=18)
    check_operator("Pad", [np.array([True]), _list(1, 1), np.array(True)], opset=13)
    check_operator("Pad", [_array(0, 2), _list(1, 0, 1, 0)], opset=13)
    bits = Constant(dtypes.BFLOAT16, (2,), np.array([1, 2], np.uint16))
    np.testing.assert_array_equal(run_operator("Pad", [bits, _list(1, 0)])[0], [0, 1, 2])


def test_reflect_beyond_the_tensor_keeps_reflecting() -> None:
    x = np.arange(3, dtype=np.float32)
    found = run_operator("Pad", [x, _list(5, 4)], {"mode": "reflect"})[0]
    np.testing.assert_array_equal(found, np.pad(x, (5, 4), mode="reflect"))
    single = run_operator("Pad", [x[:1], _list(2, 1)], {"mode": "reflect"})[0]
    np.testing.assert_array_equal(single, [0, 0, 0, 0])


def test_pad_errors() -> None:
    with pytest.raises(ShapeError, match="3 entries for 1 axes"):
        inferred_types("Pad", [_array(2), _list(0, 1, 2)])
    with pytest.raises(ShapeError, match="leave -1"):
        inferred_types("Pad", [_array(2), _list(-2, -1)])
    with pytest.raises(ShapeError, match="leave 0"):
        inferred_types("Pad", [_array(0), _list(1, 0)], {"mode": "edge"})
    with pytest.raises(ShapeError, match="bytes"):
        inferred_types("Pad", [_array(2), _list(2**61, 2**61)])
    with pytest.raises(InvalidGraph, match="mode"):
        inferred_types("Pad", [_array(2), _list(1, 1)], {"mode": "mirror"})


@pytest.mark.parametrize("repeats", [(1, 1), (2, 3), (0, 2), (3, 1)])
@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.bool_])
def test_tile(repeats: tuple[int, ...], dtype: type) -> None:
    check_operator("Tile", [_array(2, 3, dtype=dtype), _list(*repeats)], opset=13)


def test_tile_errors() -> None:
    with pytest.raises(ShapeError, match=r"repeats \[2\]"):
        inferred_types("Tile", [_array(2, 3), _list(2)])
    with pytest.raises(ShapeError, match="repeats"):
        inferred_types("Tile", [_array(2), _list(-1)])
    with pytest.raises(ShapeError, match="bytes"):
        inferred_types("Tile", [_array(2), _list(2**62)])


def test_tile_of_opset_1_repeats_one_axis() -> None:
    x = _array(2, 3)
    found = run_operator("Tile", [x, np.array(3, np.float32), np.array(1, np.float32)], opset=1)[0]
    np.testing.assert_array_equal(found, np.tile(x, (1, 3)))


@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("k", [None, 0, 1, -2, 10, -10, 2**63 - 1, -(2**63)])
@pytest.mark.parametrize("shape", [(4, 4), (2, 3, 5), (5, 2), (0, 3)])
def test_trilu(upper: int, k: int | None, shape: tuple[int, ...]) -> None:
    x = _array(*shape)
    against = "onnxruntime" if k is None or abs(k) < 2**40 else "onnx"
    if against == "onnx":
        everything = (k < 0) == bool(upper)
        found = run_operator("Trilu", [x, np.array(k)], {"upper": upper}, opset=14)[0]
        np.testing.assert_array_equal(found, x if everything else np.zeros_like(x))
        return
    check_operator("Trilu", [x] if k is None else [x, np.array(k)], {"upper": upper}, opset=14)


@pytest.mark.parametrize("batch_axis", [0, 1])
def test_reverse_sequence(batch_axis: int) -> None:
    x = _array(4, 4, 3)
    attributes = {"batch_axis": batch_axis, "time_axis": 1 - batch_axis}
    check_operator("ReverseSequence", [x, _list(4, 1, 3, 2)], attributes, opset=10)
    with pytest.raises(IndexOutOfRange, match="sequence length 5 of sequence 2"):
        run_operator("ReverseSequence", [x, _list(4, 1, 5, 2)], attributes)
