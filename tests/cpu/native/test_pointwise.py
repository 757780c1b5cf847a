"""Pointwise launches against NumPy: shapes, strides, dtypes, both instruction sets, guarded memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from tests.cpu.native.harness import Guarded, forms, guarded, instruction_sets, require, run
from vkml.cpu.native.executable import InstructionSet
from vkml.cpu.native.expression import IDENTITY, Access, Expression, Step
from vkml.cpu.native.open_pointwise import open_pointwise
from vkml.cpu.native.pointwise import MOST_OPERANDS, pointwise

Array = np.ndarray[Any, Any]
ADD = Expression(2, (Step("add", (0, 1)),), (2,))
LEAKY = Expression(
    2,
    (
        Step("constant", number=0.0),
        Step("less", (0, 2)),
        Step("multiply", (0, 1)),
        Step("where", (3, 4, 0)),
        Step("subtract", (5, 1)),
    ),
    (6,),
)


def access(array: Array) -> Access:
    return Access(tuple(stride // array.itemsize for stride in array.strides), array.dtype.name)


def launches_of(
    instructions: InstructionSet,
    expression: Expression,
    leaves: Sequence[Array],
    results: Sequence[Array],
    threads: int = 2,
) -> Iterator[Any]:
    return forms(
        pointwise,
        open_pointwise,
        instructions,
        opens_columns=True,
        shape=results[0].shape,
        leaves=tuple(access(leaf) for leaf in leaves),
        expression=expression,
        results=tuple(access(result) for result in results),
        threads=threads,
    )


def check(
    instructions: InstructionSet,
    expression: Expression,
    leaves: Sequence[Array],
    result: tuple[Guarded, Array],
    expected: Array,
) -> None:
    memory, view = result
    for launch in launches_of(instructions, expression, leaves, [view]):
        for serial in (True, False):
            memory.array[...] = 0
            run(launch, [*leaves, view], serial=serial, parallel=not serial)
            np.testing.assert_array_equal(view, expected)
            memory.check()


def values(shape: Sequence[int], seed: int = 0, dtype: str = "float32") -> Array:
    random = np.random.default_rng(seed)
    if dtype == "bool":
        return random.random(shape) < 0.5
    return (random.integers(-64, 64, shape) / 8).astype(dtype)


SHAPES = [
    (), (1,), (7,), (8,), (16,), (17,), (31,), (64,), (100,), (1000,), (4099,), (100003,), (3, 5), (5, 3),
    (56, 64), (7, 100), (3, 1000), (2, 3, 4, 5), (1, 12, 9, 128), (4, 1, 33), (300, 3), (9, 130),
    (2, 40000), (65, 129),
]  # fmt: skip


@instruction_sets
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("at_start", [False, True])
def test_contiguous_operands(instructions: InstructionSet, shape: tuple[int, ...], at_start: bool) -> None:
    require(instructions)
    x, y = values(shape), values(shape, 1)
    memory, a = guarded(x, at_start=at_start)
    other, b = guarded(y, at_start=at_start)
    result = guarded(np.zeros(shape, np.float32), at_start=at_start)
    check(instructions, ADD, [a, b], result, x + y)
    memory.check()
    other.check()


@instruction_sets
@pytest.mark.parametrize("seed", range(60))
def test_random_broadcasts_and_layouts(instructions: InstructionSet, seed: int) -> None:
    require(instructions)
    random = np.random.default_rng(seed)
    rank = int(random.integers(1, 5))
    shape = tuple(int(entry) for entry in random.choice([1, 2, 3, 5, 8, 16, 17, 33, 70], rank))

    def operand(number: int) -> Array:
        """A transposed, sliced or repeated view in guarded memory."""
        order = random.permutation(rank)
        repeats = random.random(rank) < 0.3
        whole = [1 if repeats[axis] else shape[axis] for axis in order]
        steps = [int(random.choice([1, 1, 1, 2, 3])) for _ in order]
        stored = [extent * step - (step - 1) for extent, step in zip(whole, steps, strict=True)]
        _, array = guarded(values(stored, number), at_start=bool(random.integers(2)))
        keep.append(_)
        view = array[tuple(slice(None, None, step) for step in steps)].transpose(np.argsort(order))
        for axis in range(rank):
            if random.random() < 0.15 and not repeats[axis]:
                view = np.flip(view, axis)
        return np.broadcast_to(view, shape)

    keep: list[Guarded] = []
    x, y = operand(0), operand(1)
    order = random.permutation(rank)
    step = int(random.choice([1, 1, 2]))
    stored = [shape[axis] for axis in order]
    stored[-1] = stored[-1] * step - (step - 1)
    memory, array = guarded(np.zeros(stored, np.float32))
    view = array[..., ::step].transpose(np.argsort(order))
    product = np.where(x < 0, x * y, x).astype(np.float32)
    check(instructions, LEAKY, [x, y], (memory, view), product - y)
    copied = guarded(np.zeros(stored, np.float32))
    check(instructions, IDENTITY, [x], (copied[0], copied[1][..., ::step].transpose(np.argsort(order))), x)
    for entry in keep:
        entry.check()


@instruction_sets
@pytest.mark.parametrize("source", ["float32", "float16", "bool"])
@pytest.mark.parametrize("target", ["float32", "float16", "bool"])
@pytest.mark.parametrize("shape", [(1,), (9,), (64,), (1003,), (5, 33), (50000,)], ids=str)
def test_element_types(
    instructions: InstructionSet, source: str, target: str, shape: tuple[int, ...]
) -> None:
    require(instructions)
    x, scalar = values(shape, 0, source), values((1,), 3, source)
    steps: list[Step] = []

    def add(*arguments: Any, number: float = 0.0) -> int:
        steps.append(Step(*arguments, number=number))
        return 1 + len(steps)

    # Truth values become numbers, numbers are compared with zero.
    entries = [0, 1]
    zero, one = add("constant"), add("constant", number=1.0)
    if source == "bool":
        entries = [add("where", (entry, one, zero)) for entry in entries]
    total = add("add", tuple(entries))
    if target == "bool":
        total = add("greater", (total, zero))
    expression = Expression(2, tuple(steps), (total,))
    expected = x.astype(np.float32) + scalar.astype(np.float32)
    expected = expected > 0 if target == "bool" else expected.astype(target)
    _, a = guarded(x)
    _, b = guarded(scalar)
    result = guarded(np.zeros(shape, target))
    check(instructions, expression, [a, np.broadcast_to(b, shape)], result, expected)
    # Results that are not contiguous: element by element.
    wide, array = guarded(np.zeros((*shape[:-1], shape[-1] * 2 - 1), target))
    check(instructions, expression, [a, np.broadcast_to(b, shape)], (wide, array[..., ::2]), expected)
    strided = guarded(np.repeat(x, 2, axis=-1))[1][..., ::2]
    check(instructions, expression, [strided, np.broadcast_to(b, shape)], result, expected)


@instruction_sets
def test_halves_round_to_even_and_overflow(instructions: InstructionSet) -> None:
    require(instructions)
    x = np.array([2049.0, 2051.0, 65504.0, 65520.0, 1e-8, 5.96e-8, np.inf, -np.inf, np.nan] * 3, np.float32)
    with np.errstate(over="ignore"):
        expected = x.astype(np.float16)
    check(instructions, IDENTITY, [x], guarded(np.zeros(x.shape, np.float16)), expected)


@instruction_sets
@pytest.mark.parametrize(
    "shape",
    [(3, 50), (50, 3), (16, 16), (8, 8), (64, 49), (49, 64), (1, 5), (100, 131), (17, 300), (7, 9)],
    ids=str,
)
@pytest.mark.parametrize("batch", [(), (1,), (5,), (2, 3)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bool"])
def test_transpositions(
    instructions: InstructionSet, shape: tuple[int, int], batch: tuple[int, ...], dtype: str
) -> None:
    require(instructions)
    x = values((*batch, *shape), dtype=dtype)
    memory, a = guarded(x)
    view = a.swapaxes(-1, -2)
    result = guarded(np.zeros(view.shape, dtype))
    check(instructions, IDENTITY, [view], result, x.swapaxes(-1, -2))
    memory.check()
    # Out of, and into, a part of a larger array.
    memory, a = guarded(values((*batch, shape[0] + 2, shape[1] + 3), dtype=dtype))
    part = a[..., 1:-1, 2:-1]
    other, b = guarded(np.zeros((*batch, shape[1] + 1, shape[0] + 5), dtype))
    check(instructions, IDENTITY, [part.swapaxes(-1, -2)], (other, b[..., 1:, 2:-3]), part.swapaxes(-1, -2))
    outside = b.copy()
    outside[..., 1:, 2:-3] = 0
    assert not outside.any()


@instruction_sets
def test_nearest_resize_is_a_copy(instructions: InstructionSet) -> None:
    require(instructions)
    x = values((2, 5, 6, 19))
    _, a = guarded(x)
    view = np.broadcast_to(a[:, :, None, :, None, :], (2, 5, 2, 6, 2, 19))
    result = guarded(np.zeros(view.shape, np.float32))
    check(instructions, IDENTITY, [view], result, view)


@instruction_sets
def test_several_results(instructions: InstructionSet) -> None:
    require(instructions)
    x, y = values((33, 45)), values((45,), 1)
    steps = (Step("add", (0, 1)), Step("multiply", (0, 1)), Step("less", (0, 1)))
    expression = Expression(2, steps, (2, 3, 4, 0, 2))
    dtypes = ("float32", "float16", "bool", "float32", "float32")
    memories = [guarded(np.zeros(x.shape, dtype)) for dtype in dtypes]
    leaves = [x, np.broadcast_to(y, x.shape)]
    results = [array for _, array in memories]
    for launch in launches_of(instructions, expression, leaves, results):
        for memory, _ in memories:
            memory.array[...] = 0
        run(launch, [*leaves, *results])
        expected = (x + y, (x * y).astype(np.float16), x < y, x, x + y)
        for (memory, array), value in zip(memories, expected, strict=True):
            np.testing.assert_array_equal(array, value)
            memory.check()


@instruction_sets
@pytest.mark.parametrize("shape", [(5,), (7, 11), (3, 4, 5, 6)], ids=str)
def test_as_many_operands_as_allowed(instructions: InstructionSet, shape: tuple[int, ...]) -> None:
    require(instructions)
    count = MOST_OPERANDS - 1
    arrays = [values(shape, seed) for seed in range(count)]
    steps = [Step("add", (0, 1))]
    for operand in range(2, count):
        steps.append(Step("add", (count + len(steps) - 1, operand)))
    expression = Expression(count, tuple(steps), (count + len(steps) - 1,))
    leaves = [
        array if position % 2 else np.broadcast_to(array[..., :1], shape)
        for position, array in enumerate(arrays)
    ]
    check(instructions, expression, leaves, guarded(np.zeros(shape, np.float32)), np.sum(leaves, axis=0))
    with pytest.raises(ValueError, match="operands"):
        next(launches_of(instructions, Expression(count + 1, (), (0,)), [*leaves, leaves[0]], [arrays[0]]))
    outer = [np.broadcast_to(array.swapaxes(0, -1), array.swapaxes(0, -1).shape) for array in leaves]
    check(
        instructions,
        expression,
        outer,
        guarded(np.zeros(shape[::-1] if len(shape) < 3 else outer[0].shape, np.float32)),
        np.sum(outer, axis=0),
    )


@instruction_sets
@pytest.mark.parametrize("threads", [1, 2, 16])
def test_chunks_cover_everything_once(instructions: InstructionSet, threads: int) -> None:
    require(instructions)
    for shape in ((1 << 20,), (1024, 1000), (3000, 64), (32, 12, 40, 41)):
        x = np.ones(shape, np.float32)
        launch = next(launches_of(instructions, ADD, [x, x], [x], threads))
        # In place: a second visit would show.
        run(launch, [x, x, x], serial=False)
        np.testing.assert_array_equal(x, 2)
