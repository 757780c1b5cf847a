"""Conv, ConvTranspose and ConvInteger against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ops.checking import check_operator, inferred_types, random_array, run_operator
from vkml.errors import InvalidGraph, ShapeError

LOOSE = {"rtol": 1e-4, "atol": 2e-4}


def _conv_case(seed: int, transposed: bool) -> tuple[list[np.ndarray], dict[str, Any]]:
    """A random convolution whose windows fit."""
    generator = np.random.default_rng(seed)

    def pick(low: int, high: int) -> int:
        return int(generator.integers(low, high + 1))

    rank = pick(1, 3)
    group = pick(1, 3)
    inner, outer = pick(1, 3), pick(1, 3)
    if pick(0, 3) == 0:
        inner = 1
    kernel = [pick(1, 3) for _ in range(rank)]
    dilations = [pick(1, 2) for _ in range(rank)]
    strides = [pick(1, 3) for _ in range(rank)]
    spatial = [(k - 1) * d + 1 + pick(0, 5) for k, d in zip(kernel, dilations, strict=True)]
    attributes: dict[str, Any] = {"group": group, "strides": strides, "dilations": dilations}
    auto = ["NOTSET", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"][pick(0, 4)]
    if auto == "NOTSET":
        attributes["pads"] = [pick(0, 2) for _ in range(2 * rank)]
    else:
        attributes["auto_pad"] = auto
        if auto.startswith("SAME") and not transposed:
            # onnxruntime's SAME padding is only defined without dilation.
            attributes["dilations"] = [1] * rank
    if pick(0, 1):
        attributes["kernel_shape"] = kernel
    x = random_array(generator, np.float32, (pick(1, 2), group * inner, *spatial))
    shape = (group * inner, outer) if transposed else (group * outer, inner)
    weight = random_array(generator, np.float32, (*shape, *kernel))
    inputs = [x, weight]
    if pick(0, 1):
        inputs.append(random_array(generator, np.float32, (group * outer,)))
    return inputs, attributes


@pytest.mark.parametrize("seed", range(60))
def test_random_conv(seed: int) -> None:
    inputs, attributes = _conv_case(seed, transposed=False)
    check_operator("Conv", inputs, attributes, opset=11, **LOOSE)


@pytest.mark.parametrize("seed", range(60))
def test_random_conv_transpose(seed: int) -> None:
    inputs, attributes = _conv_case(seed, transposed=True)
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
    x, weight = random_array(generator, np.float32, (1, 3, 20, 9)), random_array(generator, np.float32, (4, 3, 3, 3))
    whole = run_operator("Conv", [x, weight])[0]
    monkeypatch.setattr(conv, "COLUMN_ELEMENTS", 1000)
    np.testing.assert_allclose(run_operator("Conv", [x, weight])[0], whole, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_types(dtype: type) -> None:
    generator = np.random.default_rng(7)
    x, weight = random_array(generator, dtype, (1, 8, 6, 6)), random_array(generator, dtype, (4, 8, 3, 3), 0.2)
    check_operator("Conv", [x, weight], {"pads": [1, 1, 1, 1]}, against="onnx", rtol=4e-3, atol=4e-3)
    found = run_operator("Conv", [x, weight])[0]
    exact = run_operator("Conv", [x.astype(np.float64), weight.astype(np.float64)])[0]
    rounded = exact.astype(dtype)
    if dtype == np.float16:
        # Summed in float32 and rounded once: at most one unit in the last place from the exact sum's rounding.
        assert np.abs(found.view(np.int16).astype(int) - rounded.view(np.int16).astype(int)).max() <= 1


def test_empty_batch_and_empty_plane() -> None:
    weight = np.ones((4, 3, 3, 3), np.float32)
    assert run_operator("Conv", [np.ones((0, 3, 8, 8), np.float32), weight])[0].shape == (0, 4, 6, 6)
    assert run_operator("ConvTranspose", [np.ones((0, 4, 2, 2), np.float32), weight])[0].shape == (0, 3, 4, 4)


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
    [{"strides": [0, 1]}, {"pads": [-1, 0, 0, 0]}, {"auto_pad": "SAME"}, {"group": 0}, {"dilations": [2**40, 1]}],
)
def test_hostile_attributes(attributes: dict[str, Any]) -> None:
    with pytest.raises(InvalidGraph):
        inferred_types("Conv", [np.zeros((1, 1, 4, 4), np.float32), np.zeros((1, 1, 1, 1), np.float32)], attributes)


def test_output_too_large() -> None:
    x, weight = np.zeros((1, 1, 1, 1), np.float32), np.zeros((1, 1, 1, 1), np.float32)
    with pytest.raises(ShapeError, match="bytes"):
        inferred_types("Conv", [x, weight], {"pads": [2**30] * 4})
    with pytest.raises(ShapeError, match="bytes"):
        inferred_types("ConvTranspose", [x, weight], {"output_padding": [2**30] * 2})
