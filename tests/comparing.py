"""Comparison of arrays: equal in type and shape, and in values, floats within a tolerance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def assert_close(found: Array, expected: Array, *, rtol: float, atol: float, what: str = "") -> None:
    """Asserts equal type and shape, and equal values.

    Args:
        found: the result.
        expected: what it has to be; floats within the tolerances, NaN and infinities in the same places.
        rtol: of what is expected of each element.
        atol: the same for all.
        what: put before the message.
    """
    assert found.shape == expected.shape, f"{what}: shape {found.shape}, expected {expected.shape}"
    if expected.dtype.kind in "OUS":
        assert found.astype(str).tolist() == expected.astype(str).tolist(), what
        return
    assert found.dtype == expected.dtype, f"{what}: {found.dtype}, expected {expected.dtype}"
    if expected.dtype.kind not in "fc":
        np.testing.assert_array_equal(found, expected, err_msg=what)
        return
    wide = np.result_type(expected.dtype, np.float64)
    with np.errstate(all="ignore"):  # widening a signalling NaN warns
        found, expected = found.astype(wide), expected.astype(wide)
        np.testing.assert_allclose(found, expected, rtol=rtol, atol=atol, err_msg=what, equal_nan=True)


def magnitude(expected: Array, measure: Callable[[Array], Any], *, default: float) -> float:
    """The median, or the greatest, of finite elements' absolute values, for tolerances of sums that cancel.

    Args:
        expected: floats.
        measure: `np.median` or `np.max`.
        default: where no element is finite.
    """
    with np.errstate(all="ignore"):
        wide = expected.astype(np.float64)
    finite = np.abs(wide[np.isfinite(wide)])
    return float(measure(finite)) if finite.size else default
