"""ConvTranspose against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.checking import check_operator, inferred_types, random_array, run_operator
from tests.ops.conv_cases import LOOSE, conv_case
from vkml.engine.prepare import prepare
from vkml.engine.sketch import Sketch
from vkml.errors import ShapeError
from vkml.ir import find
from vkml.ir.dtypes import FLOAT32
from vkml.passes import expand_steps, specialise


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


@pytest.mark.parametrize(
    ("kernel", "strides", "filters", "convolutions"),
    [
        ((3, 3), (2, 2), 32, 4),
        ((3, 3), (2, 2), 1, 4),
        ((3, 3), (2, 2), 16, 1),  # so few filters for each
        ((3, 3, 3), (2, 1, 2), 32, 4),
        ((4, 4), (3, 3), 32, 9),
        ((7, 7), (4, 4), 32, 1),  # too many, and 49 of 64 products count
        ((5, 5), (2, 2), 32, 1),  # 25 of 36
        ((4, 4), (2, 2), 32, 1),
        ((2,), (3,), 32, 1),
        ((3, 2), (2, 3), 32, 1),
    ],
)
def test_dense_convolutions_multiply_by_few_zeros(
    kernel: tuple[int, ...], strides: tuple[int, ...], filters: int, convolutions: int
) -> None:
    """Where many would be, places between strides have convolutions of their own, which multiply by none."""
    sketch, rank = Sketch("transposed"), len(kernel)
    x = sketch.input("x", (2, 3, *(6,) * rank), FLOAT32)
    weight = sketch.input("weight", (3, filters, *kernel), FLOAT32)
    pads = [max(k - s, 0) for k, s in zip(kernel, strides, strict=True)]
    made = sketch.node("ConvTranspose", x, weight, strides=strides, pads=(*(0,) * rank, *pads))
    graph = specialise(
        prepare(sketch.finish(made)), {"x": (2, 3, *(6,) * rank), "weight": (3, filters, *kernel)}
    )
    steps = expand_steps(graph, lambda _, nodes: [node.key for node in nodes if node.op != "ConvTranspose"])
    products = {"ConvTranspose": 0, "Conv": 0}
    for each in (graph, steps):
        for node in each.nodes:
            if node.op in products:
                inputs, outputs = (
                    [each.types[name] for name in of if name] for of in (node.inputs, node.outputs)
                )
                products[node.op] += find(node).multiply_adds(node, inputs, outputs)
    assert sum(node.op == "Conv" for node in steps.nodes) == convolutions
    if convolutions > 1:
        assert products["Conv"] == products["ConvTranspose"]


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
