"""Random operators: their distributions, seeds, and the same numbers on every device."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

import vkml
from tests.ops.checking import build_model, inferred_types, run_operator
from vkml.errors import InvalidGraph, ShapeError
from vkml.ops.random_state import set_seed


def test_normal() -> None:
    attributes = {"shape": (100, 101), "seed": 3.5, "mean": 2.0, "scale": 3.0}
    [found] = run_operator("RandomNormal", [], attributes, opset=22)
    assert found.shape == (100, 101)
    assert found.mean() == pytest.approx(2, abs=0.12) and found.std() == pytest.approx(3, abs=0.1)
    inside = np.mean(np.abs(found - 2) < 3)
    assert inside == pytest.approx(0.683, abs=0.02)


@pytest.mark.parametrize("kind", [TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16])
def test_uniform(kind: int) -> None:
    attributes = {"dtype": kind, "seed": 1.0, "low": -1.0, "high": 3.0}
    [found] = run_operator("RandomUniformLike", [np.zeros((4000,), np.int32)], attributes, opset=22)
    assert found.min() >= -1 and found.max() <= 3
    counts = np.histogram(found.astype(np.float64), 8, (-1, 3))[0]
    assert counts.min() > 400 and counts.max() < 600


def test_bernoulli_draws_with_its_probabilities() -> None:
    p = np.repeat(np.array([0.0, 0.2, 0.9, 1.0]), 2000).reshape(4, 2000)
    attributes = {"seed": 2.0, "dtype": int(TensorProto.BOOL)}
    [found] = run_operator("Bernoulli", [p], attributes, opset=15)
    assert found.dtype == np.bool_
    np.testing.assert_allclose(found.mean(1), [0, 0.2, 0.9, 1], atol=0.04)
    assert found.mean(1)[0] == 0 and found.mean(1)[3] == 1


def test_multinomial_draws_classes_by_their_weights() -> None:
    weights = np.array([[1, 0, 3, 4], [0, 5, 0, 0]], np.float32)
    with np.errstate(divide="ignore"):
        logarithms = np.log(weights) + 100
    attributes = {"sample_size": 4000, "seed": 5.0, "dtype": int(TensorProto.INT64)}
    [found] = run_operator("Multinomial", [logarithms], attributes, opset=22)
    counts = Counter(found[0].tolist())
    assert found.dtype == np.int64 and set(counts) == {0, 2, 3}
    np.testing.assert_allclose([counts[at] / 4000 for at in (0, 2, 3)], [1 / 8, 3 / 8, 1 / 2], atol=0.03)
    assert set(found[1].tolist()) == {1}


def test_seeds() -> None:
    """A seed means the same draws each time; without one draws differ, and follow `set_seed`."""

    def drawn(**more: Any) -> Any:
        return run_operator("RandomNormal", [], {"shape": (8,), **more}, opset=22)[0]

    assert (drawn(seed=1.0) == drawn(seed=1.0)).all()
    assert not (drawn(seed=1.0) == drawn(seed=1.5)).any()
    assert not (drawn() == drawn()).any()
    set_seed(11)
    first, second = drawn(), drawn()
    vkml.manual_seed(11)
    assert (drawn() == first).all() and (drawn() == second).all() and not (first == second).any()


@pytest.mark.parametrize(
    ("op", "inputs", "attributes"),
    [
        ("RandomNormal", [], {"shape": (3, 41), "seed": 7.0}),
        ("RandomUniformLike", [np.zeros((5, 3), np.float32)], {"seed": 7.0}),
        ("Bernoulli", [np.full((50,), 0.4, np.float32)], {"seed": 7.0}),
        ("Multinomial", [np.zeros((2, 5), np.float32)], {"seed": 7.0, "sample_size": 9}),
    ],
)
def test_the_same_numbers_on_every_device(
    op: str, inputs: Any, attributes: dict[str, Any], vulkan_device_name: str
) -> None:
    model = build_model(op, inputs, attributes, opset=22).SerializeToString()
    [expected] = run_operator(op, inputs, attributes, opset=22)
    with vkml.InferenceSession(model, devices=vulkan_device_name) as session:
        [found] = session.run(None, {f"x{at}": array for at, array in enumerate(inputs)})
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_each_run_draws_anew(device_name: str) -> None:
    model = build_model("RandomUniform", [], {"shape": (64,)}, opset=22).SerializeToString()
    with vkml.InferenceSession(model, devices=device_name) as session:
        first, second = (session.run(None, {})[0] for _ in range(2))
    assert not (first == second).any() and first.min() >= 0 and first.max() < 1


def test_what_is_refused() -> None:
    with pytest.raises(InvalidGraph, match="int32"):
        inferred_types("RandomNormalLike", [np.zeros(3, np.int32)], opset=22)
    with pytest.raises(InvalidGraph, match="bool"):
        inferred_types("RandomNormal", [], {"shape": (2,), "dtype": int(TensorProto.BOOL)}, opset=22)
    with pytest.raises(ShapeError, match="0 classes"):
        inferred_types("Multinomial", [np.zeros((1, 0), np.float32)], opset=22)


def test_nothing_is_drawn_of_no_elements() -> None:
    [found] = run_operator("RandomNormal", [], {"shape": (0, 3)}, opset=22)
    assert found.shape == (0, 3)
