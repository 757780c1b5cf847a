"""Activation functions and Dropout."""

from __future__ import annotations

import math

import numpy as np
import pytest

import vkml
from tests.ops.checking import (
    assert_same,
    build_model,
    check_operator,
    inferred_types,
    random_array,
    run_operator,
)
from vkml.engine.sketch import Sketch
from vkml.errors import InvalidGraph, ShapeError
from vkml.ir import dtypes
from vkml.onnx import save_graph

FLOATS = ("float32", "float16", "float64")

ACTIVATIONS = [
    ("Relu", {}, 14),
    ("LeakyRelu", {}, 16),
    ("LeakyRelu", {"alpha": 0.3}, 16),
    ("ThresholdedRelu", {"alpha": 0.7}, 22),
    ("Elu", {"alpha": 1.4}, 22),
    ("Celu", {"alpha": 0.6}, 12),
    ("Selu", {}, 22),
    ("Selu", {"alpha": 1.1, "gamma": 0.9}, 22),
    ("Sigmoid", {}, 13),
    ("HardSigmoid", {}, 22),
    ("HardSigmoid", {"alpha": 0.4, "beta": 0.3}, 22),
    ("HardSwish", {}, 22),
    ("Swish", {"alpha": 1.3}, 24),
    ("Gelu", {"approximate": "none"}, 20),
    ("Gelu", {"approximate": "tanh"}, 20),
    ("Mish", {}, 22),
    ("Softplus", {}, 22),
    ("Softsign", {}, 22),
    ("Shrink", {"lambd": 1.5, "bias": 0.25}, 9),
]


@pytest.mark.parametrize(("op", "attributes", "opset"), ACTIVATIONS)
@pytest.mark.parametrize("name", FLOATS)
def test_activation(op: str, attributes: dict[str, object], opset: int, name: str) -> None:
    # onnxruntime reads attributes as float32 whatever the tensor's type; the reference evaluator takes some
    # steps in float16, hence the tolerance.
    loose = {"float16": 4e-3, "float64": 1e-6}.get(name)
    rng = np.random.default_rng(len(op))
    for shape in ((4, 9), (1,), (0, 3)):
        check_operator(op, [random_array(rng, name, shape)], attributes, opset=opset, rtol=loose, atol=loose)


STABLE = {
    "Sigmoid": lambda x: 1 / (1 + math.exp(-x)),
    "Softplus": lambda x: max(x, 0) + math.log1p(math.exp(-abs(x))),
    "Mish": lambda x: x * math.tanh(max(x, 0) + math.log1p(math.exp(-abs(x)))),
    "Elu": lambda x: x if x > 0 else math.expm1(x),
    "Gelu": lambda x: x / 2 * (1 + math.erf(x / math.sqrt(2))),
}


@pytest.mark.parametrize("op", STABLE)
def test_activation_far_from_zero(op: str) -> None:
    x = np.array([-80, -30, -10, -1e-3, -1e-6, 0, 1e-6, 1e-3, 10, 30, 80], np.float32)
    [found] = run_operator(op, [x])
    expected = np.array([STABLE[op](float(v)) for v in x])
    np.testing.assert_allclose(found, expected, rtol=3e-6, atol=2e-6 if op == "Gelu" else 1e-30)
    [found] = run_operator(op, [np.array([-np.inf, np.inf, np.nan, 3e38], np.float32)])
    assert found[1] == (1 if op == "Sigmoid" else np.inf)
    assert np.isnan(found[2])
    assert np.isfinite(found[3])


@pytest.mark.parametrize("name", ["int8", "int32", "int64"])
def test_relu_of_integers(name: str) -> None:
    check_operator("Relu", [random_array(np.random.default_rng(1), name, (3, 4))], opset=14)


@pytest.mark.parametrize("name", ["int8", "int64", "uint8", "uint32"])
def test_shrink_of_integers(name: str) -> None:
    data = random_array(np.random.default_rng(2), name, (5, 6))
    check_operator("Shrink", [data], {"lambd": 3.5, "bias": 2.0}, opset=9, against="onnx")
    [found] = run_operator("Shrink", [np.array([5, 2], name)], {"lambd": 3.5, "bias": 1.5})
    assert found.tolist() == [3, 0]


@pytest.mark.parametrize("name", ["int8", "uint8", "int64", "uint64"])
@pytest.mark.parametrize("lambd", [math.inf, -math.inf, math.nan, 1e30, -1e30, -1e3])
@pytest.mark.parametrize("bias", [1.0, 1.5])
def test_limits_of_shrink_that_no_integer_reaches(
    device_name: str, name: str, lambd: float, bias: float
) -> None:
    info = np.iinfo(name)
    data = np.array([info.min, 0, 7, info.max - 1, info.max], name)
    if bias == 1.5:
        data = data[1:3]  # the others are more than a float64 can hold, or overflow
    wide, one = data.astype(np.float64), data.dtype.type(1)
    with np.errstate(over="ignore"):
        expected = np.where(wide < -lambd, data + one, np.where(wide > lambd, data - one, 0)).astype(name)
    attributes = {"lambd": lambd, "bias": bias}
    [found] = run_operator("Shrink", [data], attributes, opset=9)
    assert found.tolist() == expected.tolist()
    model = build_model("Shrink", [data], attributes, opset=9).SerializeToString()
    with vkml.InferenceSession(model, devices=device_name) as session:
        assert session.run(None, {"x0": data})[0].tolist() == expected.tolist()


@pytest.mark.parametrize("name", ["float32", "float64", "int32", "int64", "uint32", "uint64"])
def test_prelu(name: str) -> None:
    rng = np.random.default_rng(3)
    data = random_array(rng, name, (2, 3, 4))
    for shape in ((3, 1), (2, 3, 4), (1,), ()):
        check_operator("PRelu", [data, random_array(rng, name, shape)], opset=16)


def test_prelu_of_old_opsets_has_one_slope_a_channel() -> None:
    rng = np.random.default_rng(4)
    data, slope = random_array(rng, np.float32, (2, 3, 4, 5)), random_array(rng, np.float32, (3,))
    expected = np.where(data < 0, data * slope.reshape(3, 1, 1), data)
    for opset in (1, 6):
        assert_same(run_operator("PRelu", [data, slope], opset=opset)[0], expected)
    one = np.array([0.25], np.float32)
    assert_same(run_operator("PRelu", [data, one], opset=6)[0], np.where(data < 0, data * one, data))


@pytest.mark.parametrize("op", ["LeakyRelu", "Elu", "Selu"])
@pytest.mark.parametrize("alpha", [np.nan, np.inf, -np.inf])
def test_a_slope_that_is_not_finite_concerns_what_is_below_zero_only(
    device_name: str, op: str, alpha: float
) -> None:
    x = np.array([1, 2.5, np.inf, -1, np.nan], np.float32)
    [found] = check_operator(op, [x], {"alpha": alpha}, opset=15)
    gain = np.float32(1.0507010221481323) if op == "Selu" else 1
    np.testing.assert_array_equal(found[:3], x[:3] * gain)
    assert not np.isfinite(found[3:]).any()
    model = build_model(op, [x], {"alpha": alpha}, opset=16).SerializeToString()
    with vkml.InferenceSession(model, devices=device_name) as session:
        assert_same(session.run(None, {"x0": x})[0], found)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("alpha", [0.0, 1e-9, 1e-50])
def test_infinity_stays_where_the_slope_below_zero_is_next_to_none(
    device_name: str, dtype: type, alpha: float
) -> None:
    x = np.array([np.inf, 2, 0, -1, np.nan], dtype)
    [found] = run_operator("LeakyRelu", [x], {"alpha": alpha}, opset=16)
    assert_same(found, np.array([np.inf, 2, 0, -alpha, np.nan], dtype))
    model = build_model("LeakyRelu", [x], {"alpha": alpha}, opset=16).SerializeToString()
    with vkml.InferenceSession(model, devices=device_name) as session:
        assert_same(session.run(None, {"x0": x})[0], found)
    sketch = Sketch("chain", opset=16)  # of NumPy's functions, where machine code lacks one
    given = sketch.input("x", (5,), dtypes.from_numpy(np.dtype(dtype)))
    chain = sketch.node("Sign", sketch.node("LeakyRelu", given, alpha=alpha))
    with vkml.InferenceSession(save_graph(sketch.finish(chain)), devices=device_name) as session:
        [made] = session.run(None, {"x": x})
    np.testing.assert_array_equal(made[[0, 1, 2, 4]], [1, 1, 0, np.nan])


def test_selu_of_opset_1_has_other_constants() -> None:
    [old] = run_operator("Selu", [np.array([-100.0], np.float32)], opset=1)
    np.testing.assert_allclose(old, -1.6732 * 1.0507, rtol=1e-6)
    [old] = run_operator("Selu", [np.array([2.0], np.float32)], {"gamma": 3.0}, opset=1)
    assert old[0] == 6


def test_errors() -> None:
    x = np.zeros((2, 3), np.float32)
    with pytest.raises(ShapeError, match=r"slope of shape \[2, 2, 3\].*one-way.*\[2, 3\]"):
        inferred_types("PRelu", [x, np.zeros((2, 2, 3), np.float32)])
    with pytest.raises(InvalidGraph, match="approximate"):
        inferred_types("Gelu", [x], {"approximate": "fast"})
    with pytest.raises(InvalidGraph, match="alpha"):
        inferred_types("Celu", [x], {"alpha": 0.0})


def test_dropout_in_inference() -> None:
    x = random_array(np.random.default_rng(5), np.float32, (3, 4))
    for opset, attributes in (
        (1, {"ratio": 0.3, "is_test": 1}),
        (6, {"is_test": 0}),
        (7, {"ratio": 0.9}),
        (10, {}),
    ):
        assert_same(run_operator("Dropout", [x], attributes, opset=opset)[0], x)
    found, mask = run_operator("Dropout", [x], opset=10, outputs=2)
    assert_same(found, x)
    assert mask.all() and mask.dtype == np.bool_ and mask.shape == x.shape
    check_operator("Dropout", [x, np.float32(0.7), np.array(False)], opset=13, outputs=2)


@pytest.mark.parametrize("opset", [6, 7, 9])
def test_dropout_before_opset_10_has_a_mask_of_the_data_type(opset: int) -> None:
    x = random_array(np.random.default_rng(5), np.float16, (3, 4))
    found, mask = run_operator("Dropout", [x], opset=opset, outputs=2)
    assert_same(found, x)
    assert_same(mask, np.ones_like(x))
    types = inferred_types("Dropout", [x], opset=opset, outputs=2)
    assert [type_.dtype.name for type_ in types] == ["float16", "float16"]


def test_dropout_in_training() -> None:
    x = np.ones((200, 100), np.float16)
    inputs = [x, np.array(0.25, np.float32), np.array(True)]
    found, mask = run_operator("Dropout", inputs, {"seed": 7}, opset=13, outputs=2)
    assert abs(mask.mean() - 0.75) < 0.02
    assert_same(found, np.where(mask, np.float16(1 / 0.75), np.float16(0)))
    again, _ = run_operator("Dropout", inputs, {"seed": 7}, opset=13, outputs=2)
    assert_same(again, found)
    assert not run_operator("Dropout", [x, np.array(1.0), np.array(True)], opset=13)[0].any()


@pytest.mark.parametrize("slope", [1.0, -1.0, 0.5, 0.0, 2.0, np.inf])
@pytest.mark.parametrize("op", ["LeakyRelu", "PRelu", "Elu"])
@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_zeros_keep_their_signs(op: str, slope: float, kind: type) -> None:
    """What ONNX leaves as it is from 0 on, is left so at minus zero, too."""
    x = np.tile(np.array([-0.0, 0.0], kind), 20)
    inputs = [x, np.array([slope], kind)] if op == "PRelu" else [x]
    [found] = run_operator(op, inputs, {} if op == "PRelu" else {"alpha": slope})
    np.testing.assert_array_equal(np.signbit(found), np.signbit(x))
    assert not found.any()


@pytest.mark.parametrize("slope", [0.0, -0.0, 1e-40, -1e-40, 4.0])
@pytest.mark.parametrize("op", ["LeakyRelu", "PRelu", "Elu"])
@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_products_that_vanish_below_zero_keep_their_signs(
    device_name: str, op: str, slope: float, kind: type
) -> None:
    """They are products still, and no sums of these and of the zero that is above."""
    x = np.tile(np.array([-1e-7, -2, -0.5, 3, 1e-7], kind), 20)
    inputs = [x, np.array([slope], kind)] if op == "PRelu" else [x]
    attributes = {} if op == "PRelu" else {"alpha": slope}
    expected = np.where(x < 0, np.signbit(x) ^ np.signbit(slope), np.signbit(x))
    [found] = run_operator(op, inputs, attributes)
    np.testing.assert_array_equal(np.signbit(found), expected)
    model = build_model(op, inputs, attributes).SerializeToString()
    with vkml.InferenceSession(model, devices=device_name) as session:
        [made] = session.run(None, {f"x{place}": array for place, array in enumerate(inputs)})
    np.testing.assert_array_equal(np.signbit(made), expected)
