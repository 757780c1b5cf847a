"""DeformConv against onnx's reference, MaxRoiPool against onnxruntime, Det and BitCast against NumPy."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto

import vkml
from tests.ops.checking import build_model, check_operator, inferred_types, run_operator
from vkml.errors import IndexOutOfRange, InvalidGraph, ShapeError

RANDOM = np.random.default_rng(22)


def normal(*shape: int) -> Any:
    return RANDOM.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(
    ("inputs", "attributes"),
    [
        ([normal(1, 2, 4, 5), normal(3, 2, 2, 2), normal(1, 8, 3, 4)], {}),
        (
            [normal(2, 4, 5, 4), normal(2, 2, 3, 2), 2 * normal(2, 24, 3, 4), normal(2), normal(2, 12, 3, 4)],
            {"group": 2, "offset_group": 2, "strides": (2, 1), "pads": (1, 0, 1, 1)},
        ),
        ([normal(1, 1, 6, 6), normal(1, 1, 2, 2), normal(1, 8, 4, 4)], {"dilations": (2, 2)}),
    ],
)
def test_deform_conv(inputs: Any, attributes: dict[str, Any]) -> None:
    check_operator("DeformConv", inputs, attributes, opset=19, against="onnx", rtol=1e-4, atol=1e-4)


def test_deform_conv_without_offsets_is_a_convolution() -> None:
    """Over one axis and over three."""
    for spatial, kernel in (((7,), (3,)), ((3, 4, 3), (2, 2, 2))):
        output = tuple(size - k + 1 for size, k in zip(spatial, kernel, strict=True))
        x, weight = normal(2, 2, *spatial), normal(3, 2, *kernel)
        offset = np.zeros((2, int(np.prod(kernel)) * len(kernel), *output), np.float32)
        [found] = run_operator("DeformConv", [x, weight, offset], opset=19)
        [expected] = run_operator("Conv", [x, weight])
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_deform_conv_refuses_what_does_not_fit() -> None:
    x, weight = normal(1, 2, 4, 5), normal(3, 2, 2, 2)
    with pytest.raises(ShapeError, match="offset has shape"):
        inferred_types("DeformConv", [x, weight, normal(1, 8, 4, 4)], opset=19)
    with pytest.raises(ShapeError, match="groups"):
        inferred_types("DeformConv", [x, weight, normal(1, 8, 3, 4)], {"group": 2}, opset=19)


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_max_roi_pool(scale: float) -> None:
    regions = np.array([[0, 0, 0, 5, 3], [1, 2, 1, 3, 9], [0, 4, 4, 4, 4], [1, 8, 8, 9, 9]], np.float32)
    attributes = {"pooled_shape": (2, 3), "spatial_scale": scale}
    check_operator("MaxRoiPool", [normal(2, 3, 6, 7), regions], attributes, opset=1)


def test_max_roi_pool_refuses_images_that_are_not_there() -> None:
    with pytest.raises(IndexOutOfRange, match=r"image 2\.0 of region 0"):
        run_operator(
            "MaxRoiPool",
            [normal(2, 1, 3, 3), np.array([[2, 0, 0, 1, 1]], np.float32)],
            {"pooled_shape": (1, 1)},
        )


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
def test_determinants(dtype: Any) -> None:
    x = normal(2, 3, 4, 4).astype(dtype)
    [found] = run_operator("Det", [x], opset=22)
    assert found.dtype == dtype and found.shape == (2, 3)
    expected = np.linalg.det(x.astype(np.float64))
    tolerance = 4 * float(ml_dtypes.finfo(dtype).eps) if np.dtype(dtype).itemsize < 8 else 1e-13
    np.testing.assert_allclose(found.astype(np.float64), expected, rtol=tolerance, atol=tolerance)


def test_determinants_need_square_matrices() -> None:
    with pytest.raises(ShapeError, match="square"):
        inferred_types("Det", [normal(2, 3)], opset=22)


@pytest.mark.parametrize(
    ("source", "target"),
    [("float32", "int32"), ("uint16", "bfloat16"), ("int4", "uint4"), ("int64", "float64")],
)
def test_bits(source: str, target: str) -> None:
    kinds = [np.dtype(getattr(ml_dtypes, name, None) or name) for name in (source, target)]
    x = np.array([-3, 1, 7], np.int32).astype(kinds[0])
    code = {"int32": 6, "bfloat16": 16, "uint4": 21, "float64": 11}[target]
    [found] = run_operator("BitCast", [x], {"to": code}, opset=26)
    assert found.dtype == kinds[1]
    if target == "uint4":
        assert found.astype(int).tolist() == [13, 1, 7]
    else:
        assert found.tobytes() == x.tobytes()


def test_bits_of_another_number_are_refused() -> None:
    with pytest.raises(InvalidGraph, match="32"):
        inferred_types("BitCast", [normal(2)], {"to": int(TensorProto.INT64)}, opset=26)


def test_deform_conv_on_a_device(vulkan_device_name: str) -> None:
    inputs = [normal(1, 2, 4, 5), normal(3, 2, 2, 2), normal(1, 8, 3, 4)]
    model = build_model("DeformConv", inputs, {}, opset=19).SerializeToString()
    with vkml.InferenceSession(model, devices=vulkan_device_name) as session:
        [found] = session.run(None, {f"x{at}": array for at, array in enumerate(inputs)})
    np.testing.assert_allclose(found, run_operator("DeformConv", inputs, opset=19)[0], rtol=1e-4, atol=1e-4)
