"""Products with weights of few bits by the launches that GPUs get; software devices read single words."""

from __future__ import annotations

import numpy as np
import pytest

import vkml
from tests.kernels.test_gemv import processors
from tests.kernels.test_tiles import lavapipe
from tests.quantized.few_bits import Model, random_weights

__all__ = ["lavapipe", "processors"]


@pytest.mark.parametrize(
    ("inner", "bits", "block", "words"),
    [(256, 4, 32, 4), (200, 4, 32, 4), (96, 4, 16, 2), (40, 4, 24, 1), (64, 8, 16, 4), (70, 2, 32, 2)],
)
def test_vectors_of_words(
    lavapipe: str, processors: int, inner: int, bits: int, block: int, words: int
) -> None:
    weights, model = random_weights(inner, 70, bits=bits, block=block, has_zeros=True), Model(inner)
    with vkml.InferenceSession(model.bytes(model.product("x", weights)), devices=lavapipe) as session:
        for rows in (1, 8):
            x = np.random.default_rng(rows).standard_normal((rows, inner)).astype(np.float32)
            [found] = session.run(None, {"x": x})
            np.testing.assert_allclose(found, x @ weights.matrix, atol=2e-5)
        [step] = session.report().steps
        assert (step.kernel, step.operators) == ("block_product", ("MatMulNBits",))
        assert f"{words} words" in step.variant
