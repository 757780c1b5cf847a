"""Operators written in others make what they evaluate to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest

import vkml
from tests.ops.checking import build_model, run_operator
from vkml.ir import Node, find
from vkml.ir.operator import normalise_attributes
from vkml.ops.stepwise import evaluate_steps

RANDOM = np.random.default_rng(44)
IMAGE = RANDOM.standard_normal((2, 3, 4, 5)).astype(np.float32)
GRID = RANDOM.uniform(-1.4, 1.4, (2, 3, 3, 2)).astype(np.float32)
CROP = np.array([0, 0, 0.2, -0.1, 1, 1, 1.2, 0.7], np.float32)

CROPPING = {
    "coordinate_transformation_mode": "tf_crop_and_resize",
    "mode": "linear",
    "extrapolation_value": 9.0,
}
POOLED = {"kernel_shape": (2, 2), "strides": (2, 2)}


def normal(*shape: int) -> Any:
    return RANDOM.standard_normal(shape).astype(np.float32)


CASES: list[tuple[str, list[Any], dict[str, Any], int]] = [
    ("LayerNormalization", [IMAGE, normal(4, 5), normal(5)], {"axis": 2}, 3),
    *(
        ("GridSample", [IMAGE, GRID], {"mode": mode, "padding_mode": padding, "align_corners": n % 2}, 1)
        for n, mode in enumerate(("nearest", "linear", "cubic"))
        for padding in ("zeros", "border", "reflection")
    ),
    ("GridSample", [np.full((1, 1, 2, 2), np.inf, np.float32), np.full((1, 1, 1, 2), 9, np.float32)], {}, 1),
    ("AffineGrid", [normal(2, 2, 3), np.array([2, 3, 4, 5])], {"align_corners": 1}, 1),
    *(
        ("Einsum", [normal(*shape) for shape in shapes], {"equation": equation}, 1)
        for equation, shapes in {
            "iiji->ji": [(3, 3, 4, 3)],
            "ij,ij->i": [(2, 1), (2, 3)],
            "bij,bjk->kbi": [(2, 3, 4), (2, 4, 5)],
            "a,b->ba": [(2,), (3,)],
            "...ij,...jk": [(5, 1, 2, 3), (6, 3, 4)],
            "ab,bc,cd->d": [(2, 3), (3, 4), (4, 5)],
            "ij,jk->ik": [(2, 0), (0, 3)],
            "i,i": [(4,), (4,)],
            "xy,z->yz": [(2, 3), (1,)],
        }.items()
    ),
    ("Einsum", [np.array([[200, 100], [3, 90]], np.uint8)] * 2, {"equation": "ij,jk->ik"}, 1),
    ("Einsum", [normal(2, 3).astype(np.float16)] * 3, {"equation": "ij,ij,ik->jk"}, 1),
    ("Trilu", [IMAGE, np.array(-1)], {"upper": 0}, 1),
    ("Trilu", [IMAGE, np.array(2**62)], {}, 1),
    ("ReverseSequence", [IMAGE[0], np.array([2, 0, 3, 1])], {}, 1),
    ("ReverseSequence", [IMAGE, np.array([2, 3])], {"batch_axis": 0, "time_axis": 1}, 1),
    ("TensorScatter", [IMAGE, normal(2, 3, 2, 5), np.array([3, 2])], {"mode": "circular"}, 1),
    ("TensorScatter", [IMAGE, normal(2, 3, 4, 2), np.array([3, 1])], {"axis": -1}, 1),
    (
        "Col2Im",
        [normal(2, 12, 6), np.array([5, 4]), np.array([3, 2])],
        {"strides": (2, 2), "dilations": (1, 1), "pads": (0, 1, 1, 1)},
        1,
    ),
    ("Resize", [IMAGE, CROP, None, np.array([2, 3, 7, 6])], CROPPING, 1),
    ("MaxUnpool", [normal(1, 1, 2, 2), np.array([[[[5, 7], [13, 15]]]])], POOLED, 1),
    *(("Det", [normal(2, size, size)], {}, 1) for size in (1, 2, 3)),
    ("Softmax", [IMAGE], {"axis": 1}, 1),
    ("LogSoftmax", [IMAGE.astype(np.float64)], {"axis": -1}, 1),
    ("ReduceLogSumExp", [np.zeros((2, 0, 3), np.float32), np.array([1])], {}, 1),
    ("Dropout", [IMAGE, np.float32(0.3), np.array(False)], {}, 2),
]  # fmt: skip


def node_of(op: str, inputs: list[Any], attributes: dict[str, Any], outputs: int) -> Node:
    names = tuple("" if array is None else f"x{at}" for at, array in enumerate(inputs))
    node = Node(op, names, tuple(f"y{at}" for at in range(outputs)), attributes, "checked", version=28)
    return replace(node, attributes=normalise_attributes(node, find(node)))


@pytest.mark.parametrize(("op", "inputs", "attributes", "outputs"), CASES)
def test_steps(op: str, inputs: list[Any], attributes: dict[str, Any], outputs: int) -> None:
    expected = run_operator(op, inputs, attributes, opset=28, outputs=outputs)
    found = evaluate_steps(node_of(op, inputs, attributes, outputs), inputs)
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.dtype == theirs.dtype and mine.shape == theirs.shape
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


def test_dropout_in_steps_draws_with_its_ratio() -> None:
    x = np.ones((4000,), np.float32)
    found, mask = evaluate_steps(node_of("Dropout", [x] * 3, {}, 2), [x, np.float32(0.3), np.array(True)])
    assert mask.mean() == pytest.approx(0.7, abs=0.03)
    np.testing.assert_allclose(found, mask / 0.7, rtol=1e-5)


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "wrong"),
    [
        ("TensorScatter", [IMAGE, normal(2, 3, 2, 5), np.array([0, -1])], {}, "index"),
        ("ReverseSequence", [IMAGE[0], np.array([2, 0, 9, 1])], {}, "index"),
    ],
)
def test_bad_indices_are_reported_by_devices(
    op: str, inputs: list[Any], attributes: dict[str, Any], wrong: str, vulkan_device_name: str
) -> None:
    model = build_model(op, inputs, attributes, opset=24).SerializeToString()
    with (
        vkml.InferenceSession(model, devices=vulkan_device_name) as session,
        pytest.raises(vkml.Error, match=wrong),
    ):
        session.run(None, {f"x{at}": array for at, array in enumerate(inputs)})


def test_what_steps_do_not_read_is_not_computed(vulkan_device_name: str) -> None:
    text = """<ir_version: 8, opset_import: ["": 18]>
        empty (float[2, 0] x) => (float[1, 1] y) { e = Exp (x) s = ReduceSum (e) y = Log (s) }"""
    model = onnx.parser.parse_model(text).SerializeToString()
    with vkml.InferenceSession(model, devices=vulkan_device_name, strict=True) as session:
        assert session.run(None, {"x": np.zeros((2, 0), np.float32)})[0] == -np.inf
