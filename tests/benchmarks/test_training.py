"""`python -m benchmarks.training` measures what it says: steps that train, of the same model."""

from __future__ import annotations

import numpy as np

from benchmarks import training


def test_captured_and_eager_steps_train_alike() -> None:
    found = training.measure("mlp_b64", "cpu", 0.1, ("vkml-jit", "vkml-eager"))
    captured, eager = found
    assert captured.steps and eager.steps and not captured.reason
    np.testing.assert_allclose(captured.loss, eager.loss, rtol=1e-5)
    first = training.vkml_step("mlp_b64", "cpu", False)(*training.CASES["mlp_b64"].batches()[0])
    assert abs(first - captured.loss) > 1e-6  # it has moved
