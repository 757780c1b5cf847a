"""Errors against float64 on well and badly scaled data, beside those of TF32's rounding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.matrix_units.check import Doubles, Floats, rounded
from benchmarks.matrix_units.launch import Kernels, Plan, compute, make_operands
from benchmarks.matrix_units.problems import Problem
from benchmarks.matrix_units.variants import Variant

Matrices = tuple[Floats, Floats]


@dataclass(frozen=True)
class Errors:
    """Of one way to compute, on one kind of data."""

    whole: float
    """Relative L2 error of the whole result."""
    worst_row: float
    """The largest relative L2 error of a row."""


def _unlike(generator: np.random.Generator, count: int, decades: float) -> Floats:
    """Random powers of ten."""
    found: Floats = (10.0 ** generator.uniform(-decades, decades, count)).astype(np.float32)
    return found


def _normal(a: Floats, b: Floats, generator: np.random.Generator) -> Matrices:
    return a, b


def _tiny(a: Floats, b: Floats, generator: np.random.Generator) -> Matrices:
    return a * np.float32(1e-7), b


def _huge(a: Floats, b: Floats, generator: np.random.Generator) -> Matrices:
    return a * np.float32(1e7), b


def _unlike_rows(a: Floats, b: Floats, generator: np.random.Generator) -> Matrices:
    return a * _unlike(generator, len(a), 6)[:, None], b


def _unlike_columns(a: Floats, b: Floats, generator: np.random.Generator) -> Matrices:
    return a, b * _unlike(generator, b.shape[1], 6)


def _outlier(a: Floats, b: Floats, generator: np.random.Generator) -> Matrices:
    a = a.copy()
    a[3, 5] = 1e9
    return a, b


def _heavy_tails(a: Floats, b: Floats, generator: np.random.Generator) -> Matrices:
    return a * np.exp(3 * generator.standard_normal(a.shape, np.float32)), b


def _unlike_k(a: Floats, b: Floats, generator: np.random.Generator) -> Matrices:
    sizes = _unlike(generator, len(b), 4)
    return a * sizes, b / sizes[:, None]


KINDS: dict[str, Callable[[Floats, Floats, np.random.Generator], Matrices]] = {
    "normal": _normal,
    "A times 1e-7": _tiny,
    "A times 1e7": _huge,
    "rows of A over 12 decades": _unlike_rows,
    "columns of B over 12 decades": _unlike_columns,
    "one 1e9 in A": _outlier,
    "A log-normal (sigma 3)": _heavy_tails,
    "k over 8 decades, A against B": _unlike_k,
}

WAYS: dict[str, dict[str, Any]] = {
    "fp16, no scale": {},
    "scale of the tensor": {"scaled": "by_tensor"},
    "scales of rows and columns": {"scaled": "by_row", "has_column_exponents": True},
}


def measure_errors(
    kernels: Kernels, variant: Variant, problem: Problem, seed: int
) -> dict[str, dict[str, Errors]]:
    """Errors by kind of data and way to compute; "TF32" is the rounding alone, added up in float64.

    Args:
        kernels: of the device.
        variant: of the product.
        problem: a single product.
        seed: of the data.
    """
    generator = np.random.default_rng(seed)
    found: dict[str, dict[str, Errors]] = {}
    for kind, change in KINDS.items():
        a, b = (
            generator.standard_normal(shape, np.float32)
            for shape in ((problem.m, problem.k), (problem.k, problem.n))
        )
        a, b = change(a, b, generator)
        exact = a.astype(np.float64) @ b.astype(np.float64)
        errors = {"TF32": errors_of(rounded(a, "tf32") @ rounded(b, "tf32"), exact)}
        operands = make_operands(
            kernels.device, problem, a[None], b, np.zeros(problem.n, np.float32), is_cold=False
        )
        for name, changes in WAYS.items():
            plan = replace(Plan(variant, has_bias=False), **changes)
            errors[name] = errors_of(compute(kernels, plan, operands)[0], exact)
        operands.free()
        found[kind] = errors
    return found


def errors_of(result: npt.NDArray[Any], exact: Doubles) -> Errors:
    """Infinite where the result has values that are no numbers."""
    if not np.isfinite(result).all():
        return Errors(float("inf"), float("inf"))
    difference = result.astype(np.float64) - exact
    rows = np.linalg.norm(difference, axis=1) / np.linalg.norm(exact, axis=1)
    return Errors(float(np.linalg.norm(difference) / np.linalg.norm(exact)), float(rows.max()))
