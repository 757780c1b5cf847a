"""Places of the best elements, against Python's sort: every type, equals, NaN, negative zeros, empty rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from vkml.ops import top_places as module
from vkml.ops.top_places import top_places

Array = npt.NDArray[Any]
RANDOM = np.random.default_rng(12)
SIZES = (1, 2, 5, 30, 64, 255, 256, 300, 700, 1500)


def expected(rows: Array, k: int, is_largest: bool) -> Array:
    """By a sort of tuples: whether it is NaN, the element, its place."""
    made = np.empty((*rows.shape[:-1], k), np.int64)
    for at in np.ndindex(rows.shape[:-1]):
        row = rows[at].tolist()
        sign = -1 if is_largest else 1

        def order(place: int, row: list[Any] = row, sign: int = sign) -> tuple[int, Any, int]:
            is_nan = row[place] != row[place]
            return sign * is_nan, 0 if is_nan else sign * row[place], place

        made[at] = sorted(range(len(row)), key=order)[:k]
    return made


def numbers(dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """Different ones, few ones, or the same; some that are none."""
    kind = RANDOM.integers(3)
    if dtype.kind != "f":
        bounds = np.iinfo(dtype)
        low, high = [(bounds.min, bounds.max), (0, 3), (1, 1)][kind]
        return RANDOM.integers(low, high, shape, dtype, endpoint=True)
    x = RANDOM.standard_normal(shape)
    x = np.asarray([x, np.round(2 * x), np.zeros(shape)][kind]).astype(dtype)
    if RANDOM.random() < 0.5:
        x[RANDOM.random(shape) < RANDOM.choice([0.002, 0.1, 0.9])] = RANDOM.choice(
            [np.nan, np.inf, -np.inf, -0.0]
        )
    return x


@pytest.mark.parametrize("name", ["f2", "f4", "f8", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"])
def test_random_rows(name: str) -> None:
    for _ in range(60):
        size = int(RANDOM.choice(SIZES))
        k = min(size, int(RANDOM.choice([0, 1, 2, 3, size // 50, size // 20, size // 8, size // 2, size])))
        shape = (*RANDOM.integers(0 if RANDOM.random() < 0.1 else 1, 6, RANDOM.integers(3)).tolist(), size)
        x = numbers(np.dtype(name), shape)
        if RANDOM.random() < 0.2:
            x = np.asfortranarray(x)
        for is_largest in (True, False):
            found = top_places(x, k, is_largest)
            assert found.dtype == np.int64
            np.testing.assert_array_equal(found, expected(x, k, is_largest), f"{shape} {k} {is_largest}")


@pytest.mark.parametrize("rows", [1, 5])
def test_few_of_many_are_not_sorted(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Elements that are compared as keys are some tens of the places wanted, not all."""
    seen: list[int] = []
    keys = module._keys
    monkeypatch.setattr(
        module, "_keys", lambda elements, *given: (seen.append(elements.size), keys(elements, *given))[1]
    )
    x = RANDOM.standard_normal((rows, 20000)).astype(np.float32)
    for is_largest in (True, False):
        found = top_places(x, 20, is_largest)
        np.testing.assert_array_equal(found, expected(x, 20, is_largest))
    assert max(seen) < 40 * rows
    top_places(np.zeros((rows, 20000), np.float32), 20, True)  # no block is better than another
    assert max(seen) == rows * 20000
