"""Softmax, LogSoftmax, Hardmax in their new and old meanings."""

from __future__ import annotations

import numpy as np
import pytest

import vkml
from tests.ops.checking import assert_same, check_operator, inferred_types, random_array, run_operator
from vkml.engine.sketch import Sketch
from vkml.errors import InvalidGraph, ShapeError
from vkml.ir import Node
from vkml.onnx import save_graph
from vkml.ops.softmax import softmax_geometry

OPERATORS = ["Softmax", "LogSoftmax", "Hardmax"]


@pytest.mark.parametrize("op", OPERATORS)
def test_along_one_axis(op: str) -> None:
    rng = np.random.default_rng(1)
    for name in ("float32", "float64", "float16"):
        data = random_array(rng, name, (3, 4, 5))
        loose = 2e-3 if name == "float16" else None
        for axis in (0, 1, 2, -1, -3):
            # onnxruntime has no float16 Hardmax, and rounds float16 sums at every step.
            against = "onnx" if name == "float16" and op == "Hardmax" else "onnxruntime"
            check_operator(op, [data], {"axis": axis}, opset=13, rtol=loose, atol=loose, against=against)
    check_operator(op, [random_array(rng, "float32", (2, 6))], opset=13)


@pytest.mark.parametrize("op", OPERATORS)
@pytest.mark.parametrize("opset", [7, 11, 12])
def test_old_opsets_flatten_to_two_axes(op: str, opset: int) -> None:
    data = random_array(np.random.default_rng(2), "float32", (2, 3, 4))
    check_operator(op, [data], opset=opset)
    for axis in (0, 1, 2, *((-1, -2) if opset > 7 else ())):
        check_operator(op, [data], {"axis": axis}, opset=opset)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("opset", [11, 13])
def test_results_inside_a_concat(device_name: str, axis: int, opset: int) -> None:
    """Where a result lies with strides of its own."""
    data = random_array(np.random.default_rng(3), "float32", (2, 3, 4))
    for op in OPERATORS:
        sketch = Sketch(op, opset=opset)
        x, y = sketch.input("x", (2, 3, 4)), sketch.input("y", (2, 3, 4))
        model = save_graph(sketch.finish(sketch.node("Concat", y, sketch.node(op, x, axis=axis), y, axis=1)))
        [expected] = run_operator(op, [data], {"axis": axis}, opset=opset)
        with vkml.InferenceSession(model, devices=device_name) as session:
            [found] = session.run(None, {"x": data, "y": data})
        assert_same(found, np.concatenate([data, expected, data], axis=1), 1e-4, 1e-5, op)


def test_large_and_infinite_inputs() -> None:
    data = np.array([[1e30, 1e30, -1e30], [-np.inf, 0, 0], [-1000, -1001, -np.inf]], np.float32)
    [found] = run_operator("Softmax", [data])
    e = np.exp(-1.0)
    assert_same(found, np.float32([[0.5, 0.5, 0], [0, 0.5, 0.5], [1 / (1 + e), e / (1 + e), 0]]))
    [found] = run_operator("LogSoftmax", [data[2:]])
    assert_same(found, np.float32([[-np.log1p(e), -1 - np.log1p(e), -np.inf]]))


def test_hardmax_marks_the_first_of_equals() -> None:
    [found] = run_operator("Hardmax", [np.array([[1, 3, 3], [0, 0, 0]], np.float32)])
    assert found.tolist() == [[0, 1, 0], [1, 0, 0]]


@pytest.mark.parametrize("op", OPERATORS)
def test_empty_and_scalar(op: str) -> None:
    for shape in ((0, 3), (3, 0)):
        assert run_operator(op, [np.zeros(shape, np.float32)])[0].shape == shape
    [found] = run_operator(op, [np.array(3.0, np.float32)])
    assert found == (0 if op == "LogSoftmax" else 1)


def test_geometry() -> None:
    def node(axis: int, is_flattened: int) -> Node:
        return Node("Softmax", ("x",), ("y",), {"axis": axis, "is_flattened": is_flattened})

    assert softmax_geometry(node(1, 0), (2, 3, 4)) == (2, 3, 4)
    assert softmax_geometry(node(-1, 0), (2, 3, 4)) == (6, 4, 1)
    assert softmax_geometry(node(1, 1), (2, 3, 4)) == (2, 12, 1)


def test_errors() -> None:
    with pytest.raises(ShapeError, match=r"Softmax node 'checked': axis 2 .*rank 2"):
        inferred_types("Softmax", [np.zeros((2, 3), np.float32)], {"axis": 2})
    with pytest.raises(InvalidGraph, match="int32"):
        inferred_types("Softmax", [np.zeros((2, 3), np.int32)])
