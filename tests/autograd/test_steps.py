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


def test_extensions_of_attention() -> None:
    generator = np.random.default_rng(4)
    heads = [normal(generator, 2, 3, 4) for _ in range(3)]
    padding = np.array([[1, 1, 1, 1, 0], [1, 0, 1, 1, 1]], np.int32)
    past = [normal(generator, 2, 2, 2, 2) for _ in range(2)]
    given: list[Any] = [*heads, normal(generator, 12), padding, normal(generator, 1, 2, 3, 5), *past]
    attributes = {"num_heads": 2, "unidirectional": 1}
    check("MultiHeadAttention", given, attributes, domain="com.microsoft", outputs=3, second_order=False)


def test_extensions_of_shared_heads() -> None:
    generator = np.random.default_rng(5)
    past = [normal(generator, 1, 1, 4, 4) for _ in range(2)]
    numbers = [np.array([4], np.int32), np.array(5, np.int32)]
    tables = [normal(generator, 6, 2) for _ in range(2)]
    given: list[Any] = [normal(generator, 1, 2, 16), None, None, *past, *numbers, *tables]
    attributes = {"num_heads": 2, "kv_num_heads": 1, "do_rotary": 1, "local_window_size": 3}
    check("GroupQueryAttention", given, attributes, domain="com.microsoft", outputs=3, second_order=False)


def test_extensions_of_products_and_normalisations() -> None:
    generator = np.random.default_rng(6)
    factors = [normal(generator, 4, 2, 3), normal(generator, 2, 5, 4)]
    turned = {"transA": 1, "transB": 1, "transBatchA": 1, "alpha": 0.5}
    check("FusedMatMul", factors, turned, domain="com.microsoft", second_order=False)
    rows = [normal(generator, 2, 3, 4), normal(generator, 4)]
    check("SimplifiedLayerNormalization", rows, outputs=2, counted=[0], second_order=False)
    image = [
        normal(generator, 1, 2, 3, 4),
        normal(generator, 4),
        normal(generator, 4),
        normal(generator, 1, 4),
    ]
    check("SkipGroupNorm", image, {"groups": 2, "activation": 1}, domain="com.microsoft", outputs=2,
          second_order=False)  # fmt: skip
