"""The gradient of SoftmaxCrossEntropyLoss: differences, second order, PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.autograd.checking import check, normal

RANDOM = np.random.default_rng(74)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("shape", [(4,), (2, 3)])
@pytest.mark.parametrize("ignored", [None, 1])
def test_losses(shape: tuple[int, ...], reduction: str, ignored: int | None, device_name: str) -> None:
    scores = normal(RANDOM, shape[0], 3, *shape[1:], scale=2.0)
    labels = RANDOM.integers(0, 3, shape)
    labels.flat[0], labels.flat[1] = 1, 2
    attributes: dict[str, Any] = {"reduction": reduction}
    if ignored is not None:
        attributes["ignore_index"] = ignored
    check("SoftmaxCrossEntropyLoss", [scores, labels], attributes, device=device_name)
    check("SoftmaxCrossEntropyLoss", [scores, labels, RANDOM.random(3)], attributes, device=device_name)


def test_with_logarithms(device_name: str) -> None:
    scores, labels = normal(RANDOM, 4, 3), RANDOM.integers(0, 3, 4)
    check("SoftmaxCrossEntropyLoss", [scores, labels], {"reduction": "none"}, outputs=2, device=device_name)
