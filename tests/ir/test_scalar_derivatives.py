"""Derivatives of scalar forms: each operation's rule, kinks, and what branches that are not taken leave."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from vkml.ir import dtypes, scalar
from vkml.ir.dtypes import FLOAT32, FLOAT64
from vkml.ir.scalar import Scalar, argument, constant, where
from vkml.ir.scalar_derivatives import derivative, times
from vkml.ops.scalar_evaluation import evaluate

Array = np.ndarray[Any, Any]
X, Y, Z = (argument(at, FLOAT64) for at in range(3))


def unary(operation: str) -> Callable[[Scalar], Scalar]:
    return lambda x: scalar.unary(operation, x)


def binary(operation: str) -> Callable[[Scalar, Scalar], Scalar]:
    return lambda x, y: scalar.binary(operation, x, y)


ANYWHERE = np.array([-2.3, -0.7, -0.2, 0.3, 0.9, 1.7])
INSIDE = np.array([-0.9, -0.4, 0.1, 0.3, 0.6, 0.8])
POSITIVE = np.array([0.1, 0.5, 0.9, 1.4, 2.5, 7.0])
ABOVE_ONE = POSITIVE + 1
RULES: dict[str, tuple[Callable[..., Scalar], Sequence[Array]]] = {
    "add": (binary("add"), (ANYWHERE, POSITIVE)),
    "subtract": (binary("subtract"), (ANYWHERE, POSITIVE)),
    "multiply": (binary("multiply"), (ANYWHERE, POSITIVE)),
    "divide": (binary("divide"), (ANYWHERE, ANYWHERE[::-1])),
    "negative": (unary("negative"), (ANYWHERE,)),
    "absolute": (unary("absolute"), (ANYWHERE,)),
    "minimum": (binary("minimum"), (ANYWHERE, ANYWHERE[::-1])),
    "maximum": (binary("maximum"), (ANYWHERE, ANYWHERE[::-1])),
    "fmod": (binary("fmod"), (ANYWHERE * 2.9, ANYWHERE[::-1])),
    "mod": (binary("mod"), (ANYWHERE * 2.9, ANYWHERE[::-1])),
    "power": (scalar.power, (POSITIVE, ANYWHERE)),
    "relu": (unary("relu"), (ANYWHERE,)),
    "fma": (scalar.fma, (ANYWHERE, POSITIVE, INSIDE)),
    "where": (lambda x, y: where(x < y, x * y, x - y), (ANYWHERE, ANYWHERE[::-1])),
    "convert": (
        lambda x: scalar.convert(scalar.convert(x, FLOAT32) * 2, FLOAT64),
        (np.array([-2.0, -0.5, 0.25, 1.0]),),
    ),
    "sqrt": (unary("sqrt"), (POSITIVE,)),
    "exp": (unary("exp"), (ANYWHERE,)),
    "expm1": (unary("expm1"), (ANYWHERE,)),
    "log": (unary("log"), (POSITIVE,)),
    "log1p": (unary("log1p"), (INSIDE,)),
    "sin": (unary("sin"), (ANYWHERE,)),
    "cos": (unary("cos"), (ANYWHERE,)),
    "tan": (unary("tan"), (INSIDE,)),
    "arcsin": (unary("arcsin"), (INSIDE,)),
    "arccos": (unary("arccos"), (INSIDE,)),
    "arctan": (unary("arctan"), (ANYWHERE,)),
    "sinh": (unary("sinh"), (ANYWHERE,)),
    "cosh": (unary("cosh"), (ANYWHERE,)),
    "tanh": (unary("tanh"), (ANYWHERE,)),
    "arcsinh": (unary("arcsinh"), (ANYWHERE,)),
    "arccosh": (unary("arccosh"), (ABOVE_ONE,)),
    "arctanh": (unary("arctanh"), (INSIDE,)),
    "erf": (unary("erf"), (ANYWHERE,)),
    "sigmoid": (unary("sigmoid"), (ANYWHERE,)),
}
"""Each operation that is differentiable, and points where it is."""
STEPS = ("sign", "floor", "ceil", "rint", "trunc")
NO_NUMBERS_OF_FLOATS = {
    "constant", "argument", "view", "equal", "not_equal", "less", "less_equal", "greater", "greater_equal",
    "isnan", "isposinf", "isneginf", "bitwise_and", "bitwise_or", "bitwise_xor", "invert", "left_shift",
    "right_shift",
}  # fmt: skip


def value(form: Scalar, *points: Array) -> Array:
    [found] = evaluate([form], list(points))
    return np.broadcast_to(found, points[0].shape)


def at(form: Scalar, *points: float) -> float:
    """A form's value in one point."""
    return float(value(form, *(np.array([point]) for point in points))[0])


def slope(form: Scalar, position: int = 0) -> Scalar:
    found = derivative(form, position)
    assert found is not None
    return found


def test_every_operation_is_looked_at() -> None:
    assert {*RULES, *STEPS, "round_to_half"} | NO_NUMBERS_OF_FLOATS == scalar.OPERATIONS


def differences(form: Scalar, position: int, points: Sequence[Array]) -> Array:
    step = 1e-4 * np.minimum(1, np.abs(points[position]))

    def moved(times: int) -> Array:
        return value(form, *(p + times * step if n == position else p for n, p in enumerate(points)))

    return np.asarray((8 * (moved(1) - moved(-1)) - (moved(2) - moved(-2))) / (12 * step))


@pytest.mark.parametrize("operation", sorted(RULES))
def test_rules_are_what_differences_say(operation: str) -> None:
    write, points = RULES[operation]
    # Of something else than an argument, so that a rule which forgets the inner derivative fails.
    inner = [X, Y, Z][: len(points)]
    scaled = [x if operation == "convert" else x * 0.5 + 0.25 for x in inner]
    form = write(*scaled)
    arguments = [p if operation == "convert" else (p - 0.25) * 2 for p in points]
    for position in range(len(points)):
        found = value(slope(form, position), *arguments)
        expected = differences(form, position, arguments)
        # float32 has rounded to 1e-7 what differences of 1e-3 are taken of
        tolerance = 1e-3 if operation == "convert" else 1e-9
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("operation", sorted({*RULES} - {"convert"}))
def test_second_derivatives(operation: str) -> None:
    write, points = RULES[operation]
    form = write(*[X, Y, Z][: len(points)])
    for first in range(len(points)):
        once = derivative(form, first)
        assert once is not None
        for second in range(len(points)):
            twice = derivative(once, second)
            found = 0.0 if twice is None else value(twice, *points)
            expected = differences(once, second, points)
            np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("operation", STEPS)
def test_steps_have_no_slope(operation: str) -> None:
    assert derivative(scalar.unary(operation, X), 0) is None
    assert derivative(scalar.unary(operation, X) * X, 0) is scalar.unary(operation, X)


def test_rounding_to_half_passes() -> None:
    x = argument(0, FLOAT32)
    found = derivative(scalar.round_to_half(x * 3), 0)
    assert found is constant(3.0, FLOAT32)


def test_bits_and_integers_have_no_slope() -> None:
    whole = scalar.convert(X, dtypes.INT64)
    assert derivative(scalar.convert(whole, FLOAT64), 0) is None
    assert derivative(scalar.view(scalar.view(X, dtypes.INT64), FLOAT64), 0) is None
    assert derivative(scalar.convert(X < 1, FLOAT64), 0) is None


def test_an_argument_that_is_not_there_has_no_slope() -> None:
    assert derivative(scalar.unary("exp", X), 1) is None
    assert derivative(constant(2.0, FLOAT64), 0) is None


def test_types_follow_the_form() -> None:
    narrow = argument(0, FLOAT32)
    form = scalar.unary("exp", scalar.convert(narrow, FLOAT64))
    assert slope(form).dtype == FLOAT64
    back = scalar.convert(form, FLOAT32)
    assert slope(back).dtype == FLOAT32
    assert at(slope(back), 1.0) == pytest.approx(np.e, rel=1e-6)


# --- kinks ------------------------------------------------------------------------------------------


def test_kinks_are_pytorchs() -> None:
    assert at(slope(scalar.relu(X)), 0.0) == 0
    assert at(slope(scalar.absolute(X)), 0.0) == 0
    for operation in ("minimum", "maximum"):
        form = scalar.binary(operation, X, Y)
        assert at(slope(form, 0), 2.0, 2.0) == at(slope(form, 1), 2.0, 2.0) == 0.5
        # Of equal values that both depend on it, the mean of both slopes.
        assert at(slope(scalar.binary(operation, X * 3, X)), 0.0) == 2


def test_powers_of_zero() -> None:
    form = scalar.power(X, Y)
    assert at(slope(form, 0), 0.0, 0.0) == 0
    assert at(slope(form, 0), 0.0, 1.0) == 1
    assert at(slope(form, 0), 0.0, 3.0) == 0
    assert at(slope(form, 1), 0.0, 2.0) == at(slope(form, 1), 0.0, 0.0) == 0
    assert np.isnan(at(slope(form, 1), -1.0, 2.0))
    assert at(slope(form, 0), -3.0, 2.0) == -6


# --- what is not taken ---------------------------------------------------------------------

LOG, ROOT, EXP = (scalar.unary(operation, X) for operation in ("log", "sqrt", "exp"))
BRANCHES: dict[str, tuple[Scalar, float, float]] = {
    "the logarithm of a negative number": (where(X > 0, LOG, X * 2), -1.0, 2),
    "the root of 0": (where(X > 0, ROOT, X * 3), 0.0, 3),
    "no slope at all": (where(X > 0, ROOT, 1.0), -1.0, 0),
    "a quotient by 0": (where(scalar.compare("equal", X, 0.0), 1.0, scalar.unary("sin", X) / X), 0.0, 0),
    "an overflow": (where(X < 10, EXP, X), 1e4, 1),
    "the smaller of infinity": (scalar.minimum(EXP, X * 5), 1e4, 5),
    "the greater of minus infinity": (scalar.maximum(-EXP, X * 5), 1e4, 5),
    "relu of minus infinity": (scalar.relu(LOG), 0.0, 0),
    "a branch within a branch": (where(X > 0, where(X > 1, LOG, ROOT), where(X < -1, -X, X)), -3.0, -1),
    "a factor of a branch": (where(X > 0, LOG, X) * 2, -1.0, 2),
    "a function of a branch": (scalar.unary("exp", where(X > 0, LOG, X)), -1.0, float(np.exp(-1))),
}


@pytest.mark.parametrize("name", BRANCHES)
def test_branches_that_are_not_taken_leave_nothing(name: str) -> None:
    form, point, expected = BRANCHES[name]
    assert at(slope(form), point) == pytest.approx(expected, abs=0)
    again = derivative(slope(form), 0)
    assert again is None or np.isfinite(at(again, point))


def test_the_cotangent_meets_nothing_where_the_slope_selects_0() -> None:
    product = times(slope(where(X > 0, X * 3, where(X < -1, 1.0, X))), Y)
    for cotangent in (np.nan, np.inf):
        assert at(product, -2.0, cotangent) == 0
        np.testing.assert_equal(at(product, -0.5, cotangent), cotangent)
        np.testing.assert_equal(at(product, 0.5, cotangent), cotangent)
    assert at(product, 0.5, 2.0) == 6
    assert times(constant(1.0, FLOAT64), Y) is Y


def test_a_slope_of_one_costs_nothing() -> None:
    assert derivative(X + Y, 0) is constant(1.0, FLOAT64)
    assert derivative(X - Y, 1) is constant(-1.0, FLOAT64)
    assert derivative(X * Y, 1) is X
    assert derivative(-(X + 3), 0) is constant(-1.0, FLOAT64)
