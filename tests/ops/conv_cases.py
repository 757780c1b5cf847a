"""Random convolutions whose windows fit."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.ops.checking import random_array

LOOSE = {"rtol": 1e-4, "atol": 2e-4}


def conv_case(seed: int, transposed: bool) -> tuple[list[np.ndarray], dict[str, Any]]:
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
