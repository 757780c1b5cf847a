"""Gradients of convolutions: by image, weight and bias, in one to three dimensions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.autograd.checking import check, normal
from vkml import tracing
from vkml.errors import ShapeError

RANDOM = np.random.default_rng(33)

CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "dense": ((2, 3, 5, 6), (4, 3, 3, 3), {"pads": (1, 1, 1, 1)}),
    "pointwise": ((2, 3, 4, 3), (2, 3, 1, 1), {}),
    "strided": ((2, 2, 7, 8), (3, 2, 3, 3), {"pads": (1, 1, 1, 1), "strides": (2, 2)}),
    "strided pointwise": ((1, 2, 5, 6), (3, 2, 1, 1), {"strides": (2, 3)}),
    "unread behind": ((1, 2, 9, 8), (2, 2, 2, 3), {"strides": (3, 4)}),
    "wide strides and pads": ((1, 1, 8, 5), (2, 1, 5, 2), {"strides": (3, 2), "pads": (4, 3, 2, 0)}),
    "pads beyond the kernel": ((1, 2, 3, 3), (2, 2, 2, 1), {"pads": (3, 2, 2, 4), "strides": (1, 2)}),
    "dilated": ((2, 2, 8, 7), (2, 2, 3, 2), {"dilations": (2, 3), "pads": (2, 0, 1, 3)}),
    "dilated and strided": ((1, 2, 9, 8), (2, 2, 3, 2), {"dilations": (2, 3), "strides": (2, 2)}),
    "groups": ((2, 4, 5, 4), (6, 2, 3, 2), {"group": 2, "pads": (1, 0, 1, 1)}),
    "strided groups": ((2, 4, 6, 5), (2, 2, 3, 3), {"group": 2, "strides": (2, 2), "pads": (1, 1, 1, 1)}),
    "depthwise": ((2, 3, 5, 5), (3, 1, 3, 3), {"group": 3, "pads": (1, 1, 1, 1)}),
    "depthwise, two filters each": ((1, 3, 6, 5), (6, 1, 3, 2), {"group": 3, "strides": (2, 1)}),
    "same upper": ((1, 2, 6, 5), (2, 2, 3, 4), {"auto_pad": "SAME_UPPER", "strides": (2, 2)}),
    "same lower": ((1, 2, 6, 5), (2, 2, 4, 3), {"auto_pad": "SAME_LOWER"}),
    "valid": ((1, 2, 6, 5), (2, 2, 3, 2), {"auto_pad": "VALID", "strides": (1, 2)}),
    "many filters": ((5, 5, 4, 5), (32, 5, 3, 3), {"pads": (1, 1, 1, 1)}),
    "many filters, strided": (
        (3, 4, 7, 6),
        (48, 4, 2, 3),
        {"strides": (2, 1), "dilations": (2, 1), "pads": (1, 0, 2, 1)},
    ),
    "line": ((2, 3, 11), (4, 3, 4), {"strides": (2,), "pads": (1, 2)}),
    "volume, many filters": ((3, 5, 3, 4, 3), (32, 5, 2, 3, 1), {"pads": (1, 1, 0, 0, 1, 0)}),
    "volume": ((1, 2, 4, 3, 5), (2, 2, 2, 2, 3), {"pads": (1, 0, 1, 0, 1, 1), "strides": (1, 1, 2)}),
}


@pytest.mark.parametrize("case", CASES)
def test_conv(case: str, device_name: str) -> None:
    x, weight, attributes = CASES[case]
    inputs = [normal(RANDOM, *x), normal(RANDOM, *weight), normal(RANDOM, weight[0])]
    if case in ("pointwise", "line"):
        inputs.pop()
    check("Conv", inputs, attributes, differences=device_name == "cpu", device=device_name)


def test_conv_over_four_axes() -> None:
    check(
        "Conv",
        [normal(RANDOM, 1, 2, 3, 2, 3, 2), normal(RANDOM, 2, 2, 2, 1, 2, 2)],
        {"strides": (1, 1, 1, 2)},
    )


@pytest.mark.parametrize("case", ["strided", "dilated", "strided groups", "line", "volume"])
def test_conv_as_torch_has_it(case: str, device_name: str) -> None:
    torch = pytest.importorskip("torch")

    x, weight, attributes = CASES[case]
    stated = dict(attributes)
    pads = stated.pop("pads", (0,) * 2 * (len(x) - 2))
    half = len(pads) // 2
    around = [entry for axis in reversed(range(half)) for entry in (pads[axis], pads[half + axis])]
    names = {"group": "groups", "strides": "stride", "dilations": "dilation"}
    arguments = {names[key]: value for key, value in stated.items()}

    def convolved(x: Any, weight: Any, bias: Any) -> Any:
        function = [torch.nn.functional.conv1d, torch.nn.functional.conv2d, torch.nn.functional.conv3d][
            half - 1
        ]
        return function(torch.nn.functional.pad(x, around), weight, bias, **arguments)

    inputs = [normal(RANDOM, *x), normal(RANDOM, *weight), normal(RANDOM, weight[0])]
    check("Conv", inputs, attributes, torch=convolved, differences=False, device=device_name)


@pytest.mark.parametrize("dtype", [np.float16, "bfloat16"])
def test_conv_in_sixteen_bits(dtype: Any) -> None:
    import ml_dtypes

    x, weight, attributes = CASES["strided"]
    inputs = [normal(RANDOM, *x), normal(RANDOM, *weight), normal(RANDOM, weight[0])]
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    check("Conv", inputs, attributes, differences=False, dtype=kind)


@pytest.mark.parametrize(
    ("x", "weight", "attributes"),
    [
        ((2, 3, 4, 5), (3, 2, 3, 3), {"pads": (1, 1, 1, 1)}),
        ((2, 2, 3, 4), (2, 3, 3, 2), {"strides": (2, 3), "pads": (1, 0, 0, 1), "output_padding": (1, 2)}),
        ((1, 4, 3, 3), (4, 2, 2, 3), {"group": 2, "strides": (2, 2), "dilations": (2, 1)}),
        ((1, 2, 3, 3), (2, 2, 3, 3), {"strides": (2, 2), "output_shape": (6, 8)}),
        ((1, 2, 3, 4), (2, 1, 3, 3), {"strides": (2, 2), "auto_pad": "SAME_UPPER"}),
        ((2, 3, 5), (3, 2, 4), {"strides": (3,)}),
        ((1, 2, 2, 3, 2), (2, 2, 2, 2, 3), {"strides": (1, 2, 1)}),
    ],
)
def test_conv_transpose(x: Any, weight: Any, attributes: dict[str, Any], device_name: str) -> None:
    filters = weight[1] * attributes.get("group", 1)
    inputs = [normal(RANDOM, *x), normal(RANDOM, *weight), normal(RANDOM, filters)]
    check("ConvTranspose", inputs, attributes, differences=device_name == "cpu", device=device_name)


def test_conv_transpose_as_torch_has_it(device_name: str) -> None:
    torch = pytest.importorskip("torch")

    check(
        "ConvTranspose", [normal(RANDOM, 2, 4, 3, 4), normal(RANDOM, 4, 3, 3, 3), normal(RANDOM, 6)],
        {"strides": (2, 2), "pads": (1, 1, 1, 1), "output_padding": (1, 0), "group": 2},
        torch=lambda x, w, b: torch.nn.functional.conv_transpose2d(
            x, w, b, stride=2, padding=1, output_padding=(1, 0), groups=2
        ),
        differences=False, device=device_name,
    )  # fmt: skip


@pytest.mark.parametrize("case", ["strided", "dilated", "strided groups", "depthwise", "line", "volume"])
def test_the_gradient_by_the_weight_is_an_operator(case: str, device_name: str) -> None:
    x, weight, stated = CASES[case]
    rank = len(x) - 2
    attributes = {"strides": (1,) * rank, "dilations": (1,) * rank, "group": 1, **stated}
    pads = attributes.pop("pads", (0,) * 2 * rank)
    arguments = {**attributes, "kernel_shape": weight[2:], "pads": pads[:rank]}
    output = tracing.apply(
        "Conv", tracing.value_of(np.zeros(x)), tracing.value_of(np.zeros(weight)), pads=pads, **attributes
    )
    inputs = [normal(RANDOM, *x), normal(RANDOM, *output.dims)]
    is_first = device_name == "cpu"
    check("ConvWeightGradient", inputs, arguments, domain="vkml", differences=is_first, device=device_name)


def test_nothing_to_convolve_gives_zeros() -> None:
    attributes = {"pads": (1, 1, 1, 1), "strides": (2, 1)}
    found = check(
        "Conv", [np.zeros((0, 2, 4, 4)), normal(RANDOM, 3, 2, 3, 3)], attributes, second_order=False
    )
    assert all(gradient is not None and not gradient.any() for gradient in found)


def test_a_gradient_that_is_not_of_this_image_is_refused() -> None:
    image, gradient = tracing.value_of(np.zeros((2, 3, 4, 4))), tracing.value_of(np.zeros((1, 2, 4, 4)))
    attributes = {"kernel_shape": (1, 1), "strides": (1, 1), "dilations": (1, 1), "pads": (0, 0)}
    with pytest.raises(ShapeError, match="is not one of a convolution of"):
        tracing.apply("ConvWeightGradient", image, gradient, domain="vkml", **attributes)
