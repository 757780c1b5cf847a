"""Functions of whole rows, the last axis of an array: softmax and layer normalisation."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from vkml.cpu.scratch import scratch

Array = np.ndarray[Any, Any]


def softmax_rows(x: Array, out: Array) -> None:
    """Softmax along the last axis; `out` may be `x`."""
    np.subtract(x, np.maximum.reduce(x, axis=-1, keepdims=True), out)
    np.exp(out, out)
    # A product with ones adds short rows four times faster than add.reduce.
    total = np.matmul(out, _ones(out.shape[-1], out.dtype))
    np.divide(1, total, total)
    np.multiply(out, total[..., None], out)


def log_softmax_rows(x: Array, out: Array) -> None:
    """Logarithm of softmax along the last axis; `out` may be `x`."""
    np.subtract(x, np.maximum.reduce(x, axis=-1, keepdims=True), out)
    powers = scratch("log_softmax", out.shape, out.dtype)
    np.exp(out, powers)
    total = np.matmul(powers, _ones(out.shape[-1], out.dtype))
    np.log(total, total)
    np.subtract(out, total[..., None], out)


def normalise_rows(x: Array, epsilon: float, out: Array) -> None:
    """(x - mean) / sqrt(variance + epsilon) along the last axis; `out` may be `x`."""
    length = x.shape[-1]
    flat, result = x.reshape(-1, length), out.reshape(-1, length)
    ones = _ones(length, x.dtype)
    mean = np.matmul(flat, ones)
    np.divide(mean, length, mean)
    np.subtract(flat, mean[:, None], result)
    # BLAS adds up in sequence: where all numbers are near 100, 4096 of them have a mean wrong by 5e-5.
    np.matmul(result, ones, mean)
    np.divide(mean, length, mean)
    np.subtract(result, mean[:, None], result)
    _scale_by_spread(result, epsilon, result)


def normalise_rows_by_mean_square(x: Array, epsilon: float, out: Array) -> None:
    """x / sqrt(mean of squares + epsilon) along the last axis; `out` may be `x`."""
    length = x.shape[-1]
    _scale_by_spread(x.reshape(-1, length), epsilon, out.reshape(-1, length))


def _scale_by_spread(x: Array, epsilon: float, out: Array) -> None:
    spread = np.einsum("rc,rc->r", x, x)
    np.divide(spread, x.shape[1], spread)
    np.add(spread, epsilon, spread)
    np.sqrt(spread, spread)
    np.divide(1, spread, spread)
    np.multiply(x, spread[:, None], out)


@functools.lru_cache(256)
def _ones(length: int, dtype: Any) -> Array:
    ones = np.ones(length, dtype)
    ones.flags.writeable = False
    return ones
