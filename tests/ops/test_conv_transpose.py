"""ConvTranspose against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.checking import check_operator, inferred_types, random_array, run_operator
from tests.ops.conv_cases import LOOSE, conv_case
from vkml.errors import ShapeError


@pytest.mark.parametrize("seed", range(60))
def test_random_conv_transpose(seed: int) -> None:
    inputs, attributes = conv_case(seed, transposed=True)
    generator = np.random.default_rng(seed + 1000)
    strides, dilations = attributes["strides"], attributes["dilations"]
    extents = [(k - 1) * d + 1 for k, d in zip(inputs[1].shape[2:], dilations, strict=True)]
    if attributes.get("auto_pad", "").startswith("SAME"):
        # Where the kernel is shorter than the stride, onnxruntime's output is smaller than the specified one.
        strides = attributes["strides"] = [min(s, e) for s, e in zip(strides, extents, strict=True)]
    if generator.integers(2):
        attributes["output_padding"] = [int(generator.integers(0, stride)) for stride in strides]
    pads = attributes.get("pads", [0] * 6)
    rank = len(strides)
    full = [(n - 1) * s + e for n, s, e in zip(inputs[0].shape[2:], strides, extents, strict=True)]
    if any(size <= pads[axis] + pads[axis + rank] for axis, size in enumerate(full)):
        attributes.pop("pads", None)
    check_operator("ConvTranspose", inputs, attributes, opset=11, **LOOSE)


def test_conv_transpose_same_with_a_stride_above_the_kernel() -> None:
    x, weight = np.array([[[1, 2]]], np.float32), np.ones((1, 1, 1), np.float32)
    found = run_operator("ConvTranspose", [x, weight], {"strides": [3], "auto_pad": "SAME_UPPER"})[0]
    np.testing.assert_array_equal(found, [[[1, 0, 0, 2, 0, 0]]])


@pytest.mark.parametrize("auto_pad", ["NOTSET", "SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("output_shape", [[10, 8], [9, 9], [11, 10]])
def test_conv_transpose_output_shape(auto_pad: str, output_shape: list[int]) -> None:
    generator = np.random.default_rng(0)
    x = random_array(generator, np.float32, (1, 2, 5, 5))
    weight = random_array(generator, np.float32, (2, 3, 3, 3))
    attributes = {"strides": [2, 2], "output_shape": output_shape, "auto_pad": auto_pad}
    check_operator("ConvTranspose", [x, weight], attributes, opset=11, **LOOSE)


def test_empty_batch() -> None:
    x, weight = np.ones((0, 4, 2, 2), np.float32), np.ones((4, 3, 3, 3), np.float32)
    assert run_operator("ConvTranspose", [x, weight])[0].shape == (0, 3, 4, 4)


def test_errors() -> None:
    x, weight = np.zeros((1, 4, 2, 2), np.float32), np.zeros((4, 3, 3, 3), np.float32)
    with pytest.raises(ShapeError, match="bytes"):
        inferred_types("ConvTranspose", [x, weight], {"output_padding": [2**30] * 2})
    with pytest.raises(ShapeError, match="weight expects 3 input channels, input has 4"):
        inferred_types("ConvTranspose", [x, weight[:3]])
    with pytest.raises(ShapeError, match="cut more than the full output"):
        inferred_types("ConvTranspose", [x, weight], {"pads": [3, 3, 3, 3]})
    with pytest.raises(ShapeError, match="output_shape"):
        inferred_types("ConvTranspose", [x, weight], {"output_shape": [3]})
