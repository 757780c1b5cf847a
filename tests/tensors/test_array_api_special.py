"""Special values in the array API: functions at zeros, infinities and NaN of either sign, signs included."""

from __future__ import annotations

import math
from typing import Any

import array_api_strict as strict
import numpy as np
import pytest

from vkml import xp

Array = np.ndarray[Any, Any]
POINTS = [
    0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 8.0, 10.0, 100.0, 1000.5, 1e-30, 1e30, math.pi / 2, math.inf, math.nan,
]  # fmt: skip
SIGNED = [sign * value for value in POINTS for sign in (1.0, -1.0)]
ONE = [
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "exp", "expm1",
    "floor", "isfinite", "isinf", "isnan", "log", "log1p", "log2", "log10", "negative", "positive",
    "reciprocal", "round", "sign", "signbit", "sin", "sinh", "square", "sqrt", "tan", "tanh", "trunc",
]  # fmt: skip
TWO = [
    "add", "atan2", "copysign", "divide", "equal", "greater", "greater_equal", "hypot", "less",
    "less_equal", "logaddexp", "maximum", "minimum", "multiply", "nextafter", "not_equal", "pow",
    "remainder", "subtract",
]  # fmt: skip
OF_COMPLEX = sorted({*ONE, "conj", "imag", "real"} - {"ceil", "floor", "signbit", "trunc", "sign", "expm1"})


def _differ(found: Array, expected: Array) -> Array:
    """Where they do, in kind, in the sign of 0 or by more than rounding."""
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    if found.dtype.kind == "c":
        return _differ(found.real, expected.real) | _differ(found.imag, expected.imag)
    if found.dtype.kind != "f":
        return np.asarray(found != expected)
    rtol = 1e-5 if found.dtype == np.float32 else 1e-10
    with np.errstate(all="ignore"):
        close = (found == expected) | np.isclose(found, expected, rtol=rtol, atol=0)
    both_nan = np.isnan(found) & np.isnan(expected)
    return np.asarray(~both_nan & ~(close & (np.signbit(found) == np.signbit(expected))))


def _check(name: str, given: tuple[Array, ...], device: str, ignore: Array | None = None) -> None:
    with np.errstate(all="ignore"):
        expected = np.asarray(getattr(strict, name)(*map(strict.asarray, given)))
    found = getattr(xp, name)(*(xp.asarray(one, device=device) for one in given)).numpy()
    wrong = _differ(found, expected)
    if ignore is not None:
        wrong &= ~ignore
    shown = [(*(one[at] for one in given), found[at], expected[at]) for at in np.flatnonzero(wrong)[:8]]
    assert not shown, f"{name}: {shown}"


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ONE)
def test_functions_of_one(name: str, dtype: str) -> None:
    _check(name, (np.array(SIGNED, dtype),), "cpu")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", TWO)
def test_functions_of_two(name: str, dtype: str) -> None:
    points = np.array(SIGNED, dtype)
    x, y = (one.reshape(-1).copy() for one in np.meshgrid(points, points))
    # Which zero is the greater one is left open.
    are_zero = (x == 0) & (y == 0) if name in ("maximum", "minimum") else None
    _check(name, (x, y), "cpu", are_zero)


@pytest.mark.parametrize(
    "name", ["expm1", "log1p", "sqrt", "round", "trunc", "sign", "tanh", "asinh", "atan"]
)
def test_zeros_keep_their_signs_on_devices(name: str, device_name: str) -> None:
    zeros = np.array([0.0, -0.0], np.float32)
    if name == "sign":
        assert getattr(xp, name)(xp.asarray(zeros, device=device_name)).tolist() == [0, 0]
    else:
        _check(name, (zeros,), device_name)


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("name", OF_COMPLEX)
def test_functions_of_complex_numbers(name: str, dtype: str) -> None:
    parts = [sign * value for value in (0.0, 1.0, 2.5, math.inf, math.nan) for sign in (1.0, -1.0)]
    _check(name, (np.array([complex(x, y) for x in parts for y in parts], dtype),), "cpu")


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_expm1_of_complex_numbers(dtype: str) -> None:
    """What the standard names; of most of these NumPy makes NaN."""
    inf, nan = math.inf, math.nan
    cases = [
        (complex(0.0, 0.0), complex(0.0, 0.0)),
        (complex(-0.0, 0.0), complex(0.0, 0.0)),
        (complex(1.5, inf), complex(nan, nan)),
        (complex(1.5, nan), complex(nan, nan)),
        (complex(inf, 0.0), complex(inf, 0.0)),
        (complex(-inf, 2.0), complex(-1.0, 0.0)),
        (complex(-inf, 4.0), complex(-1.0, -0.0)),
        (complex(inf, 2.0), complex(-inf, inf)),
        (complex(inf, 4.0), complex(-inf, -inf)),
        (complex(-inf, inf), complex(-1.0, 0.0)),
        (complex(inf, inf), complex(inf, nan)),
        (complex(-inf, nan), complex(-1.0, 0.0)),
        (complex(inf, nan), complex(inf, nan)),
        (complex(nan, 0.0), complex(nan, 0.0)),
        (complex(nan, 2.0), complex(nan, nan)),
        (complex(nan, nan), complex(nan, nan)),
    ]
    given, expected = np.array(cases, dtype).T
    for turn in (np.asarray, np.conj):  # the function of the conjugate is that of the number, conjugated
        found = xp.expm1(xp.asarray(turn(given))).numpy()
        wrong = _differ(found, turn(expected))
        assert not wrong.any(), list(zip(turn(given)[wrong], found[wrong], strict=True))


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_expm1_near_zero_and_near_overflow(dtype: str) -> None:
    points = [complex(1e-12, 1e-12), complex(-1e-12, 3e-6), complex(2.0, 1e-9), complex(-40.0, 1.0)]
    near = np.array(points, dtype)
    wide = near.astype(np.clongdouble)
    exact = np.expm1(wide.real) * np.cos(wide.imag) - 2 * np.sin(wide.imag / 2) ** 2
    exact = exact + 1j * np.exp(wide.real) * np.sin(wide.imag)
    assert not _differ(xp.expm1(xp.asarray(near)).numpy(), exact.astype(dtype)).any()
    # exp(x) is beyond the type's numbers there, exp(x) cos y and exp(x) sin y are not.
    edge = 89.0 if dtype == "complex64" else 710.0
    far = np.array([complex(edge, math.pi / 2 - 1e-4), complex(edge, 1e-4)], dtype)
    found = xp.expm1(xp.asarray(far)).numpy()
    assert np.isfinite(found.real[0]) and np.isfinite(found.imag[1])
    assert found.real[0] > 0 and found.imag[1] > 0


def _floor_divided(x: float, y: float) -> float:
    """As the standard has it; NumPy and Python have NaN of infinities, and -1 of -1 // ∞."""
    if math.isnan(x) or math.isnan(y) or (math.isinf(x) and math.isinf(y)) or x == y == 0:
        return math.nan
    sign = math.copysign(1, x) * math.copysign(1, y)
    if math.isinf(x) or y == 0:
        return sign * math.inf
    if math.isinf(y) or x == 0:
        return sign * 0.0
    return math.copysign(x // y, sign) if x // y == 0 else float(x // y)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_floor_divide(dtype: str) -> None:
    # Of quotients beyond what the type counts in ones NumPy's and Python's own digits differ.
    points = np.array([one for one in SIGNED if abs(one) not in (1e-30, 1e30)], dtype)
    assert xp.floor_divide(xp.asarray([-1e-30, 1e-30]), xp.asarray([1e30, -1e30])).tolist() == [-1, -1]
    x, y = (one.reshape(-1).copy() for one in np.meshgrid(points, points))
    expected = np.array([_floor_divided(float(a), float(b)) for a, b in zip(x, y, strict=True)], dtype)
    for found in (xp.floor_divide(xp.asarray(x), xp.asarray(y)), xp.asarray(x) // xp.asarray(y)):
        wrong = np.flatnonzero(_differ(found.numpy(), expected))
        assert not len(wrong), [(x[at], y[at], found.numpy()[at], expected[at]) for at in wrong[:8]]


INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_at_their_bounds(dtype: str) -> None:
    least, most, bits = np.iinfo(dtype).min, np.iinfo(dtype).max, np.iinfo(dtype).bits
    own = [0, 1, 2, 3, 7, most - 1, most, *([-1, -2, -3, least + 1, least] if least else [])]
    points = np.array(own, dtype)
    for name in (
        "bitwise_invert",
        "ceil",
        "floor",
        "negative",
        "positive",
        "round",
        "sign",
        "square",
        "trunc",
    ):
        _check(name, (points,), "cpu")
    x, y = (one.reshape(-1).copy() for one in np.meshgrid(points, points))
    bits_of_two = ["bitwise_and", "bitwise_or", "bitwise_xor"]
    of_two = ["add", "equal", "greater", "less_equal", "maximum", "minimum", "multiply", "subtract"]
    for name in (*bits_of_two, *of_two):
        _check(name, (x, y), "cpu")
    there = y != 0
    for name in ("floor_divide", "remainder"):
        _check(name, (x[there], y[there]), "cpu")
    few = (y >= 0) & (y <= 10)
    _check("pow", (x[few], y[few]), "cpu")
    shifts = (y >= 0) & (y < bits)
    for name in ("bitwise_left_shift", "bitwise_right_shift"):
        _check(name, (x[shifts], y[shifts]), "cpu")
