"""Scalar forms in machine code: every operator in every type, and random trees over all operations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.cpu.native.harness import guarded, instruction_sets, require, run
from tests.cpu.native.test_expression import dense_floats, ulps
from tests.ir.test_scalar import LEAST, POINTWISE, UNITS, form_of, inputs_of
from tests.kernels.test_pointwise_math import VARIANTS
from vkml.cpu.native.executable import InstructionSet
from vkml.cpu.native.expression import Access
from vkml.cpu.native.pointwise import pointwise
from vkml.ir import dtypes, scalar
from vkml.ir.dtypes import BOOL, FLOAT32, FLOAT64, DType
from vkml.ir.lowering import CannotLower
from vkml.ir.operator import REGISTRY
from vkml.ir.scalar import Scalar, argument, constant, ordered, unary
from vkml.lowering.native_body import expression
from vkml.ops.scalar_evaluation import evaluate

Array = np.ndarray[Any, Any]
TYPES = (FLOAT32, FLOAT64, *dtypes.INTEGERS, BOOL)
FUNCTIONS = {"tan": 3.5, "arcsin": 2.5, "arccos": 1.5, "arctan": 3.0, "sinh": 3.0, "cosh": 3.0,
             "arcsinh": 2.2, "arccosh": 2.0, "arctanh": 2.6}  # fmt: skip
"""Functions made of simpler ones, and more than the largest error over every 509th float, in units."""


def computed(
    instructions: InstructionSet, results: Sequence[Scalar], arguments: Sequence[Array], *, dtype: Any = None
) -> list[Array]:
    """The results' elements by machine code."""
    made = [guarded(np.zeros(arguments[0].shape, dtype or result.dtype.storage)) for result in results]
    held = [guarded(array) for array in arguments]
    launch = pointwise(
        instructions,
        shape=arguments[0].shape,
        leaves=tuple(Access((1,), array.dtype.name) for array in arguments),
        expression=expression(results, len(arguments)),
        results=tuple(Access((1,), array.dtype.name) for _, array in made),
        threads=1,
    )
    run(launch, [array for _, array in (*held, *made)], parallel=False)
    for memory, _ in (*held, *made):
        memory.check()
    return [array for _, array in made]


def assert_close(op: str, found: Array, expected: Array) -> None:
    """A few units from what is exact, in which some forms cancel what they have worked out."""
    with np.errstate(all="ignore"):
        expected = expected.astype(found.dtype)
        unit = np.spacing(
            np.maximum(np.abs(expected), found.dtype.type({**LEAST, "Gelu": 1.0}.get(op, 1e-3)))
        )
        right = np.abs(found - expected) <= UNITS.get(op, 4) * unit
    right |= (found == expected) | (np.isnan(found) & np.isnan(expected))
    assert right.all(), (found[~right][:4], expected[~right][:4])


INEXACT = {*FUNCTIONS, "exp", "expm1", "log", "log1p", "tanh", "erf", "sigmoid", "sin", "cos", "power", "fma"}
REFUSED = {"Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Celu", "Cos", "Cosh", "Elu", "Erf", "Exp",
           "Gelu", "Log", "Mish", "Pow", "Selu", "Sigmoid", "Sin", "Sinh", "Softplus", "Swish", "Tan",
           "Tanh"}  # fmt: skip
"""Operators of float64 that need a function of which there is no machine code for doubles."""


@instruction_sets
@pytest.mark.parametrize("op", POINTWISE)
def test_operators_match_their_forms(instructions: InstructionSet, op: str) -> None:
    require(instructions)
    spec = REGISTRY["", op]
    arity = spec.inputs[0] if spec.inputs[1] < 9 else 3
    for dtype in (*dtypes.NUMBERS, BOOL):
        for attributes in VARIANTS.get(op, [{}]):
            found = form_of(op, [dtype] * arity, attributes)
            if found is None:
                continue
            node, form, result = found
            with np.errstate(all="ignore"):
                arrays = inputs_of(op, dtype, arity)
            if dtype == FLOAT64 and op in REFUSED:
                with pytest.raises(CannotLower, match="of double has no machine code"):
                    expression([form], arity)
                continue
            [value] = computed(instructions, [form], arrays, dtype=result.storage)
            if {entry.operation for entry in ordered([form])} & INEXACT and dtype.is_float:
                expected = spec.evaluate(node, [array.astype(np.float64) for array in arrays])[0]
                assert_close(op, value, expected)
            else:
                with np.errstate(all="ignore"):
                    expected = evaluate([form], arrays)[0].astype(result.storage)
                if not result.is_native:  # of whose NaN NumPy does not know that they are alike
                    value, expected = value.astype(np.float32), expected.astype(np.float32)
                np.testing.assert_array_equal(value, expected)


@instruction_sets
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_made_of_others_are_accurate(instructions: InstructionSet, name: str) -> None:
    require(instructions)
    x = dense_floats(8219)
    [found] = computed(instructions, [unary(name, argument(0, FLOAT32))], [x])
    with np.errstate(all="ignore"):
        exact = getattr(np, name)(x.astype(np.float64))
    assert ulps(found, exact).max() <= FUNCTIONS[name]
    is_number = ~np.isnan(exact)
    np.testing.assert_array_equal(np.signbit(found)[is_number], np.signbit(exact)[is_number])


SPECIAL = np.array([0.0, -0.0, 1, -1, 2, -2, 0.5, -0.5, 3, -3, np.inf, -np.inf, np.nan, 1e-45, -1e-45,
                    16777216, 16777217, 16777215, -16777215, 3e38, -3e38, 1e30], np.float32)  # fmt: skip


@instruction_sets
@pytest.mark.parametrize("name", ["power", "fmod", "mod"])
def test_powers_and_remainders(instructions: InstructionSet, name: str) -> None:
    require(instructions)
    random = np.random.default_rng(0)
    count = 20000
    sizes = (random.normal(size=count) * np.exp2(random.integers(-60, 60, count))).astype(np.float32)
    near = np.exp(random.normal(size=count) * 0.001).astype(np.float32)
    exponents = (random.normal(size=count) * np.exp2(random.integers(-6, 14, count))).astype(np.float32)
    exponents[::5] = np.rint(exponents[::5])
    pairs = np.meshgrid(SPECIAL, SPECIAL)
    x = np.concatenate([pairs[0].ravel(), sizes, near])
    y = np.concatenate([pairs[1].ravel(), exponents, exponents])
    form = scalar.binary(name, argument(0, FLOAT32), argument(1, FLOAT32))
    [found] = computed(instructions, [form], [x, y])
    with np.errstate(all="ignore"):
        expected = getattr(np, name)(x, y)
        exact = np.power(x.astype(np.float64), y.astype(np.float64)) if name == "power" else expected
    assert ulps(found, exact.astype(np.float64)).max() <= (0.51 if name == "power" else 0)
    is_number = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(found)[is_number], np.signbit(expected)[is_number])


def test_doubles_round_to_half_once() -> None:
    instructions = InstructionSet.AVX2
    require(instructions)
    random = np.random.default_rng(0)
    halves = random.integers(0, 1 << 16, 20000).astype(np.uint16).view(np.float16).astype(np.float64)
    following = np.nextafter(halves.astype(np.float16), np.float16(np.inf)).astype(np.float64)
    with np.errstate(all="ignore"):
        middle = (halves + following) / 2
        edges = [65519.999999, 65520, -65520, 1e300, np.inf, -np.inf, np.nan, 2.0**-25, 1e-310, -0.0]
        x = np.concatenate([middle, np.nextafter(middle, np.inf), np.nextafter(middle, 0), halves, edges])
    [found] = computed(instructions, [scalar.round_to_half(argument(0, FLOAT64))], [x])
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(found, x.astype(np.float16).astype(np.float32))


UNARY = {"sqrt", "floor", "ceil", "trunc", "rint", "negative", "absolute", "sign", "relu", "invert"}
COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
ARITHMETIC = ("add", "subtract", "multiply", "divide", "fmod", "mod", "minimum", "maximum", "negative",
              "absolute", "sign", "relu")  # fmt: skip
OF_FLOATS = (*ARITHMETIC, "sqrt", "floor", "ceil", "trunc", "rint")
LOGIC = ("bitwise_and", "bitwise_or", "bitwise_xor")
OF_INTEGERS = (*ARITHMETIC, *LOGIC, "left_shift", "right_shift", "invert", "power")


def random_tree(random: np.random.Generator, arguments: Sequence[DType], steps: int) -> list[Scalar]:
    """Exact operations over all types; results are the last few."""
    pool: list[Scalar] = [argument(n, dtype) for n, dtype in enumerate(arguments)]
    pool += [constant(int(random.integers(0, 100)), dtype) for dtype in random.choice(np.array(TYPES), 4)]

    def any_of(scalars: Sequence[Scalar]) -> Scalar:
        return scalars[int(random.integers(len(scalars)))]

    def of(dtype: DType) -> Scalar:
        found = [entry for entry in pool if entry.dtype == dtype]
        return any_of(found) if found else to(dtype, any_of(pool))

    def to(dtype: DType, x: Scalar) -> Scalar:
        if x.dtype.is_float and dtype.is_integer:
            # What does not fit is any number.
            low = 0.0 if dtype == dtypes.UINT64 else -1e15
            limited = scalar.minimum(scalar.maximum(x, low), 1e15)
            x = scalar.where(scalar.test("isnan", x), 0.0, limited)
        return scalar.convert(x, dtype)

    def operation(x: Scalar, y: Scalar) -> Scalar:
        if x.dtype == BOOL:
            made = scalar.binary(str(random.choice(LOGIC)), x, y)
            return ~made if random.random() < 0.3 else made
        name = str(random.choice(OF_FLOATS if x.dtype.is_float else OF_INTEGERS))
        if name == "power":
            kind = dtypes.INT32 if random.random() < 0.5 else dtypes.INT64
            return scalar.power(x, of(kind) & constant(15, kind)) if x.dtype.kind == "i" else x
        made = unary(name, x) if name in UNARY else scalar.binary(name, x, y)
        # The sign of a zero may be either in an extreme.
        is_loose = x.dtype.is_float and name in ("minimum", "maximum", "relu")
        return made + 0.0 if is_loose else made

    for _ in range(steps):
        x = any_of(pool)
        way = random.random()
        if way < 0.25:
            made = to(TYPES[int(random.integers(len(TYPES)))], x)
        elif way < 0.4:
            made = scalar.compare(str(random.choice(COMPARISONS)), x, of(x.dtype))
        elif way < 0.55:
            made = scalar.where(of(BOOL), x, of(x.dtype))
        else:
            made = operation(x, of(x.dtype))
        pool.append(made)
    return [entry for entry in pool[-4:] if entry.inputs] or [pool[-1]]


@instruction_sets
@pytest.mark.parametrize("seed", range(80))
def test_random_trees(instructions: InstructionSet, seed: int) -> None:
    require(instructions)
    random = np.random.default_rng(seed)
    arguments = [TYPES[int(entry)] for entry in random.integers(0, len(TYPES), int(random.integers(1, 4)))]
    results = random_tree(random, arguments, int(random.integers(1, 14)))
    count = int(random.integers(1, 90))
    arrays = [inputs_of("Add", dtype, 2)[int(random.integers(2))] for dtype in arguments]
    arrays = [random.choice(array, count) for array in arrays]
    found = computed(instructions, results, arrays)
    for one, other in zip(found, evaluate(results, arrays), strict=True):
        expected = np.broadcast_to(other, one.shape)
        np.testing.assert_array_equal(one, expected, err_msg=repr(results))
        if one.dtype.kind == "f":
            is_number = ~np.isnan(expected)
            np.testing.assert_array_equal(np.signbit(one)[is_number], np.signbit(expected)[is_number])


def test_what_is_missing_is_named() -> None:
    with pytest.raises(CannotLower, match="exp of double has no machine code"):
        expression([unary("exp", argument(0, FLOAT64))], 1)


def test_infinity_times_a_slope_of_nothing_is_not_looked_at() -> None:
    """Neither by the reference: above 0 a leaky Relu is its input."""
    found = form_of("LeakyRelu", [FLOAT32], {"alpha": 0.0})
    assert found is not None
    node, form, _ = found
    x = np.array([np.inf, -np.inf, 1.0, -1.0, np.nan], np.float32)
    expected = np.array([np.inf, np.nan, 1.0, 0.0, np.nan], np.float32)
    np.testing.assert_array_equal(REGISTRY["", "LeakyRelu"].evaluate(node, [x])[0], expected)
    np.testing.assert_array_equal(evaluate([form], [x])[0], expected)
