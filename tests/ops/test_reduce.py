"""Reductions, ArgMax and ArgMin, running totals."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.checking import assert_same, check_operator, inferred_types, random_array, run_operator
from vkml.errors import InvalidGraph, ShapeError
from vkml.ir import TensorType, dtypes, static

REDUCTIONS = [
    f"Reduce{name}"
    for name in ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare")
]
AXES: list[tuple[int, ...] | None] = [None, (0,), (1,), (-1,), (0, 2), (2, 1), (0, 1, 2)]


def positive(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
    return np.abs(random_array(rng, name, shape, 0.7)) + np.ones((), name)


@pytest.mark.parametrize("op", REDUCTIONS)
@pytest.mark.parametrize("keepdims", [0, 1])
def test_reduction_of_floats(op: str, keepdims: int) -> None:
    rng = np.random.default_rng(len(op))
    for name in ("float32", "float64", "float16"):
        data = positive(rng, name, (3, 4, 5))
        for axes in AXES:
            inputs = [data, None if axes is None else np.array(axes, np.int64)]
            # float16 products and sums of squares round at every step elsewhere.
            loose = 2e-2 if name == "float16" else None
            check_operator(op, inputs, {"keepdims": keepdims}, opset=18, rtol=loose, atol=loose)


@pytest.mark.parametrize("op", REDUCTIONS)
def test_reduction_of_integers(op: str) -> None:
    rng = np.random.default_rng(len(op))
    for name in ("int32", "int64"):
        # Logarithms are cut off to whole numbers.
        data = positive(rng, name, (3, 4, 2)) if "Log" in op else random_array(rng, name, (3, 4, 2))
        for axes in ((1,), (0, 2)):
            check_operator(op, [data, np.array(axes, np.int64)], opset=18)


@pytest.mark.parametrize("op", REDUCTIONS)
def test_axes_as_attribute(op: str) -> None:
    data = positive(np.random.default_rng(1), "float32", (2, 3, 4))
    for opset in (1, 11, 13):
        if op == "ReduceSum" and opset == 13:
            continue
        for axes in ((0,), (1, 2)):
            expected = run_operator(op, [data, np.array(axes, np.int64)], {"keepdims": 0})
            [found] = run_operator(op, [data], {"axes": axes, "keepdims": 0}, opset=opset)
            assert_same(found, expected[0])
        if opset > 1:
            check_operator(op, [data], {"axes": [1], "keepdims": 1}, opset=opset)
        assert run_operator(op, [data], opset=opset)[0].shape == (1, 1, 1)


@pytest.mark.parametrize("op", REDUCTIONS)
def test_no_axes(op: str) -> None:
    data = positive(np.random.default_rng(2), "float32", (2, 3))
    empty = np.array([], np.int64)
    elementwise = {"ReduceLogSum": np.log(data), "ReduceSumSquare": data * data}.get(op, data)
    for axes in (empty, None):
        [found] = run_operator(op, [data, axes], {"noop_with_empty_axes": 1})
        assert_same(found, elementwise)
        [found] = run_operator(op, [data, axes], {"noop_with_empty_axes": 0})
        assert_same(found, run_operator(op, [data, np.array([0, 1])])[0])


@pytest.mark.parametrize("op", REDUCTIONS)
def test_scalar_input(op: str) -> None:
    for keepdims in (0, 1):
        [found] = run_operator(op, [np.array(2.5, np.float32)], {"keepdims": keepdims})
        assert found.shape == ()


NOTHING = {
    "ReduceSum": 0, "ReduceProd": 1, "ReduceMax": -np.inf, "ReduceMin": np.inf, "ReduceMean": np.nan,
    "ReduceL1": 0, "ReduceL2": 0, "ReduceSumSquare": 0, "ReduceLogSum": -np.inf, "ReduceLogSumExp": -np.inf,
}  # fmt: skip


@pytest.mark.parametrize("op", REDUCTIONS)
def test_reduction_over_nothing(op: str) -> None:
    [found] = run_operator(op, [np.zeros((2, 0, 3), np.float32), np.array([1])])
    assert_same(found, np.full((2, 1, 3), NOTHING[op], np.float32))
    [found] = run_operator(op, [np.zeros((2, 0, 3), np.float32), np.array([0])], {"keepdims": 0})
    assert found.shape == (0, 3)


def test_maximum_over_no_integers_or_bools_is_the_least_value() -> None:
    for name, least, greatest in (("int32", -(2**31), 2**31 - 1), ("uint8", 0, 255), ("bool", False, True)):
        empty = np.zeros((0,), name)
        assert run_operator("ReduceMax", [empty])[0].tolist() == [least]
        assert run_operator("ReduceMin", [empty])[0].tolist() == [greatest]


def test_bools_and_small_integers_have_extremes() -> None:
    rng = np.random.default_rng(3)
    for name in ("bool", "int8", "uint8"):
        data = random_array(rng, name, (4, 3))
        for op in ("ReduceMax", "ReduceMin"):
            check_operator(op, [data, np.array([1])], opset=20)


def test_nan_wins() -> None:
    data = np.array([[1, np.nan, 3], [1, 2, 3]], np.float32)
    assert_same(run_operator("ReduceMax", [data, np.array([1])])[0], np.float32([[np.nan], [3]]))
    assert_same(run_operator("ReduceMin", [data, np.array([1])])[0], np.float32([[np.nan], [1]]))


def test_integer_sums_wrap_and_means_truncate() -> None:
    data = np.array([2**31 - 1, 2**31 - 1, 3], np.int32)
    assert run_operator("ReduceSum", [data])[0].tolist() == [1]
    assert run_operator("ReduceMean", [np.array([-1, -2, -4], np.int32)])[0].tolist() == [-2]


def test_long_sums_keep_their_digits() -> None:
    rng = np.random.default_rng(4)
    data = (rng.random((1000, 300)) + 1).astype(np.float32)
    for axes in (0, 1):
        exact = data.astype(np.float64).sum(axes)
        [found] = run_operator("ReduceSum", [data, np.array([axes])], {"keepdims": 0})
        np.testing.assert_allclose(found, exact, rtol=2e-7)
    half = np.ones((1, 5000), np.float16)
    assert run_operator("ReduceSum", [half, np.array([1])])[0].item() == 5000
    assert run_operator("ReduceMean", [half * np.float16(30000), np.array([1])])[0].item() == 30000


def test_log_sum_exp_does_not_overflow() -> None:
    data = np.array([[1000, 1000], [-1000, -1000], [-np.inf, -np.inf], [np.inf, 1]], np.float32)
    [found] = run_operator("ReduceLogSumExp", [data, np.array([1])], {"keepdims": 0})
    assert_same(found, np.float32([1000 + np.log(2), -1000 + np.log(2), -np.inf, np.inf]))


def test_reduction_errors() -> None:
    data = np.zeros((2, 3), np.float32)
    with pytest.raises(ShapeError, match=r"ReduceSum node 'checked'.*axis 2.*rank 2"):
        inferred_types("ReduceSum", [data, np.array([2])])
    with pytest.raises(ShapeError, match="twice"):
        inferred_types("ReduceSum", [data, np.array([1, -1])])
    with pytest.raises(InvalidGraph, match="element type"):
        inferred_types("ReduceMean", [np.zeros(3, np.int8)])
    [unknown] = inferred_types("ReduceSum", [data, static(dtypes.INT64, (1,))])
    assert unknown == TensorType(dtypes.FLOAT32, (None, None))


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
def test_positions_of_extremes(op: str) -> None:
    rng = np.random.default_rng(5)
    for name in ("float32", "float64", "float16", "int32", "uint8", "int64"):
        data = np.asarray(rng.integers(0, 4, (3, 4, 5))).astype(name)
        for axis in (0, 1, -1):
            for last in (0, 1):
                for keepdims in (0, 1):
                    attributes = {"axis": axis, "keepdims": keepdims, "select_last_index": last}
                    check_operator(op, [data], attributes, opset=13, against="onnx")
    check_operator(op, [random_array(rng, "float32", (3, 4))], {"axis": 1}, opset=11)
    with pytest.raises(ShapeError, match="no elements"):
        inferred_types(op, [np.zeros((2, 0), np.float32)], {"axis": 1})
    assert run_operator(op, [np.zeros((2, 0), np.float32)])[0].shape == (1, 0)
    check_operator(op, [np.zeros((2, 0, 0), np.float32)], {"axis": 1}, opset=13)


@pytest.mark.parametrize("op", ["CumSum", "CumProd"])
def test_running_totals(op: str) -> None:
    rng = np.random.default_rng(6)
    for name in ("float32", "float64", "int32", "int64"):
        data = random_array(rng, name, (3, 4, 2), 1.0)
        for axis in (0, 1, -1):
            for exclusive in (0, 1):
                for reverse in (0, 1):
                    flags = {"exclusive": exclusive, "reverse": reverse}
                    axes = np.array(axis, np.int32)
                    check_operator(op, [data, axes], flags, opset=14 if op == "CumSum" else 26)
    assert run_operator(op, [np.zeros((0, 2), np.float32), np.array(0)])[0].shape == (0, 2)
    with pytest.raises(ShapeError, match="axis 3"):
        inferred_types(op, [np.zeros((2, 2), np.float32), np.array(3)])


def test_cumulative_sum_of_float16_rounds_once() -> None:
    found = run_operator("CumSum", [np.ones(4000, np.float16), np.array(0)])[0]
    assert found[-1] == 4000
