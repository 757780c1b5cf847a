"""Rounding to small floats, as scalar forms, bit for bit what Cast evaluates to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from vkml.ir import DType, dtypes, scalar
from vkml.ir.number_forms import ROUNDED, power_of_two, rounded
from vkml.ops.number_formats import SATURATING, limited, powers_of_two
from vkml.ops.scalar_evaluation import evaluate

X = scalar.argument(0, dtypes.FLOAT32)


def bits(array: Any) -> Any:
    """One pattern for all NaNs, whose payload is nobody's business."""
    return np.where(np.isnan(array), -1, array.astype(np.float32).view(np.uint32).astype(np.int64))


def numbers() -> Any:
    """Any float32, all numbers of the small types, what lies halfway between two, and its neighbours."""
    random = np.random.default_rng(4)
    spread = random.integers(0, 2**32, 200_000, dtype=np.uint32).view(np.float32)
    known = []
    for dtype in (*ROUNDED, dtypes.FLOAT8E8M0):
        codes = np.arange(1 << dtype.bits, dtype=f"u{dtype.storage.itemsize}").view(dtype.storage)
        known.append(codes.astype(np.float32))
    finite = np.unique(np.concatenate(known)[np.isfinite(np.concatenate(known))])
    half = ((finite[1:].astype(np.float64) + finite[:-1]) / 2).astype(np.float32)
    near = [np.nextafter(half, np.float32(end)) for end in (np.inf, -np.inf)]
    special = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0], np.float32)
    return np.concatenate([spread, finite, -finite, half, *near, special])


@pytest.mark.parametrize("saturate", [True, False])
@pytest.mark.parametrize("dtype", ROUNDED, ids=str)
def test_rounding(dtype: DType, saturate: bool) -> None:
    x = numbers()
    with np.errstate(all="ignore"):
        wanted = limited(x, dtype) if saturate and dtype in SATURATING else x
        wanted = wanted.astype(dtype.storage).astype(np.float32)
        [found] = evaluate([rounded(X, dtype, saturate=saturate)], [x])
    np.testing.assert_array_equal(bits(found), bits(wanted))


@pytest.mark.parametrize("saturate", [True, False])
@pytest.mark.parametrize("mode", ["up", "down", "nearest"])
def test_powers_of_two(mode: str, saturate: bool) -> None:
    x = numbers()
    wanted = powers_of_two(x, saturate=saturate, round_mode=mode).astype(np.float32)
    [found] = evaluate([power_of_two(X, saturate=saturate, round_mode=mode)], [x])
    np.testing.assert_array_equal(bits(found), bits(wanted))
