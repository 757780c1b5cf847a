"""Normalisations against onnxruntime and onnx's reference."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import vkml
from tests.ops.checking import build_model, check_operator, inferred_types, random_array, run_operator
from vkml.errors import InvalidGraph, NotImplemented, ShapeError

LOOSE: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-5}


def _array(*shape: int, dtype: Any = np.float32, seed: int = 0) -> np.ndarray:
    return random_array(np.random.default_rng(seed), dtype, shape)


def _statistics(channels: tuple[int, ...], dtype: Any = np.float32) -> list[np.ndarray]:
    mean, variance = (
        _array(*channels, dtype=dtype, seed=3),
        np.abs(_array(*channels, dtype=dtype, seed=4)) + dtype(0.1),
    )
    return [_array(*channels, dtype=dtype, seed=1), _array(*channels, dtype=dtype, seed=2), mean, variance]


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 5), (2, 3, 4, 5), (1, 3, 2, 3, 4), (0, 3, 4)])
@pytest.mark.parametrize("opset", [7, 9, 14, 15])
def test_batch_normalization(shape: tuple[int, ...], opset: int) -> None:
    check_operator(
        "BatchNormalization", [_array(*shape), *_statistics((3,))], {"epsilon": 1e-3}, opset=opset, **LOOSE
    )


def test_batch_normalization_trains() -> None:
    inputs = [_array(4, 3, 5, 5), *_statistics((3,))]
    attributes = {"training_mode": 1, "momentum": 0.7}
    check_operator("BatchNormalization", inputs, attributes, opset=15, outputs=3, against="onnx", **LOOSE)


def test_batch_normalization_of_older_opsets_trains_by_its_outputs() -> None:
    inputs = [_array(4, 3, 5), *_statistics((3,))]
    names = ["y", "mean", "var", "saved_mean", "saved_var"]
    node_outputs = run_operator("BatchNormalization", inputs, {"training_mode": 1}, opset=15, outputs=3)
    from vkml.ir import Node, find

    node = Node("BatchNormalization", tuple("abcde"), tuple(names), {}, "old", version=9)
    upgraded = find(node).upgrade(node)
    assert isinstance(upgraded, Node)
    assert upgraded.outputs == ("y", "mean", "var")
    assert upgraded.attributes["training_mode"] == 1
    assert len(node_outputs) == 3


def test_batch_normalization_of_opset_1_infers() -> None:
    inputs = [_array(2, 3, 4), *_statistics((3,))]
    old = {"consumed_inputs": (0, 0, 0, 1, 1), "is_test": 1}
    found = run_operator("BatchNormalization", inputs, old, opset=1)[0]
    np.testing.assert_array_equal(found, run_operator("BatchNormalization", inputs)[0])


@pytest.mark.parametrize("name", ["float16", "float32", "float64"])
def test_batch_normalization_of_each_activation(name: str) -> None:
    inputs = [array.astype(name) for array in (_array(2, 3, 4, 5), *_statistics((3, 4, 5)))]
    expected = check_operator(
        "BatchNormalization", [array.astype(np.float32) for array in inputs], {"spatial": 0}, opset=7, **LOOSE
    )[0]
    [found] = run_operator("BatchNormalization", inputs, {"spatial": 0}, opset=7)
    assert found.dtype == name
    tolerance = 2e-3 if name == "float16" else 1e-5
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


def test_batch_normalization_of_mixed_types() -> None:
    x = _array(2, 3, 4).astype(np.float16)
    found = run_operator("BatchNormalization", [x, *_statistics((3,))])[0]
    exact = run_operator(
        "BatchNormalization", [x.astype(np.float64), *(s.astype(np.float64) for s in _statistics((3,)))]
    )[0]
    np.testing.assert_allclose(found, exact, rtol=2e-3, atol=2e-3)
    assert found.dtype == np.float16


@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 3, 4, 5), (1, 3, 2, 3, 4)])
@pytest.mark.parametrize("opset", [6, 22])
def test_instance_normalization(shape: tuple[int, ...], opset: int) -> None:
    inputs = [_array(*shape), _array(3, seed=1), _array(3, seed=2)]
    check_operator("InstanceNormalization", inputs, {"epsilon": 1e-2}, opset=opset, **LOOSE)


@pytest.mark.parametrize("groups", [1, 2, 3, 6])
@pytest.mark.parametrize("opset", [18, 21])
@pytest.mark.parametrize("shape", [(2, 6), (2, 6, 5), (2, 6, 4, 5)])
def test_group_normalization(groups: int, opset: int, shape: tuple[int, ...]) -> None:
    length = groups if opset == 18 else 6
    inputs = [_array(*shape), _array(length, seed=1), _array(length, seed=2)]
    found = run_operator("GroupNormalization", inputs, {"num_groups": groups}, opset=opset)[0]
    x = inputs[0].astype(np.float64).reshape(2, groups, -1)
    normal = ((x - x.mean(2, keepdims=True)) / np.sqrt(x.var(2, keepdims=True) + 1e-5)).reshape(shape)
    scale, bias = (v.repeat(6 // length).reshape(-1, *(1,) * (len(shape) - 2)) for v in inputs[1:])
    np.testing.assert_allclose(found, normal * scale + bias, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2])
@pytest.mark.parametrize("has_bias", [False, True])
def test_layer_normalization(axis: int, has_bias: bool) -> None:
    x = _array(3, 4, 5)
    inputs = [x, _array(*x.shape[axis:], seed=1)]
    if has_bias:
        inputs.append(_array(*x.shape[axis:], seed=2))
    check_operator("LayerNormalization", inputs, {"axis": axis}, opset=17, outputs=3, **LOOSE)


def test_layer_normalization_forms() -> None:
    x = _array(2, 3, 8)
    check_operator("LayerNormalization", [x, _array(8, seed=1)], {"epsilon": 0.1}, opset=17, **LOOSE)
    half = [x.astype(np.float16), _array(8, seed=1).astype(np.float16)]
    found = run_operator("LayerNormalization", half, outputs=3)
    assert [part.dtype for part in found] == [np.float16, np.float32, np.float32]
    with pytest.raises(NotImplemented, match="stash_type 16"):
        inferred_types("LayerNormalization", [x, _array(8)], {"stash_type": 16})
    with pytest.raises(ShapeError, match=r"\[7\].*\[2, 3, 8\]"):
        inferred_types("LayerNormalization", [x, _array(7)])


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_rms_normalization(axis: int) -> None:
    x = _array(3, 4, 5)
    inputs = [x, _array(*x.shape[axis:], seed=1)]
    check_operator(
        "RMSNormalization", inputs, {"axis": axis, "epsilon": 1e-2}, opset=23, against="onnx", **LOOSE
    )


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 20])
def test_lrn(size: int) -> None:
    x = _array(2, 7, 3, 4)
    attributes = {"size": size, "alpha": 0.3, "beta": 0.6, "bias": 1.5}
    if size % 2:
        # onnxruntime takes odd sizes only.
        check_operator("LRN", [x], attributes, opset=13, **LOOSE)
    squares = x.astype(np.float64) ** 2
    below, above = (size - 1) // 2, size // 2
    total = np.stack([squares[:, max(c - below, 0) : c + above + 1].sum(1) for c in range(7)], axis=1)
    found = run_operator("LRN", [x], attributes)[0]
    np.testing.assert_allclose(found, x / (1.5 + 0.3 / size * total) ** 0.6, rtol=1e-4)


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_lp_normalization(p: int, axis: int) -> None:
    x = _array(3, 4, 5)
    x[1], x[:, 2] = 0, 0
    check_operator("LpNormalization", [x], {"p": p, "axis": axis}, opset=1, **LOOSE)


@pytest.mark.parametrize("axes", [None, (0, 1, 2, 3), (1,), (-1, -2)])
def test_mean_variance_normalization(axes: tuple[int, ...] | None) -> None:
    check_operator("MeanVarianceNormalization", [_array(2, 3, 4, 5)], {"axes": axes}, opset=13, **LOOSE)


def test_nothing_is_normalised_without_a_warning() -> None:
    vector = np.ones(3, np.float32)
    for op, shape, inputs, attributes in (
        ("MeanVarianceNormalization", (2, 3, 0, 4), (), {}),
        ("InstanceNormalization", (2, 3, 0), (vector, vector), {}),
        ("GroupNormalization", (2, 3, 0), (vector, vector), {"num_groups": 3}),
        ("LayerNormalization", (2, 0), (vector[:0], vector[:0]), {}),
        ("RMSNormalization", (2, 0), (vector[:0],), {}),
        ("BatchNormalization", (0, 3), (vector,) * 4, {"training_mode": 1}),
    ):
        x = np.zeros(shape, np.float32)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = run_operator(
                op, [x, *inputs], attributes, outputs=3 if "training_mode" in attributes else 1
            )
        assert found[0].shape == shape, op


def test_errors() -> None:
    x = _array(2, 3, 4)
    with pytest.raises(ShapeError, match=r"scale must have shape \[3\], it has \[4\]"):
        inferred_types("BatchNormalization", [x, *_statistics((4,))])
    with pytest.raises(InvalidGraph, match="training_mode"):
        inferred_types("BatchNormalization", [x, *_statistics((3,))], outputs=3)
    with pytest.raises(ShapeError, match="3 channels do not divide into 2"):
        inferred_types("GroupNormalization", [x, _array(3), _array(3)], {"num_groups": 2})
    with pytest.raises(InvalidGraph, match="p is 3"):
        inferred_types("LpNormalization", [x], {"p": 3})
    with pytest.raises(InvalidGraph, match="int64"):
        inferred_types("LRN", [x.astype(np.int64)], {"size": 3})


@pytest.mark.parametrize("training", [0, 1])
def test_batch_normalization_of_a_list_has_one_channel(device_name: str, training: int) -> None:
    x, one = np.float32([1, 2, 4, 9]), [np.float32([value]) for value in (3, 0.5, 2, 4)]
    model = build_model("BatchNormalization", [x, *one], {"training_mode": training}, opset=15)
    with vkml.InferenceSession(model.SerializeToString(), devices=device_name) as session:
        [found] = session.run(None, dict(zip((f"x{i}" for i in range(5)), (x, *one), strict=True)))
    mean, variance = (x.mean(), x.var()) if training else (2, 4)
    np.testing.assert_allclose(found, (x - mean) / np.sqrt(variance + 1e-5) * 3 + 0.5, rtol=1e-5)
    with pytest.raises(ShapeError, match=r"scale must have shape \[1\]"):
        inferred_types("BatchNormalization", [x, *[np.ones(4, np.float32)] * 4])
