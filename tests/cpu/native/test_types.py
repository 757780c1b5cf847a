"""Operations of every arithmetic type and conversions between all, bit for bit against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.cpu.native.harness import Guarded, guarded, instruction_sets, require, run
from vkml.cpu.native.element import computed_in
from vkml.cpu.native.executable import InstructionSet
from vkml.cpu.native.expression import IDENTITY, Access, Expression, Step, simplified
from vkml.cpu.native.operations import OPERATIONS
from vkml.cpu.native.pointwise import pointwise

Array = np.ndarray[Any, Any]
INTEGERS = ("int32", "uint32", "int64", "uint64")
NARROW = ("int8", "uint8", "int16", "uint16")
ELEMENTS = ("float32", "float64", "float16", "bfloat16", "bool", *INTEGERS, *NARROW)
COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")


def storage(dtype: str) -> np.dtype[Any]:
    """What holds elements in memory: bfloat16 as its bits."""
    return np.dtype(np.uint16 if dtype == "bfloat16" else dtype)


def samples(dtype: str, count: int, seed: int = 0) -> Array:
    """Numbers of every size, with edge cases among them, as they lie in memory."""
    random = np.random.default_rng(seed)
    if dtype == "bool":
        return random.random(count) < 0.5
    kind = storage(dtype)
    if kind.kind in "iu" and dtype != "bfloat16":
        limits = np.iinfo(kind)
        bits = random.integers(limits.min, limits.max, count, dtype=kind, endpoint=True)
        bits >>= random.integers(0, kind.itemsize * 8, count).astype(kind)
        edges = [limits.min, limits.max, 0, 1, 2, limits.max - 1, limits.min + 1, limits.max // 2]
        edges += [-1, -2, -3] if kind.kind == "i" else []
        places = random.integers(0, count, max(1, count // 4))
        bits[places] = random.choice(np.array(edges, kind), len(places))
        return bits
    width = kind.itemsize * 8
    raw = random.integers(0, 2**width, count, dtype=f"uint{width}", endpoint=False)
    usual = random.normal(size=count) * 10.0 ** random.integers(-3, 12, count)
    edges = np.array([0.0, -0.0, 1, -1, 0.5, -0.5, 1.5, 2.5, -2.5, np.inf, -np.inf, np.nan,
                      2.0**31, -(2.0**31), 2.0**32, 2.0**31 - 1, 2.0**31 + 0.5, 2.0**53,
                      2.0**62, 65504.0, 65520.0, 1e-45, 1e-40,
                      5e-324, 255.5, -128.7, 3.5e38, 1e300])  # fmt: skip
    places = random.integers(0, count, max(1, count // 4))
    with np.errstate(all="ignore"):
        usual[places] = random.choice(edges, len(places))
        if dtype == "bfloat16":
            rounded = usual.astype(ml_dtypes.bfloat16).view(np.uint16)
            return np.where(random.random(count) < 0.3, raw, rounded).astype(np.uint16)
        return np.where(random.random(count) < 0.3, raw.view(kind), usual.astype(kind))


def loaded(array: Array, dtype: str) -> Array:
    """What a lane holds."""
    if dtype == "bfloat16":
        return array.view(ml_dtypes.bfloat16).astype(np.float32)
    return array.astype(computed_in(dtype))


def evaluate(
    instructions: InstructionSet, expression: Expression, operands: list[tuple[Array, str]], dtypes: list[str]
) -> list[Array]:
    """Runs an expression over arrays of one shape in guarded memory."""
    memories = [guarded(array) for array, _ in operands]
    shape = operands[0][0].shape
    made = [guarded(np.zeros(shape, storage(dtype))) for dtype in dtypes]

    def access(dtype: str) -> Access:
        return Access(
            tuple(stride // storage(dtype).itemsize for stride in np.empty(shape, storage(dtype)).strides),
            dtype,
        )

    launch = pointwise(
        instructions,
        shape=shape,
        leaves=tuple(access(dtype) for _, dtype in operands),
        expression=expression,
        results=tuple(access(dtype) for dtype in dtypes),
        threads=2,
    )
    run(launch, [*(array for _, array in memories), *(array for _, array in made)], parallel=False)
    for memory, _ in (*memories, *made):
        memory.check()
    return [array for _, array in made]


def assert_same(found: Array, expected: Array) -> None:
    assert found.dtype == expected.dtype
    if found.dtype.kind != "f":
        np.testing.assert_array_equal(found, expected)
        return
    np.testing.assert_array_equal(found, expected)
    is_number = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(found)[is_number], np.signbit(expected)[is_number])


def truncated_division(a: Array, b: Array) -> Array:
    if a.dtype.kind == "f":
        return np.asarray(a / b)
    wide = a.astype(object), b.astype(object)
    quotients = [
        0 if y == 0 else abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
        for x, y in zip(*wide, strict=True)
    ]
    return wrapped(quotients, a.dtype)


def wrapped(numbers: list[int], dtype: np.dtype[Any]) -> Array:
    bits = dtype.itemsize * 8
    return np.array([number & ((1 << bits) - 1) for number in numbers], f"uint{bits}").view(dtype)


def power(a: Array, b: Array) -> Array:
    def one(x: int, y: int) -> int:
        if y < 0:
            return {1: 1, -1: -1 if y % 2 else 1}.get(x, 0)
        return pow(x, y, 1 << (8 * a.dtype.itemsize))

    return wrapped([one(x, y) for x, y in zip(a.tolist(), b.tolist(), strict=True)], a.dtype)


def shifted(name: str, a: Array, b: Array) -> Array:
    bits = a.dtype.itemsize * 8
    is_left = name == "left_shift"

    def one(x: int, y: int) -> int:
        if y < 0 or y >= bits:
            return 0 if is_left or x >= 0 else -1
        return x << y if is_left else x >> y

    return wrapped([one(x, y) for x, y in zip(a.tolist(), b.tolist(), strict=True)], a.dtype)


REFERENCES: dict[str, Callable[..., Array]] = {
    "divide": truncated_division,
    "power": power,
    "left_shift": lambda a, b: shifted("left_shift", a, b),
    "right_shift": lambda a, b: shifted("right_shift", a, b),
    "greater_of": lambda a, b: np.where(a > b, a, b),
    "less_of": lambda a, b: np.where(a < b, a, b),
    "limit_above": np.minimum,
    "limit_below": np.maximum,
    "relu": lambda x: np.maximum(x, 0),
    "reciprocal": lambda x: np.asarray(1 / x),
    "negative": lambda x: (0 - x).astype(x.dtype) if x.dtype.kind in "iu" else -x,
}


def reference(step: str, inputs: list[Array]) -> Array:
    function = REFERENCES.get(step) or getattr(np, step)
    with np.errstate(all="ignore"):
        return np.asarray(function(*inputs))


EXACT = [
    (name, dtype)
    for name, dtype in OPERATIONS
    if dtype not in ("bool",)
    and not name.startswith(("constant", "to_", "where", "wrap_"))
    and (dtype != "float32" or name in ("fmod", "add"))
    and name not in ("fma", "round_to_half")
]


def second(name: str, dtype: str, count: int) -> tuple[Array, str]:
    """A second operand and its type."""
    if name == "power":
        kind = dtype.replace("u", "")
        y = np.random.default_rng(5).integers(-4, 70, count).astype(kind)
        y[::7] = samples(kind, len(y[::7]), 4)
        return y, kind
    if name.endswith("_shift"):
        kind = np.dtype(dtype)
        y = np.random.default_rng(5).integers(-3 if kind.kind == "i" else 0, 70, count).astype(kind)
        y[::5] = samples(dtype, len(y[::5]), 4)
        return y, dtype
    y = samples(dtype, count, 1)
    if name.startswith("limit_"):
        y[np.isnan(y)] = 3
    return y, dtype


@instruction_sets
@pytest.mark.parametrize(("name", "dtype"), EXACT)
def test_operations_match_numpy(instructions: InstructionSet, name: str, dtype: str) -> None:
    require(instructions)
    count = 1003
    arity = OPERATIONS[name, dtype].arity
    x = samples(dtype, count)
    operands = [(x, dtype), second(name, dtype, count)][:arity]
    if arity == 2 and name != "power":
        operands[1][0][::6] = x[::6]
    if name.startswith("limit_"):
        operands[1][0][np.isnan(operands[1][0])] = 0
    step = Step(name, tuple(range(arity)), dtype=dtype)
    (found,) = evaluate(instructions, Expression(arity, (step,), (arity,)), operands, [step.result])
    expected = reference(name, [array for array, _ in operands])
    if name in ("minimum", "maximum", "limit_above", "limit_below", "relu"):
        # The sign of the greater of 0 and -0 is either.
        np.testing.assert_array_equal(found, expected)
    else:
        assert_same(found, expected.astype(step.result))


@instruction_sets
@pytest.mark.parametrize("dtype", ["float64", *INTEGERS])
@pytest.mark.parametrize("name", [*COMPARISONS, "isnan"])
def test_comparisons_choose(instructions: InstructionSet, dtype: str, name: str) -> None:
    """By themselves, and of values of other types than those compared."""
    require(instructions)
    if (name, dtype) not in OPERATIONS:
        assert name == "isnan"
        return
    count = 517
    x, y = samples(dtype, count), samples(dtype, count, 1)
    y[::3] = x[::3]
    inputs = (0, 1)[: OPERATIONS[name, dtype].arity]
    with np.errstate(all="ignore"):
        condition = getattr(np, name)(*(x, y)[: len(inputs)])
    for other in ("float32", "int64", "float64", "uint32"):
        a, b = samples(other, count, 2), samples(other, count, 3)
        steps = (Step(name, inputs, dtype=dtype), Step("where", (4, 2, 3), dtype=other))
        found = evaluate(
            instructions,
            Expression(4, steps, (5,)),
            [(x, dtype), (y, dtype), (a, other), (b, other)],
            [other],
        )
        assert_same(found[0], np.where(condition, a, b))
        both = evaluate(
            instructions,
            Expression(4, steps, (4, 5)),
            [(x, dtype), (y, dtype), (a, other), (b, other)],
            ["bool", other],
        )
        assert_same(both[0], condition)
        assert_same(both[1], np.where(condition, a, b))


def low_bits(x: Array, dtype: str) -> Array:
    """A float's integral part as an integer that wraps; what is beyond 64 bits counts as the least one."""
    bits = np.dtype(dtype).itemsize * 8
    limit = 2.0**64 if dtype == "uint64" else 2.0**63
    numbers = [int(entry) if -(2.0**63) <= entry < limit else -(1 << 63) for entry in x.tolist()]
    return np.array([number & ((1 << bits) - 1) for number in numbers], f"uint{bits}").view(dtype)


@instruction_sets
@pytest.mark.parametrize(("name", "source"), [key for key in OPERATIONS if key[0].startswith("to_")])
def test_conversions(instructions: InstructionSet, name: str, source: str) -> None:
    require(instructions)
    target = name[3:]
    x = samples(source, 4001)
    step = Step(name, (0,), dtype=source)
    (found,) = evaluate(instructions, Expression(1, (step,), (1,)), [(x, source)], [target])
    if np.dtype(source).kind == "f" and np.dtype(target).kind in "iu":
        # What does not fit uint64 is any number.
        known = (x >= -(2.0**63)) & (x < 2.0**64) if target == "uint64" else np.full(x.shape, True)
        assert known.mean() > 0.5
        np.testing.assert_array_equal(found[known], low_bits(x, target)[known])
    else:
        with np.errstate(all="ignore"):
            assert_same(found, x.astype(target))


@instruction_sets
@pytest.mark.parametrize("dtype", INTEGERS)
def test_large_integers_become_floats_with_one_rounding(instructions: InstructionSet, dtype: str) -> None:
    require(instructions)
    kind = np.dtype(dtype)
    bits = 8 * kind.itemsize
    # Next to the middle between two floats, where rounding twice goes wrong.
    numbers = [
        (1 << top) + (1 << (top - 24)) + offset
        for top in range(30, bits - (kind.kind == "i"))
        for offset in (-2, -1, 0, 1, 2)
    ]
    x = np.array(numbers + ([-number for number in numbers] if kind.kind == "i" else []), object).astype(kind)
    for target in ("float32", "float64"):
        step = Step(f"to_{target}", (0,), dtype=dtype)
        (found,) = evaluate(instructions, Expression(1, (step,), (1,)), [(x, dtype)], [target])
        np.testing.assert_array_equal(found, x.astype(target))


@instruction_sets
@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("kind", ["int", "uint"])
def test_wrapping(instructions: InstructionSet, bits: int, kind: str) -> None:
    require(instructions)
    x = samples("int32", 301)
    step = Step(f"wrap_{kind}{bits}", (0,), dtype="int32")
    (found,) = evaluate(instructions, Expression(1, (step,), (1,)), [(x, "int32")], ["int32"])
    assert_same(found, x.astype(f"{kind}{bits}").astype(np.int32))


@instruction_sets
@pytest.mark.parametrize("dtype", ELEMENTS)
@pytest.mark.parametrize("is_wide", [False, True])
def test_elements_of_all_lengths(instructions: InstructionSet, dtype: str, is_wide: bool) -> None:
    """Loads and stores, with another operand that makes lanes wide."""
    require(instructions)
    arithmetic = computed_in(dtype)
    for length in (*range(1, 36), *range(36, 71, 5)):
        x = samples(dtype, length, length)
        other = samples("int64" if is_wide else "uint32", length)
        operands = [(x, dtype), (other, other.dtype.name)]
        found = evaluate(
            instructions, Expression(2, (), (0, 1, 0)), operands, [dtype, other.dtype.name, arithmetic]
        )
        np.testing.assert_array_equal(found[1], other)
        np.testing.assert_array_equal(found[2], loaded(x, dtype))
        if dtype == "bfloat16":
            is_nan = np.isnan(loaded(x, dtype))
            np.testing.assert_array_equal(found[0][~is_nan], x[~is_nan])
            assert np.isnan(loaded(found[0], dtype))[is_nan].all()
        else:
            np.testing.assert_array_equal(found[0], x)


@instruction_sets
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_stores_round_to_even(instructions: InstructionSet, dtype: str) -> None:
    require(instructions)
    x = samples("float32", 4099)
    x[:1024] = (np.arange(1024, dtype=np.uint32) * 0x2001 + 0x3F800000).view(np.float32)
    x[1024:1100] = (np.arange(76, dtype=np.uint32) * 0x8000 + 0x7F000000).view(np.float32)
    (found,) = evaluate(instructions, IDENTITY, [(x, "float32")], [dtype])
    with np.errstate(all="ignore"):
        expected = x.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float16)
    np.testing.assert_array_equal(found.view(expected.dtype).astype(np.float32), expected.astype(np.float32))


@instruction_sets
@pytest.mark.parametrize("dtype", ELEMENTS)
@pytest.mark.parametrize("seed", range(24))
def test_strides_and_broadcasts(instructions: InstructionSet, dtype: str, seed: int) -> None:
    require(instructions)
    random = np.random.default_rng(seed)
    kind = storage(dtype)
    shape = tuple(int(entry) for entry in random.choice([1, 2, 3, 7, 16, 33], int(random.integers(1, 4))))
    axes = range(len(shape))

    def operand(content: Callable[[int], Array], may_repeat: float, may_step: float) -> tuple[Guarded, Array]:
        """A transposed view with gaps, in guarded memory; repeated along some axes."""
        order = random.permutation(len(shape)) if random.random() < 0.5 else np.arange(len(shape))
        whole = [1 if random.random() < may_repeat else shape[axis] for axis in order]
        steps = [int(random.choice([2, 3])) if random.random() < may_step else 1 for _ in axes]
        stored = [extent * step - step + 1 for extent, step in zip(whole, steps, strict=True)]
        memory, array = guarded(content(int(np.prod(stored))).reshape(stored), at_start=bool(seed % 2))
        return memory, array[tuple(slice(None, None, step) for step in steps)].transpose(np.argsort(order))

    before, view = operand(lambda count: samples(dtype, count, 3), 0.25, 0.4)
    if random.random() < 0.3:
        view = np.flip(view, int(random.integers(len(shape))))
    x = np.broadcast_to(view, shape)
    memory, y = operand(lambda count: np.zeros(count, kind), 0.0, 0.2)
    launch = pointwise(
        instructions,
        shape=shape,
        leaves=(Access(tuple(stride // kind.itemsize for stride in x.strides), dtype),),
        expression=IDENTITY,
        results=(Access(tuple(stride // kind.itemsize for stride in y.strides), dtype),),
        threads=2,
    )
    run(launch, [x, y])
    if dtype == "bfloat16":
        np.testing.assert_array_equal(loaded(y.copy(), dtype), loaded(x.copy(), dtype))
    else:
        np.testing.assert_array_equal(y, x)
    before.check()
    memory.check()


@instruction_sets
@pytest.mark.parametrize("dtype", ["int64", "float64", "uint8", "int16"])
def test_in_place(instructions: InstructionSet, dtype: str) -> None:
    require(instructions)
    x = samples(dtype, 70001)
    arithmetic = computed_in(dtype)
    with np.errstate(all="ignore"):
        expected = x + x
    steps = [Step("add", (0, 0), dtype=arithmetic)]
    if dtype in NARROW:
        steps.append(Step(f"wrap_{dtype}", (1,), dtype="int32"))
    launch = pointwise(
        instructions,
        shape=x.shape,
        leaves=(Access((1,), dtype),),
        expression=Expression(1, tuple(steps), (len(steps),)),
        results=(Access((1,), dtype),),
        threads=2,
    )
    run(launch, [x, x], serial=False)
    np.testing.assert_array_equal(x, expected)


@instruction_sets
@pytest.mark.parametrize(
    ("low", "high", "dtype", "is_short"),
    [
        (0.0, 255.0, "uint8", True),
        (-128.0, 127.0, "int8", True),
        (0.0, 256.0, "uint8", False),
        (-3e9, 3e9, "int16", False),
    ],
)
def test_bounded_numbers_become_bytes(
    instructions: InstructionSet, low: float, high: float, dtype: str, is_short: bool
) -> None:
    """Between comparisons that leave no NaN, a conversion has no edges to look after, and nothing wraps."""
    require(instructions)
    steps = (
        Step("constant", number=low),
        Step("constant", number=high),
        Step("greater", (0, 1)),
        Step("where", (3, 0, 1)),
        Step("less", (4, 2)),
        Step("where", (5, 4, 2)),
        Step("to_int32", (6,)),
        Step(f"wrap_{dtype}", (7,), dtype="int32"),
    )
    expression = Expression(1, steps, (8,))
    names = {step.operation for step in simplified(expression).steps}
    assert ("truncate" in names and f"wrap_{dtype}" not in names) == is_short
    edges = [np.nan, np.inf, -np.inf, -0.0, 127.5, 128, 254.9, 255, 255.5, 256, -129, 3e9, -4e9, 70000]
    x = np.array(edges * 3, np.float32)
    (found,) = evaluate(instructions, expression, [(x, "float32")], [dtype])
    clamped = np.where(x > np.float32(low), x, np.float32(low))
    clamped = np.where(clamped < np.float32(high), clamped, np.float32(high))
    np.testing.assert_array_equal(found, clamped.astype(np.int64).astype(dtype))


@instruction_sets
def test_a_comparison_the_other_way_round_lets_nan_through(instructions: InstructionSet) -> None:
    require(instructions)
    steps = (
        Step("constant", number=0.0),
        Step("less", (0, 1)),
        Step("where", (2, 1, 0)),  # NaN stays
        Step("constant", number=9.0),
        Step("less", (4, 3)),
        Step("where", (5, 4, 3)),
        Step("to_int32", (6,)),
    )
    x = np.array([np.nan, 5, -5, 3e9] * 4, np.float32)
    (found,) = evaluate(instructions, Expression(1, steps, (7,)), [(x, "float32")], ["int32"])
    assert found.tolist() == [0, 5, 0, 9] * 4
