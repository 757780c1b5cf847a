"""Col2Im and MaxUnpool against onnxruntime and onnx's reference."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.checking import check_operator, inferred_types, random_array, run_operator
from vkml.errors import IndexOutOfRange, ShapeError


@pytest.mark.parametrize(
    ("image", "block", "attributes"),
    [
        ((5, 5), (1, 5), {}),
        ((5, 6), (2, 3), {"strides": [1, 2]}),
        ((6, 6), (2, 2), {"dilations": [2, 1], "pads": [1, 0, 1, 2]}),
        ((7,), (3,), {"strides": [2], "pads": [1, 1]}),
        ((3, 4, 5), (1, 2, 3), {}),
    ],
)
def test_col2im(image: tuple[int, ...], block: tuple[int, ...], attributes: dict[str, list[int]]) -> None:
    rank = len(image)
    strides, dilations = attributes.get("strides", [1] * rank), attributes.get("dilations", [1] * rank)
    pads = attributes.get("pads", [0] * 2 * rank)
    counts = [
        (image[i] + pads[i] + pads[i + rank] - dilations[i] * (block[i] - 1) - 1) // strides[i] + 1
        for i in range(rank)
    ]
    shape = (2, 3 * int(np.prod(block)), int(np.prod(counts)))
    x = random_array(np.random.default_rng(0), np.float32, shape)
    inputs = [x, np.array(image, np.int64), np.array(block, np.int64)]
    check_operator("Col2Im", inputs, attributes, opset=18, rtol=1e-4, atol=1e-5)


def test_col2im_errors() -> None:
    x = np.zeros((1, 5, 5), np.float32)
    with pytest.raises(ShapeError, match="columns of shape"):
        inferred_types("Col2Im", [x, np.array([5, 5]), np.array([1, 4])])
    with pytest.raises(ShapeError, match="equally long"):
        inferred_types("Col2Im", [x, np.array([5, 5]), np.array([5])])


@pytest.mark.parametrize("shape", [(1, 2, 6, 8), (2, 1, 9), (1, 1, 4, 4, 6)])
def test_max_unpool_undoes_max_pool(shape: tuple[int, ...]) -> None:
    rank = len(shape) - 2
    attributes = {
        "kernel_shape": [2] * rank if rank != 1 else [3],
        "strides": [2] * rank if rank != 1 else [3],
    }
    x = random_array(np.random.default_rng(0), np.float32, shape)
    values, indices = run_operator("MaxPool", [x], attributes, opset=12, outputs=2)
    found = check_operator("MaxUnpool", [values, indices], attributes, opset=11)[0]
    assert found.shape == shape
    np.testing.assert_array_equal(found, np.where(found != 0, x, 0))


def test_max_unpool_errors() -> None:
    x, attributes = np.ones((1, 1, 2, 2), np.float32), {"kernel_shape": [2, 2], "strides": [2, 2]}
    with pytest.raises(IndexOutOfRange, match="index 16 is outside the 16"):
        run_operator("MaxUnpool", [x, np.full((1, 1, 2, 2), 16)], attributes)
    with pytest.raises(ShapeError, match="smaller"):
        inferred_types("MaxUnpool", [x, np.zeros((1, 1, 2, 2), np.int64), np.array([1, 1, 3, 4])], attributes)
