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
    ("inner", "bits", "block", "columns"),
    [(256, 4, 32, 2100), (210, 4, 16, 1100), (35, 8, 16, 70), (70, 2, 32, 600)],
)
def test_threads_share_columns(
    lavapipe: str, processors: int, inner: int, bits: int, block: int, columns: int
) -> None:
    weights = random_weights(inner, columns, bits=bits, block=block, has_zeros=True)
    for rows in (1, 6):
        model = Model(inner, rows=rows)
        with vkml.InferenceSession(model.bytes(model.product("x", weights)), devices=lavapipe) as session:
            x = np.random.default_rng(rows).standard_normal((rows, inner)).astype(np.float32)
            [found] = session.run(None, {"x": x})
            np.testing.assert_allclose(found, x @ weights.matrix, atol=2e-5)
            [step] = session.report().steps
        assert (step.kernel, step.operators) == ("block_product", ("MatMulNBits",))
        if processors == 8 and columns > 2000 and rows == 1:
            assert "4 columns a thread" in step.variant
