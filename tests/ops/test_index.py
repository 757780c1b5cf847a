"""Operators whose indices are data, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest

import vkml
from tests.ops.checking import build_model, check_operator, inferred_types, random_array, run_operator
from vkml.errors import IndexOutOfRange, InvalidGraph, ShapeError


def _array(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return random_array(np.random.default_rng(0), dtype, shape)


def _list(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


@pytest.mark.parametrize(("op", "indices"), [("Gather", 1), ("GatherND", [1])])
def test_a_single_text_is_a_string(op: str, indices: Any) -> None:
    texts = np.array(["a", "long"], object)
    [found] = run_operator(op, [texts, np.array(indices)])
    assert found.dtype == object and found.shape == () and found.item() == "long"
    model = build_model(op, [texts, np.array(indices)]).SerializeToString()
    with vkml.InferenceSession(model, devices="cpu") as session:
        [found] = session.run(None, {"x0": texts, "x1": np.array(indices)})
    assert found.dtype == object and found.item() == "long"


@pytest.mark.parametrize(
    ("op", "inputs"),
    [
        ("ScatterElements", [(0,), [1], (1,)]),
        ("ScatterND", [(2, 0), [[7]], (1, 0)]),
        ("ScatterND", [(2, 0), [[1, -1]], (1,)]),
        ("TensorScatter", [(1, 4, 0), (1, 2, 0), [9]]),
        ("ReverseSequence", [(3, 2, 0), [9, 9]]),
        ("RoiAlign", [(1, 0, 4, 4), (2, 4), [0, 9]]),
    ],
)
def test_no_index_is_out_of_range_where_nothing_is_written(
    device_name: str, op: str, inputs: list[Any]
) -> None:
    """Inputs are shapes of numbers and lists of indices."""
    arrays = [np.zeros(i, np.float32) if isinstance(i, tuple) else np.array(i) for i in inputs]
    [expected] = run_operator(op, arrays, opset=24)
    assert expected.size == 0
    model = build_model(op, arrays, opset=24).SerializeToString()
    with vkml.InferenceSession(model, devices=device_name) as session:
        feed = {f"x{index}": array for index, array in enumerate(arrays)}
        assert session.run(None, feed)[0].shape == expected.shape


@pytest.mark.parametrize(("op", "indices"), [("Gather", [7]), ("GatherND", [[7]])])
def test_no_index_is_out_of_range_where_nothing_is_read(
    device_name: str, op: str, indices: list[Any]
) -> None:
    x, places = np.zeros((3, 2, 0), np.float32), np.array(indices)
    assert run_operator(op, [x, places])[0].shape == (1, 2, 0)
    with vkml.InferenceSession(
        build_model(op, [x, places]).SerializeToString(), devices=device_name
    ) as session:
        assert session.run(None, {"x0": x, "x1": places})[0].shape == (1, 2, 0)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("shape", [(), (2,), (2, 3), (0,)])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_gather(axis: int, shape: tuple[int, ...], dtype: type) -> None:
    indices = np.random.default_rng(1).integers(-4, 4, shape).astype(dtype)
    check_operator("Gather", [_array(4, 4, 4), np.asarray(indices)], {"axis": axis}, opset=13)


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int8, np.uint64, np.bool_])
def test_gather_types(dtype: type) -> None:
    check_operator("Gather", [_array(4, 3, dtype=dtype), _list(3, -4)], opset=13)


def test_gather_of_strings() -> None:
    check_operator("Gather", [np.array(["a", "b", "c"], dtype=object), _list(2, 0)], opset=13)


@pytest.mark.parametrize("index", [4, -5, 2**40, -(2**63)])
def test_indices_out_of_range(index: int) -> None:
    words = rf"'checked'.*index {index} at \[1\] is outside axis 0 of size 4.*-4 … 3"
    with pytest.raises(IndexOutOfRange, match=words):
        run_operator("Gather", [_array(4), _list(0, index)])
    with pytest.raises(IndexOutOfRange, match=words):
        run_operator("GatherElements", [_array(4), _list(0, index)])
    with pytest.raises(IndexOutOfRange, match=words):
        run_operator("ScatterElements", [_array(4), _list(0, index), _array(2)])
    with pytest.raises(IndexOutOfRange, match=f"index {index}.*axis 0"):
        run_operator("GatherND", [_array(4), np.array([[0], [index]])])
    with pytest.raises(IndexOutOfRange, match=f"index {index}.*axis 1"):
        run_operator("ScatterND", [_array(3, 4), np.array([[0, index]]), _array(1)])


def test_any_index_into_an_empty_axis_is_out_of_range() -> None:
    with pytest.raises(IndexOutOfRange, match="size 0"):
        run_operator("Gather", [_array(0), _list(0)])
    assert run_operator("Gather", [_array(0, 3), _list()])[0].shape == (0, 3)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_gather_elements(axis: int) -> None:
    generator = np.random.default_rng(2)
    shape = [3, 2, 3]
    shape[axis] = 6
    indices = generator.integers(-4, 4, shape)
    check_operator("GatherElements", [_array(4, 4, 4), indices], {"axis": axis}, opset=13)
    check_operator("GatherElements", [_array(4, 4, 4), indices[:0]], {"axis": axis}, opset=13)


@pytest.mark.parametrize(
    ("shape", "indices", "batch_dims"),
    [
        ((4, 5, 6), (3, 2), 0),
        ((4, 5, 6), (3, 3), 0),
        ((4, 5, 6), (2, 3, 1), 0),
        ((4, 5, 6), (4, 2), 1),
        ((4, 5, 6), (4, 3, 1), 1),
        ((4, 5, 6), (4, 5, 1), 2),
        ((4, 5, 6), (4, 5, 7, 1), 2),
        ((4,), (1,), 0),
        ((4, 5), (0, 2), 0),
    ],
)
def test_gather_nd(shape: tuple[int, ...], indices: tuple[int, ...], batch_dims: int) -> None:
    found = np.random.default_rng(3).integers(-4, 4, indices)
    check_operator("GatherND", [_array(*shape), found], {"batch_dims": batch_dims}, opset=13)


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.float64])
@pytest.mark.parametrize("axis", [0, -1])
def test_scatter_elements(reduction: str, dtype: type, axis: int) -> None:
    generator = np.random.default_rng(4)
    if reduction == "none":
        # Which of two writes to one place wins is not specified.
        indices = np.argsort(generator.random((4, 4)), axis=axis)[:3, :3] - 4
        if axis == -1:
            indices = np.ascontiguousarray(indices)
    else:
        indices = generator.integers(-4, 4, (3, 4))
    updates = random_array(generator, dtype, indices.shape)
    attributes = {"axis": axis, "reduction": reduction}
    check_operator(
        "ScatterElements", [_array(4, 4, dtype=dtype), indices, updates], attributes, opset=18, rtol=1e-5
    )


def test_scatter_forms() -> None:
    inputs = [_array(3, 4), np.array([[1, 0, 2, 0]]), _array(1, 4)]
    check_operator("Scatter", inputs, {"axis": 0}, opset=9)
    check_operator("ScatterElements", inputs, opset=11)
    check_operator("ScatterElements", [inputs[0], inputs[1][:, :0], inputs[2][:, :0]], opset=13)
    flags = [np.array([False, True]), _list(1), np.array([False])]
    check_operator("ScatterElements", flags, opset=13)


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
@pytest.mark.parametrize(
    ("shape", "indices"),
    [((4, 5, 6), (3, 1)), ((4, 5, 6), (3, 2)), ((4, 5, 6), (2, 2, 3)), ((8,), (4, 1)), ((4, 5), (0, 1))],
)
def test_scatter_nd(reduction: str, shape: tuple[int, ...], indices: tuple[int, ...]) -> None:
    generator = np.random.default_rng(5)
    if reduction == "none":
        places = generator.permutation(4)[: int(np.prod(indices[:-1]))]
        found = np.stack([places] * indices[-1], axis=-1).reshape(indices)
    else:
        found = generator.integers(-4, 4, indices)
    updates = random_array(generator, np.float32, (*indices[:-1], *shape[indices[-1] :]))
    check_operator(
        "ScatterND", [_array(*shape), found, updates], {"reduction": reduction}, opset=18, rtol=1e-5
    )


def test_scatter_add_of_float16_rounds_once() -> None:
    x, updates = np.array([2048], np.float16), np.ones(8, np.float16)
    assert (
        run_operator("ScatterElements", [x, np.zeros(8, np.int64), updates], {"reduction": "add"})[0] == 2056
    )


def test_scatter_errors() -> None:
    with pytest.raises(ShapeError, match=r"updates of shape \[2\]"):
        inferred_types("ScatterElements", [_array(4), _list(0, 1, 2), _array(2)])
    with pytest.raises(ShapeError, match="do not fit"):
        inferred_types(
            "ScatterElements", [_array(2, 2), np.zeros((3, 1), np.int64), _array(3, 1)], {"axis": 1}
        )
    with pytest.raises(ShapeError, match=r"updates have shape \[2\]"):
        inferred_types("ScatterND", [_array(4, 4), np.zeros((2, 1), np.int64), _array(2)])
    with pytest.raises(ShapeError, match="length 3"):
        inferred_types("GatherND", [_array(4, 4), np.zeros((2, 3), np.int64)])
    with pytest.raises(InvalidGraph, match="reduction"):
        inferred_types("ScatterND", [_array(4), np.zeros((1, 1), np.int64), _array(1)], {"reduction": "xor"})
    with pytest.raises(InvalidGraph, match="float"):
        inferred_types("Gather", [_array(4), _array(1)])


@pytest.mark.parametrize("mode", ["linear", "circular"])
@pytest.mark.parametrize("axis", [-2, 1, 2])
def test_tensor_scatter(mode: str, axis: int) -> None:
    shape, update = [2, 5, 6, 3], [2, 5, 6, 3]
    update[axis] = 2
    starts = _list(3, 1) if mode == "linear" else _list(4, 0)
    inputs = [_array(*shape), _array(*update) + 10, starts]
    check_operator("TensorScatter", inputs, {"mode": mode, "axis": axis}, opset=24, against="onnx")


@pytest.mark.parametrize("starts", [(5, 6), (12, 4), (2**63 - 1, 2**62)])
def test_a_circular_cache_is_written_round_and_round(starts: tuple[int, int]) -> None:
    """Whoever counts all tokens there ever were need not wrap the number."""
    inputs = [_array(2, 5, 3), _array(2, 2, 3) + 10, _list(*starts)]
    attributes = {"mode": "circular"}
    (found,) = run_operator("TensorScatter", inputs, attributes, opset=24)
    inputs[2] = _list(*(start % 5 for start in starts))
    (expected,) = run_operator("TensorScatter", inputs, attributes, opset=24)
    np.testing.assert_array_equal(found, expected)
    assert (found != inputs[0]).sum() == 2 * 2 * 3
    with pytest.raises(IndexOutOfRange, match="write index -1 of sample 1"):
        run_operator("TensorScatter", [*inputs[:2], _list(0, -1)], attributes, opset=24)


def test_tensor_scatter_errors() -> None:
    cache, update = _array(2, 5, 3), _array(2, 2, 3)
    with pytest.raises(IndexOutOfRange, match="write index 4 of sample 1 with 2 steps"):
        run_operator("TensorScatter", [cache, update, _list(0, 4)], opset=24)
    with pytest.raises(ShapeError, match="does not fit a cache"):
        inferred_types("TensorScatter", [cache, _array(1, 2, 3)], opset=24)


@pytest.mark.parametrize("op", ["ScatterElements", "ScatterND"])
def test_the_sum_of_texts_is_one_behind_the_other(op: str, device_name: str) -> None:
    indices = np.array([1, 0, 1] if op == "ScatterElements" else [[1], [0], [1]])
    texts, more = np.array(["a", "b"], object), np.array(["c", "", "é"], object)
    model = build_model(op, [texts, indices, more], {"reduction": "add"}).SerializeToString()
    feed = {"x0": texts, "x1": indices, "x2": more}
    with vkml.InferenceSession(model, devices=device_name) as session:
        assert session.run(None, feed)[0].tolist() == ["a", "bcé"]
    other = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    assert other.run(None, feed)[0].tolist() == ["a", "bcé"]


@pytest.mark.parametrize("reduction", ["mul", "max"])
def test_texts_have_no_other_reduction(reduction: str) -> None:
    texts = np.array(["a", "b"], object)
    with pytest.raises(InvalidGraph, match=f"of type string have no {reduction!r}"):
        run_operator("ScatterND", [texts, np.array([[0]]), texts[:1]], {"reduction": reduction})
