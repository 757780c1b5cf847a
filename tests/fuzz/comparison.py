"""Whether what was found is one of the results that rounding allows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.fuzz.tensors import Array

FEW, MORE, MANY = 6, 36, 240
"""Samples taken: first, when they do not explain a difference, and before one is called wrong."""


def is_equal(found: Array, expected: Array) -> Any:
    """Where two arrays are the same; NaN is NaN, and zeros of either sign are zero."""
    if found.dtype.kind in "OUS":
        return np.asarray(
            [str(a) == str(b) for a, b in zip(found.reshape(-1), expected.reshape(-1), strict=True)]
        )
    same = found == expected
    if _has_nan(found):
        with np.errstate(all="ignore"):
            same |= np.isnan(found) & np.isnan(expected)
    return same


@dataclass(frozen=True)
class Difference:
    """What is wrong with a result."""

    words: str
    mask: Any = None
    """The elements that are wrong; None where already type or shape is."""


def difference(found: Array, expected: Array, sample: Callable[[int], Array | None]) -> Difference | None:
    """What is wrong with a result; None where it is one of those that rounding allows.

    Args:
        found: the result.
        expected: without disturbance.
        sample: the expected result disturbed, by number; None where that one could not be had.
    """
    if found.dtype != expected.dtype or found.shape != expected.shape:
        if found.dtype == expected.dtype and _is_shape_open(found, expected, sample):
            return None
        return Difference(
            f"{found.dtype}{list(found.shape)} instead of {expected.dtype}{list(expected.shape)}"
        )
    places = np.flatnonzero(~np.asarray(is_equal(found, expected), bool))
    if not places.size:
        return None
    allowed = _allowed_texts if found.dtype.kind in "OUS" else _allowed
    samples: list[Array] = []
    """Of the places that are wrong as yet: a large result has few of these."""
    taken = 0
    for count in (FEW, MORE, MANY):
        while taken < count:
            made = sample(taken)
            if made is None or made.shape != expected.shape:
                return None  # a shape hangs on rounding
            samples.append(made.reshape(-1)[places])
            taken += 1
        wrong = ~allowed(found.reshape(-1)[places], expected.reshape(-1)[places], samples)
        places, samples = places[wrong], [array[wrong] for array in samples]
        if not places.size:
            return None
    mask = np.zeros(found.size, bool)
    mask[places] = True
    mask = mask.reshape(found.shape)
    return Difference(described(found, expected, mask), mask)


def _is_shape_open(found: Array, expected: Array, sample: Callable[[int], Array | None]) -> bool:
    """Whether rounding decides a shape (the places that are not zero), and may so decide for this one."""
    least = greatest = np.array(expected.shape)
    for number in range(MANY):
        made = sample(number)
        if made is None or (number == MORE and bool(np.all(least == greatest))):
            return False
        if made.ndim == found.ndim == expected.ndim:
            least, greatest = np.minimum(least, made.shape), np.maximum(greatest, made.shape)
            if bool(np.all((least <= found.shape) & (found.shape <= greatest))):
                return True
    return False


def _allowed_texts(found: Array, expected: Array, samples: Sequence[Array]) -> Any:
    """Texts are as expected, but where rounding changes them: there they are numbers as near as others."""
    same = np.asarray(is_equal(found, expected), bool)
    for place in np.flatnonzero(~same):
        texts = [str(array.reshape(-1)[place]) for array in (found, expected, *samples)]
        if len(set(texts[1:])) > 1:
            try:
                wide = [np.array([float(text)]) for text in texts]
            except ValueError:
                same[place] = texts[0] in texts[1:]
            else:
                same[place] = _allowed(wide[0], wide[1], wide[2:])[0]
    return same.reshape(found.shape)


def _allowed(found: Array, expected: Array, samples: Sequence[Array]) -> Any:
    stacked = np.stack([expected, *samples])
    if found.dtype.kind not in "fc" and not _has_nan(found):
        if found.dtype.kind == "b":
            return (stacked == found).any(0)
        return (stacked.min(0) <= found) & (found <= stacked.max(0))
    with np.errstate(all="ignore"):
        if found.dtype.kind == "c":
            wide, given = stacked.astype(np.complex128), found.astype(np.complex128)
        else:
            wide, given = stacked.astype(np.float64), found.astype(np.float64)
        is_nan, is_finite = np.isnan(wide), np.isfinite(wide)
        # Where samples disagree whether a number comes out, anything may.
        undecided = (is_nan.any(0) & ~is_nan.all(0)) | (is_finite.any(0) & ~is_finite.all(0))
        if found.dtype.kind != "c":
            undecided |= (np.isinf(wide) & (wide != wide[0])).any(0)
        base = np.where(is_finite[0], wide[0], 0)
        spread = np.abs(np.where(is_finite, wide, base) - base).max(0)
        near = np.isfinite(given) & is_finite[0] & (np.abs(given - base) <= 3 * spread)
        return undecided | near | np.asarray(is_equal(found, expected)).reshape(found.shape)


def _has_nan(array: Array) -> bool:
    """Whether the type has NaN: NumPy's floats and those that ml_dtypes adds."""
    return array.dtype.kind in "fc" or (array.dtype.kind == "V" and "float" in array.dtype.name)


def described(found: Array, expected: Array, wrong: Any) -> str:
    """The first few differences in words."""
    at = [tuple(int(i) for i in place) for place in np.argwhere(wrong)[:4]]
    shown = "; ".join(f"{list(place)}: {found[place]!r}, expected {expected[place]!r}" for place in at)
    return f"{int(np.sum(wrong))} of {found.size} elements of {found.dtype}{list(found.shape)}: {shown}"
