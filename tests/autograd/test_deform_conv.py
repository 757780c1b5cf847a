"""Gradients of DeformConv, by all that it is given, of MaxRoiPool and Det."""

from __future__ import annotations

import numpy as np

from tests.autograd.checking import check, normal

RANDOM = np.random.default_rng(23)


def test_deform_conv() -> None:
    offset = RANDOM.integers(-1, 2, (1, 8, 2, 2)) + RANDOM.uniform(0.2, 0.8, (1, 8, 2, 2))
    inputs = [normal(RANDOM, 1, 2, 3, 3), normal(RANDOM, 2, 2, 2, 2), offset, normal(RANDOM, 2)]
    check("DeformConv", [*inputs, normal(RANDOM, 1, 4, 2, 2)])


def test_max_roi_pool() -> None:
    regions = np.array([[0, 0, 0, 2, 3], [1, 1, 1, 2, 2]], np.float32).astype(np.float64)
    check("MaxRoiPool", [normal(RANDOM, 2, 2, 4, 4), regions], {"pooled_shape": (2, 2)}, wrt=[0])


def test_det() -> None:
    check("Det", [normal(RANDOM, 2, 3, 3)])
