"""Functions that NumPy lacks: erf, expm1 at complex infinities, and others in forms that do not overflow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from vkml.ir.operator import Array

_BLOCK = 32768
"""Elements worked on at once: three float32 temporaries then stay in a core's second-level cache."""

# erf(x) = tanh(x P(x²) / Q(x²)): tanh is NumPy's fastest sigmoid-shaped function, and what is left to fit is
# nearly straight. Least maximum relative error of erf on [-4, 4] (2e-8), by reweighted least squares.
_ERF_LIMIT_SQUARED = 16.0
_ERF_NUMERATOR = (1.128379225730896, 0.2759592831134796, 0.04060744494199753, 0.0019705130252987146)
_ERF_DENOMINATOR = (1.0, 0.1534832864999771, 0.02219109609723091, 0.0002799251233227551)


def erf(x: Array) -> Array:
    """The error function.

    float64 keeps 1e-15 relative error; float32 (and float16, computed in float32) 4e-7, measured on [-8, 8].
    5 million float32 take 11 ms on one core of an EPYC.

    Example:
        >>> float(erf(np.array([0.5]))[0])
        0.5204998778130465
    """
    if x.dtype == np.float64:
        return _erf_double(x)
    return _blockwise(_erf_block, np.asarray(x, np.float32)).astype(x.dtype, copy=False)


def _blockwise(function: Callable[[Array, Array], None], x: Array) -> Array:
    """Applies `function(input block, output block)` to cache-sized pieces."""
    flat = np.ascontiguousarray(x).reshape(-1)
    out = np.empty_like(flat)
    with np.errstate(all="ignore"):
        for start in range(0, flat.size, _BLOCK):
            function(flat[start : start + _BLOCK], out[start : start + _BLOCK])
    return out.reshape(x.shape)


def _horner(s: Array, coefficients: Sequence[float], out: Array) -> None:
    np.multiply(s, np.float32(coefficients[-1]), out=out)
    for coefficient in coefficients[-2:0:-1]:
        np.add(out, np.float32(coefficient), out=out)
        np.multiply(out, s, out=out)
    np.add(out, np.float32(coefficients[0]), out=out)


def _erf_block(x: Array, out: Array) -> None:
    s = x * x
    np.minimum(s, np.float32(_ERF_LIMIT_SQUARED), out=s)
    _horner(s, _ERF_NUMERATOR, out)
    np.multiply(out, x, out=out)
    denominator = np.empty_like(s)
    _horner(s, _ERF_DENOMINATOR, denominator)
    np.divide(out, denominator, out=out)
    np.tanh(out, out=out)


def _erf_double(x: Array) -> Array:
    """Series of positive terms below 2.25, continued fraction of the complement above (DLMF 7.6.2, 7.9.1)."""
    size = np.abs(x)
    with np.errstate(all="ignore"):
        near = np.minimum(size, 2.25)
        s = near * near
        total = np.ones_like(s)
        for n in range(56, 0, -1):
            total = 1 + total * s * (2 / (2 * n + 1))
        small = near * total * np.exp(-s) * (2 / np.sqrt(np.pi))
        far = np.minimum(np.maximum(size, 2.25), 7.0)
        fraction = far
        for n in range(60, 0, -1):
            fraction = far + (n / 2) / fraction
        large = 1 - np.exp(-far * far) / (fraction * np.sqrt(np.pi))
        return np.asarray(np.copysign(np.where(size <= 2.25, small, large), x))


def expm1(x: Array) -> Array:
    """exp(x) - 1, exact near 0; at complex infinities what exp has there, where NumPy has NaN."""
    if x.dtype.kind != "c":
        return np.asarray(np.expm1(x))
    power, grown = np.exp(x), np.expm1(x.real)
    # exp(a) cos b - 1 without the digits that cancel; of exp(a) beyond the type's numbers, nothing does.
    near = grown * np.cos(x.imag) - 2 * np.sin(x.imag / 2) ** 2
    real = np.where(np.isfinite(grown), near, power.real - 1)
    made = np.empty_like(power)
    made.real = np.where(np.isneginf(x.real), -1, real) + 0  # of ±0 the array API has +0
    made.imag = power.imag
    return made


def sigmoid(x: Array) -> Array:
    """1 / (1 + e^-x); the exponential overflows to infinity harmlessly."""
    value = np.empty_like(x)
    np.negative(x, out=value)
    np.exp(value, out=value)
    np.add(value, 1, out=value)
    np.reciprocal(value, out=value)
    return value


def softplus(x: Array) -> Array:
    """log(1 + e^x) without overflow."""
    return np.asarray(np.log1p(np.exp(-np.abs(x))) + np.maximum(x, 0))


def gelu(x: Array) -> Array:
    """x/2 (1 + erf(x/√2))."""
    return np.asarray(x * (0.5 * erf(x * _like(np.sqrt(0.5), x)) + 0.5))


def gelu_tanh(x: Array) -> Array:
    """The tanh approximation of `gelu`."""
    inner = x * (x * x * _like(0.044715, x) + 1) * _like(np.sqrt(2 / np.pi), x)
    return np.asarray(x * (0.5 * np.tanh(inner) + 0.5))


def mish(x: Array) -> Array:
    """x tanh(log(1 + e^x)), rewritten as x n / (n + 2) with n = e^x (e^x + 2), exact also far below zero."""
    e = np.exp(np.minimum(x, 20))
    n = e * (e + 2)
    return np.asarray(x * (n / (n + 2)))


def _like(value: Any, x: Array) -> Any:
    return x.dtype.type(value)
