"""Checks attentions against float64: every element must be finite, sampled rows are compared."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.attention_units.launch import Halfs, Tensor
from benchmarks.attention_units.problems import Problem

Doubles = npt.NDArray[np.float64]

SAMPLED_ROWS = 192
ERROR_LIMIT = 1e-3
"""Relative L2 error: rounding probabilities and results to fp16 gives 3e-4 to 4e-4."""


@dataclass(frozen=True)
class Data:
    """A problem's operands on the host, shaped as in memory."""

    problem: Problem
    q: Tensor
    k: Tensor
    v: Tensor


@dataclass(frozen=True)
class Reference:
    """The sampled rows."""

    batch: npt.NDArray[np.int64]
    head: npt.NDArray[np.int64]
    row: npt.NDArray[np.int64]
    results: Doubles
    """(samples, head size)."""


@dataclass(frozen=True)
class Verdict:
    """What was found."""

    error: float
    """Relative L2 error of the sampled rows."""
    worst_row: float
    """The largest error of a row, relative to the rows' root mean square."""
    is_complete: bool
    """Every element was written with a finite number."""

    @property
    def is_right(self) -> bool:
        return self.is_complete and self.error < ERROR_LIMIT and self.worst_row < 8 * ERROR_LIMIT


def make_data(problem: Problem, seed: int) -> Data:
    """Random normal operands in fp16; queries of two magnitudes: some maxima grow far over the first."""
    data = make_float_data(problem, seed)
    q, k, v = (each.astype(np.float16) for each in (data.q, data.k, data.v))
    return Data(problem, q, k, v)


def make_float_data(problem: Problem, seed: int) -> Data:
    """The same in fp32."""
    generator = np.random.default_rng(seed)
    q = generator.standard_normal(problem.shape(problem.queries, problem.heads), np.float32)
    q *= generator.choice(np.array([1, 4], np.float32), (*q.shape[:-1], 1))
    shape = problem.shape(problem.keys, problem.kv_heads)
    k, v = (generator.standard_normal(shape, np.float32) for _ in range(2))
    return Data(problem, q, k, v)


def by_head(problem: Problem, tensor: Tensor) -> Tensor:
    """As (batch, heads, rows, columns)."""
    return tensor.swapaxes(1, 2) if problem.are_rows_outside else tensor


def make_reference(data: Data, seed: int, samples: int = SAMPLED_ROWS) -> Reference:
    """Computes sampled rows in float64, of which first and last ones of a head are some."""
    problem = data.problem
    q, k, v = (by_head(problem, each) for each in (data.q, data.k, data.v))
    every = problem.batch * problem.heads * problem.queries
    flat = np.random.default_rng(seed).permutation(every)[:samples]
    if samples < every:
        flat[0], flat[-1] = 0, every - 1
    batch, head, row = np.unravel_index(flat, (problem.batch, problem.heads, problem.queries))
    results = np.zeros((len(flat), problem.head_size))
    for index, (b, h, r) in enumerate(zip(batch, head, row, strict=True)):
        end = min(r + problem.causal_offset + 1, problem.keys) if problem.is_causal else problem.keys
        if end <= 0:
            continue
        keys, values = (each[b, h // problem.group, :end].astype(np.float64) for each in (k, v))
        scores = problem.scale * (keys @ q[b, h, r].astype(np.float64))
        weights = np.exp(scores - scores.max())
        results[index] = weights @ values / weights.sum()
    return Reference(batch, head, row, results)


def judge(data: Data, reference: Reference, result: Tensor) -> Verdict:
    """Compares a result, shaped as the queries, with the reference."""
    if not np.isfinite(result).all():
        return Verdict(float("nan"), float("nan"), False)
    found = by_head(data.problem, result)[reference.batch, reference.head, reference.row].astype(np.float64)
    difference = found - reference.results
    rows = np.linalg.norm(difference, axis=1)
    sizes = np.linalg.norm(reference.results, axis=1)
    error = float(np.linalg.norm(rows) / np.linalg.norm(sizes))
    return Verdict(error, float(rows.max() / np.sqrt((sizes**2).mean())), True)


@dataclass(frozen=True)
class GradientErrors:
    """Relative L2 errors of one head of keys and of the heads of queries that share it."""

    dq: float
    dk: float
    dv: float
    is_complete: bool
    """Every element of every head was written with a finite number."""

    @property
    def is_right(self) -> bool:
        return self.is_complete and max(self.dq, self.dk, self.dv) < 2 * ERROR_LIMIT


def judge_gradients(
    data: Data, d_out: Halfs, found: tuple[Halfs, Halfs, Halfs], heads: list[tuple[int, int]]
) -> GradientErrors:
    """Compares gradients with float64.

    Args:
        data: the operands.
        d_out: the result's gradient, shaped as the queries.
        found: dq, dk and dv, shaped as q, k and v.
        heads: batches and heads of keys to be compared; the errors are of all of them together.
    """
    problem = data.problem
    q, k, v, gradient = (by_head(problem, each) for each in (data.q, data.k, data.v, d_out))
    parts: dict[str, list[tuple[Doubles, Doubles]]] = {"dq": [], "dk": [], "dv": []}
    dq, dk, dv = (by_head(problem, each) for each in found)
    for batch, kv_head in heads:
        keys, values = (each[batch, kv_head].astype(np.float64) for each in (k, v))
        d_keys, d_values = np.zeros_like(keys), np.zeros_like(values)
        for head in range(kv_head * problem.group, (kv_head + 1) * problem.group):
            rows, d_rows = (each[batch, head].astype(np.float64) for each in (q, gradient))
            weights = _weights(problem, rows, keys)
            d_values += weights.T @ d_rows
            changes = d_rows @ values.T
            changes -= (weights * changes).sum(axis=1, keepdims=True)
            changes *= weights * problem.scale
            parts["dq"].append((dq[batch, head].astype(np.float64), changes @ keys))
            d_keys += changes.T @ rows
        parts["dk"].append((dk[batch, kv_head].astype(np.float64), d_keys))
        parts["dv"].append((dv[batch, kv_head].astype(np.float64), d_values))
    errors = {name: _relative(pairs) for name, pairs in parts.items()}
    return GradientErrors(**errors, is_complete=all(bool(np.isfinite(each).all()) for each in found))


def _weights(problem: Problem, rows: Doubles, keys: Doubles) -> Doubles:
    """The probabilities of a head; zeros in rows that see nothing."""
    scores = problem.scale * (rows @ keys.T)
    if problem.is_causal:
        seen = np.arange(problem.keys) <= np.arange(problem.queries)[:, None] + problem.causal_offset
        scores = np.where(seen, scores, -np.inf)
    largest = scores.max(axis=1, keepdims=True)
    weights = np.exp(scores - np.where(np.isfinite(largest), largest, 0))
    total = weights.sum(axis=1, keepdims=True)
    quotient: Doubles = weights / np.where(total == 0, 1, total)
    return quotient


def _relative(pairs: list[tuple[Doubles, Doubles]]) -> float:
    difference = sum(float(((found - exact) ** 2).sum()) for found, exact in pairs)
    return float(np.sqrt(difference / sum(float((exact**2).sum()) for _, exact in pairs)))
