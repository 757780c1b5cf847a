"""`python -m benchmarks.data_parallel` measures what it says: several devices train as one does."""

from __future__ import annotations

import numpy as np
import pytest

import vkml
from benchmarks import data_parallel


def test_shared_batches_train_alike() -> None:
    gpus = [device.name for device in vkml.devices(True) if device.name != "cpu"]
    if not gpus:
        pytest.skip("no Vulkan device to test on")
    alone, wide, shared = data_parallel.measure("mlp_b64", ["cpu", gpus[0]], 0.1)
    assert (alone.batch, wide.batch, shared.batch) == (64, 128, 64)
    assert alone.steps and wide.steps and shared.steps
    np.testing.assert_allclose(shared.loss, alone.loss, rtol=1e-5)
    assert abs(wide.loss - alone.loss) > 1e-4
