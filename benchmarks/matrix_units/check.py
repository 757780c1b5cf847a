"""Checks results against float64: all rows by random combinations of their columns, some by each element."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.matrix_units.problems import Problem

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

SAMPLED_ROWS = 24
ROW_LIMIT = 5e-3
"""Of a row's combination of columns, relative: fp16's rounding gives 1.4e-3, a wrong element of 8192 1e-2."""


@dataclass(frozen=True)
class Data:
    """A problem's operands on the host."""

    problem: Problem
    a: Floats
    """(batch, m, k), or images (channels last) of a convolution."""
    b: Floats
    """(k, n), or (batch, k, n)."""
    bias: Floats


@dataclass(frozen=True)
class Reference:
    """What the check needs, in float64; without the bias."""

    rows: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
    """Batch and m of the sampled rows."""
    sampled: Doubles
    combination: Doubles
    """A random number for each column."""
    combined: Doubles
    """(batch, m): each row's sum of its columns times these."""


@dataclass(frozen=True)
class Verdict:
    """What was found."""

    error: float
    """Relative L2 error of the sampled rows."""
    largest_row_error: float
    """Of all rows' combinations, relative to their root mean square."""
    is_complete: bool
    """Every element was written with a finite number."""

    @property
    def is_right(self) -> bool:
        return self.is_complete and self.largest_row_error < ROW_LIMIT


def make_data(problem: Problem, seed: int) -> Data:
    """Random normal operands."""
    generator = np.random.default_rng(seed)
    window = problem.window

    def normal(*shape: int) -> Floats:
        return generator.standard_normal(shape, np.float32)

    if window is None:
        a = normal(problem.batch, problem.m, problem.k)
    else:
        images = problem.m // (window.out_y * window.out_x)
        a = normal(images, window.in_y, window.in_x, window.channels)
    b_shape = (problem.k, problem.n)
    b = normal(problem.batch, *b_shape) if problem.is_b_batched else normal(*b_shape)
    return Data(problem, a, b, normal(problem.n))


def rows_of_a(data: Data, batch: npt.NDArray[np.int64], m: npt.NDArray[np.int64]) -> Doubles:
    """The named rows of A (of a convolution: its windows), (rows, k)."""
    window = data.problem.window
    if window is None:
        return data.a[batch, m].astype(np.float64)
    image, place = np.divmod(m, window.out_y * window.out_x)
    y, x = np.divmod(place, window.out_x)
    taps = np.arange(window.size)
    in_y = (y * window.stride - window.pad)[:, None, None] + taps[:, None]
    in_x = (x * window.stride - window.pad)[:, None, None] + taps[None, :]
    in_y, in_x = np.broadcast_arrays(in_y, in_x)
    is_inside = (in_y >= 0) & (in_y < window.in_y) & (in_x >= 0) & (in_x < window.in_x)
    found = data.a[image[:, None, None], in_y.clip(0, window.in_y - 1), in_x.clip(0, window.in_x - 1)]
    gathered: Doubles = np.where(is_inside[..., None], found, 0).reshape(len(m), -1).astype(np.float64)
    return gathered


def make_reference(data: Data, seed: int) -> Reference:
    """Computes what results are compared with."""
    problem = data.problem
    generator = np.random.default_rng(seed)
    count = min(SAMPLED_ROWS, problem.batch * problem.m)
    flat = generator.choice(problem.batch * problem.m, count, replace=False)
    flat[0] = problem.batch * problem.m - 1
    batch, m = np.divmod(flat, problem.m)
    rows = rows_of_a(data, batch, m)
    if problem.is_b_batched:
        sampled = np.stack(
            [row @ data.b[index].astype(np.float64) for row, index in zip(rows, batch, strict=True)]
        )
    else:
        sampled = rows @ data.b.astype(np.float64)
    combination = generator.standard_normal(problem.n)
    weights = data.b.astype(np.float64) @ combination
    return Reference((batch, m), sampled, combination, _times_vector(data, weights))


def judge(data: Data, reference: Reference, result: Floats, *, has_bias: bool = True) -> Verdict:
    """Compares a result, (batch, m, n), with the reference."""
    if not np.isfinite(result).all():
        return Verdict(float("nan"), float("nan"), False)
    bias = data.bias.astype(np.float64) if has_bias else np.zeros(1)
    difference = result[reference.rows].astype(np.float64) - bias - reference.sampled
    error = float(np.linalg.norm(difference) / np.linalg.norm(reference.sampled))
    combined = np.stack([part.astype(np.float64) @ reference.combination for part in result])
    combined -= (bias * reference.combination).sum() if has_bias else 0
    scale = np.sqrt((reference.combined**2).mean())
    return Verdict(error, float(np.abs(combined - reference.combined).max() / scale), True)


def rounded(x: npt.NDArray[Any], format_: str) -> Doubles:
    """fp32 values rounded to "tf32", "float16" or "bfloat16", in float64."""
    if format_ == "float16":
        with np.errstate(over="ignore"):
            return x.astype(np.float16).astype(np.float64)
    dropped = {"tf32": 13, "bfloat16": 16}[format_]
    bits = x.astype(np.float32).view(np.uint32)
    half = np.uint32((1 << (dropped - 1)) - 1)
    odd = (bits >> np.uint32(dropped)) & np.uint32(1)
    bits = (bits + half + odd) >> np.uint32(dropped) << np.uint32(dropped)
    return bits.view(np.float32).astype(np.float64)


def _times_vector(data: Data, weights: Doubles) -> Doubles:
    """A · weights, (batch, m)."""
    problem, window = data.problem, data.problem.window
    if window is None:
        if problem.is_b_batched:
            return np.stack([a.astype(np.float64) @ w for a, w in zip(data.a, weights, strict=True)])
        return np.stack([_chunked(a, weights) for a in data.a])
    pad = window.pad
    images = np.pad(data.a, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    total = np.zeros((len(images), window.out_y, window.out_x))
    taps = weights.reshape(window.size, window.size, window.channels)
    for row in range(window.size):
        for column in range(window.size):
            across = slice(column, column + window.stride * window.out_x, window.stride)
            part = images[:, row : row + window.stride * window.out_y : window.stride, across]
            total += part.astype(np.float64) @ taps[row, column]
    return total.reshape(1, problem.m)


def _chunked(a: Floats, weights: Doubles) -> Doubles:
    """A matrix times a vector without all of it in float64."""
    return np.concatenate([a[at : at + 1024].astype(np.float64) @ weights for at in range(0, len(a), 1024)])
