"""Expressions in registers against NumPy, and the accuracy of the functions."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.special

from tests.cpu.native.harness import instruction_sets, require, run
from vkml.cpu.native.assembler import R8, R9, R10, RCX, RDI, RSI, Mem
from vkml.cpu.native.executable import InstructionSet
from vkml.cpu.native.expression import Expression, Step, TooFewRegisters, emit, registers_needed
from vkml.cpu.native.kernel import Kernel, Launch
from vkml.cpu.native.operations import operation
from vkml.cpu.native.vectors import VectorCode

Array = np.ndarray[Any, Any]
TRUE = np.uint32(0xFFFFFFFF).view(np.float32)
EDGES = np.array([0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, np.inf, -np.inf, np.nan, 1e-45, -1e-45,
                  1e-40, 1e-38, 1.1754944e-38, 3.4e38, -3.4e38, 88.7, 88.73, -87.3, -88.0, -103.9, -104.0,
                  -1000.0, 1000.0, -0.9999999, 1e-4, -1e-4, 16777216.0, 16777218.0,
                  0.93, 0.9300001, 3.92, 9.01, 10.0, 65535.99, 65536.0, 8388609.0,
                  1e10], np.float32)  # fmt: skip


def evaluate(
    instructions: InstructionSet,
    expression: Expression,
    operands: list[Array],
    *,
    bound: int = 0,
    free: int | None = None,
) -> list[Array]:
    """Runs an expression over arrays of equal sizes (a multiple of 16)."""
    code = VectorCode(instructions)
    code.move_immediate(R8, 0)
    addresses = [R9, R10, RSI]
    assert len(operands) <= len(addresses)
    for position, register in enumerate(addresses[: len(operands)]):
        code.mov(register, Mem(RDI, 8 * position))
    results = [np.full_like(operands[0], 7) for _ in expression.outputs]

    def load(operand: int, register: int) -> None:
        code.load(register, Mem(addresses[operand], 0, R8, 1))

    with code.loop(RCX, operands[0].size // code.width):
        for operand in range(bound):
            load(operand, operand)
        last = code.registers if free is None else bound + free
        outputs = emit(
            code,
            expression,
            bound={operand: operand for operand in range(bound)},
            load=load,
            free=range(bound, last),
        )
        code.push(RSI)
        for position, register in enumerate(outputs):
            code.mov(RSI, Mem(RDI, 8 * (len(operands) + position)))
            code.store(Mem(RSI, 0, R8, 1), register)
        code.pop(RSI)
        code.add_immediate(R8, code.bytes)
    code.ret()
    launch = Launch(Kernel("test", code.finish()), np.zeros((1, 1), np.int64), 0.0)
    run(launch, [*operands, *results], parallel=False)
    return results


def single(name: str, arity: int) -> Expression:
    return Expression(arity, (Step(name, tuple(range(arity))),), (arity,))


def samples(count: int, seed: int = 0) -> Array:
    """Floats of every size with edge cases among them."""
    random = np.random.default_rng(seed)
    bits = random.integers(0, 2**32, count, dtype=np.uint32).view(np.float32)
    values = np.where(random.random(count) < 0.5, random.normal(size=count) * 3, bits).astype(np.float32)
    values[random.integers(0, count, count // 4)] = random.choice(EDGES, count // 4)
    return values


def truth(value: Array) -> Array:
    return np.where(value, TRUE, np.float32(0)).astype(np.float32)


def is_true(value: Array) -> Array:
    return value.view(np.uint32) != 0


UNARY: dict[str, Callable[[Array], Array]] = {
    "negative": np.negative, "absolute": np.abs, "sqrt": np.sqrt, "reciprocal": np.reciprocal,
    "rint": np.round, "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "sign": np.sign,
    "relu": lambda x: np.maximum(x, np.float32(0)), "isnan": lambda x: truth(np.isnan(x)),
}  # fmt: skip
BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": np.divide,
    "minimum": np.minimum, "maximum": np.maximum,
    **{name: functools.partial(lambda f, x, y: truth(f(x, y)), getattr(np, name))
       for name in ("less", "less_equal", "greater", "greater_equal", "equal", "not_equal")},
}  # fmt: skip
LOGICAL: dict[str, Callable[[Array, Array], Array]] = {
    "bitwise_and": np.logical_and,
    "bitwise_or": np.logical_or,
    "bitwise_xor": np.logical_xor,
}
FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "exp": np.exp, "log": np.log, "tanh": np.tanh, "erf": scipy.special.erf, "sigmoid": scipy.special.expit,
    "sin": np.sin, "cos": np.cos, "expm1": np.expm1, "log1p": np.log1p,
}  # fmt: skip


def assert_same(found: Array, expected: Array) -> None:
    is_logical = expected.view(np.uint32) == 0xFFFFFFFF
    np.testing.assert_array_equal(found.view(np.uint32)[is_logical], expected.view(np.uint32)[is_logical])
    np.testing.assert_array_equal(found[~is_logical], expected[~is_logical])


@instruction_sets
@pytest.mark.parametrize("name", UNARY)
def test_unary_operations_match_numpy(instructions: InstructionSet, name: str) -> None:
    require(instructions)
    x = samples(4096)
    with np.errstate(all="ignore"):
        expected = UNARY[name](x)
    for bound in (0, 1):
        (found,) = evaluate(instructions, single(name, 1), [x], bound=bound)
        assert_same(found, expected)


@instruction_sets
@pytest.mark.parametrize("name", BINARY)
def test_binary_operations_match_numpy(instructions: InstructionSet, name: str) -> None:
    require(instructions)
    x, y = samples(4096), samples(4096, 1)
    y[::7] = x[::7]
    with np.errstate(all="ignore"):
        expected = BINARY[name](x, y)
    for bound in (0, 1, 2):
        (found,) = evaluate(instructions, single(name, 2), [x, y], bound=bound)
        assert_same(found, expected)


@instruction_sets
@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("is_first", [False, True])
def test_constants_on_either_side(instructions: InstructionSet, name: str, is_first: bool) -> None:
    require(instructions)
    x = samples(4096)
    inputs = (1, 0) if is_first else (0, 1)
    for number in (2.5, 0.0, float("nan")):
        expression = Expression(1, (Step("constant", number=number), Step(name, inputs)), (2,))
        constant = np.full_like(x, number)
        with np.errstate(all="ignore"):
            expected = BINARY[name](constant, x) if is_first else BINARY[name](x, constant)
        (found,) = evaluate(instructions, expression, [x])
        assert_same(found, expected)


@instruction_sets
def test_logic_and_selection(instructions: InstructionSet) -> None:
    require(instructions)
    x, y, z = (samples(4096, seed) for seed in range(3))
    for name, reference in LOGICAL.items():
        steps = (
            Step("less", (0, 1)), Step("greater", (1, 2)), Step(name, (3, 4), dtype="bool"),
            Step("invert", (5,), dtype="bool"),
            Step("where", (6, 0, 2)), Step("where", (3, 1, 2)),
        )  # fmt: skip
        found = evaluate(instructions, Expression(3, steps, (5, 6, 7, 8)), [x, y, z])
        both = reference(x < y, y > z)
        assert_same(found[0], truth(both))
        assert_same(found[1], truth(~both))
        assert_same(found[2], np.where(~both, x, z))
        assert_same(found[3], np.where(x < y, y, z))


@instruction_sets
@pytest.mark.parametrize("name", [name for name in BINARY if "equal" in name or name in ("less", "greater")])
def test_comparison_merged_with_selection(instructions: InstructionSet, name: str) -> None:
    require(instructions)
    x, y, z = (samples(4096, seed) for seed in range(3))
    y[::5] = x[::5]
    expression = Expression(3, (Step(name, (0, 1)), Step("where", (3, 2, 0))), (4,))
    (found,) = evaluate(instructions, expression, [x, y, z])
    assert_same(found, np.where(is_true(BINARY[name](x, y)), z, x))
    nan = Expression(3, (Step("isnan", (0,)), Step("where", (3, 2, 0))), (4,))
    assert_same(evaluate(instructions, nan, [x, y, z])[0], np.where(np.isnan(x), z, x))


@instruction_sets
def test_a_product_and_a_sum_round_twice_a_multiply_add_once(instructions: InstructionSet) -> None:
    require(instructions)
    x, y, z = (np.random.default_rng(seed).normal(size=256).astype(np.float32) for seed in range(3))
    once = (x.astype(np.float64) * y + z).astype(np.float32)
    product = Step("multiply", (0, 1))
    cases = {("add", (3, 2)): x * y + z, ("add", (2, 3)): x * y + z, ("subtract", (3, 2)): x * y - z,
             ("subtract", (2, 3)): z - x * y, ("fma", (0, 1, 2)): once}  # fmt: skip
    for (name, inputs), expected in cases.items():
        for bound in (0, 1, 2, 3):
            expression = Expression(3, (product, Step(name, inputs)), (4,))
            (found,) = evaluate(instructions, expression, [x, y, z], bound=bound)
            np.testing.assert_array_equal(found, expected)
    assert (once != x * y + z).any()


@instruction_sets
def test_zeros_of_both_signs_are_different_constants(instructions: InstructionSet) -> None:
    require(instructions)
    x = np.array([1, -1, 0, -0.0] * 4, np.float32)
    for zero in (0.0, -0.0):
        expression = Expression(1, (Step("constant", number=zero), Step("multiply", (0, 1))), (2,))
        (found,) = evaluate(instructions, expression, [x])
        np.testing.assert_array_equal(np.signbit(found), np.signbit(x * np.float32(zero)))
    both = (
        Step("constant", number=0.0),
        Step("constant", number=-0.0),
        Step("multiply", (0, 1)),
        Step("multiply", (0, 2)),
    )
    found = evaluate(instructions, Expression(1, both, (3, 4)), [x])
    assert (np.signbit(found[0]) != np.signbit(found[1])).all()
    assert Step("constant", number=math.nan) == Step("constant", number=math.nan)


def ulps(found: Array, exact: Array) -> Array:
    """Distance in units in the last place of the rounded exact value; where it is ∞ or NaN, 0 or ∞."""
    with np.errstate(over="ignore"):
        rounded = exact.astype(np.float32)
    special = ~np.isfinite(rounded) | ~np.isfinite(found)
    agrees = (found == rounded) | (np.isnan(found) & np.isnan(rounded))
    with np.errstate(invalid="ignore"):
        unit = np.spacing(np.maximum(np.abs(rounded), np.float32(1.1754944e-38))).astype(np.float64)
        error = np.abs(found.astype(np.float64) - exact) / unit
    return np.where(special, np.where(agrees, 0, np.inf), error)


LARGEST_ERRORS = {"exp": 1.0, "log": 1.0, "tanh": 2.5, "erf": 1.75, "sigmoid": 2.5, "sin": 1.6, "cos": 1.6,
                  "expm1": 1.5, "log1p": 1.5}  # fmt: skip
"""Over every 509th float: 0.88, 0.90, 2.47, 1.65, 2.32, 1.51, 1.51, 1.42, 1.44."""


def dense_floats(step: int) -> Array:
    """Every step-th float32, NaN among them."""
    bits = np.arange(0, 2**32, step, dtype=np.uint64).astype(np.uint32)
    return np.resize(np.concatenate([EDGES, bits.view(np.float32)]), -(-(len(bits) + len(EDGES)) // 16) * 16)


@instruction_sets
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_accurate_over_all_floats(instructions: InstructionSet, name: str) -> None:
    require(instructions)
    x = dense_floats(4099)
    (found,) = evaluate(instructions, single(name, 1), [x])
    with np.errstate(all="ignore"):
        exact = FUNCTIONS[name](x.astype(np.float64))
    assert ulps(found, exact).max() <= LARGEST_ERRORS[name]


@instruction_sets
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_with_few_registers(instructions: InstructionSet, name: str) -> None:
    require(instructions)
    x = samples(256)
    (expected,) = evaluate(instructions, single(name, 1), [x])
    needed = registers_needed(single(name, 1), 1)
    (found,) = evaluate(instructions, single(name, 1), [x], bound=1, free=needed)
    np.testing.assert_array_equal(found, expected)
    with pytest.raises(TooFewRegisters):
        evaluate(instructions, single(name, 1), [x], bound=1, free=needed - 1)


def random_expression(random: np.random.Generator, operands: int, count: int) -> Expression:
    """Steps with finite values; truth values and floats apart."""
    floats, truths = list(range(operands)), [0][:0]
    steps: list[Step] = []
    arithmetic = ("add", "subtract", "multiply", "minimum", "maximum", "negative", "absolute", "tanh", "relu",
                  "sigmoid")  # fmt: skip
    for value in range(operands, operands + count):
        kind = random.random()
        pick = [int(entry) for entry in random.choice(floats, 2)]
        if kind < 0.15:
            steps.append(Step("constant", number=float(np.float32(random.normal()))))
        elif kind < 0.3:
            steps.append(Step(str(random.choice(["less", "greater_equal", "not_equal"])), tuple(pick)))
            truths.append(value)
            continue
        elif kind < 0.4 and truths:
            steps.append(Step("where", (int(random.choice(truths)), *pick)))
        else:
            name = str(random.choice(arithmetic))
            steps.append(Step(name, tuple(pick[: operation(name).arity])))
        floats.append(value)
    outputs = tuple(int(entry) for entry in random.choice(floats, random.integers(1, 3)))
    return Expression(operands, tuple(steps), outputs)


def reference(expression: Expression, operands: list[Array]) -> list[Array]:
    values: list[Array] = [operand.astype(np.float64) for operand in operands]
    for step in expression.steps:
        inputs = [values[value] for value in step.inputs]
        if step.operation == "constant":
            values.append(np.full(operands[0].shape, step.number))
        elif step.operation == "where":
            values.append(np.where(*inputs))
        elif step.operation in BINARY:
            values.append(getattr(np, step.operation)(*inputs))
        else:
            values.append({**UNARY, **FUNCTIONS}[step.operation](*inputs))
    return [values[output] for output in expression.outputs]


@instruction_sets
@pytest.mark.parametrize("seed", range(25))
def test_random_expressions(instructions: InstructionSet, seed: int) -> None:
    """Whole numbers and their quarters, so that comparisons do not hang on a rounding."""
    require(instructions)
    random = np.random.default_rng(seed)
    count = int(random.integers(1, 4))
    expression = random_expression(random, count, int(random.integers(1, 16)))
    operands = [(random.integers(-8, 8, 64) / 4).astype(np.float32) for _ in range(count)]
    expected = reference(expression, operands)
    for bound in range(count + 1):
        needed = registers_needed(expression, bound, has_avx512=instructions is InstructionSet.AVX512)
        for free in {needed, 16 - bound}:
            if needed + bound > 16:
                continue
            found = evaluate(instructions, expression, operands, bound=bound, free=free)
            for one, other in zip(found, expected, strict=True):
                close = np.isclose(one, other, rtol=1e-4, atol=1e-4)
                # A comparison of nearly equal values may fall either way.
                assert close.mean() > 0.95


@instruction_sets
def test_operands_are_loaded_again_when_registers_are_short(instructions: InstructionSet) -> None:
    require(instructions)
    x, y, z = (np.random.default_rng(seed).normal(size=64).astype(np.float32) for seed in range(3))
    steps = (
        Step("add", (0, 1)),
        Step("multiply", (3, 2)),
        Step("multiply", (4, 0)),
        Step("multiply", (5, 1)),
        Step("multiply", (6, 2)),
    )
    expression = Expression(3, steps, (7,))
    assert registers_needed(expression, 0) == 2
    (found,) = evaluate(instructions, expression, [x, y, z], free=2)
    a, b, c = (value.astype(np.float64) for value in (x, y, z))
    np.testing.assert_allclose(found, (a + b) * c * a * b * c, rtol=1e-4, atol=1e-5)


@instruction_sets
def test_outputs_that_are_operands_or_constants(instructions: InstructionSet) -> None:
    require(instructions)
    x, y = samples(64), samples(64, 1)
    expression = Expression(2, (Step("constant", number=3.0), Step("add", (0, 1))), (1, 2, 0, 3, 1))
    for bound in (0, 1, 2):
        found = evaluate(instructions, expression, [x, y], bound=bound)
        with np.errstate(all="ignore"):
            for one, other in zip(found, (y, np.full_like(x, 3), x, x + y, y), strict=True):
                np.testing.assert_array_equal(one, other)
