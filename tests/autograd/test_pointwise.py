"""Gradients of all pointwise operators, from their scalar forms or the slopes that they state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import vkml.ops  # noqa: F401  (fills the registry)
from tests.autograd.checking import away_from, check, normal
from vkml import tracing
from vkml.errors import NotDifferentiable
from vkml.ir import dtypes, scalar
from vkml.ir.operator import REGISTRY
from vkml.tracing import value_of

torch = pytest.importorskip("torch")
F = torch.nn.functional

Array = np.ndarray[Any, Any]
Points = Callable[[np.random.Generator, Sequence[int]], Array]
EVERYWHERE: Sequence[float] = (
    -1e4,
    -1000.0,
    -100.0,
    -20.0,
    -3.0,
    -1.0,
    -0.0,
    0.0,
    1.0,
    3.0,
    20.0,
    100.0,
    1e4,
)
"""Where activations must give what torch's give: beyond overflow of the exponential, and at their kinks."""


def anywhere(*kinks: float, scale: float = 1.5, distance: float = 0.05) -> Points:
    return lambda generator, shape: away_from(
        normal(generator, *shape, scale=scale), *kinks, distance=distance
    )


def positive(generator: np.random.Generator, shape: Sequence[int]) -> Array:
    return generator.uniform(0.2, 3, shape)


def inside(generator: np.random.Generator, shape: Sequence[int]) -> Array:
    return generator.uniform(-0.9, 0.9, shape)


def above_one(generator: np.random.Generator, shape: Sequence[int]) -> Array:
    return generator.uniform(1.2, 4, shape)


@dataclass(frozen=True)
class Case:
    """An operator, torch's, points where it is smooth, and others where only torch says what is right."""

    op: str
    torch: Callable[..., Any] | None
    points: Sequence[Points] = (anywhere(0),)
    attributes: dict[str, Any] = field(default_factory=dict)
    kinks: Sequence[float] | None = None


def selu(x: Any) -> Any:
    """With the constants as ONNX stores them, in 32 bits."""
    alpha, gamma = (float(np.float32(value)) for value in (1.6732632423543772, 1.0507009873554805))
    return gamma * torch.where(x <= 0, alpha * torch.expm1(x.clamp(max=0)), x)


_EVEN = anywhere(*(n / 2 for n in range(-12, 13)))
_TWO = (anywhere(), anywhere())
_DIVISOR = anywhere(0, distance=0.4)
_APART: Sequence[Points] = (anywhere(), lambda generator, shape: generator.uniform(8, 9, shape))
CASES = [
    Case("Abs", torch.abs, kinks=EVERYWHERE),
    Case("Acos", torch.acos, (inside,)),
    Case("Acosh", torch.acosh, (above_one,)),
    Case("Asin", torch.asin, (inside,)),
    Case("Asinh", torch.asinh, kinks=EVERYWHERE),
    Case("Atan", torch.atan, kinks=EVERYWHERE),
    Case("Atanh", torch.atanh, (inside,)),
    Case("Ceil", torch.ceil, (_EVEN,)),
    Case("Celu", torch.celu, kinks=EVERYWHERE),
    Case("Celu", lambda x: F.celu(x, 1.5), attributes={"alpha": 1.5}),
    Case("Cos", torch.cos),
    Case("Cosh", torch.cosh),
    Case("Elu", F.elu, kinks=EVERYWHERE),
    Case("Elu", lambda x: F.elu(x, 0.5), attributes={"alpha": 0.5}, kinks=EVERYWHERE),
    Case("Erf", torch.erf, kinks=EVERYWHERE),
    Case("Exp", torch.exp),
    Case("Floor", torch.floor, (_EVEN,)),
    Case("Gelu", F.gelu, kinks=EVERYWHERE),
    Case(
        "Gelu",
        lambda x: F.gelu(x, approximate="tanh"),
        attributes={"approximate": "tanh"},
        kinks=EVERYWHERE,
    ),
    Case(
        "HardSigmoid",
        lambda x: torch.clamp(x * 0.25 + 0.5, 0, 1),
        (anywhere(-2, 2),),
        {"alpha": 0.25, "beta": 0.5},
    ),
    Case("HardSigmoid", None, (anywhere(-3, 3, scale=3),), {"alpha": 1 / 6, "beta": 0.5}),
    Case("HardSwish", F.hardswish, (anywhere(-3, 3, scale=3),), kinks=EVERYWHERE),
    Case("Identity", lambda x: x),
    Case("LeakyRelu", lambda x: F.leaky_relu(x, 0.25), attributes={"alpha": 0.25}, kinks=EVERYWHERE),
    Case("Log", torch.log, (positive,)),
    Case("Mish", F.mish, kinks=EVERYWHERE),
    Case("Neg", torch.neg),
    Case("Reciprocal", torch.reciprocal, (_DIVISOR,)),
    Case("Relu", torch.relu, kinks=EVERYWHERE),
    Case("Round", torch.round, (_EVEN,)),
    Case("Selu", selu, kinks=EVERYWHERE),
    Case("Shrink", lambda x: F.hardshrink(x, 0.5), (anywhere(-0.5, 0.5),), kinks=(-0.5, 0.0, 0.5)),
    Case(
        "Shrink",
        lambda x: F.softshrink(x, 0.25),
        (anywhere(-0.25, 0.25),),
        {"lambd": 0.25, "bias": 0.25},
        (-0.25, 0.0, 0.25),
    ),
    Case("Sigmoid", torch.sigmoid, kinks=EVERYWHERE),
    Case("Sign", torch.sign, kinks=EVERYWHERE),
    Case("Sin", torch.sin),
    Case("Sinh", torch.sinh),
    Case("Softplus", lambda x: F.softplus(x, threshold=30), kinks=EVERYWHERE),
    Case("Softsign", F.softsign, kinks=EVERYWHERE),
    Case("Sqrt", torch.sqrt, (positive,), kinks=(0.0, 1.0)),
    Case("Swish", F.silu, kinks=EVERYWHERE),
    Case("Swish", lambda x: x * torch.sigmoid(1.5 * x), attributes={"alpha": 1.5}),
    Case("Tan", torch.tan, (inside,)),
    Case("Tanh", torch.tanh, kinks=EVERYWHERE),
    Case("ThresholdedRelu", lambda x: F.threshold(x, 1, 0), (anywhere(1),), kinks=EVERYWHERE),
    Case("Add", torch.add, _TWO),
    Case("Sub", torch.sub, _TWO),
    Case("Mul", torch.mul, _TWO),
    Case("Div", torch.div, (anywhere(), _DIVISOR)),
    Case("Mod", torch.remainder, _APART),
    Case("Mod", torch.fmod, _APART, {"fmod": 1}),
    Case("Pow", torch.pow, (positive, anywhere())),
    Case("PRelu", lambda x, slope: torch.where(x > 0, x, x * slope), (anywhere(0), anywhere())),
    Case("Max", torch.maximum, _APART, kinks=(-1.0, 0.0, 2.0)),
    Case("Min", torch.minimum, _APART, kinks=(-1.0, 0.0, 2.0)),
    Case("Mean", lambda x, y, z: (x + y + z) / 3, (anywhere(), anywhere(), anywhere())),
    Case("Sum", lambda x, y, z: x + y + z, (anywhere(), anywhere(), anywhere())),
]
ELSEWHERE = {"Cast", "Clip", "Expression", "Where"}
"""Tested below, for they take inputs of several types or forms."""
NO_FLOATS = {
    "And", "BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "Equal", "Greater",
    "GreaterOrEqual", "IsInf", "IsNaN", "Less", "LessOrEqual", "Not", "Or", "Xor",
}  # fmt: skip
"""Whose results are no floats."""
SHAPES = [((2, 3, 4), (4,)), ((3, 1), (2, 1, 5)), ((), (3,)), ((1, 2), (1, 1))]
NO_SECOND_ORDER = {"Ceil", "Floor", "Round", "Sign"}


def ids(cases: Sequence[Case]) -> list[str]:
    return [f"{case.op}{''.join(f'-{value}' for value in case.attributes.values())}" for case in cases]


def test_every_pointwise_operator_is_looked_at() -> None:
    pointwise = {op for (_, op), spec in REGISTRY.items() if spec.is_pointwise}
    assert pointwise == {case.op for case in CASES} | ELSEWHERE | NO_FLOATS


@pytest.mark.parametrize("case", CASES, ids=ids(CASES))
def test_pointwise(case: Case, device_name: str) -> None:
    generator = np.random.default_rng(sum(map(ord, case.op)))
    first, second = SHAPES[int(generator.integers(len(SHAPES)))]
    shapes = [first, *([second] * (len(case.points) - 1))]
    if case.op == "PRelu":
        shapes = [(2, 3, 4), (3, 1)]
    inputs = [points(generator, shape) for points, shape in zip(case.points, shapes, strict=True)]
    check(
        case.op,
        inputs,
        case.attributes,
        torch=case.torch,
        second_order=case.op not in NO_SECOND_ORDER,
        device=device_name,
    )


KINKS = [case for case in CASES if case.kinks is not None]


@pytest.mark.parametrize("case", KINKS, ids=ids(KINKS))
def test_kinks_and_far_points_are_as_in_torch(case: Case, device_name: str) -> None:
    assert case.kinks is not None
    points = np.array(case.kinks)
    inputs = [points]
    if len(case.points) == 2:  # each with each: ties
        inputs = [np.repeat(points, points.size), np.tile(points, points.size)]
    check(case.op, inputs, case.attributes, torch=case.torch, differences=False, device=device_name)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("op", ["Gelu", "Sigmoid", "Sqrt", "Softplus", "Log"])
def test_floats_of_16_bits(op: str, dtype: str, device_name: str) -> None:
    points = np.random.default_rng(3).uniform(0.3, 4, (5, 7))
    kind = np.float16 if dtype == "float16" else dtypes.BFLOAT16.storage
    check(op, [points], second_order=False, device=device_name, dtype=kind)


def test_hard_sigmoid_at_its_bounds_has_no_slope() -> None:
    points = np.array([-2.0, -1.0, 0.0, 1.0, 2.0])
    [found] = check("HardSigmoid", [points], {"alpha": 0.5, "beta": 0.5}, differences=False)
    assert found is not None
    np.testing.assert_array_equal(found != 0, [False, False, True, False, False])


@pytest.mark.parametrize("exponent", [-1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0, 4.0, 2.5])
def test_powers_of_a_known_number(exponent: float, device_name: str) -> None:
    x = np.random.default_rng(2).uniform(0.3, 2, (3, 4))
    check(
        "Pow",
        [x, np.array(exponent)],
        constants=[1],
        torch=lambda x, y: x**exponent,
        device=device_name,
    )


def test_powers_of_zero_are_as_in_torch(device_name: str) -> None:
    base = np.array([0.0, 0.0, 0.0, 0.0, -0.0, 2.0])
    exponent = np.array([0.0, 1.0, 2.0, 0.5, 3.0, 0.0])
    check("Pow", [base, exponent], torch=torch.pow, differences=False, device=device_name)


def test_powers_of_negative_numbers_and_integers(device_name: str) -> None:
    base = np.array([-2.0, -1.5, 0.5, 3.0])
    check("Pow", [base, np.array([2, 3, -1, 0])], torch=torch.pow, device=device_name)


BOUNDS = [(-0.5, 0.75), (None, 0.5), (-0.25, None), (None, None), (1.0, -1.0)]


@pytest.mark.parametrize("is_constant", [True, False], ids=["constant", "variable"])
@pytest.mark.parametrize("bounds", BOUNDS, ids=str)
def test_clip(bounds: tuple[float | None, float | None], is_constant: bool, device_name: str) -> None:
    low, high = (None if bound is None else np.array(bound) for bound in bounds)
    inputs = [anywhere(-0.5, 0.75, 0.5, -0.25, 1, -1)(np.random.default_rng(5), (4, 5)), low, high]

    def clamp(x: Any, *given: Any) -> Any:
        given_bounds = iter(given)
        limits = [None if bound is None else next(given_bounds) for bound in bounds]
        return x if limits == [None, None] else torch.clamp(x, *limits)

    check("Clip", inputs, constants=[1, 2] if is_constant else [], torch=clamp, device=device_name)
    points = np.array([-1.0, -0.5, -0.25, 0.0, 0.5, 0.75, 1.0, 2.0])
    check("Clip", [points, *inputs[1:]], constants=[1, 2], torch=clamp, differences=False, device=device_name)


def test_where(device_name: str) -> None:
    generator = np.random.default_rng(6)
    condition = generator.integers(0, 2, (3, 4)).astype(bool)
    inputs = [condition, normal(generator, 2, 1, 4), normal(generator, 1)]
    check("Where", inputs, torch=torch.where, device=device_name)


def test_where_multiplies_nothing_by_zero() -> None:
    x = value_of(np.array([1.0, 2.0, 3.0]))
    x.tracks = x.is_leaf = True
    made = tracing.apply("Where", value_of(np.array([True, False, True])), x, value_of(np.zeros(3)))
    [found] = tracing.gradients([made], [value_of(np.array([np.nan, np.inf, -np.inf]))], [x])
    assert found is not None
    tracing.evaluate([found])
    np.testing.assert_array_equal(np.asarray(found.data), [np.nan, 0.0, -np.inf])


@pytest.mark.parametrize("to", [*dtypes.FLOATS, dtypes.FLOAT8E5M2], ids=str)
@pytest.mark.parametrize("dtype", dtypes.FLOATS, ids=str)
@pytest.mark.parametrize("op", ["Cast", "CastLike"])
def test_cast(op: str, dtype: Any, to: Any) -> None:
    x = value_of(np.array([1.5, -2.0]).astype(dtype.storage))
    x.tracks = x.is_leaf = True
    like = value_of(np.zeros(3, to.storage))
    made = tracing.apply("Cast", x, to=to.code) if op == "Cast" else tracing.apply("CastLike", x, like)
    [found] = tracing.gradients([made], [value_of(np.array([3.0, 0.5]).astype(to.storage))], [x])
    assert found is not None and found.type == x.type
    tracing.evaluate([found])
    np.testing.assert_array_equal(np.asarray(found.data).astype(np.float64), [3.0, 0.5])


def test_nothing_flows_through_integers() -> None:
    x = value_of(np.array([1.5, -2.0]))
    x.tracks = x.is_leaf = True
    whole = tracing.apply("Cast", x, to=dtypes.INT32.code)
    made = tracing.apply("Cast", whole, to=dtypes.FLOAT64.code)
    assert tracing.gradients([made], [value_of(np.ones(2))], [x]) == [None]


def test_expressions(device_name: str) -> None:
    def form(dtype: Any) -> Any:
        x, y = scalar.argument(0, dtype), scalar.argument(1, dtype)
        return scalar.where(x < y, scalar.unary("sin", x * y), scalar.unary("exp", x) / y)

    generator = np.random.default_rng(9)
    x, y = normal(generator, 3, 4), generator.uniform(3, 4, 4)
    for dtype in (dtypes.FLOAT32, dtypes.FLOAT64):
        attributes = {"form": form(dtype), "to": dtype.code}
        kept = value_of(x.astype(dtype.storage))
        kept.tracks = kept.is_leaf = True
        made = tracing.apply(
            "Expression", kept, value_of(y.astype(dtype.storage)), domain="vkml", **attributes
        )
        [found] = tracing.gradients([made], [value_of(np.ones((3, 4), dtype.storage))], [kept])
        assert found is not None
        tracing.evaluate([found])
        np.testing.assert_allclose(np.asarray(found.data), y * np.cos(x * y), rtol=2e-5, atol=2e-6)


def test_what_has_no_gradient_says_so() -> None:
    x = value_of(np.array([1.5, -2.0]))
    x.tracks = x.is_leaf = True
    made = tracing.apply("Hardmax", x)
    with pytest.raises(NotDifferentiable, match="Hardmax"):
        tracing.gradients([made], [value_of(np.ones(2))], [x])
