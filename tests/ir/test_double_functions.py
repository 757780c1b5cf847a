"""Functions of float64 in simpler scalars: right to a few units in the last place, special numbers, too."""

from __future__ import annotations

import numpy as np
import pytest

from vkml.ir import dtypes, scalar
from vkml.ir.double_functions import _FUNCTIONS, without_double_functions
from vkml.ir.scalar import ordered
from vkml.ops.scalar_evaluation import evaluate

X = scalar.argument(0, dtypes.FLOAT64)
UNITS = {
    "exp": 2,
    "expm1": 3,
    "log": 2,
    "log1p": 3,
    "sigmoid": 3,
    "tanh": 5,
    "sinh": 5,
    "cosh": 4,
    "arctanh": 5,
}


@pytest.mark.parametrize("name", sorted(_FUNCTIONS))
def test_functions(name: str) -> None:
    random = np.random.default_rng(3)
    some = random.standard_normal(100_000) * np.exp2(random.integers(-60, 11, 100_000))
    near = 1 + random.standard_normal(20_000) * np.exp2(random.integers(-50, -1, 20_000))
    any_ = random.integers(0, 2**64, 50_000, dtype=np.uint64).view(np.float64)
    edges = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 2.0, 709.7, 709.9, -708.5, -745.1, -746.5, 5e-324]
    x = np.concatenate([some, near, -near, any_, edges])
    [form] = without_double_functions([scalar.unary(name, X)])
    assert name not in {part.operation for part in ordered([form])}
    with np.errstate(all="ignore"):
        if name == "sigmoid":
            wanted = (1 / (1 + np.exp(-x.astype(np.longdouble)))).astype(np.float64)
        else:
            wanted = getattr(np, name)(x.astype(np.longdouble)).astype(np.float64)
        [found] = evaluate([form], [x])
        right = np.abs(found - wanted) <= UNITS[name] * np.spacing(np.abs(wanted))
    right |= (found == wanted) | (np.isnan(found) & np.isnan(wanted))
    assert right.all(), (x[~right][:5], found[~right][:5], wanted[~right][:5])
    zero = x == 0
    if name not in ("exp", "cosh", "log", "sigmoid"):
        np.testing.assert_array_equal(np.signbit(found[zero]), np.signbit(x[zero]))


def test_functions_within_functions_and_float32_stay() -> None:
    single = scalar.unary("exp", scalar.argument(0, dtypes.FLOAT32))
    assert without_double_functions([single]) == [single]
    [form] = without_double_functions([scalar.unary("exp", scalar.unary("log", X))])
    assert not {"exp", "log"} & {part.operation for part in ordered([form])}
