"""Conv and ConvInteger against onnxruntime."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import vkml
from tests.ops.checking import check_operator, inferred_types, random_array, run_operator
from tests.ops.conv_cases import LOOSE, conv_case
from vkml.engine.sketch import Sketch
from vkml.errors import InvalidGraph, ShapeError
from vkml.ir import dtypes
from vkml.onnx import save_graph


@pytest.mark.parametrize("seed", range(60))
def test_random_conv(seed: int) -> None:
    inputs, attributes = conv_case(seed, transposed=False)
    check_operator("Conv", inputs, attributes, opset=11, **LOOSE)


@pytest.mark.parametrize("multiplier", [1, 2])
def test_depthwise(multiplier: int) -> None:
    generator = np.random.default_rng(5)
    x = random_array(generator, np.float32, (2, 6, 13, 11))
    weight = random_array(generator, np.float32, (6 * multiplier, 1, 3, 5))
    bias = random_array(generator, np.float32, (6 * multiplier,))
    attributes = {"group": 6, "strides": [2, 1], "pads": [1, 2, 0, 3], "dilations": [2, 1]}
    check_operator("Conv", [x, weight, bias], attributes, **LOOSE)


def test_rows_are_blocked_without_a_seam(monkeypatch: pytest.MonkeyPatch) -> None:
    from vkml.ops import conv

    generator = np.random.default_rng(6)
    x, weight = (
        random_array(generator, np.float32, (1, 3, 20, 9)),
        random_array(generator, np.float32, (4, 3, 3, 3)),
    )
    whole = run_operator("Conv", [x, weight])[0]
    monkeypatch.setattr(conv, "COLUMN_ELEMENTS", 1000)
    np.testing.assert_allclose(run_operator("Conv", [x, weight])[0], whole, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_types(dtype: type) -> None:
    generator = np.random.default_rng(7)
    x, weight = (
        random_array(generator, dtype, (1, 8, 6, 6)),
        random_array(generator, dtype, (4, 8, 3, 3), 0.2),
    )
    check_operator("Conv", [x, weight], {"pads": [1, 1, 1, 1]}, against="onnx", rtol=4e-3, atol=4e-3)
    found = run_operator("Conv", [x, weight])[0]
    exact = run_operator("Conv", [x.astype(np.float64), weight.astype(np.float64)])[0]
    rounded = exact.astype(dtype)
    if dtype == np.float16:
        # Summed in float32 and rounded once: at most one unit in the last place from the exact sum.
        assert np.abs(found.view(np.int16).astype(int) - rounded.view(np.int16).astype(int)).max() <= 1


def test_empty_batch() -> None:
    weight = np.ones((4, 3, 3, 3), np.float32)
    assert run_operator("Conv", [np.ones((0, 3, 8, 8), np.float32), weight])[0].shape == (0, 4, 6, 6)


@pytest.mark.parametrize("x_type", [np.uint8, np.int8])
def test_conv_integer(x_type: type) -> None:
    generator = np.random.default_rng(8)
    bounds = np.iinfo(x_type)
    x = generator.integers(bounds.min, bounds.max + 1, (1, 4, 7, 7)).astype(x_type)
    weight = generator.integers(0, 256, (6, 2, 3, 3)).astype(np.uint8)
    attributes = {"group": 2, "pads": [1, 0, 1, 2], "strides": [2, 1]}
    zeros = [np.array(bounds.min + 7, x_type), np.array(9, np.uint8)]
    x64, w64 = x.astype(np.float64) - float(zeros[0]), weight.astype(np.float64) - 9
    expected = run_operator("Conv", [x64, w64], attributes)[0].astype(np.int32)
    np.testing.assert_array_equal(run_operator("ConvInteger", [x, weight, *zeros], attributes)[0], expected)
    if x_type == np.uint8:
        check_operator("ConvInteger", [x, weight, *zeros], attributes)


@pytest.mark.parametrize(
    ("x_shape", "w_shape", "attributes", "words"),
    [
        ((1, 32, 56, 56), (8, 64, 3, 3), {}, ["'checked'", "64 input channels", "has 32", "1,32,56,56"]),
        ((1, 4, 5, 5), (3, 2, 3, 3), {"group": 2}, ["3 filters", "2 groups"]),
        ((1, 4, 2, 5), (3, 4, 3, 3), {}, ["window of 3", "axis 0", "size 2"]),
        ((1, 4, 5, 5), (3, 4, 3), {}, ["same rank", "[3, 4, 3]"]),
        ((1, 4, 5, 5), (3, 4, 3, 3), {"kernel_shape": [3, 5]}, ["kernel_shape [3, 5]"]),
        ((1, 4, 5, 5), (3, 4, 3, 3), {"strides": [1]}, ["strides [1]", "2 spatial axes"]),
        ((1, 4, 5, 5), (3, 4, 3, 3), {"pads": [1, 1]}, ["pads [1, 1]"]),
    ],
)
def test_conv_shape_errors(
    x_shape: tuple[int, ...], w_shape: tuple[int, ...], attributes: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(ShapeError) as caught:
        inferred_types("Conv", [np.zeros(x_shape, np.float32), np.zeros(w_shape, np.float32)], attributes)
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize(
    "attributes",
    [
        {"strides": [0, 1]},
        {"pads": [-1, 0, 0, 0]},
        {"auto_pad": "SAME"},
        {"group": 0},
        {"dilations": [2**40, 1]},
    ],
)
def test_hostile_attributes(attributes: dict[str, Any]) -> None:
    with pytest.raises(InvalidGraph):
        inferred_types(
            "Conv", [np.zeros((1, 1, 4, 4), np.float32), np.zeros((1, 1, 1, 1), np.float32)], attributes
        )


def test_output_too_large() -> None:
    x, weight = np.zeros((1, 1, 1, 1), np.float32), np.zeros((1, 1, 1, 1), np.float32)
    with pytest.raises(ShapeError, match="bytes"):
        inferred_types("Conv", [x, weight], {"pads": [2**30] * 4})


@pytest.mark.parametrize("name", ["float16", "float32"])
@pytest.mark.parametrize("precision", ["highest", "high"])
def test_infinite_weights_of_small_windows(device_name: str, name: str, precision: str) -> None:
    """No warning while they are prepared; at the highest precision sums of what the model states.

    float16 is NumPy's on the CPU, float32 machine code's where there is some.
    """
    sketch = Sketch("infinite")
    x = sketch.input("x", (1, 32, 16, 16), dtypes.from_numpy(np.dtype(name)))
    weight = np.full((32, 32, 3, 3), 0.5, name)
    weight[3, 5, 1, 1], weight[4, 0, 1, 1] = np.inf, np.nan
    model = save_graph(sketch.finish(sketch.node("Conv", x, sketch.constant(weight))))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with vkml.InferenceSession(model, devices=device_name, precision=precision) as session:
            [found] = session.run(None, {"x": np.ones((1, 32, 16, 16), name)})
    assert np.isnan(found[:, 4]).all()
    assert not np.isfinite(found[:, 3]).any()
    np.testing.assert_allclose(np.delete(found, [3, 4], 1), 144, rtol=1e-5)
    if precision == "highest":
        assert (found[:, 3] == np.inf).all()
