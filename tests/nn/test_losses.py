"""Losses against PyTorch's, with all that they can be told."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import vkml
from vkml import nn

torch = pytest.importorskip("torch")
RANDOM = np.random.default_rng(5)


@pytest.mark.parametrize("shape", [(4,), (5, 4), (3, 4, 2, 3)])
@pytest.mark.parametrize("kind", ["classes", "probabilities"])
def test_cross_entropy(shape: tuple[int, ...], kind: str) -> None:
    logits, weights = RANDOM.standard_normal(shape), RANDOM.random(4) + 0.5
    places = shape[:1] + shape[2:] if len(shape) > 1 else ()
    if kind == "classes":
        target = RANDOM.integers(0, 4, places)
        target = np.where(RANDOM.random(places) < 0.2, -100, target) if places else target
    else:
        target = RANDOM.random(shape)
    for weighted, reduction, smoothing in itertools.product(
        (False, True), ("mean", "sum", "none"), (0.0, 0.3)
    ):
        found = nn.functional.cross_entropy(
            vkml.tensor(logits), vkml.tensor(target), vkml.tensor(weights) if weighted else None,
            reduction=reduction, label_smoothing=smoothing,
        )  # fmt: skip
        wanted = torch.nn.functional.cross_entropy(
            torch.tensor(logits), torch.tensor(target), torch.tensor(weights) if weighted else None,
            reduction=reduction, label_smoothing=smoothing,
        )  # fmt: skip
        np.testing.assert_allclose(
            found.numpy(), wanted.numpy(), rtol=1e-10, err_msg=f"{weighted} {reduction} {smoothing}"
        )


@pytest.mark.parametrize("name", ["mse_loss", "l1_loss", "binary_cross_entropy_with_logits"])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_of_elements(name: str, reduction: str) -> None:
    x, y = RANDOM.standard_normal((3, 4)) * 20, RANDOM.random((3, 4))
    found = getattr(nn.functional, name)(vkml.tensor(x), vkml.tensor(y), reduction=reduction)
    wanted = getattr(torch.nn.functional, name)(torch.tensor(x), torch.tensor(y), reduction=reduction)
    np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=1e-10)


def test_wrong_targets() -> None:
    with pytest.raises(ValueError, match="target has the shape"):
        nn.functional.cross_entropy(vkml.ones(3, 4), vkml.zeros(4, dtype=vkml.int64))
    with pytest.raises(ValueError, match="probabilities"):
        nn.functional.cross_entropy(vkml.ones(3, 4), vkml.ones(3))
    with pytest.raises(ValueError, match="reduction"):
        nn.functional.mse_loss(vkml.ones(3), vkml.ones(3), reduction="max")
