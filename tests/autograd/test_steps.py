"""Gradients of operators that are stated as steps follow from these."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.autograd.checking import check, normal


@pytest.mark.parametrize("interleaved", [0, 1])
def test_rotary_embedding(interleaved: int) -> None:
    generator = np.random.default_rng(1)
    given = [normal(generator, 2, 3, 12), normal(generator, 5, 2), normal(generator, 5, 2)]
    positions = np.array([[0, 1, 2], [4, 4, 0]])
    attributes = {"num_heads": 2, "rotary_embedding_dim": 4, "interleaved": interleaved}
    check("RotaryEmbedding", [*given, positions], attributes, second_order=False)


def test_causal_convolution() -> None:
    generator = np.random.default_rng(2)
    shapes = ((2, 3, 4), (3, 1, 3), (3,), (2, 3, 2))
    given: list[Any] = [normal(generator, *shape) for shape in shapes]
    check("CausalConvWithState", given, {"activation": "silu"}, outputs=2, second_order=False)


@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_negative_log_likelihood(reduction: str) -> None:
    generator = np.random.default_rng(3)
    labels = np.array([[0, 2, 1], [1, 1, 2]])
    given = [normal(generator, 2, 3, 3), labels, np.abs(normal(generator, 3)) + 0.5]
    attributes = {"reduction": reduction, "ignore_index": 1}
    check("NegativeLogLikelihoodLoss", given, attributes, second_order=False)
