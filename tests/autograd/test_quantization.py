"""The gradient of DequantizeLinear by its scale."""

from __future__ import annotations

import numpy as np
import pytest

from tests.autograd.checking import check

RANDOM = np.random.default_rng(91)


@pytest.mark.parametrize(
    ("scale", "attributes"),
    [((), {}), ((3,), {"axis": 1}), ((4, 2), {"axis": 1, "block_size": 2})],
    ids=["tensor", "axis", "block"],
)
def test_scales(scale: tuple[int, ...], attributes: dict[str, int], device_name: str) -> None:
    steps = RANDOM.integers(-128, 128, (4, 3)).astype(np.int8)
    zero = RANDOM.integers(-128, 128, scale).astype(np.int8)
    factors = (RANDOM.random(scale) + 0.5).astype(np.float32)
    check("DequantizeLinear", [steps, factors, zero], attributes, device=device_name)
