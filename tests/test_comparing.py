"""Comparisons of arrays fail where they should, in all the forms that tests use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.comparing import Array, assert_close, magnitude
from tests.ops.checking import assert_same
from tests.vulkan_cases import assert_close as assert_close_to_typical


def exactly(found: Array, expected: Array) -> None:
    assert_close(found, expected, rtol=0.0, atol=0.0)


FORMS = pytest.mark.parametrize("compare", [exactly, assert_same, assert_close_to_typical])
SPECIAL = np.array([1, 0, np.nan, np.inf, -np.inf], np.float32)


@FORMS
def test_equal_arrays_pass(compare: Callable[[Array, Array], None]) -> None:
    for array in (SPECIAL, np.array([1, 2]), np.array([True, False]), np.array(["a"]), np.float16([[0.5]])):
        compare(array, array.copy())


@FORMS
@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (SPECIAL, np.array([1, 0, 0, np.inf, -np.inf], np.float32)),
        (SPECIAL, np.array([1, 0, np.nan, -np.inf, -np.inf], np.float32)),
        (np.float32([1.001, 1]), np.float32([1, 1])),
        (np.float32([1]), np.float64([1])),
        (np.float32([1]), np.float32([[1]])),
        (np.array([1]), np.array([2])),
        (np.array([True]), np.array([False])),
        (np.array(["a"]), np.array(["b"])),
    ],
)
def test_other_arrays_fail(compare: Callable[[Array, Array], None], found: Any, expected: Any) -> None:
    with pytest.raises(AssertionError):
        compare(np.asarray(found), np.asarray(expected))


def test_magnitudes_leave_out_what_is_not_finite() -> None:
    assert (
        magnitude(SPECIAL, np.max, default=7.0) == 1.0 and magnitude(SPECIAL, np.median, default=7.0) == 0.5
    )
    assert magnitude(SPECIAL[2:], np.max, default=7.0) == 7.0
