"""Resize and Upsample against onnxruntime and onnx's reference."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import vkml
from tests.ops.checking import build_model, check_operator, inferred_types, random_array, run_operator
from vkml.errors import InvalidGraph, ShapeError
from vkml.ir import TensorType, dtypes, static

LOOSE: dict[str, Any] = {"rtol": 1e-4, "atol": 2e-4}
MODES = ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "half_pixel_symmetric"]
TARGETS = [(4, 6), (8, 12), (3, 11), (9, 4), (1, 1), (2, 13)]


def _image(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return random_array(np.random.default_rng(0), dtype, shape)


def _sizes(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def _scales(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


@pytest.mark.parametrize("nearest", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
@pytest.mark.parametrize("coordinates", MODES)
@pytest.mark.parametrize("target", TARGETS)
def test_nearest(nearest: str, coordinates: str, target: tuple[int, int]) -> None:
    attributes = {"coordinate_transformation_mode": coordinates, "nearest_mode": nearest}
    inputs = [_image(1, 2, 4, 6), None, None, _sizes(1, 2, *target)]
    check_operator("Resize", inputs, attributes, opset=19)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("coordinates", MODES)
@pytest.mark.parametrize("target", TARGETS)
def test_interpolation(mode: str, coordinates: str, target: tuple[int, int]) -> None:
    attributes = {"coordinate_transformation_mode": coordinates, "mode": mode}
    inputs = [_image(1, 2, 4, 6), None, None, _sizes(1, 2, *target)]
    check_operator("Resize", inputs, attributes, opset=19, **LOOSE)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("coordinates", MODES)
@pytest.mark.parametrize("scales", [(0.6, 0.65), (2.3, 1.7), (0.375, 3.0), (1.0, 0.5), (0.5, 0.5)])
def test_scales(mode: str, coordinates: str, scales: tuple[float, float]) -> None:
    attributes = {"coordinate_transformation_mode": coordinates, "mode": mode}
    inputs = [_image(2, 1, 8, 7), None, _scales(1, 1, *scales)]
    # onnxruntime aligns corners by the rounded length; ONNX says by scale · length.
    against = "onnx" if coordinates == "align_corners" else "onnxruntime"
    check_operator("Resize", inputs, attributes, opset=19, against=against, **LOOSE)


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
def test_corners_align_by_the_length_that_a_policy_gives(policy: str) -> None:
    attributes = {
        "coordinate_transformation_mode": "align_corners", "keep_aspect_ratio_policy": policy, "axes": [2, 3],
        "mode": "linear",
    }  # fmt: skip
    inputs = [_image(1, 1, 4, 7), None, None, _sizes(3, 9)]
    check_operator("Resize", inputs, attributes, opset=19, against="onnx", **LOOSE)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("roi", [(0.1, 0.2, 0.8, 0.9), (-0.3, 0.4, 1.2, 1.5), (0.9, 0.1, 0.2, 0.7)])
@pytest.mark.parametrize("target", [(5, 4), (1, 9)])
def test_crop_and_resize(mode: str, roi: tuple[float, ...], target: tuple[int, int]) -> None:
    attributes = {
        "coordinate_transformation_mode": "tf_crop_and_resize",
        "mode": mode,
        "extrapolation_value": -7.5,
    }
    full = np.array([0, 0, *roi[:2], 1, 1, *roi[2:]], np.float32)
    inputs = [_image(1, 2, 6, 8), full, None, _sizes(1, 2, *target)]
    check_operator("Resize", inputs, attributes, opset=19, **LOOSE)


@pytest.mark.parametrize("coefficient", [-0.75, -0.5])
@pytest.mark.parametrize("exclude_outside", [0, 1])
@pytest.mark.parametrize("target", TARGETS)
def test_cubic_options(coefficient: float, exclude_outside: int, target: tuple[int, int]) -> None:
    attributes = {"mode": "cubic", "cubic_coeff_a": coefficient, "exclude_outside": exclude_outside}
    inputs = [_image(1, 2, 4, 6), None, None, _sizes(1, 2, *target)]
    check_operator("Resize", inputs, attributes, opset=13, **LOOSE)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("exclude_outside", [0, 1])
@pytest.mark.parametrize("target", [(4, 6), (3, 4), (2, 2), (9, 3), (8, 12)])
def test_antialias(mode: str, exclude_outside: int, target: tuple[int, int]) -> None:
    attributes = {"mode": mode, "antialias": 1, "exclude_outside": exclude_outside}
    inputs = [_image(1, 2, 9, 12), None, None, _sizes(1, 2, *target)]
    check_operator("Resize", inputs, attributes, opset=19, **LOOSE)
    check_operator("Resize", inputs, attributes, opset=19, against="onnx", **LOOSE)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("antialias", [0, 1])
def test_next_to_nothing_of_an_image(mode: str, antialias: int) -> None:
    """Windows as long as such a scale asks for fit into no memory."""
    attributes = {"mode": mode, "antialias": antialias if mode != "nearest" else 0}
    inputs = [_image(1, 2, 9, 12), None, _scales(1, 1, 0.5, 1e-30)]
    [found] = run_operator("Resize", inputs, attributes, opset=19)
    assert found.shape == (1, 2, 4, 0)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("rank", [1, 2, 3, 5])
def test_ranks(mode: str, rank: int) -> None:
    shape = (2, 3, 4, 3, 5)[-rank:]
    scales = (1.0, 1.0, 2.0, 1.5, 0.6)[-rank:]
    against = "onnx" if mode == "linear" and rank == 1 else "onnxruntime"
    inputs = [_image(*shape), None, _scales(*scales)]
    check_operator("Resize", inputs, {"mode": mode}, opset=13, against=against, **LOOSE)


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
@pytest.mark.parametrize("target", [(7, 8), (3, 20), (9, 2)])
def test_aspect_ratio(policy: str, target: tuple[int, int]) -> None:
    attributes = {"keep_aspect_ratio_policy": policy, "axes": (2, 3), "mode": "linear"}
    inputs = [_image(1, 1, 4, 6), None, None, _sizes(*target)]
    check_operator("Resize", inputs, attributes, opset=18, **LOOSE)


@pytest.mark.parametrize("axes", [(2, 3), (3, 2), (-1,), (-2, -1)])
def test_axes(axes: tuple[int, ...]) -> None:
    inputs = [_image(1, 2, 4, 6), None, _scales(*(2.0, 0.5)[: len(axes)])]
    check_operator("Resize", inputs, {"axes": axes}, opset=18)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int32])
def test_integers(dtype: type) -> None:
    x = np.random.default_rng(1).integers(0, 120, (1, 1, 5, 6)).astype(dtype)
    check_operator("Resize", [x, None, _scales(1, 1, 2, 2)], opset=13)
    found = run_operator("Resize", [x, None, _scales(1, 1, 1.7, 2.3)], {"mode": "linear"})[0]
    exact = run_operator("Resize", [x.astype(np.float64), None, _scales(1, 1, 1.7, 2.3)], {"mode": "linear"})[
        0
    ]
    assert np.abs(found - exact).max() <= 1


def test_float16_and_float64() -> None:
    x = _image(1, 1, 5, 6)
    for dtype, tolerance in ((np.float16, 2e-3), (np.float64, 1e-4)):
        found = run_operator("Resize", [x.astype(dtype), None, _scales(1, 1, 1.7, 2.3)], {"mode": "cubic"})[0]
        exact = run_operator("Resize", [x, None, _scales(1, 1, 1.7, 2.3)], {"mode": "cubic"})[0]
        assert found.dtype == dtype
        np.testing.assert_allclose(found, exact, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("scales", [(2.0, 2.0), (0.5, 0.5), (0.6, 1.3), (0.3, 0.4)])
def test_older_opsets(mode: str, scales: tuple[float, float]) -> None:
    x = _image(1, 2, 8, 7)
    check_operator("Resize", [x, _scales(1, 1, *scales)], {"mode": mode}, opset=10, **LOOSE)
    if min(scales) >= 1:
        check_operator("Upsample", [x, _scales(1, 1, *scales)], {"mode": mode}, opset=9, **LOOSE)
        listed = [1.0, 1.0, *map(float, scales)]
        check_operator("Upsample", [x], {"mode": mode, "scales": listed}, opset=7, **LOOSE)


def test_upsample_of_opset_1() -> None:
    x = _image(1, 2, 3, 4)
    attributes = {"height_scale": 2.0, "width_scale": 3.0, "mode": "nearest"}
    found = run_operator("Upsample", [x], attributes, opset=1)[0]
    np.testing.assert_array_equal(found, x.repeat(2, axis=2).repeat(3, axis=3))


def test_half_pixel_for_nearest_of_opset_11() -> None:
    attributes = {"coordinate_transformation_mode": "tf_half_pixel_for_nn", "nearest_mode": "floor"}
    roi = np.zeros(0, np.float32)
    for scales in ((2.0, 2.0), (0.4, 1.7)):
        check_operator("Resize", [_image(1, 1, 6, 7), roi, _scales(1, 1, *scales)], attributes, opset=11)
    check_operator("Resize", [_image(1, 1, 6, 7), roi, np.zeros(0, np.float32), _sizes(1, 1, 3, 9)], opset=11)


def test_empty_batch() -> None:
    assert run_operator("Resize", [_image(0, 2, 3, 4), None, _scales(1, 1, 2, 2)])[0].shape == (0, 2, 6, 8)


def test_errors() -> None:
    x = _image(1, 1, 4, 4)
    cases: list[tuple[type[Exception], list[Any], dict[str, Any], str]] = [
        (InvalidGraph, [x], {}, "exactly one of scales and sizes"),
        (
            InvalidGraph,
            [x, None, _scales(1, 1, 2, 2), _sizes(1, 1, 8, 8)],
            {},
            "exactly one of scales and sizes",
        ),
        (ShapeError, [x, None, _scales(1, 1, 2)], {}, "for 4 axes"),
        (ShapeError, [x, None, _scales(1, 1, 0, 1)], {}, "scale 0.0"),
        (ShapeError, [x, None, _scales(1, 1, np.nan, 1)], {}, "scale nan"),
        (ShapeError, [x, None, _scales(1, 1, 1e30, 1e30)], {}, "bytes"),
        (ShapeError, [x, None, None, _sizes(1, 1, 2**50, 2**50)], {}, "bytes"),
        (ShapeError, [x, None, None, _sizes(1, 1, -1, 2)], {}, "negative"),
        (ShapeError, [_image(1, 1, 0, 4), None, None, _sizes(1, 1, 2, 2)], {}, "empty"),
        (InvalidGraph, [x, None, _scales(1, 1, 2, 2)], {"mode": "area"}, "mode 'area'"),
        (
            ShapeError,
            [x, None, _scales(1, 1, 2, 2)],
            {"coordinate_transformation_mode": "tf_crop_and_resize"},
            "roi",
        ),
    ]
    for error, inputs, attributes, words in cases:
        with pytest.raises(error, match=words):
            inferred_types("Resize", inputs, attributes)
    unknown = inferred_types("Resize", [x, None, None, static(dtypes.INT64, (4,))])
    assert unknown == [TensorType(dtypes.FLOAT32, (None,) * 4)]


def test_weights_that_overflow_are_prepared_without_a_warning(device_name: str) -> None:
    x, scales = random_array(np.random.default_rng(1), "float32", (1, 1, 4, 4)), np.float32([1, 1, 2, 2])
    model = build_model("Resize", [x, None, scales], {"mode": "cubic", "cubic_coeff_a": np.inf})
    with warnings.catch_warnings():
        # NumPy's: where this test comes first, a session imports half of vkml and what that needs meanwhile.
        warnings.simplefilter("error", RuntimeWarning)
        with vkml.InferenceSession(model.SerializeToString(), devices=device_name) as session:
            [found] = session.run(None, {"x0": x, "x2": scales})
    assert np.isnan(found).any()
